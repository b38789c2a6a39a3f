//! Paths that fail under a running stream: another one takes over, or the error names the cause.
//!
//! These cases cut cables, so they only run in the virtual machine of `tests/rdma-vm`; elsewhere
//! each says so and does nothing. A child process is this program again, as one rank.

mod fabric;
mod faults;
mod flaps;
mod starving;
mod world;

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use brigade_transports::rdma::{Rdma, Settings};
use brigade_transports::{Transport, TransportError};

use fabric::{Cable, Fabric};
use world::{LIMIT, Member, PATIENCE, contents, impatient, join, open, pair};

/// Trials of the random cutter.
const TRIALS: u64 = 50;

/// Send `bytes` one way, pieces of random lengths, while the other end checks each; `cutter` runs
/// once so many have arrived. Then one byte goes back.
fn stream_with(
    settings: &Settings,
    seed: u64,
    bytes: usize,
    cut_at: usize,
    cutter: impl Fn() + Sync,
) {
    let arrived = AtomicUsize::new(0);
    pair(settings, |me, member| {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut at = 0;
        let mut has_cut = false;
        while at < bytes {
            let count = (1 << rng.u32(3..18)).min(bytes - at);
            let known = contents(seed, at, count);
            let outcome = if me == 0 {
                member.send(&known)
            } else {
                let mut target = vec![0; count];
                let outcome = member.receive(&mut target);
                assert!(outcome.is_err() || target == known, "seed {seed}, byte {at}");
                outcome
            };
            outcome.unwrap_or_else(|error| panic!("seed {seed}, member {me}, byte {at}: {error}"));
            at += count;
            if me == 1 {
                arrived.store(at, Ordering::Relaxed);
                if !has_cut && at >= cut_at {
                    has_cut = true;
                    cutter();
                }
            }
        }
        let mut last = [0];
        let outcome = if me == 0 { member.receive(&mut last) } else { member.send(&[1]) };
        outcome.unwrap_or_else(|error| panic!("seed {seed}, the answer of member {me}: {error}"));
    });
}

#[test]
fn a_second_path_takes_over_and_no_byte_is_lost_or_doubled() {
    let Some(fabric) = Fabric::take() else { return };
    for seed in 0..TRIALS {
        let mut rng = fastrand::Rng::with_seed(seed);
        let bytes = rng.usize(1 << 18..2 << 20);
        let cut_at = rng.usize(..bytes);
        let cable = if rng.bool() { Cable::First } else { Cable::Second };
        let started = Instant::now();
        stream_with(&impatient(None, LIMIT / 2), seed, bytes, cut_at, || fabric.cut(cable));
        fabric.mend();
        println!("seed {seed}: {bytes} bytes, {cable:?} cut at {cut_at}: {:?}", started.elapsed());
    }
}

/// The error that a member comes to that sends for ever.
fn until_error(member: &mut Member) -> TransportError {
    let block = contents(1, 0, 64 << 10);
    loop {
        if let Err(error) = member.send(&block) {
            return error;
        }
    }
}

