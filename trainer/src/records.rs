//! What is kept of a run beside what it prints: the run log, event files, a picture. Rank 0's work.

use crate::args::Args;
use crate::drawing;
use crate::error::Error;
use crate::events::Events;
use crate::outcome::Outcome;
use crate::parallel::Memory;
use crate::runlog::{RunLog, StepRecord};
use brigade_offload::storage::write_whole;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// What a run writes beside what it prints.
#[derive(Clone, Copy, Debug)]
pub enum Output<'a> {
    /// A file.
    File(&'a Path),
    /// A file that is written beside this name, and takes it when it is whole.
    Renamed(&'a Path),
    /// A folder, which is made if it is not there.
    Folder(&'a Path),
}

impl<'a> Output<'a> {
    /// What it is called in the end.
    pub fn path(&self) -> &'a Path {
        let (Self::File(path) | Self::Renamed(path) | Self::Folder(path)) = *self;
        path
    }
}

impl Args {
    /// What a run reads, by the flags that name it.
    pub fn read_files(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        let Args { text, resume, schedule, .. } = self;
        let named = [("--text", text), ("--resume", resume), ("--schedule", schedule)];
        named.into_iter().filter_map(|(flag, path)| Some((flag, path.as_deref()?)))
    }

    /// Everything that rank 0 will write.
    pub fn outputs(&self) -> impl Iterator<Item = Output<'_>> {
        let Args { log, trace, draw, report, checkpoint, tensorboard, .. } = self;
        let files = [log, trace, draw, report].into_iter().flatten();
        let files = files.map(|path| Output::File(path));
        let files = files.chain(checkpoint.iter().map(|path| Output::Renamed(path)));
        files.chain(tensorboard.iter().map(|path| Output::Folder(path)))
    }
}

/// The files of a run; on other ranks than 0 there are none.
pub(crate) struct Records {
    log: RunLog,
    events: Option<Events>,
    picture: Option<PathBuf>,
    /// All steps, for the picture.
    steps: Vec<StepRecord>,
}

impl Records {
    /// Open what is written step by step.
    pub(crate) fn open(args: &Args, is_first: bool) -> Result<Records, Error> {
        let folder = args.tensorboard.as_ref().filter(|_| is_first);
        let picture = args.report.clone().filter(|_| is_first);
        Ok(Records {
            log: RunLog::open(args.log.as_deref().filter(|_| is_first))?,
            events: folder.map(|folder| Events::create(folder)).transpose()?,
            picture,
            steps: Vec::new(),
        })
    }

    /// Settings, before the first step.
    pub(crate) fn start(&mut self, settings: &impl Serialize) -> Result<(), Error> {
        self.log.write("start", settings)
    }

    /// After each step.
    pub(crate) fn step(&mut self, record: &StepRecord) -> Result<(), Error> {
        self.log.write("step", record)?;
        if let Some(events) = &mut self.events {
            let ms = |ms: f64| ms as f32;
            let mut scalars = vec![
                ("loss", record.loss as f32),
                ("learning rate", record.lr),
                ("tokens per second", record.tokens_per_second as f32),
                ("ms/forward", ms(record.forward_ms)),
                ("ms/backward", ms(record.backward_ms)),
                ("ms/optimizer", ms(record.optimizer_ms)),
                ("ms/exposed communication", ms(record.exposed_ms)),
                ("ms/waiting for files", ms(record.disk_ms)),
                ("bytes sent", record.sent_bytes as f32),
            ];
            scalars.extend(record.grad_norm.map(|norm| ("gradient norm", norm as f32)));
            events.scalars(record.step as u64, &scalars)?;
        }
        if self.picture.is_some() {
            self.steps.push(*record);
        }
        Ok(())
    }

    /// After the last one.
    pub(crate) fn end(
        &mut self,
        outcome: &Outcome,
        title: &str,
        memory: Memory,
    ) -> Result<(), Error> {
        self.log.write("end", outcome)?;
        let Some(path) = &self.picture else { return Ok(()) };
        let picture = drawing::draw(title, &self.steps, memory, &outcome.ranks);
        write_whole(path, picture).map_err(Error::file("write", path))
    }
}
