//! A step under way: reads ahead, writes behind, and lends what lies between.

use std::ops::Range;

use super::error::{Doing, StepError};
use super::home::Home;
use super::pipeline::{Middle, Moved, Pipeline};
use super::ring::{Cause, Slot, Trouble};

impl Pipeline {
    /// Pass every chunk from `home` through `middle` and back.
    ///
    /// When this returns, with or without an error, no transfer of this step is on its way, except
    /// one that took longer than the limit. Every write has been seen to end well if it is `Ok`.
    ///
    /// Cost: what the home's transfers cost, and one small allocation for each chunk.
    ///
    /// # Errors
    /// The first read, update or write that failed: [`StepError::Stopped`] says what that leaves.
    pub fn run<H: Home>(
        &mut self,
        home: &mut H,
        middle: &mut impl Middle,
    ) -> Result<Moved, StepError> {
        let elements = 0..self.shape().elements();
        let mut running = self.begin(home)?;
        running.update(elements, middle)?;
        running.finish()
    }

    /// Begin to read, and leave it to the caller what is updated when.
    ///
    /// # Errors
    /// Memory that an earlier step gave up on could not be replaced.
    pub fn begin<'a, H: Home>(&'a mut self, home: &'a mut H) -> Result<Running<'a, H>, StepError> {
        self.refill()?;
        Ok(Running::new(self, home))
    }
}

/// A step that has begun. Dropped before its end, it waits for what is on its way; what was updated
/// of the last chunks is lost then, and the homes hold a mixture.
pub struct Running<'a, H: Home> {
    pipeline: &'a mut Pipeline,
    home: &'a mut H,
    slots: Vec<Slot<H>>,
    /// The first chunk that was not asked for yet.
    next: usize,
    /// The first element that was not updated yet.
    done: usize,
    /// What went wrong and was not yet told.
    trouble: Option<Trouble>,
    is_over: bool,
}

impl<'a, H: Home> Running<'a, H> {
    pub(super) fn new(pipeline: &'a mut Pipeline, home: &'a mut H) -> Self {
        let slots = pipeline.lend().into_iter().map(Slot::new).collect();
        let mut running =
            Self { pipeline, home, slots, next: 0, done: 0, trouble: None, is_over: false };
        running.trouble = running.read_ahead().err();
        running
    }

    /// Whether [`update`](Self::update) of these elements, the next ones, would not wait for reads:
    /// they are here, or something went wrong that it will tell, or they are more than there is
    /// memory for and the first of them are here. Starts whatever can be started; never waits.
    pub fn is_ready(&mut self, elements: Range<usize>) -> bool {
        if self.trouble.is_none() && !self.is_over {
            self.trouble = self.read_ahead().err();
        }
        if self.trouble.is_some() || self.is_over || elements.is_empty() {
            return true;
        }
        let (first, count) = (self.chunk_of(elements.start), self.slots.len());
        let last = self.chunk_of(elements.end - 1).min(first + count - 1);
        (first..=last).all(|chunk| chunk < self.next && self.slots[chunk % count].is_still())
    }

    /// Pass elements through `middle`, chunk by chunk, and start to write each chunk of which these
    /// are the last. Waits for reads that have not ended.
    ///
    /// # Errors
    /// The first read, update or write that failed. The step is over then.
    ///
    /// # Panics
    /// When these are not the elements after the last ones, or end behind the state.
    pub fn update(
        &mut self,
        elements: Range<usize>,
        middle: &mut impl Middle,
    ) -> Result<(), StepError> {
        assert_eq!(elements.start, self.done, "elements are updated in order");
        assert!(elements.end <= self.pipeline.shape().elements(), "{elements:?} are not there");
        let outcome = match self.trouble.take() {
            _ if self.is_over => Err((self.chunk_of(self.done), Doing::Update, over())),
            Some(trouble) => Err(trouble),
            None => self.pass(elements, middle),
        };
        outcome.map_err(|trouble| self.stop(trouble))
    }

