//! What tests on a device have in common: a small model, worlds of threads, what a device is
//! compared with, processes with variables of their own, and folders that do not stay.

use super::{alone, beside, has_device};
use brigade_comm::{Communicator, Settings};
use brigade_trainer::{Args, Error, Outcome};
use clap::Parser;
use std::path::{Path, PathBuf};
use std::process::Command as Program;
use std::time::{Duration, Instant};

/// How far losses in f32 may be from the processor's, of which they are a part.
pub(super) const TOLERANCE: f64 = 1e-5;

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    args: Args,
}

/// A model small enough for seconds, with a parameter count that no rank count divides; whatever is
/// said of it is so.
pub(super) fn args(more: &str) -> Args {
    let base = [
        ["--batch", "4"],
        ["--context", "10"],
        ["--layers", "2"],
        ["--width", "20"],
        ["--heads", "2"],
        ["--sample", "0"],
        ["--held-out", "10"],
        ["--threads", "1"],
        ["--steps", "4"],
        ["--lr", "2e-3"],
    ];
    let base = base.into_iter().filter(|[flag, _]| !more.contains(flag)).flatten();
    let words = ["train", "--quiet"].into_iter().chain(base).chain(more.split_whitespace());
    Command::parse_from(words).args
}

pub(super) fn train(args: &Args, world: Option<Communicator>) -> Result<Outcome, Error> {
    let _beside = world.is_none().then(beside);
    brigade_trainer::train(args, world, &mut std::io::sink(), &mut |_| {})
}

/// The outcome of every rank of a world of threads.
pub(super) fn world(ranks: usize, args: &Args) -> Vec<Outcome> {
    outcomes(ranks, args).into_iter().map(Result::unwrap).collect()
}

/// The same, however it ends.
pub(super) fn outcomes(ranks: usize, args: &Args) -> Vec<Result<Outcome, Error>> {
    if ranks == 1 {
        return vec![train(args, None)];
    }
    let _alone = alone();
    let (transport, timeout) = ("loopback".to_string(), Duration::from_secs(60));
    let settings = Settings { transport, timeout, ..Settings::default() };
    let comms = Communicator::local_world(ranks, &settings).unwrap();
    std::thread::scope(|scope| {
        let run = |comm| scope.spawn(move || train(args, Some(comm)));
        let threads: Vec<_> = comms.into_iter().map(run).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// The outcome of a process alone, and what it prints.
pub(super) fn told(args: &Args) -> (Outcome, String) {
    let _beside = beside();
    let mut text = Vec::new();
    let outcome = brigade_trainer::train(args, None, &mut text, &mut |_| {}).unwrap();
    (outcome, String::from_utf8(text).unwrap())
}

/// What the first rank of a world prints.
pub(super) fn table(ranks: usize, args: &Args) -> String {
    let _alone = alone();
    let settings = Settings { transport: "loopback".to_string(), ..Settings::default() };
    let comms = Communicator::local_world(ranks, &settings).unwrap();
    let run = |comm| {
        let mut text = Vec::new();
        brigade_trainer::train(args, Some(comm), &mut text, &mut |_| {}).unwrap();
        String::from_utf8(text).unwrap()
    };
    std::thread::scope(|scope| {
        let run = |comm| scope.spawn(move || run(comm));
        let threads: Vec<_> = comms.into_iter().map(run).collect();
        let texts: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        texts.concat()
    })
}

/// The device's losses, and those on text that was not trained on, are the processor's.
pub(super) fn check(ranks: usize, more: &str, tolerance: f64) {
    let host = &world(ranks, &args(more))[0];
    for (rank, device) in world(ranks, &args(&format!("{more} --device cuda"))).iter().enumerate() {
        let what = format!("{more}: rank {rank} of {ranks}");
        assert_eq!(device.sent_bytes, device.formula_bytes, "{what}");
        assert_eq!(device.losses.len(), host.losses.len(), "{what}");
        let pairs = device.losses.iter().zip(&host.losses);
        let ends = device.held_out.iter().zip(&host.held_out);
        for (step, (got, want)) in pairs.chain(ends).enumerate() {
            let off = (got - want).abs() / want;
            println!("{what}: step {step}, {got} for {want}, off by {off:.1e}");
            assert!(off < tolerance, "{what}: step {step} has {got}, the processor {want}");
        }
    }
}

/// A run in legs, by so many ranks and these flags, each from the checkpoint of the one before and
/// up to a step, has the losses of the processor.
pub(super) fn check_legs(shape: &str, legs: [(usize, &str, usize); 3]) {
    let folder = Folder::new();
    let file = folder.0.join("state.gpt");
    let whole = &world(1, &args(shape))[0].losses;
    let mut from = 0;
    for (ranks, more, to) in legs {
        let more = format!("{shape} {more} --stop-at {to}");
        let resume = (from > 0).then(|| file.clone());
        let checkpoint = Some(file.clone());
        let leg = &world(ranks, &Args { checkpoint, resume, ..args(&more) })[0];
        assert_eq!(leg.losses.len(), to - from, "{more}");
        near(&leg.losses, &whole[from..to], TOLERANCE, &more);
        from = to;
    }
}

/// The losses of bf16 on the device are near those that the processor has in f32.
pub(super) fn check_bf16(ranks: usize, more: &str, shape: &str) {
    let alone = train(&args(shape), None).unwrap().losses;
    let more = format!("{shape} {more} --precision bf16 --device cuda");
    for outcome in world(ranks, &args(&more)) {
        near(&outcome.losses, &alone, 1e-2, &more);
    }
}

/// No loss is off by more than that part of it.
pub(super) fn near(got: &[f64], want: &[f64], tolerance: f64, what: &str) {
    for (got, want) in got.iter().zip(want) {
        assert!((got - want).abs() / want < tolerance, "{what}: {got}, not {want}");
    }
}

/// Whether this is a process with these variables; if not, one is started, which runs the test.
pub(super) fn is_child_with(variables: &[(&str, &Path)], test: &str) -> bool {
    let is_set = |(name, value): &(&str, &Path)| {
        std::env::var_os(name).is_some_and(|found| found == value.as_os_str())
    };
    if !has_device() || variables.iter().all(is_set) {
        return has_device();
    }
    let program = std::env::current_exe().unwrap();
    let mut child = Program::new(program);
    child.args(["--exact", test, "--nocapture"]).envs(variables.iter().copied());
    let output = child.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    println!("{text}");
    false
}

/// A rank of so many that fails in a step, in the test of this name, ends the others at once.
pub(super) fn check_failure(ranks: usize, more: &str, test: &str) {
    let fault = ("BRIGADE_FAKE_CUDA_FAULTS", Path::new("cuLaunchKernel@700=1"));
    if brigade_cuda_fake::is_off() || !is_child_with(&[fault], test) {
        return;
    }
    let begun = Instant::now();
    let ends = outcomes(ranks, &args(&format!("{more} --device cuda --steps 40")));
    let words: Vec<String> = ends.into_iter().map(|end| end.unwrap_err().to_string()).collect();
    println!("{words:?} after {:?}", begun.elapsed());
    assert!(words.iter().any(|words| words.contains("CUDA_ERROR_INVALID_VALUE")), "{words:?}");
    assert!(begun.elapsed() < Duration::from_secs(40), "{:?}", begun.elapsed());
}

/// A folder that is gone when this is dropped.
pub(super) struct Folder(pub(super) PathBuf);

impl Folder {
    pub(super) fn new() -> Folder {
        let name =
            format!("brigade-device-{}-{:?}", std::process::id(), std::thread::current().id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What cannot be removed is left to whoever cleans the folder for temporary files.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
