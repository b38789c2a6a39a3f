//! Files that were cut off or changed behind everybody's back: an error, or a whole generation.

use std::fs;
use std::os::unix::fs::FileExt;

use brigade_offload::store::{StateFile, StoreError};

use crate::world::{Folder, carrier, device, directory, found, paths, real_carrier, save};

/// What reading a damaged state gave: the newest, an older one, or an error.
#[derive(Default, Debug)]
struct Outcomes {
    newest: u32,
    older: u32,
    reported: u32,
}

impl Outcomes {
    fn note(&mut self, found: Result<(u64, StateFile), StoreError>, seed: u64) {
        match found {
            Ok((2, _)) => self.newest += 1,
            Ok((1, state)) => {
                assert!(!state.faults().is_empty(), "seed {seed}: an older one without a word");
                self.older += 1;
            }
            Ok((version, _)) => panic!("seed {seed}: version {version}"),
            Err(_) => self.reported += 1,
        }
    }
}

#[test]
fn flipped_bits_and_lost_ends_on_a_simulated_device() {
    let mut outcomes = Outcomes::default();
    for seed in 0..400 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let device = device();
        let stripes = rng.usize(1..4);
        let tensors = directory(&mut rng);
        let carrier = carrier(&device);
        let mut state = StateFile::create(&carrier, &paths(stripes), tensors, 4096).unwrap();
        (1..=2).for_each(|version| save(&mut state, version).unwrap());
        let path = &paths(stripes)[rng.usize(..stripes)];
        let bytes = device.contents(path).unwrap().len() as u64;
        if rng.u8(..4) == 0 {
            device.truncate(path, rng.u64(..bytes));
        } else {
            // Most of a small file is the gap between the slots, so that is mostly left out.
            let parts = [0..4096, 65536..69632, 131072..139264, 131072..bytes];
            let part = parts[rng.usize(..4)].clone();
            device.flip(path, rng.u64(part), rng.u8(..8));
        }
        outcomes.note(found(&carrier, &paths(stripes)), seed);
    }
    let Outcomes { newest, older, reported } = outcomes;
    assert!(newest > 50 && older > 20 && reported > 100, "{outcomes:?}");
}

#[test]
fn flipped_bits_and_lost_ends_of_real_files() {
    let folder = Folder::new("damage");
    let carrier = real_carrier();
    let mut outcomes = Outcomes::default();
    let whole = folder.paths(2);
    let tensors = directory(&mut fastrand::Rng::with_seed(1));
    let mut state = StateFile::create(&carrier, &whole, tensors, 4096).unwrap();
    (1..=2).for_each(|version| save(&mut state, version).unwrap());
    let copies: Vec<_> = whole.iter().map(|path| path.with_extension("copy")).collect();
    for seed in 0..60 {
        let mut rng = fastrand::Rng::with_seed(seed);
        for (path, copy) in whole.iter().zip(&copies) {
            fs::copy(path, copy).unwrap();
        }
        let file = fs::OpenOptions::new().read(true).write(true).open(&copies[rng.usize(..2)]);
        let file = file.unwrap();
        let bytes = file.metadata().unwrap().len();
        if rng.bool() {
            file.set_len(rng.u64(..bytes)).unwrap();
        } else {
            let at = rng.u64(131072..bytes);
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).unwrap();
            file.write_all_at(&[byte[0] ^ 1 << rng.u8(..8)], at).unwrap();
        }
        drop(file);
        outcomes.note(found(&carrier, &copies), seed);
    }
    assert!(outcomes.newest > 5 && outcomes.reported > 20, "{outcomes:?}");
}
