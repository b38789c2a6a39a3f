//! A rank in a process of its own: this test binary, started again with a part to play.
//!
//! The parent speaks to it by lines: it hears `card HEX`, says `cards HEX HEX`, and then hears what
//! the part has to tell. Lines of the test harness itself are told apart by the mark `> `.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use brigade_transports::tcp::{Settings, Tcp};
use brigade_transports::{Endpoint, Group, RecvWire, SendWire, Transport, TransportError};

const ROLE: &str = "BRIGADE_TEST_TCP_ROLE";
const LIMIT: Duration = Duration::from_secs(30);

/// A running rank; killed when dropped.
pub(crate) struct Rank {
    child: Child,
    stdin: ChildStdin,
    lines: Receiver<String>,
}

impl Rank {
    /// Start rank `me`, playing `part`, by way of `wrapper` (such as `ip netns exec NAME`).
    pub(crate) fn start(wrapper: &[&str], me: usize, part: &str, interface: &str) -> Rank {
        let binary = std::env::current_exe().unwrap();
        let mut words: Vec<&std::ffi::OsStr> = wrapper.iter().map(|word| word.as_ref()).collect();
        words.push(binary.as_os_str());
        let mut child = Command::new(words[0])
            .args(&words[1..])
            .args(["--exact", "rank::play_a_part", "--nocapture", "--test-threads=1"])
            .env(ROLE, format!("{me} {part} {interface}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (tell, lines) = channel();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if let Some((_, line)) = line.split_once("> ")
                    && tell.send(line.to_string()).is_err()
                {
                    return;
                }
            }
        });
        let stdin = child.stdin.take().unwrap();
        Rank { child, stdin, lines }
    }

    /// The rest of the next line that starts with `word`.
    pub(crate) fn hear(&self, word: &str) -> String {
        let deadline = Instant::now() + LIMIT;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let line = self.lines.recv_timeout(left).unwrap_or_else(|_| panic!("no `{word}`"));
            if let Some(rest) = line.strip_prefix(word) {
                return rest.trim().into();
            }
        }
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.stdin, "{line}").unwrap();
    }

    /// What the kernel does when it kills.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Tell all ranks all cards.
pub(crate) fn introduce(ranks: &mut [Rank]) {
    let cards: Vec<String> = ranks.iter().map(|rank| rank.hear("card")).collect();
    let line = format!("cards {}", cards.join(" "));
    for rank in ranks {
        rank.tell(&line);
    }
}

fn say(line: &str) {
    // Not `println!`, which the test harness may keep to itself.
    let mut out = std::io::stdout().lock();
    writeln!(out, "\n> {line}").unwrap();
    out.flush().unwrap();
}

fn unhex(text: &str) -> Vec<u8> {
    let digits = text.as_bytes().chunks(2);
    let byte = |pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.map(byte).collect()
}

/// The child's side. Without a role this is an empty test.
#[test]
fn play_a_part() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let mut words = role.splitn(3, ' ');
    let mut word = || words.next().unwrap().to_string();
    let (me, part, interface) = (word().parse::<usize>().unwrap(), word(), word());
    let silence = Duration::from_secs(3);
    let interface = Some(interface).filter(|text| !text.is_empty());
    let tcp = Tcp::new(Settings { silence, interface, ..Settings::default() });
    let port = tcp.open([3; 32]).unwrap();
    say(&format!(
        "card {}",
        port.card().iter().map(|byte| format!("{byte:02x}")).collect::<String>()
    ));
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    let cards: Vec<Vec<u8>> = line.split_whitespace().skip(1).map(unhex).collect();
    let cards: Vec<Option<&[u8]>> = cards.iter().map(|card| Some(&card[..])).collect();
    let deadline = Instant::now() + LIMIT;
    let mut endpoint = port.join(&Group { id: 5, me, cards: &cards, deadline }).unwrap();
    let mut sender = endpoint.sender(1 - me, deadline).unwrap();
    let mut receiver = endpoint.receiver(1 - me).unwrap();
    let route = tcp.routes().pop();
    say(&route.map_or("route none".into(), |route| {
        format!("route {} {} {}", route.address.ip(), route.sockets, route.host)
    }));
    match part.as_str() {
        "exchange" => exchange(&mut *endpoint, &mut *sender, &mut *receiver),
        "pour" => until_gone(&mut *endpoint, Some(&mut *sender), &mut *receiver),
        "idle" => {
            swap(&mut *endpoint, &mut *sender, &mut *receiver, &[1; 64], &mut [0; 64]);
            say("linked");
            until_gone(&mut *endpoint, None, &mut *receiver);
        }
        other => panic!("no part called {other}"),
    }
}

/// Send and receive at once, sleeping in between.
fn swap(
    endpoint: &mut dyn Endpoint,
    sender: &mut dyn SendWire,
    receiver: &mut dyn RecvWire,
    out: &[u8],
    back: &mut [u8],
) {
    let (mut sent, mut got) = (0, 0);
    while sent < out.len() || got < back.len() {
        endpoint.doorbell().arm();
        let before = sent + got;
        sent += sender.push(&out[sent..]).unwrap();
        got += receiver.pull_into(&mut back[got..]).unwrap();
        if sent + got == before {
            endpoint.doorbell().wait(Duration::from_secs(1)).unwrap();
        }
    }
}

/// How much the wire takes unread, then the same bytes both ways.
fn exchange(endpoint: &mut dyn Endpoint, sender: &mut dyn SendWire, receiver: &mut dyn RecvWire) {
    let out: Vec<u8> = (0..8 << 20).map(|at: u32| (at % 251) as u8).collect();
    let mut taken = 0;
    let mut full: Option<Instant> = None;
    let is_brief = |since: Instant| since.elapsed() < Duration::from_millis(300);
    while full.is_none_or(is_brief) && taken < out.len() {
        let took = sender.push(&out[taken..(taken + 4096).min(out.len())]).unwrap();
        taken += took;
        if took > 0 {
            full = None;
        } else {
            full.get_or_insert_with(Instant::now);
        }
    }
    // What the kernel's buffers hold at least, before it adapts them.
    assert!(taken >= 128 << 10, "took {taken} bytes");
    let mut back = vec![0; out.len()];
    swap(endpoint, sender, receiver, &out[taken..], &mut back);
    assert!(back == out);
    // Leave together: nobody leaves bytes unread.
    swap(endpoint, sender, receiver, &[1], &mut [0]);
    say("done");
}

/// Look at the wires until one says that the peer is gone, and tell when that was.
fn until_gone(
    endpoint: &mut dyn Endpoint,
    mut sender: Option<&mut dyn SendWire>,
    receiver: &mut dyn RecvWire,
) {
    let block = vec![0; 100_000];
    let mut target = vec![0; 100_000];
    say("pouring");
    loop {
        endpoint.doorbell().arm();
        let pushed = sender.as_mut().map_or(Ok(0), |sender| sender.push(&block));
        let outcome = pushed.and_then(|pushed| Ok(pushed + receiver.pull_into(&mut target)?));
        match outcome {
            Ok(0) => endpoint.doorbell().wait(Duration::from_secs(1)).unwrap(),
            Ok(_) => endpoint.doorbell().disarm(),
            Err(TransportError::PeerGone { peer, how }) => {
                say(&format!("gone {peer} {how}"));
                return;
            }
            Err(other) => panic!("{other}"),
        }
        endpoint.check().unwrap();
    }
}
