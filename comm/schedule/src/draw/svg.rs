//! The SVG: a lifeline per rank, a column per step, and every message a bucket on its way.

use std::fmt::Write;

use super::{label, title};
use crate::graph::{Graph, Node, Wires};
use crate::{Fault, Move, Program, Span, check_programs};

/// Pixels between lifelines.
const ROW: f64 = 58.0;
/// Pixels between two messages that reach a rank in the same step.
const ARRIVAL: f64 = 16.0;
/// Pixels of slope between the last bucket and the first arrival of a step.
const SLOPE: f64 = 62.0;
/// Pixels left of the first step.
const LEFT: f64 = 84.0;
/// Pixels above the first lifeline.
const TOP: f64 = 84.0;
/// Chunks in the legend at most.
const LEGEND: u32 = 16;

/// Colours that read on light and on dark ground; what is neutral follows the reader's setting.
const STYLE: &str = "\
text{font:12px ui-sans-serif,system-ui,'DejaVu Sans',sans-serif;fill:#57606a}\
.title{font-size:15px;font-weight:600;fill:#24292f}\
.name{font-weight:600;text-anchor:end}\
.step{text-anchor:middle;font-size:11px}\
.chunk{font-size:10px;font-weight:600;fill:#fff;text-anchor:middle}\
.life{stroke:#8c959f;stroke-width:1.5}\
.edge{stroke:#8c959f;stroke-opacity:.3;stroke-dasharray:2 4}\
.way{fill:none;stroke-width:1.8;stroke-opacity:.85}\
.plus{stroke:#fff;stroke-width:1.6}\
@media (prefers-color-scheme:dark){text{fill:#9da7b1}.title{fill:#e6edf3}.chunk{fill:#fff}}";

/// The schedule as an SVG picture: ranks from top to bottom, steps from left to right. A bucket on
/// a line is a chunk that leaves; it arrives at a plus, where it is folded in, or at an arrow head,
/// where it is put down. A message stands in the first step in which it could be sent.
///
/// Programs that [`check_programs`] refuses are not drawn; the picture says why.
pub fn svg(programs: &[Program]) -> String {
    match draw(programs) {
        Ok(picture) => picture,
        Err(fault) => frame(640.0, 60.0, &words(20.0, 36.0, "title", &fault.to_string())),
    }
}

fn draw(programs: &[Program]) -> Result<String, Fault> {
    let Some(first) = programs.first() else { return Ok(frame(1.0, 1.0, "")) };
    check_programs(programs)?;
    let graph = Graph::new(programs)?;
    let steps = graph.steps_before(&graph.order(Wires::Endless)?);
    let picture = Picture::new(programs, &graph, steps);
    let width = picture.edges.last().unwrap_or(&LEFT) + 40.0;
    let height = TOP + ROW * programs.len() as f64 + 24.0;
    let mut body = words(20.0, 32.0, "title", &title(first));
    picture.lifelines(&mut body);
    picture.messages(&mut body);
    picture.merges(&mut body);
    let merges =
        programs.iter().flat_map(|program| &program.moves).any(|step| step.peer().is_none());
    legend(&mut body, first, merges, height - 24.0);
    let legend_width = 400.0 + 26.0 * f64::from(first.chunks().min(LEGEND));
    Ok(frame(width.max(legend_width), height, &body))
}

/// Where everything is.
struct Picture<'a> {
    programs: &'a [Program],
    graph: &'a Graph<'a>,
    /// Per node, the step in which its whole move can happen.
    steps: Vec<u32>,
    /// The left edge of each step, and the right edge of the last.
    edges: Vec<f64>,
    /// Pixels between two buckets that leave a rank in the same step.
    pitch: f64,
    /// Per node, how many buckets left of it, or arrivals right of it, its rank has in its step.
    places: Vec<u32>,
}

