//! A communicator in words: what carries its bytes, and by which algorithms.

use std::fmt::Write;

use brigade_schedule::{Algorithm, Collective};

use crate::communicator::Shared;
use crate::numbers::ranges;
use crate::{Call, Communicator, Dtype, Op};

/// Sizes of a call whose algorithms are told: powers of two of bytes, from and to.
const FROM: u32 = 3;
const TO: u32 = 26;

impl Communicator {
    /// What this communicator is, for people: the first line has the rank and its node, the next
    /// ones say which transport goes to whom, and then for each collective which algorithm carries
    /// out calls on `f32` from which size on (of this rank's input, or the root's). Without others
    /// it is one line. Settings, tuning and nodes are in it, as the calls have them.
    pub fn describe(&self) -> String {
        let (rank, size, nodes) = (self.rank(), self.size(), self.nodes());
        let count = nodes.iter().max().map_or(1, |last| last + 1);
        let mut text = format!("rank {rank} of {size}, on node {} of {count}\n", nodes[rank]);
        if size == 1 {
            return text;
        }
        let shared = self.shared();
        for (at, name) in shared.transport_names.iter().enumerate() {
            let served =
                (0..size).zip(shared.routes.iter()).filter(|(_, route)| **route == Some(at));
            let served: Vec<usize> = served.map(|(peer, _)| peer).collect();
            if !served.is_empty() {
                line(&mut text, &format!("{name}: to {}", ranges(&served)));
            }
        }
        for collective in [
            Collective::AllReduce,
            Collective::ReduceScatter,
            Collective::AllGather,
            Collective::AllToAll,
            Collective::Broadcast { root: 0 },
            Collective::Reduce { root: 0 },
        ] {
            let steps = algorithms(shared, collective);
            line(&mut text, &format!("{}: {}", collective.name(), steps.join(", ")));
        }
        text
    }
}

fn line(text: &mut String, words: &str) {
    // Writing to a string does not fail.
    let _ = writeln!(text, "{words}");
}

/// By what calls go: `doubling`, `ring from 64K`.
fn algorithms(shared: &Shared, collective: Collective) -> Vec<String> {
    let mut steps = Vec::new();
    let mut last: Option<Algorithm> = None;
    for power in FROM..=TO {
        let elements = (1_usize << power) / Dtype::F32.size();
        let blocks = match collective {
            Collective::ReduceScatter | Collective::AllToAll => shared.ranks as usize,
            _ => 1,
        };
        let call = Call::new(collective, Dtype::F32, Op::Sum, elements / blocks);
        let Ok(choice) = shared.choice(&call) else { continue };
        if last != Some(choice.algorithm) {
            let name = choice.algorithm;
            steps.push(match last {
                None => name.to_string(),
                Some(_) => format!("{name} from {}", size_in_words(power)),
            });
            last = Some(name);
        }
    }
    steps
}

/// A power of two as settings in bytes are written: `8`, `64K`, `4M`.
fn size_in_words(power: u32) -> String {
    match power {
        20.. => format!("{}M", 1 << (power - 20)),
        10.. => format!("{}K", 1 << (power - 10)),
        _ => format!("{}", 1 << power),
    }
}

#[cfg(test)]
mod tests {
    use super::size_in_words;

    #[test]
    fn sizes_are_told_in_short() {
        let sizes = [3, 9, 10, 16, 20, 26].map(size_in_words);
        assert_eq!(sizes, ["8", "512", "1K", "64K", "1M", "64M"]);
    }
}
