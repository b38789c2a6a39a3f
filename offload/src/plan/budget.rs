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
        let fine = self.value.is_finite() && self.value > 0.0;
        (!fine).then(|| format!("{name}: {} is no rate; it must be above zero", self.value))
    }
}

impl Drive {
    /// A drive of unlimited room and unknown endurance, with rates in GB/s.
    pub fn new(path: impl Into<String>, read: Rate, write: Rate) -> Self {
        let path = path.into();
        Self { path, read, write, both: None, capacity_bytes: u64::MAX, endurance_tb: None }
    }
}

impl Budgets {
    /// Whether there is a device beside the host.
    pub fn has_device(&self) -> bool {
        self.device_bytes > 0
    }

    /// What is wrong with them, if anything is.
    pub(super) fn problem(&self) -> Option<String> {
        self.drives.iter().find_map(|drive| {
            let rates = [("read", drive.read), ("write", drive.write)];
            let both = drive.both.map(|both| ("read and write at once", Rate::given(both)));
            let mut rates = rates.into_iter().chain(both);
            rates.find_map(|(name, rate)| rate.problem(&format!("{} {name}", drive.path)))
        })
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
