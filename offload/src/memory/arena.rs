//! The arena: one mapping, a hard budget, exact buffers.

use std::ptr::NonNull;
use std::sync::Arc;

use super::pool::{Books, Pool};
use super::ranges::span_bytes;
use super::region::Region;
use super::{ALIGNMENT, Buffer, Category, Ledger, Pages};

/// How much memory an arena may have, and on what pages at best.
#[derive(Debug, Clone, Copy)]
pub struct Budget {
    bytes: usize,
    best: Pages,
}

impl Budget {
    /// `bytes` of memory on the best pages that the machine has.
    ///
    /// A multiple of 2 MiB is used up to the last byte; otherwise the arena is a little smaller.
    pub fn new(bytes: usize) -> Self {
        Self { bytes, best: Pages::Huge }
    }

    /// The same on no better pages than these, to see what better ones are worth.
    pub fn at_best(self, best: Pages) -> Self {
        Self { best, ..self }
    }
}

/// There is no arena of this size.
#[derive(Clone, thiserror::Error)]
pub enum ArenaError {
    /// Less than one page was asked for.
    #[error("an arena of {bytes} bytes cannot hold anything: {ALIGNMENT} is the least")]
    TooSmall {
        /// Bytes asked for.
        bytes: usize,
    },
    /// The machine has not that much memory left.
    #[error("an arena of {bytes} bytes does not fit: {available_bytes} bytes are available")]
    NotThere {
        /// Bytes asked for.
        bytes: usize,
        /// Bytes that the kernel says it could give.
        available_bytes: usize,
    },
    /// The kernel refused the mapping.
    #[error("an arena of {bytes} bytes could not be mapped: {why}")]
    Refused {
        /// Bytes asked for.
        bytes: usize,
        /// What the kernel said.
        why: String,
    },
}

impl std::fmt::Debug for ArenaError {
    /// The sentence, as `Display` has it: what a `main` that returns an error prints.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// The budget does not hold what was asked for; nothing was taken.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{wanted_bytes} bytes for {} do not fit: {free_bytes} of {capacity_bytes} are free, \
     {largest_bytes} of them in one piece ({ledger})", category.name()
)]
pub struct OverBudget {
    /// Bytes asked for.
    pub wanted_bytes: usize,
    /// What for.
    pub category: Category,
    /// Bytes free in all.
    pub free_bytes: usize,
    /// Bytes free in one piece.
    pub largest_bytes: usize,
    /// Bytes of the arena.
    pub capacity_bytes: usize,
    /// Who holds the rest.
    pub ledger: Box<Ledger>,
}

impl std::fmt::Debug for OverBudget {
    /// The sentence, as `Display` has it: what a `main` that returns an error prints.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// One mapping with a hard budget, out of which buffers are taken. Cheap to clone; it is unmapped
/// when the last clone, the last buffer and the last engine that transfers into it are gone. A
/// forked child has none of it: it would be copied, whole, and the budget be taken twice.
#[derive(Debug, Clone)]
pub struct Arena {
    pool: Arc<Pool>,
}

impl Arena {
    /// Map the whole budget now, near the calling thread, and touch every page of it.
    ///
    /// Cost: zeroing the memory once. Errors: there is not that much.
    pub fn new(budget: Budget) -> Result<Self, ArenaError> {
        let bytes = budget.bytes / ALIGNMENT * ALIGNMENT;
        if bytes == 0 {
            return Err(ArenaError::TooSmall { bytes: budget.bytes });
        }
        // Pages reserved as huge ones do not count as available, so they are asked for first.
        let available_bytes = available_bytes().unwrap_or(usize::MAX);
        let is_reserved = || budget.best == Pages::Huge && reserved_bytes().unwrap_or(0) >= bytes;
        if bytes > available_bytes && !is_reserved() {
            return Err(ArenaError::NotThere { bytes: budget.bytes, available_bytes });
        }
        let region = Region::map(bytes, budget.best)
            .map_err(|e| ArenaError::Refused { bytes: budget.bytes, why: e.to_string() })?;
        Ok(Self { pool: Arc::new(Pool::new(region)) })
    }

