//! A rank's optimizer state in a file: it passes through memory once in each update, chunk by
//! chunk, and parameters that are here too are read one unit before they are needed.
//!
//! The parts of all units lie one behind the other, the last unit first, because that is updated
//! first; each begins with a chunk, which is a block of the file. Every block that is read is
//! checked.
//!
//! Bytes in one step, with n elements in whole chunks: 4 n for each array both ways, and 4 bytes
//! more for each element whenever forward or backward fetches its unit's parameters.

mod kept;
mod pass;
mod sizes;

pub use kept::Origin;
use kept::Unfinished;
pub(crate) use kept::{Kept, overtaken, refuse_writers};
pub(crate) use pass::pass;
use sizes::{Span, sizes, spans};

use super::{DiskUse, Offload, arena};
use crate::error::Error;
use crate::optim::Moments;
use crate::state::Array;
use crate::trace::{self, Lane};
use brigade_offload::layout::{Directory, Dtype, Placed, Tensor};
use brigade_offload::memory::{Arena, Buffer, Category};
use brigade_offload::step::{Pipeline, Shape};
use brigade_offload::storage::{Priority, Settings, Storage};
use brigade_offload::store::{Carrier, Draft, Run, StateFile, rank_paths};
use std::collections::VecDeque;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long one transfer may take.
const LIMIT: Duration = Duration::from_secs(600);
/// What opening a file takes in pieces. \[bytes\]
const STAGING_BYTES: usize = 64 << 10;
/// Parameters of so many units are being read at once.
const AHEAD: usize = 2;

/// What is moved to the file of a unit: this rank's part.
pub(crate) struct Unit<'a> {
    /// Which of the model, how long it is, and where the part begins.
    pub(crate) number: usize,
    pub(crate) whole: usize,
    pub(crate) first: usize,
    /// Parameters; they stay in memory if this is empty.
    pub(crate) params: &'a [f32],
    pub(crate) moments: Option<&'a Moments>,
}

impl Unit<'_> {
    fn moments(&self) -> &Moments {
        self.moments.expect("what is moved has moments")
    }

    /// One of its arrays, as files know it.
    fn tensor(&self, array: Array) -> Tensor {
        let (name, whole) = (name_of(array, self.number), [self.whole as u64]);
        let len = self.moments().len() as u64;
        Tensor::flat(name, Dtype::F32, &whole, self.first as u64, len)
    }

    fn array(&self, array: Array) -> &[f32] {
        match array {
            Array::Params => self.params,
            Array::Mean => &self.moments().mean,
            Array::Square => &self.moments().square,
        }
    }
}

/// What a unit's array is called in files.
fn name_of(array: Array, unit: usize) -> String {
    format!("{}/{unit}", array.name())
}

/// One rank's file.
pub(crate) struct Disk {
    arena: Arena,
    carrier: Carrier,
    state: StateFile,
    /// Its name, until it is a checkpoint for whoever comes after.
    unfinished: Unfinished,
    /// None only while one is committed.
    draft: Option<Draft>,
    pipeline: Pipeline,
    /// Parameters if they are here, then the moments.
    arrays: Vec<Placed>,
    has_params: bool,
    /// Whether all of them are numbers, if they are here.
    is_finite: bool,
    /// Whether passes want them.
    is_fetched: bool,
    /// Of each unit, in elements of every array.
    spans: Vec<Span>,
    /// Parameters on their way, oldest first, and the buffers that are free.
    coming: VecDeque<(usize, Run)>,
    buffers: Vec<Buffer>,
    /// The unit whose parameters were needed last.
    last: usize,
    /// Whether units are always needed in order, and never in reverse.
    is_one_way: bool,
    used: DiskUse,
}

