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
    calls: [Option<(u64, Header)>; PAST_CALLS_MAX],
    last: u64,
}

impl History {
    /// Remember that call number `sequence` begins now. Messages between two ranks have no number
    /// and are passed over.
    #[inline]
    pub(crate) fn note(&mut self, header: &Header, sequence: u64) {
        if header.sequence_if_collective().is_some() {
            self.calls[sequence as usize % PAST_CALLS_MAX] = Some((sequence, *header));
            self.last = sequence;
        }
    }

    /// The number of the last call.
    pub(crate) fn last(&self) -> u64 {
        self.last
    }

    /// The call so many before the last one, if it is still remembered.
    pub(crate) fn back(&self, calls: u64) -> Option<Header> {
        self.at(self.last.checked_sub(calls)?)
    }

    /// The call with a number, if it is still remembered.
    fn at(&self, sequence: u64) -> Option<Header> {
        let (number, header) = self.calls[sequence as usize % PAST_CALLS_MAX].as_ref()?;
        (*number == sequence).then(|| header.numbered(sequence))
    }

    /// The signatures of the calls before number `sequence`, the latest first, without a gap.
    pub(crate) fn before(&self, sequence: u64) -> Vec<[u8; 32]> {
        let earlier = (1..PAST_CALLS_MAX as u64).map(|back| self.at(sequence.checked_sub(back)?));
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
        assert!(history.back(0).is_none() && history.before(1).is_empty());
        for sequence in 1..=100 {
            history.note(&header, sequence);
        }
        history.note(&Header::of_message(1), 0);
        assert_eq!(history.last(), 100);
        assert_eq!(history.back(3), Some(header.numbered(97)));
        let oldest = 101 - PAST_CALLS_MAX as u64;
        assert!(history.at(oldest).is_some() && history.at(oldest - 1).is_none());
        let past = history.before(100);
        assert_eq!(past.len(), PAST_CALLS_MAX - 1);
        assert_eq!(past[0], *header.numbered(99).bytes());
        assert_eq!(history.before(70), [*header.numbered(69).bytes()]);
    }

    /// Of small calls a rank makes so many in a day.
    #[test]
    fn behind_2_to_the_32_calls_the_numbers_go_on() {
        let call = Call::moving(Collective::AllGather, crate::Dtype::U8, 3);
        let header = Header::of_call(&call, 0, 1, Window::at_most(4096));
        let mut history = History::default();
        let first = u64::from(u32::MAX) - 3;
        (first..first + 8).for_each(|sequence| history.note(&header, sequence));
        assert_eq!(history.last(), first + 7);
        let past = history.before(first + 7);
        assert_eq!(past.len(), 7, "without a gap");
        assert_eq!(past[6], *header.numbered(first).bytes());
        assert_eq!(history.back(7), Some(header.numbered(first)));
        assert!(history.at(3).is_none(), "that was another call");
    }
}
