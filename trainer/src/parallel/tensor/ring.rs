//! Ring self-attention for long sequences (Li et al. 2021; causal and online: Liu et al. 2023).
//!
//! Every rank has some tokens of each sample, and keys and values go round. A sample is cut into 2N
//! chunks of which rank r has the r-th from the front and the r-th from the back, so that causality
//! leaves everybody with equally much: three products of chunks at home, two anywhere else.
//!
//! Parameters are replicated; each rank's rows give a part of every gradient. Cost of a block, with
//! n·c elements in an activation of all ranks: 2 (N − 1)/N · n·c in forward, which moves keys and
//! values; (4N − 2)/N · n·c in backward, where their gradients go along and then home; and one
//! all-reduce of a unit's gradients. What is held of scores is one chunk, whatever the length.

use super::{Attended, Division, Group, Split};
use crate::error::Error;
use crate::extent::Extent;
use crate::kernels::{Chunk, Heads, Kernels};
use crate::layout::{Config, Layout};
use brigade_comm::{Call, Counts, Dtype, Owned};
use brigade_schedule::Collective;
use std::cell::RefCell;
use std::sync::Arc;

/// Ranks in a ring, each with two chunks of every sample.
pub struct Ring {
    group: Group,
    rooms: RefCell<Rooms>,
}

/// What is here of another rank's, and what is on its way: [rows × 2·width] each; and scores.
#[derive(Default)]
struct Rooms {
    kv: Vec<f32>,
    next_kv: Vec<f32>,
    dkv: Vec<f32>,
    next_dkv: Vec<f32>,
    scores: Vec<f32>,
}

impl Ring {
    /// Among these ranks, for passes over so many samples.
    ///
    /// Errors: `Setting` if the context does not have two equal chunks for each rank.
    pub fn new(group: Group, config: &Config, batch: usize) -> Result<Ring, Error> {
        Ring::fits(group.size(), config)?;
        let chunks = 2 * group.size();
        let room = || vec![0.0; batch * config.context / group.size() * 2 * config.width];
        let chunk = config.context / chunks;
        let rooms = Rooms {
            kv: room(),
            next_kv: room(),
            dkv: room(),
            next_dkv: room(),
            scores: vec![0.0; batch * chunk * chunk],
        };
        Ok(Ring { group, rooms: RefCell::new(rooms) })
    }

    /// Refuse a context that so many ranks cannot divide.
    pub(super) fn fits(ranks: usize, config: &Config) -> Result<(), Error> {
        let chunks = 2 * ranks;
        if !config.context.is_multiple_of(chunks) {
            let problem = format!("{chunks} chunks cannot share {} evenly", config.context);
            return Err(Error::setting("context", problem));
        }
        Ok(())
    }

    fn circle(&self) -> Circle {
        Circle { rank: self.group.rank(), ranks: self.group.size() }
    }

    /// One step round: this goes to the next rank, the last one's comes.
    fn pass_on(&self, mine: Vec<f32>, room: Vec<f32>) -> Result<Owned<f32>, Error> {
        let call = self.circle().step(mine.len(), Dtype::F32);
        self.group.timed(|comm| comm.start_owned(call, mine, room))
    }
}

/// Where a rank stands in a ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Circle {
    pub(crate) rank: usize,
    pub(crate) ranks: usize,
}

impl Circle {
    /// Which chunks of rank `owner` this rank's chunks may see. time: rows of a sample here.
    pub(crate) fn chunks(self, owner: usize, time: usize) -> Vec<Chunk> {
        let len = time / 2;
        let chunk = |rows, columns, is_causal| Chunk {
            rows: rows * len,
            columns: columns * len,
            len,
            is_causal,
        };
        match owner.cmp(&self.rank) {
            std::cmp::Ordering::Equal => {
                vec![chunk(0, 0, true), chunk(1, 0, false), chunk(1, 1, true)]
            }
            std::cmp::Ordering::Less => vec![chunk(0, 0, false), chunk(1, 0, false)],
            std::cmp::Ordering::Greater => vec![chunk(1, 0, false), chunk(1, 1, false)],
        }
    }

    /// Whose keys and values are here after so many steps.
    pub(crate) fn owner(self, step: usize) -> usize {
        (self.rank + self.ranks - step) % self.ranks
    }

    /// One step round as a call in which ranks have so much for their neighbour, and nothing for
    /// others.
    pub(crate) fn step(self, elems: usize, dtype: Dtype) -> Call {
        let Circle { rank, ranks } = self;
        let only = |peer: usize| -> Arc<[usize]> {
            (0..ranks).map(|it| if it == peer { elems } else { 0 }).collect()
        };
        let (to, from) = (only((rank + 1) % ranks), only((rank + ranks - 1) % ranks));
        let counts = Counts::PerPair { to, from };
        Call { counts, ..Call::moving(Collective::AllToAll, dtype, 0) }
    }
}

impl Division for Ring {
    fn groups(&self) -> &[Group] {
        std::slice::from_ref(&self.group)
    }

    fn split(&self) -> Option<Split> {
        Some(Split::Ring)
    }

