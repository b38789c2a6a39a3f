//! Who a rank shares what with among those who have other samples.

use brigade_comm::Communicator;

/// The communicators of ranks with other samples; none where a rank is alone.
///
/// Ranks of `data` are counted so that those who divide a state among themselves are neighbours:
/// rank d · S + s has part s of S, and is one of its replicas.
#[derive(Clone, Copy, Default)]
pub struct Peers<'a> {
    /// All of them.
    pub(super) data: Option<&'a Communicator>,
    /// Those who divide one state among themselves.
    pub(super) parts: Option<&'a Communicator>,
    /// Those who have the same part, if it is held more than once.
    pub(super) replicas: Option<&'a Communicator>,
    /// Those who hold a second copy of parameters among themselves, if there is one.
    pub(super) near: Option<&'a Communicator>,
}

impl Peers<'_> {
    /// How often the state is held.
    pub(super) fn copies(&self) -> usize {
        self.replicas.map_or(1, Communicator::size)
    }

    /// Payload bytes that this rank has sent to any of them.
    pub(super) fn sent_bytes(&self) -> u64 {
        // Where there is one state, those who divide it are all of them.
        let parts = self.parts.filter(|_| self.replicas.is_some());
        let groups = [self.data, parts, self.replicas, self.near].into_iter().flatten();
        groups.map(|group| group.stats().sent_bytes).sum()
    }
}

impl<'a> From<Option<&'a Communicator>> for Peers<'a> {
    /// All of them divide the state among themselves.
    fn from(data: Option<&'a Communicator>) -> Peers<'a> {
        Peers { data, parts: data, replicas: None, near: None }
    }
}
