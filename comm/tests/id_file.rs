//! Ranks that meet by a file: whatever an earlier job left at its path, in every order of starting.

use std::fs;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use brigade_comm::bootstrap::UniqueId;
use brigade_comm::launch::{Launch, RootSpec};
use brigade_comm::{Communicator, Error, Op, Settings};

/// A user that owns nothing here.
const NOBODY: u32 = 65534;

/// A folder of its own for each test, removed when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("brigade-{name}-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn id(&self) -> PathBuf {
        self.0.join("id")
    }

    /// The names of what lies in it.
    fn entries(&self) -> Vec<String> {
        let names = fs::read_dir(&self.0).unwrap().flatten();
        names.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A failed test has said what matters.
        let _removed = fs::remove_dir_all(&self.0);
    }
}

fn join(
    path: &Path,
    (rank, ranks): (usize, usize),
    timeout_ms: u64,
) -> Result<Communicator, Error> {
    let join_timeout = Duration::from_millis(timeout_ms);
    let settings = Settings { join_timeout, ..Settings::default() };
    let root = RootSpec::IdFile(path.to_owned());
    Communicator::join(Launch { rank, ranks, local_rank: None, root }, settings)
}

fn error_of(outcome: Result<Communicator, Error>) -> String {
    outcome.expect_err("nobody can join").to_string()
}

/// A job whose ranks start in this order, a little apart; all of them sum something.
fn check_job(path: &Path, order: &[usize]) {
    let ranks = order.len();
    thread::scope(|scope| {
        for &rank in order {
            scope.spawn(move || {
                let member = join(path, (rank, ranks), 20_000).unwrap_or_else(|error| {
                    panic!("rank {rank} of the order {order:?}: {error}");
                });
                let mut sum = [rank as i64];
                member.all_reduce(&mut sum, Op::Sum).unwrap();
                assert_eq!(sum[0] as usize, ranks * (ranks - 1) / 2);
            });
            thread::sleep(Duration::from_millis(15));
        }
    });
}

/// What an earlier job may have left behind, and what may be at its address by now.
#[derive(Clone, Copy, Debug)]
enum Left {
    Nothing,
    DeadRoot,
    /// The earlier job's root is still waiting there for ranks that are gone.
    OrphanedRoot,
    /// Another job's root has got the port.
    OtherRoot,
    OtherService,
    SilentService,
    Garbage,
}

/// Put a stale file at `path`. What is returned keeps running until it is dropped.
fn leave(left: Left, path: &Path) -> Box<dyn Send> {
    let here = Some(IpAddr::from(Ipv4Addr::LOCALHOST));
    if matches!(left, Left::Nothing) {
        return Box::new(());
    }
    if matches!(left, Left::Garbage) {
        fs::write(path, "not an id\n").unwrap();
        return Box::new(());
    }
    let (id, root) = UniqueId::create(here).unwrap();
    if matches!(left, Left::OtherRoot) {
        let mut bytes = id.to_bytes();
        // Somewhere in the secret.
        bytes[20] ^= 1;
        UniqueId::from_bytes(bytes).unwrap().write_file(path).unwrap();
        return Box::new(root);
    }
    id.write_file(path).unwrap();
    if matches!(left, Left::OrphanedRoot) {
        return Box::new(root);
    }
    drop(root);
    match left {
        Left::DeadRoot => Box::new(()),
        _ => {
            let listener = TcpListener::bind(id.addresses()[0]).unwrap();
            if matches!(left, Left::SilentService) {
                return Box::new(listener);
            }
            let answering = listener.try_clone().unwrap();
            thread::spawn(move || {
                for stream in answering.incoming() {
                    // Whoever called may have gone already.
                    let _told = stream.and_then(|mut stream| stream.write_all(b"220 hello\r\n"));
                }
            });
            Box::new(listener)
        }
    }
}

