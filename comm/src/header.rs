//! The signature that opens every wire of a collective, and every message between two ranks:
//! thirty-two bytes that let the two ends notice at once that they are not in the same call.

mod unlike;

use brigade_schedule::Collective;

use crate::call::{Call, Counts};
use crate::codes::{code_name, number, with_number};
use crate::purpose::Purpose;
use crate::{Dtype, Op};

/// Bytes of a header on the wire.
pub(crate) const HEADER_BYTES: usize = 32;

const MAGIC: u8 = 0xB4;
const NO_ROOT: u16 = u16::MAX;
const SEND_RECV: u8 = 15;
/// Set beside the collective when blocks may differ in length.
const UNEVEN: u8 = 0x20;
/// Set beside reduce-scatter when an update and an all-gather follow in the same call.
const UPDATE: u8 = 0x40;
/// What remains of the count or the digest of an update.
const COUNT_OF_UPDATE: u64 = (1 << 48) - 1;

/// How much of a call is worked on at a time, to a quarter of an octave: all ranks must agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window(u8);

impl Window {
    /// The largest window that is not above `bytes`, which are at least four.
    pub(crate) fn at_most(bytes: u64) -> Self {
        let octave = bytes.max(4).ilog2();
        let quarter = (bytes.max(4) >> (octave - 2)) & 3;
        Self((octave * 4) as u8 + quarter as u8)
    }

    /// Its length.
    pub(crate) fn bytes(self) -> u64 {
        // A peer may have written any code.
        let octave = (self.0 / 4).max(2);
        (4 + u64::from(self.0 % 4)) << (octave - 2)
    }
}

/// What both ends of a wire must agree on. Little endian:
///
/// | bytes | of a collective | of a sharded update | of a message |
/// |---|---|---|---|
/// | 0 | magic | magic | magic |
/// | 1 | window | window | 0 |
/// | 2 | collective, and `UNEVEN` | reduce-scatter, and `UPDATE` | `SEND_RECV` |
/// | 3 | type | type of the gradients | type |
/// | 4 | operator + 1, or purpose | operator + 1 | 0 |
/// | 5 | algorithm | that which scatters | 0 |
/// | 6..8 | root, or number of the algorithm | type of weights, gathering algorithm | no root |
/// | 8..12 | number of the call in its group | likewise | 0 |
/// | 12..16 | group | group | group |
/// | 16..22 | count, or hash of counts | likewise | 0 |
/// | 22..24 | the rest of that | number of its algorithms, or 0 | 0 |
/// | 24..32 | payload bytes of the call on this wire | likewise | those of the message |
///
/// An algorithm that has a number has no root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header([u8; HEADER_BYTES]);

