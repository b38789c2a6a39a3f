//! One rank's state in its files: opened at a whole generation, read with every block checked.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::carrier::{Carrier, damaged};
use super::draft::Draft;
use super::error::StoreError;
use super::opening::{
    Slots, Which, load, nothing, overtaken, paths_of, random_id, slots, take_devices,
};
use super::shared::{PendingBlock, Shared};
use crate::layout::{
    Blueprint, Directory, Fault, Generation, Geometry, Member, Placed, Step, erase, recover,
    withdraw,
};
use crate::memory::{Buffer, Category};
use crate::storage::{File, Priority, StorageError};

/// How often a state is opened anew that somebody writes to meanwhile.
const OPENINGS: usize = 8;

/// The tensors of one rank, over one file or several.
///
/// One at a time may write to a state, and who tries beside it is told so: whoever makes one owns
/// its files, and whoever opens one does from the first write on, until it is dropped. Any number
/// may read one: beside a writer until another generation is committed and the draft after that
/// writes to the same places, from when on reading it is `Overtaken`.
#[derive(Debug)]
pub struct StateFile {
    pub(super) shared: Arc<Shared>,
    pub(super) newest: Option<Arc<Generation>>,
    /// Numbers and labels of the whole generations that were found, the newest first.
    found: Vec<(u64, u64)>,
    faults: Vec<StoreError>,
    /// What is to be done before anything is written.
    pub(super) mend: Vec<Step>,
}

impl StateFile {
    /// A new state with no generation yet, over one file for each path. What was at these paths is
    /// gone, unless somebody is writing to one of them or there is no room. Room for two
    /// generations is reserved, so that a full device shows now.
    ///
    /// `block_bytes`: a power of two from 4 KiB to 64 MiB; 1 MiB is right for drives as we know
    /// them. A block device does as well as a file.
    ///
    /// Errors: `Foreign` for a namespace's generic device (`/dev/ng..`), which takes no less than
    /// whole blocks; the system's.
    pub fn create(
        carrier: &Carrier,
        paths: &[impl AsRef<Path>],
        directory: Directory,
        block_bytes: u64,
    ) -> Result<Self, StoreError> {
        let (id, stripes) = (random_id(), paths.len() as u32);
        let blueprint = Blueprint::new(id, Member::alone(id), directory, block_bytes, stripes)?;
        let paths = paths.iter().map(|path| path.as_ref().to_path_buf()).collect();
        Ok(Self::create_all(carrier, vec![(paths, blueprint)])?.remove(0))
    }

    /// As [`StateFile::create`], several: all of them, or what was there before is.
    pub(super) fn create_all(
        carrier: &Carrier,
        states: Vec<(Vec<PathBuf>, Arc<Blueprint>)>,
    ) -> Result<Vec<Self>, StoreError> {
        let mut wanted: Vec<(&Path, u64)> = Vec::new();
        for (paths, blueprint) in &states {
            for (stripe, path) in (0..).zip(paths) {
                if wanted.iter().any(|(other, _)| other == path) {
                    let (paths, what) = (vec![path.clone()], "named twice".into());
                    return Err(StoreError::Apart { paths, what });
                }
                wanted.push((path, blueprint.geometry.file_bytes(stripe)));
            }
        }
        let mut files = carrier.storage.create_all(&wanted)?.into_iter();
        let create = |(paths, blueprint): (Vec<PathBuf>, Arc<Blueprint>)| {
            let files: Vec<File> = files.by_ref().take(paths.len()).collect();
            let mend = erase(blueprint.geometry.stripes());
            if files.iter().any(|file| file.opened.body().is_device()) {
                take_devices(carrier, &files, &blueprint, &mend)?;
            }
            Ok(Self::new(Shared::created(carrier, files, blueprint), None, mend))
        };
        states.into_iter().map(create).collect()
    }

    /// Open a state. Reads the superblocks and the index; writes nothing.
    ///
    /// Errors: no generation is whole on all of the files, or they are not one state's stripes in
    /// order, or shorter than they should be, or not to be read.
    pub fn open(
        carrier: &Carrier,
        paths: &[impl AsRef<Path>],
        which: Which,
    ) -> Result<Self, StoreError> {
        let open = |path: &_| carrier.storage.open(AsRef::<Path>::as_ref(path));
        let files = paths.iter().map(open).collect::<Result<Vec<_>, _>>()?;
        Self::open_files(carrier, files, which, false)
    }

