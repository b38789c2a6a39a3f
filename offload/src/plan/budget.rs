//! The three inputs, and the rates of what lies between them.

/// Where a rate comes from: whoever reads a plan shall know what it rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// Measured on this machine.
    Measured,
    /// Said by the user.
    Given,
    /// Neither: a usual value.
    Assumed,
}

/// A rate and where it comes from. The unit stands where the rate is used.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Rate {
    /// How much a second.
    pub value: f64,
    /// Who says so.
    pub source: Source,
}

/// Bytes of memory that are far more than any machine has, and far from overflow.
pub(super) const PLENTY: u64 = 1 << 60;

/// Rates for which times are numbers, whatever is moved.
const RATE_LEAST: f64 = 1e-6;
const RATE_MOST: f64 = 1e12;

/// A folder on a drive that may hold state.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Drive {
    /// The folder, as its user names it.
    pub path: String,
    /// Sequential reads, in GB/s.
    pub read: Rate,
    /// Sequential writes, in GB/s.
    pub write: Rate,
    /// Reads and writes at once, both summed, in GB/s; `None`: each goes at its own rate.
    pub both: Option<f64>,
    /// Bytes that may be taken of it.
    pub capacity_bytes: u64,
    /// TB that its maker stands for being written (TBW).
    pub endurance_tb: Option<f64>,
}

/// The three inputs: what one process may use of the device, of the host, and of drives.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Budgets {
    /// Bytes of the device; 0: there is none, and the host computes.
    pub device_bytes: u64,
    /// Bytes of the host, pinned or not.
    pub host_bytes: u64,
    /// Where files may lie; striped over all of them.
    pub drives: Vec<Drive>,
}

/// How fast the rest of the machine is, for one process.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Rates {
    /// Between host and device, each way, in GB/s.
    pub link: Rate,
    /// Memory that the host's update reads and writes, in GB/s.
    pub update: Rate,
    /// Operations of the passes that are reached when nothing is waited for, in TFLOP/s.
    pub peak: Rate,
}

impl Rate {
    /// A rate that was measured.
    pub const fn measured(value: f64) -> Self {
        Self { value, source: Source::Measured }
    }

    /// A rate that somebody gave.
    pub const fn given(value: f64) -> Self {
        Self { value, source: Source::Given }
    }

    /// A usual rate.
    pub const fn assumed(value: f64) -> Self {
        Self { value, source: Source::Assumed }
    }

    fn problem(self, name: &str) -> Option<String> {
        let Self { value, .. } = self;
        // Not-a-number is in no range.
        let is_rate = (RATE_LEAST..=RATE_MOST).contains(&value);
        (!is_rate).then(|| format!("{name}: {value:?} is no rate; it must be 1e-6 to 1e12"))
    }
}

impl Drive {
    /// A drive of unlimited room and unknown endurance, with rates in GB/s.
    pub fn new(path: impl Into<String>, read: Rate, write: Rate) -> Self {
        let path = path.into();
        Self { path, read, write, both: None, capacity_bytes: u64::MAX, endurance_tb: None }
    }

    fn problem(&self) -> Option<String> {
        let both = self.both.map(|both| ("read and write at once", Rate::given(both)));
        let mut rates = [("read", self.read), ("write", self.write)].into_iter().chain(both);
        rates.find_map(|(name, rate)| rate.problem(&format!("{} {name}", self.path)))
    }
}

impl Budgets {
    /// Whether there is a device beside the host.
    pub fn has_device(&self) -> bool {
        self.device_bytes > 0
    }

    /// What is wrong with them, if anything is.
    pub(super) fn problem(&self) -> Option<String> {
        let bytes = [("device", self.device_bytes), ("host", self.host_bytes)];
        let too_many = bytes.into_iter().find(|(_, bytes)| *bytes > PLENTY);
        let too_many = too_many.map(|(name, bytes)| format!("{name}: {bytes} bytes are too many"));
        too_many.or_else(|| self.drives.iter().find_map(Drive::problem))
    }
}

impl Rates {
    /// Usual values: a PCIe 4 link, eight cores that update, and a data centre's accelerator (or
    /// the host's own cores where there is no device).
    pub const fn assumed(has_device: bool) -> Self {
        Self {
            link: Rate::assumed(20.0),
            update: Rate::assumed(50.0),
            peak: Rate::assumed(if has_device { 100.0 } else { 0.5 }),
        }
    }

    /// What is wrong with them, if anything is.
    pub(super) fn problem(&self) -> Option<String> {
        let rates = [("link", self.link), ("update", self.update), ("peak", self.peak)];
        rates.into_iter().find_map(|(name, rate)| rate.problem(name))
    }
}
