//! The table over memory that is only a list of pages, each with a number that tells what it holds.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use super::*;
use crate::rdma::unmap::without;

const PAGE: usize = 64 << 10;
const PAGES: usize = 256;
/// The first page's address.
const FIRST: usize = 1 << 30;

#[derive(Default)]
struct World {
    /// What each page holds; nothing is there at `None`.
    pages: Vec<Option<u64>>,
    made: u64,
    watched: Vec<bool>,
    live: Vec<Range<usize>>,
    news: VecDeque<Change>,
    is_unsettled: bool,
    is_lost: bool,
    refuses: bool,
    /// How often it was asked for a mapping.
    asked: u32,
    /// How much the device takes.
    room_bytes: usize,
    registered_bytes: usize,
    /// In the order of registration.
    registered: Vec<Range<usize>>,
}

type Shared = Rc<RefCell<World>>;

/// A registration: what its pages held at that time.
struct Region {
    world: Shared,
    range: Range<usize>,
    held: Vec<u64>,
}

impl Drop for Region {
    fn drop(&mut self) {
        self.world.borrow_mut().registered_bytes -= self.range.len();
    }
}

fn numbers(range: &Range<usize>) -> Range<usize> {
    assert!(range.start.is_multiple_of(PAGE) && range.end.is_multiple_of(PAGE));
    (range.start - FIRST) / PAGE..(range.end - FIRST) / PAGE
}

fn addresses(pages: Range<usize>) -> Range<usize> {
    FIRST + pages.start * PAGE..FIRST + pages.end * PAGE
}

impl World {
    fn new() -> Shared {
        let mut world =
            World { watched: vec![false; PAGES], room_bytes: usize::MAX, ..World::default() };
        world.pages = (0..PAGES as u64).map(Some).collect();
        world.made = PAGES as u64;
        Rc::new(RefCell::new(world))
    }

    /// New memory, over what was there.
    fn map(&mut self, pages: Range<usize>) {
        self.unmap(pages.clone());
        for page in pages {
            self.made += 1;
            self.pages[page] = Some(self.made);
        }
    }

    fn unmap(&mut self, pages: Range<usize>) {
        self.tell(pages.clone(), |start, end| Change::Unmapped { start, end });
        self.watched[pages.clone()].fill(false);
        self.pages[pages].fill(None);
    }

    fn empty(&mut self, pages: Range<usize>) {
        self.tell(pages.clone(), |start, end| Change::Emptied { start, end });
        for page in pages {
            self.made += 1;
            self.pages[page] = self.pages[page].map(|_| self.made);
        }
    }

    fn move_to(&mut self, pages: Range<usize>, to: usize) {
        let target = to..to + pages.len();
        if target.start < pages.end && pages.start < target.end {
            return;
        }
        self.unmap(target.clone());
        let to = addresses(target.clone()).start;
        for (from, into) in pages.clone().zip(target) {
            let start = FIRST + from * PAGE;
            if self.watched[from] {
                let to = to + (from - pages.start) * PAGE;
                self.news.push_back(Change::Moved { start, to, bytes: PAGE });
            }
            self.watched[into] = std::mem::take(&mut self.watched[from]);
            self.pages[into] = self.pages[from].take();
        }
    }

    /// Each run of watched pages is told.
    fn tell(&mut self, pages: Range<usize>, change: impl Fn(usize, usize) -> Change) {
        for page in pages {
            if self.watched[page] {
                let Range { start, end } = addresses(page..page + 1);
                self.news.push_back(change(start, end));
            }
        }
    }
}

impl Ground for Shared {
    type Domain = ();
    type Region = Region;

    fn news(&mut self, batch: &mut [Change; BATCH]) -> News {
        let mut world = self.borrow_mut();
        if world.is_unsettled {
            return News::Unsettled;
        }
        if std::mem::take(&mut world.is_lost) {
            world.news.clear();
            return News::Lost;
        }
        let count = world.news.len().min(BATCH);
        for (place, change) in batch.iter_mut().zip(world.news.drain(..count)) {
            *place = change;
        }
        News::Changes(count)
    }

    fn mapping(&self, wanted: &Range<usize>) -> Result<Range<usize>, Range<usize>> {
        self.borrow_mut().asked += 1;
        let world = self.borrow();
        let Range { start, end } = numbers(wanted);
        let is_there = |page: &usize| world.pages[*page].is_some();
        if !(start..end).all(|page| is_there(&page)) {
            return Err(wanted.clone());
        }
        let first = (0..start).rev().take_while(is_there).last().unwrap_or(start);
        let last = (end..PAGES).take_while(is_there).last().map_or(end, |page| page + 1);
        Ok(addresses(first..last))
    }

    fn watch(&self, range: &Range<usize>) -> bool {
        let mut world = self.borrow_mut();
        world.live.push(range.clone());
        world.watched[numbers(range)].fill(true);
        true
    }

    fn unwatch(&self, range: &Range<usize>, gone: &[Range<usize>]) {
        let mut world = self.borrow_mut();
        if let Some(index) = world.live.iter().position(|watched| watched == range) {
            world.live.swap_remove(index);
        }
        for piece in without(range, world.live.clone().iter().chain(gone)) {
            world.watched[numbers(&piece)].fill(false);
        }
    }

