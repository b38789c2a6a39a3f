//! What was made lately, so that it is not made again.

use std::ops::Index;

/// The last so many of something: when one more comes, the oldest goes. Looked through one by one,
/// for a call repeats what the one before it was, or one of a few.
pub(super) struct Recent<T> {
    items: Vec<T>,
    most: usize,
    /// Where the next one goes.
    next: usize,
    /// The one that was wanted last.
    last: usize,
}

impl<T> Recent<T> {
    pub(super) const fn at_most(most: usize) -> Self {
        assert!(most > 0);
        Self { items: Vec::new(), most, next: 0, last: 0 }
    }

    /// The number of the first that `is_wanted`, the last one wanted being asked first.
    #[inline]
    pub(super) fn find(&mut self, mut is_wanted: impl FnMut(&mut T) -> bool) -> Option<usize> {
        if self.items.get_mut(self.last).is_some_and(&mut is_wanted) {
            return Some(self.last);
        }
        self.last = self.items.iter_mut().position(is_wanted)?;
        Some(self.last)
    }

    /// Keep one more; its number until so many more have come.
    pub(super) fn insert(&mut self, item: T) -> usize {
        let index = self.next;
        self.next = (index + 1) % self.most;
        match self.items.get_mut(index) {
            Some(oldest) => *oldest = item,
            None => self.items.push(item),
        }
        index
    }
}

impl<T> Index<usize> for Recent<T> {
    type Output = T;

    fn index(&self, number: usize) -> &T {
        &self.items[number]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_goes_and_the_last_one_wanted_is_asked_first() {
        let mut recent = Recent::at_most(3);
        assert!(recent.find(|_: &mut u32| true).is_none());
        for item in 0..4 {
            let number = recent.insert(item);
            assert_eq!(recent[number], item);
        }
        assert_eq!(recent.find(|item| *item == 0), None, "it was the oldest");
        for wanted in [3, 1, 2] {
            let number = recent.find(|item| *item == wanted).expect("one of the last three");
            assert_eq!(recent[number], wanted);
            let mut asked = 0;
            recent.find(|item| {
                asked += 1;
                *item == wanted
            });
            assert_eq!(asked, 1);
        }
    }
}
