//! What rank 0 prints: a table of settings, one line per step, a bar on a terminal.

use crate::error::Error;
use crate::runlog::{RankEnd, StepRecord};
use brigade_offload::plan::show_bytes;
use indicatif::{HumanDuration, ProgressBar, ProgressState, ProgressStyle};
use std::fmt;
use std::io::Write;
use std::time::Duration;

/// Where a run's lines go; other ranks than 0 stay silent.
pub(crate) struct Report<'a> {
    out: &'a mut (dyn Write + Send),
    speaks: bool,
    chatty: bool,
    /// Of so many steps one has its line, beside the first and the last.
    every: usize,
    first: usize,
    /// The last step, also for the width of its number.
    last: usize,
    /// What the last steps moved; it is told again when it changes.
    moved: String,
    bar: ProgressBar,
}

impl<'a> Report<'a> {
    /// For steps from `first`, which counts from 1, to `last`.
    pub(crate) fn new(
        out: &'a mut (dyn Write + Send),
        speaks: bool,
        quiet: bool,
        every: usize,
        (first, last): (usize, usize),
    ) -> Report<'a> {
        let chatty = speaks && !quiet;
        // The bar draws on standard error, and only if that is a terminal.
        let bar = if chatty { ProgressBar::new(last as u64) } else { ProgressBar::hidden() };
        bar.set_style(bar_style("{wide_bar} {pos}/{len} steps{left}", first as u64 - 1));
        bar.set_position(first as u64 - 1);
        // What was done before a resume says nothing about what is left.
        bar.reset_eta();
        Report { out, speaks, chatty, every, first, last, moved: String::new(), bar }
    }

    /// Aligned rows of (setting, value).
    pub(crate) fn table(&mut self, rows: &[(&str, String)]) -> Result<(), Error> {
        if !self.chatty {
            return Ok(());
        }
        self.print(&format!("{}\n", aligned(rows)))
    }

    /// A line of at most 100 columns. What the step moved stands under it, unless it is what the
    /// step that was printed before has moved. A step that was skipped is always told of.
    pub(crate) fn step(&mut self, record: &StepRecord) -> Result<(), Error> {
        let is_edge = record.step == self.first || record.step == self.last;
        let is_due = is_edge || record.step.is_multiple_of(self.every) || record.is_skipped;
        if self.speaks && is_due {
            let mut lines = step_line(record, self.last);
            let moved = moved(record);
            if moved != self.moved {
                lines += &moved;
                self.moved = moved;
            }
            if record.is_skipped {
                lines += &format!("\n    skipped: overflow at loss scale {}", record.loss_scale);
            }
            self.print(&lines)?;
        }
        self.bar.set_position(record.step as u64);
        Ok(())
    }

    /// A paragraph after the last step.
    pub(crate) fn say(&mut self, text: &str) -> Result<(), Error> {
        self.bar.finish_and_clear();
        if !self.chatty {
            return Ok(());
        }
        self.print(&format!("\n{text}"))
    }

    /// Leave the terminal to what ends the run.
    pub(crate) fn clear(&self) {
        self.bar.finish_and_clear();
    }

    /// Errors: `Output`. A reader that went away (`| head`) ends the run like a full disk does.
    fn print(&mut self, text: &str) -> Result<(), Error> {
        self.bar.suspend(|| writeln!(self.out, "{text}")).map_err(Error::Output)
    }
}

/// A style for a bar that begins at `first`. `{left}` is how long the rest will take: nothing is
/// known of that before something was done.
pub(crate) fn bar_style(template: &'static str, first: u64) -> ProgressStyle {
    let style = ProgressStyle::with_template(template).expect("the template is valid");
    style.with_key("left", move |state: &ProgressState, to: &mut dyn fmt::Write| {
        if state.pos() > first {
            // A bar that cannot be drawn is no reason to end.
            let _ = write!(to, ", {:#} left", HumanDuration(state.eta()));
        }
    })
}

impl Drop for Report<'_> {
    fn drop(&mut self) {
        self.clear();
    }
}

