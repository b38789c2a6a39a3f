//! How ranks agree on what all of them have ready.

use super::super::formula::call_bytes;
use crate::error::Error;
use brigade_comm::{Call, Communicator, Dtype, Op, Owned};
use brigade_schedule::Collective;
use std::ops::Range;
use std::time::{Duration, Instant};

/// How long nothing new may become ready at the end of a step.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two cycles without anything new.
const PAUSE: Duration = Duration::from_millis(1);
/// No tensor, in a list of some.
const NONE: u32 = u32::MAX;

/// The cycles of one rank.
pub(super) struct Cycles<'a> {
    group: &'a Communicator,
    /// Of the tensors.
    names: Vec<String>,
    /// Units of backward to a cycle, and in a step.
    every: usize,
    units: usize,
    /// Units that were given in this step.
    given: usize,
    /// Of each tensor: whether it is ready here, and whether everywhere.
    is_given: Vec<bool>,
    is_agreed: Vec<bool>,
    /// Tensors that are not ready everywhere.
    open: usize,
    /// Tensors in the order in which rank 0 found them ready: all of them, after the first step.
    order: Vec<usize>,
    is_first: bool,
    has_changed: bool,
    offered: Option<Owned<u64>>,
    pub(super) patience: Duration,
    /// Since when nothing new has become ready, at the end of a step.
    quiet: Option<Instant>,
    waited: Duration,
}