    fn register(&self, _: &Arc<()>, range: &Range<usize>) -> Result<Region, Refusal> {
        let mut world = self.borrow_mut();
        if world.registered_bytes.saturating_add(range.len()) > world.room_bytes {
            return Err(Refusal::Full);
        }
        let held = world.pages[numbers(range)].iter().copied().collect::<Option<_>>();
        let held = held.filter(|_| !world.refuses).ok_or(Refusal::Never)?;
        world.registered_bytes += range.len();
        world.registered.push(range.clone());
        Ok(Region { world: Rc::clone(self), range: range.clone(), held })
    }
}

fn table(pages: usize) -> (Shared, Table<Shared>) {
    let world = World::new();
    (Rc::clone(&world), Table::new(world, pages * PAGE, PAGE))
}

/// What must hold of a table whenever nothing is under way.
fn inspect(world: &Shared, table: &Table<Shared>, note: &str) {
    let world = world.borrow();
    let mut last = (0, 0, 0);
    for (&(id, start), entry) in &table.entries {
        assert!(start < entry.end, "{note}: an empty range");
        assert!(id != last.0 || (start > last.1 && entry.end > last.2), "{note}: one in another");
        last = (id, start, entry.end);
    }
    let counted = table.counters.registered_bytes as usize;
    assert!(counted >= world.registered_bytes, "{note}: {counted} bytes counted");
    assert!(counted <= table.limit, "{note}: {counted} bytes are more than allowed");
    let held: usize = table.retired.iter().map(|(bytes, _)| bytes).sum();
    let listed: usize = table.entries.iter().map(|((_, start), entry)| entry.end - start).sum();
    assert_eq!(counted, held + listed, "{note}: the sum is wrong");
}

/// Whether some entry has all of a range, found the slow way.
fn is_known(table: &Table<Shared>, domain: &Arc<()>, wanted: &Range<usize>) -> bool {
    let id = Arc::as_ptr(domain).addr();
    table
        .entries
        .iter()
        .any(|(&(of, start), entry)| of == id && start <= wanted.start && wanted.end <= entry.end)
}

#[test]
fn what_is_found_is_what_is_there_now() {
    for seed in 0..200 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (world, mut table) = table(rng.usize(8..128));
        let domains = [Arc::new(()), Arc::new(())];
        let mut lent: Vec<Arc<Region>> = Vec::new();
        for step in 0..400 {
            let note = format!("seed {seed}, step {step}");
            let start = rng.usize(0..PAGES);
            let pages = start..(start + 1 + rng.usize(0..24)).min(PAGES);
            match rng.u32(0..20) {
                0 => world.borrow_mut().unmap(pages),
                1 | 2 => world.borrow_mut().map(pages),
                3 => world.borrow_mut().empty(pages),
                4 => world.borrow_mut().move_to(pages.clone(), rng.usize(0..=PAGES - pages.len())),
                5 => lent.clear(),
                6 => world.borrow_mut().is_lost = rng.u32(0..4) == 0,
                kind => {
                    world.borrow_mut().is_unsettled = kind == 7;
                    world.borrow_mut().refuses = kind == 8;
                    let domain = &domains[rng.usize(0..2)];
                    let exact = addresses(pages.clone());
                    let address = exact.start + rng.usize(0..PAGE);
                    let bytes = exact.end - address - rng.usize(0..PAGE.min(exact.end - address));
                    let wanted = exact.start..(address + bytes).next_multiple_of(PAGE);
                    let hits = table.counters.hits;
                    let found = table.region(domain, address, bytes);
                    inspect(&world, &table, &note);
                    let Some(region) = found else { continue };
                    assert!(kind != 7, "{note}: an answer although nobody can tell");
                    assert!(region.range.start <= wanted.start, "{note}");
                    assert!(wanted.end <= region.range.end, "{note}");
                    let offset = numbers(&wanted).start - numbers(&region.range).start;
                    let held = &region.held[offset..offset + numbers(&wanted).len()];
                    let now = world.borrow().pages[numbers(&wanted)].to_vec();
                    assert!(held.iter().map(|it| Some(*it)).eq(now), "{note}: not any more");
                    assert!(kind != 8 || table.counters.hits > hits, "{note}: it was refused");
                    if rng.u32(0..4) == 0 {
                        lent.push(region);
                    }
                    assert!(is_known(&table, domain, &wanted), "{note}");
                    let (hits, again) = (table.counters.hits, table.region(domain, address, bytes));
                    assert!(again.is_some() && table.counters.hits == hits + 1, "{note}");
                }
            }
        }
        drop(table);
        drop(lent);
        let world = world.borrow();
        assert_eq!(world.registered_bytes, 0, "seed {seed}: something stays registered");
        assert!(world.live.is_empty(), "seed {seed}: something stays watched");
    }
}

