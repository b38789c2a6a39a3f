//! What rank 0 shows: a table of settings, a line per step, a bar on a terminal.

use crate::runlog::StepRecord;
use indicatif::{ProgressBar, ProgressStyle};

/// Where a run's lines go; other ranks than 0 stay silent.
pub(crate) struct Report {
    speaks: bool,
    chatty: bool,
    steps: usize,
    bar: ProgressBar,
}

impl Report {
    pub(crate) fn new(speaks: bool, quiet: bool, steps: usize) -> Report {
        let chatty = speaks && !quiet;
        // The bar draws on standard error, and only if that is a terminal.
        let bar = if chatty { ProgressBar::new(steps as u64) } else { ProgressBar::hidden() };
        let style = ProgressStyle::with_template("{wide_bar} {pos}/{len} steps, {eta} left");
        bar.set_style(style.expect("the template is valid"));
        Report { speaks, chatty, steps, bar }
    }

    /// Aligned rows of (setting, value).
    pub(crate) fn table(&self, rows: &[(&str, String)]) {
        if self.chatty {
            println!("{}\n", aligned(rows));
        }
    }

    pub(crate) fn step(&self, record: &StepRecord) {
        if self.speaks {
            self.bar.suspend(|| println!("{}", step_line(record, self.steps)));
        }
        self.bar.set_position(record.step as u64);
    }

    /// A paragraph after the last step.
    pub(crate) fn say(&self, text: &str) {
        self.bar.finish_and_clear();
        if self.chatty {
            println!("\n{text}");
        }
    }
}

fn aligned(rows: &[(&str, String)]) -> String {
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let lines = rows.iter().map(|(name, value)| format!("{name:width$}  {value}"));
    lines.collect::<Vec<_>>().join("\n")
}

fn step_line(r: &StepRecord, steps: usize) -> String {
    let width = steps.to_string().len();
    format!(
        "step {:width$}/{steps} loss {:.6} | fwd {:.1} bwd {:.1} comm exposed {:.1} opt {:.1} ms \
         | {} tok/s | sent {} (formula {})",
        r.step,
        r.loss,
        r.forward_ms,
        r.backward_ms,
        r.exposed_ms,
        r.optimizer_ms,
        grouped(r.tokens_per_second as u64),
        megabytes(r.sent_bytes),
        megabytes(r.formula_bytes),
    )
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_line_has_its_loss_in_six_digits() {
        let record = StepRecord {
            step: 12,
            loss: 2.3456784,
            tokens_per_second: 12345.6,
            ..Default::default()
        };
        let line = step_line(&record, 200);
        assert!(line.starts_with("step  12/200 loss 2.345678 | fwd 0.0 "), "{line}");
        assert!(line.contains("| 12,345 tok/s |"), "{line}");
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
