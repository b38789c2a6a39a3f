//! Everything else that may befall a path: its device is taken away, its cable is cut for a moment,
//! its addresses are wrong, and mixtures of these drawn by a seed.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use brigade_transports::rdma::Settings;

use crate::fabric::{Cable, Fabric, sent_bytes};
use crate::world::{LIMIT, Member, Outcome, PATIENCE, contents, impatient, join, open, trial};

/// Trials of the random mixture.
const TRIALS: u64 = 50;

/// What may be done to a cable under a running stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Cut,
    /// Cut, and joined again after so many milliseconds.
    Flap(u64),
    /// A device is taken away.
    Remove,
    /// Only short packets pass.
    Narrow,
}

impl Fault {
    fn strike(self, fabric: &Fabric, cable: Cable) {
        match self {
            Fault::Cut => fabric.cut(cable),
            Fault::Flap(ms) => {
                fabric.cut(cable);
                std::thread::sleep(Duration::from_millis(ms));
                fabric.join(cable);
            }
            Fault::Remove => fabric.remove(cable),
            Fault::Narrow => fabric.narrow(cable, 1500),
        }
    }
}

/// The errors of those members that came to one; each names a status, or says that the other left.
fn causes(outcome: &Outcome, context: &str) -> Vec<String> {
    let errors = outcome.iter().filter_map(|it| it.as_ref().err()).map(ToString::to_string);
    let errors: Vec<String> = errors.collect();
    let is_cause = |error: &&String| error.contains("(status ");
    for error in &errors {
        let is_departure = error.contains("it has left the communicator");
        assert!(is_departure || is_cause(&error), "{context}: {error}");
    }
    assert!(errors.is_empty() || errors.iter().any(|error| is_cause(&error)), "{context}");
    errors
}

#[test]
fn whatever_befalls_a_path_the_bytes_are_right_or_the_cause_is_named() {
    let Some(fabric) = Fabric::take() else { return };
    for seed in 0..TRIALS {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (strike_at, more) = (rng.usize(..1 << 20), rng.usize(1 << 19..1 << 20));
        let cable = if rng.bool() { Cable::First } else { Cable::Second };
        let has_other = rng.bool();
        let devices = if has_other { None } else { Some(cable.devices()) };
        let fault = match rng.u8(..4) {
            0 => Fault::Cut,
            1 => Fault::Flap(rng.u64(50..800)),
            2 => Fault::Remove,
            _ => Fault::Narrow,
        };
        let must_hold = has_other || matches!(fault, Fault::Flap(_) | Fault::Narrow);
        let patience = if must_hold { LIMIT / 2 } else { PATIENCE };
        let (settings, started) = (impatient(devices, patience), Instant::now());
        let strike = || fault.strike(&fabric, cable);
        let outcome = trial(&settings, seed, (strike_at, more), strike);
        let took = started.elapsed();
        fabric.mend();
        let context = format!("seed {seed}: {fault:?} of {cable:?} at {strike_at}, {more} more");
        let errors = causes(&outcome, &context);
        println!("{context}, another path: {has_other}: {took:?}, {errors:#?}");
        assert!(errors.is_empty() || !must_hold, "{context}: {errors:#?}");
    }
}

#[test]
fn a_device_that_is_taken_away_is_named_or_replaced_by_another() {
    let Some(fabric) = Fabric::take() else { return };
    for cable in [Cable::First, Cable::Second] {
        for devices in [Some(cable.devices()), None] {
            let sizes = (1 << 20, 4 << 20);
            let outcome = trial(&impatient(devices, PATIENCE), 1, sizes, || fabric.remove(cable));
            fabric.mend();
            let errors = causes(&outcome, "a device was removed");
            println!("{cable:?}, {devices:?}: {errors:#?}");
            assert_eq!(errors.is_empty(), devices.is_none(), "{errors:#?}");
        }
    }
}

#[test]
fn bytes_go_over_all_devices() {
    let Some(_fabric) = Fabric::take() else { return };
    let ends = ["eth0", "eth1", "eth2", "eth3"];
    let (before, bytes) = (ends.map(sent_bytes), 16 << 20);
    let outcome = trial(&Settings::default(), 5, (0, bytes), || ());
    assert!(outcome.iter().all(Result::is_ok), "{outcome:?}");
    let after = ends.map(sent_bytes);
    for (index, end) in ends.iter().enumerate() {
        let sent = after[index] - before[index];
        println!("{end}: {sent} bytes");
        // Both ranks send over both ends of both cables, one piece after the other.
        let share = 2 * bytes as u64 / ends.len() as u64;
        assert!(sent > share / 3 && sent < 3 * share, "{end}: {sent} of about {share}");
    }
}

#[test]
fn an_address_that_nobody_has_is_named_in_time() {
    let Some(_fabric) = Fabric::take() else { return };
    let ports =
        [open(&impatient(Some("rxe0"), PATIENCE)), open(&impatient(Some("rxe1"), PATIENCE))];
    let cards = [ports[0].card(), ports[1].card()];
    let (right, wrong) = ([10, 77, 0, 2], [10, 77, 0, 99]);
    let place = cards[1].windows(4).position(|bytes| bytes == right).expect("its GID");
    let mut seen = cards.clone();
    seen[1][place..place + 4].copy_from_slice(&wrong);
    let found = Mutex::new(None);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut endpoint = join(&*ports[1], 1, &cards);
            let waiting = Instant::now();
            while found.lock().expect("no panic").is_none() && waiting.elapsed() < LIMIT {
                std::thread::sleep(Duration::from_millis(1));
            }
            // Its own wire, whose address is right, goes nowhere either: nobody answers.
            drop(endpoint.receiver(0).expect("a wire"));
        });
        scope.spawn(|| {
            let mut endpoint = join(&*ports[0], 0, &seen);
            let started = Instant::now();
            let outcome = endpoint.sender(1, started + LIMIT).and_then(|sender| {
                let receiver = endpoint.receiver(1)?;
                let mut member = Member { sender, receiver, endpoint };
                loop {
                    member.send(&contents(1, 0, 64 << 10))?;
                }
            });
            let error = outcome.map(|never: std::convert::Infallible| never);
            let error = error.expect_err("there is no such address").to_string();
            *found.lock().expect("no panic") = Some((error, started.elapsed()));
        });
    });
    let (error, waited) = found.into_inner().expect("no panic").expect("an error");
    println!("after {waited:?}: {error}");
    assert!(waited < LIMIT && error.contains("::ffff:10.77.0.99"), "{error}");
}
