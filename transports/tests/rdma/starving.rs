//! A peer made of bare verbs, that posts hardly any receives: what no honest one does.

use std::net::Ipv4Addr;
use std::sync::mpsc;
use std::time::Instant;

use brigade_transports::rdma::Settings;
use brigade_transports::tcp::{self, Tcp};
use brigade_transports::{Group, Port, RecvWire, Transport};
use brigade_verbs::{
    Access, CompletionQueue, Device, Gid, Limits, Memory, MemoryRegion, Path, ProtectionDomain,
    QueuePair,
};

use crate::fabric::Fabric;
use crate::world::{LIMIT, PATIENCE, SECRET, contents, impatient, join, open};

/// How many receives it posts.
const RECEIVES: u32 = 2;
const DEVICE: &str = "rxe1";
const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
/// Of a card: what comes before its addresses, and each of them.
const CARD_HEADER_BYTES: usize = 6;
const CARD_ROW_BYTES: usize = 22;
/// Of a frame.
const FRAME_HEADER_BYTES: usize = 3;

/// The peer before it has joined.
struct Miser {
    tcp: Box<dyn Port>,
}

impl Miser {
    fn new() -> Miser {
        let settings = tcp::Settings { sockets_per_peer: 1, ..tcp::Settings::default() };
        Miser { tcp: Tcp::new(settings).open(SECRET).expect("a port") }
    }

    fn card(&self) -> Vec<u8> {
        let mut card = b"BRD2\x01\x01".to_vec();
        card.extend([0, 2, 5, 24, 0, 0]);
        card.extend(ADDRESS.to_ipv6_mapped().octets());
        card.extend(self.tcp.card());
        card
    }

    /// Take a wire from member 0 and let it run dry; until `end` hangs up.
    fn run(&self, theirs: &[u8], end: mpsc::Receiver<()>) {
        let addresses = usize::from(theirs[CARD_HEADER_BYTES - 1]) * CARD_ROW_BYTES;
        let (inner, own) = (&theirs[CARD_HEADER_BYTES + addresses..], self.tcp.card());
        let cards = [Some(inner), Some(&own[..])];
        let deadline = Instant::now() + LIMIT;
        let group = Group { id: 1, me: 1, cards: &cards, deadline };
        let mut endpoint = self.tcp.join(&group).expect("join");
        let mut from = endpoint.receiver(0).expect("a wire");
        let offer = hear(&mut *from);
        let ring_bytes = u32_at(&offer, 0) as usize;
        let row = usize::from(offer[4]) * CARD_ROW_BYTES + CARD_HEADER_BYTES;
        let gid = theirs[row + 6..row + CARD_ROW_BYTES].try_into().expect("a GID");

        let device = Device::open_all().expect("devices").into_iter();
        let device = device.clone().find(|it| it.name() == DEVICE).expect("the first cable");
        let state = device.ports().expect("ports")[0];
        let own_gid = Gid(ADDRESS.to_ipv6_mapped().octets());
        let row = device.gids(1, state.gids).into_iter().find(|row| row.gid == own_gid);
        let domain = ProtectionDomain::new(&device).expect("a domain");
        let queue = CompletionQueue::new(&device, 64, None).expect("a queue");
        let access = Access::Write;
        let limits = Limits { sends: 1, receives: RECEIVES, inline_bytes: 0, access };
        let pair = QueuePair::new(&domain, 1, &queue, &queue, limits).expect("a queue pair");
        for _ in 0..RECEIVES {
            pair.post_receive(0).expect("room for a receive");
        }
        let path = Path {
            port: 1,
            gid_index: row.map(|row| row.index),
            mtu: state.mtu,
            gid: Gid(gid),
            lid: 0,
            number: u32_at(&offer, 6),
            our_start: 0,
            their_start: u32_at(&offer, 10),
            timeout: 14,
            retries: 6,
            receiver_retries: 6,
            service_level: 0,
            traffic_class: 0,
            reads: 1,
        };
        pair.connect(&path).expect("connect");
        let ring = Memory::zeroed(ring_bytes);
        let region = MemoryRegion::new(&domain, &ring, Access::Write).expect("a region");
        let mut body = region.address().to_le_bytes().to_vec();
        body.extend(pair.number().to_le_bytes());
        body.extend([0, 0, 0, 0, state.mtu]);
        body.extend(region.remote_key().to_le_bytes());
        let mut to = endpoint.sender(0, deadline).expect("a wire");
        let mut frame = vec![2];
        frame.extend((body.len() as u16).to_le_bytes());
        frame.extend(body);
        assert_eq!(to.push(&frame), Ok(frame.len()));
        // It hangs up in the end.
        let _ended = end.recv_timeout(LIMIT);
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

/// The body of the first frame that member 0 sends.
fn hear(wire: &mut dyn RecvWire) -> Vec<u8> {
    let started = Instant::now();
    let mut pull = |bytes: usize| {
        let (mut target, mut at) = (vec![0; bytes], 0);
        while at < bytes {
            at += wire.pull_into(&mut target[at..]).expect("member 0 speaks");
            assert!(started.elapsed() < LIMIT, "member 0 says nothing");
        }
        target
    };
    let header = pull(FRAME_HEADER_BYTES);
    pull(usize::from(u16::from_le_bytes([header[1], header[2]])))
}

#[test]
fn a_receiver_that_posts_no_receives_is_named() {
    let Some(_fabric) = Fabric::take() else { return };
    let settings = Settings { receiver_retries: 2, ..impatient(Some("rxe0"), PATIENCE) };
    let (port, miser) = (open(&settings), Miser::new());
    let cards = [port.card(), miser.card()];
    let (ending, end) = mpsc::channel();
    let (error, waited) = std::thread::scope(|scope| {
        let (miser, theirs) = (&miser, &cards[0]);
        scope.spawn(move || miser.run(theirs, end));
        let _ending = ending;
        let mut endpoint = join(&*port, 0, &cards);
        let mut sender = endpoint.sender(1, Instant::now() + LIMIT).expect("a wire");
        let started = Instant::now();
        loop {
            assert!(started.elapsed() < LIMIT, "it hangs");
            if let Err(error) = sender.push(&contents(1, 0, 1000)) {
                break (error.to_string(), started.elapsed());
            }
        }
    });
    println!("after {waited:?}: {error}");
    for word in ["receiver not ready", "no receive posted", "rxe0", "::ffff:10.77.0.2"] {
        assert!(error.contains(word), "{word} in: {error}");
    }
}
