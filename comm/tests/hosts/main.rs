//! One communicator over two transports: shared memory inside a host, TCP across. Hosts are network
//! namespaces (see `net`), ranks are processes in them (see `job` and `rank`).
//!
//! The library tells hosts apart as it does in the wild: shared memory reaches who runs on the same
//! boot of the same kernel, in the same network namespace, as the same user; all others are TCP's.

mod job;
mod listen;
mod net;
mod rank;
mod windows;

use std::time::{Duration, Instant};

use job::Job;
use net::{Family, Hosts};

/// How long survivors may take to name the dead.
const NOTICED_WITHIN: Duration = Duration::from_secs(1);

/// All ranks of a job play `part` to its end.
fn check(hosts: &Hosts, places: &[usize], part: &str, settings: &[(&str, &str)]) {
    println!("{part} at {places:?} with {settings:?}");
    let job = Job::start(hosts, places, part, settings);
    job.hear_all("done");
    job.check_nothing_left();
}

#[test]
fn groups_inside_and_across_hosts_have_the_transports_they_should() {
    let Some(hosts) = Hosts::new("g", 3, Family::Both) else { return };
    check(&hosts, &[0, 0, 1, 1, 2, 2], "groups", &[]);
    // Ranks of a host that are no neighbours by number, and a host with one rank.
    check(&hosts, &[0, 1, 0, 2, 1, 0], "groups", &[]);
    check(&hosts, &[1, 0, 0], "groups", &[("BRIGADE_SOCKETS", "1")]);
}

#[test]
fn every_algorithm_works_across_hosts() {
    let Some(hosts) = Hosts::new("a", 3, Family::Both) else { return };
    check(&hosts, &[0, 0, 1, 1], "algorithms", &[]);
    check(&hosts, &[0, 1, 0, 1, 1], "algorithms", &[]);
    check(&hosts, &[0, 1, 0, 2, 1, 0], "algorithms", &[]);
    check(&hosts, &[0, 1, 0, 1], "algorithms", &[("BRIGADE_ENCRYPT", "1")]);
}

#[test]
fn hosts_that_speak_only_ipv6_are_hosts_too() {
    let Some(hosts) = Hosts::new("v", 2, Family::SixOnly) else { return };
    check(&hosts, &[0, 0, 1, 1], "groups", &[]);
    let by_address = [
        ("BRIGADE_ID_FILE", ""),
        ("BRIGADE_ROOT", "[fd78::1]:4000"),
        ("BRIGADE_SECRET", "known to the ranks of this job"),
    ];
    check(&hosts, &[0, 1], "groups", &by_address);
}

#[test]
fn the_interface_that_is_asked_for_carries_the_bytes() {
    let Some(hosts) = Hosts::new("i", 2, Family::Both) else { return };
    for (asked, carries) in [("cable", 0), ("second", 1), ("10.79.0.0/16", 1), ("fd79::/16", 1)] {
        let job = Job::start(&hosts, &[0, 1], "traffic", &[("BRIGADE_INTERFACE", asked)]);
        // Counters of the interfaces go on from one job to the next.
        static BEFORE: std::sync::Mutex<[[u64; 2]; 2]> = std::sync::Mutex::new([[0; 2]; 2]);
        let mut before = BEFORE.lock().unwrap();
        for (rank, line) in job.hear_all("sent").iter().enumerate() {
            let sent: Vec<u64> = line.split(' ').map(|word| word.parse().unwrap()).collect();
            let now = [0, 1].map(|at| sent[at] - before[rank][at]);
            before[rank] = [sent[0], sent[1]];
            // All-reduce of 8 MiB among two: each sends them once.
            assert!(now[carries] > 8 << 20, "{asked}: rank {rank} sent {now:?}");
            assert!(now[1 - carries] < 1 << 20, "{asked}: rank {rank} sent {now:?}");
        }
        job.hear_all("done");
    }
}

/// Of n bytes N hosts have to send (N-1)/N in a reduce-scatter or an all-gather, and twice that in
/// an all-reduce, however many ranks each has; and what is broadcast or reduced goes once to or
/// from each other host, whichever rank is the root.
#[test]
fn no_more_crosses_between_hosts_than_has_to() {
    let Some(hosts) = Hosts::new("c", 3, Family::Both) else { return };
    for (places, hosts_of) in [(&[0, 0, 1, 1][..], 2.0), (&[2, 1, 1, 0, 2, 0], 3.0)] {
        let job = Job::start(&hosts, places, "crossing", &[]);
        for times in [2.0, 1.0, 1.0] {
            for (rank, sent) in sent_parts(&job).into_iter().enumerate() {
                let sent = sent / (times * (hosts_of - 1.0) / hosts_of);
                println!("rank {rank} of {places:?}, {times} times: {sent:.3}");
                assert!((1.0..1.1).contains(&sent), "rank {rank} of {places:?}: {sent} of it");
            }
        }
        rooted_cross_once(&job, places);
        job.hear_all("done");
    }
    // On hosts of different numbers of ranks the others go by rings, from host to host.
    let places = [0, 1, 0, 1, 1, 2];
    let job = Job::start(&hosts, &places, "crossing", &[]);
    for times in [2.0, 1.0, 1.0] {
        for (rank, sent) in sent_parts(&job).into_iter().enumerate() {
            let sent = sent / (times * 5.0 / 6.0);
            assert!((1.0..1.1).contains(&sent), "rank {rank} of {places:?}: {sent} of it");
        }
    }
    rooted_cross_once(&job, &places);
    job.hear_all("done");
}

