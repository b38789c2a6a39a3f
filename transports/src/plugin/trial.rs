//! A plugin for tests that can do little but keep a list of what was closed.

use std::ffi::c_int;
use std::ptr::null;
use std::sync::{Mutex, OnceLock};

use super::inlet::Inlet;
use super::net::{Net, Thing};
use super::outlet::{Outlet, lock};
use super::sys::{Code, Opaque, Out, SUCCESS, SYSTEM_ERROR, V8};

static CLOSED: Mutex<Vec<(&str, usize)>> = Mutex::new(Vec::new());

static TABLE: V8 = V8 {
    name: null(),
    init: None,
    devices: None,
    properties: None,
    listen: None,
    connect: None,
    accept: None,
    reg_mr: Some(register),
    reg_mr_dma_buf: None,
    dereg_mr: Some(forget),
    isend: None,
    irecv: None,
    iflush: None,
    test: None,
    close_send: Some(close_send),
    close_recv: Some(close_receive),
    close_listen: Some(close_listen),
    get_device_mr: None,
    irecv_consumed: None,
    tail: (),
};

/// The only end that registers memory, and that does not let itself be closed.
pub(super) const STUBBORN: Thing = Thing(99);

extern "C" fn register(end: Opaque, _: Opaque, _: usize, _: c_int, _: Out) -> Code {
    if end as usize == STUBBORN.0 { SUCCESS } else { SYSTEM_ERROR }
}

extern "C" fn forget(_: Opaque, _: Opaque) -> Code {
    SUCCESS
}

extern "C" fn close_send(end: Opaque) -> Code {
    close("send", end)
}

extern "C" fn close_receive(end: Opaque) -> Code {
    close("receive", end)
}

extern "C" fn close_listen(listener: Opaque) -> Code {
    close("listen", listener)
}

fn close(what: &'static str, thing: Opaque) -> Code {
    lock(&CLOSED).push((what, thing as usize));
    if thing as usize == STUBBORN.0 { SYSTEM_ERROR } else { SUCCESS }
}

/// The plugin.
pub(super) fn net() -> &'static Net {
    static NET: OnceLock<Net> = OnceLock::new();
    NET.get_or_init(|| Net::of(&TABLE))
}

/// How often this was closed, which only one test makes.
pub(super) fn closed(what: &str, thing: Thing) -> usize {
    lock(&CLOSED).iter().filter(|it| **it == (what, thing.0)).count()
}

#[test]
fn an_end_whose_memory_cannot_be_registered_is_closed() {
    let (send, receive) = (Thing(1), Thing(2));
    assert!(Outlet::new(net(), 1, send).is_err(), "it registers nothing");
    assert!(Inlet::new(1).connect(net(), receive).is_err(), "it registers nothing");
    assert_eq!((closed("send", send), closed("receive", receive)), (1, 1));
}
