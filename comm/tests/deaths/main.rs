//! Ranks killed, or misled, at a random moment of a random mix of collectives.
//!
//! Every survivor returns an error that names the dead within a second, every process ends by
//! itself, and nothing is left behind: no file, no shared memory, no process. When one rank makes
//! another call than the others, all are told so, even when they end at once. The processes are
//! this test binary again, at [`one_rank`]. `BRIGADE_TEST_SEED` repeats one trial.
//!
//! And ranks that are stopped (`stopped`, `joining`): whoever waits for one hears of the others; so
//! does who waits for newcomers (`growing`). Survivors whom nobody tells of a second death find it
//! out (`shrinking`).

mod growing;
mod joining;
mod mix;
mod process;
mod shrinking;
mod stopped;
mod traces;

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use brigade_comm::bootstrap::{Root, UniqueId};
use brigade_schedule::{Algorithm, Collective};
use fastrand::Rng;

use process::{Process, Said};

/// How long a survivor may take to return from its call.
const NAMED_WITHIN: Duration = Duration::from_secs(1);
/// How long everything that is not measured may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// One world and its end.
#[derive(Debug)]
struct Trial {
    seed: u64,
    transport: &'static str,
    algorithm: Option<Algorithm>,
    ranks: usize,
    dead: Vec<usize>,
    /// Who makes another call than the others, and in place of which one.
    misled: Option<(usize, u32)>,
    /// The root runs in the process of rank 0, or else in ours.
    own_root: bool,
    /// Survivors leave without a word to anybody, in the middle of everything.
    hasty: bool,
    /// How long after the last rank has joined.
    pause: Duration,
}

#[test]
#[ignore = "one process of the worlds in this file"]
fn one_rank() {
    if std::env::var("BRIGADE_RANK").is_ok() {
        mix::run_until_told();
    }
}

#[test]
fn survivors_name_the_killed_rank_over_shared_memory() {
    trials(1_000..1_050, |rng, seed| Trial::one_dies(rng, seed, "shm"));
}

#[test]
fn survivors_name_the_killed_rank_over_tcp() {
    trials(2_000..2_050, |rng, seed| Trial::one_dies(rng, seed, "tcp"));
}

#[test]
fn when_two_die_at_once_all_survivors_name_one_of_them() {
    trials(3_000..3_010, Trial::two_die);
}

#[test]
fn processes_that_disagree_and_end_at_once_are_all_told_so() {
    trials(4_000..4_020, |rng, seed| {
        let transport = ["shm", "tcp"][seed as usize % 2];
        let ranks = rng.usize(2..=5);
        let misled = Some((rng.usize(..ranks) % rng.usize(1..=ranks), rng.u32(1..30)));
        let trial = Trial::of(rng, seed, transport, ranks, Vec::new());
        Trial { misled, own_root: seed % 4 < 3, hasty: seed % 8 < 6, ..trial }
    });
}

/// Run the trials of some seeds, or only the one that was asked for.
fn trials(seeds: std::ops::Range<u64>, trial: impl Fn(&mut Rng, u64) -> Trial) {
    let asked = std::env::var("BRIGADE_TEST_SEED").ok();
    let asked = asked.map(|seed| seed.parse::<u64>().expect("a seed is a number"));
    for seed in seeds.filter(|seed| asked.is_none_or(|asked| asked == *seed)) {
        trial(&mut Rng::with_seed(seed), seed).check();
    }
}

impl Trial {
    fn one_dies(rng: &mut Rng, seed: u64, transport: &'static str) -> Self {
        let ranks = rng.usize(2..=5);
        // Rank 0 is the interesting one: with the root in its process, who tells the others?
        let dead = if rng.u8(..) < 85 { 0 } else { rng.usize(..ranks) };
        Self::of(rng, seed, transport, ranks, vec![dead])
    }

    fn two_die(rng: &mut Rng, seed: u64) -> Self {
        let ranks = rng.usize(3..=5);
        let first = rng.usize(..ranks);
        let second = (first + rng.usize(1..ranks)) % ranks;
        let transport = ["shm", "tcp"][seed as usize % 2];
        Self::of(rng, seed, transport, ranks, vec![first, second])
    }

    fn of(
        rng: &mut Rng,
        seed: u64,
        transport: &'static str,
        ranks: usize,
        dead: Vec<usize>,
    ) -> Self {
        let all = Collective::ALL.into_iter();
        let algorithms: Vec<_> = all.flat_map(|it| Algorithm::all_for(it, ranks as u32)).collect();
        let algorithm = (rng.u8(..) < 170).then(|| algorithms[rng.usize(..algorithms.len())]);
        let own_root = rng.u8(..) < 170;
        let hasty = rng.bool();
        let pause = Duration::from_micros(rng.u64(..60_000));
        Self { seed, transport, algorithm, ranks, dead, misled: None, own_root, hasty, pause }
    }