/// What the ranks held and sent, against their formulas: that of memory is of a device where there
/// is one, beside which a heap is small.
pub(crate) fn sent_and_held(ranks: &[RankEnd], has_device: bool) -> String {
    let sent: u64 = ranks.iter().map(|rank| rank.sent_bytes).sum();
    let is_right = ranks.iter().all(|rank| rank.sent_bytes == rank.formula_bytes);
    let formula = if is_right { "as predicted" } else { "NOT what was predicted" };
    let mut text = format!("all ranks sent {} bytes, {formula}", grouped(sent));
    let largest = ranks.iter().max_by_key(|rank| rank.peak_bytes);
    if let Some(RankEnd { peak_bytes, memory_bytes, .. }) = largest.filter(|r| r.peak_bytes > 0) {
        text += &format!("\nlargest heap of a step {} a rank", size(*peak_bytes));
        if !has_device {
            let part = 100.0 * *peak_bytes as f64 / *memory_bytes as f64;
            text += &format!(", {part:.1} % of the formula");
        }
    }
    text
}

fn aligned(rows: &[(&str, String)]) -> String {
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let indent = format!("\n{:width$}  ", "");
    let line =
        |(name, value): &(&str, String)| format!("{name:width$}  {}", value.replace('\n', &indent));
    let lines = rows.iter().map(line);
    lines.collect::<Vec<_>>().join("\n")
}

fn step_line(r: &StepRecord, last: usize) -> String {
    let width = last.to_string().len();
    let mut line = format!("step {:width$}/{last} loss {:.6} |", r.step, r.loss);
    let disk = (r.disk_formula_bytes != [0; 2] || r.disk_bytes != [0; 2]).then_some(r.disk_ms);
    for (name, ms) in [
        ("fwd", Some(r.forward_ms)),
        ("bwd", Some(r.backward_ms)),
        ("opt", Some(r.optimizer_ms)),
        ("disk", disk),
        ("comm", Some(r.exposed_ms)),
    ] {
        line += &match ms {
            Some(ms) if ms < 99.95 => format!(" {name} {ms:4.1}"),
            Some(ms) => format!(" {name} {ms:4.0}"),
            None => String::new(),
        };
    }
    let waited = 100.0 * r.exposed_ms / r.step_ms.max(f64::MIN_POSITIVE);
    let rate = grouped(r.tokens_per_second as u64);
    line + &format!(" ms {waited:2.0} % | {rate:>6} tok/s")
}

/// What a step sent and what it moved from files and to files, a line each, beside its formula.
fn moved(r: &StepRecord) -> String {
    let mut lines = String::new();
    if r.sent_bytes > 0 || r.formula_bytes > 0 {
        lines += &format!("\n    sent {} B", grouped(r.sent_bytes));
        lines += &match r.sent_bytes == r.formula_bytes {
            true => String::from(" = formula"),
            false => format!(", formula {} B", grouped(r.formula_bytes)),
        };
    }
    if r.disk_bytes != [0; 2] || r.disk_formula_bytes != [0; 2] {
        let [read, written] = r.disk_bytes.map(grouped);
        lines += &format!("\n    read {read} B, written {written} B");
        lines += &match r.disk_bytes == r.disk_formula_bytes {
            true => String::from(" = formula"),
            false => {
                let [read, written] = r.disk_formula_bytes.map(grouped);
                format!(", formula {read} B and {written} B")
            }
        };
    }
    lines
}

/// 12345 as `12,345`.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Bytes of memory as people read them, in powers of 1024 as flags have them.
pub(crate) fn size(bytes: u64) -> String {
    show_bytes(bytes)
}

/// The same as a number, for columns of MiB.
pub(crate) fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Time as people read it.
pub(crate) fn duration(time: Duration) -> String {
    match time.as_secs_f64() {
        seconds if seconds < 1.0 => format!("{:.1} ms", seconds * 1e3),
        seconds if seconds < 120.0 => format!("{seconds:.1} s"),
        seconds if seconds < 7200.0 => format!("{:.1} min", seconds / 60.0),
        seconds => format!("{:.1} h", seconds / 3600.0),
    }
}

/// The same of two sizes that are compared: to the byte where they would look the same.
pub(crate) fn two_sizes(bytes: [u64; 2]) -> [String; 2] {
    let rounded = bytes.map(size);
    if bytes[0] != bytes[1] && rounded[0] == rounded[1] {
        return bytes.map(|bytes| format!("{} bytes", grouped(bytes)));
    }
    rounded
}

