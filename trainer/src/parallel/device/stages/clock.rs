//! When a device computed what in a step, by its own events.

use crate::error::Error;
use crate::parallel::pipeline::Span;
use brigade_cuda::{Event, Stream};
use std::time::Duration;

/// Events around each computation of a step.
pub(super) struct Clock {
    stream: Stream,
    start: Event,
    /// Begin and end of each, in order.
    marks: Vec<[Event; 2]>,
    /// How many have begun.
    begun: usize,
}

impl Clock {
    /// For so many computations a step in this stream.
    pub(super) fn new(stream: &Stream, count: usize) -> Result<Clock, Error> {
        let event = || Event::timed(stream.context());
        let marks = (0..count).map(|_| Ok([event()?, event()?])).collect::<Result<_, Error>>()?;
        Ok(Clock { stream: stream.clone(), start: event()?, marks, begun: 0 })
    }

    /// A step begins.
    pub(super) fn start(&mut self) -> Result<(), Error> {
        self.begun = 0;
        Ok(self.stream.record(&self.start)?)
    }

    /// What comes next is a computation, until `end`.
    pub(super) fn begin(&mut self) -> Result<(), Error> {
        self.begun += 1;
        Ok(self.stream.record(&self.marks[self.begun - 1][0])?)
    }

    pub(super) fn end(&self) -> Result<(), Error> {
        Ok(self.stream.record(&self.marks[self.begun - 1][1])?)
    }

    /// Behind the last one: when each was computed, and how long none was. The stream has been
    /// waited for.
    pub(super) fn read(&self, spans: &mut [Span]) -> Result<Duration, Error> {
        assert_eq!(spans.len(), self.begun, "every computation has its span");
        let (mut busy, mut last) = (0.0, 0.0);
        for (span, [begin, end]) in spans.iter_mut().zip(&self.marks) {
            let since = |event: &Event| Ok::<_, Error>(event.since(&self.start)?.as_secs_f64());
            (span.begin, span.end) = (since(begin)?, since(end)?);
            (busy, last) = (busy + span.end - span.begin, span.end);
        }
        Ok(Duration::from_secs_f64(f64::max(last - busy, 0.0)))
    }
}
