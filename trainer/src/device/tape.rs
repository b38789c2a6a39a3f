//! Memory of a pass on a device: what forward keeps for backward, and the scratch that backward
//! needs. n: rows of the stream, m: of the inside of a block, both of what this rank has of batch ·
//! time; c = width, and i what the rank has of that inside; *inside* is f32 or bf16, the rest f32.

use super::grid::GridRooms;
use super::mixture::{MixtureRooms, MixtureScratch};
use super::passes::Passes;
use crate::error::Error;
use crate::kernels::cuda::{Device, Room, View};
use crate::layout::Config;
use crate::parallel::tensor;
use crate::tape::Keep;
use std::ops::Range;

/// Saved activations of one block.
pub(crate) struct BlockRooms {
    /// [n × c] inside, and [n × 2].
    pub(crate) ln1: View,
    pub(crate) stats1: View,
    /// [m × 3i] inside.
    pub(crate) qkv: View,
    /// [batch × heads × time × time] inside; or nothing, and [batch × heads × time].
    pub(crate) probs: View,
    pub(crate) lse: View,
    /// [m × i] inside.
    pub(crate) mixed: View,
    /// [n × c], the residual stream between attention and the perceptron.
    pub(crate) middle: View,
    /// [n × c] inside, and [n × 2].
    pub(crate) ln2: View,
    pub(crate) stats2: View,
    /// [m × 4i] inside, before and after GELU; nothing where there are experts.
    pub(crate) hidden: View,
    pub(crate) active: View,
    pub(crate) mixture: Option<MixtureRooms>,
}

/// What forward of some units that follow each other keeps of one pass.
pub(crate) struct DeviceTape {
    /// The first of the units.
    pub(crate) first: usize,
    /// `[n]` u32 each: tokens, the targets, and, where ranks divide rows, places in samples.
    pub(crate) text: View,
    /// Rows of it.
    lines: usize,
    /// What goes into each unit and what comes out of the last: [units + 1][n × c]. Nothing of the
    /// kind goes into the embedding or comes out of the head. Where what goes into blocks is kept
    /// elsewhere, three rooms serve all in turn.
    pub(crate) stream: Vec<View>,
    /// Of each block, or one for all.
    blocks: Vec<BlockRooms>,
    /// The unit whose activations are there, where one room serves all blocks.
    held: Option<usize>,
    /// Of the head, where that is one of the units: [n × c] inside, [n × 2].
    pub(crate) lnf: View,
    pub(crate) statsf: View,
    /// [n × vocab] inside, the gradient of the logits.
    pub(crate) dlogits: View,
}

/// What is there once, however many passes are on their way.
#[derive(Clone, Copy)]
pub(crate) struct Scratch {
    /// [n × vocab], where their gradient is not f32 and takes their place.
    pub(crate) logits: View,
    /// `[n]`, and their sum in f64.
    pub(crate) losses: View,
    pub(crate) loss: View,
    /// [n × c], of the residual stream, and the same inside: itself where that is f32 too.
    pub(crate) residual: View,
    pub(crate) dy: View,
    /// [n × c], of whatever fed a linear layer.
    pub(crate) narrow: View,
    /// [m × i] inside, of attention's output.
    pub(crate) dmixed: View,
    /// [m × 4i] inside, of the perceptron's inside, or top times that, of experts'; its first
    /// [m × 3i] serve queries, keys and values.
    pub(crate) wide: View,
    /// As long as `probs`, or as the scores of a chunk; and as `lse`.
    pub(crate) scores: View,
    pub(crate) delta: View,
    /// Of sums over rows.
    pub(crate) partials: View,
    /// [m × c], where ranks divide the stream's rows, but not those inside: what is to be the sum
    /// of all ranks, and, inside, what all have.
    pub(crate) sum: View,
    pub(crate) all: View,
    pub(crate) ring: Ring,
    pub(crate) grid: GridRooms,
    pub(crate) mixture: MixtureScratch,
    /// [m × 4i], where units are tiles and the inside is not f32: what goes into a layer adds up
    /// here, tile by tile.
    pub(crate) tiled: View,
}

