//! What a rank has of RDMA, whatever it joins: addresses to speak from, and what is made for all.

use std::sync::Arc;

use brigade_verbs::{Device, PortState, ProtectionDomain};

use super::Settings;
use super::cache::Cache;
use super::card::{Address, Card};
use crate::TransportError;

/// What is said, here and to a peer that asks, of a port whose cable may come back.
const NOT_ACTIVE: &str = "is not active now";

/// Whether an error, of ours or of a peer that has refused, is of a port that may come back.
pub(super) fn is_passing(error: &TransportError) -> bool {
    matches!(error, TransportError::Refused { why } if why.contains(NOT_ACTIVE))
}

/// An address, and how we speak from it.
pub(super) struct Place {
    pub(super) device: Arc<Device>,
    pub(super) port: u8,
    /// `None` to route by LID.
    pub(super) gid_index: Option<u8>,
    pub(super) address: Address,
    /// Why it was taken.
    pub(super) why: &'static str,
}

impl Place {
    /// The port as it is now; `None` if its device does not answer.
    pub(super) fn port_now(&self) -> Option<PortState> {
        self.device.ports().ok()?.into_iter().find(|now| now.number == self.port)
    }

    /// Errors: its port cannot be used now, which [`is_passing`].
    pub(super) fn check(&self) -> Result<(), TransportError> {
        if self.port_now().is_some_and(|now| now.is_active) {
            return Ok(());
        }
        let why = format!("port {} of {} {NOT_ACTIVE}", self.port, self.device.name());
        Err(TransportError::Refused { why })
    }

    pub(super) fn describe(&self) -> String {
        let Place { device, port, address, why, .. } = self;
        let mtu = 128_u32 << address.mtu;
        let index = self.gid_index.map_or("none".into(), |index| index.to_string());
        format!(
            "{} port {port}: GID {} (index {index}, {why}), MTU {mtu}",
            device.name(),
            address.gid
        )
    }
}

/// What all communicators of a rank use.
pub(super) struct Local {
    pub(super) settings: Settings,
    pub(super) places: Vec<Place>,
    /// One for each device that is used.
    pub(super) domains: Vec<Arc<ProtectionDomain>>,
    pub(super) card: Card,
    pub(super) cache: Cache,
}
