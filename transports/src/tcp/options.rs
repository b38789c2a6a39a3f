//! What is set on each socket, and why.

use std::io;

use socket2::Socket;

use super::silence::{keepalive, retry_cap_ms};
use super::{Settings, sys};
use crate::TransportError;

/// Prepare a socket that will carry a wire.
pub(super) fn tune(
    socket: &Socket,
    settings: &Settings,
    is_local: bool,
) -> Result<(), TransportError> {
    let failed = |call, error: io::Error| TransportError::from_io(call, &error, "tuning a socket");
    // The executor decides what is worth a packet; the kernel must not wait for more.
    socket.set_tcp_nodelay(true).map_err(|error| failed("TCP_NODELAY", error))?;
    let idle = socket.set_tcp_keepalive(&keepalive(settings.silence));
    idle.map_err(|error| failed("SO_KEEPALIVE", error))?;
    // While bytes are on the way no keepalive is sent. TCP_USER_TIMEOUT would be exact, but it also
    // cuts off a live peer that does not read for a while, such as a rank that is late. Kernels
    // before Linux 6.15 do not know this one; the communicator's deadline is still there.
    let _ = sys::set_retry_cap(socket, retry_cap_ms(settings.silence));
    if let Some(bytes) = settings.buffer_bytes {
        socket.set_send_buffer_size(bytes).map_err(|error| failed("SO_SNDBUF", error))?;
        socket.set_recv_buffer_size(bytes).map_err(|error| failed("SO_RCVBUF", error))?;
    }
    match &settings.congestion {
        Some(name) => socket
            .set_tcp_congestion(name.as_bytes())
            .map_err(|error| TransportError::from_io("TCP_CONGESTION", &error, name.as_str())),
        // Some algorithms (bbr) pace what they send, which on loopback only costs: 3 GB/s each
        // way instead of 5. Reno is always compiled in, but an administrator may forbid it.
        None if is_local => {
            let _ = socket.set_tcp_congestion(b"reno");
            Ok(())
        }
        None => Ok(()),
    }
}

/// Whether a connected socket has both ends on this machine.
pub(super) fn is_local(socket: &Socket) -> bool {
    let ip = |address: io::Result<socket2::SockAddr>| {
        address.ok().and_then(|address| address.as_socket()).map(|address| address.ip())
    };
    let (own, peer) = (ip(socket.local_addr()), ip(socket.peer_addr()));
    own.is_some() && own == peer || peer.is_some_and(|peer| peer.is_loopback())
}
