//! A picture of a run: two quantities over sizes, on logarithmic axes, as SVG.

use std::fmt::Write;

use crate::record::Record;
use crate::size;

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 430.0;
const PANEL_WIDTH: f64 = 380.0;
const PANEL_HEIGHT: f64 = 280.0;
const TOP: f64 = 70.0;
/// Colours that people with any kind of colour vision can tell apart (Okabe, Ito 2008).
const COLOURS: [&str; 7] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"];

/// A line of the picture, in both of its panels.
pub(crate) struct Line {
    /// What the legend calls it.
    pub(crate) name: String,
    /// A size in bytes, with what the left and the right panel show of it.
    pub(crate) points: Vec<(usize, [f64; 2])>,
}

/// Draw the records. Cases without bytes have no place on a logarithmic axis and are left out.
pub(crate) fn draw(title: &str, records: &[Record]) -> String {
    let point = |record: &&Record| (record.bytes(), [record.us(50), record.busbw()]);
    let lines: Vec<Line> = series(records)
        .into_iter()
        .map(|(name, records)| Line { name, points: records.iter().map(point).collect() })
        .collect();
    picture(title, ["time of one call, median (us)", "bus bandwidth (GB/s)"], &lines)
}

/// Draw the lines in two panels with these titles. What is not above zero is left out.
pub(crate) fn picture(title: &str, panels: [&str; 2], series: &[Line]) -> String {
    let mut svg = String::new();
    let legend = 18.0 * series.len().div_ceil(3) as f64;
    let height = HEIGHT + legend;
    put(
        &mut svg,
        format_args!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
             font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>\n\
             <text x=\"{}\" y=\"28\" font-size=\"16\" text-anchor=\"middle\">{}</text>",
            WIDTH / 2.0,
            escape(title)
        ),
    );
    for (which, left) in [70.0, 550.0].into_iter().enumerate() {
        panel(&mut svg, left, panels[which], series, which);
    }
    for (index, Line { name, .. }) in series.iter().enumerate() {
        let x = 70.0 + 300.0 * (index % 3) as f64;
        let y = HEIGHT + 18.0 * (index / 3) as f64;
        let colour = COLOURS[index % COLOURS.len()];
        put(
            &mut svg,
            format_args!(
                "<circle cx=\"{x}\" cy=\"{}\" r=\"4\" fill=\"{colour}\"/>\
                 <text x=\"{}\" y=\"{y}\">{}</text>",
                y - 4.0,
                x + 10.0,
                escape(name)
            ),
        );
    }
    put(&mut svg, format_args!("</svg>"));
    svg
}

/// The records that belong on one line of the plot, by name, in the order of their first one.
fn series(records: &[Record]) -> Vec<(String, Vec<&Record>)> {
    let mut series: Vec<(String, Vec<&Record>)> = Vec::new();
    for record in records.iter().filter(|record| record.bytes() > 0) {
        let mut name = record.case.dtype.name().to_owned();
        if record.case.kind.folds() {
            name = format!("{name} {}", record.redop());
        }
        if record.case.kind.has_root() {
            name = format!("{name} root {}", record.case.root);
        }
        name.push_str(if record.in_place { ", in place" } else { ", out of place" });
        match series.iter_mut().find(|(known, _)| *known == name) {
            Some((_, line)) => line.push(record),
            None => series.push((name, vec![record])),
        }
    }
    series
}

