//! What the root says to whom.

use super::frame::Frame;

/// Who is to hear something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Audience {
    One(usize),
    All,
}

/// Something to be said to someone.
pub(crate) type Order = (Audience, Frame);
