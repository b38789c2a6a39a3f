//! Which rank counts what several have: sums over all ranks then have every parameter once.

use super::Gpt;
use crate::layout::Layout;
use crate::parallel::tensor::Place;

impl Gpt {
    /// Of each tensor, whether this rank counts its part of it: of the ranks that divide the model
    /// and have the same part, the first does.
    pub(crate) fn counted(&self) -> Vec<bool> {
        if !self.is_divided() {
            return vec![true; self.layout.tensors().len()];
        }
        let (whole, rank) = (Layout::new(*self.layout.config()), self.rank());
        let own = self.division.place(rank);
        let before: Vec<Place> = (0..rank).map(|rank| self.division.place(rank)).collect();
        let tensors = whole.tensors().iter();
        tensors.map(|tensor| own.is_first(&before, whole.config(), tensor)).collect()
    }
}
