//! What a training that has ended on its way leaves to go on from: for whoever ends it.

use crate::args::Args;
use crate::checkpoint;
use crate::layout::Layout;
use crate::offload::{Kept, Tier, is_same_folder};
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// What had the name of a run's checkpoint before it: that is none of this run's.
pub struct Before(Option<Mark>);

/// Which file it is, and when it was written.
type Mark = (u64, u64, i64, i64);

impl Before {
    /// Look, before the run begins.
    pub fn of(args: &Args) -> Before {
        Before(args.checkpoint.as_deref().and_then(mark))
    }

    /// A line for each place where the run was to leave something: what is there, and how to go on.
    pub fn told(&self, args: &Args) -> Vec<String> {
        let file = args.checkpoint.as_deref().map(|path| self.of_file(args, path));
        let folder = match args.offload.as_ref().filter(|_| args.keep) {
            Some(Tier::Nvme(folder)) => Some(of_folder(args, folder)),
            _ => None,
        };
        file.into_iter().chain(folder).collect()
    }

    fn of_file(&self, args: &Args, path: &Path) -> String {
        let name = path.display();
        let now = mark(path);
        let is_resumed = args.resume.as_deref().is_some_and(|from| mark(from) == now);
        match now {
            None => format!("nothing was saved: {name} {}", when(args)),
            Some(_) if now == self.0 && !is_resumed => {
                format!("nothing was saved: {name} is what it was before, and {}", when(args))
            }
            Some(_) => match checkpoint::header(path, &Layout::new(args.config())) {
                Ok((header, _)) => has(args, path, header.step),
                Err(problem) => format!("cannot be gone on from: {problem}"),
            },
        }
    }
}

fn of_folder(args: &Args, folder: &Path) -> String {
    let name = folder.display();
    let is_resumed = args.resume.as_deref().is_some_and(|from| is_same_folder(from, folder));
    match Kept::look(folder) {
        Ok(Some(Kept { header, .. })) if header.step > 0 || is_resumed => {
            has(args, folder, header.step)
        }
        Ok(_) => format!("nothing was saved: {name} {}", when(args)),
        Err(problem) => format!("cannot be gone on from: {problem}"),
    }
}

/// What there is, and how to go on from it.
fn has(args: &Args, path: &Path, step: usize) -> String {
    let name = path.display();
    match step < args.last_step() {
        true => format!("{name} has step {step}: --resume {name} goes on from there"),
        false => format!("{name} has step {step}, the last"),
    }
}

/// When there would have been something.
fn when(args: &Args) -> String {
    match args.checkpoint_every {
        Some(1) => "is written after every step, and at the end".to_string(),
        Some(every) => format!("is written after every {every} steps, and at the end"),
        None => "is written at the end; with --checkpoint-every STEPS also on the way".to_string(),
    }
}

fn mark(path: &Path) -> Option<Mark> {
    let of = |found: Metadata| (found.dev(), found.ino(), found.mtime(), found.mtime_nsec());
    path.metadata().ok().map(of)
}
