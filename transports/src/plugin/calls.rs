//! The functions of a plugin that make and use connections, as methods.

use std::ffi::c_int;
use std::ptr::null_mut;

use super::net::{Failure, Net, Thing, Version, any, given, nothing, outcome};
use super::sys::{HANDLE_BYTES, Opaque, PTR_HOST};

impl Net {
    /// Await one caller; the handle for it.
    pub(super) fn listen(&self) -> Result<([u8; HANDLE_BYTES], Thing), Failure> {
        let (mut handle, mut listener) = ([0_u8; HANDLE_BYTES], null_mut());
        let place: Opaque = handle.as_mut_ptr().cast();
        let (device, context) = (self.device, self.context.0 as Opaque);
        // SAFETY: places for a handle and a listener.
        let code = unsafe {
            match self.version {
                Version::V12(it) => it.listen.map(|f| f(context, device, place, &mut listener)),
                Version::V11(it) => it.listen.map(|f| f(context, device, place, &mut listener)),
                Version::V10(it) => it.listen.map(|f| f(device, place, &mut listener)),
                Version::V9(it) => it.listen.map(|f| f(device, place, &mut listener)),
                Version::V8(it) => it.listen.map(|f| f(device, place, &mut listener)),
            }
        };
        outcome("listen", code)?;
        let listener = given(listener).ok_or(nothing("listen"))?;
        Ok((handle, listener))
    }

    /// Call; `None`: to be asked again with the same handle, in which plugins keep notes.
    pub(super) fn connect(
        &self,
        handle: &mut [u8; HANDLE_BYTES],
    ) -> Result<Option<Thing>, Failure> {
        let (mut end, mut on_device, mut config) = (null_mut(), null_mut(), -1);
        let handle: Opaque = handle.as_mut_ptr().cast();
        let (number, context) = (self.device, self.context.0 as Opaque);
        let (to, extra) = (&raw mut end, &raw mut on_device);
        // SAFETY: a handle of 128 bytes, and places for what comes of it.
        let code = unsafe {
            match self.version {
                Version::V12(it) => it.connect.map(|f| f(context, number, handle, to, extra)),
                Version::V11(it) => it.connect.map(|f| f(context, number, handle, to, extra)),
                Version::V10(it) => it.connect.map(|f| f(number, &mut config, handle, to, extra)),
                Version::V9(it) => it.connect.map(|f| f(number, handle, to, extra)),
                Version::V8(it) => it.connect.map(|f| f(number, handle, to, extra)),
            }
        };
        outcome("connect", code)?;
        Ok(given(end))
    }

    /// The caller, if it has come.
    pub(super) fn accept(&self, listener: Thing) -> Result<Option<Thing>, Failure> {
        let (mut end, mut on_device) = (null_mut(), null_mut());
        // SAFETY: a listener of this plugin, and places for what comes of it.
        let code = any!(self.version, it => it.accept.map(|accept| unsafe {
            accept(listener.0 as Opaque, &mut end, &mut on_device)
        }));
        outcome("accept", code)?;
        Ok(given(end))
    }

    /// Make memory known to one end of a connection.
    ///
    /// # Safety
    ///
    /// The memory stays where it is until it is forgotten or that end is closed.
    pub(super) unsafe fn register(
        &self,
        end: Thing,
        start: *mut u8,
        bytes: usize,
    ) -> Result<Thing, Failure> {
        let mut memory = null_mut();
        // SAFETY: the caller's promise, and a place for the registration.
        let code = any!(self.version, it => it.reg_mr.map(|register| unsafe {
            register(end.0 as Opaque, start.cast(), bytes, PTR_HOST, &mut memory)
        }));
        outcome("regMr", code)?;
        // A plugin that needs no registrations may give none.
        Ok(Thing(memory as usize))
    }

    /// Forget memory.
    pub(super) fn forget(&self, end: Thing, memory: Thing) -> Result<(), Failure> {
        // SAFETY: an end and a registration of this plugin.
        let code = any!(self.version, it => it.dereg_mr.map(|forget| unsafe {
            forget(end.0 as Opaque, memory.0 as Opaque)
        }));
        outcome("deregMr", code)
    }

