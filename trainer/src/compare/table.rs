//! Verdicts as a table for people, and as JSON for programs.

use super::row::{Reading, Verdict};
use super::rows::Want;
use crate::report::{grouped, mib};
use serde::Serialize;

/// What stands above the columns, in two lines, so that these are narrow.
const HEAD: [[&str; 9]; 2] = [
    ["", "", "last", "against", "tokens", "waits", "peak", "% of", "sent a step"],
    ["strategy", "ranks", "loss", "one process", "/s", "%", "MiB", "formula", "(B) = formula"],
];

/// One line a row, aligned, and below it what is wrong with rows that are wrong.
pub(super) fn table(verdicts: &[Verdict]) -> String {
    let mut lines: Vec<Vec<String>> = HEAD.map(|line| line.map(str::to_string).to_vec()).to_vec();
    lines.extend(verdicts.iter().map(cells));
    let mut text = aligned(&lines);
    let problems = verdicts.iter().filter_map(|verdict| Some((verdict, verdict.problem()?)));
    for (verdict, problem) in problems {
        text += &format!("{} on {}: {problem}\n", verdict.row.name, verdict.row.ranks());
    }
    text
}

fn cells(verdict: &Verdict) -> Vec<String> {
    let mut cells = vec![verdict.row.name.clone(), verdict.row.ranks().to_string()];
    let Ok(reading) = &verdict.reading else {
        cells.push("failed".to_string());
        return cells;
    };
    let largest = reading.largest();
    let of_formula = largest.peak_bytes as f64 / largest.memory_bytes.max(1) as f64;
    cells.push(reading.losses.last().map_or(String::new(), |loss| format!("{loss:.6}")));
    cells.push(match (verdict.off, verdict.row.want) {
        (None, _) => String::new(),
        (Some((_, 0.0)), _) => "same bits".to_string(),
        (Some((first, worst)), Want::Within(_)) => format!("{first:.0e}..{worst:.0e}"),
        (Some((_, worst)), _) => format!("WRONG {worst:.0e}"),
    });
    cells.push(grouped(reading.tokens_per_second as u64));
    cells.push(format!("{:.1}", 100.0 * reading.exposed));
    // Where nothing counts there is no peak.
    let is_counted = largest.peak_bytes > 0;
    let counted = |text: String| if is_counted { text } else { String::new() };
    cells.push(counted(format!("{:.1}", mib(largest.peak_bytes))));
    cells.push(counted(format!("{:.1}", 100.0 * of_formula)));
    let mark = if reading.sent_as_predicted() { "=" } else { "WRONG" };
    cells.push(format!("{} {mark}", grouped(sent_a_step(reading))));
    cells
}

/// What rank 0 sends in a step. \[bytes\]
fn sent_a_step(reading: &Reading) -> u64 {
    reading.ranks()[0].sent_bytes / reading.last_steps.max(1) as u64
}

