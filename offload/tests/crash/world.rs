//! States whose bytes follow from a version, and what is found of them.

use std::path::PathBuf;

use brigade_offload::layout::{Directory, Dtype, Placed, Tensor};
use brigade_offload::memory::{Arena, Budget, Pages};
use brigade_offload::storage::simulated::{Rates, SimulatedDevice};
use brigade_offload::storage::{Settings, Storage};
use brigade_offload::store::{Carrier, StateFile, StoreError, Which};

/// A carrier to a device in memory. Every process that opens the device has its own.
pub(crate) fn carrier(device: &SimulatedDevice) -> Carrier {
    let storage = Storage::simulated(device, Settings::default()).expect("an engine");
    Carrier::new(&storage, &arena())
}

pub(crate) fn arena() -> Arena {
    Arena::new(Budget::new(1 << 20).at_best(Pages::Small)).expect("1 MiB")
}

/// A carrier to real files.
pub(crate) fn real_carrier() -> Carrier {
    let arena = arena();
    let storage = Storage::new(&arena, Settings::default()).expect("an engine");
    Carrier::new(&storage, &arena)
}

pub(crate) fn device() -> SimulatedDevice {
    SimulatedDevice::new(Rates::default())
}

pub(crate) fn paths(stripes: usize) -> Vec<PathBuf> {
    (0..stripes).map(|stripe| PathBuf::from(format!("/device/{stripe}"))).collect()
}

/// A folder of real files that is gone after the test.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Self {
        let name = format!("brigade-crash-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).expect("a folder for tests");
        Self(folder)
    }

    pub(crate) fn paths(&self, stripes: usize) -> Vec<PathBuf> {
        (0..stripes).map(|stripe| self.0.join(format!("stripe{stripe}"))).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// One to four tensors of up to 12 KiB.
pub(crate) fn directory(rng: &mut fastrand::Rng) -> Directory {
    let count = rng.usize(1..5);
    let tensor = |index| Tensor::whole(format!("tensor {index}"), Dtype::U8, &[rng.u64(1..12_000)]);
    let tensors: Vec<Tensor> = (0..count).map(tensor).collect();
    Directory::pack(tensors, 64).expect("tensors of a state")
}

/// A byte that depends on everything: two versions have one in 256 in common.
pub(crate) fn byte(version: u64, at: u64) -> u8 {
    let mixed =
        (at ^ version.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0x2545_f491_4f6c_dd1d);
    ((mixed ^ mixed >> 29).wrapping_mul(0xff51_afd7_ed55_8ccd) >> 56) as u8
}

/// Commit all tensors in this version, with the version as label.
pub(crate) fn save(state: &mut StateFile, version: u64) -> Result<(), StoreError> {
    let fill = |placed: &Placed, from: u64, target: &mut [u8]| {
        for (at, target) in (placed.offset + from..).zip(target) {
            *target = byte(version, at);
        }
        Ok(())
    };
    state.save(version, &version.to_le_bytes(), fill).map(|_| ())
}

/// The version that is there, if all of it is. Panics when bytes are wrong that no error told of.
pub(crate) fn version_of(state: &StateFile) -> Result<u64, StoreError> {
    let generation = state.generation().expect("opened at a generation");
    let version = generation.label;
    assert_eq!(generation.note, version.to_le_bytes(), "the note of another version");
    for placed in state.directory().tensors() {
        let mut bytes = vec![0; placed.tensor.bytes() as usize];
        state.read_tensor(placed, 0, &mut bytes)?;
        let wrong = (placed.offset..).zip(&bytes).find(|(at, found)| **found != byte(version, *at));
        assert_eq!(wrong, None, "version {version} of {placed:?}: a wrong byte without an error");
    }
    Ok(version)
}

/// Open and read everything.
pub(crate) fn found(carrier: &Carrier, paths: &[PathBuf]) -> Result<(u64, StateFile), StoreError> {
    let state = StateFile::open(carrier, paths, Which::Newest)?;
    Ok((version_of(&state)?, state))
}
