//! The last calls of one rank in one communicator, so that a disagreement can be told by the calls
//! that began it, even when it is noticed some calls later.
//!
//! A rank whose part of a call is only to send may be done with it, and some calls ahead, before
//! anybody notices that it was another one than theirs.

use super::frame::PAST_CALLS_MAX;
use crate::header::Header;

/// A ring of headers by their numbers. Noting one is a copy of 32 bytes.
#[derive(Debug, Default)]
pub(crate) struct History {
    /// A header with the number of its call beside it, not in it: a line that was just patched
    /// would be slow to copy.
    calls: [Option<(u32, Header)>; PAST_CALLS_MAX],
    last: u32,
}

impl History {
    /// Remember that call number `sequence` begins now. Messages between two ranks have no number
    /// and are passed over.
    #[inline]
    pub(crate) fn note(&mut self, header: &Header, sequence: u32) {
        if header.sequence_if_collective().is_some() {
            self.calls[sequence as usize % PAST_CALLS_MAX] = Some((sequence, *header));
            self.last = sequence;
        }
    }

    /// The number of the call to come.
    pub(crate) fn next(&self) -> u32 {
        self.last.wrapping_add(1)
    }

    /// The call with a number, if it is still remembered.
    pub(crate) fn at(&self, sequence: u32) -> Option<Header> {
        let (number, header) = self.calls[sequence as usize % PAST_CALLS_MAX].as_ref()?;
        (*number == sequence).then(|| header.numbered(sequence))
    }

    /// The signatures of the calls before number `sequence`, the latest first, without a gap.
    pub(crate) fn before(&self, sequence: u32) -> Vec<[u8; 32]> {
        let earlier = (1..PAST_CALLS_MAX as u32).map(|back| self.at(sequence.wrapping_sub(back)));
        earlier.map_while(|header| header.map(|header| *header.bytes())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Call;
    use crate::header::Window;
    use brigade_schedule::Collective;

    #[test]
    fn the_last_calls_are_found_by_number_and_older_ones_are_not() {
        let call = Call::moving(Collective::AllGather, crate::Dtype::U8, 3);
        let header = Header::of_call(&call, 0, 1, Window::at_most(4096));
        let mut history = History::default();
        assert!(history.at(0).is_none() && history.before(1).is_empty());
        for sequence in 1..=100 {
            history.note(&header, sequence);
        }
        history.note(&Header::of_message(1), 0);
        assert_eq!(history.next(), 101);
        let oldest = 101 - PAST_CALLS_MAX as u32;
        assert!(history.at(oldest).is_some() && history.at(oldest - 1).is_none());
        let past = history.before(100);
        assert_eq!(past.len(), PAST_CALLS_MAX - 1);
        assert_eq!(past[0], *header.numbered(99).bytes());
        assert_eq!(history.before(70), [*header.numbered(69).bytes()]);
    }
}