    /// Begin to send; `None`: not now.
    ///
    /// # Safety
    ///
    /// The memory is registered, and stays as it is until the request has ended.
    pub(super) unsafe fn send(
        &self,
        end: Thing,
        (start, bytes): (*mut u8, usize),
        memory: Thing,
    ) -> Result<Option<Thing>, Failure> {
        let mut request = null_mut();
        let (to, none): (_, Opaque) = (&raw mut request, null_mut());
        let (end, start, mr) = (end.0 as Opaque, start.cast(), memory.0 as Opaque);
        // SAFETY: the caller's promise, and a place for the request.
        let code = unsafe {
            match self.version {
                Version::V12(it) => it.isend.map(|f| f(end, start, bytes, 0, mr, none, to)),
                Version::V11(it) => it.isend.map(|f| f(end, start, bytes, 0, mr, none, to)),
                Version::V10(it) => it.isend.map(|f| f(end, start, bytes, 0, mr, none, to)),
                Version::V9(it) => it.isend.map(|f| f(end, start, bytes, 0, mr, to)),
                Version::V8(it) => it.isend.map(|f| f(end, start, bytes as c_int, 0, mr, to)),
            }
        };
        outcome("isend", code)?;
        Ok(given(request))
    }

    /// Begin to receive; `None`: not now.
    ///
    /// # Safety
    ///
    /// The memory is registered, and belongs to the plugin until the request has ended.
    pub(super) unsafe fn receive(
        &self,
        end: Thing,
        (start, bytes): (*mut u8, usize),
        memory: Thing,
    ) -> Result<Option<Thing>, Failure> {
        let mut request = null_mut();
        let (mut data, mut mr): (Opaque, Opaque) = (start.cast(), memory.0 as Opaque);
        let (mut size, mut narrow, mut tag) = (bytes, bytes as c_int, 0);
        let (mut none, end): (Opaque, Opaque) = (null_mut(), end.0 as Opaque);
        let (data, mr, size, tag) = (&raw mut data, &raw mut mr, &raw mut size, &raw mut tag);
        let (to, narrow, none) = (&raw mut request, &raw mut narrow, &raw mut none);
        // SAFETY: the caller's promise, and arrays of one element each.
        let code = unsafe {
            match self.version {
                Version::V12(it) => it.irecv.map(|f| f(end, 1, data, size, tag, mr, none, to)),
                Version::V11(it) => it.irecv.map(|f| f(end, 1, data, size, tag, mr, none, to)),
                Version::V10(it) => it.irecv.map(|f| f(end, 1, data, size, tag, mr, none, to)),
                Version::V9(it) => it.irecv.map(|f| f(end, 1, data, size, tag, mr, to)),
                Version::V8(it) => it.irecv.map(|f| f(end, 1, data, narrow, tag, mr, to)),
            }
        };
        outcome("irecv", code)?;
        Ok(given(request))
    }

    /// Whether a request has ended: with how many bytes. Then it is no request any more.
    pub(super) fn test(&self, request: Thing) -> Result<Option<usize>, Failure> {
        let (mut done, mut size) = (0, 0);
        // SAFETY: a request of this plugin that has not ended, and places for the answer.
        let code = any!(self.version, it => it.test.map(|test| unsafe {
            test(request.0 as Opaque, &mut done, &mut size)
        }));
        outcome("test", code)?;
        Ok((done != 0).then_some(size.max(0) as usize))
    }

    /// End the sending end of a connection.
    pub(super) fn close_send(&self, end: Thing) -> Result<(), Failure> {
        let close = any!(self.version, it => it.close_send);
        // SAFETY: an end of this plugin, which nobody uses any more.
        let code = close.map(|close| unsafe { close(end.0 as Opaque) });
        outcome("closeSend", code)
    }

    /// End the receiving end of a connection.
    pub(super) fn close_receive(&self, end: Thing) -> Result<(), Failure> {
        let close = any!(self.version, it => it.close_recv);
        // SAFETY: an end of this plugin, which nobody uses any more.
        let code = close.map(|close| unsafe { close(end.0 as Opaque) });
        outcome("closeRecv", code)
    }

    /// Await nobody any more.
    pub(super) fn close_listen(&self, listener: Thing) -> Result<(), Failure> {
        let close = any!(self.version, it => it.close_listen);
        // SAFETY: a listener of this plugin, which nobody uses any more.
        let code = close.map(|close| unsafe { close(listener.0 as Opaque) });
        outcome("closeListen", code)
    }
}
