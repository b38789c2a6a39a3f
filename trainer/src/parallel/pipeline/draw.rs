//! A step of a pipeline as a picture: what each rank did when, above what it should have done when
//! if every action took its usual time and messages took none.

use super::Plan;
use super::action::{Action, Kind};
use super::dry::{Span, Timeline};
use super::schedule::Fault;
use std::collections::HashMap;
use std::fmt::Write;

/// Pixels of a rank's row, of all time, and left of it.
const ROW: f64 = 26.0;
const WIDTH: f64 = 1040.0;
const LEFT: f64 = 74.0;
const TOP: f64 = 56.0;

/// What is neutral follows the reader's setting, as in pictures of collectives.
const STYLE: &str = "\
text{font:12px ui-sans-serif,system-ui,'DejaVu Sans',sans-serif;fill:#57606a}\
.title{font-size:15px;font-weight:600;fill:#24292f}\
.name{font-weight:600;text-anchor:end}\
.micro{font-size:10px;font-weight:600;fill:#fff;text-anchor:middle}\
.life{stroke:#8c959f;stroke-opacity:.4}\
@media (prefers-color-scheme:dark){text{fill:#9da7b1}.title{fill:#e6edf3}.micro{fill:#fff}}";

/// Draw `measured`, a step of `plan`, as SVG.
///
/// Errors: none, for a plan.
pub fn draw(plan: &Plan, measured: &Timeline) -> Result<String, Fault> {
    let usual = usual(measured);
    let seconds = |action: Action| usual.get(&(action.stage, action.kind)).copied().unwrap_or(0.0);
    let predicted = Timeline::predict(&plan.schedule, &plan.shape, seconds)?;
    let [ranks, planned] = [measured, &predicted].map(|line| line.rows.len() as f64);
    let scale = WIDTH / measured.end().max(predicted.end()).max(f64::MIN_POSITIVE);
    let height = 2.0 * TOP + ROW * (ranks + planned) + 44.0;
    let mut body = String::new();
    for (index, (name, line)) in
        [("measured", measured), ("predicted", &predicted)].iter().enumerate()
    {
        let top = index as f64 * (TOP + ROW * ranks);
        let title = format!(
            "{name}: {:.2} ms, {:.1} % of it bubbles",
            1e3 * line.end(),
            100.0 * line.bubble()
        );
        put(
            &mut body,
            format_args!("<text class=\"title\" x=\"20\" y=\"{}\">{title}</text>", top + 32.0),
        );
        rows(&mut body, line, top + TOP, scale, plan.shape.stages());
    }
    legend(&mut body, height - 22.0);
    let width = LEFT + WIDTH + 20.0;
    Ok(format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" \
         width=\"{width:.0}\" height=\"{height:.0}\">\n<style>{STYLE}</style>\n{body}</svg>\n"
    ))
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

fn rows(body: &mut String, line: &Timeline, top: f64, scale: f64, stages: usize) {
    for (rank, row) in line.rows.iter().enumerate() {
        let y = top + ROW * rank as f64;
        let middle = y + ROW / 2.0;
        put(
            body,
            format_args!(
                "<text class=\"name\" x=\"{}\" y=\"{}\">rank {rank}</text>",
                LEFT - 10.0,
                middle + 4.0
            ),
        );
        put(body, format_args!("<path class=\"life\" d=\"M{LEFT} {middle}h{WIDTH}\"/>"));
        for Span { action, begin, end } in row {
            let (x, width) = (LEFT + begin * scale, ((end - begin) * scale - 0.5).max(0.5));
            put(
                body,
                format_args!(
                    "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"{}\" rx=\"2\" \
                 fill=\"{}\"><title>{action}, {:.2} ms</title></rect>",
                    y + 2.0,
                    ROW - 4.0,
                    colour(*action, stages),
                    1e3 * (end - begin)
                ),
            );
            let text = action.micro.to_string();
            if action.kind.computes() && width > 6.0 * text.len() as f64 + 2.0 {
                put(
                    body,
                    format_args!(
                        "<text class=\"micro\" x=\"{:.1}\" y=\"{:.1}\">{text}</text>",
                        x + width / 2.0,
                        middle + 3.6
                    ),
                );
            }
        }
    }
}

/// A colour for each kind, lighter for stages further along the model.
fn colour(Action { stage, kind, .. }: Action, stages: usize) -> String {
    let hue = match kind {
        Kind::Forward => 212,
        Kind::Backward => 28,
        Kind::Input => 350,
        Kind::Weight => 150,
        _ => 270,
    };
    format!("hsl({hue},58%,{:.0}%)", 40.0 + 16.0 * stage as f64 / stages as f64)
}

fn legend(body: &mut String, y: f64) {
    let kinds = [
        (Kind::Forward, "forward"),
        (Kind::Backward, "backward"),
        (Kind::Input, "backward to the input"),
        (Kind::Weight, "backward to the weights"),
        (Kind::ReduceGrad, "sums of ranks, update"),
    ];
    for (index, (kind, name)) in kinds.into_iter().enumerate() {
        let (x, fill) =
            (LEFT + 190.0 * index as f64, colour(Action { stage: 0, kind, micro: 0 }, 1));
        put(
            body,
            format_args!(
                "<rect x=\"{x}\" y=\"{}\" width=\"12\" height=\"12\" rx=\"2\" fill=\"{fill}\"/>\
             <text x=\"{}\" y=\"{y}\">{name}</text>",
                y - 10.0,
                x + 18.0
            ),
        );
    }
}

fn put(body: &mut String, line: std::fmt::Arguments<'_>) {
    writeln!(body, "{line}").expect("a string takes everything");
}
