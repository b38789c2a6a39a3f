//! Where each chunk lies: in the caller's input, in the caller's output, or in scratch.

use brigade_schedule::Program;

use super::seen::Seen;
use super::{Place, Space};
use crate::call::Call;

/// The memory map of one call on one rank, for one window of it at a time.
///
/// Long blocks are worked through in windows, so that what is staged stays in cache and scratch
/// stays small. A window is a range of elements, the same range within every block.
pub(crate) struct Places<'a> {
    call: &'a Call,
    program: &'a Program,
    elem_bytes: u64,
    /// The memories of input and output.
    spaces: [Space; 2],
    seen: Seen,
    /// For each block that is seen: elements, offset in the input, offset in the output, in
    /// elements.
    blocks: Vec<Block>,
    /// The longest block.
    longest: u64,
    /// Elements of each block in one window.
    window: u64,
    /// Byte offset in scratch of each chunk seen that lives there, and bytes of one scratch area.
    scratch: Vec<Option<u64>>,
    /// Where the first area begins.
    scratch_at: u64,
    area_bytes: u64,
}

#[derive(Clone, Copy, Default)]
struct Block {
    elems: u64,
    input: Option<u64>,
    output: Option<u64>,
}

/// A chunk whatever the window: for who works out by itself where a window has it.
#[derive(Clone, Copy)]
pub(crate) struct Seat {
    /// Elements of its block, and which piece of that it is.
    pub(crate) elems: u64,
    pub(crate) piece: u32,
    /// Where the block begins in the caller's input and output, in elements.
    pub(crate) input: Option<u64>,
    pub(crate) output: Option<u64>,
    /// Where the chunk lies in scratch, in bytes, if that is its home.
    pub(crate) scratch: Option<u64>,
}

/// One chunk in one window.
#[derive(Clone, Copy)]
pub(crate) struct ChunkPlace {
    /// Bytes of the chunk in this window.
    pub(crate) bytes: u64,
    /// Where this rank's own contribution lies before the call, if it brings one.
    pub(crate) input: Option<Place>,
    /// Where the chunk is kept once it has been written.
    pub(crate) home: Place,
    /// Whether the caller takes it out.
    pub(crate) is_output: bool,
}

impl<'a> Places<'a> {
    /// The map of a call; `window_bytes` bounds what all blocks together have in one window.
    pub(crate) fn new(
        call: &'a Call,
        program: &'a Program,
        window_bytes: u64,
        in_place: bool,
    ) -> Self {
        let spaces = [Space::Input, Space::Output];
        let mut places = Self::within(call, program, window_bytes, in_place, spaces);
        places.lay_out_scratch(0);
        places
    }

    /// The map of a call out of place, with so many elements of each block in a window.
    pub(crate) fn of_window(call: &'a Call, program: &'a Program, window: u64) -> Self {
        let spaces = [Space::Input, Space::Output];
        let mut places = Self { window, ..Self::within(call, program, 0, false, spaces) };
        places.lay_out_scratch(0);
        places
    }

    /// The map of a call in place, whose one buffer is `space`, and whose scratch begins at
    /// `scratch_at`.
    pub(crate) fn of_phase(
        call: &'a Call,
        program: &'a Program,
        window_bytes: u64,
        space: Space,
        scratch_at: u64,
    ) -> Self {
        let mut places = Self::within(call, program, window_bytes, true, [space; 2]);
        places.lay_out_scratch(scratch_at);
        places
    }

    fn within(
        call: &'a Call,
        program: &'a Program,
        window_bytes: u64,
        in_place: bool,
        spaces: [Space; 2],
    ) -> Self {
        let (ranks, rank) = (program.ranks, program.rank);
        let count = call.collective.blocks(ranks);
        let seen = Seen::of(program);
        let elem_bytes = call.dtype.size() as u64;
        let (mut blocks, mut input, mut output) = (Vec::new(), 0, 0);
        for &block in seen.blocks() {
            let elems = call.block_elems(ranks, rank, block) as u64;
            let has_input = call.collective.has_input(ranks, rank, block);
            let has_output = call.collective.has_output(ranks, rank, block);
            blocks.push(Block {
                elems,
                input: has_input.then_some(input),
                output: has_output.then_some(output),
            });
            input += if has_input { elems } else { 0 };
            output += if has_output { elems } else { 0 };
        }
        if in_place {
            share_one_buffer(&mut blocks, rank as usize);
        }
        let longest = blocks.iter().map(|block| block.elems).max().unwrap_or(0);
        // Blocks that a rank sees in all-to-all: its row and its column, not the whole square.
        let own = u64::from(count.min(2 * ranks)).max(1);
        let window = (window_bytes / elem_bytes / own).max(64).next_multiple_of(64);
        Self {
            call,
            program,
            elem_bytes,
            spaces,
            seen,
            blocks,
            longest,
            window: window.min(longest.max(1)),
            scratch: Vec::new(),
            scratch_at: 0,
            area_bytes: 0,
        }
    }

