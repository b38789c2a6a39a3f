//! What host and kernels both look into: the arguments of kernels, and the words of the desk.
//! The kernels' sources have the same structures, and compare their sizes when they are compiled.

/// At most so many ranks.
pub(super) const RANKS: usize = 32;
/// At most so many blocks of one rank.
pub(super) const BLOCKS: usize = 64;
/// Bytes of the part of a board that has a fixed shape.
const BOARD_BYTES: usize = 75520;
/// Bytes that one rank may send to another in packets.
const PACKET_BYTES: usize = 16384;
/// Bytes that the packets of one rank for another take.
const PACKETS_BYTES: usize = (PACKET_BYTES / 8 + 1) * 16;
/// Threads of a block, where it may have so many.
pub(super) const THREADS: u32 = 512;

/// Bytes of a whole board among so many ranks.
pub(super) fn board_bytes(ranks: usize) -> usize {
    BOARD_BYTES + 2 * ranks * PACKETS_BYTES
}

/// Where a board's packets begin.
pub(super) const PACKETS_AT: u64 = BOARD_BYTES as u64;

/// Who takes part, and where each one's board lies.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Group {
    pub(super) rank: u32,
    pub(super) ranks: u32,
    pub(super) desk: u64,
    pub(super) board: [u64; RANKS],
}

/// What a step does; the numbers stand in `direct.cu`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Kind {
    /// From the peer's input to our output.
    Pull = 0,
    /// From our input to the peer's output.
    Push = 1,
    /// From everybody's input, folded, to the peer's output.
    FoldTo = 2,
    /// From everybody's input, folded, to everybody's output.
    FoldAll = 3,
}

/// One step of a direct call: offsets from what ranks have told each other, and bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) kind: Kind,
    pub(super) peer: u32,
    pub(super) source: u64,
    pub(super) target: u64,
    pub(super) bytes: u64,
}

impl Step {
    pub(super) const NONE: Self =
        Self { kind: Kind::Pull, peer: 0, source: 0, target: 0, bytes: 0 };
}

/// The argument of the kernel `direct`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Direct {
    pub(super) group: Group,
    /// [`Direct::MET`], [`Direct::HERE`].
    pub(super) how: u32,
    pub(super) signature: u32,
    pub(super) op: u32,
    pub(super) steps: u32,
    pub(super) factor: f64,
    pub(super) input: [u64; RANKS],
    pub(super) output: [u64; RANKS],
    pub(super) step: [Step; RANKS],
}

impl Direct {
    /// The hosts have met, so nobody waits in the kernel.
    pub(super) const MET: u32 = 1;
    /// All ranks are on one device.
    pub(super) const HERE: u32 = 2;

    /// Which of a peer's buffers the steps touch: its input, its output.
    pub(super) fn touched(&self, peer: u32) -> (bool, bool) {
        let steps = &self.step[..self.steps as usize];
        let reads = steps.iter().any(|step| match step.kind {
            Kind::Pull => step.peer == peer,
            Kind::Push => false,
            Kind::FoldTo | Kind::FoldAll => true,
        });
        let writes = steps.iter().any(|step| match step.kind {
            Kind::Pull => false,
            Kind::Push | Kind::FoldTo => step.peer == peer,
            Kind::FoldAll => true,
        });
        (reads, writes)
    }
}

/// What goes to one rank in packets, and what comes from it; for the rank itself, where its own
/// part lies.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) send_at: u32,
    pub(super) send_bytes: u32,
    pub(super) take_at: u32,
    pub(super) take_bytes: u32,
}

/// The argument of the kernel `packets`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Packets {
    pub(super) group: Group,
    pub(super) halves: [u64; RANKS],
    pub(super) input: u64,
    pub(super) output: u64,
    pub(super) signature: u32,
    pub(super) op: u32,
    pub(super) folds: u32,
    pub(super) orders: u32,
    pub(super) factor: f64,
    pub(super) part: [Part; RANKS],
}

/// One message of the kernel `messages`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Letter {
    pub(super) sends: u32,
    pub(super) peer: u32,
    pub(super) at: u64,
    pub(super) bytes: u64,
    pub(super) signature: u32,
    pub(super) spare: u32,
}

/// The argument of the kernel `messages`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Messages {
    pub(super) group: Group,
    pub(super) count: u32,
    pub(super) call: u32,
    pub(super) letter: [Letter; 2 * RANKS],
}

/// What a hop does; the numbers stand in `linked.cu`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum HopKind {
    /// From the source to a peer.
    Send = 0,
    /// From a peer to the target.
    Recv = 1,
    /// From the source and a peer, folded, to the target.
    Fold = 2,
    /// From the other place and the source, folded, to the target.
    Merge = 3,
    /// From the source to the target.
    Copy = 4,
}

/// One move of a schedule, or a part of it: some pieces of one block. A place is a space in its two
/// highest bits and bytes from there: to the beginning of the block, or in scratch to the piece.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hop {
    pub(super) kind: HopKind,
    pub(super) peer: u8,
    /// Whether it is the last of its move.
    pub(super) ends: u8,
    /// Of a whole move that is received: one more than the rank that it is passed on to, or zero.
    pub(super) next: u8,
    pub(super) from: u16,
    pub(super) to: u16,
    /// Elements of the block.
    pub(super) elems: u64,
    pub(super) source: u64,
    pub(super) target: u64,
    pub(super) other: u64,
}

