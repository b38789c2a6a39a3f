//! Two programs and a function between them, linked into one plan: gradients are reduce-scattered,
//! each rank updates its shard of the weights, and the weights are gathered.
//!
//! Window by window: while the function works on one, the gradients of the next are on their way.
//! The order is the same on all ranks, so wires agree on what comes after what.

use brigade_schedule::Program;

use super::assemble::{Draft, assemble};
use super::link::{LinkError, Linker, are_many};
use super::places::Places;
use super::{Channel, Kind, Plan, Space};
use crate::call::Call;
use crate::header::Header;

/// One half of a fused call.
#[derive(Clone, Copy)]
pub(crate) struct Phase<'a> {
    pub(crate) program: &'a Program,
    pub(crate) call: &'a Call,
}

/// Link a reduce-scatter of gradients in place (`Space::Input`), an update, and an all-gather of
/// weights in place (`Space::Output`). Both have the same blocks. `window_bytes` is how much of the
/// gradients is worked on at a time.
pub(crate) fn link_update(
    scatter: Phase<'_>,
    gather: Phase<'_>,
    header: Header,
    window_bytes: u64,
) -> Result<Plan, LinkError> {
    let elem_bytes = [scatter, gather].map(|phase| phase.call.dtype.size() as u64);
    let Phase { program, call } = scatter;
    let mut window_bytes = window_bytes;
    let mut from = Places::of_phase(call, program, window_bytes, Space::Input, 0);
    while are_many(&from, program) {
        window_bytes = window_bytes.saturating_mul(2);
        from = Places::of_phase(call, program, window_bytes, Space::Input, 0);
    }
    // Whatever is longer than all memory is not cut.
    let same_elems = (window_bytes / elem_bytes[0]).saturating_mul(elem_bytes[1]);
    let Phase { program, call } = gather;
    let scratch_at = from.scratch_bytes();
    let to = Places::of_phase(call, program, same_elems, Space::Output, scratch_at);
    assert_eq!(from.windows(), to.windows(), "the same blocks in the same windows");
    let mut gradients = Linker::new(scatter.program, &from, true);
    let mut weights = Linker::new(program, &to, true);
    let (mut steps, mut first) = (Vec::new(), 0);
    let windows = from.windows();
    for window in 0..=windows {
        if window < windows {
            gradients.begin(window);
            gradients.moves(&mut steps, window)?;
        }
        let Some(before) = window.checked_sub(1) else { continue };
        weights.begin(before);
        let (at, rank, mut needs) = ((steps.len(), before), program.rank, Vec::new());
        let (source, bytes) = gradients.whole_block(at, rank, false, &mut needs);
        let (target, _) = weights.whole_block(at, rank, true, &mut needs);
        let elems = bytes / elem_bytes[0];
        if elems > 0 {
            steps.push(Draft {
                channel: Channel::Within,
                kind: Kind::Update { first, elems },
                source,
                target,
                bytes,
                needs,
                number: scatter.program.moves.len(),
                chunk: rank,
            });
            first += elems;
        }
        weights.moves(&mut steps, before)?;
    }
    let scratch_bytes = scratch_at + to.scratch_bytes();
    let moves = scatter.program.moves.len() + 1 + program.moves.len();
    Ok(assemble(steps, header, elem_bytes[0] as usize, scratch_bytes, moves as u32))
}