/// One pair of axes with all lines in it.
fn panel(svg: &mut String, left: f64, title: &str, series: &[Line], which: usize) {
    let points = || series.iter().flat_map(|line| line.points.iter().copied());
    let x = Axis::covering(points().map(|(bytes, _)| bytes as f64), left, PANEL_WIDTH);
    let heights = points().map(|(_, values)| values[which]);
    let y = Axis::covering(heights, TOP + PANEL_HEIGHT, -PANEL_HEIGHT);
    let (right, bottom) = (left + PANEL_WIDTH, TOP + PANEL_HEIGHT);
    put(
        svg,
        format_args!("<text x=\"{left}\" y=\"{}\" font-weight=\"bold\">{title}</text>", TOP - 14.0),
    );
    for tick in y.decades() {
        let at = y.place(tick);
        put(
            svg,
            format_args!(
                "<path d=\"M{left} {at:.1}H{right}\" stroke=\"#dddddd\"/>\
                 <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{tick}</text>",
                left - 6.0,
                at + 4.0
            ),
        );
    }
    let sizes = sizes(points().map(|(bytes, _)| bytes));
    for tick in sizes.iter().step_by(sizes.len().div_ceil(7).max(1)) {
        let at = x.place(*tick as f64);
        put(
            svg,
            format_args!(
                "<path d=\"M{at:.1} {TOP}V{bottom}\" stroke=\"#eeeeee\"/>\
                 <text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                bottom + 18.0,
                size::show(*tick)
            ),
        );
    }
    put(
        svg,
        format_args!(
            "<path d=\"M{left} {TOP}V{bottom}H{right}\" fill=\"none\" stroke=\"#444444\"/>\
             <text x=\"{}\" y=\"{}\" text-anchor=\"middle\">size (B)</text>",
            left + PANEL_WIDTH / 2.0,
            bottom + 38.0
        ),
    );
    for (index, line) in series.iter().enumerate() {
        let drawable = line.points.iter().filter(|(_, values)| values[which] > 0.0);
        let places: Vec<_> = drawable
            .map(|(bytes, values)| (x.place(*bytes as f64), y.place(values[which])))
            .collect();
        let colour = COLOURS[index % COLOURS.len()];
        let points: Vec<_> = places.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        // Of one size there is no line.
        for (x, y) in places {
            put(
                svg,
                format_args!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.5\" fill=\"{colour}\"/>"),
            );
        }
        put(
            svg,
            format_args!(
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
                points.join(" ")
            ),
        );
    }
}

/// The different sizes, in increasing order.
fn sizes(sizes: impl Iterator<Item = usize>) -> Vec<usize> {
    let mut sizes: Vec<usize> = sizes.collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

/// A logarithmic axis.
struct Axis {
    least: f64,
    most: f64,
    start: f64,
    length: f64,
}

impl Axis {
    /// An axis from `start` over `length` pixels that shows all values that can be shown.
    fn covering(values: impl Iterator<Item = f64>, start: f64, length: f64) -> Self {
        let (mut least, mut most) = (f64::INFINITY, 0.0_f64);
        for value in values.filter(|value| *value > 0.0 && value.is_finite()) {
            (least, most) = (least.min(value), most.max(value));
        }
        if least > most {
            (least, most) = (1.0, 10.0);
        }
        if least * 1.5 > most {
            (least, most) = (least / 2.0, most * 2.0);
        }
        Self { least: least.log10(), most: most.log10(), start, length }
    }

    fn place(&self, value: f64) -> f64 {
        self.start + self.length * (value.log10() - self.least) / (self.most - self.least)
    }

    /// Round values on the axis: powers of ten, or 1, 2 and 5 times those on a short axis.
    fn decades(&self) -> Vec<f64> {
        let steps: &[f64] = if self.most - self.least < 2.5 { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let powers = self.least.floor() as i32..=self.most.ceil() as i32;
        let all = powers.flat_map(|power| {
            // 10^-3 * 5 is 0.005 only when divided: keep labels short.
            steps.iter().map(move |step| match power {
                0.. => step * 10_f64.powi(power),
                _ => step / 10_f64.powi(-power),
            })
        });
        all.filter(|tick| (self.least..=self.most).contains(&tick.log10())).collect()
    }
}

fn put(svg: &mut String, line: std::fmt::Arguments<'_>) {
    writeln!(svg, "{line}").expect("writing to a string cannot fail");
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::record;

    #[test]
    fn a_plot_has_a_line_for_each_placement_in_each_panel() {
        let records: Vec<_> = [0, 2, 8, 32]
            .into_iter()
            .flat_map(|n| [record(n, false, 900 + n as u64), record(n, true, 1000)])
            .collect();
        let svg = draw("a < b", &records);
        assert_eq!(svg.matches("<polyline").count(), 4);
        // Three sizes of each, and the legend.
        assert_eq!(svg.matches("<circle").count(), 3 * 4 + 2);
        assert!(svg.contains("a &lt; b") && !svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }

    #[test]
    fn nothing_to_draw_is_still_a_picture() {
        let svg = draw("barrier", &[record(0, false, 1)]);
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }
}