/// Both members stream over one cable until `spoil` has been done to it; the sender's error.
fn spoilt(settings: &Settings, spoil: impl Fn() + Sync) -> (String, Duration) {
    let found = std::sync::Mutex::new(None);
    pair(settings, |me, member| {
        if me == 0 {
            member.send(&contents(1, 0, 64 << 10)).expect("the cable is whole");
            member.receive(&mut [0]).expect("the cable is whole");
            spoil();
            let started = Instant::now();
            let error = until_error(member);
            *found.lock().expect("no panic") = Some((error.to_string(), started.elapsed()));
            return;
        }
        let mut target = vec![0; 64 << 10];
        member.receive(&mut target).expect("the cable is whole");
        member.send(&[1]).expect("the cable is whole");
        while member.receive(&mut target).is_ok() {}
        // It may be the first to notice; were it to leave, that is what the other would see.
        let waiting = Instant::now();
        while found.lock().expect("no panic").is_none() && waiting.elapsed() < LIMIT {
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    found.into_inner().expect("no panic").expect("the sender found an error")
}

#[test]
fn a_cut_cable_is_named_in_time() {
    let Some(fabric) = Fabric::take() else { return };
    let settings = impatient(Some(Cable::First.devices()), PATIENCE);
    let (error, waited) = spoilt(&settings, || fabric.cut(Cable::First));
    println!("after {waited:?}: {error}");
    assert!(waited < Duration::from_secs(10), "{waited:?}");
    // Some devices notice at once, others count their attempts first.
    let is_named = ["the port is not active", "retries exceeded"].map(|word| error.contains(word));
    assert!(is_named.contains(&true), "{error}");
    for word in ["of rxe", "::ffff:10.77.0.1", "::ffff:10.77.0.2", "member 1", "attempts"] {
        assert!(error.contains(word), "{word} in: {error}");
    }
}

#[test]
fn packets_too_long_for_the_path_are_named_in_time() {
    let Some(fabric) = Fabric::take() else { return };
    // With attempts to replace the queue pair, the next one would send shorter packets.
    let settings = impatient(Some(Cable::Second.devices()), Duration::ZERO);
    let (error, waited) = spoilt(&settings, || fabric.narrow(Cable::Second, 1500));
    println!("after {waited:?}: {error}");
    assert!(waited < Duration::from_secs(10), "{waited:?}");
    assert!(error.contains("MTU"), "{error}");
}

#[test]
fn a_gid_that_there_is_not_is_refused_beforehand() {
    let Some(_fabric) = Fabric::take() else { return };
    let settings = Settings { gid_index: Some(200), ..Settings::default() };
    let error = Rdma::new(settings).probe().expect_err("no port has so many").to_string();
    assert!(error.contains("no usable GID") && error.contains("rxe0"), "{error}");
}

/// The card of the other rank, as the child hears it.
const CARD: &str = "BRIGADE_TEST_CARD";

/// One rank for itself: says its card, and sends until it is killed. Only a child does this.
#[test]
fn a_rank_of_its_own() {
    let Ok(theirs) = std::env::var(CARD) else { return };
    let port = open(&Settings::default());
    println!("card {}", hex(&port.card()));
    std::io::stdout().flush().expect("the parent listens");
    let cards = [unhex(&theirs), port.card()];
    let mut member = Member::new(join(&*port, 1, &cards), 0);
    panic!("the parent outlived its child: {}", until_error(&mut member));
}

#[test]
fn a_killed_peer_is_seen_within_a_second() {
    let Some(_fabric) = Fabric::take() else { return };
    let port = open(&Settings::default());
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args(["a_rank_of_its_own", "--exact", "--nocapture"])
        .env(CARD, hex(&port.card()))
        .stdout(Stdio::piped())
        .spawn()
        .expect("this program again");
    let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let card = lines
        .map_while(Result::ok)
        .find_map(|line| line.split_once("card ").map(|(_, card)| unhex(card)));
    let cards = [port.card(), card.expect("the child says its card")];
    let mut member = Member::new(join(&*port, 0, &cards), 1);
    let mut target = vec![0; 100_000];
    member.receive(&mut target).expect("the child sends");
    child.kill().expect("kill the child");
    let killed = Instant::now();
    let error = loop {
        if let Err(error) = member.receive(&mut target) {
            break error;
        }
    };
    println!("after {:?}: {error}", killed.elapsed());
    assert!(matches!(error, TransportError::PeerGone { peer: 1, .. }), "{error}");
    assert!(killed.elapsed() < Duration::from_secs(1), "{:?}", killed.elapsed());
    assert!(member.endpoint.check().is_err(), "a death is not a farewell");
    child.wait().expect("it was killed");
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let byte = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).expect("two digits");
    (0..text.trim().len()).step_by(2).map(byte).collect()
}
