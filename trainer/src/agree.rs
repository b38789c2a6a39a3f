//! Whether all ranks of a run were told the same. Our launcher sees to that; under any other each
//! has a command line of its own, and ranks with different ones would train on as if nothing were.

use crate::args::Args;
use crate::data::Corpus;
use crate::error::Error;
use brigade_comm::Communicator;
use crc_fast::CrcAlgorithm;
use std::path::Path;

/// More than all flags and their values are together.
const TOLD_BYTES_MAX: u64 = 1 << 20;

/// Refuse what this rank was told otherwise than rank 0, of what decides which numbers a run
/// computes, the text included: each rank reads its own. Collective.
///
/// Errors: `Setting`, by the flag that differs first.
pub(crate) fn require(
    args: &Args,
    text: &Corpus,
    world: Option<&Communicator>,
) -> Result<(), Error> {
    let Some(world) = world else { return Ok(()) };
    let told = told(args, text);
    let mut text = serde_json::to_vec(&told).expect("flags and their values are text");
    let mut bytes = [text.len() as u64];
    world.broadcast(&mut bytes, 0)?;
    if bytes[0] > TOLD_BYTES_MAX {
        let rank = world.rank();
        let problem = format!("rank 0 runs another program than rank {rank}, or another version");
        return Err(Error::setting("ranks", problem));
    }
    text.resize(bytes[0] as usize, 0);
    if world.rank() > 0 {
        text.fill(0);
    }
    world.broadcast(&mut text, 0)?;
    // What cannot be read is another program's.
    let first: Vec<(String, String)> = serde_json::from_slice(&text).unwrap_or_default();
    for (at, (name, value)) in told.into_iter().enumerate() {
        let of_first = first.get(at).filter(|(flag, _)| flag == name).map(|(_, value)| value);
        if of_first.is_none_or(|of_first| *of_first != value) {
            let of_first = of_first.map_or("nothing of the kind", String::as_str);
            let problem = format!(
                "rank {} was told {value}, but rank 0 {of_first}; all need the same",
                world.rank()
            );
            return Err(Error::setting(name, problem));
        }
    }
    Ok(())
}

/// Flags, and what they say.
fn told(args: &Args, text: &Corpus) -> Vec<(&'static str, String)> {
    let Args { batch, context, layers, width, heads, experts, top, seed, steps, .. } = *args;
    let counts = [
        ("batch", batch),
        ("context", context),
        ("layers", layers),
        ("width", width),
        ("heads", heads),
        ("experts", experts),
        ("top", top),
        ("steps", steps),
        ("stop-at", args.last_step()),
        ("accumulate", args.accumulate.unwrap_or(0)),
        ("lanes", if args.ordered { args.lanes } else { 0 }),
        ("tile", args.tile.unwrap_or(0)),
        ("checkpoint-every", args.checkpoint_every.unwrap_or(0)),
        ("sample", usize::from(args.sample > 0)),
        ("held-out", args.held_out),
    ];
    let counts = counts.into_iter().map(|(name, count)| (name, count.to_string()));
    let ways: Vec<_> = args.strategy.iter().map(|way| way.name()).collect();
    let compress = args.travel.compress.map_or("none".to_string(), |how| how.to_string());
    let words = [
        ("lr", args.lr.to_string()),
        ("clip", args.clip.map_or("none".to_string(), |norm| norm.to_string())),
        ("seed", seed.to_string()),
        ("optimizer", args.optimizer.name()),
        ("precision", args.precision.name()),
        ("strategy", ways.join(",")),
        ("compress", compress),
        ("reduce", args.travel.reduce.name()),
        ("gather", args.travel.gather.name()),
        ("text", text.mark()),
        ("checkpoint", told_whether(args.checkpoint.is_some())),
        ("keep", told_whether(args.keep)),
        ("resume", told_whether(args.resume.is_some())),
        ("trace", told_whether(args.trace.is_some())),
        ("draw", told_whether(args.draw.is_some())),
        ("schedule", args.schedule.as_deref().map_or("none".to_string(), mark_of)),
        ("mesh", args.mesh.as_ref().map_or("none".to_string(), |mesh| mesh.to_string())),
        ("secondary", told_whether(args.travel.secondary)),
    ];
    counts.chain(words).chain(args.hyper.by_flag()).collect()
}

/// What tells a file from another; one that cannot be read is refused by who needs it.
fn mark_of(path: &Path) -> String {
    match std::fs::read(path) {
        Err(error) => format!("one that cannot be read ({error})"),
        Ok(bytes) => {
            let sum = crc_fast::checksum(CrcAlgorithm::Crc64Nvme, &bytes);
            format!("{} bytes with checksum {sum:016x}", bytes.len())
        }
    }
}

fn told_whether(is_asked: bool) -> String {
    String::from(if is_asked { "it" } else { "none" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use brigade_comm::Settings;

    #[test]
    fn a_rank_that_was_told_something_else_names_the_flag() {
        let ends = |flags: [&str; 2]| -> Vec<Option<String>> {
            let settings = Settings { transport: "loopback".to_string(), ..Settings::default() };
            let comms = Communicator::local_world(2, &settings).unwrap();
            std::thread::scope(|scope| {
                let start = |(comm, flags): (Communicator, &str)| {
                    let args = Args::of(flags);
                    let require = move || {
                        let text = Corpus::open(args.text.as_deref()).unwrap();
                        require(&args, &text, Some(&comm)).err().map(|it| it.to_string())
                    };
                    scope.spawn(require)
                };
                let threads: Vec<_> = comms.into_iter().zip(flags).map(start).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            })
        };
        assert_eq!(ends(["--lr 0.01", "--lr 1e-2 --threads 3"]), [None, None]);
        let path = std::env::temp_dir().join(format!("brigade-other-{}", std::process::id()));
        std::fs::write(&path, "another text").unwrap();
        let other = format!("--text {}", path.display());
        for (flags, wanted) in [
            (["--lr 0.01", "--lr 0.1"], "--lr: rank 1 was told 0.1, but rank 0 0.01"),
            (["--clip 2", ""], "--clip: rank 1 was told none, but rank 0 2"),
            (["", "--beta2 0.5"], "--beta2: rank 1 was told 0.5, but rank 0 0.95"),
            (["--seed 7", ""], "--seed: rank 1 was told 1851, but rank 0 7"),
            (["", "--checkpoint x"], "--checkpoint: rank 1 was told it, but rank 0 none"),
            (["--trace x", ""], "--trace: rank 1 was told none, but rank 0 it"),
            (["--resume x", ""], "--resume: rank 1 was told none, but rank 0 it"),
            (["--strategy fsdp", ""], "--strategy: rank 1 was told ddp, but rank 0 fsdp"),
            (["", "--compress topk"], "--compress: rank 1 was told topk:0.01, but rank 0 none"),
            (["", &other], "--text: rank 1 was told 13 bytes with checksum "),
        ] {
            let [first, second] = &ends(flags)[..] else { unreachable!("two ranks") };
            assert_eq!(*first, None, "{flags:?}");
            assert!(second.as_ref().is_some_and(|it| it.starts_with(wanted)), "{second:?}");
        }
        std::fs::remove_file(&path).unwrap();
    }
}