impl<'a> Cycles<'a> {
    /// Of tensors with these names, in so many units, `every` so many of which there is one.
    pub(super) fn new(
        group: &'a Communicator,
        names: Vec<String>,
        every: usize,
        units: usize,
    ) -> Cycles<'a> {
        let tensors = names.len();
        Cycles {
            is_given: vec![false; tensors],
            is_agreed: vec![false; tensors],
            open: tensors,
            order: Vec::with_capacity(tensors),
            is_first: true,
            has_changed: false,
            offered: None,
            patience: PATIENCE,
            quiet: None,
            waited: Duration::ZERO,
            given: 0,
            group,
            names,
            every,
            units,
        }
    }

    /// Nothing is ready: a step begins.
    pub(super) fn begin(&mut self) {
        self.is_given.fill(false);
        self.is_agreed.fill(false);
        (self.open, self.given) = (self.names.len(), 0);
    }

    /// The tensors of one more unit are ready here. Those that are ready everywhere, if it was time
    /// to ask.
    pub(super) fn give(&mut self, tensors: Range<usize>) -> Result<Vec<usize>, Error> {
        self.is_given[tensors].fill(true);
        self.given += 1;
        match self.given.is_multiple_of(self.every) {
            true => self.cycle(),
            false => Ok(Vec::new()),
        }
    }

    /// After the last unit: what else is ready everywhere by now, or none if that was all.
    ///
    /// Errors: a tensor that was never given to some rank, by name.
    pub(super) fn finish(&mut self) -> Result<Option<Vec<usize>>, Error> {
        if self.open == 0 {
            self.quiet = None;
            // From now on the order of tensors is known.
            self.has_changed |= std::mem::take(&mut self.is_first);
            return Ok(None);
        }
        let quiet = *self.quiet.get_or_insert_with(Instant::now);
        let agreed = self.cycle()?;
        if !agreed.is_empty() {
            self.quiet = None;
        } else if quiet.elapsed() > PAUSE {
            std::thread::sleep(PAUSE);
        }
        Ok(Some(agreed))
    }

    /// Whether a step sends something else than was told last.
    pub(super) fn has_changed(&mut self) -> bool {
        std::mem::take(&mut self.has_changed)
    }

    /// How long anybody had to wait since this was asked last.
    pub(super) fn take_waited(&mut self) -> Duration {
        std::mem::take(&mut self.waited)
    }

    /// What becomes ready in each cycle if all ranks go through units, of these tensors, in
    /// reverse.
    pub(super) fn in_order(&self, units: impl Iterator<Item = Range<usize>>) -> Vec<Vec<usize>> {
        let units: Vec<_> = units.collect();
        let reversed: Vec<_> = units.into_iter().rev().collect();
        let cycle = |units: &[Range<usize>]| {
            let mut tensors: Vec<usize> = units.iter().cloned().flatten().collect();
            // As each rank lists them.
            tensors.sort_unstable();
            tensors
        };
        reversed.chunks(self.every).map(cycle).collect()
    }

    /// Bytes that the cycles of a step make this rank send.
    pub(super) fn formula_bytes(&self) -> Result<u64, Error> {
        let list = self.names.len() + 1;
        let cycle = match self.is_first {
            true => {
                let asks = Call::moving(Collective::Gather { root: 0 }, Dtype::U32, list);
                let answers = Call::moving(Collective::Broadcast { root: 0 }, Dtype::U32, list);
                call_bytes(self.group, &asks)? + call_bytes(self.group, &answers)?
            }
            false => call_bytes(self.group, &self.and())?,
        };
        Ok(cycle * self.units.div_ceil(self.every) as u64)
    }

    /// What is ready everywhere leaves its bit.
    fn and(&self) -> Call {
        Call::new(Collective::AllReduce, Dtype::U64, Op::Band, self.words())
    }

    /// A bit for each tensor, and one for patience.
    fn words(&self) -> usize {
        self.names.len() / 64 + 1
    }

    fn cycle(&mut self) -> Result<Vec<usize>, Error> {
        if self.is_first {
            return self.ask();
        }
        let mut agreed = Vec::new();
        if let Some(call) = self.offered.take() {
            let from = Instant::now();
            let (_, bits) = call.wait()?;
            self.waited += from.elapsed();
            if !has_bit(&bits, self.names.len()) {
                return Err(self.missing()?);
            }
            for &tensor in self.order.iter().filter(|tensor| has_bit(&bits, **tensor)) {
                agreed.push(tensor);
            }
            self.agree(&agreed);
        }
        if self.open > 0 {
            let bits = self.bits(!self.is_out_of_patience());
            self.offered = Some(self.group.start_owned_in_place(self.and(), bits)?);
        }
        Ok(agreed)
    }

    /// Tell rank 0 what is ready here, and hear from it what is ready everywhere. Each list ends
    /// with whether patience is.
    fn ask(&mut self) -> Result<Vec<usize>, Error> {
        let (tensors, ranks) = (self.names.len(), self.group.size());
        let is_open = |tensor: &usize| self.is_given[*tensor] && !self.is_agreed[*tensor];
        let mut list: Vec<u32> = (0..tensors).filter(is_open).map(|tensor| tensor as u32).collect();
        list.resize(tensors, NONE);
        list.push(u32::from(self.is_out_of_patience()));
        let mut all = vec![0; if self.group.rank() == 0 { ranks * list.len() } else { 0 }];
        let from = Instant::now();
        self.group.gather(&list, &mut all, 0)?;
        if self.group.rank() == 0 {
            list = answer(&all, tensors, ranks);
        }
        self.group.broadcast(&mut list, 0)?;
        self.waited += from.elapsed();
        if list[tensors] != 0 {
            return Err(self.missing()?);
        }
        let agreed = list[..tensors].iter().take_while(|tensor| **tensor != NONE);
        let agreed: Vec<usize> = agreed.map(|tensor| *tensor as usize).collect();
        if let Some(tensor) = agreed.iter().find(|tensor| **tensor >= tensors) {
            let problem = format!("rank 0 names tensor {tensor} of {tensors}");
            return Err(Error::setting("strategy", problem));
        }
        self.order.extend(&agreed);
        self.agree(&agreed);
        Ok(agreed)
    }

    fn agree(&mut self, tensors: &[usize]) {
        for tensor in tensors {
            let was = std::mem::replace(&mut self.is_agreed[*tensor], true);
            self.open -= usize::from(!was);
        }
    }

    fn is_out_of_patience(&self) -> bool {
        self.quiet.is_some_and(|quiet| quiet.elapsed() > self.patience)
    }

    /// What is ready here and not yet everywhere, and one bit more.
    fn bits(&self, last: bool) -> Vec<u64> {
        let mut bits = vec![0; self.words()];
        let tensors = self.is_given.iter().zip(&self.is_agreed).map(|(is, was)| *is && !*was);
        for (at, _) in tensors.chain([last]).enumerate().filter(|(_, is_set)| *is_set) {
            bits[at / 64] |= 1 << (at % 64);
        }
        bits
    }

    /// Somebody has lost patience: find out what is missing where. Collective.
    fn missing(&self) -> Result<Error, Error> {
        let mine = self.bits(false);
        let mut all = vec![0; self.group.size() * mine.len()];
        self.group.all_gather(&mine, &mut all)?;
        let open = (0..self.names.len()).filter(|tensor| !self.is_agreed[*tensor]);
        let ranks = all.chunks_exact(mine.len()).enumerate();
        let lacks = |tensor: usize| {
            ranks.clone().find(|(_, bits)| !has_bit(bits, tensor)).map(|(rank, _)| (rank, tensor))
        };
        let problem = match open.filter_map(lacks).next() {
            Some((rank, tensor)) => {
                let (name, patience) = (&self.names[tensor], self.patience);
                format!("horovod: rank {rank} has not given {name} after {patience:?}")
            }
            None => "horovod: what was missing came too late".to_string(),
        };
        Ok(Error::setting("strategy", problem))
    }
}