    /// How many windows the call is worked through in; at least one, even if it is empty.
    pub(crate) fn windows(&self) -> u64 {
        self.longest.div_ceil(self.window).max(1)
    }

    /// Scratch of the whole call: two areas, used by windows in turn.
    pub(crate) fn scratch_bytes(&self) -> u64 {
        self.area_bytes * self.windows().min(2)
    }

    /// The chunks that the rank has to do with.
    pub(super) fn seen(&self) -> &Seen {
        &self.seen
    }

    /// Where `chunk` lies in `window`.
    pub(crate) fn chunk(&self, chunk: u32, window: u64) -> ChunkPlace {
        let chunks = self.program.chunks();
        if chunk >= chunks {
            let shape = self.program.scratch[(chunk - chunks) as usize];
            let (_, bytes, _) = self.piece(shape, window);
            let home = self.scratch_place(chunk, window);
            return ChunkPlace { bytes, input: None, home, is_output: false };
        }
        let (from, bytes, block) = self.piece(chunk, window);
        let at = |offset: u64| (offset + from) * self.elem_bytes;
        let [input_space, output_space] = self.spaces;
        let input = block.input.map(|offset| Place { space: input_space, at: at(offset) });
        let home = match block.output {
            Some(offset) => Place { space: output_space, at: at(offset) },
            None => self.scratch_place(chunk, window),
        };
        ChunkPlace { bytes, input, home, is_output: block.output.is_some() }
    }

    /// Where `chunk` lies in all windows.
    pub(crate) fn seat(&self, chunk: u32) -> Seat {
        let shape = self.program.shape(chunk);
        let (block, piece) = (shape / self.program.pieces, shape % self.program.pieces);
        let Block { elems, input, output } = self.block(block);
        if chunk == shape && output.is_some() {
            return Seat { elems, piece, input, output, scratch: None };
        }
        let input = input.filter(|_| chunk == shape);
        Seat { elems, piece, input, output: None, scratch: self.in_scratch(chunk) }
    }

    /// Bytes of one scratch area.
    pub(crate) fn area_bytes(&self) -> u64 {
        self.area_bytes
    }

    /// First element of a chunk within its block, its bytes in `window`, and its block.
    fn piece(&self, chunk: u32, window: u64) -> (u64, u64, Block) {
        let pieces = u64::from(self.program.pieces);
        let block = self.block(chunk / self.program.pieces);
        let low = (window * self.window).min(block.elems);
        let high = (low + self.window).min(block.elems);
        let piece = u64::from(chunk) % pieces;
        let edge = |piece: u64| low + (high - low) * piece / pieces;
        (edge(piece), (edge(piece + 1) - edge(piece)) * self.elem_bytes, block)
    }

    /// A block; nothing for one that the rank has nothing to do with.
    fn block(&self, block: u32) -> Block {
        self.seen.block(block).map_or(Block::default(), |number| self.blocks[number])
    }

    fn in_scratch(&self, chunk: u32) -> Option<u64> {
        self.seen.chunk(chunk).and_then(|number| self.scratch[number])
    }

    fn scratch_place(&self, chunk: u32, window: u64) -> Place {
        let offset = self.scratch_at + self.in_scratch(chunk).unwrap_or(0);
        Place { space: Space::Scratch, at: offset + (window % 2) * self.area_bytes }
    }

    /// Give every chunk that has no home with the caller room for its longest window. Only chunks
    /// that the program writes take memory.
    fn lay_out_scratch(&mut self, scratch_at: u64) {
        use brigade_schedule::Move;
        self.scratch_at = scratch_at;
        let chunks = self.program.chunks();
        self.scratch = vec![None; self.seen.count()];
        for step in &self.program.moves {
            let span = match *step {
                Move::Send { .. } => continue,
                Move::Recv { span, .. } | Move::Fold { span, .. } => span,
                Move::Merge { into, .. } => into,
            };
            for chunk in span.chunks() {
                let block = self.block(self.program.shape(chunk) / self.program.pieces);
                let homeless = chunk >= chunks || block.output.is_none();
                if homeless && self.in_scratch(chunk).is_none() {
                    let elems =
                        self.window.min(block.elems).div_ceil(u64::from(self.program.pieces));
                    let number = self.seen.chunk(chunk).expect("what a move names is seen");
                    self.scratch[number] = Some(self.area_bytes);
                    self.area_bytes += (elems * self.elem_bytes).next_multiple_of(64);
                }
            }
        }
        debug_assert_eq!(self.call.dtype.size() as u64, self.elem_bytes);
    }
}

/// In place, input and output are one buffer; the smaller of the two lies at the rank's own block
/// of the larger.
fn share_one_buffer(blocks: &mut [Block], rank: usize) {
    let inputs = blocks.iter().filter(|block| block.input.is_some()).count();
    let outputs = blocks.iter().filter(|block| block.output.is_some()).count();
    if inputs > outputs && outputs == 1 {
        blocks[rank].output = blocks[rank].input;
    } else if outputs > inputs && inputs == 1 {
        blocks[rank].input = blocks[rank].output;
    }
}
