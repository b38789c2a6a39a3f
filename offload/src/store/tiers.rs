//! Tensors by name in two tiers: host memory up to a limit, and files for the rest.
//!
//! The caller says once in which order a step uses its tensors ([`Store::expect`]). From then on
//! what is needed next is fetched while the caller computes, and what is needed last makes room for
//! it; a use out of order is fetched on the spot and counted, never an error. What is changed goes
//! to the next generation of the files, which [`Store::commit`] makes a checkpoint.

use std::collections::{HashMap, HashSet};
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytemuck::Pod;

use super::carrier::Carrier;
use super::checkpoint::open_common;
use super::draft::Draft;
use super::error::StoreError;
use super::held::Held;
use super::opening::random_id;
use super::order::Order;
use super::slot::{Plan, Slot, Tier};
use super::state::StateFile;
use crate::layout::{ALIGNMENT, Blueprint, Directory, Member, Tensor};
use crate::memory::{Buffer, Category};

/// Named tensors, some of them in host memory, all of them in files. How they move: `moves`.
#[derive(Debug)]
pub struct Store {
    pub(super) carrier: Carrier,
    pub(super) paths: Vec<Vec<PathBuf>>,
    /// A state for each path, with whole tensors, so that every tensor is one request.
    pub(super) shelves: Vec<Shelf>,
    pub(super) slots: Vec<Slot>,
    names: HashMap<String, usize>,
    pub(super) order: Order,
    pub(super) category: Category,
    pub(super) host_bytes_max: usize,
    pub(super) tally: Tally,
    /// What was asked for and did not come in time: who asks again uses it once.
    awaited: Option<usize>,
    /// A commit has failed, and so has going back to the one before.
    pub(super) is_adrift: bool,
}

#[derive(Debug)]
pub(super) struct Shelf {
    pub(super) state: StateFile,
    pub(super) draft: Draft,
    /// A write to the draft has failed.
    pub(super) has_failed: bool,
}

impl Shelf {
    pub(super) fn new(mut state: StateFile) -> Self {
        Self { draft: state.begin_unmended(), state, has_failed: false }
    }
}

/// What became of uses, and how much was moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Tensors asked for.
    pub uses: u64,
    /// They were in memory.
    pub hits: u64,
    /// They were on their way, and had to be waited for.
    pub late: u64,
    /// They were fetched on the spot.
    pub misses: u64,
    /// They came out of order.
    pub surprises: u64,
    /// They were not in memory when they were needed by: [`Store::missed`] names them.
    pub missed: u64,
    /// Bytes read from the files.
    pub read_bytes: u64,
    /// Bytes written to the files, those of the index and the superblocks left out.
    pub written_bytes: u64,
}

/// A tensor with the caller. It goes back with [`Store::put`] or [`Store::give_back`]; dropped, it
/// takes its contents with it, and the store lends it no more.
#[derive(Debug)]
#[must_use = "a tensor that is not given back is lost"]
pub struct Loan {
    index: usize,
    bytes: usize,
    buffer: Buffer,
}

impl Loan {
    /// The tensor as numbers. Panics: when its bytes are no multiple of a number's.
    pub fn view<T: Pod>(&self) -> &[T] {
        bytemuck::cast_slice(self)
    }

    /// The tensor as numbers, to be changed. Panics: as [`Loan::view`].
    pub fn view_mut<T: Pod>(&mut self) -> &mut [T] {
        bytemuck::cast_slice_mut(self)
    }
}

impl Deref for Loan {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buffer[..self.bytes]
    }
}

impl DerefMut for Loan {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[..self.bytes]
    }
}

impl Store {
    /// A new store with all tensors zero. Each goes to the path that has the least so far, as whole
    /// blocks. At most `host_bytes` of the arena are used for tensors, as `category`, in whole
    /// pages; what the arena adds to long ones ([`crate::memory::span_bytes`]) is not counted.
    ///
    /// Errors: `TooLong` for a tensor longer than that, and `Namesakes`, before anything is
    /// written; those of [`StateFile::create`].
    pub fn create(
        carrier: &Carrier,
        paths: &[impl AsRef<Path>],
        tensors: impl IntoIterator<Item = Tensor>,
        block_bytes: u64,
        category: Category,
        host_bytes: usize,
    ) -> Result<Self, StoreError> {
        assert!(!paths.is_empty(), "a store needs a path");
        let mut shares: Vec<(u64, Vec<Tensor>)> = paths.iter().map(|_| (0, Vec::new())).collect();
        let mut names = HashSet::new();
        for tensor in tensors {
            tensor.check().map_err(crate::layout::Unplaceable::from)?;
            if !names.insert(tensor.name.clone()) {
                return Err(StoreError::Namesakes { name: tensor.name });
            }
            let wanted_bytes = tensor.bytes().next_multiple_of(ALIGNMENT);
            if wanted_bytes > host_bytes as u64 {
                let (name, limit_bytes) = (tensor.name, host_bytes);
                return Err(StoreError::TooLong { name, wanted_bytes, limit_bytes });
            }
            let least = shares.iter_mut().min_by_key(|(bytes, _)| *bytes).expect("not empty");
            least.0 += tensor.bytes();
            least.1.push(tensor);
        }
        let (set, of) = (random_id(), paths.len() as u32);
        let plan = |(place, (path, (_, tensors))): (u32, (&_, (u64, Vec<Tensor>)))| {
            let path = AsRef::<Path>::as_ref(path).to_owned();
            let (member, directory) =
                (Member { set, place, of }, Directory::pack(tensors, block_bytes)?);
            Ok((vec![path], Blueprint::new(random_id(), member, directory, block_bytes, 1)?))
        };
        let plans = (0..).zip(paths.iter().zip(shares)).map(plan);
        let plans = plans.collect::<Result<Vec<_>, StoreError>>()?;
        let states = StateFile::create_all(carrier, plans)?;
        Self::new(carrier, owned(paths), states, category, host_bytes)
    }

