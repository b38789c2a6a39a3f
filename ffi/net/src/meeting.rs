//! How two ends meet: listen, connect, accept.
//!
//! The handle of a listener is a unique id of Brigade's bootstrap: addresses and a secret, in as
//! many bytes as a handle may have. The two ends join a world of two with it, hand each other
//! their cards, and open a transport with a secret of that id alone. That takes a few round trips,
//! so a thread does it, and those who call look whether it has ended. One listener is good for one
//! connection, as NCCL uses them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver as Answers, TryRecvError, sync_channel};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};

use brigade_comm::bootstrap::{ID_BYTES, Root, UniqueId, rendezvous_unless};
use brigade_comm::launch::{Launch, RootSpec};
use brigade_transports::plugin::sys::HANDLE_BYTES;
use brigade_transports::{Endpoint, Group, Port, RecvWire, SendWire, TransportError};
use sha2::{Digest, Sha256};

use crate::device::Device;
use crate::fault::{Fault, Outcome};

const _: () = assert!(ID_BYTES == HANDLE_BYTES);

/// What both say over their new wires, so that both know that they stand, and in which version.
const GREETING: [u8; 8] = *b"BRGNET 1";
/// A listener may be called any time while it is open.
const LISTENING: Duration = Duration::from_secs(24 * 60 * 60);
/// How long wires may take once both ends have met.
const WIRING: Duration = Duration::from_secs(30);
/// How long a connection that was made may wait for somebody who wants it.
const UNCLAIMED: Duration = Duration::from_secs(300);

/// Both directions between two ends. Fields are dropped in this order.
pub(crate) struct Link {
    pub(crate) sender: Box<dyn SendWire>,
    pub(crate) receiver: Box<dyn RecvWire>,
    endpoint: Box<dyn Endpoint>,
    _port: Box<dyn Port>,
    looks: u32,
}

/// How many times in vain somebody asks before it is looked whether the other end lives.
const LOOKS_IN_VAIN: u32 = 4096;

impl Link {
    /// To be called when nothing moved: now and then look for what wires in memory cannot show.
    pub(crate) fn look(&mut self) -> Outcome {
        self.looks = self.looks.wrapping_add(1);
        if self.looks.is_multiple_of(LOOKS_IN_VAIN) { Ok(self.endpoint.check()?) } else { Ok(()) }
    }
}

/// A thread's answer, on its way. Once this is dropped the thread meets nobody any more.
struct Answer {
    link: Answers<Outcome<Link>>,
    called_off: Arc<AtomicBool>,
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.called_off.store(true, Ordering::Release);
    }
}

/// Awaits one caller.
pub(crate) struct Listener {
    answer: Answer,
    /// What callers find.
    _root: Root,
}

impl Listener {
    /// Listen; the handle for whoever is to call.
    pub(crate) fn open(device: &'static Device) -> Outcome<([u8; HANDLE_BYTES], Listener)> {
        let drawn = UniqueId::create_for(&device.settings);
        let (id, root) = drawn.map_err(|error| Fault::system(error.to_string()))?;
        let handle = id.to_bytes();
        let answer = start(device, id, 0, LISTENING)?;
        Ok((handle, Listener { answer, _root: root }))
    }

    /// The connection, once it stands.
    pub(crate) fn accept(&mut self) -> Outcome<Option<Link>> {
        poll(&self.answer)
    }
}

/// Calls on their way, by handle: NCCL asks again with the same one until it has its connection.
static CALLS: LazyLock<Mutex<HashMap<[u8; HANDLE_BYTES], Call>>> = LazyLock::new(Mutex::default);

struct Call {
    answer: Answer,
    since: Instant,
}

/// Call the listener that a handle leads to; the connection, once it stands.
pub(crate) fn connect(
    device: &'static Device,
    handle: &[u8; HANDLE_BYTES],
) -> Outcome<Option<Link>> {
    let mut calls = CALLS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(call) = calls.get(handle) {
        let polled = poll(&call.answer);
        if !matches!(polled, Ok(None)) {
            calls.remove(handle);
        }
        return polled;
    }
    let id = UniqueId::from_bytes(*handle)
        .map_err(|error| Fault::argument(format!("the handle is none of ours: {error}")))?;
    calls.retain(|_, call| call.since.elapsed() < UNCLAIMED);
    let answer = start(device, id, 1, device.settings.join_timeout)?;
    calls.insert(*handle, Call { answer, since: Instant::now() });
    Ok(None)
}