#[test]
fn nothing_left_behind_keeps_a_job_from_starting_in_any_order() {
    let orders =
        [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]].map(|o| o.to_vec());
    let folder = Folder::new("orders");
    for left in [
        Left::Nothing,
        Left::DeadRoot,
        Left::OrphanedRoot,
        Left::OtherRoot,
        Left::OtherService,
        Left::Garbage,
    ] {
        for order in &orders {
            println!("{left:?}, {order:?}");
            let _lingering = leave(left, &folder.id());
            check_job(&folder.id(), order);
            assert_eq!(folder.entries(), Vec::<String>::new(), "{left:?}, {order:?}");
        }
    }
}

#[test]
fn a_stale_address_that_takes_calls_and_says_nothing_costs_two_seconds() {
    let folder = Folder::new("silent");
    let _lingering = leave(Left::SilentService, &folder.id());
    let start = Instant::now();
    check_job(&folder.id(), &[1, 0]);
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    assert_eq!(folder.entries(), Vec::<String>::new());
}

#[test]
fn jobs_one_after_another_may_use_one_path() {
    let folder = Folder::new("again");
    for order in [vec![0, 1], vec![1, 0], vec![1, 0, 2], vec![0, 1]] {
        check_job(&folder.id(), &order);
        assert!(!folder.id().exists());
    }
}

#[test]
fn what_no_job_has_left_keeps_its_place() {
    let folder = Folder::new("taken");
    let (thesis, pipe) = (folder.0.join("thesis.txt"), folder.0.join("pipe"));
    let pages = "chapter one\n".repeat(100);
    fs::write(&thesis, &pages).unwrap();
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for (path, why) in [
        (&thesis, "too long for an id; remove it, or name another"),
        (&pipe, "it is a device or a pipe"),
        (&folder.0, "is a directory"),
    ] {
        let said = error_of(join(path, (0, 2), 10_000));
        assert!(said.contains(&path.display().to_string()) && said.contains(why), "{said}");
        // Who would read it does not wait for the writer of a pipe either.
        let start = Instant::now();
        let said = error_of(join(path, (1, 2), 300));
        assert!(start.elapsed() < Duration::from_secs(5), "{said}");
    }
    assert_eq!(fs::read_to_string(&thesis).unwrap(), pages);
    assert!(!fs::metadata(&pipe).unwrap().is_file());
    let mut left = folder.entries();
    left.sort();
    assert_eq!(left, ["pipe", "thesis.txt"]);
}

