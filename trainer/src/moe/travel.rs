//! Rows on their way to the ranks of their experts, and back.

use super::Mixture;
use crate::error::Error;
use crate::parallel::tensor::Group;
use std::ops::Range;

/// Who gets which rows. A rank's own rows are sent in the order of their experts, so each rank gets
/// its part in one piece; where they arrive they are put together expert by expert.
#[derive(Default)]
pub struct Travel {
    /// Of each choice of this rank's tokens, its place in the order of sending.
    places: Vec<usize>,
    /// The choice at each place.
    choices: Vec<usize>,
    /// Rows to each expert, and to each rank and from each.
    counts: Vec<usize>,
    to: Vec<usize>,
    from: Vec<usize>,
    /// Where rows that come, rank by rank, go expert by expert: place of each.
    arrivals: Vec<usize>,
    /// Rows of each of this rank's experts from each rank, [local experts × ranks].
    loads: Vec<usize>,
    ranks: usize,
}

impl Travel {
    /// From the experts that this rank's tokens chose. Collective: ranks tell each other how many
    /// rows will come.
    pub(crate) fn plan(
        &mut self,
        group: Option<&Group>,
        mixture: &Mixture,
        chosen: &[usize],
    ) -> Result<(), Error> {
        let (ranks, local) = (mixture.ranks, mixture.local());
        self.choices = (0..chosen.len()).collect();
        self.choices.sort_by_key(|&choice| chosen[choice]);
        self.places = vec![0; chosen.len()];
        let mut counts = vec![0u64; mixture.experts];
        for (place, &choice) in self.choices.iter().enumerate() {
            self.places[choice] = place;
            counts[chosen[choice]] += 1;
        }
        // [ranks × local experts]: what each rank has for each of mine.
        let mut coming = counts.clone();
        if let Some(group) = group {
            group.timed(|comm| comm.all_to_all(&counts, &mut coming))?;
        }
        let per_rank = |counts: &[u64]| -> Vec<usize> {
            counts.chunks_exact(local).map(|counts| counts.iter().sum::<u64>() as usize).collect()
        };
        (self.to, self.from) = (per_rank(&counts), per_rank(&coming));
        self.counts = counts.iter().map(|count| *count as usize).collect();
        let count = |rank: usize, expert: usize| coming[rank * local + expert] as usize;
        let loads = (0..local).flat_map(|e| (0..ranks).map(move |rank| (rank, e)));
        self.loads = loads.map(|(rank, e)| count(rank, e)).collect();
        self.ranks = ranks;
        // An expert's rows stand behind those of the experts before it, in the order of ranks.
        let mut next: Vec<usize> = self.parts(false).map(|(_, rows)| rows.start).collect();
        self.arrivals.clear();
        self.arrivals.reserve_exact(self.loads.iter().sum());
        for rank in 0..ranks {
            for (expert, next) in next.iter_mut().enumerate() {
                self.arrivals.extend(*next..*next + count(rank, expert));
                *next += count(rank, expert);
            }
        }
        Ok(())
    }

    /// The rows of tokens, [tokens × c], in the order of sending.
    pub(super) fn collect(&self, x: &[f32], c: usize, top: usize) -> Vec<f32> {
        let mut rows = Vec::with_capacity(self.choices.len() * c);
        self.choices.iter().for_each(|choice| rows.extend_from_slice(&x[choice / top * c..][..c]));
        rows
    }

    /// To the experts: what comes is in their order.
    pub(crate) fn out(
        &self,
        group: Option<&Group>,
        sent: Vec<f32>,
        c: usize,
    ) -> Result<Vec<f32>, Error> {
        let came = exchange(group, sent, (&self.to, &self.from), c)?;
        let mut rows = vec![0.0; came.len()];
        for (row, &place) in came.chunks_exact(c).zip(&self.arrivals) {
            rows[place * c..][..c].copy_from_slice(row);
        }
        Ok(rows)
    }

