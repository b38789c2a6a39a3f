//! Pictures of schedules: a line of text per rank, or an SVG.

mod svg;

use std::fmt::Write;

use crate::{Move, Program, Span};

pub use svg::svg;

/// One line per rank, its moves in program order, the n-th moves of all ranks below each other.
///
/// `c→p` sends chunk c to rank p, `c⊕p` folds what rank p sends into chunk c, `c←p` overwrites
/// chunk c with it, `c=s0⊕c` folds scratch chunk 0 into chunk c, from the left. `2-5` are the
/// chunks 2 to 5.
pub fn text(programs: &[Program]) -> String {
    let cells: Vec<Vec<String>> = programs
        .iter()
        .map(|program| program.moves.iter().map(|&step| cell(program, step)).collect())
        .collect();
    let columns = cells.iter().map(Vec::len).max().unwrap_or(0);
    let wide = |column: usize| {
        let widths =
            cells.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        widths.max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(wide).collect();
    let digits = programs.len().saturating_sub(1).to_string().len();
    let mut text = String::new();
    for (program, row) in programs.iter().zip(&cells) {
        let cells = row.iter().zip(&widths).map(|(cell, &width)| format!(" {cell:width$}"));
        let line: String = cells.collect();
        // Writing to a string cannot fail.
        let _ = writeln!(text, "rank {:digits$}:{}", program.rank, line.trim_end());
    }
    text
}

/// What is drawn above or beside a picture: "ring all-reduce, 4 ranks".
fn title(program: &Program) -> String {
    let root = program.collective.root().map_or(String::new(), |root| format!(" (root {root})"));
    let plural = if program.ranks == 1 { "" } else { "s" };
    let Program { algorithm, collective, ranks, .. } = program;
    format!("{algorithm} {collective}{root}, {ranks} rank{plural}")
}

fn cell(program: &Program, step: Move) -> String {
    match step {
        Move::Send { to, span } => format!("{}→{to}", label(program, span)),
        Move::Recv { from, span } => format!("{}←{from}", label(program, span)),
        Move::Fold { from, span } => format!("{}⊕{from}", label(program, span)),
        Move::Merge { from, into } => {
            let [from, into] = [from, into].map(|span| label(program, span));
            format!("{into}={from}⊕{into}")
        }
    }
}

/// A span as people write it; scratch chunks are s0, s1, and so on.
fn label(program: &Program, span: Span) -> String {
    let name = |chunk: u32| match chunk.checked_sub(program.chunks()) {
        None => chunk.to_string(),
        Some(scratch) => format!("s{scratch}"),
    };
    match span.count {
        1 => name(span.first),
        _ => format!("{}-{}", name(span.first), name(span.end() - 1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Algorithm, Collective, program};

    fn world(collective: Collective, algorithm: Algorithm, ranks: u32) -> Vec<Program> {
        (0..ranks).map(|rank| program(collective, algorithm, ranks, rank).unwrap()).collect()
    }

    #[test]
    fn a_ring_reads_as_in_the_textbook() {
        let drawn = text(&world(Collective::AllReduce, Algorithm::Ring, 3));
        let want = "\
rank 0: 2→1 1⊕2 1→1 0⊕2 0→1 2←2 2→1 1←2
rank 1: 0→2 2⊕0 2→2 1⊕0 1→2 0←0 0→2 2←0
rank 2: 1→0 0⊕1 0→0 2⊕1 2→0 1←1 1→0 0←1
";
        assert_eq!(drawn, want);
    }

    #[test]
    fn runs_and_scratch_have_their_own_letters() {
        let drawn = text(&world(Collective::AllReduce, Algorithm::Halving, 4));
        assert!(drawn.starts_with("rank 0: 2-3→2 0-1⊕2 1→1 0⊕1 0→1 1←1 0-1→2 2-3←2\n"), "{drawn}");
        let drawn = text(&world(Collective::Reduce { root: 2 }, Algorithm::Ordered, 3));
        assert!(drawn.ends_with("rank 2: s0←0 s0⊕1 0=s0⊕0\n"), "{drawn}");
    }

    #[test]
    fn every_schedule_has_a_picture_that_is_well_formed() {
        for ranks in [1, 2, 5] {
            for collective in Collective::ALL {
                for algorithm in Algorithm::all_for(collective, ranks) {
                    let programs = world(collective, algorithm, ranks);
                    let picture = svg(&programs);
                    assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n"));
                    let messages = picture.matches("class=\"way\"").count();
                    let sends = |program: &Program| {
                        let is_send = |step: &&Move| matches!(step, Move::Send { .. });
                        program.moves.iter().filter(is_send).count()
                    };
                    assert_eq!(messages, programs.iter().map(sends).sum::<usize>());
                    assert!(!picture.contains("NaN"));
                }
            }
        }
        assert!(svg(&[]).starts_with("<svg "));
    }

    #[test]
    fn a_faulty_schedule_is_named_instead_of_drawn() {
        let mut programs = world(Collective::AllReduce, Algorithm::Ring, 3);
        programs[1].moves.pop();
        assert!(svg(&programs).contains("has no counterpart"));
    }
}
