//! A step of a pipeline as a picture: what each rank did when, above what it should have done when
//! if every action took its usual time and messages took none.

use super::Plan;
use super::action::{Action, Kind};
use super::dry::{Span, Timeline};
use super::schedule::Fault;
use crate::svg::{Anchor, Svg};
use std::collections::HashMap;

/// Pixels of a rank's row, of all time, and left of it and above it.
const ROW: f64 = 26.0;
const WIDTH: f64 = 1040.0;
const LEFT: f64 = 110.0;
const TOP: f64 = 56.0;
/// Pixels of a letter, about.
const LETTER: f64 = 7.0;

/// What is drawn, in which of the colours that everybody can tell apart and read black text on.
const KINDS: [(Kind, &str, &str); 5] = [
    (Kind::Forward, "#56b4e9", "forward"),
    (Kind::Backward, "#e69f00", "backward"),
    (Kind::Input, "#cc79a7", "backward to the input"),
    (Kind::Weight, "#009e73", "backward to the weights"),
    (Kind::ReduceGrad, "#bbbbbb", "sums of ranks, update"),
];

/// Draw `measured`, a step of `plan`, as SVG.
///
/// Errors: none, for a plan.
pub fn draw(plan: &Plan, measured: &Timeline) -> Result<String, Fault> {
    let usual = usual(measured);
    let seconds = |action: Action| usual.get(&(action.stage, action.kind)).copied().unwrap_or(0.0);
    let predicted = Timeline::predict(&plan.schedule, &plan.shape, seconds)?;
    let scale = WIDTH / measured.end().max(predicted.end()).max(f64::MIN_POSITIVE);
    let rows = (measured.rows.len() + predicted.rows.len()) as f64;
    let height = 2.0 * TOP + ROW * rows + 44.0;
    let mut svg = Svg::new(LEFT + WIDTH + 20.0, height);
    let mut top = TOP;
    for (name, line) in [("measured", measured), ("predicted", &predicted)] {
        let (ms, bubble) = (1e3 * line.end(), 100.0 * line.bubble());
        let title = format!("{name}: {ms:.2} ms, bubbles {bubble:.1} %");
        svg.text(20.0, top - 14.0, Anchor::Start, &title);
        for (at, spans) in line.rows.iter().enumerate() {
            let (pipe, rank) = (at / predicted.rows.len(), at % predicted.rows.len());
            let name = match line.rows.len() > predicted.rows.len() {
                true => format!("pipe {pipe}, rank {rank}"),
                false => format!("rank {rank}"),
            };
            row(&mut svg, &name, spans, top + ROW * at as f64, scale);
        }
        top += TOP + ROW * line.rows.len() as f64;
    }
    for (index, (_, colour, name)) in KINDS.iter().enumerate() {
        let x = LEFT + 190.0 * index as f64;
        svg.bar(x, height - 32.0, 12.0, 12.0, colour);
        svg.text(x + 18.0, height - 22.0, Anchor::Start, name);
    }
    Ok(svg.finish())
}

/// How long each stage usually takes: the median, by kind of action.
fn usual(measured: &Timeline) -> HashMap<(usize, Kind), f64> {
    let mut times: HashMap<(usize, Kind), Vec<f64>> = HashMap::new();
    for Span { action, begin, end } in measured.rows.iter().flatten() {
        times.entry((action.stage, action.kind)).or_default().push(end - begin);
    }
    let median = |mut times: Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    times.into_iter().map(|(what, times)| (what, median(times))).collect()
}

/// What one rank did, each with its action or at least its micro-batch, as far as there is room,
/// and with its times for who points at it.
fn row(svg: &mut Svg, name: &str, spans: &[Span], y: f64, scale: f64) {
    let base = y + ROW / 2.0 + 4.0;
    svg.text(LEFT - 10.0, base, Anchor::End, name);
    for Span { action, begin, end } in spans {
        let (x, width) = (LEFT + begin * scale, (end - begin) * scale);
        let kind = KINDS.iter().find(|(kind, _, _)| *kind == action.kind);
        let Some((_, colour, _)) = kind else { continue };
        // The rest is a line between this and the next.
        let times = format!("{action}: {:.3} to {:.3} ms", 1e3 * begin, 1e3 * end);
        let size = ((width - 0.5).max(0.5), ROW - 4.0);
        svg.named_bar((x, y + 2.0), size, colour, &times);
        let texts = [action.to_string(), action.micro.to_string()];
        let text = texts.iter().find(|text| width > LETTER * text.len() as f64);
        if let Some(text) = text.filter(|_| action.kind.computes()) {
            svg.text(x + width / 2.0, base, Anchor::Middle, text);
        }
    }
}
