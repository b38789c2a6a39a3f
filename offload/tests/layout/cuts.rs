//! Cut the power after every step of the protocol, with every subset of what was not synced lost:
//! recovery finds the old generation or the new one, bit by bit, and never a mix.

use std::sync::Arc;

use brigade_offload::layout::{Blueprint, Generation, SLOT_BYTES, Step};

use crate::disk::{Disk, Fate, UNIT, blueprint, commit_steps, filling, load, recover_from};

/// A generation, and the fill of each block.
#[derive(Clone, Debug, PartialEq)]
struct Truth {
    generation: Generation,
    fillings: Vec<u8>,
}

/// A way of breaking the protocol, which the checker must see.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mutant {
    None,
    /// Continue without making what was seen to stay.
    NoFirstSync,
    /// Superblocks overtake blocks.
    NoMiddleSync,
    /// Say that it is done when it is not.
    NoLastSync,
    /// Write over the newest generation.
    InPlace,
}

fn is_superblock(step: &Step) -> bool {
    matches!(step, Step::Write { bytes, offset, .. }
        if *offset <= 64 << 10 && bytes.len() as u64 == SLOT_BYTES)
}

impl Mutant {
    fn mend(self, steps: Vec<Step>) -> Vec<Step> {
        match self {
            Mutant::NoFirstSync => Vec::new(),
            _ => steps,
        }
    }

    fn commit(self, mut steps: Vec<Step>) -> Vec<Step> {
        let last = steps.iter().rposition(is_superblock).unwrap();
        let mut at = 0;
        steps.retain(|step| {
            let is_sync = matches!(step, Step::Sync { .. });
            let is_kept = match self {
                Mutant::NoMiddleSync => !is_sync || at > last,
                Mutant::NoLastSync => !is_sync || at < last,
                _ => true,
            };
            at += 1;
            is_kept
        });
        steps
    }
}

struct Trial {
    blueprint: Arc<Blueprint>,
    mutant: Mutant,
    /// How many fates to draw where they are too many to try all, and from where.
    rng: fastrand::Rng,
    cases: u64,
}

const SUBSETS_MAX: u32 = 6;
const SAMPLES: u32 = 5;

impl Trial {
    fn new(blocks: u64, stripes: u32, mutant: Mutant) -> Self {
        let rng = fastrand::Rng::with_seed(blocks * 100 + u64::from(stripes));
        Self { blueprint: blueprint(blocks, stripes), mutant, rng, cases: 0 }
    }

    fn script(&self, old: Option<&Truth>, label: u64, changed: &[u64]) -> (Truth, Vec<Step>) {
        let mut base = old.map(|old| old.generation.clone());
        if let (Mutant::InPlace, Some(base)) = (self.mutant, &mut base) {
            // The other side is taken for the old one, so the old one is written over.
            base.entries.iter_mut().for_each(|entry| entry.side = entry.side.other());
        }
        let (generation, steps) = commit_steps(&self.blueprint, base.as_ref(), label, changed);
        let blocks = self.blueprint.geometry.blocks();
        let fill = |block: u64| match old {
            Some(old) if !changed.contains(&block) => old.fillings[block as usize],
            _ => filling(label, block),
        };
        let truth = Truth { generation, fillings: (0..blocks).map(fill).collect() };
        (truth, self.mutant.commit(steps))
    }

    /// After any power cut one of `allowed` is there; `None` is the state before the first commit.
    fn check(&mut self, disk: &Disk, allowed: &[Option<&Truth>]) -> Result<(), String> {
        let unsynced = disk.unsynced();
        let all = unsynced as u32 <= SUBSETS_MAX;
        let cases = if all { 1 << unsynced } else { SAMPLES };
        for case in 0..cases + SAMPLES {
            let after = if case < cases && all {
                disk.cut(|unit| if case >> unit & 1 == 1 { Fate::Kept } else { Fate::Lost })
            } else {
                let rng = &mut self.rng;
                disk.cut(|_| [Fate::Lost, Fate::Kept, Fate::Torn][rng.usize(..3)])
            };
            self.cases += 1;
            let found = self.found(&after)?;
            if !allowed.contains(&found.as_ref()) {
                return Err(format!("{found:?} is none of {allowed:?}"));
            }
        }
        Ok(())
    }