impl Header {
    /// The header of a collective call. The payload bytes and the sequence number are filled in
    /// later. `algorithm_code` is that of [`crate::codes::code`].
    pub(crate) fn of_call(call: &Call, algorithm_code: u32, group: u64, window: Window) -> Self {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..2].copy_from_slice(&[MAGIC, window.0]);
        bytes[2] = collective_code(call.collective) | if call.is_uneven() { UNEVEN } else { 0 };
        bytes[3] = call.dtype.code();
        // Zero stands for no operator.
        bytes[4] = if call.collective.folds() { call.op.code() + 1 } else { 0 };
        bytes[5] = algorithm_code as u8;
        let root = call.collective.root().map_or(NO_ROOT, |root| root as u16);
        let word = number(algorithm_code).unwrap_or(root);
        bytes[6..8].copy_from_slice(&word.to_le_bytes());
        bytes[12..16].copy_from_slice(&(group as u32).to_le_bytes());
        bytes[16..24].copy_from_slice(&count_word(call).to_le_bytes());
        Self(bytes)
    }

    /// The same header for a reduce-scatter that is followed by an update of `weights`, which are
    /// gathered by the algorithm with that code. If both algorithms have a number, it is the same.
    pub(crate) fn with_update(mut self, weights: Dtype, gather_code: u32) -> Self {
        let numbers = [self.algorithm_code(), gather_code].map(number);
        debug_assert!(numbers[0] == numbers[1] || numbers.contains(&None), "room for one number");
        let number = numbers[0].or(numbers[1]).unwrap_or(0);
        self.0[2] |= UPDATE;
        self.0[6..8].copy_from_slice(&[weights.code(), gather_code as u8]);
        // No memory has so many elements that a count would need these, and a digest has more.
        self.0[22..24].copy_from_slice(&number.to_le_bytes());
        self
    }

    /// The same header for a part of something else.
    pub(crate) fn with_purpose(mut self, purpose: Purpose) -> Self {
        if purpose.code() != 0 {
            debug_assert_eq!(self.0[4], 0, "what folds is no part of anything");
            self.0[4] = purpose.code();
        }
        self
    }

    /// The header of a point-to-point message, without its type. Such messages concern two ranks
    /// only, so they carry no sequence number of the group.
    pub(crate) fn of_message(group: u64) -> Self {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0] = MAGIC;
        bytes[2] = SEND_RECV;
        bytes[6..8].copy_from_slice(&NO_ROOT.to_le_bytes());
        bytes[12..16].copy_from_slice(&(group as u32).to_le_bytes());
        Self(bytes)
    }

    /// The same header with an element type.
    pub(crate) fn of_type(mut self, dtype: Dtype) -> Self {
        self.0[3] = dtype.code();
        self
    }

    /// The same header with the call's number in the group, of which the lower half travels: two
    /// ends of a wire are never so many calls apart.
    pub(crate) fn numbered(mut self, sequence: u64) -> Self {
        self.0[8..12].copy_from_slice(&(sequence as u32).to_le_bytes());
        self
    }

    /// The same header with the payload bytes that follow it: of a collective all that this wire
    /// carries, else those of one message.
    pub(crate) fn for_wire(mut self, wire_bytes: u64) -> Self {
        self.0[24..32].copy_from_slice(&wire_bytes.to_le_bytes());
        self
    }

    pub(crate) fn bytes(&self) -> &[u8; HEADER_BYTES] {
        &self.0
    }

    pub(crate) fn from_bytes(bytes: [u8; HEADER_BYTES]) -> Self {
        Self(bytes)
    }

    /// The call's number in its group, as it travels; messages between two ranks have none.
    pub(crate) fn sequence_if_collective(&self) -> Option<u32> {
        let number = u32::from_le_bytes([self.0[8], self.0[9], self.0[10], self.0[11]]);
        (self.0[2] != SEND_RECV).then_some(number)
    }

    /// By how many calls of the group this one is ahead of another, if both are collectives.
    pub(crate) fn lead_over(&self, other: &Self) -> Option<i32> {
        let (ours, theirs) = (self.sequence_if_collective()?, other.sequence_if_collective()?);
        Some(ours.wrapping_sub(theirs).cast_signed())
    }

    /// Whether this opens a wire of a collective; what is no header at all does not.
    pub(crate) fn is_of_collective(&self) -> bool {
        self.0[0] == MAGIC && self.0[2] != SEND_RECV
    }

    /// The type of the elements of a message, if this is the header of one.
    pub(crate) fn dtype(&self) -> Option<Dtype> {
        let is_message = self.0[0] == MAGIC && self.0[2] == SEND_RECV;
        Dtype::from_code(self.0[3]).filter(|_| is_message)
    }

    /// The payload bytes that follow, as [`Header::for_wire`] said.
    pub(crate) fn wire_bytes(&self) -> u64 {
        self.word(24)
    }

    fn word(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.0[at..at + 8].try_into().expect("eight bytes"))
    }

    /// What the words leave out: payload bytes of the message, or of the whole collective on the
    /// wire that this header opened, and in what order they come.
    pub(crate) fn describe_wire(&self) -> String {
        let bytes = self.wire_bytes();
        match self.0[2] {
            SEND_RECV => format!("{bytes} bytes in this message"),
            _ => {
                let window_bytes = Window(self.0[1]).bytes();
                format!("{bytes} bytes on this wire in windows of {window_bytes} bytes")
            }
        }
    }

    /// The call in words; `None` if these are not bytes of a header.
    pub(crate) fn describe(&self) -> Option<String> {
        if self.0[0] != MAGIC {
            return None;
        }
        let dtype = Dtype::from_code(self.0[3])?.name();
        if self.0[2] == SEND_RECV {
            return Some(format!("send/recv({dtype})"));
        }
        let is_update = self.0[2] & UPDATE != 0;
        let name = match Collective::ALL.get(usize::from(self.0[2] & !(UNEVEN | UPDATE)))? {
            Collective::ReduceScatter if is_update => "sharded-update",
            _ if is_update => return None,
            other => other.name(),
        };
        let purpose = Purpose::of_code(self.0[4])?;
        let mut text = purpose.prefix();
        let count = if is_update { self.word(16) & COUNT_OF_UPDATE } else { self.word(16) };
        text += &match (self.0[2] & UNEVEN, count) {
            (0, count) => format!("{name}({dtype} x {count}"),
            (_, 0) => format!("{name}-v({dtype}"),
            (_, digest) => format!("{name}-v({dtype}, counts with digest {digest:016x}"),
        };
        if let Some(code) = self.0[4].checked_sub(1).filter(|_| purpose == Purpose::Itself) {
            text += &format!(", {}", Op::code_name(code)?);
        }
        if is_update {
            text += &format!(", of {}", Dtype::from_code(self.0[6])?.name());
            let number = (self.word(16) >> COUNT_OF_UPDATE.count_ones()) as u16;
            let [scatter, gather] =
                [self.0[5], self.0[7]].map(|family| code_name(with_number(family, number)));
            return Some(format!("{text}) by {} and {}", scatter?, gather?));
        }
        let code = self.algorithm_code();
        if number(code).is_none() && self.root_word() != NO_ROOT {
            text += &format!(", root {}", self.root_word());
        }
        Some(format!("{text}) by {}", code_name(code)?))
    }

    /// The code of the algorithm of a collective that is no update.
    fn algorithm_code(&self) -> u32 {
        with_number(self.0[5], self.root_word())
    }

    fn root_word(&self) -> u16 {
        u16::from_le_bytes([self.0[6], self.0[7]])
    }
}

