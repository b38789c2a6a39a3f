//! Memory of a pass on a device: what forward keeps for backward, and the scratch that backward
//! needs. n = batch · time rows, c = width, and i what this rank has of that inside of a block, c
//! by those who divide it; *inside* is f32 or bf16, the rest f32.

use crate::error::Error;
use crate::kernels::cuda::{Device, Inside, Room, View};
use crate::layout::Config;
use crate::tape::Keep;
use std::ops::Range;

/// How passes are made.
#[derive(Clone, Copy)]
pub(crate) struct Passes {
    /// At a time.
    pub(crate) samples: usize,
    /// Nothing of `Keep::LastInput` is known here.
    pub(crate) keep: Keep,
    pub(crate) inside: Inside,
    /// Who divide heads and hidden numbers among them.
    pub(crate) ranks: usize,
    /// Whether attention goes tile by tile, and keeps a number a row in place of its scores.
    pub(crate) has_tiles: bool,
}

impl Passes {
    /// Numbers that attention keeps of a block: probabilities, or one of each of their rows.
    fn attention(&self, config: &Config) -> [usize; 2] {
        let lines = self.samples * config.heads / self.ranks * config.context;
        if self.has_tiles { [0, lines] } else { [lines * config.context, 0] }
    }
}

/// Saved activations of one block.
pub(crate) struct BlockRooms {
    /// [n × c] inside, and [n × 2].
    pub(crate) ln1: View,
    pub(crate) stats1: View,
    /// [n × 3i] inside.
    pub(crate) qkv: View,
    /// [batch × heads × time × time] inside; or nothing, and [batch × heads × time].
    pub(crate) probs: View,
    pub(crate) lse: View,
    /// [n × i] inside.
    pub(crate) mixed: View,
    /// [n × c], the residual stream between attention and the perceptron.
    pub(crate) middle: View,
    /// [n × c] inside, and [n × 2].
    pub(crate) ln2: View,
    pub(crate) stats2: View,
    /// [n × 4i] inside, before and after GELU.
    pub(crate) hidden: View,
    pub(crate) active: View,
}

/// What forward of some units that follow each other keeps of one pass.
pub(crate) struct DeviceTape {
    /// The first of the units.
    pub(crate) first: usize,
    /// [2 × n] u32: tokens, and the targets.
    pub(crate) text: View,
    /// What goes into each unit and what comes out of the last: [units + 1][n × c]. Nothing of the
    /// kind goes into the embedding or comes out of the head.
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
    /// [n × i] inside, of attention's output.
    pub(crate) dmixed: View,
    /// [n × 4i] inside, of the perceptron's inside; its first [n × 3i] serve queries, keys and
    /// values.
    pub(crate) wide: View,
    /// As long as `probs`, and as `lse`.
    pub(crate) scores: View,
    pub(crate) delta: View,
    /// Of sums over rows.
    pub(crate) partials: View,
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
        let Config { width, layers, vocab, context, .. } = *config;
        let (narrow, rows, head) = (passes.inside.size(), passes.samples * context, layers + 1);
        let has = |len: usize, is_there: bool| if is_there { len } else { 0 };
        // Only the ends look at text.
        let text = room.take(has(2 * rows, units.contains(&0) || units.contains(&head)), 4);
        let stream = (units.start..=units.end)
            .map(|unit| room.take(has(rows * width, (1..=head).contains(&unit)), 4))
            .collect();
        let blocks = units.clone().filter(|unit| (1..=layers).contains(unit)).count();
        let kept = if passes.keep == Keep::All { blocks } else { blocks.min(1) };
        let has_head = units.contains(&head);
        DeviceTape {
            first: units.start,
            text,
            stream,
            blocks: (0..kept).map(|_| BlockRooms::take(room, config, passes)).collect(),
            held: (passes.keep != Keep::All).then_some(usize::MAX),
            lnf: room.take(has(rows * width, has_head), narrow),
            statsf: room.take(has(2 * rows, has_head), 4),
            dlogits: room.take(has(rows * vocab, has_head), narrow),
        }
    }

    /// What came in.
    pub(crate) fn tokens(&self) -> View {
        self.text.first(self.text.len() / 2)
    }

    /// The byte after each.
    pub(crate) fn targets(&self) -> View {
        self.text.part(self.text.len() / 2..self.text.len())
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
        let (rows, width) = (passes.samples * config.context, config.width);
        let (narrow, [probs, lse]) = (passes.inside.size(), passes.attention(config));
        let inner = width / passes.ranks;
        BlockRooms {
            ln1: room.take(rows * width, narrow),
            stats1: room.take(2 * rows, 4),
            qkv: room.take(rows * 3 * inner, narrow),
            probs: room.take(probs, narrow),
            lse: room.take(lse, 4),
            mixed: room.take(rows * inner, narrow),
            middle: room.take(rows * width, 4),
            ln2: room.take(rows * width, narrow),
            stats2: room.take(2 * rows, 4),
            hidden: room.take(rows * 4 * inner, narrow),
            active: room.take(rows * 4 * inner, narrow),
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
        let Config { width, vocab, context, .. } = *config;
        let (narrow, rows) = (passes.inside.size(), passes.samples * context);
        let [probs, lse] = passes.attention(config);
        let (inner, residual) = (width / passes.ranks, room.take(rows * width, 4));
        Scratch {
            logits: room.take(if has_head && narrow < 4 { rows * vocab } else { 0 }, 4),
            losses: room.take(if has_head { rows } else { 0 }, 4),
            loss: room.take(usize::from(has_head), 8),
            residual,
            // Where inside and outside are alike, a second copy would be the first.
            dy: if narrow == 4 { residual } else { room.take(rows * width, narrow) },
            narrow: room.take(rows * width, 4),
            dmixed: room.take(rows * inner, narrow),
            wide: room.take(rows * 4 * inner, narrow),
            scores: room.take(probs, narrow),
            delta: room.take(lse, 4),
            partials: room.take(Device::partials(width, vocab), 4),
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
