//! Who holds how much of the arena: a row for each category, and it adds up to the capacity.

use std::fmt;

/// What a buffer is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Category {
    /// Weights that a model computes with.
    Parameters,
    /// What the backward pass leaves.
    Gradients,
    /// Master weights and moments.
    Optimizer,
    /// What the forward pass keeps for the backward pass.
    Activations,
    /// Blocks on their way between tiers.
    Staging,
    /// Blocks of a checkpoint.
    Checkpoint,
    /// Anything else.
    Other,
}

impl Category {
    /// Every category, in the order in which a ledger prints them.
    pub const ALL: [Category; 7] = [
        Category::Parameters,
        Category::Gradients,
        Category::Optimizer,
        Category::Activations,
        Category::Staging,
        Category::Checkpoint,
        Category::Other,
    ];

    /// Its name in tables: lower case, one word.
    pub fn name(self) -> &'static str {
        match self {
            Category::Parameters => "parameters",
            Category::Gradients => "gradients",
            Category::Optimizer => "optimizer",
            Category::Activations => "activations",
            Category::Staging => "staging",
            Category::Checkpoint => "checkpoint",
            Category::Other => "other",
        }
    }
}

/// Bytes of an arena at one moment: held by category, lost to rounding, free.
///
/// `total() + rounding() + free() == capacity()`, always.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ledger {
    held: [usize; Category::ALL.len()],
    rounding: usize,
    free: usize,
    peak: usize,
}

impl Ledger {
    pub(super) fn new(capacity: usize) -> Self {
        Self { held: [0; Category::ALL.len()], rounding: 0, free: capacity, peak: 0 }
    }

    /// Bytes asked for in this category and not given back yet.
    pub fn held(&self, category: Category) -> usize {
        self.held[category as usize]
    }

    /// Bytes held in all categories.
    pub fn total(&self) -> usize {
        self.held.iter().sum()
    }

    /// Bytes that end buffers whose length is no multiple of the alignment.
    pub fn rounding(&self) -> usize {
        self.rounding
    }

    /// Bytes that can still be taken, though perhaps not in one piece.
    pub fn free(&self) -> usize {
        self.free
    }

    /// The most bytes that were ever taken at once, with rounding.
    pub fn peak(&self) -> usize {
        self.peak
    }

    /// Bytes of the whole arena.
    pub fn capacity(&self) -> usize {
        self.total() + self.rounding + self.free
    }

    pub(super) fn take(&mut self, bytes: usize, span: usize, category: Category) {
        self.held[category as usize] += bytes;
        self.rounding += span - bytes;
        self.free -= span;
        self.peak = self.peak.max(self.total() + self.rounding);
    }

    pub(super) fn give(&mut self, bytes: usize, span: usize, category: Category) {
        self.held[category as usize] -= bytes;
        self.rounding -= span - bytes;
        self.free += span;
    }
}

impl fmt::Display for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for category in Category::ALL.into_iter().filter(|c| self.held(*c) > 0) {
            write!(f, "{} {} + ", category.name(), self.held(category))?;
        }
        write!(f, "rounding {} + free {} = {}", self.rounding, self.free, self.capacity())
    }
}