    fn found(&self, disk: &Disk) -> Result<Option<Truth>, String> {
        let Ok(recovered) = recover_from(disk) else { return Ok(None) };
        let (blueprint, generation, state) = load(disk, &recovered.candidates[0])?;
        if blueprint != self.blueprint {
            return Err(String::from("another blueprint"));
        }
        let fillings = state.chunks(UNIT).map(|block| block[0]).collect();
        if state.chunks(UNIT).any(|block| block.iter().any(|byte| *byte != block[0])) {
            return Err(String::from("a torn block passed its checksum"));
        }
        Ok(Some(Truth { generation, fillings }))
    }

    /// Cut a commit after every step. Gives the disk as it is after each, the last one being done.
    fn cut_everywhere(
        &mut self,
        start: &Disk,
        steps: &[Step],
        old: Option<&Truth>,
        new: &Truth,
    ) -> Result<Vec<Disk>, String> {
        let mut disk = start.clone();
        let mut disks = vec![disk.clone()];
        for step in steps {
            disk.apply(step);
            self.check(&disk, &[old, Some(new)])?;
            disks.push(disk.clone());
        }
        self.check(&disk, &[Some(new)])?;
        Ok(disks)
    }

    /// Two generations, then a third that changes only some blocks. Each commit is cut everywhere,
    /// and each is also broken off everywhere by the end of its process and followed by another
    /// one.
    fn run(&mut self) -> Result<(), String> {
        let blocks = self.blueprint.geometry.blocks();
        let all: Vec<u64> = (0..blocks).collect();
        let some: Vec<u64> = (0..blocks).filter(|block| block % 3 == 1).collect();
        let mut disk = Disk::new(self.blueprint.geometry.stripes());
        let mut old: Option<Truth> = None;
        for (label, changed) in [(1, &all), (2, &all), (3, &some), (4, &all)] {
            let (new, steps) = self.script(old.as_ref(), label, changed);
            let disks = self.cut_everywhere(&disk, &steps, old.as_ref(), &new)?;
            for (broken, changed) in disks.iter().zip([&all, &some].into_iter().cycle()) {
                self.go_on(broken, old.as_ref(), &new, label + 8, changed)?;
            }
            disk = disks.into_iter().next_back().unwrap();
            old = Some(new);
        }
        Ok(())
    }

    /// The process ended here. The next one recovers from what it sees, mends, and commits again,
    /// under power cuts, while writes of the first process may still be lost.
    fn go_on(
        &mut self,
        broken: &Disk,
        old: Option<&Truth>,
        new: &Truth,
        label: u64,
        changed: &[u64],
    ) -> Result<(), String> {
        let seen = broken.seen();
        let Some(found) = self.found(&seen)? else { return Ok(()) };
        let recovered = recover_from(&seen).unwrap();
        let mut disk = broken.clone();
        for step in self.mutant.mend(recovered.mend(&recovered.candidates[0])) {
            disk.apply(&step);
            self.check(&disk, &[old, Some(new)])?;
        }
        let (next, steps) = self.script(Some(&found), label, changed);
        for step in &steps {
            disk.apply(step);
            self.check(&disk, &[Some(&found), Some(&next)])?;
        }
        self.check(&disk, &[Some(&next)])
    }
}

#[test]
fn a_cut_anywhere_leaves_the_old_or_the_new_generation() {
    let mut cases = 0;
    for stripes in 1..=4 {
        for blocks in [1, 2, 4] {
            let mut trial = Trial::new(blocks, stripes, Mutant::None);
            if let Err(what) = trial.run() {
                panic!("{blocks} blocks on {stripes} stripes: {what}");
            }
            cases += trial.cases;
        }
    }
    assert!(cases > 50_000, "{cases} cases");
}

