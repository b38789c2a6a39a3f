//! What of a run is in files: `--offload`, `--offload-activations`, and `--keep`, which leaves them
//! as a checkpoint; and `--checkpoint`, which writes one.

use crate::args::Args;
use crate::checkpoint::{Header, Writer};
use crate::error::Error;
use crate::offload::{self, Kept, Offload, Origin, Tier, is_same_folder};
use crate::parallel::{Axis, Stage, Ways};
use crate::precision::Precision;
use crate::run::Run;
use brigade_comm::Communicator;
use brigade_offload::storage::File;
use std::fs;
use std::io;
use std::path::Path;

impl Args {
    /// What is kept in cheaper memory.
    pub(crate) fn offload(&self, rank: usize, ranks: usize) -> Option<Offload> {
        let (host_budget, place, stays) = (self.host_budget, (rank, ranks), self.keep);
        let from = None;
        self.offload.clone().map(|tier| Offload { tier, host_budget, place, parts: 1, stays, from })
    }

    /// Where what goes into blocks is kept.
    pub(crate) fn inputs(&self, rank: usize, ranks: usize) -> Option<Offload> {
        let (host_budget, place) = (None, (rank, ranks));
        let (stays, from) = (false, None);
        let tier = self.offload_activations.clone();
        tier.map(|tier| Offload { tier, host_budget, place, parts: 1, stays, from })
    }

    /// Refuse folders for files that are not there, or take none.
    pub(crate) fn check_folders(&self) -> Result<(), Error> {
        for (flag, tier) in
            [("offload", &self.offload), ("offload-activations", &self.offload_activations)]
        {
            if let Some(Tier::Nvme(folder)) = tier.as_ref().filter(|tier| !tier.is_there()) {
                let folder = folder.display();
                return Err(Error::offload(format!(
                    "there is no folder {folder} here; make it (mkdir -p {folder}), or let \
                     --{flag} nvme:FOLDER name another"
                )));
            }
            if let Some(Tier::Nvme(folder)) = tier
                && let Err(error) = probe(folder)
            {
                let folder = folder.display();
                return Err(Error::offload(format!(
                    "no file can be made in {folder}: {error}; let --{flag} nvme:FOLDER name \
                     another folder"
                )));
            }
        }
        Ok(())
    }

    /// Whether all that is updated lies in files, in parts that any number of ranks can read.
    fn is_all_in_files(&self, ranks: usize) -> bool {
        let stage = Ways::of(&self.strategy).map(|ways| ways.data).unwrap_or_default();
        let mesh = self.mesh(ranks);
        let is_whole = mesh.length(Axis::Tp) == 1 && !self.is_pipeline() && self.tile.is_none();
        let has_params = stage == Stage::Fsdp && (ranks > 1 || self.precision == Precision::F32);
        matches!(self.offload, Some(Tier::Nvme(_))) && has_params && is_whole
    }

    /// The folder whose files a run goes on from without ever having the whole state.
    pub(crate) fn kept(&self, ranks: usize) -> Option<&Path> {
        self.resume.as_deref().filter(|path| path.is_dir() && self.is_all_in_files(ranks))
    }

    /// Refuse to keep what is not all there, or to go on in files that would be gone then.
    pub(crate) fn check_keep(&self, ranks: usize) -> Result<(), Error> {
        if self.keep && !self.is_all_in_files(ranks) {
            let problem = "keeps what is all in files: --strategy fsdp --offload nvme:FOLDER, \
                           without a pipeline, tiles, or tensors that ranks divide";
            return Err(Error::setting("keep", problem.to_string()));
        }
        if self.checkpoint_every.is_some() && self.checkpoint.is_none() && !self.keep {
            let problem = "is for --checkpoint or --keep".to_string();
            return Err(Error::setting("checkpoint-every", problem));
        }
        if let Some(Tier::Nvme(folder)) = self.offload.as_ref().filter(|_| self.keep)
            && let Some(output) = self.outputs().find(|output| is_of_ranks(output.path(), folder))
        {
            let problem = format!(
                "has a file of this name for a rank, {}: let what another flag writes have another",
                output.path().display()
            );
            return Err(Error::setting("keep", problem));
        }
        match (&self.offload, &self.resume) {
            (Some(Tier::Nvme(folder)), Some(resume))
                if is_same_folder(folder, resume) && !self.keep =>
            {
                let problem = "the files there would be gone with this run: --keep keeps them";
                Err(Error::setting("resume", problem.to_string()))
            }
            _ => Ok(()),
        }
    }

    /// Whether what is kept is where that is which this run goes on from.
    fn keeps_in_place(&self) -> bool {
        let Some(Tier::Nvme(folder)) = &self.offload else { return false };
        self.resume.as_deref().is_some_and(|from| is_same_folder(from, folder))
    }

    /// Refuse to write where another run does, and over what one has kept: it would be gone long
    /// before this one has anything to keep in its place.
    ///
    /// Cost: a look into the folder of `--keep`.
    pub(crate) fn check_kept(&self) -> Result<(), Error> {
        let Some(Tier::Nvme(folder)) = self.offload.as_ref().filter(|_| self.keep) else {
            return Ok(());
        };
        // Nobody is to remove, or to go on from, what another run still writes.
        offload::refuse_writers(folder)?;
        if self.keeps_in_place() {
            return Ok(());
        }
        let name = folder.display();
        let what = match Kept::look(folder) {
            Ok(None) => return Ok(()),
            Ok(Some(Kept { header, .. })) => {
                let step = header.step;
                format!(
                    "it is what a run has kept after step {step}: --resume {name} goes on from that"
                )
            }
            // Sound files may be among them.
            Err(problem) => format!("what is there cannot be gone on from ({problem})"),
        };
        let problem = "else remove its files, or let --offload name another folder";
        Err(Error::checkpoint(folder, format!("{what}; {problem}")))
    }
}

