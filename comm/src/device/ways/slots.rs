//! Calls through slots: kernels of all ranks run at the same time, nobody knows where another one's
//! buffers lie, and the host waits for nothing.

use brigade_cuda::Stream;

use super::super::Inner;
use super::super::kernels::{Loaded, launch};
use super::super::layout::{ByHops, Scaling};
use super::super::plans::slotted::Slotted;
use super::super::plans::{Plan, factor};
use crate::call::Call;
use crate::{Error, Op};

/// Elements that one thread scales.
const SCALED: usize = 16;
/// Blocks for that on each multiprocessor.
const SCALING_BLOCKS: u32 = 4;

impl Inner {
    /// Enqueue a call by its schedule. `room` is where a copy of the input goes, if the plan has
    /// one, and scratch behind it.
    ///
    /// # Safety
    ///
    /// As for [`DeviceGroup::enqueue`](crate::device::DeviceGroup::enqueue); the room is as long
    /// as the plan says.
    pub(super) unsafe fn pass_on(
        &self,
        (plan, slotted, loaded): (&Plan, &Slotted, &Loaded),
        call: &Call,
        (input, output, room): (u64, u64, u64),
        number: u32,
        stream: &Stream,
    ) -> Result<(), Error> {
        let failed = |error| self.give_up(call, &error, stream);
        let scale = |to: u64, from: u64, elems: usize| {
            let (factor, ranks) = (factor(&call.op), self.group.ranks);
            let op = u32::from(call.op.code());
            let scaling = Scaling { to, from, elems: elems as u64, factor, ranks, op };
            let most = self.context.device().multiprocessors * SCALING_BLOCKS;
            let blocks = elems.div_ceil(SCALED * loaded.threads as usize).clamp(1, most as usize);
            // SAFETY: the argument is the kernel's; both places have so many elements.
            unsafe { launch(&loaded.scale, stream, (blocks as u32, loaded.threads), &scaling) }
        };
        let copied = plan.copied_bytes();
        let input = match copied {
            0 => input,
            bytes if matches!(call.op, Op::PreMulSum(_)) && call.collective.folds() => {
                scale(room, input, bytes / call.dtype.size()).map_err(failed)?;
                room
            }
            bytes => {
                // SAFETY: the room is as long as the input, which the caller vouches for.
                unsafe { stream.copy(room, input, bytes) }.map_err(failed)?;
                room
            }
        };
        let scratch = room + copied.next_multiple_of(256) as u64;
        let argument = ByHops { input, output, scratch, call: number, ..*slotted.argument };
        let shape = (slotted.blocks, loaded.threads);
        // SAFETY: the argument is the kernel's; the caller vouches for the buffers, and inboxes
        // outlive the group.
        unsafe { launch(&loaded.linked, stream, shape, &argument) }.map_err(failed)?;
        if matches!(call.op, Op::Avg) && call.collective.folds() && plan.elems.1 > 0 {
            scale(output, output, plan.elems.1).map_err(failed)?;
        }
        Ok(())
    }
}
