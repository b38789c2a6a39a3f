//! What a GPU does by itself: the limits that everything else on it is a fraction of. Copies on the
//! device, launches, graphs, copies to and from the host, and memory of another process.

mod copies;
mod launches;
mod peers;

use brigade_cuda::nvrtc::Source;
use brigade_cuda::{Context, CudaError, Device, Event, Result, Stream};
use serde::Serialize;

pub use peers::peer;

/// One measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// What was measured.
    pub what: String,
    /// Bytes that were moved each time; none where nothing is.
    pub bytes: usize,
    /// Microseconds of one, the median.
    pub us: f64,
    /// Bytes over that time, in units of 1e9.
    pub gb_s: f64,
    /// How it compares with a limit of this same run, in rate: 1 is as fast.
    pub fraction: Option<f64>,
    /// That limit.
    pub of: Option<&'static str>,
    /// Whether what should have arrived has; none where nothing was looked at.
    pub right: Option<bool>,
}

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// The longest copy, in bytes.
    pub bytes_max: usize,
    /// Times that each thing is measured.
    pub turns: usize,
}

impl Effort {
    /// For numbers to be recorded.
    pub const FULL: Self = Self { bytes_max: 1 << 30, turns: 15 };
    /// To see that everything runs.
    pub const QUICK: Self = Self { bytes_max: 1 << 20, turns: 3 };
}

const KERNELS: &str = include_str!("cuda/limits.cu");
const SOURCE: Source = Source::new("limits", KERNELS);

/// The kernels of this room.
pub fn sources() -> Vec<(String, Source)> {
    vec![(String::from("limits of a device"), SOURCE)]
}

/// What measurements share: a device, a stream on it, and who is told.
struct Bench<'a> {
    context: Context,
    stream: Stream,
    effort: Effort,
    tell: &'a mut dyn FnMut(&Row),
    /// The rate of the longest copy on the device, once it is known.
    copy_gb_s: f64,
    /// The time of an empty launch, once it is known.
    launch_us: f64,
}

/// Measure everything on `device`, telling row after row. `child` is the command line of a process
/// that calls [`peer`]; without one nothing is measured between processes.
///
/// # Errors
///
/// What the driver says, and a device that answers wrongly is told in its row.
pub fn measure(
    device: &Device,
    effort: Effort,
    child: Option<&[String]>,
    tell: &mut dyn FnMut(&Row),
) -> Result<()> {
    let context = Context::new(device)?;
    let stream = Stream::new(&context)?;
    context.keep_pooled(u64::MAX)?;
    let mut bench = Bench { context, stream, effort, tell, copy_gb_s: 0.0, launch_us: 0.0 };
    copies::on_device(&mut bench)?;
    launches::launches(&mut bench)?;
    launches::graphs(&mut bench)?;
    copies::with_host(&mut bench)?;
    if let Some(command) = child {
        peers::between_processes(&mut bench, command)?;
    }
    Ok(())
}

impl Bench<'_> {
    /// The median time of `work`, between two events of the stream, in microseconds. `each` is how
    /// often the work does what is measured.
    fn time(&self, each: usize, mut work: impl FnMut() -> Result<()>) -> Result<f64> {
        let (start, end) = (Event::timed(&self.context)?, Event::timed(&self.context)?);
        let mut times = Vec::new();
        for turn in 0..=self.effort.turns {
            self.stream.record(&start)?;
            work()?;
            self.stream.record(&end)?;
            end.synchronize()?;
            // The first one warms up.
            if turn > 0 {
                times.push(end.since(&start)?.as_secs_f64() * 1e6 / each as f64);
            }
        }
        times.sort_by(f64::total_cmp);
        Ok(times[times.len() / 2])
    }

    fn row(&mut self, what: impl Into<String>, bytes: usize, us: f64) -> Row {
        let gb_s = if bytes == 0 { 0.0 } else { bytes as f64 / us / 1e3 };
        let what = what.into();
        Row { what, bytes, us, gb_s, fraction: None, of: None, right: None }
    }

    fn sizes(&self) -> Vec<usize> {
        let all = [4 << 10, 1 << 20, 64 << 20, 256 << 20, 1 << 30];
        all.into_iter().filter(|bytes| *bytes <= self.effort.bytes_max).collect()
    }
}

impl Row {
    /// The same, beside a limit in rate.
    fn beside(self, gb_s: f64, of: &'static str) -> Self {
        Self { fraction: Some(self.gb_s / gb_s), of: Some(of), ..self }
    }

    /// The same, beside a limit in time.
    fn beside_us(self, us: f64, of: &'static str) -> Self {
        Self { fraction: Some(us / self.us), of: Some(of), ..self }
    }

    fn checked(self, right: bool) -> Self {
        Self { right: Some(right), ..self }
    }

    /// As a line of JSON.
    ///
    /// # Errors
    ///
    /// None that can happen: it is plain numbers and text.
    pub fn json(&self) -> serde_json::Result<String> {
        serde_json::to_string(self)
    }
}

/// An error of the system as one of ours.
fn system(what: &str, error: &dyn std::fmt::Display) -> CudaError {
    CudaError::File { what: what.to_owned(), error: error.to_string() }
}
