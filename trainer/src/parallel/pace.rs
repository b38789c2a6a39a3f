//! How workers of servers wait for each other.

/// How far workers may be apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// Not at all.
    Together,
    /// Each for itself, within a bound.
    Eventual,
}