/// The place among all collectives, which never changes.
fn collective_code(collective: Collective) -> u8 {
    let place = Collective::ALL.iter().position(|one| one.name() == collective.name());
    place.expect("all collectives are among all") as u8
}

/// The count, or a digest of the counts where every rank knows them all. Lengths that only some
/// ranks know are compared wire by wire, through the bytes on the wire.
fn count_word(call: &Call) -> u64 {
    match &call.counts {
        Counts::Even(count) => *count as u64,
        Counts::PerRank(counts)
            if matches!(call.collective, Collective::AllGather | Collective::ReduceScatter) =>
        {
            counts.iter().fold(0xcbf2_9ce4_8422_2325, |digest: u64, &count| {
                (digest ^ count as u64).wrapping_mul(0x0000_0100_0000_01b3)
            })
        }
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use brigade_schedule::Algorithm;

    use super::*;
    use crate::codes::code;

    #[test]
    fn windows_are_rounded_down_by_less_than_a_quarter() {
        for bytes in (4..5000).chain([1 << 20, (1 << 20) - 1, 100_000, 1 << 40]) {
            let rounded = Window::at_most(bytes).bytes();
            assert!(rounded <= bytes && rounded > bytes - bytes.div_ceil(4), "{bytes}: {rounded}");
            assert_eq!(Window::at_most(rounded).bytes(), rounded);
        }
        assert_eq!(Window::at_most(1 << 20).bytes(), 1 << 20);
        assert!(Window::at_most(u64::MAX).bytes() > u64::MAX / 4 * 3);
    }

    fn described(collective: Collective, algorithm: Algorithm) -> String {
        let call = Call::new(collective, Dtype::F32, Op::Sum, 7);
        let header = Header::of_call(&call, code(algorithm), 1, Window::at_most(4096));
        header.numbered(3).for_wire(28).describe().expect("a header")
    }

    #[test]
    fn the_number_of_an_algorithm_is_not_taken_for_a_root() {
        for number in [2, 64, 128, 256, 65_535] {
            let algorithm = Algorithm::Hierarchical { node_ranks: number };
            let want = format!("all-reduce(f32 x 7, sum) by hierarchical:{number}");
            assert_eq!(described(Collective::AllReduce, algorithm), want);
        }
        let rooted = described(Collective::Broadcast { root: 2 }, Algorithm::Ring);
        assert_eq!(rooted, "broadcast(f32 x 7, root 2) by ring");
        assert_eq!(described(Collective::Barrier, Algorithm::Direct), "barrier(f32 x 7) by direct");
    }

    #[test]
    fn an_update_has_room_for_the_number_of_its_algorithms() {
        let call = Call::new(Collective::ReduceScatter, Dtype::F32, Op::Sum, 7);
        let numbered = Algorithm::Hierarchical { node_ranks: 65_535 };
        for (scatter, gather) in [
            (numbered, numbered),
            (numbered, Algorithm::Ring),
            (Algorithm::Pairwise, numbered),
            (Algorithm::Pairwise, Algorithm::Ring),
        ] {
            let header = Header::of_call(&call, code(scatter), 1, Window::at_most(4096));
            let told = header.with_update(Dtype::Bf16, code(gather)).describe();
            let want = format!("sharded-update(f32 x 7, sum, of bf16) by {scatter} and {gather}");
            assert_eq!(told, Some(want));
        }
    }

    #[test]
    fn what_a_call_is_a_part_of_stands_in_front_of_it() {
        let call = Call::moving(Collective::AllGather, Dtype::U8, 16);
        let header = Header::of_call(&call, code(Algorithm::Ring), 1, Window::at_most(4096));
        let want = Some("split: all-gather(u8 x 16) by ring".to_owned());
        assert_eq!(header.with_purpose(Purpose::Split).describe(), want);
        assert_eq!(header.with_purpose(Purpose::Itself), header);
        for (purpose, _) in Purpose::NAMED {
            let text = header.with_purpose(purpose).describe().expect("a header");
            assert!(text.starts_with(&purpose.prefix()), "{text}");
        }
        let mut unknown = *header.bytes();
        unknown[4] = 0xff;
        assert_eq!(Header::from_bytes(unknown).describe(), None);
    }

    /// They stand on wires between different versions.
    #[test]
    fn codes_of_collectives_never_change() {
        let codes = Collective::ALL.map(|collective| collective_code(collective.with_root(3)));
        assert_eq!(codes, [0, 1, 2, 3, 4, 5, 6, 7, 8]);
        let names = Collective::ALL.map(Collective::name).join(" ");
        let want = "all-reduce reduce-scatter all-gather broadcast reduce all-to-all gather \
                    scatter barrier";
        assert_eq!(names, want);
    }

    #[test]
    fn who_is_ahead_is_told_across_the_end_of_the_numbers_that_travel() {
        let call = Call::moving(Collective::AllGather, Dtype::U8, 40);
        let header = Header::of_call(&call, code(Algorithm::Ring), 1, Window::at_most(4096));
        let last = u64::from(u32::MAX);
        let lead = |ours, theirs| header.numbered(ours).lead_over(&header.numbered(theirs));
        assert_eq!((lead(9, 7), lead(7, 7), lead(7, 9)), (Some(2), Some(0), Some(-2)));
        assert_eq!((lead(last + 2, last), lead(last, last + 2)), (Some(2), Some(-2)));
        assert_eq!(Header::of_message(1).lead_over(&header), None);
    }

    #[test]
    fn a_message_speaks_of_itself_and_a_collective_of_its_wire() {
        let message = Header::of_message(1).of_type(Dtype::U8).for_wire(40);
        assert_eq!(message.describe_wire(), "40 bytes in this message");
        let call = Call::moving(Collective::AllGather, Dtype::U8, 40);
        let header = Header::of_call(&call, code(Algorithm::Ring), 1, Window::at_most(4096));
        let want = "80 bytes on this wire in windows of 4096 bytes";
        assert_eq!(header.for_wire(80).describe_wire(), want);
    }
}
