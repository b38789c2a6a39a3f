//! The store's server: one thread, one loop around one poll. It never waits for a single client.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use brigade_transports::opened;

use super::super::sys::{Watch, poll};
use super::book::{Answers, Book, Client};
use super::request::{Begun, Request};
use crate::say::warn;

/// How many clients there can be; more wait in the kernel. Ranks may have nothing to say for hours:
/// who goes where there are too many are those who have never asked for anything.
const CLIENTS_MAX: usize = 8192;
/// How long one may take to introduce itself, and how long one that has asked for nothing yet stays
/// whoever waits.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a request may be, and how much a client may have asked for without reading it.
const BOX_BYTES_MAX: usize = 64 << 20;
/// What one says to introduce itself has so many bytes: whoever says more and has not, is a
/// stranger.
const INTRODUCTION_BYTES: usize = 5;
/// How much all clients together may have said that is no whole request yet, and have asked for
/// without reading it. Beyond that whoever has most goes.
const BOXES_BYTES_MAX: usize = 2 << 30;
/// How much is read of a client at a time.
const READ_BYTES: usize = 64 << 10;
/// How long nobody is let in after one could not be, unless another goes.
const PAUSE: Duration = Duration::from_millis(100);

/// What a server bears.
#[derive(Clone, Copy)]
struct Bounds {
    clients: usize,
    boxes_bytes: usize,
    patience: Duration,
}

const BOUNDS: Bounds =
    Bounds { clients: CLIENTS_MAX, boxes_bytes: BOXES_BYTES_MAX, patience: PATIENCE };

/// A store at work. Dropping it ends it, and hangs up on its clients.
#[derive(Debug)]
pub struct StoreServer {
    address: SocketAddr,
    mouth: UnixStream,
    thread: Option<JoinHandle<()>>,
}

impl StoreServer {
    /// Serve at a listener, in a thread of its own. Whoever reaches it can read and write all of
    /// the store: choose its address accordingly.
    ///
    /// # Errors
    ///
    /// What the system refused.
    pub fn start(listener: TcpListener) -> io::Result<StoreServer> {
        Self::start_within(listener, BOUNDS)
    }

