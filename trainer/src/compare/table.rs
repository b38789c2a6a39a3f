//! Verdicts as a table for people, and as JSON for programs.

use super::row::Verdict;
use super::rows::Want;
use crate::report::{grouped, megabytes};
use serde::Serialize;

/// One line a row, aligned, and below it what is wrong with rows that are wrong.
pub(super) fn table(verdicts: &[Verdict]) -> String {
    let head = ["strategy", "ranks", "last loss", "against one process", "tokens/s"];
    let head = head.into_iter().chain(["exposed", "peak a rank", "of formula", "sent a step", ""]);
    let mut lines = vec![head.map(str::to_string).collect::<Vec<_>>()];
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
    let sent = reading.ranks()[0].sent_bytes / reading.last_steps as u64;
    cells.push(reading.losses.last().map_or(String::new(), |loss| format!("{loss:.6}")));
    cells.push(match (verdict.off, verdict.row.want) {
        (None, _) => String::new(),
        (Some((_, 0.0)), _) => "same bits".to_string(),
        (Some((first, worst)), Want::Within(_)) => format!("{first:.0e} off, then {worst:.0e}"),
        (Some((_, worst)), _) => format!("WRONG, {worst:.1e} off"),
    });
    cells.push(grouped(reading.tokens_per_second as u64));
    cells.push(format!("{:.1} %", 100.0 * reading.exposed));
    // Where nothing counts there is no peak.
    let is_counted = largest.peak_bytes > 0;
    cells.push(if is_counted { megabytes(largest.peak_bytes) } else { String::new() });
    cells.push(if is_counted { format!("{:.1} %", 100.0 * of_formula) } else { String::new() });
    cells.push(format!("{} B", grouped(sent)));
    let is_right = reading.sent_as_predicted();
    cells.push(if is_right { "= formula" } else { "WRONG" }.to_string());
    cells
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
            0 | 3 | 9 => format!("{cell:<0$}", width(column)),
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
            same_bits: verdict.off.is_some_and(|(_, worst)| worst == 0.0),
            first_off: verdict.off.map(|(first, _)| first),
            worst_off: verdict.off.map(|(_, worst)| worst),
            tokens_per_second: reading.map_or(0.0, |reading| reading.tokens_per_second),
            exposed: reading.map_or(0.0, |reading| reading.exposed),
            peak_bytes: largest.peak_bytes,
            memory_bytes: largest.memory_bytes,
            sent_bytes: largest.sent_bytes,
            formula_bytes: largest.formula_bytes,
        };
        serde_json::to_string(&line).expect("a row is numbers and words") + "\n"
    };
    verdicts.iter().map(line).collect()
}