/// Bytes of a model as text for a terminal: what is no text, and what would steer the terminal,
/// becomes U+FFFD.
pub(crate) fn printable(bytes: &[u8]) -> String {
    let legible = |c: char| if c.is_control() && c != '\n' && c != '\t' { '\u{fffd}' } else { c };
    String::from_utf8_lossy(bytes).chars().map(legible).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines_of(every: usize, records: &[StepRecord]) -> Vec<String> {
        let mut out = Vec::new();
        let mut report = Report::new(&mut out, true, true, every, (1, 1000));
        records.iter().for_each(|record| report.step(record).unwrap());
        drop(report);
        String::from_utf8(out).unwrap().lines().map(String::from).collect()
    }

    #[test]
    fn a_step_line_has_its_loss_in_six_digits_and_fits_a_hundred_columns() {
        let record = StepRecord {
            step: 12,
            loss: 2.3456784,
            forward_ms: 1234.5,
            backward_ms: 99.96,
            optimizer_ms: 99.94,
            exposed_ms: 20.0,
            step_ms: 200.0,
            disk_ms: 123.4,
            disk_formula_bytes: [4096, 0],
            tokens_per_second: 12345.6,
            ..Default::default()
        };
        let line = step_line(&record, 1000);
        let want = "step   12/1000 loss 2.345678 | fwd 1234 bwd  100 opt 99.9 disk  123 \
                    comm 20.0 ms 10 % | 12,345 tok/s";
        assert_eq!(line, want);
        assert!(line.len() <= 100, "{}: {line}", line.len());
    }

    #[test]
    fn what_a_step_moved_is_told_when_it_is_not_what_the_last_one_moved() {
        let first = StepRecord { sent_bytes: 1000, formula_bytes: 1000, ..Default::default() };
        let wrong = StepRecord { formula_bytes: 1004, ..first };
        let disk = StepRecord { disk_formula_bytes: [4096, 0], ..first };
        let skipped = StepRecord { is_skipped: true, loss_scale: 8.0, ..disk };
        let lines = lines_of(1, &[first, first, wrong, disk, skipped]);
        let told: Vec<_> =
            lines.iter().map(|line| line.strip_prefix("    ").unwrap_or("step")).collect();
        assert_eq!(
            told,
            [
                "step",
                "sent 1,000 B = formula",
                "step",
                "step",
                "sent 1,000 B, formula 1,004 B",
                "step",
                "sent 1,000 B = formula",
                "read 0 B, written 0 B, formula 4,096 B and 0 B",
                "step",
                "skipped: overflow at loss scale 8",
            ]
        );
    }

    #[test]
    fn of_many_steps_few_are_printed_where_that_is_asked_for() {
        let skips = |step| step == 501;
        let record =
            |step| StepRecord { step, is_skipped: skips(step), loss: 1.0, ..Default::default() };
        let records: Vec<_> = (1..=1000).map(record).collect();
        let lines = lines_of(300, &records);
        let step = |line: &String| {
            line.strip_prefix("step ")?.trim_start().split('/').next().map(String::from)
        };
        let told: Vec<_> = lines.iter().filter_map(step).collect();
        assert_eq!(told, ["1", "300", "501", "600", "900", "1000"]);
        assert_eq!(lines_of(1, &records).len(), 1001, "all of them, and why one was skipped");
    }

    #[test]
    fn a_sample_cannot_steer_the_terminal() {
        assert_eq!(printable(b"a\x1b[2Jb\n\xff\xe2\x80\x99"), "a\u{fffd}[2Jb\n\u{fffd}\u{2019}");
    }

    #[test]
    fn digits_are_grouped_by_three() {
        for (number, want) in [(0, "0"), (999, "999"), (1000, "1,000"), (1234567, "1,234,567")] {
            assert_eq!(grouped(number), want);
        }
    }

    #[test]
    fn sizes_that_differ_look_different() {
        assert_eq!(two_sizes([2 << 20, 3 << 30]), ["2.00 MiB", "3.00 GiB"]);
        assert_eq!(two_sizes([230_001, 230_000]), ["230,001 bytes", "230,000 bytes"]);
        assert_eq!(two_sizes([5, 5]), ["5 B", "5 B"]);
    }

    #[test]
    fn times_scale() {
        for (seconds, told) in
            [(0.0, "0.0 ms"), (0.0123, "12.3 ms"), (461.95, "7.7 min"), (9000.0, "2.5 h")]
        {
            assert_eq!(duration(Duration::from_secs_f64(seconds)), told);
        }
    }

    #[test]
    fn table_columns_line_up() {
        let rows = [("a", "1".to_string()), ("long name", "2\n3".to_string())];
        assert_eq!(aligned(&rows), "a          1\nlong name  2\n           3");
    }
}
