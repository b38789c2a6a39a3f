//! What a call is made for, which is told with it.

use crate::call::{Call, Counts};

/// Marks the operator's byte of a header as a purpose: its place in [`Purpose::NAMED`] is added.
const PURPOSE: u8 = 0x80;

/// What a call is a part of: whoever made another call shall read of the one that was made here,
/// and not of what that does inside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Purpose {
    /// It is a call of the user's by itself.
    #[default]
    Itself,
    /// Dividing a group.
    Split,
    /// Making a group of those who are left.
    Shrink,
    /// Agreeing on newcomers.
    Grow,
    /// Making a window.
    Window,
    /// Making a group on devices, and what its calls do by hosts.
    Devices,
    /// A piece of the same call with so many elements in every block.
    Piece(usize),
}

impl Purpose {
    /// Those in place of an operator, in the order of their codes. Such calls fold nothing.
    pub(crate) const NAMED: [(Self, &str); 5] = [
        (Self::Split, "split"),
        (Self::Shrink, "shrink"),
        (Self::Grow, "grow"),
        (Self::Window, "making a window"),
        (Self::Devices, "a group on devices"),
    ];

    /// The code in place of an operator.
    pub(crate) fn code(self) -> u8 {
        let place = Self::NAMED.iter().position(|(purpose, _)| *purpose == self);
        place.map_or(0, |place| PURPOSE + place as u8)
    }

    /// The call that others shall read of.
    pub(crate) fn whole(self, call: &Call) -> Call {
        match self {
            Self::Piece(count) => Call { counts: Counts::Even(count), ..call.clone() },
            _ => call.clone(),
        }
    }

    /// The words in front of a call with this purpose.
    pub(crate) fn prefix(self) -> String {
        let named = Self::NAMED.iter().find(|(purpose, _)| *purpose == self);
        named.map_or(String::new(), |(_, name)| format!("{name}: "))
    }

    /// The purpose in place of an operator; `None` if there is no such purpose.
    pub(crate) fn of_code(code: u8) -> Option<Self> {
        match code.checked_sub(PURPOSE) {
            None => Some(Self::Itself),
            Some(place) => Self::NAMED.get(usize::from(place)).map(|(purpose, _)| *purpose),
        }
    }
}
