//! Power cut at every block boundary of real commits, with what was not synced kept, lost or
//! tossed; and each sync of one refused.

use brigade_offload::storage::simulated::{Faults, SimulatedDevice, Unsynced};
use brigade_offload::store::StateFile;

use crate::world::{carrier, device, directory, found, paths, save, version_of};

/// Three commits, recorded; gives where in the record each ended.
fn record(
    stripes: usize,
    block_bytes: u64,
    rng: &mut fastrand::Rng,
) -> (SimulatedDevice, Vec<usize>) {
    let device = device();
    device.start_record();
    let carrier = carrier(&device);
    let tensors = directory(rng);
    let mut state = StateFile::create(&carrier, &paths(stripes), tensors, block_bytes).unwrap();
    let mut ends = vec![0];
    for version in 1..=3 {
        save(&mut state, version).unwrap();
        ends.push(device.cuts());
    }
    (device, ends)
}

fn check(device: &SimulatedDevice, stripes: usize, ends: &[usize], at: usize, unsynced: Unsynced) {
    let after = device.after_cut(at, unsynced);
    // The last commit that had ended, and the one that may have been under way.
    let done = ends.iter().rposition(|end| *end <= at).unwrap() as u64;
    let version = match found(&carrier(&after), &paths(stripes)) {
        Ok((version, _)) => version,
        Err(error) if done == 0 => {
            let text = error.to_string();
            let is_new = ["open of", "nothing was ever", "no generation", "file ends"];
            assert!(is_new.iter().any(|part| text.contains(part)), "{text}");
            0
        }
        Err(error) => panic!("cut {at} of {ends:?}, {unsynced:?}: {error}"),
    };
    let allowed = done..=(done + 1).min(3);
    assert!(allowed.contains(&version), "{version} at cut {at} of {ends:?}, {unsynced:?}");
}

#[test]
fn every_cut_leaves_the_old_or_the_new_generation() {
    let mut cases = 0;
    for (stripes, block_bytes) in [(1, 4096), (2, 4096), (3, 8192), (4, 4096)] {
        let mut rng = fastrand::Rng::with_seed(stripes as u64);
        let (device, ends) = record(stripes, block_bytes, &mut rng);
        for at in 0..=device.cuts() {
            check(&device, stripes, &ends, at, Unsynced::Kept);
            check(&device, stripes, &ends, at, Unsynced::Lost);
            for _ in 0..3 {
                check(&device, stripes, &ends, at, Unsynced::Tossed(rng.u64(..)));
            }
            cases += 5;
        }
    }
    assert!(cases > 1000, "{cases} cases");
}

/// After a cut the state goes on, and is cut again.
#[test]
fn a_second_cut_is_no_worse_than_the_first() {
    for seed in 0..120 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let stripes = rng.usize(1..4);
        let (device, ends) = record(stripes, 4096, &mut rng);
        let first = rng.usize(ends[1]..=device.cuts());
        let after = device.after_cut(first, Unsynced::Tossed(rng.u64(..)));
        after.start_record();
        let (before, mut state) = found(&carrier(&after), &paths(stripes)).unwrap();
        save(&mut state, 10).unwrap();
        let done = after.cuts();
        save(&mut state, 11).unwrap();
        let second = rng.usize(..=after.cuts());
        let last = after.after_cut(second, Unsynced::Tossed(rng.u64(..)));
        let (version, _) = found(&carrier(&last), &paths(stripes))
            .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let allowed = if second < done { [before, 10] } else { [10, 11] };
        assert!(allowed.contains(&version), "seed {seed}: {version} is none of {allowed:?}");
    }
}

/// After a sync that failed a state has files on which the next one can succeed.
#[test]
fn a_state_goes_on_whichever_sync_fails() {
    for (stripes, before) in [(1, 0), (1, 1), (2, 0), (2, 1)] {
        for refused_sync in 0.. {
            let (device, paths) = (device(), paths(stripes));
            let tensors = directory(&mut fastrand::Rng::with_seed(9));
            let mut state = StateFile::create(&carrier(&device), &paths, tensors, 4096).unwrap();
            (1..=before).for_each(|version| save(&mut state, version).unwrap());
            device.set_faults(Faults { refused_sync: Some(refused_sync), ..Faults::default() });
            if save(&mut state, 2).is_ok() {
                assert!(refused_sync >= 2 * stripes as u64, "{refused_sync} syncs");
                break;
            }
            device.set_faults(Faults::default());
            // In the files as well, whatever becomes of this process.
            let there = found(&carrier(&device), &paths).ok().map(|(version, _)| version);
            assert_eq!(there, (before > 0).then_some(before));
            assert_eq!(state.generation().map_or(0, |newest| newest.label), before);
            if before > 0 {
                assert_eq!(version_of(&state).unwrap(), before);
            }
            save(&mut state, 3).unwrap();
            drop(state);
            assert_eq!(found(&carrier(&device), &paths).unwrap().0, 3);
        }
    }
}