    /// A buffer of exactly `bytes` bytes, whose contents are whatever was there before.
    ///
    /// It begins at a multiple of [`ALIGNMENT`] and takes [`span_bytes`]; what lies behind its end
    /// counts as rounding.
    /// Errors: the budget is used up, or no free piece is long enough.
    pub fn take(&self, bytes: usize, category: Category) -> Result<Buffer, OverBudget> {
        let over = |books: &Books| OverBudget {
            wanted_bytes: bytes,
            category,
            free_bytes: books.ledger.free(),
            largest_bytes: books.ranges.largest(),
            capacity_bytes: books.ledger.capacity(),
            ledger: Box::new(books.ledger),
        };
        let mut books = self.pool.books();
        if bytes > books.ledger.capacity() {
            return Err(over(&books));
        }
        let span = span_bytes(bytes);
        let start = books.ranges.take(span).ok_or_else(|| over(&books))?;
        books.ledger.take(bytes, span, category);
        drop(books);
        Ok(Buffer::new(Arc::clone(&self.pool), start, bytes, category))
    }

    /// What the memory lies on.
    pub fn pages(&self) -> Pages {
        self.pool.region.pages()
    }

    /// Bytes of the whole arena.
    pub fn capacity(&self) -> usize {
        self.pool.region.bytes()
    }

    /// Who holds how much at this moment.
    pub fn ledger(&self) -> Ledger {
        self.pool.books().ledger
    }

    /// One line: how much, and on which pages and why.
    pub fn describe(&self) -> String {
        let mib = self.capacity() as f64 / f64::from(1 << 20);
        format!("arena of {mib:.1} MiB: {}", self.pool.region.note())
    }

    /// Where the memory begins.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.pool.base()
    }
}

/// Bytes that the kernel thinks it could give without swapping, or none if it does not say. Costs
/// some system calls.
pub fn available_bytes() -> Option<usize> {
    memory_line("MemAvailable:").map(|kib| kib << 10)
}

/// Bytes of free reserved huge pages of 2 MiB.
fn reserved_bytes() -> Option<usize> {
    memory_line("HugePages_Free:").map(|pages| pages << 21)
}

fn memory_line(name: &str) -> Option<usize> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    text.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_is_hard_and_the_ledger_adds_up() {
        let arena = Arena::new(Budget::new(4 << 20)).unwrap();
        let first = arena.take(3_000_001, Category::Optimizer).unwrap();
        let over = arena.take(2 << 20, Category::Gradients).unwrap_err();
        assert_eq!(over.wanted_bytes, 2 << 20);
        assert!(over.to_string().contains("optimizer 3000001"), "{over}");
        let ledger = arena.ledger();
        assert_eq!(ledger.held(Category::Optimizer), 3_000_001);
        assert_eq!(ledger.capacity(), arena.capacity());
        assert_eq!(over.free_bytes, arena.capacity() - span_bytes(3_000_001));
        drop(first);
        assert_eq!(arena.ledger().free(), arena.capacity());
        let all = arena.capacity() - ALIGNMENT;
        assert_eq!(arena.take(all, Category::Other).unwrap().len(), all);
    }

    #[test]
    fn an_arena_that_the_machine_cannot_hold_is_refused() {
        let refused = Arena::new(Budget::new(1 << 50)).unwrap_err();
        assert!(matches!(refused, ArenaError::NotThere { .. }), "{refused}");
        assert!(matches!(Arena::new(Budget::new(10)), Err(ArenaError::TooSmall { bytes: 10 })));
        let refused = Arena::new(Budget::new(1 << 20)).unwrap().take(usize::MAX, Category::Other);
        assert!(refused.is_err());
    }

    #[test]
    fn it_says_what_it_lies_on() {
        let small = Arena::new(Budget::new(8 << 20).at_best(Pages::Small)).unwrap();
        assert_eq!(small.pages(), Pages::Small);
        assert!(small.describe().starts_with("arena of 8.0 MiB: "), "{}", small.describe());
        // Where no huge pages are set aside, or all are used, that is no error of the system's.
        let best = Arena::new(Budget::new(8 << 20)).unwrap();
        assert!(!best.describe().contains("os error 12"), "{}", best.describe());
    }
}
