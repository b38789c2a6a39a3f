//! The collective with a function in its middle comes to the same as three calls.

use std::ops::Range;
use std::sync::Arc;

use brigade_comm::{Communicator, Element, Error, Op, Settings, ShardUpdate, Tuning};
use brigade_schedule::Algorithm;
use half::bf16;

use crate::world::{TRANSPORTS, each_rank, over};

/// What stands for an optimizer: every element by itself, and not the identity.
fn updated(gradient: f32, weight: f32) -> f32 {
    weight * 0.75 - gradient * 0.5 + 0.125
}

/// Numbers whose sums depend on the order of adding, so that another order would show.
fn gradient(rank: usize, index: usize) -> f32 {
    let mixed = (rank as u32 + 1)
        .wrapping_mul(2_654_435_761)
        .wrapping_add((index as u32).wrapping_mul(40_503));
    (mixed >> 8) as f32 / 65_536.0 - 90.0
}

fn weight(index: usize) -> f32 {
    (index % 4_096) as f32 / 512.0 - 3.0
}

/// A number type of these tests.
trait Number: Element + Copy + PartialEq + std::fmt::Debug {
    fn narrow(value: f32) -> Self;
    fn wide(self) -> f32;
}

impl Number for f32 {
    fn narrow(value: f32) -> f32 {
        value
    }
    fn wide(self) -> f32 {
        self
    }
}

impl Number for bf16 {
    fn narrow(value: f32) -> bf16 {
        bf16::from_f32(value)
    }
    fn wide(self) -> f32 {
        self.to_f32()
    }
}

fn update_all<G: Number, W: Number>(gradients: &[G], weights: &mut [W]) {
    for (gradient, weight) in gradients.iter().zip(weights) {
        *weight = W::narrow(updated(gradient.wide(), weight.wide()));
    }
}

/// The same by three calls.
fn by_three_calls<G: Number, W: Number>(
    comm: &Communicator,
    gradients: &[G],
    op: Op,
    weights: &mut [W],
) {
    let (elems, ranks) = (gradients.len(), comm.size());
    let counts: Vec<usize> =
        (0..ranks).map(|rank| elems * (rank + 1) / ranks - elems * rank / ranks).collect();
    let mut folded = vec![G::narrow(0.0); counts[comm.rank()]];
    comm.reduce_scatter_v(gradients, &mut folded, &counts, op).expect("a reduce-scatter");
    let mut own = weights[comm.shard(elems)].to_vec();
    update_all(&folded, &mut own);
    comm.all_gather_v(&own, weights, &counts).expect("an all-gather");
}

/// One update both ways on every rank, compared bit by bit.
fn check<G: Number, W: Number>(ranks: usize, settings: &Settings, elems: usize, op: Op) {
    let name = format!("{}, {ranks} ranks, {elems} elements", settings.transport);
    each_rank(ranks, settings, move |comm| {
        let me = comm.rank();
        let mut gradients: Vec<G> = (0..elems).map(|i| G::narrow(gradient(me, i))).collect();
        // What is not this rank's shard must not matter.
        let shard = comm.shard(elems);
        let own = |index| if shard.contains(&index) { weight(index) } else { f32::MAX };
        let mut weights: Vec<W> = (0..elems).map(|index| W::narrow(own(index))).collect();
        let mut wanted = weights.clone();
        by_three_calls(&comm, &gradients, op.clone(), &mut wanted);
        let mut next = 0;
        let mut update = |part: Range<usize>, gradients: &mut [G], weights: &mut [W]| {
            assert_eq!((part.start, part.len()), (next, gradients.len()));
            assert_eq!(gradients.len(), weights.len());
            next = part.end;
            update_all(gradients, weights);
        };
        comm.sharded_update(&mut gradients, op.clone(), &mut weights, &mut update)
            .expect("an update");
        assert_eq!(next, shard.len(), "{name}: every part of the shard comes once");
        let wrong = weights.iter().zip(&wanted).position(|(got, want)| got != want);
        assert_eq!(wrong, None, "{name}, rank {me}");
    });
}

