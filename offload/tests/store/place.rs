//! A place for files that is gone after the test, and what carries blocks to it.

use std::path::PathBuf;

use brigade_offload::layout::{Directory, Dtype, Placed, Tensor};
use brigade_offload::memory::{Arena, Budget, Pages};
use brigade_offload::storage::simulated::{Rates, SimulatedDevice};
use brigade_offload::storage::{EngineChoice, Settings, Storage};
use brigade_offload::store::{Carrier, StoreError};

/// A folder of its own, removed at the end, and an arena with a storage.
pub(crate) struct Place {
    pub(crate) folder: PathBuf,
    pub(crate) arena: Arena,
    pub(crate) carrier: Carrier,
}

pub(crate) const KIB: usize = 1 << 10;

impl Place {
    pub(crate) fn new(name: &str, engine: EngineChoice) -> Self {
        let arena = arena();
        let settings = Settings { engine, ..Settings::default() };
        let storage = Storage::new(&arena, settings).expect("an engine");
        Self::with(name, arena, storage)
    }

    /// On a device in memory.
    pub(crate) fn simulated(name: &str, device: &SimulatedDevice) -> Self {
        Self::simulated_with(name, device, Settings::default())
    }

    pub(crate) fn simulated_with(name: &str, device: &SimulatedDevice, settings: Settings) -> Self {
        let storage = Storage::simulated(device, settings).expect("an engine");
        Self::with(name, arena(), storage)
    }

    fn with(name: &str, arena: Arena, storage: Storage) -> Self {
        let name = format!("brigade-store-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).expect("a folder for tests");
        let carrier = Carrier::new(&storage, &arena);
        Self { folder, arena, carrier }
    }

    pub(crate) fn paths(&self, name: &str, count: usize) -> Vec<PathBuf> {
        (0..count).map(|stripe| self.folder.join(format!("{name}-{stripe}"))).collect()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn arena() -> Arena {
    Arena::new(Budget::new(8 << 20).at_best(Pages::Small)).expect("8 MiB")
}

/// On all engines that there are.
pub(crate) fn everywhere(name: &str, test: impl Fn(&Place)) {
    test(&Place::new(&format!("{name}-auto"), EngineChoice::Auto));
    test(&Place::new(&format!("{name}-threads"), EngineChoice::Threads));
    test(&Place::simulated(name, &SimulatedDevice::new(Rates::default())));
}

/// The byte of a tensor at this place in this version: no two versions have many in common.
pub(crate) fn byte(tensor: &str, version: u64, at: u64) -> u8 {
    let seed = tensor.bytes().fold(version.wrapping_mul(0x9e37_79b9), |seed, byte| {
        (seed ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    ((seed ^ at).wrapping_mul(0x2545_f491_4f6c_dd1d) >> 56) as u8
}

/// What [`brigade_offload::store::StateFile::save`] asks for.
pub(crate) fn filler(
    version: u64,
) -> impl FnMut(&Placed, u64, &mut [u8]) -> Result<(), StoreError> {
    move |placed, from, target| {
        for (at, target) in (from..).zip(target) {
            *target = byte(&placed.tensor.name, version, at);
        }
        Ok(())
    }
}

/// Some tensors, of which none fills whole blocks of 4 KiB.
pub(crate) fn directory() -> Directory {
    let tensors = [
        Tensor::whole("embedding", Dtype::Bf16, &[70, 100]),
        Tensor::whole("scale", Dtype::F32, &[]),
        Tensor::whole("none", Dtype::F32, &[0]),
        Tensor::flat("weights", Dtype::F32, &[100, 100], 1000, 7777),
        Tensor::whole("bias", Dtype::F32, &[100]),
    ];
    Directory::pack(tensors, 64).expect("tensors of a state")
}
