//! Brigade.
