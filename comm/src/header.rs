//! The signature that opens every wire of every call: thirty-two bytes that let the two ends notice
//! at once that they are not in the same call.

use brigade_schedule::Collective;

use crate::call::{Call, Counts, root};
use crate::select::code_name;
use crate::{Dtype, Op};

/// Bytes of a header on the wire.
pub(crate) const HEADER_BYTES: usize = 32;

const MAGIC: u8 = 0xB4;
const NO_ROOT: u16 = u16::MAX;
const SEND_RECV: u8 = 15;
/// Set beside the collective when blocks may differ in length.
const UNEVEN: u8 = 0x20;

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

/// What both ends of a wire must agree on.
///
/// Layout, little endian: magic 1, window 1, collective 1, dtype 1, operator 1, algorithm 1,
/// root 2, sequence number 4, group 4, count or hash of counts 8, bytes on this wire 8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header([u8; HEADER_BYTES]);

impl Header {
    /// The header of a collective call. `wire_bytes` and the sequence number are filled in later.
    pub(crate) fn of_call(call: &Call, algorithm_code: u8, group: u64, window: Window) -> Self {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..2].copy_from_slice(&[MAGIC, window.0]);
        bytes[2] = collective_code(call.collective) | if call.is_uneven() { UNEVEN } else { 0 };
        bytes[3] = call.dtype.code();
        // Zero stands for no operator.
        bytes[4] = if call.collective.folds() { call.op.code() + 1 } else { 0 };
        bytes[5] = algorithm_code;
        let root = root(call.collective).map_or(NO_ROOT, |root| root as u16);
        bytes[6..8].copy_from_slice(&root.to_le_bytes());
        bytes[12..16].copy_from_slice(&(group as u32).to_le_bytes());
        bytes[16..24].copy_from_slice(&count_word(call).to_le_bytes());
        Self(bytes)
    }

    /// The header of a point-to-point message. Such messages concern two ranks only, so they carry
    /// no sequence number of the group.
    pub(crate) fn of_message(dtype: Dtype, group: u64) -> Self {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0] = MAGIC;
        bytes[2] = SEND_RECV;
        bytes[3] = dtype.code();
        bytes[6..8].copy_from_slice(&NO_ROOT.to_le_bytes());
        bytes[12..16].copy_from_slice(&(group as u32).to_le_bytes());
        Self(bytes)
    }

    /// The same header with the call's number in the group.
    pub(crate) fn numbered(mut self, sequence: u32) -> Self {
        self.0[8..12].copy_from_slice(&sequence.to_le_bytes());
        self
    }

    /// The same header with the payload bytes of one wire.
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

    /// The call's number in its group; messages between two ranks have none.
    pub(crate) fn sequence_if_collective(&self) -> Option<u32> {
        let number = u32::from_le_bytes([self.0[8], self.0[9], self.0[10], self.0[11]]);
        (self.0[2] != SEND_RECV).then_some(number)
    }

    fn word(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.0[at..at + 8].try_into().expect("eight bytes"))
    }

    /// What the words leave out: payload bytes of the whole call on the wire that this header
    /// opened, and in what order they come.
    pub(crate) fn describe_wire(&self) -> String {
        let bytes = format!("{} bytes on this wire", self.word(24));
        match self.0[2] {
            SEND_RECV => bytes,
            _ => format!("{bytes} in windows of {} bytes", Window(self.0[1]).bytes()),
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
        let name = COLLECTIVES.get(usize::from(self.0[2] & !UNEVEN))?;
        let mut text = match (self.0[2] & UNEVEN, self.word(16)) {
            (0, count) => format!("{name}({dtype} x {count}"),
            (_, 0) => format!("{name}-v({dtype}"),
            (_, digest) => format!("{name}-v({dtype}, counts with digest {digest:016x}"),
        };
        if let Some(code) = self.0[4].checked_sub(1) {
            text += &format!(", {}", Op::code_name(code)?);
        }
        let root = u16::from_le_bytes([self.0[6], self.0[7]]);
        if root != NO_ROOT {
            text += &format!(", root {root}");
        }
        Some(format!("{text}) by {}", code_name(self.0[5])?))
    }
}

const COLLECTIVES: [&str; 9] = [
    "all-reduce",
    "reduce-scatter",
    "all-gather",
    "broadcast",
    "reduce",
    "all-to-all",
    "gather",
    "scatter",
    "barrier",
];

fn collective_code(collective: Collective) -> u8 {
    match collective {
        Collective::AllReduce => 0,
        Collective::ReduceScatter => 1,
        Collective::AllGather => 2,
        Collective::Broadcast { .. } => 3,
        Collective::Reduce { .. } => 4,
        Collective::AllToAll => 5,
        Collective::Gather { .. } => 6,
        Collective::Scatter { .. } => 7,
        Collective::Barrier => 8,
    }
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
    use super::*;

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
}
