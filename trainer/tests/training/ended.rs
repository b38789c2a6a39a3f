//! What ends a rank is told before what the rank has goes, once, and ends the others.

use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use brigade_comm::Error as CommError;
use brigade_trainer::{Error, give_up};

use crate::world::{Folder, args, spread, train};

/// How many files of this folder this process has open, with a name or without.
fn open_in(folder: &Path) -> usize {
    let open = std::fs::read_dir("/proc/self/fd").unwrap();
    let files = open.filter_map(|number| std::fs::read_link(number.ok()?.path()).ok());
    files.filter(|file| file.starts_with(folder)).count()
}

/// Takes so many pieces of what is printed.
struct Full(usize);

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 = self.0.checked_sub(1).ok_or(io::ErrorKind::StorageFull)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn what_ends_a_run_is_said_once_while_it_still_has_its_files() {
    let folder = Folder::new();
    let args = args(&format!("--steps 3 --strategy fsdp {}", folder.nvme()));
    let mut said = Vec::new();
    let mut say = |error: &Error| said.push((error.to_string(), open_in(&folder.0)));
    let ended = brigade_trainer::train(&args, None, &mut Full(2), &mut say);
    assert!(matches!(ended, Err(Error::Output(_))));
    assert_eq!(open_in(&folder.0), 0, "all of it is gone by now");
    let [(words, open)] = &said[..] else { panic!("said {} times", said.len()) };
    assert!(words.starts_with("cannot print: ") && *open > 0, "{words}, {open} files");
}

#[test]
fn what_one_rank_alone_finds_of_its_calls_ends_the_others() {
    let begun = Instant::now();
    let ends = spread(2, |comm| {
        if comm.rank() == 0 {
            return comm.barrier().unwrap_err().to_string();
        }
        let error = CommError::Invalid { what: "no memory to share".to_string() };
        give_up(&comm, error.into()).to_string()
    });
    assert_eq!(ends, ["rank 1 aborted: refused: no memory to share", "no memory to share"]);
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
}

#[test]
fn ranks_come_to_the_same_whoever_was_first() {
    let refused = args("--steps 3 --text /nonexistent");
    for end in crate::world::ends(3, &refused) {
        let error = end.unwrap_err();
        assert!(error.is_refusal(), "{error}");
    }
    // Too large a step is no refusal, though nothing can be written of what it comes to.
    let folder = Folder::new();
    let late = args("--steps 2 --lr 1e38 --checkpoint-every 1");
    let late = brigade_trainer::Args { checkpoint: folder.file("state"), ..late };
    for end in crate::world::ends(2, &late) {
        let error = end.unwrap_err();
        assert!(!error.is_refusal(), "{error}");
        assert!(error.to_string().contains("try a smaller --lr"), "{error}");
    }
}

/// What a run goes on with has no part in the first loss that it finds.
#[test]
fn a_loss_that_is_none_right_after_a_resume_is_the_checkpoints() {
    let folder = Folder::new();
    let (saved, beginning) = (folder.file("saved"), args("--steps 4 --stop-at 1 --lr 1e30"));
    train(&brigade_trainer::Args { checkpoint: saved.clone(), ..beginning }, None).unwrap();
    let next = brigade_trainer::Args { resume: saved, ..args("--steps 4") };
    let said = train(&next, None).unwrap_err().to_string();
    assert!(said.contains("at step 2, the first after the checkpoint"), "{said}");
    assert!(said.contains("go on from an earlier one") && !said.contains("--lr"), "{said}");
}
