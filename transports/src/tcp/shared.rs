//! What a rank's listener, its endpoints and its port have in common.

use std::sync::Arc;

use super::Settings;
use super::address::Interface;
use super::card::Card;
use super::handshake::Terms;
use super::pairs::Links;
use super::route::Routes;

/// What the listener, the endpoints and the port itself look at.
pub(super) struct Shared {
    pub(super) card: Card,
    pub(super) secret: [u8; 32],
    pub(super) settings: Settings,
    pub(super) interfaces: Vec<Interface>,
    pub(super) links: Links,
    pub(super) routes: Arc<Routes>,
}

impl Shared {
    /// What is asked of whoever calls or is called.
    pub(super) fn terms(&self) -> Terms<'_> {
        Terms { secret: &self.secret, encrypt: self.settings.encrypt }
    }
}