/// Rank 0's answer to the lists of all ranks: what is on all of them, in the order in which it
/// stands there, and whether anybody has lost patience.
fn answer(lists: &[u32], tensors: usize, ranks: usize) -> Vec<u32> {
    let mut counts = vec![0; tensors];
    let mut answer = Vec::with_capacity(tensors + 1);
    let mut is_over = 0;
    for list in lists.chunks_exact(tensors + 1) {
        is_over |= list[tensors];
        for &tensor in list[..tensors].iter().take_while(|tensor| **tensor != NONE) {
            let Some(count) = counts.get_mut(tensor as usize) else { continue };
            *count += 1;
            if *count == ranks {
                answer.push(tensor);
            }
        }
    }
    answer.resize(tensors, NONE);
    answer.push(is_over);
    answer
}

fn has_bit(bits: &[u64], at: usize) -> bool {
    bits[at / 64] >> (at % 64) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::super::{Fusion, LaneSums, Tensor};
    use super::*;
    use crate::kernels::Cpu;
    use crate::parallel::Travel;
    use brigade_comm::Settings;

    const UNITS: usize = 70;

    /// Units of one or two tensors each, and in all more than a word has bits.
    fn units() -> Vec<Vec<Tensor>> {
        let tensor = |unit: usize, start: usize, len: usize| Tensor {
            name: format!("unit {unit} from {start}"),
            shape: vec![len],
            range: start..start + len,
        };
        let unit = |unit: usize| match unit % 3 {
            0 => vec![tensor(unit, 0, 1 + unit)],
            _ => vec![tensor(unit, 0, 5), tensor(unit, 5, unit)],
        };
        (0..UNITS).map(unit).collect()
    }

    fn in_world<T: Send>(ranks: usize, run: impl Fn(Communicator) -> T + Sync) -> Vec<T> {
        let settings = Settings { transport: "loopback".to_string(), ..Settings::default() };
        let comms = Communicator::local_world(ranks, &settings).unwrap();
        std::thread::scope(|scope| {
            let run = &run;
            let spawn = |comm| scope.spawn(move || run(comm));
            let threads: Vec<_> = comms.into_iter().map(spawn).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    fn shuffled(seed: u64) -> Vec<usize> {
        let mut order: Vec<usize> = (0..UNITS).collect();
        fastrand::Rng::with_seed(seed).shuffle(&mut order);
        order
    }

    #[test]
    fn any_order_of_readiness_on_any_rank_comes_to_the_same_sums() {
        for seed in 0..8 {
            let travel = Travel {
                fusion: Some([4, 200, 1 << 20][seed % 3]),
                cycle: Some([1, 3, 1000][seed % 3]),
                ..Travel::default()
            };
            in_world(3, |comm| {
                let units = units();
                let mut sums = Fusion::new(&Cpu, &comm, &travel, 1, &units);
                for step in 0..3 {
                    let seed = (seed * 100 + step * 10 + comm.rank()) as u64;
                    for unit in shuffled(seed) {
                        let value = (unit + step * (comm.rank() + 1)) as f32;
                        sums.open(unit, 0).unwrap().fill(value);
                        sums.close(unit, 0).unwrap();
                    }
                    (0..UNITS).for_each(|unit| sums.complete(unit).unwrap());
                    for unit in (0..UNITS).chain(0..UNITS) {
                        let want = (3 * unit + 6 * step) as f32;
                        let got = sums.sum(unit).unwrap();
                        assert!(got.iter().all(|got| *got == want), "unit {unit}, seed {seed}");
                    }
                }
            });
        }
    }

    #[test]
    fn a_tensor_that_a_rank_never_gives_is_named_on_every_rank() {
        for step in 0..2 {
            let ends = in_world(3, |comm| {
                let units = units();
                let mut sums = Fusion::new(&Cpu, &comm, &Travel::default(), 1, &units);
                sums.cycles.patience = Duration::from_millis(50);
                for now in 0..=step {
                    for unit in shuffled(comm.rank() as u64) {
                        let is_missing = now == step && comm.rank() == 1 && unit == 40;
                        sums.open(unit, 0).unwrap().fill(1.0);
                        if !is_missing {
                            sums.close(unit, 0).unwrap();
                        }
                    }
                    if let Err(error) = sums.complete(0) {
                        return error.to_string();
                    }
                    (0..UNITS).for_each(|unit| assert!(!sums.sum(unit).unwrap().is_empty()));
                }
                String::new()
            });
            for end in ends {
                assert!(end.contains("rank 1 has not given unit 40 from 0"), "{step}: {end:?}");
            }
        }
    }
}
