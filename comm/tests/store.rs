//! PyTorch's store: ours with our clients, with strangers, and with PyTorch on either side.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use brigade_comm::bootstrap::store::{StoreClient, StoreServer};
use brigade_comm::launch::{JobSecret, Launch, RootSpec, StoreAddress};
use brigade_comm::{Communicator, Op, Settings};

const PATIENCE: Duration = Duration::from_secs(60);

fn later() -> Instant {
    Instant::now() + PATIENCE
}

fn server() -> (StoreServer, u16) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let server = StoreServer::start(listener).unwrap();
    let port = server.address().port();
    (server, port)
}

fn client(port: u16) -> StoreClient {
    StoreClient::connect("127.0.0.1", port, later()).unwrap()
}

#[test]
fn values_are_kept_waited_for_and_removed() {
    let (_server, port) = server();
    let (mut one, mut two) = (client(port), client(port));
    let waiter = std::thread::spawn(move || two.get("key", later()).map(|value| (value, two)));
    std::thread::sleep(Duration::from_millis(50));
    one.set("key", b"value", later()).unwrap();
    let (value, mut two) = waiter.join().unwrap().unwrap();
    assert_eq!(value, b"value");
    let long = vec![7; 900_000];
    two.set("long", &long, later()).unwrap();
    assert!(one.get("long", later()).unwrap() == long);
    assert_eq!(one.add("n", 40, later()).unwrap() + two.add("n", 2, later()).unwrap(), 82);
    assert!(one.delete("key", later()).unwrap() && !two.delete("key", later()).unwrap());
    let soon = Instant::now() + Duration::from_millis(200);
    let error = one.get("never", soon).unwrap_err().to_string();
    assert!(error.contains("in time") && error.contains(&port.to_string()), "{error}");
}

#[test]
fn ranks_meet_in_a_store_again_and_again() {
    let (_server, port) = server();
    let key = "brigade/test".to_owned();
    let store = StoreAddress { host: "127.0.0.1".into(), port, key, secret: None };
    let settings = Settings { transport: "tcp".into(), ..Settings::default() };
    for _ in 0..3 {
        std::thread::scope(|scope| {
            for rank in 0..3 {
                let (root, settings) = (RootSpec::Store(store.clone()), settings.clone());
                scope.spawn(move || {
                    let launch = Launch { rank, ranks: 3, local_rank: None, root };
                    let comm = Communicator::join(launch, settings).unwrap();
                    let mut sum = [rank as f32];
                    comm.all_reduce(&mut sum, Op::Sum).unwrap();
                    assert_eq!(sum, [3.0]);
                });
            }
        });
    }
    // The ids hold secrets, and nothing of them is left.
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    stream.write_all(&[0, 0xCE, 0xF7, 0x85, 0x3C, 7]).unwrap();
    let mut count = [0; 8];
    stream.read_exact(&mut count).unwrap();
    assert_eq!(i64::from_le_bytes(count), 0);
}

/// Each of them may have tried alone before.
#[test]
fn ranks_meet_in_a_store_however_often_each_has_tried_in_vain() {
    let (_server, port) = server();
    let join = |key: &str, rank: usize, patience: Duration| {
        let (host, key) = ("127.0.0.1".into(), key.into());
        let store = StoreAddress { host, port, key, secret: None };
        let (root, transport) = (RootSpec::Store(store), "tcp".into());
        let settings = Settings { transport, join_timeout: patience, ..Settings::default() };
        let launch = Launch { rank, ranks: 2, local_rank: None, root };
        Communicator::join(launch, settings)
    };
    for early in [0, 1] {
        let key = format!("brigade/again-{early}");
        let short = Duration::from_millis(200);
        (0..2).for_each(|_| assert!(join(&key, early, short).is_err(), "it is alone"));
        std::thread::scope(|scope| {
            let (join, key) = (&join, &key);
            let ranks = [0, 1].map(|rank| scope.spawn(move || join(key, rank, PATIENCE).unwrap()));
            let worlds = ranks.map(|rank| rank.join().unwrap());
            drop(worlds);
        });
    }
}

