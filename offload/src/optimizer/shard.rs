//! The arrays of a shard: weights, gradients, moments, each in one of a few formats.

use std::ops::Range;

use half::{bf16, f16};

/// What a step updates: arrays of equal length, element by element.
#[derive(Debug)]
pub struct Shard<'a> {
    /// Updated in place.
    pub weights: Weights<'a>,
    /// Only read.
    pub gradients: Gradients<'a>,
    /// Mean of the gradients, or the momentum.
    pub mean: Moment<'a>,
    /// Mean of their squares.
    pub square: Moment<'a>,
    /// Where copies of the new weights go.
    pub narrowed: Narrowed<'a>,
}

/// The weights that a step updates.
#[derive(Debug)]
pub enum Weights<'a> {
    /// In full: what mixed precision calls master weights.
    F32(&'a mut [f32]),
    /// The only copy is bf16; each step rounds to it, so small updates are lost.
    Bf16(&'a mut [bf16]),
}

/// Gradients as they arrive.
#[derive(Clone, Copy, Debug)]
pub enum Gradients<'a> {
    /// Unscaled or not.
    F32(&'a [f32]),
    /// Unscaled or not.
    Bf16(&'a [bf16]),
    /// Mostly with a loss scale.
    F16(&'a [f16]),
}

/// A moment of the gradients, or none.
///
/// A mean square in bf16 does not move by less than 1/512 of itself: with `beta2` above 0.998 it
/// stops short of where it should go. The mean is safe at any `beta1` in use.
#[derive(Debug)]
pub enum Moment<'a> {
    /// The rule has no such moment.
    None,
    /// In full.
    F32(&'a mut [f32]),
    /// Half the memory and half the traffic.
    Bf16(&'a mut [bf16]),
}

/// Where the weights go besides, narrowed to what the model computes with.
#[derive(Debug)]
pub enum Narrowed<'a> {
    /// Nowhere.
    None,
    /// Rounded to bf16.
    Bf16(&'a mut [bf16]),
    /// Rounded to f16; what is too large becomes infinite.
    F16(&'a mut [f16]),
}

/// A shard that a rule cannot update. Nothing has been written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShardError {
    /// The arrays are not parts of the same shard.
    #[error("{array} has {got} elements, the weights have {want}")]
    Length {
        /// Which array.
        array: &'static str,
        /// Its elements.
        got: usize,
        /// Elements of the weights.
        want: usize,
    },
    /// The rule needs a moment that the shard lacks.
    #[error("{rule} needs the moment {array}")]
    Missing {
        /// Which rule.
        rule: &'static str,
        /// Which array.
        array: &'static str,
    },
    /// The shard has a moment that the rule would leave as it is.
    #[error("{rule} has no moment {array}")]
    Unused {
        /// Which rule.
        rule: &'static str,
        /// Which array.
        array: &'static str,
    },
    /// A mean in full beside a mean square in bf16 saves the wrong half.
    #[error("the mean is f32 and the mean square bf16: the other way round loses less")]
    NarrowSquare,
    /// bf16 weights have nothing to narrow.
    #[error("weights that are bf16 already are not narrowed once more")]
    NarrowedTwice,
}

impl<'a> Shard<'a> {
    /// Elements.
    pub fn len(&self) -> usize {
        match &self.weights {
            Weights::F32(weights) => weights.len(),
            Weights::Bf16(weights) => weights.len(),
        }
    }

    /// Whether there is nothing to update.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements before `at`, and the rest.
    ///
    /// # Panics
    /// When an array ends before `at`.
    pub fn split_at(self, at: usize) -> (Self, Self) {
        let (weights, weights_rest) = self.weights.split_at(at);
        let (gradients, gradients_rest) = self.gradients.split_at(at);
        let (mean, mean_rest) = self.mean.split_at(at);
        let (square, square_rest) = self.square.split_at(at);
        let (narrowed, narrowed_rest) = self.narrowed.split_at(at);
        let rest = Shard {
            weights: weights_rest,
            gradients: gradients_rest,
            mean: mean_rest,
            square: square_rest,
            narrowed: narrowed_rest,
        };
        (Shard { weights, gradients, mean, square, narrowed }, rest)
    }

    /// Whether all arrays fit together, and a rule with this many moments.
    pub(super) fn check(&self, rule: &'static str, moments: usize) -> Result<(), ShardError> {
        for (number, (array, moment)) in
            [("mean", &self.mean), ("square", &self.square)].into_iter().enumerate()
        {
            match (number < moments, moment.len().is_some()) {
                (true, false) => return Err(ShardError::Missing { rule, array }),
                (false, true) => return Err(ShardError::Unused { rule, array }),
                _ => {}
            }
        }
        if matches!((&self.mean, &self.square), (Moment::F32(_), Moment::Bf16(_))) {
            return Err(ShardError::NarrowSquare);
        }
        if matches!(self.weights, Weights::Bf16(_)) && self.narrowed.len().is_some() {
            return Err(ShardError::NarrowedTwice);
        }
        self.check_lengths()
    }

    /// Whether all arrays that there are have the length of the weights.
    ///
    /// # Errors
    /// [`ShardError::Length`] names the first that has not.
    pub fn check_lengths(&self) -> Result<(), ShardError> {
        let want = self.len();
        for (array, got) in [
            ("gradients", Some(self.gradients.len())),
            ("mean", self.mean.len()),
            ("square", self.square.len()),
            ("narrowed", self.narrowed.len()),
        ] {
            if let Some(got) = got.filter(|got| *got != want) {
                return Err(ShardError::Length { array, got, want });
            }
        }
        Ok(())
    }
}

impl<'a> Weights<'a> {
    /// Those in `range`.
    ///
    /// # Panics
    /// When there are fewer.
    pub fn part(&mut self, range: Range<usize>) -> Weights<'_> {
        match self {
            Self::F32(all) => Weights::F32(&mut all[range]),
            Self::Bf16(all) => Weights::Bf16(&mut all[range]),
        }
    }

    fn split_at(self, at: usize) -> (Self, Self) {
        match self {
            Self::F32(all) => both(all.split_at_mut(at), Self::F32),
            Self::Bf16(all) => both(all.split_at_mut(at), Self::Bf16),
        }
    }
}

impl<'a> Gradients<'a> {
    /// Elements.
    pub fn len(&self) -> usize {
        match self {
            Self::F32(all) => all.len(),
            Self::Bf16(all) => all.len(),
            Self::F16(all) => all.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Those in `range`.
    ///
    /// # Panics
    /// When there are fewer.
    pub fn part(&self, range: Range<usize>) -> Self {
        match self {
            Self::F32(all) => Self::F32(&all[range]),
            Self::Bf16(all) => Self::Bf16(&all[range]),
            Self::F16(all) => Self::F16(&all[range]),
        }
    }

    fn split_at(self, at: usize) -> (Self, Self) {
        (self.part(0..at), self.part(at..self.len()))
    }
}

impl<'a> Moment<'a> {
    /// Those in `range`; still none if there are none.
    ///
    /// # Panics
    /// When there are fewer.
    pub fn part(&mut self, range: Range<usize>) -> Moment<'_> {
        match self {
            Self::None => Moment::None,
            Self::F32(all) => Moment::F32(&mut all[range]),
            Self::Bf16(all) => Moment::Bf16(&mut all[range]),
        }
    }

    fn len(&self) -> Option<usize> {
        match self {
            Self::None => None,
            Self::F32(all) => Some(all.len()),
            Self::Bf16(all) => Some(all.len()),
        }
    }

    fn split_at(self, at: usize) -> (Self, Self) {
        match self {
            Self::None => (Self::None, Self::None),
            Self::F32(all) => both(all.split_at_mut(at), Self::F32),
            Self::Bf16(all) => both(all.split_at_mut(at), Self::Bf16),
        }
    }
}

impl<'a> Narrowed<'a> {
    /// Those in `range`; still none if there are none.
    ///
    /// # Panics
    /// When there are fewer.
    pub fn part(&mut self, range: Range<usize>) -> Narrowed<'_> {
        match self {
            Self::None => Narrowed::None,
            Self::Bf16(all) => Narrowed::Bf16(&mut all[range]),
            Self::F16(all) => Narrowed::F16(&mut all[range]),
        }
    }

    fn len(&self) -> Option<usize> {
        match self {
            Self::None => None,
            Self::Bf16(all) => Some(all.len()),
            Self::F16(all) => Some(all.len()),
        }
    }

    fn split_at(self, at: usize) -> (Self, Self) {
        match self {
            Self::None => (Self::None, Self::None),
            Self::Bf16(all) => both(all.split_at_mut(at), Self::Bf16),
            Self::F16(all) => both(all.split_at_mut(at), Self::F16),
        }
    }
}

fn both<T, U>((first, second): (T, T), make: impl Fn(T) -> U) -> (U, U) {
    (make(first), make(second))
}
