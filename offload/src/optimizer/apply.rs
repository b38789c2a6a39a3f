//! From a shard of any formats to the loop for them, and from one loop to all threads.

use half::{bf16, f16};

use super::kernels::{self, Crew, Isa, Lane, Measure, PartSums, Rule};
use super::shard::{Gradients, Moment, Narrowed, Shard, Weights};

/// In how many parts a pass is cut at most: several for each thread, so that a core which is busy
/// elsewhere delays only its own.
pub(super) const PARTS: usize = 64;

/// Parts begin at multiples of this many elements: to wake a thread for fewer takes longer than to
/// update them.
const GRAIN: usize = 16384;

/// The elements of each part but the last, from the number of elements alone.
pub(super) fn part_len(count: usize) -> usize {
    count.div_ceil(PARTS).next_multiple_of(GRAIN).max(GRAIN)
}

/// Update a checked shard by `rule`.
pub(super) fn update<R: Rule>(crew: &mut Crew, rule: &R, shard: Shard<'_>) {
    let isa = crew.isa();
    let mut parts = [const { None }; PARTS];
    let count = cut(shard, &mut parts);
    crew.each(&mut parts[..count], |part| {
        if let Some(shard) = part.take() {
            by_weights((isa, rule), shard);
        }
    });
}

/// Update the moments of a checked shard by `rule`, and sum up squares.
pub(super) fn measure<R: Measure>(crew: &mut Crew, rule: &R, shard: Shard<'_>) -> PartSums {
    let isa = crew.isa();
    let mut parts = [const { None }; PARTS];
    let count = cut(shard, &mut parts);
    let mut parts = parts.map(|shard| (shard, PartSums::default()));
    crew.each(&mut parts[..count], |(part, sums)| {
        if let Some(shard) = part.take() {
            *sums = measure_part((isa, rule), shard);
        }
    });
    let parts = parts.iter().map(|(_, sums)| sums);
    parts.fold(PartSums::default(), |all, part| PartSums {
        weights: all.weights + part.weights,
        updates: all.updates + part.updates,
    })
}

/// Cut a shard into parts; how many there are.
fn cut<'a>(shard: Shard<'a>, parts: &mut [Option<Shard<'a>>; PARTS]) -> usize {
    let length = part_len(shard.len());
    let (mut rest, mut count) = (shard, 0);
    while rest.len() > length {
        let (part, after) = rest.split_at(length);
        parts[count] = Some(part);
        (rest, count) = (after, count + 1);
    }
    parts[count] = Some(rest);
    count + 1
}

/// As many elements as there are, of none: slices of nothing take no memory.
fn nothing(count: usize) -> Vec<()> {
    vec![(); count]
}

type On<'a, R> = (Isa, &'a R);

fn by_weights<R: Rule>(on: On<'_, R>, shard: Shard<'_>) {
    let Shard { weights, gradients, mean, square, narrowed } = shard;
    match (weights, narrowed) {
        (Weights::F32(weights), Narrowed::Bf16(narrowed)) => {
            by_gradients(on, weights, narrowed, gradients, (mean, square));
        }
        (Weights::F32(weights), Narrowed::F16(narrowed)) => {
            by_gradients(on, weights, narrowed, gradients, (mean, square));
        }
        (Weights::F32(weights), Narrowed::None) => {
            let narrowed = &mut nothing(weights.len());
            by_gradients(on, weights, narrowed, gradients, (mean, square));
        }
        (Weights::Bf16(weights), _) => {
            let narrowed = &mut nothing(weights.len());
            by_gradients(on, weights, narrowed, gradients, (mean, square));
        }
    }
}

fn by_gradients<R: Rule, P: Lane, N: Lane>(
    on: On<'_, R>,
    weights: &mut [P],
    narrowed: &mut [N],
    gradients: Gradients<'_>,
    moments: (Moment<'_>, Moment<'_>),
) {
    if !R::READS_GRADIENTS {
        return by_moments::<R, P, (), N>(on, weights, narrowed, &nothing(weights.len()), moments);
    }
    match gradients {
        Gradients::F32(all) => by_moments::<R, P, f32, N>(on, weights, narrowed, all, moments),
        Gradients::Bf16(all) => by_moments::<R, P, bf16, N>(on, weights, narrowed, all, moments),
        Gradients::F16(all) => by_moments::<R, P, f16, N>(on, weights, narrowed, all, moments),
    }
}

fn by_moments<R: Rule, P: Lane, G: Lane, N: Lane>(
    on: On<'_, R>,
    weights: &mut [P],
    narrowed: &mut [N],
    gradients: &[G],
    (mean, square): (Moment<'_>, Moment<'_>),
) {
    if R::MOMENTS < 2 {
        let square = &mut nothing(weights.len());
        return match mean {
            Moment::F32(mean) => kernels::update(on, weights, gradients, mean, square, narrowed),
            Moment::Bf16(mean) => kernels::update(on, weights, gradients, mean, square, narrowed),
            Moment::None => {
                let mean = &mut nothing(weights.len());
                kernels::update(on, weights, gradients, mean, square, narrowed);
            }
        };
    }
    match (mean, square) {
        (Moment::F32(mean), Moment::F32(square)) => {
            kernels::update(on, weights, gradients, mean, square, narrowed);
        }
        (Moment::Bf16(mean), Moment::F32(square)) => {
            kernels::update(on, weights, gradients, mean, square, narrowed);
        }
        (Moment::Bf16(mean), Moment::Bf16(square)) => {
            kernels::update(on, weights, gradients, mean, square, narrowed);
        }
        _ => unreachable!("`Shard::check` lets only these pass"),
    }
}

fn measure_part<R: Measure>(on: On<'_, R>, shard: Shard<'_>) -> PartSums {
    let moments = (shard.mean, shard.square);
    match shard.weights {
        Weights::F32(weights) => measure_by_gradients(on, weights, shard.gradients, moments),
        Weights::Bf16(weights) => measure_by_gradients(on, weights, shard.gradients, moments),
    }
}

fn measure_by_gradients<R: Measure, P: Lane>(
    on: On<'_, R>,
    weights: &[P],
    gradients: Gradients<'_>,
    moments: (Moment<'_>, Moment<'_>),
) -> PartSums {
    match gradients {
        Gradients::F32(gradients) => measure_by_moments(on, weights, gradients, moments),
        Gradients::Bf16(gradients) => measure_by_moments(on, weights, gradients, moments),
        Gradients::F16(gradients) => measure_by_moments(on, weights, gradients, moments),
    }
}

fn measure_by_moments<R: Measure, P: Lane, G: Lane>(
    on: On<'_, R>,
    weights: &[P],
    gradients: &[G],
    moments: (Moment<'_>, Moment<'_>),
) -> PartSums {
    match moments {
        (Moment::F32(mean), Moment::F32(square)) => {
            kernels::measure(on, weights, gradients, mean, square)
        }
        (Moment::Bf16(mean), Moment::F32(square)) => {
            kernels::measure(on, weights, gradients, mean, square)
        }
        (Moment::Bf16(mean), Moment::Bf16(square)) => {
            kernels::measure(on, weights, gradients, mean, square)
        }
        _ => unreachable!("`Shard::check` lets only these pass"),
    }
}