/// Whether this is what some rank of some run calls its file in this folder.
fn is_of_ranks(path: &Path, folder: &Path) -> bool {
    let above = path.parent().filter(|above| !above.as_os_str().is_empty());
    let name = path.file_name().map(|name| name.to_string_lossy());
    name.is_some_and(|name| name.starts_with("rank-") && name.ends_with(".brigade"))
        && is_same_folder(above.unwrap_or(Path::new(".")), folder)
}

/// Make a file in a folder, and take it away.
fn probe(folder: &Path) -> io::Result<()> {
    let path = folder.join(format!(".brigade-{}", std::process::id()));
    match fs::File::create_new(&path) {
        Ok(_) => fs::remove_file(path),
        // Another rank looks at the same time.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

/// Files that a run goes on from without ever having the whole state.
pub(crate) struct Former {
    pub(crate) origin: Origin,
    /// On the first rank: those beside this run's own that are of no use once that has kept
    /// something, and until then nobody else's.
    outlived: Vec<File>,
}

/// What this run goes on from, if that is files. Collective: it is the same on all ranks, and
/// afterwards they may make files of their own beside it.
pub(crate) fn kept(args: &Args, world: Option<&Communicator>) -> Result<Option<Former>, Error> {
    args.check_kept()?;
    let (rank, ranks) = world.map_or((0, 1), |comm| (comm.rank(), comm.size()));
    let kept = args.kept(ranks).map(Kept::find).transpose()?;
    let origin = kept.as_ref().map(|kept| kept.origin().clone());
    if let (Some(world), Some(from)) = (world, &args.resume) {
        require_same(world, from, origin.as_ref())?;
    }
    if args.keep {
        world.map_or(Ok(()), Communicator::barrier)?;
    }
    let Some((kept, origin)) = kept.zip(origin) else { return Ok(None) };
    let is_outlived = rank == 0 && origin.ranks() != ranks && args.keeps_in_place();
    let outlived = if is_outlived { kept.own()? } else { Vec::new() };
    Ok(Some(Former { origin, outlived }))
}

/// Refuse to go on from other files than rank 0, or from other generations of them: each rank has
/// looked by itself. Collective.
fn require_same(world: &Communicator, from: &Path, origin: Option<&Origin>) -> Result<(), Error> {
    let mine = origin.map_or([0; 3], Origin::mark);
    let mut first = mine;
    world.broadcast(&mut first, 0)?;
    if mine == first {
        return Ok(());
    }
    let rank = world.rank();
    let problem = match (mine, first) {
        ([0, ..], _) => format!("rank 0 goes on from files in a folder, which rank {rank} has not"),
        (_, [0, ..]) => format!("a folder of files on rank {rank}, but not on rank 0"),
        ([.., here], [.., there]) => format!(
            "rank 0 has found what was kept after step {there}, and rank {rank} after step {here}: \
             another run writes there, or they are not the same folder"
        ),
    };
    Err(Error::checkpoint(from, problem))
}

impl Former {
    /// Once this run's own files are a checkpoint: remove those of another number of ranks that it
    /// has gone on from, if they are in the same folder.
    pub(crate) fn outlive(self) -> Result<(), Error> {
        for file in self.outlived {
            let path = file.path();
            std::fs::remove_file(path).map_err(Error::file("remove", path))?;
        }
        Ok(())
    }
}

impl Run<'_> {
    /// Make the files that stay a checkpoint.
    pub(crate) fn keep(&mut self) -> Result<(), Error> {
        if !self.args.keep {
            return Ok(());
        }
        let header = self.header();
        self.strategy.commit(&header.text())
    }

    /// Write `--checkpoint`, if it is asked for: rank 0 does, piece by piece as they come.
    pub(crate) fn save(&mut self) -> Result<(), Error> {
        let Some(path) = &self.args.checkpoint else { return Ok(()) };
        let (layout, header) = (self.model.layout(), self.header());
        let file = self.is_first.then(|| Writer::create(path, layout, &header));
        let mut file = file.transpose()?;
        self.strategy.tell(true, &mut |array, first, values| {
            file.as_mut().map_or(Ok(()), |file| file.put(array, first, values))
        })?;
        file.map_or(Ok(()), Writer::finish)
    }

    /// All parameters, if the host shall compute with them.
    pub(crate) fn params(&mut self) -> Result<Vec<f32>, Error> {
        let evaluates = self.args.held_out > 0 && self.strategy.evaluates().is_none();
        if self.args.sample == 0 && !evaluates {
            return Ok(Vec::new());
        }
        let mut params = vec![0.0; self.model.layout().len()];
        self.strategy.tell(false, &mut |_, first, values| {
            params[first..first + values.len()].copy_from_slice(values);
            Ok(())
        })?;
        Ok(params)
    }

    /// What a checkpoint of now says of itself.
    fn header(&self) -> Header {
        let (step, course) = (self.strategy.steps(), self.args.course(&self.corpus));
        let (config, loss_scale) = (self.args.config(), self.strategy.loss_scale().or(self.scale));
        Header { step, config, course, loss_scale }
    }
}