    fn check(&self) {
        println!("{self:?}");
        let traces = traces::Traces::before(&format!("{}-{}", std::process::id(), self.seed));
        let (mut world, _root) = self.start(&traces);
        for process in &world {
            assert_eq!(process.said(PATIENCE), Said::Joined);
            traces.check_open_files(process.id());
        }
        let named = match self.misled {
            Some((misled, _)) => self.check_told(misled, &world),
            None => self.kill(&mut world),
        };
        for (rank, process) in world.into_iter().enumerate() {
            let status = process.end(PATIENCE);
            let wanted = if self.dead.contains(&rank) { None } else { Some(mix::TOLD) };
            assert_eq!(status.code(), wanted, "rank {rank} ended with {status}");
        }
        if !(self.own_root && self.dead.contains(&0)) {
            // With the root, the one who decides may die between telling one rank and another.
            assert!(named.iter().all(|one| *one == named[0]), "{named:?}");
        }
        traces.check_nothing_left();
    }

    /// Kill whom the trial wants dead, and see whom each survivor names.
    fn kill(&self, world: &mut [Process]) -> Vec<String> {
        std::thread::sleep(self.pause);
        let killed_at = SystemTime::now();
        self.dead.iter().for_each(|rank| world[*rank].kill());
        let mut named = Vec::new();
        for (rank, process) in world.iter().enumerate().filter(|it| !self.dead.contains(&it.0)) {
            let said = process.said(NAMED_WITHIN + PATIENCE);
            let Said::Lost { rank: dead, at, text } = &said else {
                panic!("rank {rank} does not name the dead: {said:?}");
            };
            let after = at.duration_since(killed_at).unwrap_or_default();
            println!("  rank {rank} after {after:?}: {text}");
            assert!(self.dead.contains(dead), "rank {rank} names the wrong one: {text}");
            assert!(after <= NAMED_WITHIN, "rank {rank} returns only after {after:?}: {text}");
            named.push(format!("rank {dead}"));
        }
        named
    }

    /// See that every rank is told that `misled` has made another call.
    fn check_told(&self, misled: usize, world: &[Process]) -> Vec<String> {
        let said = world[misled].said(PATIENCE);
        let Said::Misled(since) = said else { panic!("rank {misled} is not misled: {said:?}") };
        let mut told = Vec::new();
        for (rank, process) in world.iter().enumerate() {
            let said = process.said(NAMED_WITHIN + PATIENCE);
            let Said::Mismatch { at, text } = said else {
                panic!("rank {rank} is not told of the mismatch: {said:?}");
            };
            let after = at.duration_since(since).unwrap_or_default();
            println!("  rank {rank} after {after:?}: {text}");
            let wrong = format!("rank {misled} called #");
            assert!(text.contains(&wrong) && text.contains("all-reduce(i8 x 3, min)"), "{text}");
            assert!(after <= NAMED_WITHIN, "rank {rank} returns only after {after:?}: {text}");
            told.push(text);
        }
        told
    }

    fn start(&self, traces: &traces::Traces) -> (Vec<Process>, Option<Root>) {
        let (variable, value, root) = if self.own_root {
            let path = traces.folder().join("id");
            ("BRIGADE_ID_FILE", path.to_str().expect("a path in UTF-8").to_owned(), None)
        } else {
            let (id, root) = UniqueId::create(None).expect("a root");
            ("BRIGADE_ID", id.to_string(), Some(root))
        };
        let rank = |rank: usize| {
            let temporary: PathBuf = traces.new_folder(&format!("rank-{rank}"));
            let mut variables = vec![
                (variable, value.clone()),
                ("BRIGADE_RANK", rank.to_string()),
                ("BRIGADE_WORLD_SIZE", self.ranks.to_string()),
                ("BRIGADE_TRANSPORT", self.transport.to_owned()),
                ("BRIGADE_ENCRYPT", u8::from(self.seed % 4 == 3).to_string()),
                ("TMPDIR", temporary.to_str().expect("a path in UTF-8").to_owned()),
                (mix::SEED, self.seed.to_string()),
                traces.variable(),
            ];
            if let Some(algorithm) = self.algorithm {
                variables.push(("BRIGADE_ALGORITHM", algorithm.to_string()));
            }
            if let Some((_, number)) = self.misled.filter(|(misled, _)| *misled == rank) {
                variables.push((mix::MISLED, number.to_string()));
            }
            if self.hasty {
                variables.push((mix::HASTY, "1".to_owned()));
            }
            Process::start("one_rank", variables)
        };
        ((0..self.ranks).map(rank).collect(), root)
    }
}
