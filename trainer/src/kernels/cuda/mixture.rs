//! What a mixture of experts does beside products: gates, and rows on their way to experts and
//! back, as `moe` has it.

use super::launch::{launch, narrow};
use super::{Device, View};
use crate::error::Error;
use brigade_cuda::Arg;

/// Where the rows of the stream go: `top` choices each, in the order of rows, and in that of
/// sending.
#[derive(Clone, Copy, Debug)]
pub struct Routes {
    /// [rows × top] u32: the expert of each choice.
    pub chosen: View,
    /// [rows × top] f32: what its answer is multiplied by.
    pub shares: View,
    /// [rows × top] u32: its place in the order of sending.
    pub places: View,
    /// [rows × top] u32: the choice at each place.
    pub choices: View,
    /// Choices of each row.
    pub top: usize,
}

impl Device {
    /// Scores, [rows × experts] in f32, become the softmax of each row, whose likeliest are chosen.
    pub fn choose_experts(&self, scores: View, routes: Routes) -> Result<(), Error> {
        let Routes { chosen, shares, top, .. } = routes;
        let rows = chosen.len() / top;
        let [experts, count] = [scores.len() / rows, top].map(narrow);
        assert!(
            shares.len() == rows * top
                && scores.len().is_multiple_of(rows)
                && top as u32 <= experts
        );
        let len = rows as u64;
        launch!(self.choose_experts(
            scores.address(), chosen.address(), shares.address(), experts, count, len,
        ) as self.elements(rows))
    }

    /// Rows of x, [rows × width] inside, in the order of sending.
    pub fn send_rows(&self, y: View, x: View, routes: Routes) -> Result<(), Error> {
        let (width, top) = routes.shape(x);
        assert_eq!(y.len(), x.len() * routes.top);
        let len = y.len() as u64;
        launch!(self.send_rows(y.address(), x.address(), routes.choices.address(), top, width, len)
            as self.elements(y.len()))
    }

    /// y = onto + what experts answered, inside and in the order of sending, by its shares. y and
    /// onto: [rows × width] in f32.
    pub fn combine_answers(
        &self,
        y: View,
        onto: View,
        answers: View,
        routes: Routes,
    ) -> Result<(), Error> {
        let (width, top) = routes.shape(y);
        assert!(onto.len() == y.len() && answers.len() == y.len() * routes.top);
        let Routes { places, shares, .. } = routes;
        let len = y.len() as u64;
        launch!(self.combine_answers(
            y.address(), onto.address(), answers.address(), places.address(), shares.address(),
            top, width, len,
        ) as self.elements(y.len()))
    }

    /// The gradient of each share, from that of y, [rows × width] in f32.
    pub fn share_gradients(
        &self,
        dshares: View,
        dy: View,
        answers: View,
        routes: Routes,
    ) -> Result<(), Error> {
        let (width, top) = routes.shape(dy);
        assert!(dshares.len() == routes.places.len() && answers.len() == dy.len() * routes.top);
        let (places, choices) = (routes.places.address(), dshares.len() as u64);
        launch!(self.share_gradients(
            dshares.address(), dy.address(), answers.address(), places, top, width, choices,
        ) as self.rows(dshares.len(), width as usize))
    }

    /// The gradients of answers, inside and in the order of sending.
    pub fn send_gradients(&self, y: View, dy: View, routes: Routes) -> Result<(), Error> {
        let (width, top) = routes.shape(dy);
        assert_eq!(y.len(), dy.len() * routes.top);
        let Routes { choices, shares, .. } = routes;
        let len = y.len() as u64;
        launch!(self.send_gradients(
            y.address(), dy.address(), choices.address(), shares.address(), top, width, len,
        ) as self.elements(y.len()))
    }

    /// Adds to dx, [rows × width] in f32, what came back, inside and in the order of sending.
    pub fn add_returned(&self, dx: View, came: View, routes: Routes) -> Result<(), Error> {
        let (width, top) = routes.shape(dx);
        assert_eq!(came.len(), dx.len() * routes.top);
        let (places, len) = (routes.places.address(), dx.len() as u64);
        launch!(self.add_returned(dx.address(), came.address(), places, top, width, len)
            as self.elements(dx.len()))
    }

    /// The gradient of scores, inside, from that of shares. probs: [rows × experts] in f32.
    pub fn gate_backward(
        &self,
        dscores: View,
        probs: View,
        dshares: View,
        routes: Routes,
    ) -> Result<(), Error> {
        let Routes { chosen, top, .. } = routes;
        let rows = chosen.len() / top;
        assert!(dscores.len() == probs.len() && dshares.len() == chosen.len());
        let ([experts, top], len) = ([probs.len() / rows, top].map(narrow), rows as u64);
        launch!(self.gate_backward(
            dscores.address(), probs.address(), chosen.address(), dshares.address(), experts, top,
            len,
        ) as self.elements(rows))
    }
}

impl Routes {
    /// Numbers of a row of the stream, and its choices.
    fn shape(self, stream: View) -> (u32, u32) {
        let rows = self.places.len() / self.top;
        assert_eq!((self.choices.len(), self.shares.len()), (rows * self.top, rows * self.top));
        (narrow(stream.len() / rows), narrow(self.top))
    }
}