/// Short windows, so that a call has many.
fn windows(transport: &str, window_bytes: u64, ordered: bool) -> Settings {
    Settings { window_bytes, ordered, ..over(transport) }
}

#[test]
fn an_update_comes_to_the_same_bits_as_three_calls() {
    for transport in TRANSPORTS {
        for ranks in [1, 2, 3, 4, 5] {
            for elems in [0, 1, ranks - 1, 7, 1_000, 12_289] {
                check::<f32, f32>(ranks, &windows(transport, 4 << 10, true), elems, Op::Sum);
            }
        }
        check::<f32, bf16>(2, &windows(transport, 4 << 10, true), 30_001, Op::Avg);
        check::<f32, bf16>(4, &windows(transport, 1 << 20, true), 700_000, Op::Avg);
        check::<bf16, f32>(3, &windows(transport, 8 << 10, true), 20_000, Op::PreMulSum(0.25));
        check::<bf16, bf16>(8, &windows(transport, 8 << 10, true), 9_999, Op::Max);
    }
}

#[test]
fn an_update_goes_by_algorithms_with_numbers() {
    for (ranks, node_ranks) in [(4, 2), (5, 2), (6, 3), (8, 4)] {
        let algorithm = Some(Algorithm::Hierarchical { node_ranks });
        for elems in [4, 4_096, 40_001] {
            let settings = Settings { algorithm, ..windows("shm", 4 << 10, false) };
            check::<f32, f32>(ranks, &settings, elems, Op::Sum);
        }
    }
}

/// A header has room for one number, so the weights go another way; a maximum has the same bits by
/// any.
#[test]
fn rules_for_algorithms_with_two_numbers_are_no_trouble() {
    let path = std::env::temp_dir().join(format!("brigade-numbered-{}", std::process::id()));
    let lines = "reduce-scatter 6 * hierarchical:2\nall-gather 6 * hierarchical:3\n";
    std::fs::write(&path, lines).expect("a file of rules");
    let tuning = Some(Arc::new(Tuning::read(&path).expect("rules")));
    std::fs::remove_file(&path).expect("the file of rules");
    for elems in [6, 4_098, 40_000] {
        let settings = Settings { tuning: tuning.clone(), ..windows("shm", 4 << 10, false) };
        check::<f32, f32>(6, &settings, elems, Op::Max);
    }
}

#[test]
fn without_an_order_all_ranks_still_end_with_the_same_weights() {
    for transport in TRANSPORTS {
        for (ranks, elems) in [(2, 100_000), (3, 4_099), (4, 65_536), (8, 8_191)] {
            let settings = windows(transport, 16 << 10, false);
            let ends = each_rank(ranks, &settings, move |comm| {
                let me = comm.rank();
                let mut gradients: Vec<f32> = (0..elems).map(|i| gradient(me, i)).collect();
                let mut weights: Vec<bf16> =
                    (0..elems).map(|index| bf16::from_f32(weight(index))).collect();
                let mut update = |_: Range<usize>, gradients: &mut [f32], weights: &mut [bf16]| {
                    update_all(gradients, weights);
                };
                for _ in 0..3 {
                    comm.sharded_update(&mut gradients, Op::Avg, &mut weights, &mut update)
                        .expect("an update");
                    gradients.iter_mut().enumerate().for_each(|(i, g)| *g = gradient(me, i));
                }
                weights
            });
            assert!(ends.iter().all(|weights| *weights == ends[0]), "{transport}, {ranks} ranks");
            let sum = |index| (0..ranks).map(|rank| gradient(rank, index)).sum::<f32>();
            let mean = |index| sum(index) / ranks as f32;
            for index in [0, elems / 2, elems - 1] {
                let step = |weight: f32| bf16::from_f32(updated(mean(index), weight)).to_f32();
                let want = step(step(step(bf16::from_f32(weight(index)).to_f32())));
                let got = ends[0][index].to_f32();
                assert!((got - want).abs() <= want.abs() / 64.0 + 0.5, "{index}: {got} {want}");
            }
        }
    }
}

/// Ready for each part only when it has been asked some times.
struct Slow {
    asked: usize,
    parts: Vec<Range<usize>>,
}

