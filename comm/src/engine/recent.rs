//! What was made lately, so that it is not made again.

use std::hash::{Hash, Hasher};
use std::ops::Index;

/// How many of one kind are kept at most: so many keys are looked through in a fraction of the time
/// that it takes to make a plan.
const MOST: usize = 1024;
/// How many are kept however long they are: long calls of a training step are few, and a plan of
/// the longest has hundreds of thousands of steps to be linked anew.
pub(super) const LEAST: usize = 8;
/// How many keys are compared before anybody asks whether one of them was equal.
const BLOCK: usize = 32;

/// Some of what was made lately, [`MOST`] things, which fit into a number of bytes if they are more
/// than [`LEAST`]. A call repeats what the one before it was, so that is asked first; others are
/// found by a short key.
///
/// What goes when there is no room is left to chance. Calls come in cycles, the steps of a
/// training; in one that does not fit, what was used longest ago is what is wanted next, so that
/// letting go of that would keep nothing of any use.
pub(super) struct Recent<T> {
    items: Vec<T>,
    /// Of each item its key. They lie apart, so that many are looked through at once.
    keys: Vec<u32>,
    /// Of each item how long it is.
    bytes: Vec<usize>,
    kept_bytes: usize,
    most_bytes: usize,
    /// The one that was wanted last.
    last: usize,
    chance: u64,
    /// How many were ever made.
    #[cfg(test)]
    made: usize,
}

impl<T> Recent<T> {
    pub(super) fn at_most(most_bytes: usize) -> Self {
        let (items, keys, bytes) = (Vec::new(), Vec::new(), Vec::new());
        Self {
            items,
            keys,
            bytes,
            kept_bytes: 0,
            most_bytes,
            last: 0,
            chance: 0,
            #[cfg(test)]
            made: 0,
        }
    }

    /// The number of the first that `is_wanted`, the last one wanted being asked first and then
    /// those with this key.
    #[inline]
    pub(super) fn find(
        &mut self,
        key: impl FnOnce() -> u32,
        mut is_wanted: impl FnMut(&mut T) -> bool,
    ) -> Option<usize> {
        if self.items.get_mut(self.last).is_some_and(&mut is_wanted) {
            return Some(self.last);
        }
        self.last = self.find_by(key(), is_wanted)?;
        Some(self.last)
    }

    fn find_by(&mut self, key: u32, mut is_wanted: impl FnMut(&mut T) -> bool) -> Option<usize> {
        let mut from = 0;
        loop {
            let at = from + position(&self.keys[from..], key)?;
            if is_wanted(&mut self.items[at]) {
                return Some(at);
            }
            from = at + 1;
        }
    }

    /// Keep one more, which is so long; its number until the next one comes.
    pub(super) fn insert(&mut self, key: u32, bytes: usize, item: T) -> usize {
        let is_full = |it: &Self| {
            let has_room = it.kept_bytes.saturating_add(bytes) <= it.most_bytes;
            it.items.len() == MOST || (it.items.len() >= LEAST && !has_room)
        };
        while is_full(self) {
            self.let_one_go();
        }
        self.items.push(item);
        self.keys.push(key);
        self.bytes.push(bytes);
        self.kept_bytes += bytes;
        #[cfg(test)]
        {
            self.made += 1;
        }
        self.last = self.items.len() - 1;
        self.last
    }

    /// How many there are, and how long they are together.
    #[cfg(test)]
    pub(super) fn kept(&self) -> (usize, usize) {
        (self.items.len(), self.kept_bytes)
    }

    /// How many were ever made.
    #[cfg(test)]
    pub(super) fn made(&self) -> usize {
        self.made
    }

    fn let_one_go(&mut self) {
        // Knuth's multiplier; the upper half of such a number looks random.
        self.chance = self.chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let victim = (self.chance >> 32) as usize % self.items.len();
        self.items.swap_remove(victim);
        self.keys.swap_remove(victim);
        self.kept_bytes -= self.bytes.swap_remove(victim);
    }
}