/// What goes round where ranks divide tokens.
#[derive(Clone, Copy)]
pub(crate) struct Ring {
    /// [n × 2c] inside, what is here and what comes.
    pub(crate) kv: [View; 2],
    /// The same in f32, of their gradients.
    pub(crate) dkv: [View; 2],
    /// As long as `scores`.
    pub(crate) more_scores: View,
}

/// All of a pass through the whole model.
pub(crate) struct Rooms {
    pub(crate) tape: DeviceTape,
    pub(crate) scratch: Scratch,
}

impl Rooms {
    pub(crate) fn take(room: &mut Room, config: &Config, passes: Passes) -> Rooms {
        let units = 0..config.layers + 2;
        let tape = DeviceTape::take(room, config, units, passes);
        Rooms { tape, scratch: Scratch::take(room, config, true, passes) }
    }
}

impl DeviceTape {
    pub(crate) fn take(
        room: &mut Room,
        config: &Config,
        units: Range<usize>,
        passes: Passes,
    ) -> DeviceTape {
        let Config { width, layers, vocab, .. } = *config;
        let (narrow, rows, head) = (passes.inside.size(), passes.rows, layers + 1);
        let has = |len: usize, is_there: bool| if is_there { len } else { 0 };
        // Only the ends look at text.
        let lines = has(rows, units.contains(&0) || units.contains(&head));
        let text = room.take(lines * if passes.divides_rows() { 3 } else { 2 }, 4);
        let is_there = |unit: usize| (1..=head).contains(&unit);
        let turns = if passes.keep == Keep::LastInput { 3 } else { usize::MAX };
        let mut stream: Vec<View> = Vec::new();
        for (at, unit) in (units.start..=units.end).enumerate() {
            let is_again = is_there(unit) && at >= turns && is_there(unit - turns);
            let view = match is_again {
                true => stream[at - turns],
                false => room.take(has(rows * width, is_there(unit)), 4),
            };
            stream.push(view);
        }
        let blocks = units.clone().filter(|unit| (1..=layers).contains(unit)).count();
        let kept = if passes.keep == Keep::All { blocks } else { blocks.min(1) };
        let has_head = units.contains(&head);
        DeviceTape {
            first: units.start,
            text,
            lines,
            stream,
            blocks: (0..kept).map(|_| BlockRooms::take(room, config, passes)).collect(),
            held: (passes.keep != Keep::All).then_some(usize::MAX),
            lnf: room.take(has(rows * width, has_head), narrow),
            statsf: room.take(has(2 * rows, has_head), 4),
            dlogits: room.take(has(rows * vocab, has_head), narrow),
        }
    }

    /// What came in, and where each stands in its sample, if ranks divide rows.
    pub(crate) fn tokens(&self) -> [View; 2] {
        [self.text.first(self.lines), self.text.part(2 * self.lines..self.text.len())]
    }

    /// The byte after each.
    pub(crate) fn targets(&self) -> View {
        self.text.part(self.lines..2 * self.lines)
    }

    /// What goes into a unit.
    pub(crate) fn input(&self, unit: usize) -> View {
        self.stream[unit - self.first]
    }

    /// What comes out of it.
    pub(crate) fn output(&self, unit: usize) -> View {
        self.stream[unit + 1 - self.first]
    }

    /// Whether a block's forward must be computed again before its backward.
    pub(crate) fn has_lost(&self, unit: usize) -> bool {
        self.held.is_some_and(|held| held != unit)
    }

    /// The block that is computed now.
    pub(crate) fn hold(&mut self, unit: usize) {
        self.held = self.held.map(|_| unit);
    }

    /// A block's activations.
    pub(crate) fn block(&self, unit: usize) -> &BlockRooms {
        &self.blocks[self.place(unit)]
    }