    /// Back from the experts: what comes is in the order of sending.
    pub(crate) fn back(
        &self,
        group: Option<&Group>,
        rows: Vec<f32>,
        c: usize,
    ) -> Result<Vec<f32>, Error> {
        let mut sent = Vec::with_capacity(rows.len());
        self.arrivals.iter().for_each(|place| sent.extend_from_slice(&rows[place * c..][..c]));
        drop(rows);
        exchange(group, sent, (&self.from, &self.to), c)
    }

    /// The choice at each place in the order of sending.
    pub(crate) fn choices(&self) -> &[usize] {
        &self.choices
    }

    /// Where each choice's row is in the order of sending.
    pub(crate) fn places(&self) -> &[usize] {
        &self.places
    }

    /// This rank's experts and their rows; `is_apart`: and of them the rows of each rank.
    pub(crate) fn parts(&self, is_apart: bool) -> impl Iterator<Item = (usize, Range<usize>)> {
        let (ranks, together) = (self.ranks, if is_apart { 1 } else { self.ranks });
        self.loads.chunks_exact(together).enumerate().scan(0, move |end, (at, loads)| {
            let start = *end;
            *end += loads.iter().sum::<usize>();
            Some((at * together / ranks, start..*end))
        })
    }

    /// Rows that ranks get of this one, in the order of sending: whose, and which. Each expert's
    /// are apart, and none are of those that get nothing.
    pub(crate) fn sent(&self) -> impl Iterator<Item = (usize, Range<usize>)> {
        let local = self.counts.len() / self.ranks;
        let all = self.counts.iter().scan(0, |end, count| {
            *end += count;
            Some(*end - count..*end)
        });
        let all = all.enumerate().map(move |(expert, rows)| (expert / local, rows));
        all.filter(|(_, rows)| !rows.is_empty())
    }

    /// Rows that came, expert by expert: of which rank, and which. In the order in which that rank
    /// has `sent` them.
    pub(crate) fn came(&self) -> impl Iterator<Item = (usize, Range<usize>)> {
        let all = self.parts(true).enumerate().map(|(at, (_, rows))| (at % self.ranks, rows));
        all.filter(|(_, rows)| !rows.is_empty())
    }

    /// Bytes of the lists that are as long as rows.
    pub(super) fn bytes(&self) -> u64 {
        let Travel { places, choices, arrivals, .. } = self;
        let lists = places.capacity() + choices.capacity() + arrivals.capacity();
        (size_of::<usize>() * lists) as u64
    }

    /// Rows that came to this rank's experts.
    pub(crate) fn rows(&self) -> usize {
        self.arrivals.len()
    }

    pub(super) fn loads(&self) -> Vec<usize> {
        self.loads.chunks(self.ranks.max(1)).map(|loads| loads.iter().sum()).collect()
    }

    /// Bytes of rows to others, there and back.
    pub(crate) fn row_bytes(&self, mixture: &Mixture, rank: usize) -> u64 {
        let others = |rows: &[usize]| rows.iter().sum::<usize>() - rows[rank];
        (4 * mixture.width * (others(&self.to) + others(&self.from))) as u64
    }

    /// Bytes by which ranks tell each other how many there are.
    pub(crate) fn count_bytes(mixture: &Mixture) -> u64 {
        (8 * mixture.local() * (mixture.ranks - 1)) as u64
    }
}

/// Rows to each rank, for rows from each.
fn exchange(
    group: Option<&Group>,
    sent: Vec<f32>,
    (to, from): (&[usize], &[usize]),
    c: usize,
) -> Result<Vec<f32>, Error> {
    let Some(group) = group else { return Ok(sent) };
    let elems = |rows: &[usize]| rows.iter().map(|rows| rows * c).collect::<Vec<_>>();
    let (to, from) = (elems(to), elems(from));
    let mut came = vec![0.0; from.iter().sum()];
    group.timed(|comm| comm.all_to_all_v(&sent, &to, &mut came, &from))?;
    Ok(came)
}
