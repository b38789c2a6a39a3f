//! Verdicts as bars: tokens per second, and the peak of a rank beside its formula.

use super::row::Verdict;
use crate::report::mib;
use crate::svg::{Anchor, COLOURS, Svg};

const BAR: f64 = 18.0;
const PANEL: f64 = 300.0;

/// Two panels of bars, a bar a row.
pub(super) fn draw(verdicts: &[Verdict]) -> String {
    let readings: Vec<_> = verdicts
        .iter()
        .filter_map(|verdict| Some((&verdict.row, verdict.reading.as_ref().ok()?)))
        .collect();
    let height = 110.0 + BAR * readings.len() as f64;
    let mut svg = Svg::new(860.0, height);
    svg.text(430.0, 28.0, Anchor::Middle, "the same model, trained by each strategy");
    let most = |of: &dyn Fn(usize) -> f64| (0..readings.len()).map(of).fold(1.0, f64::max);
    let speed = |at: usize| readings[at].1.tokens_per_second;
    let peak = |at: usize| readings[at].1.largest().peak_bytes as f64;
    let formula = |at: usize| readings[at].1.largest().memory_bytes as f64;
    let fastest = most(&speed);
    let largest = most(&|at| peak(at).max(formula(at)));
    svg.text(190.0, 56.0, Anchor::Start, "tokens per second");
    svg.text(520.0, 56.0, Anchor::Start, "peak of a rank (bar) and its formula (line), MiB");
    for (at, (row, _)) in readings.iter().enumerate() {
        let top = 68.0 + BAR * at as f64;
        let middle = top + BAR - 6.0;
        svg.text(180.0, middle, Anchor::End, &format!("{} × {}", row.name, row.ranks()));
        svg.bar(190.0, top, PANEL * 0.8 * speed(at) / fastest, BAR - 4.0, COLOURS[0]);
        let end = 194.0 + PANEL * 0.8 * speed(at) / fastest;
        svg.text(end, middle, Anchor::Start, &format!("{:.0}", speed(at)));
        svg.bar(520.0, top, PANEL * 0.8 * peak(at) / largest, BAR - 4.0, COLOURS[2]);
        let mark = 520.0 + PANEL * 0.8 * formula(at) / largest;
        svg.bar(mark - 1.0, top - 1.0, 2.0, BAR - 2.0, COLOURS[1]);
        svg.text(
            mark + 5.0,
            middle,
            Anchor::Start,
            &format!("{:.1}", mib(readings[at].1.largest().peak_bytes)),
        );
    }
    svg.finish()
}