    /// Open the store that was committed to these paths, at the newest commit that all of them
    /// have.
    ///
    /// Errors: `Apart` when they are not all of a store's, each once, and those of
    /// [`StateFile::open`].
    pub fn open(
        carrier: &Carrier,
        paths: &[impl AsRef<Path>],
        category: Category,
        host_bytes: usize,
    ) -> Result<Self, StoreError> {
        let paths = owned(paths);
        let states = open_common(carrier, &paths)?;
        Self::new(carrier, paths, states, category, host_bytes)
    }

    fn new(
        carrier: &Carrier,
        paths: Vec<Vec<PathBuf>>,
        states: Vec<StateFile>,
        category: Category,
        host_bytes_max: usize,
    ) -> Result<Self, StoreError> {
        let mut slots = Vec::new();
        for (shelf, state) in states.iter().enumerate() {
            let block_bytes = state.geometry().block_bytes();
            for placed in state.directory().tensors() {
                let name = &placed.tensor.name;
                if !placed.offset.is_multiple_of(block_bytes) {
                    return Err(StoreError::Shared { name: name.clone() });
                }
                let span = (placed.tensor.bytes() as usize).next_multiple_of(ALIGNMENT as usize);
                let (placed, plan) = (placed.clone(), Plan::default());
                slots.push(Slot { shelf, placed, span, tier: Tier::File, plan });
            }
        }
        let named = slots.iter().enumerate();
        let names = named.map(|(index, slot)| (slot.placed.tensor.name.clone(), index)).collect();
        let shelves = states.into_iter().map(Shelf::new).collect();
        let (carrier, order, tally) = (carrier.clone(), Order::default(), Tally::default());
        Ok(Self {
            carrier,
            paths,
            shelves,
            slots,
            names,
            order,
            category,
            host_bytes_max,
            tally,
            awaited: None,
            is_adrift: false,
        })
    }

    /// Say in which order tensors will be used, over and over. The first of them are fetched at
    /// once.
    pub fn expect(&mut self, names: &[impl AsRef<str>]) -> Result<(), StoreError> {
        let indices = names.iter().map(|name| self.index(name.as_ref()));
        let cycle = indices.collect::<Result<Vec<_>, _>>()?;
        self.be_steady()?;
        self.order = Order::new(cycle, self.slots.len());
        self.look_ahead()
    }

    /// Borrow a tensor, and start to fetch what is needed after it.
    ///
    /// Errors: it is lent out, or it cannot be read, or what must leave memory for it cannot be
    /// written, or all memory is lent out. Nothing is lost then.
    pub fn get(&mut self, name: &str) -> Result<Loan, StoreError> {
        self.get_within(name, self.carrier.wait_limit)
    }

    /// As [`Store::get`], but wait for each transfer that it takes for at most `limit`.
    ///
    /// Errors: also [`StoreError::Late`]; what is on its way goes on then.
    pub fn get_within(&mut self, name: &str, limit: Duration) -> Result<Loan, StoreError> {
        let index = self.index(name)?;
        if matches!(self.slots[index].tier, Tier::Lent { .. }) {
            return Err(StoreError::Lent { name: name.to_owned() });
        }
        self.be_steady()?;
        if self.awaited.replace(index) != Some(index) {
            self.tally.uses += 1;
            self.tally.surprises += u64::from(!self.order.used(index));
        }
        let (buffer, was_changed) = self.bring_in_time(index, limit)?;
        self.awaited = None;
        self.slots[index].tier = Tier::Lent { was_changed };
        if let Err(error) = self.look_ahead() {
            self.slots[index].tier = Tier::Host { buffer, is_changed: was_changed };
            return Err(error);
        }
        let bytes = self.slots[index].placed.tensor.bytes() as usize;
        Ok(Loan { index, bytes, buffer })
    }

    /// Give a tensor back with new contents. They are written when their memory is needed, or
    /// before the next commit is done; at once with [`Store::put_out`].
    pub fn put(&mut self, loan: Loan) {
        self.take_back(loan);
    }

    /// Which tensor it is that has new contents.
    pub(super) fn take_back(&mut self, loan: Loan) -> usize {
        self.slots[loan.index].tier = Tier::Host { buffer: loan.buffer, is_changed: true };
        loan.index
    }

    /// Give a tensor back as it was.
    pub fn give_back(&mut self, loan: Loan) {
        let slot = &mut self.slots[loan.index];
        let is_changed = matches!(slot.tier, Tier::Lent { was_changed: true });
        slot.tier = Tier::Host { buffer: loan.buffer, is_changed };
    }

    /// What became of uses so far.
    pub fn tally(&self) -> Tally {
        self.tally
    }

    /// Bytes by tier.
    pub fn held(&self) -> Held {
        let mut held = Held::default();
        for slot in &self.slots {
            match &slot.tier {
                Tier::File => held.file += slot.span,
                Tier::Coming(_) | Tier::Going(_) => held.moving += slot.span,
                Tier::Host { is_changed: true, .. } => held.changed += slot.span,
                Tier::Host { .. } => held.clean += slot.span,
                Tier::Lent { .. } => held.lent += slot.span,
            }
        }
        held
    }

    pub(super) fn index(&self, name: &str) -> Result<usize, StoreError> {
        let known = self.names.get(name).copied();
        known.ok_or_else(|| StoreError::NoTensor { name: name.to_owned() })
    }
}

fn owned(paths: &[impl AsRef<Path>]) -> Vec<Vec<PathBuf>> {
    paths.iter().map(|path| vec![path.as_ref().to_path_buf()]).collect()
}