#[test]
fn what_is_known_is_found() {
    for seed in 0..50 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (_world, mut table) = table(PAGES);
        let domain = Arc::new(());
        for step in 0..300 {
            let start = rng.usize(0..PAGES);
            let wanted = addresses(start..(start + 1 + rng.usize(0..80)).min(PAGES));
            let (known, hits) = (is_known(&table, &domain, &wanted), table.counters.hits);
            let found = table.region(&domain, wanted.start, wanted.len());
            assert!(found.is_some(), "seed {seed}, step {step}: there is room");
            assert_eq!(table.counters.hits > hits, known, "seed {seed}, step {step}");
        }
    }
}

#[test]
fn the_pieces_of_a_buffer_are_registered_a_few_times_and_not_once_each() {
    let (world, mut table) = table(4 * PAGES);
    let domain = Arc::new(());
    // Pieces that do not begin at pages, so that each lies across a boundary.
    for piece in 0..2 * PAGES - 2 {
        let address = FIRST + 24 + piece * PAGE / 2;
        assert!(table.region(&domain, address, PAGE / 2).is_some());
    }
    let world = world.borrow();
    let total: usize = world.registered.iter().map(Range::len).sum();
    assert!(world.registered.len() <= 8, "{:x?}", world.registered);
    assert!(total <= 3 * PAGES * PAGE, "{} times as much as there is", total / (PAGES * PAGE));
    assert_eq!(table.counters.lent_bytes as usize, (2 * PAGES - 2) * PAGE / 2);
}

#[test]
fn the_longest_unused_goes_first_and_what_is_in_use_stays() {
    let (world, mut table) = table(4);
    let domain = Arc::new(());
    // Single pages, with holes between them.
    for page in (1..20).step_by(2) {
        world.borrow_mut().unmap(page..page + 1);
    }
    let mut region = |page: usize| table.region(&domain, FIRST + page * PAGE, PAGE);
    let first = region(0).expect("there is room");
    for page in [2, 4, 6, 2] {
        assert!(region(page).is_some());
    }
    // The first page is the oldest one, but in use; then comes the third.
    assert!(region(8).is_some());
    let known: Vec<_> = table.entries.keys().map(|(_, start)| (start - FIRST) / PAGE).collect();
    assert_eq!(known, [0, 2, 6, 8]);
    let lent: Vec<_> = [0, 2, 6, 8]
        .map(|page| table.region(&domain, FIRST + page * PAGE, PAGE).expect("it is known"))
        .into();
    assert!(table.region(&domain, FIRST + 10 * PAGE, PAGE).is_none(), "all of it is in use");
    drop((first, lent));
    assert!(table.region(&domain, FIRST + 10 * PAGE, PAGE).is_some());
    assert_eq!(table.lending().evicted, 2);
    assert_eq!(table.lending().registered_bytes_max as usize, 4 * PAGE);
}

#[test]
fn what_is_in_use_stays_registered_after_its_memory_has_gone() {
    let (world, mut table) = table(64);
    let domain = Arc::new(());
    let lent = table.region(&domain, FIRST, PAGE).expect("there is room");
    world.borrow_mut().map(0..1);
    let next = table.region(&domain, FIRST, PAGE).expect("there is room");
    assert!(!Arc::ptr_eq(&lent, &next) && lent.held[0] != next.held[0]);
    assert_eq!(table.lending().invalidated, 1);
    assert_eq!(world.borrow().registered_bytes, lent.range.len() + next.range.len());
    drop(lent);
    assert!(table.region(&domain, FIRST + 40 * PAGE, PAGE).is_some());
    assert!(world.borrow().registered_bytes <= 64 * PAGE);
}

#[test]
fn a_device_that_takes_less_is_asked_for_less() {
    let (world, mut table) = table(4 * PAGES);
    world.borrow_mut().room_bytes = 40 * PAGE;
    let domain = Arc::new(());
    for round in 0..4 {
        for page in 0..PAGES {
            let found = table.region(&domain, FIRST + page * PAGE, PAGE);
            assert!(found.is_some(), "round {round}, page {page}");
        }
    }
    assert!(table.limit <= 40 * PAGE && table.limit >= 8 * PAGE, "{}", table.limit / PAGE);
    assert!(table.counters.hits > 3 * table.counters.misses, "{:?}", table.counters);
    world.borrow_mut().room_bytes = 0;
    drop(table);
    let (world, mut table) = self::table(PAGES);
    world.borrow_mut().room_bytes = 0;
    for _ in 0..3 {
        assert!(table.region(&domain, FIRST, PAGE).is_none());
    }
    assert!(table.limit < PAGE, "a device that takes nothing is not asked any more");
}

#[test]
fn what_cannot_be_lent_is_not_asked_for_each_time() {
    let (world, mut table) = table(PAGES);
    let domain = Arc::new(());
    world.borrow_mut().unmap(0..1);
    for _ in 0..REFUSED_FOR {
        assert!(table.region(&domain, FIRST, PAGE).is_none());
    }
    assert_eq!(world.borrow().asked, 1);
    world.borrow_mut().map(0..1);
    assert!(table.region(&domain, FIRST, PAGE).is_some(), "it is asked for again");
    assert_eq!(table.lending().lent_bytes as usize, PAGE);
}