impl<'a> Picture<'a> {
    fn new(programs: &'a [Program], graph: &'a Graph<'a>, steps: Vec<u32>) -> Self {
        let steps = whole_moves(graph, steps);
        let sent = (0..).zip(&steps).filter(|&(node, _)| graph.is_send(node));
        let count = sent.map(|(_, &step)| step as usize + 1).max().unwrap_or(0);
        // Per step and rank, how many arrive and how many buckets leave.
        let mut crowd = vec![vec![[0u32; 2]; programs.len()]; count];
        let mut places = vec![0; graph.nodes.len()];
        let messages = (0..)
            .zip(&graph.nodes)
            .filter(|&(_, &at)| is_first(programs, at) && moved(programs, at).peer().is_some());
        let messages: Vec<(u32, &Node)> = messages.collect();
        let (sends, arrivals): (Vec<_>, Vec<_>) =
            messages.into_iter().partition(|&(node, _)| graph.is_send(node));
        for (node, at) in sends.into_iter().chain(arrivals.into_iter().rev()) {
            let step = steps[graph.partner(node).unwrap_or(node) as usize] as usize;
            let way = usize::from(graph.is_send(node));
            let here = &mut crowd[step][at.rank as usize][way];
            places[node as usize] = *here;
            *here += 1;
        }
        let label = |program: &Program, step: &Move| label(program, step.span()).chars().count();
        let labels = programs.iter().flat_map(|p| p.moves.iter().map(move |step| label(p, step)));
        let pitch = 24.0 + 6.0 * labels.max().unwrap_or(1) as f64;
        let mut edges = vec![LEFT];
        for ranks in &crowd {
            let most = |way: usize| ranks.iter().map(|ways| ways[way]).max().map_or(0.0, f64::from);
            let width = most(1) * pitch + most(0) * ARRIVAL + SLOPE;
            let left = edges[edges.len() - 1];
            edges.push(left + width);
        }
        Self { programs, graph, steps, edges, pitch, places }
    }