    pub(super) fn block_mut(&mut self, unit: usize) -> &mut BlockRooms {
        let at = self.place(unit);
        &mut self.blocks[at]
    }

    fn place(&self, unit: usize) -> usize {
        if self.held.is_some() { 0 } else { unit - self.first.max(1) }
    }
}

impl BlockRooms {
    fn take(room: &mut Room, config: &Config, passes: Passes) -> BlockRooms {
        let (rows, width) = (passes.rows, config.width);
        let (narrow, [probs, lse]) = (passes.inside.size(), passes.attention());
        let inner = passes.inner_rows() * passes.heads.width;
        let wide = if config.experts > 0 { 0 } else { 4 * inner };
        BlockRooms {
            ln1: room.take(rows * width, narrow),
            stats1: room.take(2 * rows, 4),
            qkv: room.take(3 * inner, narrow),
            probs: room.take(probs, narrow),
            lse: room.take(lse, 4),
            mixed: room.take(inner, narrow),
            middle: room.take(rows * width, 4),
            ln2: room.take(rows * width, narrow),
            stats2: room.take(2 * rows, 4),
            hidden: room.take(wide, narrow),
            active: room.take(wide, narrow),
            mixture: MixtureRooms::take(room, config, passes),
        }
    }
}

impl Scratch {
    /// For passes that the head is one of the units of, or not.
    pub(crate) fn take(
        room: &mut Room,
        config: &Config,
        has_head: bool,
        passes: Passes,
    ) -> Scratch {
        let Config { width, vocab, .. } = *config;
        let (narrow, rows) = (passes.inside.size(), passes.rows);
        let ([_, lse], scores) = (passes.attention(), passes.scores());
        let inner = passes.inner_rows() * passes.heads.width;
        let residual = room.take(rows * width, 4);
        // Rows of experts that ranks divide are as many as gates say: their memory is elsewhere.
        let each = if config.experts > 0 && passes.split.is_none() { config.top } else { 1 };
        let is_in_rows = passes.split == Some(tensor::Split::Sequence);
        let all = if is_in_rows { passes.inner_rows() * width } else { 0 };
        let adds_up = passes.has_tiled_layers && narrow < 4;
        Scratch {
            logits: room.take(if has_head && narrow < 4 { rows * vocab } else { 0 }, 4),
            losses: room.take(if has_head { rows } else { 0 }, 4),
            loss: room.take(usize::from(has_head), 8),
            residual,
            // Where inside and outside are alike, a second copy would be the first.
            dy: if narrow == 4 { residual } else { room.take(rows * width, narrow) },
            narrow: room.take(rows * width, 4),
            dmixed: room.take(inner, narrow),
            wide: room.take(4 * inner * each, narrow),
            scores: room.take(scores, narrow),
            delta: room.take(lse, 4),
            partials: room.take(Device::partials(width, vocab), 4),
            sum: room.take(all, 4),
            all: room.take(all, narrow),
            ring: Ring::take(room, if passes.is_ring() { rows * 2 * width } else { 0 }, passes),
            grid: GridRooms::take(room, width, passes),
            mixture: MixtureScratch::take(room, config, passes),
            tiled: room.take(if adds_up { 4 * inner } else { 0 }, 4),
        }
    }

    /// Have in `dy` what products read of the stream's gradient.
    pub(crate) fn narrow_residual(&self, device: &Device) -> Result<(), Error> {
        if self.dy == self.residual {
            return Ok(());
        }
        device.to_inside(self.dy, self.residual)
    }
}

impl Ring {
    fn take(room: &mut Room, len: usize, passes: Passes) -> Ring {
        let narrow = passes.inside.size();
        let scores = if len > 0 { passes.scores() } else { 0 };
        Ring {
            kv: [0; 2].map(|_| room.take(len, narrow)),
            dkv: [0; 2].map(|_| room.take(len, 4)),
            more_scores: room.take(scores, narrow),
        }
    }
}