/// What lies in the store does not lead in alone, where the job has a secret.
#[test]
fn ranks_that_meet_in_a_store_prove_the_secret_of_their_job() {
    let (_server, port) = server();
    let join = |key: &str, rank: usize, secret: Option<&str>| {
        let (host, secret) = ("127.0.0.1".into(), secret.map(JobSecret::from_text));
        let store = StoreAddress { host, port, key: key.into(), secret };
        let (root, transport) = (RootSpec::Store(store), "tcp".into());
        // The longer one is for those who fit.
        let join_timeout = if key == "alike" { PATIENCE } else { Duration::from_secs(4) };
        let settings = Settings { transport, join_timeout, ..Settings::default() };
        Communicator::join(Launch { rank, ranks: 2, local_rank: None, root }, settings)
    };
    for (key, secrets, fit) in [
        ("alike", [Some("one"), Some("one")], true),
        ("another", [Some("one"), Some("other")], false),
        ("none", [Some("one"), None], false),
    ] {
        std::thread::scope(|scope| {
            let join = &join;
            let ranks = [0, 1].map(|rank| scope.spawn(move || join(key, rank, secrets[rank])));
            let ends = ranks.map(|rank| rank.join().unwrap());
            assert_eq!(ends.each_ref().map(Result::is_ok), [fit; 2], "{key}");
            if let Err(error) = &ends[1] {
                let error = error.to_string();
                assert!(error.contains("BRIGADE_SECRET"), "{key}: {error}");
            }
        });
    }
}

/// It may have been about to end when it took the call, or be stopped.
#[test]
fn a_store_that_takes_a_call_and_says_nothing_is_called_again() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let second = std::thread::spawn(move || {
        let (silent, _) = listener.accept().unwrap();
        (silent, StoreServer::start(listener).unwrap())
    });
    let deadline = Instant::now() + Duration::from_secs(20);
    StoreClient::connect("127.0.0.1", port, deadline).expect("the second call is answered");
    drop(second.join().unwrap());
}

#[test]
fn strangers_are_sent_away_and_disturb_nobody() {
    let (_server, port) = server();
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let silent: Vec<TcpStream> =
        (0..50).map(|_| TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap()).collect();
    let mut honest = client(port);
    for round in 0..200 {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut noise: Vec<u8> = Vec::new();
        if round % 2 == 0 {
            // One that knows how to introduce itself.
            noise.extend([0, 0xCE, 0xF7, 0x85, 0x3C]);
        }
        noise.extend((0..random.usize(1..500)).map(|_| random.u8(..25)));
        // No request has this number, so that it is sent away at the latest here; it may hang up
        // while we are still talking.
        noise.extend([0xff; 100]);
        let _ = stream.write_all(&noise);
        honest.set("key", &[round as u8], later()).unwrap();
        assert_eq!(honest.get("key", later()).unwrap(), [round as u8], "seed {seed}");
    }
    drop(silent);
}

#[test]
fn who_is_hung_up_on_before_the_store_is_there_tries_again() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let later = std::thread::spawn(move || {
        for _ in 0..3 {
            listener.accept().unwrap();
        }
        StoreServer::start(listener).unwrap()
    });
    let mut client = client(port);
    client.set("key", b"value", self::later()).unwrap();
    assert_eq!(client.get("key", self::later()).unwrap(), b"value");
    drop(later.join().unwrap());
}

#[test]
fn something_else_that_listens_is_no_store() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let other = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
        stream.read(&mut [0; 100]).unwrap()
    });
    let error = StoreClient::connect("127.0.0.1", port, later()).unwrap_err().to_string();
    assert!(error.contains("is none"), "{error}");
    other.join().unwrap();
}

/// A Python that has PyTorch: `TORCH_PYTHON`, or the one that is found first.
fn python() -> Option<Command> {
    static FOUND: OnceLock<Option<String>> = OnceLock::new();
    let found = FOUND.get_or_init(|| {
        let named = std::env::var("TORCH_PYTHON").unwrap_or_else(|_| "python3".into());
        // Looked for, not imported: that takes seconds, and the tests do it.
        let find = "import importlib.util as u; exit(u.find_spec('torch') is None)";
        let probe = Command::new(&named).args(["-c", find]).output();
        if probe.is_ok_and(|output| output.status.success()) {
            return Some(named);
        }
        println!("skipped: {named} has no PyTorch (TORCH_PYTHON may name one that has)");
        None
    });
    found.as_ref().map(Command::new)
}

/// Ends with the test.
struct Script(Child);

impl Script {
    fn start(python: &mut Command, text: &str, arguments: &[&str]) -> Script {
        let command = python.args(["-c", text]).args(arguments).stdin(Stdio::piped());
        Script(command.stdout(Stdio::piped()).spawn().expect("it was just tried"))
    }

