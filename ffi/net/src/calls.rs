//! The functions behind all tables: what comes from C is parsed here, once.

use std::ffi::c_int;
use std::slice;

use brigade_transports::plugin::sys::{Code, HANDLE_BYTES, Opaque, Out};

use crate::fault::{Fault, Outcome, enter};
use crate::frame::GROUP_MAX;
use crate::meeting::{Listener, connect as call};
use crate::memory::Regions;
use crate::receiver::{Receiver, Wanted};
use crate::registry::{self, Thing, register};
use crate::sender::Sender;
use crate::{device, parting};

/// Store what a function gives. Errors: a null place.
///
/// # Safety
///
/// `place` is null or can be written.
pub(super) unsafe fn put<T>(place: *mut T, value: T) -> Outcome {
    if place.is_null() {
        return Err(Fault::argument("the place for the result is null"));
    }
    // SAFETY: it is not null, and the caller says that it can be written.
    unsafe { place.write(value) };
    Ok(())
}

pub(super) unsafe extern "C" fn devices(count: *mut c_int) -> Code {
    // SAFETY: the caller gives a place for the number.
    enter("devices", || unsafe { put(count, device::all()?.len() as c_int) })
}

pub(super) unsafe extern "C" fn listen8(number: c_int, handle: Opaque, listener: Out) -> Code {
    enter("listen", || {
        if handle.is_null() || listener.is_null() {
            return Err(Fault::argument("the place for the handle or the listener is null"));
        }
        let (bytes, it) = Listener::open(device::of(number)?)?;
        let it = register(Thing::Listener(it))?;
        // SAFETY: neither is null; the caller gives 128 bytes for the handle, and a place.
        unsafe {
            handle.cast::<[u8; HANDLE_BYTES]>().write_unaligned(bytes);
            put(listener, it as Opaque)
        }
    })
}

pub(super) unsafe extern "C" fn connect8(
    number: c_int,
    handle: Opaque,
    connection: Out,
    _device_connection: Out,
) -> Code {
    enter("connect", || {
        // SAFETY: the caller gives a place for the connection.
        unsafe { put(connection, std::ptr::null_mut()) }?;
        if handle.is_null() {
            return Err(Fault::argument("the handle is null"));
        }
        // SAFETY: the caller gives the 128 bytes of a handle.
        let bytes = unsafe { handle.cast::<[u8; HANDLE_BYTES]>().read_unaligned() };
        let Some(link) = call(device::of(number)?, &bytes)? else { return Ok(()) };
        let it = register(Thing::Sender(Box::new(Sender::new(link))))?;
        // SAFETY: as above.
        unsafe { put(connection, it as Opaque) }
    })
}

pub(super) unsafe extern "C" fn accept(
    listener: Opaque,
    connection: Out,
    _device_connection: Out,
) -> Code {
    enter("accept", || {
        // SAFETY: the caller gives a place for the connection.
        unsafe { put(connection, std::ptr::null_mut()) }?;
        let accepted = registry::hold(listener as usize)?.listener()?.accept()?;
        let Some(link) = accepted else { return Ok(()) };
        let it = register(Thing::Receiver(Box::new(Receiver::new(link))))?;
        // SAFETY: as above.
        unsafe { put(connection, it as Opaque) }
    })
}

pub(super) unsafe extern "C" fn reg_mr(
    connection: Opaque,
    address: Opaque,
    bytes: usize,
    kind: c_int,
    memory: Out,
) -> Code {
    enter("regMr", || {
        let mut held = registry::hold(connection as usize)?;
        let number = regions(held.thing())?.register(address as usize, bytes, kind)?;
        // SAFETY: the caller gives a place for the registration.
        unsafe { put(memory, number as Opaque) }
    })
}

pub(super) unsafe extern "C" fn dereg_mr(connection: Opaque, memory: Opaque) -> Code {
    enter("deregMr", || {
        let mut held = registry::hold(connection as usize)?;
        regions(held.thing())?.forget(memory as usize)
    })
}

fn regions(thing: &mut Thing) -> Outcome<&mut Regions> {
    match thing {
        Thing::Sender(it) => Ok(&mut it.regions),
        Thing::Receiver(it) => Ok(&mut it.regions),
        Thing::Listener(_) => Err(Fault::argument("a listener has no memory")),
    }
}

pub(super) unsafe extern "C" fn isend10(
    connection: Opaque,
    address: Opaque,
    bytes: usize,
    tag: c_int,
    memory: Opaque,
    _profile: Opaque,
    request: Out,
) -> Code {
    enter("isend", || {
        // SAFETY: the caller gives a place for the request.
        unsafe { put(request, std::ptr::null_mut()) }?;
        let mut held = registry::hold(connection as usize)?;
        let (message, memory) = ((address as usize, bytes), memory as usize);
        // SAFETY: the caller leaves the memory as it is until the request has ended.
        let begun = unsafe { held.sender()?.send(message, tag, memory) }?;
        let Some((slot, generation)) = begun else { return Ok(()) };
        // SAFETY: as above.
        unsafe { put(request, held.request(slot, generation) as Opaque) }
    })
}