    fn extent(&self, config: &Config, batch: usize, time: usize) -> Extent {
        let (rank, ranks) = (self.group.rank(), self.group.size());
        let chunk = time / (2 * ranks);
        let of_sample = |sample: usize| {
            [rank, 2 * ranks - 1 - rank].into_iter().flat_map(move |at| {
                let first = sample * time + at * chunk;
                (first..first + chunk).map(|row| row as u32)
            })
        };
        let heads = Heads { time: 2 * chunk, heads: config.heads, width: config.width };
        Extent {
            rows: (0..batch).flat_map(of_sample).collect(),
            samples: batch,
            heads,
            probs: batch * heads.heads * heads.time,
            scores: batch * 2 * chunk * chunk,
        }
    }

    fn attention(
        &self,
        k: &dyn Kernels,
        y: &mut [f32],
        lse: &mut [f32],
        qkv: &[f32],
        heads: Heads,
    ) -> Result<(), Error> {
        let (circle, rooms) = (self.circle(), &mut *self.rooms.borrow_mut());
        y.fill(0.0);
        lse.fill(f32::NEG_INFINITY);
        copy_kv(&mut rooms.kv, qkv, heads.width);
        for step in 0..circle.ranks {
            let chunks = circle.chunks(circle.owner(step), heads.time);
            // What is here is read while a copy of it travels on.
            let call = match step + 1 < circle.ranks {
                true => {
                    let next = std::mem::take(&mut rooms.next_kv);
                    rooms.dkv.copy_from_slice(&rooms.kv);
                    Some(self.pass_on(std::mem::take(&mut rooms.dkv), next)?)
                }
                false => None,
            };
            k.attend((&mut *y, &mut *lse), &mut rooms.scores, (qkv, &rooms.kv), (&chunks, heads));
            if let Some(call) = call {
                let (sent, came) = self.group.timed(|_| call.wait())?;
                rooms.dkv = sent;
                rooms.next_kv = std::mem::replace(&mut rooms.kv, came);
            }
        }
        Ok(())
    }

    fn attention_backward(
        &self,
        k: &dyn Kernels,
        dqkv: &mut [f32],
        scratch: &mut [f32],
        dy: &[f32],
        from: Attended<'_>,
    ) -> Result<(), Error> {
        let Attended { qkv, y, kept, heads } = from;
        let (circle, rooms) = (self.circle(), &mut *self.rooms.borrow_mut());
        dqkv.fill(0.0);
        rooms.dkv.fill(0.0);
        copy_kv(&mut rooms.kv, qkv, heads.width);
        for step in 0..circle.ranks {
            let chunks = circle.chunks(circle.owner(step), heads.time);
            let Rooms { kv, dkv, .. } = rooms;
            k.attend_backward(
                (&mut *dqkv, dkv),
                scratch,
                (dy, y, kept),
                (qkv, kv),
                (&chunks, heads),
            );
            let Rooms { kv, next_kv, dkv, next_dkv, .. } = rooms;
            for (mine, next, is_needed) in
                [(kv, next_kv, step + 1 < circle.ranks), (dkv, next_dkv, true)]
            {
                if is_needed {
                    let call = self.pass_on(std::mem::take(mine), std::mem::take(next))?;
                    (*next, *mine) = self.group.timed(|_| call.wait())?;
                }
            }
        }
        let width = heads.width;
        for (dqkv, dkv) in dqkv.chunks_exact_mut(3 * width).zip(rooms.dkv.chunks_exact(2 * width)) {
            dqkv[width..].copy_from_slice(dkv);
        }
        Ok(())
    }

    fn complete(&self, grads: &mut [f32], _block: Option<&[usize; 12]>) -> Result<(), Error> {
        self.group.all_reduce(grads)
    }

    fn sum_loss(&self, mine: f64) -> Result<f64, Error> {
        self.group.sum(mine)
    }

    fn room_bytes(&self) -> u64 {
        let Rooms { kv, next_kv, dkv, next_dkv, scores } = &*self.rooms.borrow();
        let rooms = [kv, next_kv, dkv, next_dkv, scores];
        4 * rooms.iter().map(|room| room.len() as u64).sum::<u64>()
    }

    fn formula_bytes(
        &self,
        layout: &Layout,
        unit: usize,
        tokens: usize,
    ) -> Result<[u64; 2], Error> {
        let (ranks, is_head) = (self.group.size(), unit + 1 == layout.units());
        let kv = 4 * (tokens / ranks * 2 * layout.config().width) as u64;
        let grads = self.group.bytes(Collective::AllReduce, layout.unit(unit).len())?;
        match unit == 0 || is_head {
            true => Ok([if is_head { self.group.sum_bytes()? } else { 0 }, grads]),
            false => {
                let steps = ranks as u64 - 1;
                Ok([steps * kv, (2 * steps + 1) * kv + grads])
            }
        }
    }
}

/// Keys and values of [rows × 3·width] queries, keys and values.
fn copy_kv(kv: &mut [f32], qkv: &[f32], width: usize) {
    for (kv, qkv) in kv.chunks_exact_mut(2 * width).zip(qkv.chunks_exact(3 * width)) {
        kv.copy_from_slice(&qkv[width..]);
    }
}
