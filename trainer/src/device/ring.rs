//! Attention on devices whose ranks divide tokens: keys and values go round while those that are
//! here are seen, as `parallel/tensor/ring.rs` has it.

use super::gpt::DeviceGpt;
use super::tape::{BlockRooms, Ring, Scratch};
use crate::error::Error;
use crate::kernels::cuda::{Attending, View};
use crate::parallel::tensor::Circle;

impl DeviceGpt<'_> {
    /// Where this rank stands, if keys and values go round.
    pub(super) fn circle(&self) -> Option<Circle> {
        self.division.as_ref().and_then(|division| division.circle())
    }

    pub(super) fn attention_in_ring(
        &mut self,
        circle: Circle,
        [mixed, lse, qkv]: [View; 3],
    ) -> Result<(), Error> {
        let (heads, width) = (self.heads, self.heads.width);
        let Scratch { narrow, scores, ring: Ring { kv, .. }, .. } = self.scratch;
        let [mut here, mut next] = kv;
        // What is there once all have been seen is put right step by step, in f32.
        let y = if mixed.size() == 4 { mixed } else { narrow };
        self.device.take_columns(here, qkv, [width, 2 * width, 3 * width])?;
        for step in 0..circle.ranks {
            let has_next = step + 1 < circle.ranks;
            if has_next {
                self.pass_on(here, next)?;
            }
            for chunk in &circle.chunks(circle.owner(step), heads.time) {
                // At home each row meets its sample's first tokens that are here first.
                let is_first = step == 0 && chunk.columns == 0;
                let of = Attending { qkv, kv: here, chunk, heads };
                self.device.attend([y, lse], scores, of, is_first)?;
            }
            if has_next {
                self.arrive()?;
                std::mem::swap(&mut here, &mut next);
            }
        }
        if y == mixed { Ok(()) } else { self.device.to_inside(mixed, y) }
    }

    /// Writes `dqkv`, from the gradient of what was made of it.
    pub(super) fn attention_in_ring_backward(
        &mut self,
        circle: Circle,
        dqkv: View,
        t: &BlockRooms,
    ) -> Result<(), Error> {
        let (heads, width) = (self.heads, self.heads.width);
        let Scratch { narrow: dq, dmixed, delta, scores, ring, .. } = self.scratch;
        let Ring { kv: [mut kv, mut next_kv], dkv: [mut dkv, mut next_dkv], more_scores } = ring;
        let d = &self.device;
        d.chunk_deltas(delta, dmixed, t.mixed, heads)?;
        d.clear(dq)?;
        d.clear(dkv)?;
        d.take_columns(kv, t.qkv, [width, 2 * width, 3 * width])?;
        for step in 0..circle.ranks {
            let has_next = step + 1 < circle.ranks;
            if has_next {
                self.pass_on(kv, next_kv)?;
            }
            for chunk in &circle.chunks(circle.owner(step), heads.time) {
                let of = Attending { qkv: t.qkv, kv, chunk, heads };
                let from = [dmixed, t.lse, delta];
                self.device.attend_backward([dq, dkv], [scores, more_scores], from, of)?;
            }
            if has_next {
                self.arrive()?;
                std::mem::swap(&mut kv, &mut next_kv);
            }
            // Their gradients go along, and with the last step home.
            self.pass_on(dkv, next_dkv)?;
            self.arrive()?;
            std::mem::swap(&mut dkv, &mut next_dkv);
        }
        self.device.put_columns(dqkv, dq, [0, width, 3 * width])?;
        self.device.put_columns(dqkv, dkv, [width, 2 * width, 3 * width])
    }

    fn pass_on(&mut self, from: View, to: View) -> Result<(), Error> {
        self.division.as_mut().expect("they are a ring").pass_on(from, to)
    }

    fn arrive(&mut self) -> Result<(), Error> {
        self.division.as_mut().expect("they are a ring").arrive()
    }
}