/// The body of all forms of irecv; `size_of` gives the room of each place.
///
/// # Safety
///
/// What the caller of irecv owes: arrays of `count`, and memory that is left alone.
pub(super) unsafe fn receive(
    connection: Opaque,
    count: c_int,
    (addresses, tags, memories): (*mut Opaque, *mut c_int, *mut Opaque),
    size_of: impl Fn(usize) -> Outcome<usize>,
    request: Out,
) -> Outcome {
    // What stands in `request` may be a hint that a completion is not needed, which we ignore.
    // SAFETY: the caller gives a place for the request.
    unsafe { put(request, std::ptr::null_mut()) }?;
    let count = usize::try_from(count).ok().filter(|count| (1..=GROUP_MAX).contains(count));
    let count = count.ok_or_else(|| {
        Fault::argument(format!("a group of receives has from 1 to {GROUP_MAX} of them"))
    })?;
    if addresses.is_null() || tags.is_null() || memories.is_null() {
        return Err(Fault::argument("addresses, tags or registrations are null"));
    }
    // SAFETY: the caller gives arrays of `count` elements.
    let (addresses, tags, memories) = unsafe {
        (
            slice::from_raw_parts(addresses, count),
            slice::from_raw_parts(tags, count),
            slice::from_raw_parts(memories, count),
        )
    };
    let mut wanted = [Wanted { address: 0, bytes: 0, tag: 0, memory: 0 }; GROUP_MAX];
    for (place, it) in wanted[..count].iter_mut().enumerate() {
        let (address, memory) = (addresses[place] as usize, memories[place] as usize);
        *it = Wanted { address, bytes: size_of(place)?, tag: tags[place], memory };
    }
    let mut held = registry::hold(connection as usize)?;
    // SAFETY: the caller leaves the memory alone until the request has ended.
    let posted = unsafe { held.receiver()?.receive(&wanted[..count]) }?;
    let Some((slot, generation)) = posted else { return Ok(()) };
    // SAFETY: as above.
    unsafe { put(request, held.request(slot, generation) as Opaque) }
}

pub(super) unsafe extern "C" fn test(request: Opaque, done: *mut c_int, sizes: *mut c_int) -> Code {
    enter("test", || {
        // SAFETY: the caller gives a place for the answer.
        unsafe { put(done, 0) }?;
        let (mut held, slot, generation) = registry::hold_for(request as usize)?;
        let (count, arrived) = match held.thing() {
            Thing::Sender(it) => {
                let Some(bytes) = it.test(slot, generation)? else { return Ok(()) };
                let mut sizes = [0; GROUP_MAX];
                sizes[0] = bytes;
                (1, sizes)
            }
            Thing::Receiver(it) => {
                let Some(arrived) = it.test(slot, generation)? else { return Ok(()) };
                (arrived.count, arrived.sizes)
            }
            Thing::Listener(_) => unreachable!("listeners have no requests"),
        };
        if !sizes.is_null() {
            for (place, bytes) in arrived[..count].iter().enumerate() {
                let bytes = c_int::try_from(*bytes).unwrap_or(c_int::MAX);
                // SAFETY: the caller gives a place for the size of each message of the request.
                unsafe { sizes.add(place).write(bytes) };
            }
        }
        // SAFETY: as above.
        unsafe { put(done, 1) }
    })
}

pub(super) unsafe extern "C" fn close_send(connection: Opaque) -> Code {
    enter("closeSend", || {
        let pick = |thing| match thing {
            Thing::Sender(it) => Ok(it),
            other => Err(other),
        };
        let it = registry::close(connection as usize, "the sending end of a connection", pick)?;
        parting::part(it.link, true);
        Ok(())
    })
}

pub(super) unsafe extern "C" fn close_recv(connection: Opaque) -> Code {
    enter("closeRecv", || {
        let pick = |thing| match thing {
            Thing::Receiver(it) => Ok(it),
            other => Err(other),
        };
        let it = registry::close(connection as usize, "the receiving end of a connection", pick)?;
        parting::part(it.link, false);
        Ok(())
    })
}

pub(super) unsafe extern "C" fn close_listen(listener: Opaque) -> Code {
    enter("closeListen", || {
        let pick = |thing| match thing {
            Thing::Listener(it) => Ok(it),
            other => Err(other),
        };
        registry::close(listener as usize, "a listener", pick).map(drop)
    })
}
