//! What rank 0 prints: a table of settings, one line per step, a bar on a terminal.

use crate::error::Error;
use crate::runlog::StepRecord;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::Write;

/// Where a run's lines go; other ranks than 0 stay silent.
pub(crate) struct Report<'a> {
    out: &'a mut (dyn Write + Send),
    speaks: bool,
    chatty: bool,
    /// The last step, for the width of its number.
    last: usize,
    bar: ProgressBar,
}

impl<'a> Report<'a> {
    /// For steps from `first`, which counts from 1, to `last`.
    pub(crate) fn new(
        out: &'a mut (dyn Write + Send),
        speaks: bool,
        quiet: bool,
        first: usize,
        last: usize,
    ) -> Report<'a> {
        let chatty = speaks && !quiet;
        // The bar draws on standard error, and only if that is a terminal.
        let bar = if chatty { ProgressBar::new(last as u64) } else { ProgressBar::hidden() };
        let style = ProgressStyle::with_template("{wide_bar} {pos}/{len} steps, {eta} left");
        bar.set_style(style.expect("the template is valid"));
        bar.set_position(first as u64 - 1);
        // What was done before a resume says nothing about what is left.
        bar.reset_eta();
        Report { out, speaks, chatty, last, bar }
    }

    /// Aligned rows of (setting, value).
    pub(crate) fn table(&mut self, rows: &[(&str, String)]) -> Result<(), Error> {
        if !self.chatty {
            return Ok(());
        }
        self.print(&format!("{}\n", aligned(rows)))
    }

    pub(crate) fn step(&mut self, record: &StepRecord) -> Result<(), Error> {
        if self.speaks {
            self.print(&step_line(record, self.last))?;
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

    /// Errors: `Output`. A reader that went away (`| head`) ends the run like a full disk does.
    fn print(&mut self, text: &str) -> Result<(), Error> {
        self.bar.suspend(|| writeln!(self.out, "{text}")).map_err(Error::Output)
    }
}

impl Drop for Report<'_> {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

fn aligned(rows: &[(&str, String)]) -> String {
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let lines = rows.iter().map(|(name, value)| format!("{name:width$}  {value}"));
    lines.collect::<Vec<_>>().join("\n")
}

fn step_line(r: &StepRecord, last: usize) -> String {
    let width = last.to_string().len();
    let mut line = format!(
        "step {:width$}/{last} loss {:.6} | fwd {:5.1} bwd {:5.1} opt {:4.1} comm {:5.1} ms \
         {:4.1} % | {:>7} tok/s",
        r.step,
        r.loss,
        r.forward_ms,
        r.backward_ms,
        r.optimizer_ms,
        r.exposed_ms,
        100.0 * r.exposed_ms / r.step_ms.max(f64::MIN_POSITIVE),
        grouped(r.tokens_per_second as u64),
    );
    if r.sent_bytes > 0 || r.formula_bytes > 0 {
        line += &format!(" | sent {} B", grouped(r.sent_bytes));
        line += &match r.sent_bytes == r.formula_bytes {
            true => " = formula".to_string(),
            false => format!(", formula {} B", grouped(r.formula_bytes)),
        };
    }
    if r.is_skipped {
        line += &format!(" | skipped: overflow at loss scale {}", r.loss_scale);
    }
    if r.disk_bytes != [0; 2] || r.disk_formula_bytes != [0; 2] {
        let [read, written] = r.disk_bytes.map(grouped);
        line += &format!(" | disk {:.1} ms, read {read} B, written {written} B", r.disk_ms);
        line += &match r.disk_bytes == r.disk_formula_bytes {
            true => " = formula".to_string(),
            false => {
                let [read, written] = r.disk_formula_bytes.map(grouped);
                format!(", formula {read} B and {written} B")
            }
        };
    }
    line
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

/// MB = 10⁶ bytes.
pub(crate) fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
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

    #[test]
    fn a_step_line_has_its_loss_in_six_digits() {
        let record = StepRecord {
            step: 12,
            loss: 2.3456784,
            tokens_per_second: 12345.6,
            sent_bytes: 1000,
            formula_bytes: 1000,
            ..Default::default()
        };
        let line = step_line(&record, 200);
        assert!(line.starts_with("step  12/200 loss 2.345678 | fwd   0.0 "), "{line}");
        assert!(line.ends_with("|  12,345 tok/s | sent 1,000 B = formula"), "{line}");
        let wrong = step_line(&StepRecord { formula_bytes: 1004, ..record }, 200);
        assert!(wrong.ends_with("| sent 1,000 B, formula 1,004 B"), "{wrong}");
        let disk_formula_bytes = [4096, 0];
        let line = step_line(&StepRecord { disk_formula_bytes, ..record }, 200);
        let end = "| disk 0.0 ms, read 0 B, written 0 B, formula 4,096 B and 0 B";
        assert!(line.ends_with(end), "{line}");
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
    fn table_columns_line_up() {
        let rows = [("a", "1".to_string()), ("long name", "2".to_string())];
        assert_eq!(aligned(&rows), "a          1\nlong name  2");
    }
}