fn poll(answer: &Answer) -> Outcome<Option<Link>> {
    match answer.link.try_recv() {
        Ok(link) => link.map(Some),
        Err(TryRecvError::Empty) => Ok(None),
        Err(TryRecvError::Disconnected) => {
            Err(Fault::usage("this listener has had its caller: listen once for each"))
        }
    }
}

/// Have a thread meet the other end.
fn start(
    device: &'static Device,
    id: UniqueId,
    rank: usize,
    patience: Duration,
) -> Outcome<Answer> {
    let (tell, link) = sync_channel(1);
    let called_off = Arc::new(AtomicBool::new(false));
    let answer = Answer { link, called_off: Arc::clone(&called_off) };
    let meet = move || {
        // Nobody may want to know any more; then the connection ends with the channel.
        let _ = tell.send(meet(device, &id, rank, (Instant::now() + patience, called_off)));
    };
    let spawned = Builder::new().name("brigade-meet".into()).spawn(meet);
    spawned.map_err(|error| Fault::system(format!("no thread can be started: {error}")))?;
    Ok(answer)
}

fn meet(
    device: &Device,
    id: &UniqueId,
    rank: usize,
    (deadline, called_off): (Instant, Arc<AtomicBool>),
) -> Outcome<Link> {
    let (transport, encrypt) = (&*device.transport, device.settings.encrypt);
    let secret: [u8; 32] = Sha256::digest([&b"brigade net "[..], &id.to_bytes()].concat()).into();
    let port = transport.open(secret)?;
    let root = RootSpec::Id(id.clone());
    let launch = Launch { rank, ranks: 2, local_rank: None, root };
    let joined = rendezvous_unless(&launch, port.card(), deadline, encrypt, called_off)
        .map_err(|error| Fault::system(error.to_string()))?;
    let [first, second] = &joined.cards[..] else { unreachable!("a world of two") };
    let other = 1 - rank;
    if !port.reaches(&joined.cards[other]) {
        let name = transport.name();
        return Err(Fault::system(format!("the other end cannot be reached over {name}")));
    }
    let deadline = Instant::now() + WIRING;
    let cards = [Some(&first[..]), Some(&second[..])];
    let mut endpoint = port.join(&Group { id: 1, me: rank, cards: &cards, deadline })?;
    let mut sender = endpoint.sender(other, deadline)?;
    let mut receiver = endpoint.receiver(other)?;
    greet(&mut *endpoint, &mut *sender, &mut *receiver, deadline)?;
    Ok(Link { sender, receiver, endpoint, _port: port, looks: 0 })
}

/// Exchange greetings, sleeping in between.
fn greet(
    endpoint: &mut dyn Endpoint,
    sender: &mut dyn SendWire,
    receiver: &mut dyn RecvWire,
    deadline: Instant,
) -> Outcome {
    let (mut sent, mut got) = (0, 0);
    let mut theirs = [0; GREETING.len()];
    loop {
        endpoint.doorbell().arm();
        let before = sent + got;
        sent += sender.push(&GREETING[sent..])?;
        got += receiver.pull_into(&mut theirs[got..])?;
        if sent == GREETING.len() && got == theirs.len() {
            endpoint.doorbell().disarm();
            break;
        }
        if Instant::now() >= deadline {
            let waited_ms = WIRING.as_millis() as u64;
            return Err(TransportError::Timeout { what: "a greeting".into(), waited_ms }.into());
        }
        if sent + got == before {
            endpoint.doorbell().wait(Duration::from_millis(100))?;
            endpoint.check()?;
        }
    }
    if theirs != GREETING {
        return Err(Fault::remote("the other end speaks another version of the plugin"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device;

    /// How many threads are still about to meet somebody.
    fn meeting() -> usize {
        let threads = std::fs::read_dir("/proc/self/task").expect("the threads of this process");
        let name = |thread: std::fs::DirEntry| std::fs::read_to_string(thread.path().join("comm"));
        let names = threads.filter_map(|thread| name(thread.ok()?).ok());
        names.filter(|name| name.trim() == "brigade-meet").count()
    }

    #[test]
    fn a_listener_that_is_closed_at_once_leaves_no_thread_behind() {
        let Ok(device) = device::of(0) else { return println!("skipped: no transport") };
        for pause_ms in [0, 0, 0, 0, 20, 100] {
            let (_, listener) = Listener::open(device).unwrap_or_else(|_| panic!("it listens"));
            std::thread::sleep(Duration::from_millis(pause_ms));
            drop(listener);
        }
        let until = Instant::now() + Duration::from_secs(20);
        while meeting() > 0 {
            assert!(Instant::now() < until, "{} threads wait for callers", meeting());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