    /// The same of files that are open, and perhaps `ours`: then nobody writes to them meanwhile.
    pub(super) fn open_files(
        carrier: &Carrier,
        files: Vec<File>,
        which: Which,
        ours: bool,
    ) -> Result<Self, StoreError> {
        let (mut before, mut now) = (Vec::new(), slots(carrier, &files)?);
        let mut owner = None;
        for _ in 0..OPENINGS {
            let opened = Self::open_at(carrier, &files, &now, which, owner);
            if opened.as_ref().is_ok_and(|state| state.faults.is_empty()) {
                return opened;
            }
            // What seems damaged may have been written over by who commits at this very time.
            before = std::mem::replace(&mut now, slots(carrier, &files)?);
            if before == now {
                if ours {
                    return opened;
                }
                let was_known = owner.is_some();
                owner = files.iter().find_map(|file| carrier.storage.owner(file));
                if was_known || owner.is_none() {
                    return opened;
                }
            }
        }
        let seen = recover(&before).map(|seen| seen.candidates).unwrap_or_default();
        Err(overtaken(&files, &seen, &recover(&now)))
    }

    /// As [`StateFile::open`], by what the slots say. A process that writes to the files does so
    /// where the older generation is, which is not damage.
    fn open_at(
        carrier: &Carrier,
        files: &[File],
        slots: &[Slots],
        which: Which,
        owner: Option<u32>,
    ) -> Result<Self, StoreError> {
        let recovered = recover(slots)
            .map_err(|why| StoreError::Unrecoverable { paths: paths_of(files), why })?;
        let fault =
            |(stripe, fault): &(u32, Fault)| damaged(&files[*stripe as usize], fault.clone());
        let mut faults: Vec<StoreError> = recovered.faults.iter().map(fault).collect();
        let (mut found, mut chosen, mut written_over) = (Vec::new(), None, None);
        let newest = recovered.candidates[0].number();
        for candidate in &recovered.candidates {
            match load(carrier, files, candidate) {
                Ok(loaded) => {
                    found.push((candidate.number(), candidate.label()));
                    let is_wanted = match which {
                        Which::Newest => chosen.is_none(),
                        Which::Number(number) => candidate.number() == number,
                    };
                    if is_wanted {
                        chosen = Some((candidate, loaded));
                    }
                }
                Err(_) if owner.is_some() && candidate.number() < newest => {
                    written_over =
                        Some(StorageError::Owned { path: files[0].path().into(), owner });
                }
                Err(error) => faults.push(error),
            }
        }
        let Some((candidate, (blueprint, generation))) = chosen else {
            if let Some(owned) = written_over.filter(|_| which != Which::Newest) {
                return Err(owned.into());
            }
            return Err(nothing(which, paths_of(files), &recovered, faults));
        };
        let mend = recovered.mend(candidate);
        let opened = (candidate.number(), recovered.candidates.clone());
        let shared = Shared::opened(carrier, files.to_vec(), blueprint, opened);
        Ok(Self { found, faults, ..Self::new(shared, Some(Arc::new(generation)), mend) })
    }

    fn new(shared: Shared, newest: Option<Arc<Generation>>, mend: Vec<Step>) -> Self {
        let (shared, found, faults) = (Arc::new(shared), Vec::new(), Vec::new());
        Self { shared, newest, found, faults, mend }
    }

    /// Its tensors.
    pub fn directory(&self) -> &Directory {
        &self.shared.blueprint.directory
    }

    /// Its sizes.
    pub fn geometry(&self) -> Geometry {
        self.shared.blueprint.geometry
    }

    /// The states that are committed together with it.
    pub(super) fn member(&self) -> Member {
        self.shared.blueprint.member
    }

    /// The generation that reads see; none before the first commit.
    pub fn generation(&self) -> Option<&Generation> {
        self.newest.as_deref()
    }

    /// Number and label of every whole generation that was found when it was opened, newest first.
    pub fn found(&self) -> &[(u64, u64)] {
        &self.found
    }

    /// What was damaged when it was opened, though a generation could be had without it. After a
    /// crash in the middle of a commit, the torn superblock is named here.
    pub fn faults(&self) -> &[StoreError] {
        &self.faults
    }

