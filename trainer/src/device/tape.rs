//! Memory of a pass on a device: what forward keeps for backward, and the scratch that backward
//! needs. n = batch · time rows, c = width; *inside* is f32 or bf16, the rest f32.

use crate::error::Error;
use crate::kernels::cuda::{Device, Inside, Room, View};
use crate::layout::Config;
use crate::tape::Keep;

/// How passes are made.
#[derive(Clone, Copy)]
pub(crate) struct Passes {
    /// At a time.
    pub(crate) samples: usize,
    /// Nothing of `Keep::LastInput` is known here.
    pub(crate) keep: Keep,
    pub(crate) inside: Inside,
    /// Whether attention goes tile by tile, and keeps a number a row in place of its scores.
    pub(crate) has_tiles: bool,
}

/// Saved activations of one block.
pub(crate) struct BlockRooms {
    /// [n × c] inside, and [n × 2].
    pub(crate) ln1: View,
    pub(crate) stats1: View,
    /// [n × 3c] inside.
    pub(crate) qkv: View,
    /// [batch × heads × time × time] inside; or nothing, and [batch × heads × time].
    pub(crate) probs: View,
    pub(crate) lse: View,
    /// [n × c] inside.
    pub(crate) mixed: View,
    /// [n × c], the residual stream between attention and the perceptron.
    pub(crate) middle: View,
    /// [n × c] inside, and [n × 2].
    pub(crate) ln2: View,
    pub(crate) stats2: View,
    /// [n × 4c] inside, before and after GELU.
    pub(crate) hidden: View,
    pub(crate) active: View,
}

/// All of a pass through the whole model.
pub(crate) struct Rooms {
    /// [2 × n] u32: tokens, and the targets.
    pub(crate) text: View,
    /// What goes into each unit: [units][n × c]. Nothing of the kind goes into the first.
    pub(crate) stream: Vec<View>,
    /// Of each block, or one for all.
    pub(crate) blocks: Vec<BlockRooms>,
    pub(crate) scratch: Scratch,
}

/// What is there once, whatever blocks there are.
#[derive(Clone, Copy)]
pub(crate) struct Scratch {
    /// [n × c] inside, [n × 2].
    pub(crate) lnf: View,
    pub(crate) statsf: View,
    /// [n × vocab], and its gradient inside, which takes its place where that is f32 too.
    pub(crate) logits: View,
    pub(crate) dlogits: View,
    /// `[n]`, and their sum in f64.
    pub(crate) losses: View,
    pub(crate) loss: View,
    /// [n × c], of the residual stream, and the same inside: itself where that is f32 too.
    pub(crate) residual: View,
    pub(crate) dy: View,
    /// [n × c], of whatever fed a linear layer.
    pub(crate) narrow: View,
    /// [n × c] inside, of attention's output.
    pub(crate) dmixed: View,
    /// [n × 4c] inside, of the perceptron's inside; its first [n × 3c] serve queries, keys and
    /// values.
    pub(crate) wide: View,
    /// As long as `probs`, and as `lse`.
    pub(crate) scores: View,
    pub(crate) delta: View,
    /// Of sums over rows.
    pub(crate) partials: View,
}

impl Rooms {
    pub(crate) fn take(room: &mut Room, config: &Config, passes: Passes) -> Rooms {
        let Passes { samples: batch, keep, inside, has_tiles } = passes;
        let Config { context: time, heads, width, layers, vocab, .. } = *config;
        let rows = batch * time;
        let narrow = inside.size();
        let lines = batch * heads * time;
        let (probs, lse) = if has_tiles { (0, lines) } else { (lines * time, 0) };
        let text = room.take(2 * rows, 4);
        let none = room.take(0, 4);
        let mut stream = vec![none];
        stream.extend((0..=layers).map(|_| room.take(rows * width, 4)));
        let kept = if keep == Keep::All { layers } else { layers.min(1) };
        let blocks = (0..kept).map(|_| BlockRooms {
            ln1: room.take(rows * width, narrow),
            stats1: room.take(2 * rows, 4),
            qkv: room.take(rows * 3 * width, narrow),
            probs: room.take(probs, narrow),
            lse: room.take(lse, 4),
            mixed: room.take(rows * width, narrow),
            middle: room.take(rows * width, 4),
            ln2: room.take(rows * width, narrow),
            stats2: room.take(2 * rows, 4),
            hidden: room.take(rows * 4 * width, narrow),
            active: room.take(rows * 4 * width, narrow),
        });
        let blocks = blocks.collect();
        let (logits, residual) = (room.take(rows * vocab, 4), room.take(rows * width, 4));
        // Where inside and outside are alike, a second copy would be the first.
        let mut twin = |of: View| if narrow == 4 { of } else { room.take(of.len(), narrow) };
        let (dlogits, dy) = (twin(logits), twin(residual));
        let scratch = Scratch {
            lnf: room.take(rows * width, narrow),
            statsf: room.take(2 * rows, 4),
            logits,
            dlogits,
            losses: room.take(rows, 4),
            loss: room.take(1, 8),
            residual,
            dy,
            narrow: room.take(rows * width, 4),
            dmixed: room.take(rows * width, narrow),
            wide: room.take(rows * 4 * width, narrow),
            scores: room.take(probs, narrow),
            delta: room.take(lse, 4),
            partials: room.take(Device::partials(width, vocab), 4),
        };
        Rooms { text, stream, blocks, scratch }
    }

    /// What came in.
    pub(crate) fn tokens(&self) -> View {
        self.text.first(self.text.len() / 2)
    }

    /// The byte after each.
    pub(crate) fn targets(&self) -> View {
        self.text.part(self.text.len() / 2..self.text.len())
    }
}

impl Scratch {
    /// Have in `dy` what products read of the stream's gradient.
    pub(crate) fn narrow_residual(&self, device: &Device) -> Result<(), Error> {
        if self.dy == self.residual {
            return Ok(());
        }
        device.to_inside(self.dy, self.residual)
    }
}
