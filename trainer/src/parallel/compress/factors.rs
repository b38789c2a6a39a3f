//! Two thin factors in place of each matrix: PowerSGD (Vogels, Karimireddy and Jaggi 2019).
//!
//! With M the sum of a rank's lanes and what it left behind, n × m, and Q the m × r factor of the
//! step before:
//!
//! ```text
//! P = M Q,  summed over all ranks,  its columns made orthonormal
//! Q = Mᵀ P, left behind: M − P Qᵀ;  summed over all ranks
//! the gradient: P Qᵀ
//! ```
//!
//! One iteration a step of the power method, which the Q of the last step warms up. Vectors, and
//! matrices that factors would not make smaller, travel as they are with the first call.
//! Cost: 2 (R − 1)/R elements sent for each of (n + m) r of a matrix; 4 n m r multiplications.

use super::{Codec, wait};
use crate::error::Error;
use crate::layout::Tensor;
use brigade_comm::{Call, Communicator, Dtype, Op, Owned};
use brigade_schedule::Collective;
use std::ops::Range;
use std::time::Duration;

/// A matrix in a unit, and where its factors are among those of all matrices.
struct Matrix {
    range: Range<usize>,
    columns: usize,
    left: Range<usize>,
    right: Range<usize>,
}

pub(super) struct Factors {
    rank: usize,
    matrices: Vec<Matrix>,
    /// What travels as it is.
    vectors: Vec<Range<usize>>,
    /// What was left behind, `[elements]`, and in a step M in its place.
    error: Vec<f32>,
    /// P of all matrices, and behind them the vectors.
    left: Vec<f32>,
    /// Q of all matrices, summed over all ranks.
    right: Vec<f32>,
    calls: [Option<Owned<f32>>; 2],
    lens: [usize; 2],
}

impl Factors {
    /// For a unit with these tensors.
    pub(super) fn new(tensors: &[Tensor], rank: usize) -> Factors {
        let (mut matrices, mut vectors) = (Vec::new(), Vec::new());
        let (mut left, mut right) = (0, 0);
        for tensor in tensors {
            let columns = *tensor.shape.last().unwrap_or(&1);
            let rows = tensor.range.len() / columns.max(1);
            if (rows + columns) * rank >= tensor.range.len() {
                vectors.push(tensor.range.clone());
                continue;
            }
            let (p, q) = (left..left + rows * rank, right..right + columns * rank);
            (left, right) = (p.end, q.end);
            matrices.push(Matrix { range: tensor.range.clone(), columns, left: p, right: q });
        }
        left += vectors.iter().map(Range::len).sum::<usize>();
        let len = tensors.last().map_or(0, |last| last.range.end);
        Factors {
            error: vec![0.0; len],
            left: vec![0.0; left],
            right: vec![0.0; right],
            calls: [None, None],
            lens: [left, right],
            rank,
            matrices,
            vectors,
        }
    }

    /// Where the vectors are behind the factors.
    fn places(&self) -> impl Iterator<Item = (Range<usize>, Range<usize>)> {
        let mut at = self.matrices.last().map_or(0, |matrix| matrix.left.end);
        self.vectors.iter().map(move |range| {
            let place = at..at + range.len();
            at = place.end;
            (range.clone(), place)
        })
    }
}

impl Codec for Factors {
    fn start(&mut self, group: &Communicator, sum: &mut [f32]) -> Result<(), Error> {
        self.error.iter_mut().zip(&*sum).for_each(|(error, sum)| *error += *sum);
        let rank = self.rank;
        for (at, Matrix { range, columns, left, right }) in self.matrices.iter().enumerate() {
            let q = &mut self.right[right.clone()];
            refill(q, rank, at as u64);
            times(&self.error[range.clone()], q, &mut self.left[left.clone()], *columns, rank);
        }
        let mut left = std::mem::take(&mut self.left);
        for (range, place) in self.places() {
            left[place].copy_from_slice(&self.error[range]);
        }
        self.calls[0] = Some(group.all_reduce_owned(left, Op::Sum)?);
        Ok(())
    }

