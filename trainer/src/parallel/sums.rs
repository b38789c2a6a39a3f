//! Who adds up the gradients of all lanes in which run.
//!
//! | flag | who | travels as |
//! |---|---|---|
//! | nothing | `gradients` | f32 |
//! | `--reduce bf16`, `f16`, `int8`, `int4` | `narrow` | pieces to their owners, packed |
//! | `--compress` | `compress` | all-reduces of 16 bits, picks, or factors |
//! | `--strategy horovod` | `fusion` | all-reduces of what everyone has ready |

use super::compress::Compressed;
use super::cut::Cut;
use super::fusion::Fusion;
use super::gradients::{GradientSums, Reduction};
use super::lane_sums::LaneSums;
use super::narrow::NarrowSums;
use super::packing::Packing;
use super::{Peers, Sharing, Stage};
use crate::kernels::Kernels;
use crate::layout::{Layout, Tensor};
use std::ops::Range;

/// Whoever adds the gradients of `units`, cut like `cuts`, in a run with these choices.
pub(super) fn lane_sums<'a>(
    kernels: &'a dyn Kernels,
    peers: Peers<'a>,
    sharing: Sharing,
    layout: &Layout,
    units: Range<usize>,
    cuts: &[Cut],
) -> Box<dyn LaneSums + 'a> {
    let Sharing { stage, is_ordered, slots, travel } = sharing;
    if let Some(group) = peers.data {
        if let Some(way) = travel.compress {
            let units: Vec<_> = units.map(|unit| tensors_of(layout, unit)).collect();
            return Box::new(Compressed::new(kernels, group, way, slots, &units));
        }
        if travel.is_fused {
            let units: Vec<_> = units.map(|unit| tensors_of(layout, unit)).collect();
            return Box::new(Fusion::new(kernels, group, &travel, slots, &units));
        }
        if travel.reduce != Packing::F32 {
            let adds_up = stage == Stage::Zero1 && !is_ordered;
            return Box::new(NarrowSums::new(kernels, peers, travel.reduce, adds_up, slots, cuts));
        }
    }
    let reduction = match (stage, is_ordered) {
        (Stage::Ddp, false) => Reduction::Whole,
        (Stage::Ddp, true) => Reduction::OrderedWhole,
        (Stage::Zero1, false) => Reduction::Parts,
        (_, false) => Reduction::PartsEachSlot,
        (_, true) => Reduction::Ordered,
    };
    Box::new(GradientSums::new(kernels, peers, reduction, slots, cuts))
}

/// The tensors of a unit, or its parts of them, at their places in it.
fn tensors_of(layout: &Layout, unit: usize) -> Vec<Tensor> {
    let unit = layout.unit(unit);
    let part = |tensor: &Tensor| {
        let range = tensor.range.start.max(unit.start)..tensor.range.end.min(unit.end);
        let columns = tensor.shape.last().copied().unwrap_or(1).max(1);
        let is_whole = range.len().is_multiple_of(columns) && tensor.shape.len() > 1;
        let shape = if is_whole { vec![range.len() / columns, columns] } else { vec![range.len()] };
        let name = tensor.name.clone();
        (!range.is_empty()).then(|| Tensor {
            name,
            shape,
            range: range.start - unit.start..range.end - unit.start,
        })
    };
    layout.tensors().iter().filter_map(part).collect()
}