    /// Read one block into the buffer, which has at least its size. Wait for it before the draft
    /// after the next one writes: it takes the places of this generation.
    ///
    /// Cost: one request; the sum is checked on the thread that waits. Panics: when there is no
    /// generation, no such block, or the buffer is too small.
    pub fn read_block(&self, block: u64, buffer: Buffer, priority: Priority) -> PendingBlock {
        let generation = self.newest.as_ref().expect("a generation to read from");
        let entry = &generation.entries[block as usize];
        self.shared.read_entry(entry, block, buffer, priority)
    }

    /// Read every block and check it. Errors: the first that is not what was written.
    pub fn verify(&self) -> Result<(), StoreError> {
        self.must_have_generation()?;
        let geometry = self.geometry();
        let carrier = &self.shared.carrier;
        let mut convoy = carrier.convoy(geometry.block_bytes(), Category::Staging);
        let mut land = |pending: PendingBlock| pending.wait(carrier);
        for block in 0..geometry.blocks() {
            let buffer = convoy.buffer(&mut land)?;
            convoy.send(self.read_block(block, buffer, Priority::Background));
        }
        convoy.finish(&mut land)
    }

    pub(super) fn must_have_generation(&self) -> Result<(), StoreError> {
        if self.newest.is_none() {
            let paths = paths_of(&self.shared.files);
            let (wanted, found) = (String::from("any generation"), Vec::new());
            return Err(StoreError::NoGeneration { paths, wanted, found });
        }
        Ok(())
    }

    /// Begin the next generation. Any draft begun before is void.
    ///
    /// Errors: somebody else writes to the state, or did since it was opened; what is left of a
    /// broken commit could not be erased, or of a dropped draft not waited for.
    pub fn begin(&mut self) -> Result<Draft, StoreError> {
        let draft = self.begin_unmended();
        self.mend()?;
        Ok(draft)
    }

    /// As [`StateFile::begin`]; before the draft writes anything, [`StateFile::mend`] must be
    /// called.
    pub(super) fn begin_unmended(&mut self) -> Draft {
        let ticket = self.shared.last_draft.fetch_add(1, Ordering::AcqRel) + 1;
        Draft::new(&self.shared, self.newest.as_deref(), ticket)
    }

    /// Make the draft the newest generation: when this returns, it survives a loss of power.
    /// `label` and `note` are kept with it, such as the training step and where the data loader
    /// stood.
    ///
    /// Errors: a write or a sync of it failed, or it is not complete. The generation before it is
    /// the newest then, in memory and, once the next draft is begun, in the files. Panics: a draft
    /// of another state.
    pub fn commit(
        &mut self,
        draft: Draft,
        label: u64,
        note: &[u8],
    ) -> Result<&Generation, StoreError> {
        self.commit_draft(&draft, label, note)
    }

    /// As [`StateFile::commit`]; the draft is void when the next one is begun.
    pub(super) fn commit_draft(
        &mut self,
        draft: &Draft,
        label: u64,
        note: &[u8],
    ) -> Result<&Generation, StoreError> {
        let (ours, drafts) = (&self.shared.blueprint, &draft.shared().blueprint);
        assert!(Arc::ptr_eq(ours, drafts), "a draft of another state");
        self.mend()?;
        let Shared { carrier, files, blueprint, .. } = &*self.shared;
        let sealed = draft.seal(label, note)?;
        if let Err(error) = carrier.run(files, &sealed.steps) {
            let stripes = blueprint.geometry.stripes();
            self.mend = withdraw(stripes, sealed.generation.number);
            // Who opens the state next must not take it for one. Where that fails now it is done
            // before the next draft writes.
            if self.renew().is_ok() {
                let _ = self.mend();
            }
            return Err(error);
        }
        self.shared.written_by.store(0, Ordering::Release);
        Ok(self.newest.insert(Arc::new(sealed.generation)))
    }

    /// Write and commit a whole generation. `fill` gives the bytes of a tensor from the given one
    /// on.
    pub fn save(
        &mut self,
        label: u64,
        note: &[u8],
        mut fill: impl FnMut(&Placed, u64, &mut [u8]) -> Result<(), StoreError>,
    ) -> Result<&Generation, StoreError> {
        let mut draft = self.begin()?;
        draft.fill(&mut fill)?;
        self.commit(draft, label, note)
    }
}