    fn go_on(&mut self, group: &Communicator, waited: &mut Duration) -> Result<(), Error> {
        (_, self.left) = wait(self.calls[0].take(), waited)?;
        let rank = self.rank;
        for Matrix { range, columns, left, right } in &self.matrices {
            let (p, q) = (&mut self.left[left.clone()], &mut self.right[right.clone()]);
            orthonormalise(p, rank);
            let error = &mut self.error[range.clone()];
            transposed_times(error, p, q, *columns, rank);
            // Less what this rank brings to the sum.
            outer(p, q, *columns, rank, |at, product| error[at] -= product);
        }
        for range in &self.vectors {
            self.error[range.clone()].fill(0.0);
        }
        let right = std::mem::take(&mut self.right);
        self.calls[1] = Some(group.all_reduce_owned(right, Op::Sum)?);
        Ok(())
    }

    fn finish(&mut self, sum: &mut [f32], waited: &mut Duration) -> Result<(), Error> {
        (_, self.right) = wait(self.calls[1].take(), waited)?;
        for Matrix { range, columns, left, right } in &self.matrices {
            let (p, q) = (&self.left[left.clone()], &self.right[right.clone()]);
            let sum = &mut sum[range.clone()];
            outer(p, q, *columns, self.rank, |at, product| sum[at] = product);
        }
        for (range, place) in self.places() {
            sum[range].copy_from_slice(&self.left[place]);
        }
        Ok(())
    }

    fn calls(&self) -> Vec<Call> {
        self.lens.map(|len| Call::new(Collective::AllReduce, Dtype::F32, Op::Sum, len)).to_vec()
    }

    fn bytes(&self) -> u64 {
        4 * (self.error.len() + self.lens.iter().sum::<usize>()) as u64
    }
}

/// Give columns of zeros numbers of their own, the same on every rank: they would stay zeros.
fn refill(q: &mut [f32], rank: usize, seed: u64) {
    for column in 0..rank {
        if q.iter().skip(column).step_by(rank).all(|number| *number == 0.0) {
            let mut random = fastrand::Rng::with_seed(seed << 8 | column as u64);
            q.iter_mut().skip(column).step_by(rank).for_each(|to| *to = random.f32() - 0.5);
        }
    }
}

/// `p = m q`. m: [rows × columns], q: [columns × rank], p: [rows × rank].
fn times(m: &[f32], q: &[f32], p: &mut [f32], columns: usize, rank: usize) {
    for (row, p) in m.chunks_exact(columns).zip(p.chunks_exact_mut(rank)) {
        p.fill(0.0);
        for (number, q) in row.iter().zip(q.chunks_exact(rank)) {
            p.iter_mut().zip(q).for_each(|(p, q)| *p += number * q);
        }
    }
}

/// `q = mᵀ p`, of the same shapes.
fn transposed_times(m: &[f32], p: &[f32], q: &mut [f32], columns: usize, rank: usize) {
    q.fill(0.0);
    for (row, p) in m.chunks_exact(columns).zip(p.chunks_exact(rank)) {
        for (number, q) in row.iter().zip(q.chunks_exact_mut(rank)) {
            q.iter_mut().zip(p).for_each(|(q, p)| *q += number * p);
        }
    }
}

/// Each element of `p qᵀ`, with its place.
fn outer(p: &[f32], q: &[f32], columns: usize, rank: usize, mut take: impl FnMut(usize, f32)) {
    for (row, p) in p.chunks_exact(rank).enumerate() {
        for (column, q) in q.chunks_exact(rank).enumerate() {
            let product = p.iter().zip(q).map(|(p, q)| p * q).sum();
            take(row * columns + column, product);
        }
    }
}

