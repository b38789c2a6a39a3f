//! Files that a run streamed its state through are the checkpoint that another goes on from.

use std::path::PathBuf;

use brigade_offload::layout::{Directory, Dtype, Tensor};
use brigade_offload::memory::{Arena, Budget};
use brigade_offload::storage::{Settings, Storage};
use brigade_offload::store::{Carrier, StateFile};
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
            assert_eq!(
                outcome.held_out.map(f64::to_bits),
                whole.held_out.map(f64::to_bits),
                "{more}"
            );
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

/// The same folder by another name.
fn another_name(folder: &Folder) -> PathBuf {
    folder.0.join("..").join(folder.0.file_name().unwrap())
}

#[test]
fn what_was_kept_is_gone_on_with_by_any_name_of_its_folder() {
    let whole = train(&args(""), None).unwrap();
    let folder = Folder::new();
    let kept = args(&format!("--strategy fsdp --keep {}", folder.nvme()));
    world(2, &Args { stop_at: Some(3), ..kept.clone() });
    let mut from = 3;
    for (ranks, until) in [(2, 4), (1, 6), (3, 8)] {
        let resume = Some(another_name(&folder));
        for outcome in world(ranks, &Args { stop_at: Some(until), resume, ..kept.clone() }) {
            assert_eq!(bits(&outcome.losses), bits(&whole.losses[from..until]), "{ranks} ranks");
        }
        assert_eq!(std::fs::read_dir(&folder.0).unwrap().count(), ranks);
        from = until;
    }
}

#[test]
fn parameters_that_are_no_numbers_take_nobodys_place() {
    let whole = train(&args(""), None).unwrap();
    let (folder, file) = (Folder::new(), Folder::new());
    let nvme = format!("--strategy fsdp --keep --checkpoint-every 1 {}", folder.nvme());
    let path = file.0.join("saved");
    let saved = format!("--checkpoint-every 1 --checkpoint {}", path.display());
    for (from, flags) in [(folder.0.clone(), nvme), (path, saved)] {
        world(2, &Args { stop_at: Some(3), ..args(&flags) });
        let resume = Some(from);
        let high = Args { lr: 3e38, resume: resume.clone(), ..args(&flags) };
        let ends: Vec<_> = ends(2, &high).into_iter().map(Result::unwrap_err).collect();
        let told = ends.iter().any(|end| end.to_string().contains("try a smaller --lr"));
        assert!(told, "{ends:?}");
        for outcome in world(2, &Args { resume, ..args("") }) {
            assert_eq!(bits(&outcome.losses), bits(&whole.losses[3..]), "{flags}");
        }
    }
}

#[test]
fn a_run_that_keeps_nothing_leaves_what_another_has_kept_beside_it() {
    let whole = train(&args(""), None).unwrap();
    let folder = Folder::new();
    let nvme = folder.nvme();
    world(2, &Args { stop_at: Some(5), ..args(&format!("--strategy fsdp --keep {nvme}")) });
    for flags in ["--strategy fsdp", "--strategy zero1"] {
        world(2, &args(&format!("{flags} {nvme} --stop-at 1")));
    }
    for outcome in world(2, &Args { resume: Some(folder.0.clone()), ..args("") }) {
        assert_eq!(bits(&outcome.losses), bits(&whole.losses[5..]));
    }
    assert_eq!(std::fs::read_dir(&folder.0).unwrap().count(), 2);
}