/// Columns of words to the left, of numbers to the right.
fn aligned(lines: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = lines.iter().filter_map(|line| line.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let mut text = String::new();
    for line in lines {
        let cells = line.iter().enumerate().map(|(column, cell)| match column {
            0 | 3 => format!("{cell:<0$}", width(column)),
            _ => format!("{cell:>0$}", width(column)),
        });
        text += cells.collect::<Vec<_>>().join("  ").trim_end();
        text.push('\n');
    }
    text
}

/// One JSON object a row.
pub(super) fn json(verdicts: &[Verdict]) -> String {
    #[derive(Serialize)]
    struct Line<'a> {
        strategy: &'a str,
        ranks: usize,
        right: bool,
        problem: Option<String>,
        losses: &'a [f64],
        same_bits: bool,
        first_off: Option<f64>,
        worst_off: Option<f64>,
        tokens_per_second: f64,
        exposed: f64,
        peak_bytes: u64,
        memory_bytes: u64,
        sent_bytes: u64,
        formula_bytes: u64,
        sent_bytes_per_step: Option<u64>,
        sent_as_predicted: bool,
    }
    let line = |verdict: &Verdict| {
        let reading = verdict.reading.as_ref().ok();
        let largest = reading.map(|reading| *reading.largest()).unwrap_or_default();
        let line = Line {
            strategy: &verdict.row.name,
            ranks: verdict.row.ranks(),
            right: verdict.is_right(),
            problem: verdict.problem(),
            losses: reading.map_or(&[], |reading| &reading.losses),
            same_bits: verdict.has_same_bits(),
            first_off: verdict.off.map(|(first, _)| first),
            worst_off: verdict.off.map(|(_, worst)| worst),
            tokens_per_second: reading.map_or(0.0, |reading| reading.tokens_per_second),
            exposed: reading.map_or(0.0, |reading| reading.exposed),
            peak_bytes: largest.peak_bytes,
            memory_bytes: largest.memory_bytes,
            sent_bytes: largest.sent_bytes,
            formula_bytes: largest.formula_bytes,
            sent_bytes_per_step: reading.map(sent_a_step),
            sent_as_predicted: reading.is_some_and(Reading::sent_as_predicted),
        };
        serde_json::to_string(&line).expect("a row is numbers and words") + "\n"
    };
    verdicts.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::super::rows::Row;
    use super::*;
    use crate::runlog::RankEnd;

    #[test]
    fn the_row_that_others_are_compared_with_has_its_own_bits() {
        for (want, off, has) in [
            (Want::Itself, None, true),
            (Want::SameBits, None, false),
            (Want::SameBits, Some((0.0, 0.0)), true),
            (Want::Within(1.0), Some((0.0, 1e-9)), false),
        ] {
            let reading = Reading { legs: vec![vec![RankEnd::default()]], ..Reading::default() };
            let row = Row::of_legs("row", want, 1);
            let text = json(&[Verdict { row, reading: Ok(reading), off }]);
            assert!(text.contains(&format!("\"same_bits\":{has}")), "{text}");
            assert!(
                text.contains("\"sent_bytes_per_step\":0,\"sent_as_predicted\":true"),
                "{text}"
            );
        }
    }

    #[test]
    fn a_table_of_long_names_and_large_numbers_fits_into_a_hundred_columns() {
        let sent_bytes = 12_345_678;
        let end = RankEnd {
            sent_bytes,
            formula_bytes: sent_bytes,
            peak_bytes: 123_456_789,
            memory_bytes: 123_456_788,
            start_bytes: 0,
        };
        let reading = Reading {
            losses: vec![5.123456],
            tokens_per_second: 123_456.0,
            exposed: 0.999,
            legs: vec![vec![end]],
            last_steps: 1,
        };
        let row = Row::of_legs("resume fsdp 4 as zero1", Want::Within(1e-5), 1);
        let off = Some((1.2e-10, 3.4e-10));
        let verdict = Verdict { row, reading: Ok(reading), off };
        let table = table(&[verdict]);
        assert!(table.lines().all(|line| line.chars().count() <= 100), "{table}");
        let last: Vec<&str> = table.lines().last().unwrap().split_whitespace().collect();
        assert_eq!(last[last.len() - 2..], ["12,345,678", "="], "{table}");
        assert!(table.contains(" (B) = formula\n"), "{table}");
        assert!(table.contains(" MiB ") && last.contains(&"117.7"), "{table}");
        let wrong = RankEnd { formula_bytes: 1, ..end };
        let row = Row::of_legs("ddp", Want::SameBits, 1);
        let reading = Reading { legs: vec![vec![wrong]], last_steps: 1, ..Reading::default() };
        let wrong = super::table(&[Verdict { row, reading: Ok(reading), off: Some((0.0, 0.0)) }]);
        assert!(wrong.contains("12,345,678 WRONG"), "{wrong}");
    }
}