/// Make the columns of p, [rows × rank], orthonormal (Gram and Schmidt, twice: once is not enough
/// where they nearly agree). What depends on the columns before becomes zeros.
fn orthonormalise(p: &mut [f32], rank: usize) {
    let dot = |p: &[f32], a: usize, b: usize| -> f64 {
        let products = p.chunks_exact(rank).map(|row| f64::from(row[a]) * f64::from(row[b]));
        products.sum()
    };
    for column in 0..rank {
        let before = dot(p, column, column).sqrt();
        for _ in 0..2 {
            for other in 0..column {
                let along = dot(p, other, column) as f32;
                p.chunks_exact_mut(rank).for_each(|row| row[column] -= along * row[other]);
            }
        }
        let length = dot(p, column, column).sqrt();
        let is_new = length > 1e-6 * before;
        let inverse = if is_new { length.recip() as f32 } else { 0.0 };
        // Of what is no number no zero is made: a loss that diverges must be seen.
        let is_kept = is_new || !length.is_finite();
        p.chunks_exact_mut(rank).for_each(|row| {
            row[column] = if is_kept { row[column] * inverse } else { 0.0 };
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use brigade_comm::Settings;

    const SHAPE: [usize; 2] = [12, 9];

    fn tensors() -> Vec<Tensor> {
        let tensor = |name: &str, shape: &[usize], start: usize| Tensor {
            name: name.to_string(),
            shape: shape.to_vec(),
            range: start..start + shape.iter().product::<usize>(),
        };
        vec![tensor("bias", &[5], 0), tensor("weight", &SHAPE, 5)]
    }

    /// Sums of so many steps, and what each rank left behind, of the same gradients in each step.
    fn run(rank: usize, steps: usize, gradient: fn(usize) -> Vec<f32>) -> [Vec<f32>; 3] {
        let settings = Settings { transport: "loopback".to_string(), ..Settings::default() };
        let comms = Communicator::local_world(2, &settings).unwrap();
        let run = |comm: Communicator| {
            let mut codec = Factors::new(&tensors(), rank);
            let (mut total, mut sum) = (vec![0.0; 113], vec![0.0; 113]);
            let mut waited = Duration::ZERO;
            for _ in 0..steps {
                sum.copy_from_slice(&gradient(comm.rank()));
                codec.start(&comm, &mut sum).unwrap();
                codec.go_on(&comm, &mut waited).unwrap();
                codec.finish(&mut sum, &mut waited).unwrap();
                total.iter_mut().zip(&sum).for_each(|(total, sum)| *total += *sum);
            }
            (total, codec.error)
        };
        let mut ends: Vec<_> = std::thread::scope(|scope| {
            let spawn = |comm| scope.spawn(move || run(comm));
            let threads: Vec<_> = comms.into_iter().map(spawn).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let ((second, left), (first, too)) = (ends.pop().unwrap(), ends.pop().unwrap());
        assert_eq!(first, second, "the same sums on both");
        [first, too, left]
    }

    fn full_rank(rank: usize) -> Vec<f32> {
        let mut random = fastrand::Rng::with_seed(rank as u64);
        (0..113).map(|_| random.f32() - 0.5).collect()
    }

    #[test]
    fn matrices_of_the_rank_come_out_as_they_are() {
        let gradient = |rank: usize| {
            let number = |at: usize| ((at / 9) as f32 - 3.0) * ((at % 9) as f32 + rank as f32);
            (0..5).map(|at| at as f32).chain((0..108).map(number)).collect::<Vec<_>>()
        };
        let [sum, ..] = run(2, 1, gradient);
        let want = gradient(0).into_iter().zip(gradient(1)).map(|(one, other)| one + other);
        for (got, want) in sum.iter().zip(want) {
            assert!((got - want).abs() < 1e-4 * want.abs().max(1.0), "{got}, not {want}");
        }
    }

    #[test]
    fn nothing_is_lost_and_late_by_little_only() {
        let steps = 100;
        let [total, first, second] = run(1, steps, full_rank);
        let mut late = 0.0f32;
        for at in 0..113 {
            let want = steps as f32 * (full_rank(0)[at] + full_rank(1)[at]);
            assert!((total[at] + first[at] + second[at] - want).abs() < 0.02, "number {at}");
            late = late.max((total[at] - want).abs() / steps as f32);
        }
        // A single direction a step without feedback would be off by the other eight for ever.
        assert!(late < 0.2, "{late} a step behind");
    }

    #[test]
    fn columns_become_orthonormal_even_if_they_nearly_agree() {
        let mut p: Vec<f32> = (0..40).map(|at| 1.0 + 1e-4 * ((at * 7 % 11) as f32)).collect();
        orthonormalise(&mut p, 4);
        for a in 0..4 {
            for b in 0..4 {
                let dot: f32 = p.chunks_exact(4).map(|row| row[a] * row[b]).sum();
                let want = if a == b { 1.0 } else { 0.0 };
                assert!((dot - want).abs() < 1e-5, "{a} and {b}: {dot}");
            }
        }
        let mut same = vec![2.0; 6];
        orthonormalise(&mut same, 2);
        assert!(same.chunks_exact(2).all(|row| row[1] == 0.0), "{same:?}");
    }
}