    fn line(&mut self) -> String {
        let (mut line, mut byte) = (Vec::new(), [0]);
        let out = self.0.stdout.as_mut().expect("it is piped");
        while out.read(&mut byte).expect("the script lives") == 1 && byte != *b"\n" {
            line.extend(byte);
        }
        String::from_utf8(line).expect("text")
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const TORCH_SERVES: &str = "
import sys, torch.distributed as dist
store = dist.TCPStore('127.0.0.1', 0, None, True, wait_for_workers=False)
print(store.port, flush=True)
print(store.get('from brigade').decode(), flush=True)
store.set('from torch', 'hello')
print(store.add('n', 1), flush=True)
sys.stdin.readline()
";

#[test]
fn our_client_speaks_with_pytorchs_server() {
    let Some(mut python) = python() else { return };
    let mut script = Script::start(&mut python, TORCH_SERVES, &[]);
    let port: u16 = script.line().trim().parse().expect("a port");
    let mut own = client(port);
    own.add("n", 41, later()).unwrap();
    own.set("from brigade", b"good day", later()).unwrap();
    assert_eq!(script.line(), "good day");
    assert_eq!(own.get("from torch", later()).unwrap(), b"hello");
    assert_eq!(script.line(), "42");
    assert!(own.delete("n", later()).unwrap() && !own.delete("n", later()).unwrap());
    let soon = Instant::now() + Duration::from_millis(200);
    assert!(own.get("never", soon).is_err());
}

const TORCH_STORES: &str = "
import sys, torch.distributed as dist
store = dist.TCPStore('127.0.0.1', 0, None, True, wait_for_workers=False)
print(store.port, flush=True)
sys.stdin.readline()
";

/// As under torchrun, whose agent has such a store.
#[test]
fn ranks_meet_in_pytorchs_store() {
    let Some(mut python) = python() else { return };
    let mut agent = Script::start(&mut python, TORCH_STORES, &[]);
    let port = agent.line();
    let port = port.trim();
    std::thread::scope(|scope| {
        for rank in 0..2 {
            scope.spawn(move || {
                let lookup = |name: &str| {
                    Some(match name {
                        "RANK" => rank.to_string(),
                        "WORLD_SIZE" => "2".into(),
                        "MASTER_ADDR" => "127.0.0.1".into(),
                        "MASTER_PORT" => port.into(),
                        "TORCHELASTIC_RUN_ID" => "test".into(),
                        "TORCHELASTIC_USE_AGENT_STORE" => "True".into(),
                        _ => return None,
                    })
                };
                let launch = Launch::discover_in(&lookup).unwrap();
                assert!(matches!(launch.root, RootSpec::Store(_)), "{launch:?}");
                let settings = Settings { transport: "tcp".into(), ..Settings::default() };
                let comm = Communicator::join(launch, settings).unwrap();
                let mut sum = [1 + rank];
                comm.all_reduce(&mut sum, Op::Sum).unwrap();
                assert_eq!(sum, [3]);
            });
        }
    });
}

const TORCH_CALLS: &str = "
import sys, datetime, torch, torch.distributed as dist
rank, port = int(sys.argv[1]), int(sys.argv[2])
soon = datetime.timedelta(seconds=60)
store = dist.TCPStore('127.0.0.1', port, 2, False, timeout=soon, wait_for_workers=False)
assert store.add('n', rank + 1) in (1, 2, 3)
store.set(f'key{rank}', f'value{rank}')
store.wait(['key0', 'key1'], soon)
assert store.get('key1') == b'value1' and store.check(['key0', 'key1'])
assert not store.check(['key0', 'nothing'])
try:
    store.wait(['nothing'], datetime.timedelta(milliseconds=300))
    sys.exit('it waited for nothing')
except dist.DistStoreError:
    pass
if rank == 0:
    assert store.compare_set('c', '', 'first') == b'first'
    assert store.compare_set('c', 'other', 'second') == b'first'
    assert store.compare_set('c', 'first', 'second') == b'second'
    store.append('a', 'one'); store.append('a', 'two')
    assert store.get('a') == b'onetwo'
    store.multi_set(['m1', 'm2'], ['x', 'y'])
    assert store.multi_get(['m1', 'm2']) == [b'x', b'y']
    assert store.delete_key('m1') and not store.delete_key('m1')
    assert store.num_keys() >= 5
    if hasattr(store, 'queue_push'):
        store.queue_push('q', 'item')
        assert store.queue_len('q') == 1 and store.queue_pop('q') == b'item'
    if hasattr(store, 'list_keys'):
        assert 'm2' in store.list_keys()
if hasattr(store, 'barrier'):
    store.barrier('b', 2, soon)
dist.init_process_group('gloo', store=store, rank=rank, world_size=2)
numbers = torch.full((1000,), float(rank + 1))
dist.all_reduce(numbers)
assert numbers.sum().item() == 3000
dist.barrier()
dist.destroy_process_group()
print('done', flush=True)
";

#[test]
fn pytorchs_clients_meet_in_our_store() {
    if python().is_none() {
        return;
    }
    let (_server, port) = server();
    let port = port.to_string();
    let ranks: Vec<Script> = ["0", "1"]
        .map(|rank| {
            let mut python = python().expect("it was just there");
            Script::start(python.env("GLOO_SOCKET_IFNAME", "lo"), TORCH_CALLS, &[rank, &port])
        })
        .into();
    for mut rank in ranks {
        assert_eq!(rank.line(), "done");
    }
}