impl<T> Index<usize> for Recent<T> {
    type Output = T;

    fn index(&self, number: usize) -> &T {
        &self.items[number]
    }
}

/// The place of the first key that is equal.
fn position(keys: &[u32], key: u32) -> Option<usize> {
    let (blocks, _) = keys.as_chunks::<BLOCK>();
    let has_it = |block: &[u32; BLOCK]| block.iter().fold(false, |any, &one| any | (one == key));
    let before = blocks.iter().take_while(|block| !has_it(block)).count() * BLOCK;
    keys[before..].iter().position(|&one| one == key).map(|at| before + at)
}

/// The key of what is made for `shape`.
pub(super) fn key_of(shape: impl Hash) -> u32 {
    let mut digest = Digest(0);
    shape.hash(&mut digest);
    (digest.0 >> 32) as u32
}

/// A quick hash. Keys that are equal by chance cost a comparison, and nobody but this rank's own
/// program chooses them.
struct Digest(u64);

impl Digest {
    fn add(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

impl Hasher for Digest {
    fn write(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            self.add(u64::from_le_bytes(word));
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ask for an item, and make it where there is none; whether it was made.
    fn makes(recent: &mut Recent<(usize, usize)>, item: usize, bytes: usize) -> bool {
        let key = key_of(item);
        let found = recent.find(|| key, |known| known.0 == item);
        let number = found.unwrap_or_else(|| recent.insert(key, bytes, (item, bytes)));
        assert_eq!(recent[number], (item, bytes));
        let mut asked = 0;
        recent.find(
            || unreachable!("the last one is asked first"),
            |known| {
                asked += 1;
                known.0 == item
            },
        );
        assert_eq!(asked, 1);
        found.is_none()
    }

    #[test]
    fn what_fits_is_made_once() {
        let mut recent = Recent::at_most(MOST * 10);
        for round in 0..3 {
            let made = (0..MOST).filter(|&item| makes(&mut recent, item, 10)).count();
            assert_eq!(made, if round == 0 { MOST } else { 0 });
        }
    }

    /// A cycle that is longer than what is kept finds most of it all the same.
    #[test]
    fn of_a_cycle_that_does_not_fit_much_is_found() {
        for (items, bytes, most_bytes) in [(MOST + MOST / 8, 1, usize::MAX), (65, 100, 6400)] {
            let mut recent = Recent::at_most(most_bytes);
            let mut round = || (0..items).filter(|&item| makes(&mut recent, item, bytes)).count();
            assert_eq!(round(), items);
            let made: usize = (0..10).map(|_| round()).sum();
            assert!(made < 10 * items / 2, "{made} of {} were made again", 10 * items);
        }
    }

    #[test]
    fn what_is_kept_is_bounded_but_for_a_few() {
        let mut recent = Recent::at_most(1000);
        for item in 0..10_000 {
            let bytes = if item % 100 == 99 { 5000 } else { item % 300 };
            makes(&mut recent, item, bytes);
            let kept: usize = recent.items.iter().map(|(_, bytes)| bytes).sum();
            assert_eq!(recent.kept(), (recent.items.len(), kept));
            assert!(kept <= 1000 || recent.items.len() <= LEAST, "{kept}");
            assert!(recent.items.len() <= MOST);
        }
    }

    /// Whatever shares a key is told apart.
    #[test]
    fn keys_that_are_equal_by_chance_cost_a_comparison() {
        let mut recent = Recent::at_most(1000);
        for item in 0..100 {
            recent.insert(item % 2, 1, item);
        }
        for item in 0..100 {
            let found = recent.find(|| item % 2, |known| *known == item).expect("it is kept");
            assert_eq!(recent[found], item);
        }
        assert_eq!(recent.find(|| 0, |_| false), None);
    }
}
