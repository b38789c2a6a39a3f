//! What is known of a group when its calls become plans.

use super::super::layout::{Group, RANKS};
use super::super::setup::inbox::Inboxes;
use super::super::way::Way;
use crate::Settings;

/// What plans are made of.
pub(in crate::device) struct Facts<'a> {
    pub(in crate::device) rank: u32,
    pub(in crate::device) ranks: u32,
    pub(in crate::device) way: Way,
    pub(in crate::device) group: &'a Group,
    pub(in crate::device) packets: &'a [u64; RANKS],
    pub(in crate::device) blocks: u32,
    pub(in crate::device) is_one_device: bool,
    pub(in crate::device) inboxes: &'a Inboxes,
    pub(in crate::device) settings: &'a Settings,
}
