//! Calls and messages through slots: kernels of all ranks run at the same time, nobody knows where
//! another one's buffers lie, and the host waits for nothing.

use brigade_cuda::Stream;
use brigade_schedule::Algorithm;

use super::kernels::Loaded;
use super::layout::{ByHops, HOPS, Hop, Parcel, Parcels, RANKS, SLOT_BYTES, Scaling};
use super::link::{Linked, link};
use super::lower::signature;
use super::messages::{A_MESSAGE, DeviceMessage};
use super::plans::{Facts, Plan, factor};
use super::ways::launch;
use super::{Inner, State};
use crate::call::Call;
use crate::communicator::SMALL_BYTES;
use crate::select::{Selector, code};
use crate::{Error, Op, Settings};

/// Elements that one thread scales.
const SCALED: usize = 16;
/// Blocks for that on each multiprocessor.
const SCALING_BLOCKS: u32 = 4;

/// A call by its schedule, but for addresses.
pub(super) struct Slotted {
    argument: Box<ByHops>,
    pub(super) algorithm: Algorithm,
    pub(super) signature: u32,
    /// Blocks, each a lane.
    blocks: u32,
    /// Scratch of all lanes.
    scratch_bytes: usize,
}

impl Slotted {
    /// The call by the algorithm that the host would take, or another one that kernels can carry
    /// out; none if there is none, on all ranks alike.
    pub(super) fn new(call: &Call, facts: &Facts<'_>) -> Result<Option<Self>, Error> {
        let Facts { rank, ranks, inboxes, settings, .. } = *facts;
        let selector = Selector { small_bytes: SMALL_BYTES };
        // Rules of `brigade tune` were measured on memory of the host.
        let unruled = Settings { tuning: None, ..settings.clone() };
        let choice = selector.choose(call, ranks, &unruled)?;
        // Who wants results in rank order has no use for another algorithm.
        let others = match settings.ordered && call.collective.folds() {
            true => Vec::new(),
            false => Algorithm::all_for(call.collective, ranks),
        };
        let lanes = inboxes.lanes;
        let linked = link(call, (ranks, rank), lanes, [choice].into_iter().chain(others));
        let Some(linked) = linked else { return Ok(None) };
        let Linked { algorithm, pieces, window, windows, scratch_bytes, .. } = linked;
        let mut hop = [Hop::NONE; HOPS];
        hop[..linked.hops.len()].copy_from_slice(&linked.hops);
        // Averages and factors are a kernel of their own.
        let op = match &call.op {
            Op::Avg | Op::PreMulSum(_) => &Op::Sum,
            other => other,
        };
        // Ranks that chose apart are in different calls.
        let signature = signature(call).rotate_left(7) ^ code(algorithm) | 1;
        let argument = Box::new(ByHops {
            group: *facts.group,
            inbox: inboxes.at,
            input: 0,
            output: 0,
            scratch: 0,
            scratch_bytes,
            window,
            windows,
            lanes,
            pieces,
            elem_bytes: call.dtype.size() as u32,
            signature,
            op: u32::from(op.code()),
            hops: linked.hops.len() as u32,
            call: 0,
            spare: 0,
            hop,
        });
        let blocks = windows.min(u64::from(lanes)) as u32;
        let scratch_bytes = scratch_bytes as usize * blocks as usize;
        Ok(Some(Self { argument, algorithm, signature, blocks, scratch_bytes }))
    }

    /// Bytes of memory of the group's that a call needs beside a copy of its input.
    pub(super) fn scratch_bytes(&self) -> usize {
        self.scratch_bytes
    }
}

impl Inner {
    /// Enqueue a call by its schedule. `room` is where a copy of the input goes, if the plan has
    /// one, and scratch behind it.
    ///
    /// # Safety
    ///
    /// As for [`super::DeviceGroup::enqueue`]; the room is as long as the plan says.
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

    /// Enqueue messages of which no two are alike, through slots.
    ///
    /// # Safety
    ///
    /// As for [`super::DeviceGroup::messages`].
    pub(super) unsafe fn post_parcels(
        &self,
        state: &mut State,
        messages: &[&DeviceMessage],
        stream: &Stream,
    ) -> Result<(), Error> {
        let lanes = self.inboxes.lanes;
        let (mut parcel, mut blocks) = ([Parcel::default(); 2 * RANKS], 1);
        for (parcel, message) in parcel.iter_mut().zip(messages) {
            let bytes = message.bytes;
            let lanes = bytes.div_ceil(SLOT_BYTES).clamp(1, lanes as usize) as u32;
            blocks = blocks.max(lanes);
            let signature = self.learn_message(message.dtype);
            *parcel = Parcel {
                sends: u32::from(message.sends),
                peer: message.peer as u32,
                at: message.address,
                bytes: bytes as u64,
                signature,
                lanes,
            };
        }
        let (group, inbox, count) = (self.group, self.inboxes.at, messages.len() as u32);
        let argument = Parcels { group, inbox, lanes, count, call: state.posted, spare: 0, parcel };
        let loaded = state.kernels.moving();
        let kernels = loaded.messages.as_ref().expect("beside the kernels that fold nothing");
        // SAFETY: the argument is the kernel's; the caller vouches for the memory.
        unsafe { launch(&kernels.parcels, stream, (blocks, loaded.threads), &argument) }
            .map_err(|error| self.give_up(&A_MESSAGE, &error, stream))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use brigade_schedule::Collective;

    use super::*;
    use crate::device::inbox::Inboxes;
    use crate::device::layout::Group;
    use crate::device::setup::Way;
    use crate::{Dtype, Tuning};

    fn algorithm(call: &Call, ranks: u32, settings: &Settings) -> Option<Algorithm> {
        let group = Group { rank: 0, ranks: 0, desk: 0, board: [0; RANKS] };
        let mut inboxes = Inboxes::default();
        inboxes.lanes = 8;
        let facts = Facts {
            rank: 0,
            ranks,
            way: Way::Linked,
            group: &group,
            packets: &[0; RANKS],
            blocks: 8,
            is_one_device: false,
            inboxes: &inboxes,
            settings,
        };
        let slotted = Slotted::new(call, &facts).expect("a call that makes sense");
        slotted.map(|slotted| slotted.algorithm)
    }

    /// More than some twenty ranks have no room for the hops of that, and another one would fold in
    /// another order.
    #[test]
    fn what_is_ordered_goes_in_order_or_by_no_schedule() {
        let settings = Settings { ordered: true, ..Settings::default() };
        let call = Call::new(Collective::AllReduce, Dtype::F32, Op::Sum, 100_000);
        for ranks in 2..=RANKS as u32 {
            let algorithm = algorithm(&call, ranks, &settings);
            assert!(matches!(algorithm, None | Some(Algorithm::Ordered)), "{algorithm:?}");
            assert!(ranks > 16 || algorithm.is_some(), "{ranks} ranks");
        }
    }

    #[test]
    fn rules_of_the_host_are_not_for_devices() {
        let call = Call::new(Collective::AllReduce, Dtype::F32, Op::Sum, 100_000);
        let plain = algorithm(&call, 4, &Settings::default());
        assert!(plain.is_some() && plain != Some(Algorithm::Direct), "{plain:?}");
        let tuning = Some(Arc::new(Tuning::of("all-reduce 4 * direct")));
        let ruled = Settings { tuning, ..Settings::default() };
        assert_eq!(algorithm(&call, 4, &ruled), plain);
        let wish = Settings { algorithm: Some(Algorithm::Direct), ..Settings::default() };
        assert_eq!(algorithm(&call, 4, &wish), Some(Algorithm::Direct));
    }
}
