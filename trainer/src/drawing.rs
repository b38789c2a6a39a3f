//! A run as a picture, for `--report`: loss, where the time went, what a rank holds.

use crate::parallel::Memory;
use crate::report::{grouped, size};
use crate::runlog::{RankEnd, StepRecord};
use crate::svg::{Anchor, COLOURS, Svg};

const WIDTH: f64 = 900.0;
const LEFT: f64 = 70.0;
const ACROSS: f64 = 780.0;
const PANEL: f64 = 170.0;
/// Points of a curve: more than this many steps are drawn as means of neighbours.
const POINTS: usize = 390;

/// A kind of time, and how much of it a step took.
type Kind = (&'static str, fn(&StepRecord) -> f64);
/// What a step's time goes to; the last one where state is in files.
const KINDS: [Kind; 5] = [
    ("forward", |step| step.forward_ms),
    ("backward", |step| step.backward_ms),
    ("optimizer", |step| step.optimizer_ms),
    ("waiting for ranks", |step| step.exposed_ms),
    ("waiting for files", |step| step.disk_ms),
];

/// Draw a run. `title`: model and strategy.
pub(crate) fn draw(title: &str, steps: &[StepRecord], memory: Memory, ranks: &[RankEnd]) -> String {
    let mut svg = Svg::new(WIDTH, 640.0);
    svg.text(WIDTH / 2.0, 28.0, Anchor::Middle, title);
    if let (Some(first), Some(last)) = (steps.first(), steps.last()) {
        loss(&mut svg, 70.0, steps);
        time(&mut svg, 300.0, steps);
        let (from, to) = (format!("step {}", first.step), format!("{}", last.step));
        svg.text(LEFT, 490.0, Anchor::Start, &from);
        svg.text(LEFT + ACROSS, 490.0, Anchor::End, &to);
    }
    held(&mut svg, 530.0, memory, ranks);
    svg.finish()
}

/// One curve, from its least to its largest value.
fn loss(svg: &mut Svg, top: f64, steps: &[StepRecord]) {
    let points = thinned(steps, |step| step.loss);
    let (least, most) = points.iter().fold((f64::INFINITY, 0.0f64), |(least, most), point| {
        (least.min(*point), most.max(*point))
    });
    let height = |loss: f64| top + PANEL * (most - loss) / (most - least).max(f64::MIN_POSITIVE);
    svg.text(LEFT, top - 12.0, Anchor::Start, "loss, nats per byte");
    svg.text(LEFT - 8.0, top + 4.0, Anchor::End, &format!("{most:.3}"));
    svg.text(LEFT - 8.0, top + PANEL + 4.0, Anchor::End, &format!("{least:.3}"));
    svg.line(&[(LEFT, top), (LEFT, top + PANEL), (LEFT + ACROSS, top + PANEL)], "#444444");
    let across = |at: usize| LEFT + ACROSS * at as f64 / (points.len() - 1).max(1) as f64;
    let line: Vec<_> =
        points.iter().enumerate().map(|(at, loss)| (across(at), height(*loss))).collect();
    svg.line(&line, COLOURS[0]);
}

/// Bars of the kinds of time on top of each other.
fn time(svg: &mut Svg, top: f64, steps: &[StepRecord]) {
    let has_files = steps.iter().any(|step| step.disk_ms > 0.0);
    let kinds = &KINDS[..if has_files { KINDS.len() } else { KINDS.len() - 1 }];
    let curves: Vec<Vec<f64>> = kinds.iter().map(|(_, of)| thinned(steps, of)).collect();
    let points = curves[0].len();
    let sum = |at: usize| curves.iter().map(|curve| curve[at]).sum::<f64>();
    // A few slow steps (the first one) shall not make all others flat.
    let mut sums: Vec<f64> = (0..points).map(sum).collect();
    sums.sort_by(f64::total_cmp);
    let most = sums[(points - 1) * 95 / 100].max(f64::MIN_POSITIVE);
    svg.text(LEFT, top - 32.0, Anchor::Start, "milliseconds of a step on rank 0");
    let digits = if most < 10.0 { 2 } else { 0 };
    svg.text(LEFT - 8.0, top + 4.0, Anchor::End, &format!("{most:.digits$}"));
    let width = ACROSS / points as f64;
    for at in 0..points {
        let mut floor = top + PANEL;
        for (curve, colour) in curves.iter().zip(COLOURS) {
            let height = (PANEL * curve[at] / most).min(floor - top);
            floor -= height;
            svg.bar(LEFT + width * at as f64, floor, width + 0.3, height, colour);
        }
    }
    svg.line(&[(LEFT, top), (LEFT, top + PANEL), (LEFT + ACROSS, top + PANEL)], "#444444");
    let whole: f64 = steps.iter().map(|step| step.step_ms).sum();
    let mut legend = LEFT;
    for ((name, of), colour) in kinds.iter().zip(COLOURS) {
        let part = 100.0 * steps.iter().map(of).sum::<f64>() / whole.max(f64::MIN_POSITIVE);
        legend = entry(svg, legend, top - 22.0, colour, &format!("{name} {part:.1} %"));
    }
}

/// A colour and what it means; where the next one goes.
fn entry(svg: &mut Svg, left: f64, top: f64, colour: &str, text: &str) -> f64 {
    svg.bar(left, top, 10.0, 10.0, colour);
    svg.text(left + 15.0, top + 10.0, Anchor::Start, text);
    left + 35.0 + 7.0 * text.len() as f64
}

/// One bar of all that rank 0 holds, and what the ranks sent and held in sentences.
fn held(svg: &mut Svg, top: f64, memory: Memory, ranks: &[RankEnd]) {
    let title = format!("memory of rank 0: {}", size(memory.total()));
    svg.text(LEFT, top - 6.0, Anchor::Start, &title);
    let (mut left, mut legend) = (LEFT, LEFT);
    let kinds = memory.kinds().into_iter().filter(|(_, bytes)| *bytes > 0);
    for ((name, bytes), colour) in kinds.zip(COLOURS.into_iter().cycle()) {
        let width = ACROSS * bytes as f64 / memory.total().max(1) as f64;
        svg.bar(left, top, width, 24.0, colour);
        left += width;
        let text = format!("{name} {}", size(bytes));
        legend = entry(svg, legend, top + 34.0, colour, &text);
    }
    let sent: u64 = ranks.iter().map(|rank| rank.sent_bytes).sum();
    let peak = ranks.iter().map(|rank| rank.peak_bytes).max().unwrap_or(0);
    let is_right = ranks.iter().all(|rank| rank.sent_bytes == rank.formula_bytes);
    let (sent, peak) = (grouped(sent), size(peak));
    let bytes = if is_right { "as predicted" } else { "NOT as predicted" };
    let count = ranks.len();
    let text = format!("{count} ranks sent {sent} bytes, {bytes}; largest heap in a step {peak}");
    svg.text(LEFT, top + 74.0, Anchor::Start, &text);
}

/// At most `POINTS` values, each the mean of neighbouring steps.
fn thinned(steps: &[StepRecord], of: impl Fn(&StepRecord) -> f64) -> Vec<f64> {
    let each = steps.len().div_ceil(POINTS);
    let mean = |steps: &[StepRecord]| steps.iter().map(&of).sum::<f64>() / steps.len() as f64;
    steps.chunks(each).map(mean).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_of_any_length_has_all_its_parts() {
        for length in [0, 1, 3, 1000] {
            let step = |at: usize| StepRecord {
                step: at + 1,
                loss: 3.0 / (at + 1) as f64,
                forward_ms: 2.0,
                exposed_ms: 1.0,
                step_ms: 3.0,
                ..Default::default()
            };
            let steps: Vec<_> = (0..length).map(step).collect();
            let memory = Memory { params: 1_500_000, moments: 500_000, ..Default::default() };
            let text = draw("a < b & c", &steps, memory, &[RankEnd::default(); 2]);
            assert!(text.starts_with("<svg") && text.ends_with("</svg>\n"), "{length}");
            assert!(text.contains("a &lt; b &amp; c") && text.contains("parameters 1.43 MiB"));
            assert!(!text.contains("NaN") && !text.contains("inf"), "{length} steps: {text}");
            assert_eq!(text.contains("waiting for ranks 33.3 %"), length > 0);
            assert!(!text.contains("waiting for files"));
            assert!(text.len() < 300_000);
        }
    }

    #[test]
    fn time_that_files_take_is_drawn_as_well() {
        let times = StepRecord { step: 1, loss: 3.0, forward_ms: 1.0, ..Default::default() };
        let step = StepRecord { disk_ms: 3.0, step_ms: 4.0, ..times };
        let text = draw("", &[step, times], Memory::default(), &[]);
        assert!(text.contains("waiting for files 75.0 %"), "{text}");
    }
}
