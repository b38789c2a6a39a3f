//! What the network of a cluster may ask of RDMA, each with its bounds: nothing beyond them reaches
//! a device.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::NUMBER;
use crate::{Error, bytes};

/// How RDMA is used. The defaults are right where one network joins all devices and no switch asks
/// for a class of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RdmaSettings {
    /// Which devices to use, by name: `mlx5_0,mlx5_1`; all of them if `None`.
    /// `BRIGADE_RDMA_DEVICES`.
    pub devices: Option<String>,
    /// Queue pairs from one rank to another, at most 8; zero means one for each device.
    /// `BRIGADE_RDMA_QUEUE_PAIRS`.
    pub queue_pairs: u8,
    /// The row of each port's table of GIDs to use; chosen by network if `None`.
    /// `BRIGADE_RDMA_GID_INDEX`.
    pub gid_index: Option<u8>,
    /// InfiniBand's service level, or RoCE's priority, at most 15. `BRIGADE_RDMA_SERVICE_LEVEL`.
    pub service_level: u8,
    /// The traffic class of routed headers: on RoCE, differentiated services and congestion bits.
    /// `BRIGADE_RDMA_TRAFFIC_CLASS`.
    pub traffic_class: u8,
    /// How long to wait for an answer: 4.096 us times two to the power of this, 1 to 31.
    /// `BRIGADE_RDMA_TIMEOUT`.
    pub timeout: u8,
    /// How often to try again without an answer, at most 6. `BRIGADE_RDMA_RETRIES`.
    pub retries: u8,
    /// How long to try to replace queue pairs that have failed when no other works, and at most
    /// half as long as a call may stand still; zero not to replace any.
    /// `BRIGADE_RDMA_RECONNECT_MS`.
    pub reconnect: Duration,
    /// How much of the callers' memory may be registered at once, so that devices send from where
    /// bytes lie; zero to copy all of them. `BRIGADE_RDMA_CACHE_BYTES`.
    pub cache_bytes: usize,
}

impl Default for RdmaSettings {
    fn default() -> Self {
        Self {
            devices: None,
            queue_pairs: 0,
            gid_index: None,
            service_level: 0,
            traffic_class: 0,
            timeout: 15,
            retries: 6,
            reconnect: Duration::from_secs(10),
            cache_bytes: 256 << 20,
        }
    }
}

/// How many settings there are.
pub(super) const COUNT: usize = 9;

/// The variables, with their meanings.
pub(super) const TABLE: [(&str, &str); COUNT] = [
    ("BRIGADE_RDMA_DEVICES", "RDMA devices by name: mlx5_0,mlx5_1"),
    ("BRIGADE_RDMA_QUEUE_PAIRS", "queue pairs from one rank to another, 0 = one a device"),
    ("BRIGADE_RDMA_GID_INDEX", "row of each port's table of GIDs"),
    ("BRIGADE_RDMA_SERVICE_LEVEL", "InfiniBand's service level, or RoCE's priority"),
    ("BRIGADE_RDMA_TRAFFIC_CLASS", "traffic class of RoCE's headers: 4 x DSCP + ECN"),
    ("BRIGADE_RDMA_TIMEOUT", "a packet waits 4.096 us x 2^this for its answer"),
    ("BRIGADE_RDMA_RETRIES", "how often a packet without an answer is sent again"),
    ("BRIGADE_RDMA_RECONNECT_MS", "a link may be down so long before a call fails"),
    ("BRIGADE_RDMA_CACHE_BYTES", "memory that may stay registered, 0 = copy what is sent"),
];

const QUEUE_PAIRS: RangeInclusive<u8> = 0..=8;
const SERVICE_LEVELS: RangeInclusive<u8> = 0..=15;
/// Zero would be for ever.
const TIMEOUTS: RangeInclusive<u8> = 1..=31;
/// Seven is for ever on some devices.
const RETRIES: RangeInclusive<u8> = 0..=6;

impl RdmaSettings {
    /// Set one by its variable's name; whether there is such a one.
    pub(super) fn set(&mut self, name: &str, value: &str) -> Result<bool, Error> {
        let within = |bounds: RangeInclusive<u8>| {
            value.parse().ok().filter(|number| bounds.contains(number)).ok_or_else(|| {
                let (least, most) = bounds.into_inner();
                Error::invalid(format!("{name}={value:?} is not a number from {least} to {most}"))
            })
        };
        match name {
            "BRIGADE_RDMA_DEVICES" => self.devices = Some(value.to_owned()),
            "BRIGADE_RDMA_QUEUE_PAIRS" => self.queue_pairs = within(QUEUE_PAIRS)?,
            "BRIGADE_RDMA_GID_INDEX" => self.gid_index = Some(within(0..=u8::MAX)?),
            "BRIGADE_RDMA_SERVICE_LEVEL" => self.service_level = within(SERVICE_LEVELS)?,
            "BRIGADE_RDMA_TRAFFIC_CLASS" => self.traffic_class = within(0..=u8::MAX)?,
            "BRIGADE_RDMA_TIMEOUT" => self.timeout = within(TIMEOUTS)?,
            "BRIGADE_RDMA_RETRIES" => self.retries = within(RETRIES)?,
            "BRIGADE_RDMA_RECONNECT_MS" => {
                let millis = value
                    .parse()
                    .map_err(|_| Error::invalid(format!("{name}={value:?} is not {NUMBER}")))?;
                self.reconnect = Duration::from_millis(millis);
            }
            "BRIGADE_RDMA_CACHE_BYTES" => {
                let parsed = bytes::parse(value).ok().and_then(|bytes| usize::try_from(bytes).ok());
                let wrong = || format!("{name}={value:?} is not {}", bytes::WANTED);
                self.cache_bytes = parsed.ok_or_else(|| Error::invalid(wrong()))?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Check settings that were made in code.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for the first that is out of its bounds.
    pub(crate) fn check(&self) -> Result<(), Error> {
        for (name, number, bounds) in [
            ("queue_pairs", self.queue_pairs, QUEUE_PAIRS),
            ("service_level", self.service_level, SERVICE_LEVELS),
            ("timeout", self.timeout, TIMEOUTS),
            ("retries", self.retries, RETRIES),
        ] {
            if !bounds.contains(&number) {
                let (least, most) = bounds.into_inner();
                let what = format!("rdma.{name} is {number}, not a number from {least} to {most}");
                return Err(Error::invalid(what));
            }
        }
        Ok(())
    }

    /// The values in the order of the table.
    pub(super) fn values(&self) -> [String; COUNT] {
        [
            self.devices.clone().unwrap_or("all".into()),
            self.queue_pairs.to_string(),
            self.gid_index.map_or("by network".into(), |index| index.to_string()),
            self.service_level.to_string(),
            self.traffic_class.to_string(),
            self.timeout.to_string(),
            self.retries.to_string(),
            self.reconnect.as_millis().to_string(),
            self.cache_bytes.to_string(),
        ]
    }
}
