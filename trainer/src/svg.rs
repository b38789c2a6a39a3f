//! The few shapes that pictures of runs are made of, as SVG text.

use std::fmt::Write;

/// Colours that people with any kind of colour vision can tell apart (Okabe, Ito 2008).
pub(crate) const COLOURS: [&str; 7] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"];

/// Which end of a text lies at its place.
#[derive(Clone, Copy)]
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
}

/// A picture that is being drawn; (0, 0) is its upper left corner.
pub(crate) struct Svg(String);

impl Svg {
    pub(crate) fn new(width: f64, height: f64) -> Svg {
        Svg(format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
             font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>\n"
        ))
    }

    /// A text whose anchor is at (x, y), on its base line.
    pub(crate) fn text(&mut self, x: f64, y: f64, anchor: Anchor, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let text = text.replace('&', "&amp;").replace('<', "&lt;");
        self.put(&format!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>"
        ));
    }

    /// A filled rectangle whose upper left corner is at (x, y).
    pub(crate) fn bar(&mut self, x: f64, y: f64, width: f64, height: f64, colour: &str) {
        self.put(&format!(
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{height:.1}\" \
             fill=\"{colour}\"/>",
            width.max(0.0)
        ));
    }

    /// The same, which says what it is when it is pointed at.
    pub(crate) fn named_bar(
        &mut self,
        corner: (f64, f64),
        size: (f64, f64),
        fill: &str,
        name: &str,
    ) {
        let ((x, y), (width, height)) = (corner, (size.0.max(0.0), size.1));
        self.put(&format!(
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" \
             fill=\"{fill}\"><title>{name}</title></rect>"
        ));
    }

    /// Straight lines from point to point.
    pub(crate) fn line(&mut self, points: &[(f64, f64)], colour: &str) {
        let points: Vec<_> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        self.put(&format!(
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\"/>",
            points.join(" ")
        ));
    }

    /// The text of the picture.
    pub(crate) fn finish(self) -> String {
        self.0 + "</svg>\n"
    }

    fn put(&mut self, shape: &str) {
        writeln!(self.0, "{shape}").expect("a string takes everything");
    }
}