    fn lifelines(&self, body: &mut String) {
        let right = self.edges[self.edges.len() - 1];
        for program in self.programs {
            let y = height(program.rank);
            let name = format!("rank {}", program.rank);
            body.push_str(&words(LEFT - 18.0, y + 4.0, "name", &name));
            put(
                body,
                format_args!(r#"<path class="life" d="M{} {y}H{}"/>"#, LEFT - 8.0, right + 8.0),
            );
        }
        let (top, bottom) = (TOP - 22.0, height(self.programs.len() as u32 - 1) + 22.0);
        for (step, ends) in self.edges.windows(2).enumerate() {
            let middle = (ends[0] + ends[1]) / 2.0;
            body.push_str(&words(middle, TOP - 28.0, "step", &format!("step {}", step + 1)));
            if step > 0 {
                put(body, format_args!(r#"<path class="edge" d="M{} {top}V{bottom}"/>"#, ends[0]));
            }
        }
    }

    /// Lines first, so that no line crosses a bucket.
    fn messages(&self, body: &mut String) {
        let mut buckets = String::new();
        let sends = (0..self.graph.nodes.len() as u32).filter(|&node| self.graph.is_send(node));
        for node in sends {
            let at = self.graph.nodes[node as usize];
            if !is_first(self.programs, at) {
                continue;
            }
            let program = &self.programs[at.rank as usize];
            let span = moved(self.programs, at).span();
            let colour = colour(program, span.first);
            let arrival = self.graph.across(node);
            let there = self.graph.nodes[arrival as usize];
            let step = self.steps[node as usize] as usize;
            let (left, right) = (self.edges[step], self.edges[step + 1]);
            let x =
                left + 8.0 + self.pitch / 2.0 + self.pitch * f64::from(self.places[node as usize]);
            let end = right - 18.0 - ARRIVAL * f64::from(self.places[arrival as usize]);
            let (y, goal) = (height(at.rank), height(there.rank));
            let bend = (end - x) * 0.45;
            let way = format!("C{:.0} {y} {:.0} {goal} {end:.0} {goal}", x + bend, end - bend);
            let class = format!(r#"class="way" stroke="{colour}""#);
            put(body, format_args!(r#"<path {class} d="M{x:.0} {y}{way}"/>"#));
            bucket(&mut buckets, x, y, &colour, &label(program, span));
            let folds = matches!(moved(self.programs, there), Move::Fold { .. });
            let head = if folds { plus(end, goal, &colour) } else { arrow(end, goal, &colour) };
            buckets.push_str(&head);
        }
        body.push_str(&buckets);
    }

    /// A local fold is a diamond on the lifeline, at the end of the step it waits for.
    fn merges(&self, body: &mut String) {
        for (&at, &step) in self.graph.nodes.iter().zip(&self.steps) {
            let program = &self.programs[at.rank as usize];
            let Move::Merge { into, .. } = moved(self.programs, at) else { continue };
            if into.first == at.chunk && step > 0 {
                let x = self.edges[step as usize] - 4.0;
                body.push_str(&diamond(x, height(at.rank), &colour(program, into.first)));
            }
        }
    }
}

/// Every chunk of a move in the step of the chunk that is ready last: moves are drawn whole.
fn whole_moves(graph: &Graph, mut steps: Vec<u32>) -> Vec<u32> {
    let mut node = 0;
    for chunks in graph.nodes.chunk_by(|a, b| (a.rank, a.index) == (b.rank, b.index)) {
        let whole = &mut steps[node..node + chunks.len()];
        whole.fill(whole.iter().copied().max().unwrap_or(0));
        node += chunks.len();
    }
    steps
}

fn moved(programs: &[Program], at: Node) -> Move {
    programs[at.rank as usize].moves[at.index as usize]
}

/// Whether a node is the first chunk of its move: a move is drawn once.
fn is_first(programs: &[Program], at: Node) -> bool {
    moved(programs, at).span().first == at.chunk
}

fn height(rank: u32) -> f64 {
    TOP + ROW * f64::from(rank)
}

/// Chunks go once around the colour circle; scratch has the colour of the chunk it is like.
fn colour(program: &Program, chunk: u32) -> String {
    let (chunk, chunks) = (program.shape(chunk), program.chunks());
    let hue = 212.0 + 360.0 * f64::from(chunk) / f64::from(chunks);
    format!("hsl({:.0},62%,46%)", hue % 360.0)
}

fn bucket(body: &mut String, x: f64, y: f64, colour: &str, text: &str) {
    let width = 11.0 + 6.0 * text.chars().count() as f64;
    let left = x - width / 2.0;
    put(
        body,
        format_args!(
            r#"<rect x="{left:.1}" y="{}" width="{width}" height="17" rx="5" fill="{colour}"/>"#,
            y - 8.5
        ),
    );
    body.push_str(&words(x, y + 3.6, "chunk", text));
}

fn plus(x: f64, y: f64, colour: &str) -> String {
    format!(
        "<circle cx=\"{x:.0}\" cy=\"{y}\" r=\"6\" fill=\"{colour}\"/>\
         <path class=\"plus\" d=\"M{} {y}h7M{x:.0} {}v7\"/>\n",
        x.round() - 3.5,
        y - 3.5
    )
}

fn arrow(x: f64, y: f64, colour: &str) -> String {
    format!("<path fill=\"{colour}\" d=\"M{:.0} {}l9 5l-9 5z\"/>\n", x - 3.0, y - 5.0)
}

fn diamond(x: f64, y: f64, colour: &str) -> String {
    format!("<path fill=\"{colour}\" d=\"M{x:.0} {}l6 6l-6 6l-6-6z\"/>\n", y - 6.0)
}

fn legend(body: &mut String, program: &Program, merges: bool, y: f64) {
    let mut x = 30.0;
    for chunk in 0..program.chunks().min(LEGEND) {
        bucket(body, x, y, &colour(program, chunk), &label(program, Span::one(chunk)));
        x += if chunk < 9 { 26.0 } else { 31.0 };
    }
    let more = if program.chunks() > LEGEND { "… chunks" } else { "chunks" };
    body.push_str(&words(x - 8.0, y + 4.0, "note", more));
    body.push_str(&plus(x + 72.0, y, "#8c959f"));
    body.push_str(&words(x + 84.0, y + 4.0, "note", "folded in"));
    body.push_str(&arrow(x + 162.0, y, "#8c959f"));
    body.push_str(&words(x + 176.0, y + 4.0, "note", "put down"));
    if merges {
        body.push_str(&diamond(x + 254.0, y, "#8c959f"));
        body.push_str(&words(x + 266.0, y + 4.0, "note", "scratch folded in"));
    }
}

fn words(x: f64, y: f64, class: &str, text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    format!("<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{text}</text>\n")
}

fn put(body: &mut String, line: std::fmt::Arguments) {
    // Writing to a string cannot fail.
    let _ = writeln!(body, "{line}");
}

fn frame(width: f64, height: f64, body: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" \
         width=\"{width:.0}\" height=\"{height:.0}\">\n<style>{STYLE}</style>\n{body}</svg>\n"
    )
}
