//! What a chunk holds, as an expression over the ranks that brought something.
//!
//! Which chunk it is need not be written down: moves keep a chunk where its length is, so whatever
//! is in chunk `c` is made of what ranks brought in chunk `c`. Equal expressions are one number.

use std::collections::HashMap;

/// No value.
pub(crate) const EMPTY: u32 = u32::MAX;

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

    /// The fold of two expressions; swapping them gives the same one.
    pub(crate) fn fold(&mut self, a: u32, b: u32) -> u32 {
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

    /// `((0 ⊕ 1) ⊕ 2) ⊕ ...`
    pub(crate) fn left_fold(&mut self, ranks: u32) -> u32 {
        (1..ranks).fold(0, |sum, rank| self.fold(sum, rank))
    }

    /// Whether every rank is in it.
    pub(crate) fn has_all(&self, id: u32) -> bool {
        let set = &self.sets[id as usize * self.words..][..self.words];
        set.iter().map(|word| word.count_ones()).sum::<u32>() == self.ranks
    }

    /// Whether no rank is in it twice.
    pub(crate) fn is_once(&self, id: u32) -> bool {
        self.once[id as usize]
    }

    /// The expression in words; of a long one only the last folds.
    pub(crate) fn text(&self, id: u32) -> String {
        self.nested(id, &mut 24)
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