#[test]
fn what_would_be_lost_or_is_not_there_is_refused() {
    let folder = Folder::new();
    let nvme = folder.nvme();
    let kept = args(&format!("--strategy fsdp --keep {nvme}"));
    world(2, &Args { stop_at: Some(2), ..kept });
    let resume = format!("--resume {}", folder.0.display());
    let by_another = format!("--resume {}", another_name(&folder).display());
    for (flags, problem) in [
        (format!("--strategy zero2 --keep {nvme}"), "--keep: keeps what is all in files"),
        (format!("--strategy fsdp {nvme} {resume}"), "--resume: the files there would be gone"),
        (format!("--strategy fsdp {nvme} {by_another}"), "--resume: the files there would be gone"),
        (format!("--strategy fsdp --keep {nvme}"), "it is what a run has kept after step 2"),
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

#[test]
fn what_was_kept_and_cannot_be_read_is_not_written_over_and_what_nobody_has_kept_is() {
    let folder = Folder::new();
    let kept = args(&format!("--strategy fsdp --keep {}", folder.nvme()));
    world(2, &Args { stop_at: Some(2), ..kept.clone() });
    let path = |rank| folder.0.join(format!("rank-{rank:05}-of-00002.brigade"));
    let bytes = std::fs::read(path(1)).unwrap();
    let refused = |why: &str| {
        for end in ends(2, &kept) {
            let problem = end.unwrap_err().to_string();
            let is_said = problem.contains("cannot be gone on from") && problem.contains(why);
            assert!(is_said && problem.contains("remove its files"), "{problem}");
        }
    };
    std::fs::write(path(1), &bytes[..bytes.len() - 1]).unwrap();
    refused("truncated?");
    std::fs::remove_file(path(1)).unwrap();
    refused("1 files of a checkpoint of 2 ranks");
    // A run that was killed at its start has left these.
    for rank in 0..2 {
        std::fs::write(path(rank), "").unwrap();
    }
    world(2, &Args { stop_at: Some(1), ..kept.clone() });
}

#[test]
fn a_run_that_never_began_leaves_no_file_for_the_next_to_stumble_over() {
    let folder = Folder::new();
    let kept = args(&format!("--strategy fsdp --keep {}", folder.nvme()));
    // It is read once every rank has made its file.
    let text = Some(PathBuf::from("/nonexistent"));
    for end in ends(2, &Args { text, ..kept.clone() }) {
        assert!(end.is_err());
    }
    assert!(folder.is_empty());
    world(2, &kept);
    assert_eq!(std::fs::read_dir(&folder.0).unwrap().count(), 2);
}

/// A second start of a job whose first one lives must not take anything from it.
#[test]
fn what_another_run_writes_to_is_left_to_it() {
    let (folder, arena) = (Folder::new(), Arena::new(Budget::new(16 << 20)).unwrap());
    let storage = Storage::new(&arena, Settings::default()).unwrap();
    let path = |rank, ranks| folder.0.join(format!("rank-{rank:05}-of-{ranks:05}.brigade"));
    let refused = |ranks, args: &Args| {
        let ends = ends(ranks, args).into_iter().map(|end| end.unwrap_err().to_string());
        let told = ends.into_iter().filter(|end| end.contains("is being written by this process"));
        assert!(told.count() > 0, "{args:?}");
    };
    let kept = args(&format!("--strategy fsdp --keep {}", folder.nvme()));
    // It has not kept anything yet.
    let carrier = Carrier::new(&storage, &arena);
    let living = [0, 1].map(|rank| {
        let directory = Directory::pack([Tensor::whole("t", Dtype::U8, &[9])], 64).unwrap();
        StateFile::create(&carrier, &[path(rank, 2)], directory, 4096).unwrap()
    });
    refused(2, &kept);
    assert!(path(0, 2).exists() && path(1, 2).exists());
    drop(living);
    world(2, &Args { stop_at: Some(2), ..kept.clone() });
    let living = storage.open(&path(1, 2)).unwrap();
    storage.own(&living).unwrap();
    for ranks in [2, 3] {
        let resumed = Args { resume: Some(folder.0.clone()), ..kept.clone() };
        // Who does not go on from it is not told to remove the files of who writes.
        for args in [&resumed, &kept] {
            refused(ranks, args);
            let told = brigade_trainer::check(args, ranks).unwrap_err().to_string();
            assert!(told.contains("is being written by") && !told.contains("remove"), "{told}");
        }
    }
    assert_eq!(std::fs::read_dir(&folder.0).unwrap().count(), 2);
    drop(living);
    world(3, &Args { resume: Some(folder.0.clone()), ..kept });
    assert!(path(2, 3).exists() && !path(1, 2).exists());
}

#[test]
fn no_other_flag_writes_what_is_kept() {
    let folder = Folder::new();
    let kept = args(&format!("--strategy fsdp --keep {}", folder.nvme()));
    for name in ["rank-00000-of-00001.brigade", "rank-00002-of-00003.brigade"] {
        let log = Some(another_name(&folder).join(name));
        let refused = Args { log, ..kept.clone() }.validate(1).unwrap_err().to_string();
        assert!(refused.starts_with("--keep: ") && refused.contains(name), "{refused}");
    }
    Args { log: folder.file("log"), ..kept }.validate(1).unwrap();
}
