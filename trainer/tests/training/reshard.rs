//! A matrix goes from every layout to every other, whole and with the fewest bytes.

use brigade_comm::{Communicator, Settings};
use brigade_trainer::parallel::tensor::Group;
use brigade_trainer::parallel::tensor::reshard::{Sharding, Signature, reshard, sent};

use Signature::{Partial, Same, Split};

/// Whole numbers, so that sums are exact in any order.
fn value(row: usize, column: usize) -> f32 {
    (row * 100 + column + 1) as f32
}

/// What a rank holds of the matrix; of a sum, its share: one rank has the values and some more,
/// which the others take away.
fn part(sharding: Sharding, shape: [usize; 2], rank: usize) -> Vec<f32> {
    let [rows, columns] = sharding.block(shape, rank);
    let value = |row, column| match sharding.signature {
        Partial if rank > 0 => -(rank as f32),
        Partial => value(row, column) + (0..sharding.ranks).sum::<usize>() as f32,
        _ => value(row, column),
    };
    rows.flat_map(|row| columns.clone().map(move |column| value(row, column))).collect()
}

/// The parts of a layout added up to a whole, where each element is held once; else every part must
/// be the whole one.
fn check_parts(sharding: Sharding, shape: [usize; 2], parts: &[Vec<f32>], what: &str) {
    if sharding.signature != Partial {
        for (rank, got) in parts.iter().enumerate() {
            assert_eq!(got, &part(sharding, shape, rank), "{what}, rank {rank}");
        }
        return;
    }
    for (at, want) in part(Sharding { signature: Same, ranks: 1 }, shape, 0).iter().enumerate() {
        let sum: f32 = parts[..sharding.ranks].iter().map(|part| part[at]).sum();
        assert_eq!(sum, *want, "{what}, element {at}");
    }
}

fn check(world: usize, shape: [usize; 2], from: Sharding, to: Sharding) {
    let settings = Settings { transport: "loopback".to_string(), ..Settings::default() };
    let what = format!("{from:?} to {to:?} of {shape:?}");
    let one = |comm: Communicator| {
        let group = Group::new(comm);
        let mine = part(from, shape, group.rank());
        let new = reshard(&group, shape, from, to, &mine).unwrap();
        let bytes = 4 * sent(from, to, shape, group.rank()) as u64;
        assert_eq!(group.sent_bytes(), bytes, "{what}, rank {}", group.rank());
        new
    };
    let parts: Vec<Vec<f32>> = std::thread::scope(|scope| {
        let comms = Communicator::local_world(world, &settings).unwrap();
        let threads: Vec<_> = comms.into_iter().map(|comm| scope.spawn(|| one(comm))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    check_parts(to, shape, &parts, &what);
}

const ALL: [Signature; 4] = [Split(0), Split(1), Same, Partial];

#[test]
fn every_layout_becomes_every_other() {
    for ranks in [2, 3] {
        for shape in [[6, 6], [7, 5], [1, 4], [0, 3]] {
            for from in ALL.map(|signature| Sharding { signature, ranks }) {
                for to in ALL.map(|signature| Sharding { signature, ranks }) {
                    check(ranks, shape, from, to);
                }
            }
        }
    }
}

#[test]
fn layouts_over_different_numbers_of_ranks_become_each_other() {
    for (before, after) in [(2, 3), (4, 3), (1, 4), (4, 1)] {
        for from in ALL.map(|signature| Sharding { signature, ranks: before }) {
            for to in ALL.map(|signature| Sharding { signature, ranks: after }) {
                check(before.max(after), [7, 5], from, to);
            }
        }
    }
}

#[test]
fn no_rank_sends_more_than_the_collective_of_that_name() {
    for ranks in [1, 2, 3, 4, 8] {
        let shape = [24, 48];
        let (all, part) = (24 * 48, 24 * 48 / ranks);
        let over = |signature| Sharding { signature, ranks };
        for (from, to, elems) in [
            (Split(0), Split(0), 0),
            (Split(0), Split(1), part * (ranks - 1) / ranks),
            (Split(1), Split(0), part * (ranks - 1) / ranks),
            (Split(0), Same, part * (ranks - 1)),
            (Split(1), Partial, 0),
            (Same, Split(1), 0),
            (Same, Same, 0),
            (Same, Partial, 0),
            (Partial, Split(0), all - part),
            (Partial, Same, all - part + part * (ranks - 1)),
            (Partial, Partial, 0),
        ] {
            for rank in 0..ranks {
                let got = sent(over(from), over(to), shape, rank);
                assert_eq!(got, elems, "{from:?} to {to:?}, rank {rank} of {ranks}");
            }
        }
    }
}