impl Hop {
    pub(super) const INPUT: u64 = 0;
    pub(super) const OUTPUT: u64 = 1 << 62;
    pub(super) const SCRATCH: u64 = 1 << 63;
    pub(super) const NONE: Self = Self {
        kind: HopKind::Copy,
        peer: 0,
        ends: 0,
        next: 0,
        from: 0,
        to: 0,
        elems: 0,
        source: 0,
        target: 0,
        other: 0,
    };

    /// Whether a peer takes part.
    pub(super) fn is_wired(&self) -> bool {
        matches!(self.kind, HopKind::Send | HopKind::Recv | HopKind::Fold)
    }

    /// Whether `next` is a whole move that sends just what this one has received.
    pub(super) fn feeds(&self, next: &Self) -> bool {
        matches!(self.kind, HopKind::Recv | HopKind::Fold)
            && next.kind == HopKind::Send
            && next.ends == 1
            && (next.source, next.elems, next.from, next.to)
                == (self.target, self.elems, self.from, self.to)
    }

    /// Whether `next` goes on where this one stops, in the same move and the same block.
    pub(super) fn joins(&self, next: &Self) -> bool {
        self.ends == 0 && *next == Self { from: self.to, to: self.to + 1, ..*self }
    }
}

/// At most so many hops: all of a kernel's argument is 4 KiB.
pub(super) const HOPS: usize = 80;
/// At most so many lanes, each a block of a kernel.
pub(super) const LANES: u32 = 32;
/// Bytes of a slot: what a move may carry in one window.
pub(super) const SLOT_BYTES: usize = 64 << 10;
/// Slots of a lane.
pub(super) const SLOTS: usize = 2;
/// Bytes of a lane of an inbox: its counters, and slots behind their heads.
const LANE_BYTES: usize = 128 + SLOTS * (128 + SLOT_BYTES);

/// Where in an inbox the first slot of the first lane of `peer` has its bytes.
pub(super) fn lane_at(peer: u32, lanes: u32) -> u64 {
    (peer * lanes) as u64 * LANE_BYTES as u64 + 256
}

/// Bytes of a rank's inbox.
pub(super) fn inbox_bytes(ranks: usize, lanes: u32) -> usize {
    ranks * lanes as usize * LANE_BYTES
}

/// The argument of the kernel `linked`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ByHops {
    pub(super) group: Group,
    pub(super) inbox: [u64; RANKS],
    pub(super) input: u64,
    pub(super) output: u64,
    pub(super) scratch: u64,
    pub(super) scratch_bytes: u64,
    pub(super) window: u64,
    pub(super) windows: u64,
    pub(super) lanes: u32,
    pub(super) pieces: u32,
    pub(super) elem_bytes: u32,
    pub(super) signature: u32,
    pub(super) op: u32,
    pub(super) hops: u32,
    pub(super) call: u32,
    pub(super) spare: u32,
    pub(super) hop: [Hop; HOPS],
}

/// The argument of the kernel `scale`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Scaling {
    pub(super) to: u64,
    pub(super) from: u64,
    pub(super) elems: u64,
    pub(super) factor: f64,
    pub(super) ranks: u32,
    pub(super) op: u32,
}

/// One message of the kernel `parcels`, and how many lanes share it.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Parcel {
    pub(super) sends: u32,
    pub(super) peer: u32,
    pub(super) at: u64,
    pub(super) bytes: u64,
    pub(super) signature: u32,
    pub(super) lanes: u32,
}

/// The argument of the kernel `parcels`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Parcels {
    pub(super) group: Group,
    pub(super) inbox: [u64; RANKS],
    pub(super) lanes: u32,
    pub(super) count: u32,
    pub(super) call: u32,
    pub(super) spare: u32,
    pub(super) parcel: [Parcel; 2 * RANKS],
}

/// Words of a desk, counted in four bytes.
pub(super) mod word {
    /// Set by the host: every kernel of the group ends.
    pub(crate) const ABORT: usize = 0;
    /// What went wrong in a kernel: [`FAULT_MISMATCH`] or less.
    pub(crate) const FAULT: usize = 1;
    pub(crate) const PEER: usize = 2;
    pub(crate) const OURS: usize = 3;
    pub(crate) const THEIRS: usize = 4;
    /// Where the places of blocks begin.
    pub(crate) const PLACES: usize = 8;
    /// Words of one place: phase, peer, sequence, step, signature, turn.
    pub(crate) const PLACE: usize = 8;
    /// Ranks are in different calls.
    pub(crate) const FAULT_MISMATCH: u32 = 2;
}

/// Bytes of a desk.
pub(super) const DESK_BYTES: usize = (word::PLACES + BLOCKS * word::PLACE) * 4;

/// What a block that stands still waits for, by the phase in its place.
pub(super) fn phase(number: u32) -> &'static str {
    match number {
        1 => "waiting for the call of",
        2 => "waiting for the end of the call of",
        3 => "waiting for packets from",
        4 => "waiting for a message from",
        5 => "waiting for a message to be taken by",
        6 => "waiting for a part from",
        _ => "waiting for parts to be taken by",
    }
}

const _: () = assert!(size_of::<Group>() == 272 && DESK_BYTES == 2080);
const _: () = assert!(size_of::<Direct>() == 1832 && size_of::<Packets>() == 1080);
const _: () = assert!(size_of::<Messages>() == 2328);
const _: () = assert!(size_of::<ByHops>() == 3808 && size_of::<Scaling>() == 40);
const _: () = assert!(size_of::<Parcels>() == 2592 && LANE_BYTES == 131_456);
