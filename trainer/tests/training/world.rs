//! What the tests have in common: a model small enough for seconds, worlds of threads, folders that
//! do not stay.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use brigade_comm::{Communicator, Settings};
use brigade_trainer::{Args, Error, Outcome};
use clap::Parser;

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    args: Args,
}

/// A model with a parameter count that no rank count divides, and these flags besides.
pub(crate) fn args(more: &str) -> Args {
    let base = "train --batch 12 --context 24 --layers 2 --width 20 --heads 2 --quiet --sample 0 \
                --held-out 10 --threads 1";
    let set = |flag: &str| more.split_whitespace().any(|word| word == flag);
    assert!(!set("--batch") && !set("--lanes"), "what the base has is changed in the result");
    let words = base.split_whitespace().chain(more.split_whitespace());
    Args { lanes: 12, ..Command::parse_from(words).args }
}

/// What these flags say.
pub(crate) fn flags(flags: &[String]) -> Args {
    Command::parse_from(["train".to_string()].iter().chain(flags)).args
}

pub(crate) fn train(args: &Args, world: Option<Communicator>) -> Result<Outcome, Error> {
    brigade_trainer::train(args, world, &mut std::io::sink(), &mut |_| {})
}

/// What every rank of a world of threads came to.
pub(crate) fn spread<T: Send>(ranks: usize, run: impl Fn(Communicator) -> T + Sync) -> Vec<T> {
    let settings = Settings { transport: "loopback".to_string(), ..Settings::default() };
    let comms = Communicator::local_world(ranks, &settings).unwrap();
    let run = &run;
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            comms.into_iter().map(|comm| scope.spawn(move || run(comm))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// How every rank ended.
pub(crate) fn ends(ranks: usize, args: &Args) -> Vec<Result<Outcome, Error>> {
    spread(ranks, |comm| train(args, Some(comm)))
}

/// The outcome of every rank.
pub(crate) fn world(ranks: usize, args: &Args) -> Vec<Outcome> {
    ends(ranks, args).into_iter().map(Result::unwrap).collect()
}

pub(crate) fn bits(losses: &[f64]) -> Vec<u64> {
    losses.iter().map(|loss| loss.to_bits()).collect()
}

/// A folder that is gone when the test ends, well or not.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new() -> Folder {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("brigade-training-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Folder(path)
    }

    pub(crate) fn file(&self, name: &str) -> Option<PathBuf> {
        Some(self.0.join(name))
    }

    pub(crate) fn bytes(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.0.join(name)).unwrap()
    }

    /// The flag that has state kept here.
    pub(crate) fn nvme(&self) -> String {
        format!("--offload nvme:{}", self.0.display())
    }

    pub(crate) fn is_empty(&self) -> bool {
        std::fs::read_dir(&self.0).unwrap().next().is_none()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let gone = std::fs::remove_dir_all(&self.0);
        assert!(gone.is_ok() || std::thread::panicking(), "{gone:?}");
    }
}
