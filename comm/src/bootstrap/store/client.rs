//! A client of the store. What the server says is read as hostile.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use brigade_transports::opened;
use thiserror::Error;

use super::super::names::{Lookup, at_port};
use super::{GO_ON, KEY_PREFIX, MAGIC, number, write_text};
use crate::bootstrap::vigil::{Outlook, Vigil};

/// How long one address may take to connect, when others could be tried.
const CONNECT: Duration = Duration::from_secs(2);
/// How long one that takes calls may leave us without an answer before it is called anew: at first,
/// and at most.
const INTRODUCTION: Duration = Duration::from_secs(2);
const INTRODUCTION_MAX: Duration = Duration::from_secs(60);
/// How often a server that is not up yet is tried.
const RETRY: Duration = Duration::from_millis(50);
/// The shortest wait; none at all would be one without an end.
const LOOK_MIN: Duration = Duration::from_millis(1);
/// Longer values are not ours.
const VALUE_BYTES_MAX: u64 = 1 << 20;

/// A connection with a store.
#[derive(Debug)]
pub struct StoreClient {
    stream: TcpStream,
    place: String,
}

/// Why a store cannot be used.
#[derive(Debug, Error)]
#[error("the store at {place} {why}")]
pub struct StoreError {
    place: String,
    why: String,
}

impl StoreClient {
    /// Connect, again and again until the deadline: the server may come later, and somebody else
    /// who is about to end may have its port until then.
    ///
    /// # Errors
    ///
    /// Nobody answers like a store.
    pub fn connect(host: &str, port: u16, deadline: Instant) -> Result<StoreClient, StoreError> {
        Self::connect_watched(host, port, &mut Vigil::silent(deadline))
    }

    /// Like [`StoreClient::connect`], and a wait that is long is told of.
    pub(in crate::bootstrap) fn connect_watched(
        host: &str,
        port: u16,
        vigil: &mut Vigil,
    ) -> Result<StoreClient, StoreError> {
        let place = format!("{host}:{port}");
        let deadline = vigil.deadline();
        let (mut names, mut introduction) = (Lookup::default(), INTRODUCTION);
        loop {
            match Self::attempt((host, port), &mut names, vigil) {
                Ok(stream) => {
                    let mut client = StoreClient { stream, place: place.clone() };
                    let until = deadline.min(Instant::now() + introduction);
                    // One that has many to answer needs more.
                    introduction = (2 * introduction).min(INTRODUCTION_MAX);
                    match client.introduce(until) {
                        Ok(true) => return Ok(client),
                        Ok(false) => return Err(client.error("is none: it answers something else")),
                        Err(gone) if Instant::now() + RETRY >= deadline => return Err(gone),
                        Err(gone) => vigil.look(Outlook::Open, || gone.to_string()),
                    }
                }
                Err((error, _)) if Instant::now() + RETRY >= deadline => {
                    let why = format!("cannot be reached: {error}");
                    return Err(StoreError { place, why });
                }
                Err((error, outlook)) => {
                    vigil.look(outlook, || format!("the store at {place} (at last: {error})"));
                }
            }
            std::thread::sleep(RETRY);
        }
    }

    fn attempt(
        (host, port): (&str, u16),
        names: &mut Lookup,
        vigil: &Vigil,
    ) -> Result<TcpStream, (io::Error, Outlook)> {
        let open = |error| (error, Outlook::Open);
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        let unknown = |error| {
            let outlook = Outlook::of_name(&error);
            (error, outlook)
        };
        for host in names.find(host, vigil.rest_until()).map_err(unknown)? {
            let address = at_port(host, port);
            let left = vigil.deadline().saturating_duration_since(Instant::now());
            let connect = || TcpStream::connect_timeout(&address, left.clamp(RETRY, CONNECT));
            match opened(connect) {
                // With nobody listening on an ephemeral port, TCP may connect us to ourselves.
                Ok(stream) if stream.local_addr().is_ok_and(|local| local == address) => {}
                Ok(stream) => {
                    stream.set_nodelay(true).map_err(open)?;
                    return Ok(stream);
                }
                Err(error) => last = error,
            }
        }
        Err(open(last))
    }

    /// Say who we are, and have it answered once; whether it is a store and not only a listener.
    fn introduce(&mut self, deadline: Instant) -> Result<bool, StoreError> {
        let nonce: u32 = 0x4252_4744;
        let mut words = vec![number::VALIDATE];
        words.extend(MAGIC.to_le_bytes());
        words.push(number::PING);
        words.extend(nonce.to_le_bytes());
        self.say(&words, deadline)?;
        Ok(u32::from_le_bytes(self.hear(deadline)?) == nonce)
    }