/// What the host of each rank sent in a call of 2 MiB, as a part of these.
fn sent_parts(job: &Job) -> Vec<f64> {
    let part = |sent: String| sent.parse::<f64>().unwrap() / f64::from(2 << 20);
    job.hear_all("sent").into_iter().map(part).collect()
}

fn rooted_cross_once(job: &Job, places: &[usize]) {
    for root in 0..places.len() {
        for kind in ["broadcast", "reduce"] {
            let sent = sent_parts(job);
            let of_host = |host| places.iter().position(|&place| place == host).map(|at| sent[at]);
            let sent: Vec<f64> = (0..3).map_while(of_host).collect();
            let all = sent.iter().sum::<f64>() / (sent.len() as f64 - 1.0);
            println!("{kind} at {places:?}, root {root}: {sent:.3?}");
            assert!((1.0..1.1).contains(&all), "{kind} at {places:?}, root {root}: {sent:?}");
        }
    }
}

#[test]
fn a_rank_without_a_way_to_another_host_says_why() {
    let Some(hosts) = Hosts::new("n", 2, Family::Both) else { return };
    let job = Job::start(&hosts, &[0, 0, 1], "refused", &[("BRIGADE_INTERFACE", "eth7")]);
    for (rank, error) in job.hear_all("error").iter().enumerate() {
        let far = if rank == 2 { 0 } else { 2 };
        for word in [&format!("cannot reach rank {far}"), "eth7", "cable"] {
            assert!(error.contains(word), "{word}: {error}");
        }
    }
}

#[test]
fn a_rank_killed_on_another_host_is_named_within_a_second() {
    let Some(hosts) = Hosts::new("k", 2, Family::Both) else { return };
    for (dead, part) in [(3, "flow"), (2, "flow"), (0, "flow"), (3, "window flow")] {
        let mut job = Job::start(&hosts, &[0, 0, 1, 1], part, &[]);
        job.hear_all("flowing");
        let killed = Instant::now();
        job.kill(dead);
        for rank in (0..4).filter(|&rank| rank != dead) {
            let error = job.hear(rank, "error");
            let took = killed.elapsed();
            println!("rank {rank} after {took:?}: {error}");
            assert!(error.starts_with(&format!("rank {dead} is lost")), "rank {rank}: {error}");
            assert!(took < NOTICED_WITHIN, "rank {rank} after {took:?}: {error}");
        }
    }
}

#[test]
fn windows_go_across_hosts_and_inside_them() {
    let Some(hosts) = Hosts::new("w", 2, Family::Both) else { return };
    check(&hosts, &[0, 0, 1, 1], "windows", &[]);
    check(&hosts, &[0, 1, 0], "windows", &[("BRIGADE_SOCKETS", "1")]);
}

#[test]
fn a_host_that_falls_silent_is_named_by_the_deadline() {
    let Some(hosts) = Hosts::new("s", 2, Family::Both) else { return };
    falls_silent(&hosts, "flow");
}

#[test]
fn a_host_that_falls_silent_is_named_by_those_who_use_its_windows() {
    let Some(hosts) = Hosts::new("x", 2, Family::Both) else { return };
    falls_silent(&hosts, "window flow");
}

/// Whether a sentence has this rank, by itself or among "ranks 0, 2-3".
fn is_named(error: &str, rank: usize) -> bool {
    let is_in = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let ends = (first.parse::<usize>(), last.parse::<usize>());
        matches!(ends, (Ok(first), Ok(last)) if (first..=last).contains(&rank))
    };
    let lists = error.split("rank").skip(1).map(|rest| rest.trim_start_matches('s').trim_start());
    let is_of_list = |char: char| char.is_ascii_digit() || "-, ".contains(char);
    lists
        .map(|list| list.split(|char| !is_of_list(char)).next().unwrap_or_default())
        .any(|list| list.split([',', ' ']).any(is_in))
}

fn falls_silent(hosts: &Hosts, part: &str) {
    let places = [0, 0, 1, 1];
    let job = Job::start(hosts, &places, part, &[("BRIGADE_TIMEOUT_MS", "1500")]);
    job.hear_all("flowing");
    let cut = Instant::now();
    hosts.cut_off(1);
    let mut named_from = [false; 2];
    for rank in 0..4 {
        let error = job.hear(rank, "error");
        let took = cut.elapsed();
        println!("rank {rank} after {took:?}: {error}");
        assert!(took < Duration::from_secs(4), "rank {rank} after {took:?}: {error}");
        let names = |other: usize| other != rank && is_named(&error, other);
        assert!((0..4).any(names), "rank {rank}: {error}");
        // A rank may wait for one of its host that waits for one across.
        let far = |other: &usize| places[*other] != places[rank];
        named_from[places[rank]] |= (0..4).filter(far).any(names);
    }
    assert_eq!(named_from, [true; 2], "each host names a rank of the other");
    for left in job.hear_all("left") {
        let left: u64 = left.parse().unwrap();
        assert!(left < 4000, "leaving took {left} ms");
    }
}

#[test]
#[ignore = "a measurement"]
fn the_pace_of_small_calls() {
    let Some(hosts) = Hosts::new("p", 2, Family::Both) else { return };
    for (places, transport) in [
        (&[0, 1][..], "auto"),
        (&[0, 0], "auto"),
        (&[0, 0, 1], "auto"),
        (&[0, 0, 1], "tcp"),
        (&[0, 0, 1, 1], "auto"),
        (&[0, 0, 1, 1], "tcp"),
    ] {
        let job = Job::start(&hosts, places, "pace", &[("BRIGADE_TRANSPORT", transport)]);
        println!("{places:?} {transport}: {:?}", job.hear_all("pace"));
        job.hear_all("done");
    }
}
