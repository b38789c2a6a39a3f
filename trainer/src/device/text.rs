//! The text of a pass, as a rank has it.

use crate::data::fill;
use crate::extent::Extent;

/// Tokens of a pass and the byte after each, of which the rank looks at some rows.
pub(crate) struct Text {
    /// [samples × time]
    tokens: Vec<u32>,
    targets: Vec<u32>,
    time: usize,
    /// Rows that the rank has, in their order; and whether others have others.
    rows: Vec<u32>,
    is_divided: bool,
}

impl Text {
    /// Room for whole samples of `time` tokens, of which the rank has this much.
    pub(crate) fn new(extent: Extent, samples: usize, time: usize) -> Text {
        let (tokens, rows) = (vec![0; samples * time], extent.rows);
        let is_divided = rows.len() < tokens.len();
        Text { targets: tokens.clone(), tokens, time, rows, is_divided }
    }

    /// Have these samples in it.
    pub(crate) fn fill<'w>(&mut self, windows: impl Iterator<Item = &'w [u8]>) {
        fill(windows, &mut self.tokens, &mut self.targets, self.time);
    }

    /// Have this in it, in front of what was there: what stands behind a text changes no loss.
    pub(crate) fn put(&mut self, [tokens, targets]: [&[u32]; 2]) {
        self.tokens[..tokens.len()].copy_from_slice(tokens);
        self.targets[..targets.len()].copy_from_slice(targets);
    }

    /// As a tape has it: tokens, targets, and, where others have other rows, the place of each row
    /// in its sample.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u32> {
        let of = |numbers: &'_ [u32], row: &u32| numbers[*row as usize];
        let tokens = self.rows.iter().map(move |row| of(&self.tokens, row));
        let targets = self.rows.iter().map(move |row| of(&self.targets, row));
        let places = self.rows.iter().map(|row| row % self.time as u32);
        tokens.chain(targets).chain(places.take(if self.is_divided { usize::MAX } else { 0 }))
    }

    /// How many numbers that are.
    pub(crate) fn len(&self) -> usize {
        self.rows.len() * if self.is_divided { 3 } else { 2 }
    }

    /// Rows that the rank has, if others have others.
    pub(crate) fn parts(&self) -> Option<&[u32]> {
        self.is_divided.then_some(&self.rows)
    }
}