    /// Store a value.
    ///
    /// # Errors
    ///
    /// The store has gone.
    pub fn set(&mut self, key: &str, value: &[u8], deadline: Instant) -> Result<(), StoreError> {
        let mut words = asked(number::SET, key);
        write_text(&mut words, value);
        // A request without an answer; the one behind it shows that it was done.
        words.push(number::CHECK);
        words.extend(1_u64.to_le_bytes());
        write_text(&mut words, full(key).as_bytes());
        self.say(&words, deadline)?;
        self.hear::<1>(deadline).map(drop)
    }

    /// A value, waiting for it until the deadline.
    ///
    /// # Errors
    ///
    /// It does not come, or the store has gone.
    pub fn get(&mut self, key: &str, deadline: Instant) -> Result<Vec<u8>, StoreError> {
        self.get_watched(key, &mut Vigil::silent(deadline))
    }

    /// Like [`StoreClient::get`] of what rank 0 brings, and a wait that is long is told of.
    pub(in crate::bootstrap) fn get_watched(
        &mut self,
        key: &str,
        vigil: &mut Vigil,
    ) -> Result<Vec<u8>, StoreError> {
        let deadline = vigil.deadline();
        let mut words = vec![number::WAIT];
        words.extend(1_u64.to_le_bytes());
        write_text(&mut words, full(key).as_bytes());
        self.say(&words, deadline)?;
        while !self.has_heard(vigil.rest_until())? {
            if Instant::now() >= deadline {
                return Err(self.error(&format!("has got nothing for {key} in time")));
            }
            vigil.look(Outlook::Open, || format!("rank 0 at the store at {}", self.place));
        }
        if self.hear(deadline)? != [GO_ON] {
            return Err(self.error("is none: it answers something else"));
        }
        self.say(&asked(number::GET, key), deadline)?;
        let bytes = u64::from_le_bytes(self.hear(deadline)?);
        if bytes > VALUE_BYTES_MAX {
            return Err(self.error("has something else there: it is too long"));
        }
        let mut value = vec![0; bytes as usize];
        self.fill(&mut value, deadline)?;
        Ok(value)
    }

    /// Add to a number, which begins at 0; the sum.
    ///
    /// # Errors
    ///
    /// It is no number, or the store has gone.
    pub fn add(&mut self, key: &str, amount: i64, deadline: Instant) -> Result<i64, StoreError> {
        let mut words = asked(number::ADD, key);
        words.extend(amount.to_le_bytes());
        self.say(&words, deadline)?;
        self.hear(deadline).map(i64::from_le_bytes)
    }

    /// Remove a value; whether it was there.
    ///
    /// # Errors
    ///
    /// The store has gone.
    pub fn delete(&mut self, key: &str, deadline: Instant) -> Result<bool, StoreError> {
        self.say(&asked(number::DELETE, key), deadline)?;
        self.hear(deadline).map(|count| i64::from_le_bytes(count) == 1)
    }

    fn say(&mut self, words: &[u8], deadline: Instant) -> Result<(), StoreError> {
        let left = self.left(deadline)?;
        let said =
            self.stream.set_write_timeout(Some(left)).and_then(|()| self.stream.write_all(words));
        said.map_err(|error| self.gone(&error))
    }

    /// Whether something has come, waiting for it until then. The end of the store counts.
    fn has_heard(&self, until: Instant) -> Result<bool, StoreError> {
        let left = until.saturating_duration_since(Instant::now()).max(LOOK_MIN);
        let read = self.stream.set_read_timeout(Some(left));
        match read.and_then(|()| self.stream.peek(&mut [0])) {
            Ok(_) => Ok(true),
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(false),
                _ => Err(self.gone(&error)),
            },
        }
    }

    fn hear<const N: usize>(&mut self, deadline: Instant) -> Result<[u8; N], StoreError> {
        let mut answer = [0; N];
        self.fill(&mut answer, deadline)?;
        Ok(answer)
    }

    fn fill(&mut self, target: &mut [u8], deadline: Instant) -> Result<(), StoreError> {
        let mut filled = 0;
        while filled < target.len() {
            let left = self.left(deadline)?;
            let read = self.stream.set_read_timeout(Some(left));
            match read.and_then(|()| self.stream.read(&mut target[filled..])) {
                Ok(0) => return Err(self.error("has hung up")),
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.gone(&error)),
            }
        }
        Ok(())
    }

    fn left(&self, deadline: Instant) -> Result<Duration, StoreError> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(self.error("has not answered in time")) } else { Ok(left) }
    }

    fn gone(&self, error: &io::Error) -> StoreError {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                self.error("has not answered in time")
            }
            _ => self.error(&error.to_string()),
        }
    }

    fn error(&self, why: &str) -> StoreError {
        StoreError { place: self.place.clone(), why: why.into() }
    }
}

/// A request of one key.
fn asked(number: u8, key: &str) -> Vec<u8> {
    let mut words = vec![number];
    write_text(&mut words, full(key).as_bytes());
    words
}

fn full(key: &str) -> String {
    format!("{KEY_PREFIX}{key}")
}
