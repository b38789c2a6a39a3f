//! A root and a store whose system refuses to wait for several files at once, as it does where a
//! process may have fewer of them open than it has: they say so to whoever waits, and to people.
//!
//! The processes are this test binary again, at [`one_process`], as no other test shall have so few
//! files.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use brigade_comm::Communicator;
use brigade_comm::bootstrap::store::{StoreClient, StoreServer};

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);
const WHICH: &str = "BRIGADE_TEST_POLLS";

#[test]
#[ignore = "one process of the tests in this file"]
fn one_process() {
    match std::env::var(WHICH).as_deref() {
        Ok("root") => {
            let rank = std::thread::spawn(|| Communicator::from_env().map(drop));
            let until = Instant::now() + PATIENCE;
            let root = std::env::var("BRIGADE_ROOT").unwrap();
            while TcpStream::connect(&root).is_err() {
                assert!(Instant::now() < until, "nobody listens at {root}");
                std::thread::sleep(Duration::from_millis(10));
            }
            // Rank 0 has its seat soon.
            std::thread::sleep(Duration::from_millis(500));
            allow_one_file();
            println!("end: {}", rank.join().unwrap().unwrap_err());
        }
        Ok("store") => {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let server = StoreServer::start(listener).unwrap();
            let later = Instant::now() + PATIENCE;
            let mut client =
                StoreClient::connect("127.0.0.1", server.address().port(), later).unwrap();
            allow_one_file();
            println!("end: {}", client.get("key", later).unwrap_err());
        }
        _ => {}
    }
}

/// From now on a wait for two files is refused.
fn allow_one_file() {
    let own = std::process::id().to_string();
    let limited = Command::new("prlimit").args(["--nofile=1:1", "--pid", &own]).status();
    assert!(limited.expect("util-linux is installed").success());
}

/// What such a process says: as the one who waits there, and on standard error.
fn said(which: &str) -> [String; 2] {
    let rank = [("RANK", "0"), ("WORLD_SIZE", "2"), ("SECRET", "of this test")];
    // A report that is due wakes the root.
    let bounds = [("REPORT_MS", "6000"), ("JOIN_TIMEOUT_MS", "30000"), ("TRANSPORT", "tcp")];
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "one_process", "--ignored", "--nocapture"]).env(WHICH, which);
    command.env("BRIGADE_ROOT", free.to_string());
    for (name, value) in rank.into_iter().chain(bounds) {
        command.env(format!("BRIGADE_{name}"), value);
    }
    let output = command.output().unwrap();
    [output.stdout, output.stderr].map(|said| {
        let said = String::from_utf8(said).unwrap();
        println!("{said}");
        said
    })
}

#[test]
fn a_root_that_cannot_wait_any_longer_says_so_to_people_and_to_who_waits_for_it() {
    let [rank, people] = said("root");
    let why = "ends, as it cannot wait for its connections any longer: poll: Invalid argument";
    let end = rank.lines().find(|line| line.starts_with("end: ")).expect("it ends");
    assert!(end.contains(why) && end.contains("rank 1 of 2 never came"), "{end}");
    assert!(people.contains(&format!(" {why}")), "{people}");
}

#[test]
fn a_store_that_cannot_wait_any_longer_says_so_to_people_and_hangs_up() {
    let [client, people] = said("store");
    assert!(client.contains("end: the store at 127.0.0.1:"), "{client}");
    let why = "ends, as it cannot wait for its clients any longer: poll: Invalid argument";
    assert!(
        people.contains("brigade: the store at 127.0.0.1:") && people.contains(why),
        "{people}"
    );
}
