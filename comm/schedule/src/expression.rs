//! What a chunk holds, as an expression over the ranks that brought something.
//!
//! Which chunk it is need not be written down: moves keep a chunk where its length is, so whatever
//! is in chunk `c` is made of what ranks brought in chunk `c`. Equal expressions are one number;
//! swapping the operands of a fold makes no other expression, as it makes no other bits. Whether a
//! value is folded in rank order, where operands must not be swapped, is therefore kept beside it.

use std::collections::HashMap;

/// The number of no expression.
const EMPTY: u32 = u32::MAX;

/// What a chunk holds.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Value {
    /// Which expression, up to swapped operands.
    pub(crate) number: u32,
    order: Order,
}

/// How a value relates to `((x0 ⊕ x1) ⊕ x2) ⊕ ...`, with every operand on its side.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    /// What one rank brought.
    Leaf(u32),
    /// The fold of ranks 0 to this one, strictly from the left; at least two of them.
    Through(u32),
    /// Anything else.
    Other,
}

impl Value {
    /// No value.
    pub(crate) const NONE: Self = Self { number: EMPTY, order: Order::Other };

    /// What a rank brings.
    pub(crate) fn of_rank(rank: u32) -> Self {
        Self { number: rank, order: Order::Leaf(rank) }
    }

    pub(crate) fn is_empty(self) -> bool {
        self.number == EMPTY
    }

    /// Whether it is `((x0 ⊕ x1) ⊕ x2) ⊕ ...` of so many ranks, also for operators that do not
    /// commute.
    pub(crate) fn is_left_fold(self, ranks: u32) -> bool {
        match self.order {
            Order::Leaf(rank) => rank == 0 && ranks == 1,
            Order::Through(last) => last + 1 == ranks,
            Order::Other => false,
        }
    }
}

impl Order {
    fn fold(left: Self, right: Self) -> Self {
        match (left, right) {
            (Self::Leaf(0), Self::Leaf(1)) => Self::Through(1),
            (Self::Through(last), Self::Leaf(next)) if next == last + 1 => Self::Through(next),
            _ => Self::Other,
        }
    }
}

/// All expressions met so far. Number `r` below the number of ranks is what rank `r` brought.
pub(crate) struct Expressions {
    ranks: u32,
    /// The two operands of the folds, which follow the leaves.
    folds: Vec<(u32, u32)>,
    numbers: HashMap<(u32, u32), u32>,
    /// For each expression, `words` words of a set of ranks.
    sets: Vec<u64>,
    words: usize,
    /// For each expression, whether no rank is in it twice.
    once: Vec<bool>,
}

impl Expressions {
    pub(crate) fn new(ranks: u32) -> Self {
        let words = (ranks as usize).div_ceil(64);
        let mut sets = vec![0; ranks as usize * words];
        for rank in 0..ranks as usize {
            sets[rank * words + rank / 64] |= 1 << (rank % 64);
        }
        let (folds, numbers) = (Vec::new(), HashMap::new());
        Self { ranks, folds, numbers, sets, words, once: vec![true; ranks as usize] }
    }

    /// `left ⊕ right`.
    pub(crate) fn fold(&mut self, left: Value, right: Value) -> Value {
        let number = self.number(left.number, right.number);
        Value { number, order: Order::fold(left.order, right.order) }
    }

    /// The number of the fold of two expressions; swapping them gives the same one.
    fn number(&mut self, a: u32, b: u32) -> u32 {
        let operands = (a.min(b), a.max(b));
        let next = self.once.len() as u32;
        let number = *self.numbers.entry(operands).or_insert(next);
        if number == next {
            let (a, b) = (a as usize, b as usize);
            let mut once = self.once[a] && self.once[b];
            for word in 0..self.words {
                let (left, right) =
                    (self.sets[a * self.words + word], self.sets[b * self.words + word]);
                once &= left & right == 0;
                self.sets.push(left | right);
            }
            self.once.push(once);
            self.folds.push(operands);
        }
        number
    }

    /// Whether every rank is in it.
    pub(crate) fn has_all(&self, value: Value) -> bool {
        let set = &self.sets[value.number as usize * self.words..][..self.words];
        set.iter().map(|word| word.count_ones()).sum::<u32>() == self.ranks
    }

    /// Whether no rank is in it twice.
    pub(crate) fn is_once(&self, value: Value) -> bool {
        self.once[value.number as usize]
    }

    /// The expression in words; of a long one only the last folds. Operands are told in one order,
    /// whichever side they were on.
    pub(crate) fn text(&self, value: Value) -> String {
        self.nested(value.number, &mut 24)
    }

    fn nested(&self, id: u32, leaves: &mut u32) -> String {
        if id == EMPTY {
            return "nothing".into();
        }
        if *leaves == 0 {
            return "…".into();
        }
        let Some(fold) = id.checked_sub(self.ranks) else {
            *leaves -= 1;
            return format!("x{id}");
        };
        let (a, b) = self.folds[fold as usize];
        // A fold has a higher number than its operands, a rank has the lowest: read as left folds.
        let (outer, inner) = if b < self.ranks { (b, a) } else { (a, b) };
        let outer = self.nested(outer, leaves);
        format!("({} ⊕ {outer})", self.nested(inner, leaves))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn swapped_operands_are_the_same_expression_in_another_order() {
        let mut all = Expressions::new(3);
        let [x0, x1, x2] = [0, 1, 2].map(Value::of_rank);
        let (straight, swapped) = (all.fold(x0, x1), all.fold(x1, x0));
        assert_eq!(straight.number, swapped.number);
        assert!(straight.is_left_fold(2) && !swapped.is_left_fold(2));
        let left = all.fold(straight, x2);
        assert!(left.is_left_fold(3) && !left.is_left_fold(2));
        let right = all.fold(x1, x2);
        let wrong = [all.fold(x2, straight), all.fold(swapped, x2), all.fold(x0, right)];
        assert!(wrong.iter().all(|value| !value.is_left_fold(3)));
        assert_eq!(all.fold(x2, straight).number, left.number);
    }

    #[test]
    fn alone_what_a_rank_brings_is_in_order() {
        assert!(Value::of_rank(0).is_left_fold(1) && !Value::of_rank(0).is_left_fold(2));
        assert!(!Value::of_rank(1).is_left_fold(1) && !Value::NONE.is_left_fold(1));
    }
}