impl Disk {
    /// Write the state of some units to this rank's file in `folder`, or go on with what is there.
    ///
    /// Errors: `HostBudget` if the budget is too little, `Offload` for what the device says.
    pub(crate) fn new(
        folder: &Path,
        offload: &Offload,
        units: &[Unit<'_>],
        is_fetched: bool,
    ) -> Result<Disk, Error> {
        let Offload { host_budget: budget, place: (rank, ranks), stays, ref from, .. } = *offload;
        let has_params = units.iter().any(|unit| !unit.params.is_empty());
        let lens: Vec<usize> = units.iter().map(|unit| unit.moments().len()).collect();
        let arrays = units[0].moments().count() + usize::from(has_params);
        let sizes = sizes(&lens, arrays, is_fetched, offload)?;
        let (spans, elements) = spans(&lens, sizes.block / 4);
        let arena = arena(budget, sizes.arena)?;
        let storage = Storage::new(&arena, Settings::default()).map_err(Error::offload)?;
        let carrier = Carrier::new(&storage, &arena).wait_limit(LIMIT);

        let names = &Array::ALL[usize::from(!has_params)..][..arrays];
        let path = rank_paths(&[folder], rank, ranks).remove(0);
        let path = if stays { path } else { passing(&path) };
        let kept = from.as_ref().map(Kept::open).transpose()?;
        let how = (sizes.block as u64, stays);
        let (mut state, unfinished) = open(&carrier, (rank, &path), names, units, kept, how)?;
        let draft = Some(state.begin().map_err(Error::offload)?);
        // The tensors of an array follow each other, each from a chunk on: to updates they are one.
        let placed = names.iter().enumerate().map(|(at, name)| {
            let tensor = Tensor::whole(name.name(), Dtype::F32, &[elements as u64]);
            Placed { tensor, offset: (4 * at * elements) as u64 }
        });
        let placed: Vec<Placed> = placed.collect();
        let shape = Shape::cut(elements, &vec![4; arrays], sizes.block / 4);
        let pipeline = Pipeline::with_slots(&arena, shape, sizes.slots).map_err(Error::offload)?;
        let longest = spans.iter().map(|span| span.padded).max().unwrap_or(0);
        let buffers = if is_fetched { AHEAD } else { 0 };
        let buffers = (0..buffers).map(|_| arena.take(4 * longest, Category::Parameters));
        let buffers = buffers.collect::<Result<_, _>>().map_err(Error::offload)?;
        let mut disk = Disk {
            arrays: placed,
            coming: VecDeque::new(),
            last: 0,
            is_one_way: false,
            used: DiskUse::default(),
            pipeline: pipeline.limit(LIMIT),
            arena,
            carrier,
            state,
            unfinished,
            draft,
            has_params,
            is_finite: true,
            is_fetched,
            spans,
            buffers,
        };
        disk.ahead(0)?;
        Ok(disk)
    }

    /// Whether parameters are here that passes want.
    pub(crate) fn is_fetched(&self) -> bool {
        self.is_fetched
    }

    /// Memory for what comes and goes. \[bytes\]
    pub(crate) fn arena_bytes(&self) -> u64 {
        self.arena.capacity() as u64
    }

    /// What it has cost so far.
    pub(crate) fn used(&self) -> DiskUse {
        self.used
    }

    /// What one step reads and writes if each unit's parameters are needed so often.
    pub(crate) fn formula(&self, times: impl Fn(usize) -> u64) -> DiskUse {
        let update = self.pipeline.shape().bytes();
        let fetch = |(unit, span): (usize, &Span)| times(unit) * 4 * span.padded as u64;
        let fetched: u64 = self.spans.iter().enumerate().map(fetch).sum();
        let fetched = if self.is_fetched { fetched } else { 0 };
        DiskUse { read_bytes: update + fetched, written_bytes: update, ..DiskUse::default() }
    }

    /// Have a unit's parameters on their way, if there is room for them.
    pub(crate) fn ahead(&mut self, unit: usize) -> Result<(), Error> {
        if !self.is_fetched || self.coming.iter().any(|(coming, _)| *coming == unit) {
            return Ok(());
        }
        let Some(buffer) = self.buffers.pop() else { return Ok(()) };
        let Span { first, padded, .. } = self.spans[unit];
        let (from, bytes, priority) = (4 * first as u64, 4 * padded, Priority::Background);
        let draft = self.draft.as_ref().expect("nothing is being committed");
        let run = draft.read_part(&self.arrays[0], from, bytes, buffer, priority);
        let run = run.map_err(|broken| Error::offload(*broken.error))?;
        self.used.read_bytes += bytes as u64;
        self.coming.push_back((unit, run));
        Ok(())
    }

    /// Units will always be needed in order.
    pub(crate) fn go_one_way(&mut self) {
        self.is_one_way = true;
    }

    /// A unit's parameters, and have those on their way that come after it: units are needed in
    /// order and then, if they do not go one way, in reverse.
    pub(crate) fn fetch(&mut self, unit: usize, params: &mut Vec<f32>) -> Result<(), Error> {
        if !self.coming.iter().any(|(coming, _)| *coming == unit) {
            self.forget()?;
            self.ahead(unit)?;
        }
        let at = self.coming.iter().position(|(coming, _)| *coming == unit);
        let (_, run) = self.coming.remove(at.expect("it was asked for")).expect("it is there");
        let from = Instant::now();
        let waiting = trace::span(Lane::Files, "for parameters of unit", unit);
        let buffer = run.wait(LIMIT).map_err(|broken| Error::offload(*broken.error))?;
        drop(waiting);
        self.used.waited += from.elapsed();
        params.clear();
        params.extend_from_slice(&buffer.view::<f32>()[..self.spans[unit].len]);
        self.buffers.push(buffer);
        let (last, units) = (std::mem::replace(&mut self.last, unit), self.spans.len());
        let next = match unit >= last {
            true if unit + 1 < units => Some(unit + 1),
            _ => unit.checked_sub(1).filter(|_| !self.is_one_way),
        };
        next.map_or(Ok(()), |next| self.ahead(next))
    }

    /// Begin with the first unit again.
    pub(crate) fn restart(&mut self) -> Result<(), Error> {
        self.forget()?;
        self.last = 0;
        self.ahead(0)
    }

    /// Make what is here a generation that whoever comes after finds, after so many steps.
    ///
    /// Errors: `Offload`, also for parameters and moments that are no numbers any more: nobody
    /// could go on from them, as from those of the last generation.
    pub(crate) fn commit(&mut self, step: usize, note: &str) -> Result<(), Error> {
        if !self.is_finite {
            let problem = "parameters or moments are no numbers: try a smaller --lr; what was kept \
                           last stays";
            return Err(Error::offload(problem));
        }
        self.forget()?;
        let draft = self.draft.take().expect("one commit at a time");
        let done = self.state.commit(draft, step as u64, note.as_bytes());
        done.map_err(Error::offload)?;
        self.unfinished.stays();
        self.draft = Some(self.state.begin().map_err(Error::offload)?);
        self.restart()
    }

    /// Nobody needs what is on its way.
    fn forget(&mut self) -> Result<(), Error> {
        while let Some((_, run)) = self.coming.pop_front() {
            let buffer = run.wait(LIMIT).map_err(|broken| Error::offload(*broken.error))?;
            self.buffers.push(buffer);
        }
        Ok(())
    }

    /// A unit's parameters or one of its moments, for a checkpoint; nothing if it is not here.
    pub(crate) fn array(&mut self, unit: usize, array: Array) -> Result<Option<Vec<f32>>, Error> {
        let Some(placed) = self.arrays.iter().find(|placed| placed.tensor.name == array.name())
        else {
            return Ok(None);
        };
        let (span, chunk) = (self.spans[unit], self.pipeline.shape().chunk_elements());
        let first = (placed.offset / 4) as usize + span.first;
        let mut values = Vec::with_capacity(span.len);
        let mut buffer = self.arena.take(4 * chunk, Category::Checkpoint);
        for block in first / chunk..(first + span.padded) / chunk {
            let empty = buffer.map_err(Error::offload)?;
            let draft = self.draft.as_ref().expect("nothing is being committed");
            let read = draft.read_block(block as u64, empty, Priority::Urgent);
            let read = read.expect("every block was written when the file was made");
            let full = read.wait(&self.carrier).map_err(Error::offload)?;
            let left = chunk.min(span.len - values.len());
            values.extend_from_slice(&full.view::<f32>()[..left]);
            self.used.read_bytes += 4 * chunk as u64;
            buffer = Ok(full);
        }
        Ok(Some(values))
    }
}

/// A rank's file, with the arrays of these names of all units: a new one, or that of a run to go on
/// from. One that is not left to whoever comes after has no name any more, so that nothing is left
/// of it however this process ends.
fn open(
    carrier: &Carrier,
    (rank, path): (usize, &Path),
    names: &[Array],
    units: &[Unit<'_>],
    kept: Option<Kept>,
    (block, stays): (u64, bool),
) -> Result<(StateFile, Unfinished), Error> {
    let pairs = names.iter().flat_map(|name| units.iter().rev().map(move |unit| (name, unit)));
    let tensors = pairs.map(|(name, unit)| unit.tensor(*name));
    let directory = Directory::pack(tensors, block).map_err(Error::offload)?;
    if let Some(kept) = kept.as_ref().filter(|kept| kept.is_of(path)) {
        let state = kept.reopen(carrier, (rank, path), &directory, block)?;
        return Ok((state, Unfinished::new(None)));
    }
    let state = StateFile::create(carrier, &[path], directory, block);
    let mut state = state.map_err(Error::offload)?;
    // Only what is ours now may go with this run.
    let unfinished = Unfinished::new(stays.then(|| path.to_path_buf()));
    if !stays {
        std::fs::remove_file(path).map_err(Error::file("remove", path))?;
    }
    let saved = state.save(0, b"", |placed, from, target| {
        let is_it =
            |unit: &&Unit<'_>, array: Array| name_of(array, unit.number) == placed.tensor.name;
        let mut pairs = names.iter().flat_map(|name| units.iter().map(move |unit| (*name, unit)));
        let (array, unit) = pairs.find(|(array, unit)| is_it(unit, *array)).expect("it was named");
        let (from, target) = ((from / 4) as usize, bytemuck::cast_slice_mut::<_, f32>(target));
        match &kept {
            Some(kept) => kept.fill(array, unit, from, target)?,
            None => target.copy_from_slice(&unit.array(array)[from..][..target.len()]),
        }
        Ok(())
    });
    saved.map_err(Error::offload)?;
    Ok((state, unfinished))
}

/// The name that a file has for a moment which is not to stay: no checkpoint's, which may be there.
fn passing(path: &Path) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(path.file_name().expect("a file in a folder"));
    path.with_file_name(name)
}
