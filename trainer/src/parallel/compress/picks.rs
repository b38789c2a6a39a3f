//! The largest numbers of a gradient and their places (Aji and Heafield 2017). Of those that are
//! equally large the first are taken. Ranks pick for themselves; what they picked is added in rank
//! order.

use super::{Codec, wait};
use crate::error::Error;
use brigade_comm::{Call, Communicator, Dtype, Owned};
use brigade_schedule::Collective;
use std::time::Duration;

pub(super) struct Picks {
    /// What was not picked so far: `[elements]`.
    left: Vec<f32>,
    /// How many are picked.
    count: usize,
    /// Places and then numbers, of this rank and of all: [2 × count], [ranks × 2 × count].
    mine: Vec<u32>,
    all: Vec<u32>,
    call: Option<Owned<u32>>,
}

impl Picks {
    /// Of `len` numbers this part is picked, rounded up.
    pub(super) fn new(len: usize, part: f64, ranks: usize) -> Picks {
        let count = ((len as f64 * part).ceil() as usize).min(len);
        let (mine, all) = (vec![0; 2 * count], vec![0; ranks * 2 * count]);
        Picks { left: vec![0.0; len], count, mine, all, call: None }
    }
}

impl Codec for Picks {
    fn start(&mut self, group: &Communicator, sum: &mut [f32]) -> Result<(), Error> {
        for (left, sum) in self.left.iter_mut().zip(&mut *sum) {
            *left += *sum;
            *sum = left.abs();
        }
        let count = self.count;
        let (mut mine, all) = (std::mem::take(&mut self.mine), std::mem::take(&mut self.all));
        if count > 0 {
            let (_, least, _) = sum.select_nth_unstable_by(count - 1, |a, b| b.total_cmp(a));
            let (least, mut taken) = (*least, 0);
            let (places, numbers) = mine.split_at_mut(count);
            let mut pick = |at: usize, left: &mut f32| {
                places[taken] = at as u32;
                numbers[taken] = std::mem::take(left).to_bits();
                taken += 1;
                taken
            };
            let is_larger = |left: &f32| left.abs().total_cmp(&least).is_gt();
            for (at, left) in self.left.iter_mut().enumerate().filter(|(_, left)| is_larger(left)) {
                pick(at, left);
            }
            // If the least is 0, a place that was emptied may be picked again: with nothing in it.
            let is_least = |left: &f32| left.abs().total_cmp(&least).is_eq();
            for (at, left) in self.left.iter_mut().enumerate().filter(|(_, left)| is_least(left)) {
                if pick(at, left) == count {
                    break;
                }
            }
        }
        let call = self.calls().swap_remove(0);
        self.call = Some(group.start_owned(call, mine, all)?);
        Ok(())
    }

    fn finish(&mut self, sum: &mut [f32], waited: &mut Duration) -> Result<(), Error> {
        (self.mine, self.all) = wait(self.call.take(), waited)?;
        sum.fill(0.0);
        for picked in self.all.chunks_exact(2 * self.count.max(1)) {
            let (places, numbers) = picked.split_at(self.count);
            for (place, number) in places.iter().zip(numbers) {
                let Some(sum) = sum.get_mut(*place as usize) else {
                    let problem = format!("a rank picked number {place} of {}", self.left.len());
                    return Err(Error::setting("compress", problem));
                };
                *sum += f32::from_bits(*number);
            }
        }
        Ok(())
    }

    fn calls(&self) -> Vec<Call> {
        vec![Call::moving(Collective::AllGather, Dtype::U32, 2 * self.count)]
    }

    fn bytes(&self) -> u64 {
        4 * (self.left.len() + self.mine.len() + self.all.len()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use brigade_comm::Settings;

    #[test]
    fn what_is_left_behind_arrives_later() {
        let gradient = |rank: usize| {
            let mut random = fastrand::Rng::with_seed(rank as u64);
            (0..100).map(|_| random.f32() - 0.5).collect::<Vec<f32>>()
        };
        let steps = 60;
        let run = |comm: Communicator| {
            let mut codec = Picks::new(100, 0.05, 2);
            let (mut total, mut sum) = (vec![0.0f64; 100], vec![0.0; 100]);
            let mut waited = Duration::ZERO;
            for _ in 0..steps {
                sum.copy_from_slice(&gradient(comm.rank()));
                codec.start(&comm, &mut sum).unwrap();
                codec.finish(&mut sum, &mut waited).unwrap();
                assert!(sum.iter().filter(|x| **x != 0.0).count() <= 10, "five of each rank");
                total.iter_mut().zip(&sum).for_each(|(total, sum)| *total += f64::from(*sum));
            }
            (total, codec.left)
        };
        let comms = Communicator::local_world(
            2,
            &Settings { transport: "loopback".to_string(), ..Settings::default() },
        );
        let mut comms = comms.unwrap();
        let (second, first) = (comms.pop().unwrap(), comms.pop().unwrap());
        let (first, second) = std::thread::scope(|scope| {
            let second = scope.spawn(|| run(second));
            (run(first), second.join().unwrap())
        });
        assert_eq!(first.0, second.0, "the same sums on both");
        for at in 0..100 {
            let want = f64::from(steps as f32) * f64::from(gradient(0)[at] + gradient(1)[at]);
            let left = f64::from(first.1[at] + second.1[at]);
            assert!((first.0[at] + left - want).abs() < 1e-3, "nothing is lost of {at}");
            // Without feedback, whatever is never among the five largest would be 0 for ever.
            let late = (first.0[at] - want).abs() / f64::from(steps);
            assert!(late < 0.35, "number {at} is {late} a step behind");
        }
        assert!(first.0.iter().all(|total| *total != 0.0), "all have arrived by now");
    }
}
