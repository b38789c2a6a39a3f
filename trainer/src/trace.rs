//! What each rank did when, for `--trace`: a file that Perfetto and Chrome's tracing page open.
//!
//! Whoever does something worth seeing holds a span while it lasts. Spans belong to the thread that
//! trains; where nobody asked for a trace, and on other threads, holding one costs a look at a
//! thread's own variable. Times count from a barrier, so ranks of several hosts line up.
//!
//! Not here: what kernels do inside. A span is a unit's forward, a wait, a call on its way.

use crate::error::Error;
use brigade_comm::Communicator;
use brigade_offload::storage::write_whole;
use std::cell::RefCell;
use std::fmt::Write;
use std::path::Path;
use std::time::Instant;

/// Spans that one rank keeps: about ten minutes of the default model. Later ones are left out.
const SPANS_MAX: usize = 200_000;

/// What a span is about: a line of its own in the picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// Forward, backward, updates.
    Compute,
    /// Nothing is done because a call has not ended.
    Waiting,
    /// A call is on its way; several may be.
    Calls,
    /// Nothing is done because a file has not been read or written.
    Files,
}

impl Lane {
    const ALL: [Lane; 4] = [Lane::Compute, Lane::Waiting, Lane::Calls, Lane::Files];

    fn name(self) -> &'static str {
        match self {
            Lane::Compute => "compute",
            Lane::Waiting => "waiting",
            Lane::Calls => "calls on their way",
            Lane::Files => "waiting for files",
        }
    }
}

struct Past {
    lane: Lane,
    what: &'static str,
    which: usize,
    from_ns: u64,
    to_ns: u64,
}

struct Recorder {
    zero: Instant,
    spans: Vec<Past>,
}

thread_local! {
    static RECORDER: RefCell<Option<Recorder>> = const { RefCell::new(None) };
}

/// Something that goes on until this value is dropped.
#[must_use]
pub struct Span {
    lane: Lane,
    what: &'static str,
    which: usize,
    from: Option<Instant>,
}

/// Something begins; `which` unit, step or slot it is about is a number behind its name.
pub fn span(lane: Lane, what: &'static str, which: usize) -> Span {
    let is_on = RECORDER.with_borrow(Option::is_some);
    Span { lane, what, which, from: is_on.then(Instant::now) }
}

impl Drop for Span {
    fn drop(&mut self) {
        let Some(from) = self.from else { return };
        let to = Instant::now();
        RECORDER.with_borrow_mut(|recorder| {
            let Some(Recorder { zero, spans }) = recorder else { return };
            if spans.len() == SPANS_MAX {
                return;
            }
            let ns = |at: Instant| at.saturating_duration_since(*zero).as_nanos() as u64;
            let Span { lane, what, which, .. } = *self;
            spans.push(Past { lane, what, which, from_ns: ns(from), to_ns: ns(to) });
        });
    }
}

/// Record this thread's spans from now on. Collective.
pub(crate) fn begin(world: Option<&Communicator>) -> Result<(), Error> {
    let spans = Vec::with_capacity(SPANS_MAX);
    world.map_or(Ok(()), Communicator::barrier)?;
    RECORDER.set(Some(Recorder { zero: Instant::now(), spans }));
    Ok(())
}

/// Stop, and have rank 0 write the spans of all ranks. Collective.
///
/// Errors: `File` if it cannot be written.
pub(crate) fn end(world: Option<&Communicator>, path: &Path) -> Result<(), Error> {
    let Some(recorder) = RECORDER.take() else { return Ok(()) };
    let mine = events(&recorder.spans, world.map_or(0, Communicator::rank));
    let all = match world {
        None => mine.into_bytes(),
        Some(comm) => {
            let mut lengths = vec![0u64; comm.size()];
            comm.all_gather(&[mine.len() as u64], &mut lengths)?;
            let lengths: Vec<usize> = lengths.into_iter().map(|length| length as usize).collect();
            let room = if comm.rank() == 0 { lengths.iter().sum() } else { 0 };
            let mut all = vec![0u8; room];
            comm.gather_v(mine.as_bytes(), &mut all, &lengths, 0)?;
            if comm.rank() > 0 {
                return Ok(());
            }
            all
        }
    };
    let mut text = b"{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n".to_vec();
    text.extend_from_slice(all.strip_suffix(b",\n").unwrap_or(&all));
    text.extend_from_slice(b"\n]}\n");
    write_whole(path, text).map_err(Error::file("write", path))
}

/// The Trace Event Format's lines of one rank, each with a comma behind it. Calls may overlap, so
/// theirs are pairs of asynchronous events; the other lanes are threads.
fn events(spans: &[Past], rank: usize) -> String {
    let mut text = String::new();
    let mut put = |line: std::fmt::Arguments<'_>| {
        writeln!(text, "{line},").expect("a string takes everything");
    };
    let meta = |name: &str, lane: usize, value: &str| {
        format!(
            "{{\"ph\":\"M\",\"pid\":{rank},\"tid\":{lane},\"name\":\"{name}\",\
             \"args\":{{\"name\":\"{value}\"}}}}"
        )
    };
    put(format_args!("{}", meta("process_name", 0, &format!("rank {rank}"))));
    for lane in Lane::ALL {
        put(format_args!("{}", meta("thread_name", lane as usize, lane.name())));
    }
    let us = |ns: u64| format!("{}.{:03}", ns / 1000, ns % 1000);
    for (id, Past { lane, what, which, from_ns, to_ns }) in spans.iter().enumerate() {
        let (tid, cat) = (*lane as usize, lane.name());
        let head =
            format!("\"pid\":{rank},\"tid\":{tid},\"cat\":\"{cat}\",\"name\":\"{what} {which}\"");
        if *lane == Lane::Calls {
            let id = format!("{rank}.{id}");
            for (phase, at) in [("b", from_ns), ("e", to_ns)] {
                let ts = us(*at);
                put(format_args!("{{{head},\"ph\":\"{phase}\",\"id\":\"{id}\",\"ts\":{ts}}}"));
            }
        } else {
            let (ts, dur) = (us(*from_ns), us(to_ns - from_ns));
            put(format_args!("{{{head},\"ph\":\"X\",\"ts\":{ts},\"dur\":{dur}}}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_json_and_has_every_span() {
        let path = std::env::temp_dir().join(format!("brigade-trace-{}", std::process::id()));
        drop(span(Lane::Compute, "before", 0));
        begin(None).unwrap();
        let call = span(Lane::Calls, "all-reduce", 3);
        drop(span(Lane::Compute, "forward", 1));
        drop(call);
        end(None, &path).unwrap();
        drop(span(Lane::Compute, "after", 0));
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let trace: serde_json::Value = serde_json::from_str(&text).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        let of = |phase: &str| -> Vec<_> {
            events.iter().filter(|event| event["ph"] == phase).map(|e| &e["name"]).collect()
        };
        assert_eq!(of("X"), ["forward 1"]);
        assert_eq!(of("b"), ["all-reduce 3"]);
        assert_eq!(of("e"), ["all-reduce 3"]);
        assert_eq!(of("M").len(), 5);
        let time = |phase: &str| {
            let event = events.iter().find(|event| event["ph"] == phase).unwrap();
            event["ts"].as_f64().unwrap()
        };
        assert!(time("b") <= time("X") && time("X") <= time("e"));
    }
}