#[test]
fn the_file_is_for_its_owner_alone_and_goes_when_the_job_fails() {
    let folder = Folder::new("mode");
    let path = folder.id();
    let first = thread::spawn({
        let path = path.clone();
        move || join(&path, (0, 2), 600)
    });
    while !path.exists() {
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let error = error_of(first.join().unwrap());
    assert!(error.contains("rank 1 of 2 never came"), "{error}");
    assert_eq!(folder.entries(), Vec::<String>::new());
}

#[test]
fn who_waits_in_vain_says_which_file_how_old_and_what_it_says() {
    let folder = Folder::new("vain");
    let path = folder.id();
    let shown = path.display().to_string();
    let error = error_of(join(&path, (1, 2), 200));
    assert!(error.contains(&shown) && error.contains("No such file"), "{error}");

    let three_hours_ago = SystemTime::now() - Duration::from_secs(10_800);
    let aged = |path: &Path| {
        fs::File::options().append(true).open(path).unwrap().set_modified(three_hours_ago).unwrap();
    };
    for (left, words) in [
        (Left::DeadRoot, ["127.0.0.1:", "refused"]),
        (Left::OtherRoot, ["127.0.0.1:", "another secret"]),
        (Left::OtherService, ["127.0.0.1:", "not a root of ours"]),
    ] {
        let _lingering = leave(left, &path);
        aged(&path);
        let error = error_of(join(&path, (1, 2), 400));
        println!("{error}");
        assert!(error.contains(&shown) && error.contains("written 1080"), "{error}");
        assert!(words.iter().all(|word| error.contains(word)), "{words:?}: {error}");
    }
    fs::write(&path, "hello\n").unwrap();
    let error = error_of(join(&path, (1, 2), 200));
    assert!(error.contains(&shown) && error.contains("256 hexadecimal"), "{error}");
}

/// What somebody without permission is told; started as another user by the test below.
#[test]
#[ignore = "the part of a user without permission"]
fn a_rank_without_permission() {
    let Ok(folder) = std::env::var("BRIGADE_TEST_FORBIDDEN") else { return };
    let path = Path::new(&folder).join("id");
    let start = Instant::now();
    println!("reads: {}", error_of(join(&path, (1, 2), 20_000)));
    println!("writes: {}", error_of(join(&path, (0, 2), 20_000)));
    println!("took {} s", start.elapsed().as_secs());
}

#[test]
fn a_file_that_may_not_be_used_is_named_at_once() {
    let folder = Folder::new("forbidden");
    fs::write(folder.id(), "secret\n").unwrap();
    fs::set_permissions(folder.id(), fs::Permissions::from_mode(0o000)).unwrap();
    fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o555)).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    if fs::metadata("/proc/self").unwrap().uid() == 0 {
        // The administrator may do everything.
        command.uid(NOBODY).gid(NOBODY);
    }
    let output = command
        .args(["--exact", "a_rank_without_permission", "--ignored", "--nocapture"])
        .env("BRIGADE_TEST_FORBIDDEN", &folder.0)
        .output();
    fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o755)).unwrap();
    let output = match output {
        Ok(output) => String::from_utf8_lossy(&output.stdout).into_owned(),
        Err(error) => return println!("skipped: cannot run as another user: {error}"),
    };
    let shown = folder.id().display().to_string();
    for role in ["reads: ", "writes: "] {
        let line = output.lines().find_map(|line| line.split_once(role));
        let (_, error) = line.unwrap_or_else(|| panic!("no {role:?} in {output}"));
        assert!(error.contains(&shown) && error.contains("Permission denied"), "{error}");
    }
    assert!(output.contains("took 0 s"), "{output}");
}

#[test]
fn a_file_of_another_user_leads_nowhere() {
    let folder = Folder::new("stranger");
    let (id, _root) = UniqueId::create(Some(Ipv4Addr::LOCALHOST.into())).unwrap();
    id.write_file(&folder.id()).unwrap();
    if std::os::unix::fs::chown(folder.id(), Some(NOBODY), None).is_err() {
        return println!("skipped: files cannot be given away here");
    }
    // Where not all may write, whoever has written it is somebody whom we trust.
    assert_eq!(UniqueId::read_file(&folder.id()).unwrap(), id);
    fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o1777)).unwrap();
    let error = error_of(join(&folder.id(), (1, 2), 20_000));
    assert!(error.contains("it belongs to user 65534"), "{error}");
}

#[test]
fn roots_of_ids_keep_to_the_ports_and_interfaces_that_the_settings_name() {
    let near = |first: u16| {
        let (ports, interface) = (Some((first, first + 1)), Some("127.0.0.0/8".into()));
        Settings { ports, interface, ..Settings::default() }
    };
    // Below those that anybody is given who asks for any; others may have some of them.
    let mut pairs =
        (0..50).map(|times| 10_000 + (std::process::id() % 100) as u16 * 40 + times * 2);
    let found = pairs.find_map(|first| {
        let (one, other) = (UniqueId::create_for(&near(first)), UniqueId::create_for(&near(first)));
        Some((first, one.ok()?, other.ok()?))
    });
    let (first, (one, _root), (other, _other)) = found.expect("two ports beside each other");
    let here = |port| vec![SocketAddr::from((Ipv4Addr::LOCALHOST, port))];
    assert_eq!([one.addresses(), other.addresses()], [here(first + 1), here(first)]);
    let full = UniqueId::create_for(&near(first)).unwrap_err().to_string();
    let wanted = format!("the root cannot listen at any of the ports {first} to {}", first + 1);
    assert!(full.starts_with(&wanted), "{full}");
}
