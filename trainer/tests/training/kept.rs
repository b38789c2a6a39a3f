//! Files that a run streamed its state through are the checkpoint that another goes on from.

use brigade_trainer::Args;

use crate::world::{Folder, bits, ends, train, world};

fn args(more: &str) -> Args {
    crate::world::args(&format!("--ordered --steps 8 {more}"))
}

/// In place with as many ranks, by ranges with more or fewer, and in any other way at all: the
/// digits of a run that was never interrupted, in the bytes of any other run.
#[test]
fn files_that_stay_are_a_checkpoint_for_any_number_of_ranks() {
    let whole = train(&args(""), None).unwrap();
    let folder = Folder::new();
    let kept = format!("--strategy fsdp --keep --checkpoint-every 1 {}", folder.nvme());
    let here = Some(folder.0.clone());
    let mut from = 0;
    for (ranks, until) in [(2, 3), (2, 4), (3, 5), (1, 6), (2, 7)] {
        let resume = here.clone().filter(|_| from > 0);
        let args = Args { stop_at: Some(until), resume, ..args(&kept) };
        for (rank, outcome) in world(ranks, &args).iter().enumerate() {
            let what = format!("steps {from} to {until}, rank {rank} of {ranks}");
            assert_eq!(bits(&outcome.losses), bits(&whole.losses[from..until]), "{what}");
            assert_eq!(outcome.disk.read_bytes, outcome.disk_formula.read_bytes, "{what}");
            assert_eq!(outcome.disk.written_bytes, outcome.disk_formula.written_bytes, "{what}");
        }
        let files = std::fs::read_dir(&folder.0).unwrap().count();
        assert_eq!(files, ranks, "files of {ranks} ranks after step {until}");
        from = until;
    }
    for (ranks, more) in [(1, ""), (2, "--strategy zero1"), (4, "--strategy 1f1b")] {
        for outcome in world(ranks, &Args { resume: here.clone(), ..args(more) }) {
            assert_eq!(bits(&outcome.losses), bits(&whole.losses[from..]), "{more}");
            assert_eq!(outcome.held_out.to_bits(), whole.held_out.to_bits(), "{more}");
        }
    }
}

#[test]
fn masters_and_a_loss_scale_stay_too() {
    let all = "--precision f16 --strategy fsdp";
    let whole = world(2, &args(all)).swap_remove(0);
    let folder = Folder::new();
    let kept = args(&format!("{all} --keep {}", folder.nvme()));
    world(2, &Args { stop_at: Some(5), ..kept.clone() });
    for outcome in world(3, &Args { resume: Some(folder.0.clone()), ..kept }) {
        assert_eq!(bits(&outcome.losses), bits(&whole.losses[5..]));
    }
}

#[test]
fn what_would_be_lost_or_is_not_there_is_refused() {
    let folder = Folder::new();
    let nvme = folder.nvme();
    let kept = args(&format!("--strategy fsdp --keep {nvme}"));
    world(2, &Args { stop_at: Some(2), ..kept });
    let resume = format!("--resume {}", folder.0.display());
    for (flags, problem) in [
        (format!("--strategy zero2 --keep {nvme}"), "--keep: keeps what is all in files"),
        (format!("--strategy fsdp {nvme} {resume}"), "--resume: the files there would be gone"),
        (format!("{resume} --layers 3"), "is of "),
        (format!("{resume} --optimizer lion"), "--optimizer: the checkpoint has the moments"),
    ] {
        let flags = flags.replace("--layers 3", "");
        let layers = if problem == "is of " { 3 } else { 2 };
        for end in ends(2, &Args { layers, ..args(&flags) }) {
            let refused = end.unwrap_err().to_string();
            assert!(refused.contains(problem), "{flags}: {refused}");
        }
    }
    assert_eq!(std::fs::read_dir(&folder.0).unwrap().count(), 2, "what was kept is there still");
}
