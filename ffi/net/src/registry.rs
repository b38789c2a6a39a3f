//! Handles: numbers that stand for listeners and connections. C holds a number that is looked up
//! and never followed, so one that was closed or invented is refused.
//!
//! ```text
//! connection   63..56 0xB5   47..16 generation   15..0 place
//! request      63..56 0xB6   55..48 slot   47..32 generation of the request
//!              31..16 lower half of the connection's generation   15..0 place
//! ```

use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use crate::fault::{Fault, Outcome};
use crate::meeting::Listener;
use crate::receiver::Receiver;
use crate::sender::Sender;

/// How many listeners and connections there can be at a time.
pub(crate) const PLACES: usize = 1 << 14;
const MAGIC: usize = 0xB5;
const REQUEST_MAGIC: usize = 0xB6;

/// What a handle may stand for.
pub(crate) enum Thing {
    Listener(Listener),
    Sender(Box<Sender>),
    Receiver(Box<Receiver>),
}

impl Thing {
    fn name(&self) -> &'static str {
        match self {
            Thing::Listener(_) => "a listener",
            Thing::Sender(_) => "the sending end of a connection",
            Thing::Receiver(_) => "the receiving end of a connection",
        }
    }
}

#[derive(Default)]
struct Place {
    generation: u32,
    thing: Option<Thing>,
}

static TABLE: LazyLock<Box<[Mutex<Place>]>> =
    LazyLock::new(|| (0..PLACES).map(|_| Mutex::default()).collect());
static FREE: LazyLock<Mutex<Vec<usize>>> =
    LazyLock::new(|| Mutex::new((0..PLACES).rev().collect()));

/// A thing that nobody else uses meanwhile.
pub(crate) struct Held {
    place: MutexGuard<'static, Place>,
    handle: usize,
}

/// Make a handle.
pub(crate) fn register(thing: Thing) -> Outcome<usize> {
    let place = lock(&FREE).pop();
    let place = place.ok_or_else(|| Fault::usage(format!("{PLACES} connections are open")))?;
    let mut held = lock(&TABLE[place]);
    held.generation = held.generation.wrapping_add(1);
    held.thing = Some(thing);
    Ok(MAGIC << 56 | (held.generation as usize) << 16 | place)
}

/// Look a handle up. Waits for nothing but a call on the same connection from another thread.
pub(crate) fn hold(handle: usize) -> Outcome<Held> {
    if handle >> 56 != MAGIC {
        return Err(unknown(handle));
    }
    let place = lock(TABLE.get(handle & 0xFFFF).ok_or_else(|| unknown(handle))?);
    if place.thing.is_none() || place.generation as usize != handle >> 16 & 0xFFFF_FFFF {
        return Err(unknown(handle));
    }
    Ok(Held { place, handle })
}

/// Look the connection of a request up; with the request's slot and generation.
pub(crate) fn hold_for(request: usize) -> Outcome<(Held, usize, u16)> {
    let wrong = || Fault::argument(format!("{request:#x} is no request"));
    if request >> 56 != REQUEST_MAGIC {
        return Err(wrong());
    }
    let place = lock(TABLE.get(request & 0xFFFF).ok_or_else(wrong)?);
    if place.thing.is_none() || place.generation as u16 != (request >> 16) as u16 {
        return Err(Fault::argument(format!("the connection of request {request:#x} is closed")));
    }
    let handle = MAGIC << 56 | (place.generation as usize) << 16 | request & 0xFFFF;
    Ok((Held { place, handle }, request >> 48 & 0xFF, (request >> 32) as u16))
}

/// End a handle; the thing that it stood for, if it is of the kind that `pick` takes.
pub(crate) fn close<T>(
    handle: usize,
    wanted: &str,
    pick: impl FnOnce(Thing) -> Result<T, Thing>,
) -> Outcome<T> {
    let mut held = hold(handle)?;
    let thing = held.place.thing.take().expect("it is held");
    match pick(thing) {
        Ok(it) => {
            drop(held);
            lock(&FREE).push(handle & 0xFFFF);
            Ok(it)
        }
        Err(other) => {
            let why = format!("{handle:#x} is {}, not {wanted}", other.name());
            held.place.thing = Some(other);
            Err(Fault::argument(why))
        }
    }
}

impl Held {
    pub(crate) fn thing(&mut self) -> &mut Thing {
        self.place.thing.as_mut().expect("it is held")
    }

    pub(crate) fn listener(&mut self) -> Outcome<&mut Listener> {
        let handle = self.handle;
        match self.thing() {
            Thing::Listener(it) => Ok(it),
            other => Err(wrong(handle, other, "a listener")),
        }
    }

    pub(crate) fn sender(&mut self) -> Outcome<&mut Sender> {
        let handle = self.handle;
        match self.thing() {
            Thing::Sender(it) => Ok(it),
            other => Err(wrong(handle, other, "the sending end of a connection")),
        }
    }

    pub(crate) fn receiver(&mut self) -> Outcome<&mut Receiver> {
        let handle = self.handle;
        match self.thing() {
            Thing::Receiver(it) => Ok(it),
            other => Err(wrong(handle, other, "the receiving end of a connection")),
        }
    }

    /// The number of a request of this connection.
    pub(crate) fn request(&self, slot: usize, generation: u16) -> usize {
        let own = self.handle >> 16 & 0xFFFF;
        let request = REQUEST_MAGIC << 56 | slot << 48 | usize::from(generation) << 32;
        request | own << 16 | self.handle & 0xFFFF
    }
}

fn unknown(handle: usize) -> Fault {
    Fault::argument(format!("{handle:#x} is no listener or connection that is open"))
}

fn wrong(handle: usize, thing: &Thing, wanted: &str) -> Fault {
    Fault::argument(format!("{handle:#x} is {}, not {wanted}", thing.name()))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
