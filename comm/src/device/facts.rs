//! What is known of a group when its calls become plans.

use super::inbox::Inboxes;
use super::layout::{Group, RANKS};
use super::way::Way;
use crate::Settings;

/// What plans are made of.
pub(super) struct Facts<'a> {
    pub(super) rank: u32,
    pub(super) ranks: u32,
    pub(super) way: Way,
    pub(super) group: &'a Group,
    pub(super) packets: &'a [u64; RANKS],
    pub(super) blocks: u32,
    pub(super) is_one_device: bool,
    pub(super) inboxes: &'a Inboxes,
    pub(super) settings: &'a Settings,
}