    /// Wait until every write has ended.
    ///
    /// # Errors
    /// A write that failed, or elements that were never updated.
    pub fn finish(mut self) -> Result<Moved, StepError> {
        let mut outcome = match self.trouble.take() {
            _ if self.is_over => Err((self.chunk_of(self.done), Doing::Update, over())),
            trouble => trouble.map_or(Ok(()), Err),
        };
        if outcome.is_ok() && self.done < self.pipeline.shape().elements() {
            let why = format!("elements from {} on were never updated", self.done);
            outcome = Err((self.chunk_of(self.done), Doing::Update, why.into()));
        }
        let outcome = outcome.and(self.settle());
        outcome.map_err(|trouble| self.stop(trouble))?;
        let shape = self.pipeline.shape();
        Ok(Moved { read_bytes: shape.read_bytes(), written_bytes: shape.bytes() })
    }

    fn pass(&mut self, elements: Range<usize>, middle: &mut impl Middle) -> Result<(), Trouble> {
        while self.done < elements.end {
            let chunk = self.chunk_of(self.done);
            self.bring(chunk)?;
            let whole = self.pipeline.shape().range(chunk);
            let part = self.done..whole.end.min(elements.end);
            self.lend(chunk, part.clone(), middle)?;
            self.done = part.end;
            if part.end == whole.end {
                let at = chunk % self.slots.len();
                self.slots[at].write(self.home, self.pipeline.shape())?;
                self.read_ahead()?;
            }
        }
        Ok(())
    }

    /// Let `middle` see the arrays of some elements of a chunk that is here.
    fn lend(
        &mut self,
        chunk: usize,
        part: Range<usize>,
        middle: &mut impl Middle,
    ) -> Result<(), Trouble> {
        let shape = self.pipeline.shape();
        let from = part.start - shape.range(chunk).start;
        let at = chunk % self.slots.len();
        let arrays = self.slots[at].arrays().zip(shape.widths());
        let cut = arrays.map(|(buffer, width)| &mut buffer[from * width..][..part.len() * width]);
        let mut arrays: Vec<&mut [u8]> = cut.collect();
        middle.update(part, &mut arrays).map_err(|cause| (chunk, Doing::Update, cause))
    }

    /// Read into every slot whose last write has ended, as far as there are slots.
    fn read_ahead(&mut self) -> Result<(), Trouble> {
        let (count, chunks) = (self.slots.len(), self.pipeline.shape().chunks());
        while self.next < chunks.min(self.chunk_of(self.done) + count) {
            if !self.slots[self.next % count].is_still() {
                break;
            }
            self.read_next()?;
        }
        Ok(())
    }

    /// Wait until a chunk is here.
    fn bring(&mut self, chunk: usize) -> Result<(), Trouble> {
        self.read_ahead()?;
        while self.next <= chunk {
            self.read_next()?;
        }
        let (at, limit) = (chunk % self.slots.len(), self.pipeline.patience());
        self.slots[at].settle(limit)
    }

    /// Read the next chunk, once the slot that it gets has been written.
    fn read_next(&mut self) -> Result<(), Trouble> {
        let slot = &mut self.slots[self.next % self.pipeline.slots()];
        slot.settle(self.pipeline.patience())?;
        slot.read(self.home, self.pipeline.shape(), self.next)?;
        self.next += 1;
        Ok(())
    }

    /// Wait for everything; the first trouble.
    fn settle(&mut self) -> Result<(), Trouble> {
        let limit = self.pipeline.patience();
        let mut outcome = Ok(());
        for slot in &mut self.slots {
            outcome = outcome.and(slot.settle(limit));
        }
        outcome
    }

    /// The error of a step that is over, when nothing of it is on its way any more.
    fn stop(&mut self, (chunk, doing, cause): Trouble) -> StepError {
        self.is_over = true;
        // What else went wrong follows from the first trouble, or comes too late to matter.
        let _later = self.settle();
        let shape = self.pipeline.shape();
        let chunks = shape.chunks();
        let updated = if self.done == shape.elements() { chunks } else { self.chunk_of(self.done) };
        StepError::Stopped { chunk, chunks, doing, updated, cause }
    }

    fn chunk_of(&self, element: usize) -> usize {
        element / self.pipeline.shape().chunk_elements()
    }
}

impl<H: Home> Drop for Running<'_, H> {
    fn drop(&mut self) {
        // Whoever drops a step does not ask how it went; memory under way is what matters here.
        let _unasked = self.settle();
        let slots = self.slots.drain(..).map(Slot::into_buffers);
        let buffers = slots.collect();
        self.pipeline.take_back(buffers);
    }
}

fn over() -> Cause {
    "the step had stopped before".into()
}
