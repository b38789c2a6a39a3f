//! Which settings make two calls differ, so that whoever reads of the two knows what to look at.

use super::{Header, NO_ROOT, UPDATE};
use crate::codes::number;
use crate::control::frame::TEXT_BYTES_MAX;
use crate::control::shortened;

const ALGORITHMS: &str =
    "; all ranks need the same BRIGADE_ALGORITHM, BRIGADE_ORDERED and BRIGADE_TUNING";
const WINDOWS: &str = "; all ranks need the same BRIGADE_WINDOW_BYTES";

impl Header {
    /// `other` in the words of `call`, to be read beside this call: where nothing but what settings
    /// choose makes the two differ, with these settings behind. It fits into a text that travels.
    pub(crate) fn named_beside(&self, other: &Self, call: &str) -> String {
        let unlike = self.unlike_settings(other);
        format!("{}{unlike}", shortened(call, TEXT_BYTES_MAX - unlike.len() - "..".len()))
    }

    /// Nothing where something else differs, such as a length that not all ranks know and that
    /// only the bytes on a wire tell.
    fn unlike_settings(&self, other: &Self) -> &'static str {
        let alike = |part: fn(&Self) -> Self| part(self) == part(other);
        match () {
            () if !alike(|header| header.without_algorithm().without_window()) => "",
            () if !alike(Self::without_window) => ALGORITHMS,
            () if !alike(Self::without_algorithm) => WINDOWS,
            () => "",
        }
    }

    /// The same call, whatever its window and the bytes on its wire, which depend on its algorithm.
    fn without_window(&self) -> Self {
        let mut header = self.for_wire(0);
        header.0[1] = 0;
        header
    }

    /// The same call by no algorithm, or by none for both halves of an update.
    fn without_algorithm(&self) -> Self {
        let mut header = self.for_wire(0);
        if self.0[2] & UPDATE != 0 {
            header.0[7] = 0;
            header.0[22..24].fill(0);
        } else if number(self.algorithm_code()).is_some() {
            header.0[6..8].copy_from_slice(&NO_ROOT.to_le_bytes());
        }
        header.0[5] = 0;
        header
    }
}

#[cfg(test)]
mod tests {
    use brigade_schedule::{Algorithm, Collective};

    use super::*;
    use crate::call::{Call, Counts};
    use crate::codes::code;
    use crate::header::Window;
    use crate::{Dtype, Op};

    fn header(call: &Call, algorithm: Algorithm, window_bytes: u64) -> Header {
        Header::of_call(call, code(algorithm), 1, Window::at_most(window_bytes)).numbered(3)
    }

    /// Calls of all forms: of lengths that all ranks know, and of such that not all of them do.
    fn calls() -> [Call; 5] {
        let all_reduce = Call::new(Collective::AllReduce, Dtype::F32, Op::Sum, 8);
        let uneven = |collective, counts| Call { counts, ..Call::moving(collective, Dtype::U8, 0) };
        let counts = Counts::PerRank([1, 2].into());
        let pairs = Counts::PerPair { to: [1, 2].into(), from: [1, 3].into() };
        [
            all_reduce,
            Call::moving(Collective::Broadcast { root: 1 }, Dtype::U8, 8),
            uneven(Collective::AllGather, counts.clone()),
            uneven(Collective::Gather { root: 0 }, counts),
            uneven(Collective::AllToAll, pairs),
        ]
    }

    #[test]
    fn ranks_that_differ_in_what_settings_choose_hear_which_ones() {
        for call in calls() {
            let one = header(&call, Algorithm::Ring, 4096).for_wire(40);
            let unlike = |other: Header| one.unlike_settings(&other.for_wire(80));
            assert_eq!(unlike(header(&call, Algorithm::Direct, 4096)), ALGORITHMS, "{call}");
            assert_eq!(unlike(header(&call, Algorithm::Direct, 65_536)), ALGORITHMS, "{call}");
            assert_eq!(unlike(header(&call, Algorithm::Ring, 65_536)), WINDOWS, "{call}");
            assert_eq!(unlike(header(&call, Algorithm::Ring, 4096)), "", "{call}: lengths differ");
            assert_eq!(unlike(header(&call, Algorithm::Direct, 4096).numbered(4)), "", "{call}");
            for other in calls().into_iter().filter(|other| other.collective != call.collective) {
                assert_eq!(unlike(header(&other, Algorithm::Direct, 4096)), "", "{call}, {other}");
            }
        }
        let message = Header::of_message(1).of_type(Dtype::U8);
        assert_eq!(message.for_wire(40).unlike_settings(&message.for_wire(80)), "");
    }

    #[test]
    fn the_number_of_an_algorithm_is_part_of_it() {
        let [all_reduce, broadcast, ..] = calls();
        let numbered = |node_ranks| Algorithm::Hierarchical { node_ranks };
        let [plain, one, other] = [Algorithm::Ring, numbered(2), numbered(4)]
            .map(|algorithm| header(&all_reduce, algorithm, 4096));
        for (one, other) in [(plain, one), (one, other)] {
            assert_eq!(one.unlike_settings(&other), ALGORITHMS);
        }
        let root = Call { collective: Collective::Broadcast { root: 2 }, ..broadcast.clone() };
        let [one, other] = [broadcast, root].map(|call| header(&call, Algorithm::Ring, 4096));
        assert_eq!(one.unlike_settings(&other), "", "another root is no setting");
        let update = |algorithm, weights| {
            let call = Call::new(Collective::ReduceScatter, Dtype::F32, Op::Sum, 8);
            header(&call, numbered(2), 4096).with_update(weights, code(algorithm))
        };
        let one = update(numbered(2), Dtype::F32);
        assert_eq!(one.unlike_settings(&update(Algorithm::Ring, Dtype::F32)), ALGORITHMS);
        assert_eq!(one.unlike_settings(&update(numbered(2), Dtype::Bf16)), "");
    }

    /// Of a call of many ranks with lengths of their own, the words alone are too long.
    #[test]
    fn settings_travel_behind_a_call_however_long_its_words_are() {
        let [call, ..] = calls();
        let [one, other] = [4096, 65_536].map(|bytes| header(&call, Algorithm::Ring, bytes));
        let text = one.named_beside(&other, &"12, ".repeat(1000));
        assert!(text.len() <= TEXT_BYTES_MAX && text.ends_with(WINDOWS), "{text}");
        assert_eq!(one.named_beside(&one, "#3 barrier"), "#3 barrier");
    }
}
