//! How connections end. Closing may not wait, but a socket that is closed while something in it was
//! not read takes back what it had sent. So the sending end reads on until the other one has ended
//! too; and taking a transport down joins threads. One thread does that for all of them.

use std::sync::mpsc::{Receiver as Arrivals, RecvTimeoutError, Sender as Mouth, channel};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};

use crate::meeting::Link;
use crate::sender::has_ended;

/// How long the other end may take to end as well.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often that is looked at.
const LOOK: Duration = Duration::from_millis(2);

struct Parting {
    link: Link,
    until: Instant,
}

static MOUTH: LazyLock<Mutex<Option<Mouth<Parting>>>> = LazyLock::new(|| {
    let (mouth, arrivals) = channel();
    let spawned = Builder::new().name("brigade-part".into()).spawn(move || tend(&arrivals));
    Mutex::new(spawned.is_ok().then_some(mouth))
});

/// End a connection: one that has sent, when the other end has had it all.
pub(crate) fn part(link: Link, has_sent: bool) {
    let until = Instant::now() + if has_sent { PATIENCE } else { Duration::ZERO };
    let mouth = MOUTH.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(mouth) = &*mouth {
        // Without its thread it ends here and now.
        let _ = mouth.send(Parting { link, until });
    }
}

fn tend(arrivals: &Arrivals<Parting>) {
    let mut leaving: Vec<Parting> = Vec::new();
    loop {
        let nap = if leaving.is_empty() { Duration::from_secs(3600) } else { LOOK };
        match arrivals.recv_timeout(nap) {
            Ok(parting) => leaving.push(parting),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        let now = Instant::now();
        leaving.retain_mut(|it| now < it.until && !has_ended(&mut *it.link.receiver));
    }
}