#[test]
fn the_checker_sees_a_protocol_that_is_wrong() {
    for mutant in [Mutant::NoFirstSync, Mutant::NoMiddleSync, Mutant::NoLastSync, Mutant::InPlace] {
        for stripes in 1..=2 {
            let found = Trial::new(3, stripes, mutant).run();
            assert!(found.is_err(), "{mutant:?} on {stripes} stripes was not seen");
        }
    }
}

/// Ranks that were broken off apart go back to what they have in common; what one of them had more
/// must not come back as if it belonged to what is written later.
#[test]
fn going_back_erases_what_was_newer() {
    let trial = Trial::new(4, 2, Mutant::None);
    let mut disk = Disk::new(2);
    let (first, steps) = trial.script(None, 1, &[0, 1, 2, 3]);
    steps.iter().for_each(|step| disk.apply(step));
    let (_, steps) = trial.script(Some(&first), 2, &[0, 1, 2, 3]);
    steps.iter().for_each(|step| disk.apply(step));
    let recovered = recover_from(&disk.seen()).unwrap();
    let numbers: Vec<u64> = recovered.candidates.iter().map(|one| one.number()).collect();
    assert_eq!(numbers, [2, 1]);
    recovered.mend(&recovered.candidates[1]).iter().for_each(|step| disk.apply(step));
    assert_eq!(disk.unsynced(), 0, "mending ends with a sync");
    assert_eq!(trial.found(&disk).unwrap(), Some(first));
    assert_eq!(recover_from(&disk).unwrap().candidates.len(), 1);
}

/// What was misread may be whole: it must not come back when its blocks are written over.
#[test]
fn a_superblock_that_cannot_be_read_is_erased() {
    let trial = Trial::new(4, 1, Mutant::None);
    let mut disk = Disk::new(1);
    let (first, steps) = trial.script(None, 1, &[0, 1, 2, 3]);
    steps.iter().for_each(|step| disk.apply(step));
    let (second, steps) = trial.script(Some(&first), 2, &[0, 1, 2, 3]);
    steps.iter().for_each(|step| disk.apply(step));
    let mut misread = disk.clone();
    misread.change(0, 50, |byte| *byte ^= 1);
    let recovered = recover_from(&misread).unwrap();
    assert_eq!(recovered.candidates[0].number(), 1);
    assert_eq!(trial.found(&disk).unwrap(), Some(second), "though it is whole");
    recovered.mend(&recovered.candidates[0]).iter().for_each(|step| disk.apply(step));
    assert_eq!(trial.found(&disk).unwrap(), Some(first));
}

/// A superblock that a crash left on one stripe has the number of a later generation, but not its
/// digest.
#[test]
fn a_superblock_left_by_a_crash_is_no_part_of_a_later_generation() {
    let trial = Trial::new(4, 2, Mutant::None);
    let mut disk = Disk::new(2);
    let (first, steps) = trial.script(None, 1, &[0, 1, 2, 3]);
    steps.iter().for_each(|step| disk.apply(step));
    let (_, broken) = trial.script(Some(&first), 2, &[0, 1, 2, 3]);
    let only = |steps: &[Step], wanted: u32| -> Vec<Step> {
        let is_wanted = |step: &&Step| {
            let (Step::Write { stripe, .. } | Step::Sync { stripe }) = step;
            *stripe == wanted || !is_superblock(step)
        };
        steps.iter().filter(is_wanted).cloned().collect()
    };
    only(&broken, 0).iter().for_each(|step| disk.apply(step));
    let (_, again) = trial.script(Some(&first), 7, &[0, 1, 2, 3]);
    only(&again, 1).iter().for_each(|step| disk.apply(step));
    assert_eq!(recover_from(&disk.seen()).unwrap().candidates[0].number(), 1);
}