impl ShardUpdate<f32, f32> for Slow {
    fn is_ready(&mut self, part: Range<usize>) -> bool {
        assert_eq!(part.start, self.parts.last().map_or(0, |last| last.end), "in order");
        self.asked += 1;
        self.asked.is_multiple_of(5)
    }

    fn update(&mut self, part: Range<usize>, gradients: &mut [f32], weights: &mut [f32]) {
        assert!(self.asked.is_multiple_of(5), "only when it is ready");
        self.parts.push(part);
        update_all(gradients, weights);
    }
}

#[test]
fn a_function_that_is_not_ready_is_asked_again() {
    for transport in TRANSPORTS {
        each_rank(3, &windows(transport, 8 << 10, true), |comm| {
            let elems = 20_000;
            let mut gradients: Vec<f32> = (0..elems).map(|i| gradient(comm.rank(), i)).collect();
            let mut weights: Vec<f32> = (0..elems).map(weight).collect();
            let mut wanted = weights.clone();
            by_three_calls(&comm, &gradients, Op::Sum, &mut wanted);
            let mut slow = Slow { asked: 0, parts: Vec::new() };
            comm.sharded_update(&mut gradients, Op::Sum, &mut weights, &mut slow)
                .expect("an update");
            assert_eq!(weights, wanted);
            assert!(slow.parts.len() > 5, "{} parts", slow.parts.len());
        });
    }
}

#[test]
fn what_is_sent_is_what_the_formula_says() {
    let sent = each_rank(4, &over("loopback"), |comm| {
        let (mut gradients, mut weights) = (vec![1.0_f32; 40_000], vec![bf16::ONE; 40_000]);
        let mut update = |_: Range<usize>, _: &mut [f32], _: &mut [bf16]| {};
        comm.sharded_update(&mut gradients, Op::Sum, &mut weights, &mut update).expect("an update");
        comm.stats().sent_bytes
    });
    assert_eq!(sent, [(4 + 2) * 40_000 * 3 / 4; 4]);
}

#[test]
fn updates_that_make_no_sense_are_refused_and_leave_everything_as_it_was() {
    each_rank(2, &over("loopback"), |comm| {
        let mut nothing = |_: Range<usize>, _: &mut [f32], _: &mut [f32]| {};
        let error = comm.sharded_update(&mut [1.0; 4], Op::Sum, &mut [1.0; 3], &mut nothing);
        let error = error.expect_err("unequal lengths").to_string();
        assert!(error.contains("4 gradients, but 3 weights"), "{error}");
        let error = comm.sharded_update(&mut [1.0; 4], Op::Bor, &mut [1.0; 4], &mut nothing);
        assert!(matches!(error, Err(Error::Invalid { .. })), "{error:?}");
        let mut flags = |_: Range<usize>, _: &mut [bool], _: &mut [f32]| {};
        let error = comm.sharded_update(&mut [true; 2], Op::Max, &mut [1.0; 2], &mut flags);
        assert!(error.expect_err("booleans").to_string().contains("booleans are not updated"));
        let mut data = [1.0_f32; 3];
        comm.all_reduce(&mut data, Op::Sum).expect("the communicator is as it was");
        assert_eq!(data, [2.0; 3]);
    });
}

#[test]
fn ranks_that_disagree_about_an_update_all_learn_of_it() {
    for transport in TRANSPORTS {
        let errors = each_rank(2, &over(transport), |comm| {
            let mut gradients = vec![1.0_f32; 1_000];
            let outcome = if comm.rank() == 0 {
                let mut update = |_: Range<usize>, _: &mut [f32], _: &mut [f32]| {};
                comm.sharded_update(&mut gradients, Op::Sum, &mut [0.0; 1_000], &mut update)
            } else {
                let mut update = |_: Range<usize>, _: &mut [f32], _: &mut [bf16]| {};
                let mut weights = [bf16::ONE; 1_000];
                comm.sharded_update(&mut gradients, Op::Sum, &mut weights, &mut update)
            };
            outcome.expect_err("they disagree").to_string()
        });
        for error in errors {
            assert!(error.contains("of bf16") && error.contains("of f32"), "{transport}: {error}");
        }
    }
}
