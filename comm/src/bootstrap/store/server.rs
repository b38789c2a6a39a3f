//! The store's server: one thread, one loop around one poll. It never waits for a single client.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use brigade_transports::opened;

use super::super::sys::{Watch, poll};
use super::book::{Answers, Book, Client};
use super::request::Request;
use crate::say::warn;

/// How many clients there can be; more wait in the kernel.
const CLIENTS_MAX: usize = 8192;
/// How long one may take to introduce itself.
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
/// How long nobody is let in after the system has refused one.
const PAUSE: Duration = Duration::from_millis(20);

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
        Self::start_within(listener, BOXES_BYTES_MAX)
    }

    fn start_within(listener: TcpListener, boxes_bytes_max: usize) -> io::Result<StoreServer> {
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let (mouth, ear) = UnixStream::pair()?;
        let (clients, book) = (HashMap::new(), Book::default());
        let service = Service { listener, ear, clients, next: 0, book, boxes_bytes_max };
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
    boxes_bytes_max: usize,
}

/// The connection of a client.
struct Line {
    stream: TcpStream,
    inbox: Vec<u8>,
    /// How many bytes its next request has at least.
    wanted: usize,
    outbox: Vec<u8>,
    since: Instant,
    is_known: bool,
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
            let has_room = self.clients.len() < CLIENTS_MAX;
            if has_room {
                watches.push(Watch::new(self.listener.as_fd(), false));
            }
            let strangers = self.clients.values().filter(|line| !line.is_known);
            let due = strangers.map(|line| line.since + PATIENCE).min();
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
            if has_room && happened(order.len() + 1) {
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
        let stream = match opened(|| self.listener.accept()) {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Err(_) => return std::thread::sleep(PAUSE),
        };
        // One that cannot be set up is as good as one that never came.
        if stream.set_nonblocking(true).and_then(|()| stream.set_nodelay(true)).is_ok() {
            let (inbox, outbox, since) = (Vec::new(), Vec::new(), Instant::now());
            let (wanted, is_known, is_over) = (0, false, false);
            let line = Line { stream, inbox, wanted, outbox, since, is_known, is_over };
            self.clients.insert(self.next, line);
            self.next += 1;
        }
    }

    /// Read what a client says, and do it.
    fn attend(&mut self, client: Client) {
        let Some(line) = self.clients.get_mut(&client) else { return };
        line.flush();
        line.read();
        while let Some(line) = self.clients.get_mut(&client).filter(|line| !line.is_over) {
            let mut answers = Answers::new();
            match Request::take(&mut line.inbox, &mut line.wanted) {
                Ok(None) => {
                    line.is_over |= !line.is_known && line.inbox.len() >= INTRODUCTION_BYTES;
                    line.let_go_of_room();
                    break;
                }
                Ok(Some(Request::Validate)) if !line.is_known => line.is_known = true,
                Ok(Some(request)) if line.is_known => {
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
        while all > self.boxes_bytes_max {
            let staying = self.clients.values_mut().filter(|line| !line.is_over);
            let Some(largest) = staying.max_by_key(|line| held(line)) else { return };
            largest.is_over = true;
            all -= held(largest);
        }
    }

    /// Take leave of those who have gone, and of strangers who do not introduce themselves.
    fn part(&mut self) {
        let book = &mut self.book;
        self.clients.retain(|client, line| {
            let stays = !line.is_over && (line.is_known || line.since.elapsed() < PATIENCE);
            if !stays {
                book.forget(*client);
            }
            stays
        });
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
mod tests {
    use std::net::Ipv4Addr;

    use super::super::{MAGIC, StoreClient, number};
    use super::*;

    /// The beginning of a value of 8 MiB for a key of one byte.
    fn long_value(bytes: usize) -> Vec<u8> {
        let mut said = vec![number::SET];
        said.extend(1_u64.to_le_bytes());
        said.push(b'k');
        said.extend((8_u64 << 20).to_le_bytes());
        said.resize(said.len() + bytes, 7);
        said
    }

    fn call(port: u16) -> TcpStream {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE / 2)).unwrap();
        stream
    }

    /// Whether it is hung up on, whatever else it wants to say.
    fn is_sent_away(mut stream: TcpStream) -> bool {
        match stream.read(&mut [0]) {
            Ok(count) => count == 0,
            Err(error) => !is_later(&error),
        }
    }

    #[test]
    fn who_has_not_introduced_itself_and_who_has_most_where_it_is_too_much_are_sent_away() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let server = StoreServer::start_within(listener, 1 << 20).unwrap();
        let port = server.address().port();
        let later = Instant::now() + 6 * PATIENCE;
        let mut honest = StoreClient::connect("127.0.0.1", port, later).unwrap();
        let mut stranger = call(port);
        stranger.write_all(&long_value(100)).unwrap();
        assert!(is_sent_away(stranger));
        let known = || {
            let mut stream = call(port);
            stream.write_all(&[&[number::VALIDATE][..], &MAGIC.to_le_bytes()].concat()).unwrap();
            stream
        };
        let (mut small, mut large) = (known(), known());
        small.write_all(&long_value(100 << 10)).unwrap();
        // It may be hung up on before it has said all.
        let _ = large.write_all(&long_value(4 << 20));
        assert!(is_sent_away(large));
        honest.set("key", b"value", later).unwrap();
        assert_eq!(honest.get("key", later).unwrap(), b"value");
        small.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        assert!(!is_sent_away(small), "it has not too much");
    }
}
