//! The traffic limit: what an update moves, moved by loops that compute nothing.

use std::sync::Barrier;
use std::time::{Duration, Instant};

/// Bytes that each stream advances by before the next has its turn: a page, so that all streams are
/// open at the same time, as in an update.
const GRAIN: usize = 4096;

/// Part of every array, for one thread.
struct Part<'a> {
    updated: Vec<&'a mut [u8]>,
    read: &'a [u8],
    written: &'a mut [u8],
}

/// Read and write `updated`, adding `add` to every byte, read `read`, and write `written`, on so
/// many threads; the time between the first beginning and the last end.
pub(super) fn pass(
    threads: usize,
    add: u8,
    updated: &mut [&mut [u8]],
    read: &[u8],
    written: &mut [u8],
) -> Duration {
    let parts = cut(threads, updated, read, written);
    let barrier = Barrier::new(parts.len());
    let times: Vec<(Instant, Instant)> = std::thread::scope(|scope| {
        let barrier = &barrier;
        let run = move |part: Part<'_>| {
            barrier.wait();
            let start = Instant::now();
            stream(part, add);
            (start, Instant::now())
        };
        let mut parts = parts.into_iter();
        let own = parts.next();
        let others: Vec<_> = parts.map(|part| scope.spawn(move || run(part))).collect();
        let own = own.map(run);
        let joined = others.into_iter().map(|thread| thread.join().expect("loops do not panic"));
        own.into_iter().chain(joined).collect()
    });
    let start = times.iter().map(|(start, _)| *start).min();
    let end = times.iter().map(|(_, end)| *end).max();
    start.zip(end).map_or(Duration::ZERO, |(start, end)| end - start)
}

fn cut<'a>(
    threads: usize,
    updated: &'a mut [&mut [u8]],
    read: &'a [u8],
    written: &'a mut [u8],
) -> Vec<Part<'a>> {
    let length = |bytes: usize| (bytes / threads / GRAIN * GRAIN).max(1);
    let mut pieces: Vec<_> = updated
        .iter_mut()
        .map(|array| {
            let length = length(array.len());
            split(array, length, threads).into_iter()
        })
        .collect();
    let (read_length, written_length) = (length(read.len()), length(written.len()));
    let mut written = split(written, written_length, threads).into_iter();
    (0..threads)
        .map(|number| {
            let start = (number * read_length).min(read.len());
            let end = if number + 1 == threads { read.len() } else { start + read_length };
            Part {
                updated: pieces.iter_mut().filter_map(Iterator::next).collect(),
                read: &read[start..end.min(read.len())],
                written: written.next().unwrap_or_default(),
            }
        })
        .collect()
}

/// `parts` pieces of `length`, the last with whatever is left.
fn split(array: &mut [u8], length: usize, parts: usize) -> Vec<&mut [u8]> {
    let mut rest = array;
    let mut pieces = Vec::with_capacity(parts);
    for _ in 1..parts {
        let (piece, after) = rest.split_at_mut(length.min(rest.len()));
        pieces.push(piece);
        rest = after;
    }
    pieces.push(rest);
    pieces
}

fn stream(part: Part<'_>, add: u8) {
    let Part { mut updated, read, written } = part;
    let longest = updated.iter().map(|array| array.len()).max().unwrap_or(0);
    let rounds = longest.div_ceil(GRAIN).max(1);
    let at = |bytes: usize, round: usize| bytes * round / rounds;
    let mut folded = 0_u8;
    for round in 0..rounds {
        for array in &mut updated {
            let range = at(array.len(), round)..at(array.len(), round + 1);
            array[range].iter_mut().for_each(|byte| *byte = byte.wrapping_add(add));
        }
        let piece = &read[at(read.len(), round)..at(read.len(), round + 1)];
        folded = piece.iter().fold(folded, |folded, byte| folded ^ byte);
        let range = at(written.len(), round)..at(written.len(), round + 1);
        written[range].fill(0x3f);
    }
    std::hint::black_box(folded);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_touched_once() {
        for threads in [1, 2, 3, 7] {
            for count in [0_usize, 1, 5000, 100_000] {
                let (mut one, mut two) = (vec![0_u8; 4 * count], vec![0xff_u8; 2 * count]);
                let (read, mut written) = (vec![7_u8; 2 * count], vec![0_u8; 2 * count]);
                pass(threads, 1, &mut [&mut one, &mut two], &read, &mut written);
                assert!(one.iter().all(|byte| *byte == 1), "{threads} {count}");
                assert!(two.iter().all(|byte| *byte == 0), "{threads} {count}");
                assert!(written.iter().all(|byte| *byte == 0x3f), "{threads} {count}");
            }
        }
    }
}
