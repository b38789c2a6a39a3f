//! A call by its schedule, lowered once for kernels that pass it on through slots.

use brigade_schedule::Algorithm;

use super::super::layout::{ByHops, HOPS, Hop};
use super::facts::Facts;
use super::link::{Linked, link};
use super::lower::signature;
use crate::call::Call;
use crate::codes::code;
use crate::communicator::SMALL_BYTES;
use crate::select::Selector;
use crate::{Error, Op, Settings};

/// A call by its schedule, but for addresses.
pub(in crate::device) struct Slotted {
    pub(in crate::device) argument: Box<ByHops>,
    pub(in crate::device) algorithm: Algorithm,
    pub(super) signature: u32,
    /// Blocks, each a lane.
    pub(in crate::device) blocks: u32,
    /// Scratch of all lanes.
    scratch_bytes: usize,
}

impl Slotted {
    /// The call by the algorithm that the host would take, or another one that kernels can carry
    /// out; none if there is none, on all ranks alike.
    pub(super) fn new(call: &Call, facts: &Facts<'_>) -> Result<Option<Self>, Error> {
        let Facts { rank, ranks, inboxes, settings, .. } = *facts;
        let selector = Selector { small_bytes: SMALL_BYTES, nodes: None };
        // Rules of `brigade tune` were measured on memory of the host.
        let unruled = Settings { tuning: None, ..settings.clone() };
        let choice = selector.choose(call, ranks, &unruled)?.algorithm;
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use brigade_schedule::Collective;

    use super::*;
    use crate::device::layout::{Group, RANKS};
    use crate::device::setup::inbox::Inboxes;
    use crate::device::way::Way;
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
