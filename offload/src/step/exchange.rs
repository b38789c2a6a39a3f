//! Where gradients come from, and where weights go to.

use std::convert::Infallible;
use std::error::Error;
use std::ops::Range;

use crate::optimizer::{Gradients, Narrowed};

/// The outer ends of an optimizer's step: a source of gradients and a sink of narrowed weights, some
/// elements at a time, in order.
///
/// A collective implements it by its two halves: [`open`](Self::open) returns once the sum of these
/// gradients over all ranks has arrived, [`close`](Self::close) sends the new weights on their way.
pub trait Exchange {
    /// What may go wrong.
    type Error: Error + Send + Sync + 'static;

    /// The gradients of `elements`, and where their narrowed weights go, each as long as they are.
    /// Waits for the gradients, with a deadline.
    ///
    /// # Errors
    /// They did not come.
    fn open(
        &mut self,
        elements: Range<usize>,
    ) -> Result<(Gradients<'_>, Narrowed<'_>), Self::Error>;

    /// The weights of `elements` have been written to where they go.
    ///
    /// # Errors
    /// They could not be sent on.
    fn close(&mut self, elements: Range<usize>) -> Result<(), Self::Error>;
}

/// Gradients that are all there, and memory for all narrowed weights.
#[derive(Debug)]
pub struct InMemory<'a> {
    /// Of all elements.
    pub gradients: Gradients<'a>,
    /// For all elements, or none.
    pub narrowed: Narrowed<'a>,
}

impl Exchange for InMemory<'_> {
    type Error = Infallible;

    fn open(
        &mut self,
        elements: Range<usize>,
    ) -> Result<(Gradients<'_>, Narrowed<'_>), Infallible> {
        Ok((self.gradients.part(elements.clone()), self.narrowed.part(elements)))
    }

    fn close(&mut self, _: Range<usize>) -> Result<(), Infallible> {
        Ok(())
    }
}