    fn start_within(listener: TcpListener, bounds: Bounds) -> io::Result<StoreServer> {
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let (mouth, ear) = UnixStream::pair()?;
        let (clients, book) = (HashMap::new(), Book::default());
        let (next, rest_until, has_told) = (0, None, false);
        let service = Service { listener, ear, clients, next, book, bounds, rest_until, has_told };
        let thread = Builder::new().name("brigade-store".into()).spawn(move || service.run())?;
        Ok(StoreServer { address, mouth, thread: Some(thread) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for StoreServer {
    fn drop(&mut self) {
        // The other end sees that this one is closed, whatever fits into it.
        let _ = self.mouth.shutdown(std::net::Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has printed why, and a destructor must not.
            let _ended = thread.join();
        }
    }
}

struct Service {
    listener: TcpListener,
    ear: UnixStream,
    clients: HashMap<Client, Line>,
    next: Client,
    book: Book,
    bounds: Bounds,
    /// Until when nobody is let in.
    rest_until: Option<Instant>,
    /// Whether it was told that there is no room.
    has_told: bool,
}

/// The connection of a client.
struct Line {
    stream: TcpStream,
    host: IpAddr,
    inbox: Vec<u8>,
    /// What is known of its next request.
    begun: Begun,
    outbox: Vec<u8>,
    since: Instant,
    is_known: bool,
    /// Whether it has asked for something.
    has_asked: bool,
    is_over: bool,
}

impl Service {
    fn run(mut self) {
        loop {
            let order: Vec<Client> = self.clients.keys().copied().collect();
            let mut watches = vec![Watch::new(self.ear.as_fd(), false)];
            watches.extend(order.iter().map(|client| {
                let line = &self.clients[client];
                Watch::new(line.stream.as_fd(), !line.outbox.is_empty())
            }));
            self.rest_until.take_if(|until| *until <= Instant::now());
            let takes_calls = self.rest_until.is_none();
            if takes_calls {
                watches.push(Watch::new(self.listener.as_fd(), false));
            }
            let strangers = self.clients.values().filter(|line| !line.is_known);
            let due = strangers.map(|line| line.since + self.bounds.patience);
            let due = due.chain(self.rest_until).min();
            let nap = due.map(|due| due.saturating_duration_since(Instant::now()));
            if let Err(error) = poll(&mut watches, nap) {
                let why = "ends, as it cannot wait for its clients any longer: poll";
                return warn(&format!("the store {}{why}: {error}", self.place()));
            }
            if watches[0].happened() {
                return;
            }
            let happened = |at: usize| watches[at].happened();
            for (_, client) in order.iter().enumerate().filter(|(at, _)| happened(at + 1)) {
                self.attend(*client);
            }
            if takes_calls && happened(order.len() + 1) {
                self.admit();
            }
            self.bound_boxes();
            self.part();
        }
    }

    /// Where it listens, in words that others follow.
    fn place(&self) -> String {
        self.listener.local_addr().map_or(String::new(), |address| format!("at {address} "))
    }

    /// Let one client in.
    fn admit(&mut self) {
        if self.clients.len() >= self.bounds.clients && !self.make_room() {
            return self.rest("which is as many as there can be");
        }
        let (stream, host) = match opened(|| self.listener.accept()) {
            Ok((stream, address)) => (stream, address.ip()),
            Err(error) if is_later(&error) => return,
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => return,
            Err(error) => {
                self.make_room();
                return self.rest(&format!("and the system refuses one more: {error}"));
            }
        };
        // One that cannot be set up is as good as one that never came.
        if stream.set_nonblocking(true).and_then(|()| stream.set_nodelay(true)).is_ok() {
            let (inbox, outbox, since) = (Vec::new(), Vec::new(), Instant::now());
            let (begun, is_known, has_asked, is_over) = (Begun::default(), false, false, false);
            let line =
                Line { stream, host, inbox, begun, outbox, since, is_known, has_asked, is_over };
            self.clients.insert(self.next, line);
            self.next += 1;
        }
    }

    /// Take leave of one who has asked for nothing for so long that others count more; of a
    /// stranger, if there is one. Whether anybody goes.
    fn make_room(&mut self) -> bool {
        let patience = self.bounds.patience;
        let is_idle = |line: &&mut Line| !line.is_over && !line.has_asked;
        let idle = self.clients.values_mut().filter(is_idle);
        let idle = idle.filter(|line| !line.is_known || line.since.elapsed() >= patience);
        let Some(line) = idle.min_by_key(|line| (line.is_known, line.since)) else { return false };
        line.is_over = true;
        true
    }

    /// Who calls now waits. People hear of it once, and from where most clients are.
    fn rest(&mut self, why: &str) {
        self.rest_until = Some(Instant::now() + PAUSE);
        if std::mem::replace(&mut self.has_told, true) {
            return;
        }
        let mut hosts = HashMap::<IpAddr, usize>::new();
        self.clients.values().for_each(|line| *hosts.entry(line.host).or_default() += 1);
        let most = hosts.iter().max_by_key(|(_, clients)| **clients);
        let most = most.map(|(host, clients)| format!(" ({clients} of them from {host})"));
        let (place, clients) = (self.place(), self.clients.len());
        let most = most.unwrap_or_default();
        let next = "who calls now waits until another goes";
        warn(&format!("the store {place}has {clients} clients{most}, {why}: {next}"));
    }

    /// Read what a client says, and do it.
    fn attend(&mut self, client: Client) {
        let Some(line) = self.clients.get_mut(&client) else { return };
        line.flush();
        line.read();
        while let Some(line) = self.clients.get_mut(&client).filter(|line| !line.is_over) {
            let mut answers = Answers::new();
            match Request::take(&mut line.inbox, &mut line.begun) {
                Ok(None) => {
                    line.is_over |= !line.is_known && line.inbox.len() >= INTRODUCTION_BYTES;
                    line.let_go_of_room();
                    break;
                }
                Ok(Some(Request::Validate)) if !line.is_known => line.is_known = true,
                Ok(Some(request)) if line.is_known => {
                    line.has_asked |= !matches!(request, Request::Validate | Request::Ping(_));
                    if let Err(why) = self.book.serve(client, request, &mut answers) {
                        tracing::debug!(client, why, "a client of the store is sent away");
                        line.is_over = true;
                    }
                }
                Ok(Some(_)) | Err(_) => line.is_over = true,
            }
            for (client, answer) in answers {
                if let Some(line) = self.clients.get_mut(&client) {
                    line.outbox.extend(answer);
                    line.flush();
                    line.let_go_of_room();
                }
            }
        }
    }

    /// Take leave of those who have most, while all together have more than they may.
    fn bound_boxes(&mut self) {
        let held = |line: &Line| line.inbox.capacity() + line.outbox.capacity();
        let staying = self.clients.values().filter(|line| !line.is_over);
        let mut all: usize = staying.map(held).sum();
        while all > self.bounds.boxes_bytes {
            let staying = self.clients.values_mut().filter(|line| !line.is_over);
            let Some(largest) = staying.max_by_key(|line| held(line)) else { return };
            largest.is_over = true;
            all -= held(largest);
        }
    }

    /// Take leave of those who have gone, and of strangers who do not introduce themselves.
    fn part(&mut self) {
        let (book, patience, before) = (&mut self.book, self.bounds.patience, self.clients.len());
        self.clients.retain(|client, line| {
            let stays = !line.is_over && (line.is_known || line.since.elapsed() < patience);
            if !stays {
                book.forget(*client);
            }
            stays
        });
        if self.clients.len() < before {
            self.rest_until = None;
        }
    }
}

impl Line {
    /// Who has had much to say may have nothing more for hours.
    fn let_go_of_room(&mut self) {
        for room in [&mut self.inbox, &mut self.outbox] {
            if room.is_empty() && room.capacity() > READ_BYTES {
                *room = Vec::new();
            }
        }
    }

    fn read(&mut self) {
        let mut bytes = [0; READ_BYTES];
        match self.stream.read(&mut bytes) {
            Ok(0) => self.is_over = true,
            Ok(count) => {
                self.inbox.extend(&bytes[..count]);
                self.is_over |= self.inbox.len() > BOX_BYTES_MAX;
            }
            Err(error) if is_later(&error) => {}
            Err(_) => self.is_over = true,
        }
    }

    fn flush(&mut self) {
        while !self.outbox.is_empty() {
            match self.stream.write(&self.outbox) {
                Ok(count) => drop(self.outbox.drain(..count)),
                Err(error) if is_later(&error) => {
                    self.is_over |= self.outbox.len() > BOX_BYTES_MAX;
                    return;
                }
                Err(_) => {
                    self.is_over = true;
                    return;
                }
            }
        }
    }
}

fn is_later(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests;
