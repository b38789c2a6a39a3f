//! A thousand seeded devices that refuse, run full, transfer less than asked or turn bits over,
//! while a state is committed, opened and read; and power is cut somewhere on top.

use brigade_offload::storage::simulated::{Faults, SimulatedDevice, Unsynced};
use brigade_offload::store::{StateFile, Which};

use crate::world::{carrier, device, directory, found, paths, save, version_of};

const TRIALS: u64 = 1000;

/// A commit that was tried: where in the record it began and ended, and how.
struct Attempt {
    version: u64,
    began: usize,
    ended: usize,
    is_done: bool,
}

struct Trial {
    seed: u64,
    rng: fastrand::Rng,
    device: SimulatedDevice,
    stripes: usize,
    attempts: Vec<Attempt>,
    /// Whether the device may store something else than what was written without a word, or has
    /// kept superblocks from being read: older generations may be found then.
    is_lying: bool,
    reported: u32,
}

/// Faults of one or more kinds; how likely each is differs by orders of magnitude.
fn faults(rng: &mut fastrand::Rng) -> Faults {
    let mut faults = Faults { seed: rng.u64(..), ..Faults::default() };
    for _ in 0..rng.usize(1..3) {
        let chances = [3_000, 30_000, 300_000][rng.usize(..3)];
        match rng.usize(..7) {
            0 => faults.read_refused = chances,
            1 => faults.write_refused = chances,
            2 => faults.sync_refused = chances * 3,
            3 => faults.short = chances,
            4 => faults.read_flipped = chances,
            5 => faults.write_flipped = chances,
            _ => faults.full_after_bytes = Some(rng.u64(..200_000)),
        }
    }
    faults
}

impl Trial {
    fn new(seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let stripes = rng.usize(1..4);
        let (attempts, is_lying, reported) = (Vec::new(), false, 0);
        Self { seed, rng, device: device(), stripes, attempts, is_lying, reported }
    }

    fn run(&mut self) {
        self.device.start_record();
        let tensors = directory(&mut self.rng);
        let block_bytes = [4096, 16384][self.rng.usize(..2)];
        let paths = paths(self.stripes);
        let carrier = carrier(&self.device);
        let state = StateFile::create(&carrier, &paths, tensors, block_bytes);
        let mut state = state.expect("no faults yet");
        self.commit(&mut state, 1);
        let faults = faults(&mut self.rng);
        self.is_lying = faults.write_flipped > 0;
        self.device.set_faults(faults);
        for version in 2..6 {
            self.commit(&mut state, version);
            match version_of(&state) {
                Ok(version) => self.check(version, usize::MAX, "read back"),
                Err(_) => self.reported += 1,
            }
            if self.rng.bool() {
                match StateFile::open(&carrier, &paths, Which::Newest) {
                    Ok(opened) => {
                        // What it had to do without may have been the newest generation.
                        self.is_lying |= !opened.faults().is_empty();
                        state = opened;
                    }
                    Err(_) => self.reported += 1,
                }
            }
        }
        drop(state);
        self.device.set_faults(Faults::default());
        self.afterwards(&self.device.clone(), usize::MAX, "at the end");
        for _ in 0..2 {
            let at = self.rng.usize(self.attempts[0].ended..=self.device.cuts());
            let cut = self.device.after_cut(at, Unsynced::Tossed(self.rng.u64(..)));
            self.afterwards(&cut, at, "after a power cut");
        }
    }

    fn commit(&mut self, state: &mut StateFile, version: u64) {
        let began = self.device.cuts();
        let is_done = save(state, version).is_ok();
        self.reported += u32::from(!is_done);
        let ended = self.device.cuts();
        self.attempts.push(Attempt { version, began, ended, is_done });
    }

    /// The device works again: the newest commit must be there, whole, unless the device has lied.
    fn afterwards(&mut self, device: &SimulatedDevice, at: usize, when: &str) {
        match found(&carrier(device), &paths(self.stripes)) {
            Ok((version, _)) => self.check(version, at, when),
            Err(_) if self.is_lying => self.reported += 1,
            Err(error) => panic!("seed {}, {when}: {error}", self.seed),
        }
    }

    /// What may be there at that moment: the last commit that was done, or one tried since.
    fn check(&self, version: u64, at: usize, when: &str) {
        let is_before = |attempt: &&Attempt| attempt.is_done && attempt.ended <= at;
        let last = self.attempts.iter().rev().find(is_before).map_or(0, |last| last.version);
        let begun = self.attempts.iter().filter(|attempt| attempt.began <= at);
        let newest = begun.map(|attempt| attempt.version).max().unwrap_or(0);
        // A device that lies may spoil the newest one, so an older one is found; never a mix.
        let oldest = if self.is_lying { 1 } else { last };
        assert!(
            (oldest..=newest).contains(&version),
            "seed {}, {when}: version {version}, {last} was committed, {newest} was tried",
            self.seed
        );
    }
}

#[test]
fn a_thousand_faulty_devices_are_survived_or_reported() {
    let (mut reported, mut faults) = (0, 0);
    for seed in 0..TRIALS {
        let mut trial = Trial::new(seed);
        trial.run();
        let had_faults = trial.device.moved().faults > 0;
        faults += u64::from(had_faults);
        reported += u64::from(trial.reported > 0);
        assert!(had_faults || trial.reported == 0, "seed {seed}: an error out of nothing");
    }
    println!("{faults} of {TRIALS} devices had faults, {reported} had errors to report");
    assert!(faults > TRIALS / 2 && reported > TRIALS / 4, "{faults} {reported}");
}
