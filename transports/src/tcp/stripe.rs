//! A stream over several sockets: the sending end. `gather` is the receiving end.
//!
//! The sender cuts the stream into segments and gives each to the socket with the least waiting to
//! be sent, so a socket that loses a packet gets no more work than it does.
//!
//! A segment that a socket took in part is *owed* to that socket: the next bytes of the stream go
//! there, whichever call brings them. That holds up the others only when all have more than a
//! segment waiting, since the least loaded was chosen.

use std::io;
use std::sync::Arc;

use super::ends::{Outlet, READ_AHEAD_BYTES};
use super::frame::{BODY_BYTES_MAX, Frame, HEADER_BYTES};
use super::link::Link;
use super::sys;

/// The sending end of a striped stream.
pub(super) struct Cutter {
    link: Arc<Link>,
    outlets: Vec<Outlet>,
    segment_bytes: usize,
    /// Where the next segment begins in the stream.
    offset: u64,
    /// The socket that got the last segment.
    socket: usize,
    owed: Owed,
}

/// What is still to be sent of the last segment.
struct Owed {
    header: [u8; HEADER_BYTES],
    header_bytes: usize,
    body_bytes: usize,
}

impl Cutter {
    pub(super) fn new(link: Arc<Link>, segment_bytes: usize) -> io::Result<Cutter> {
        let segment_bytes = segment_bytes.clamp(READ_AHEAD_BYTES, BODY_BYTES_MAX);
        for socket in &link.sockets {
            // Without a bound a socket would swallow megabytes that another could send sooner.
            socket.set_tcp_notsent_lowat(2 * segment_bytes as u32)?;
        }
        let owed = Owed { header: [0; HEADER_BYTES], header_bytes: 0, body_bytes: 0 };
        let outlets = 0..link.sockets.len();
        let outlets = outlets.map(|socket| Outlet::new(link.clone(), socket)).collect();
        Ok(Cutter { link, outlets, segment_bytes, offset: 0, socket: 0, owed })
    }

    /// Send the next bytes of the stream, as many as fit now.
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut taken = 0;
        while taken < bytes.len() {
            if self.owed.body_bytes == 0 {
                self.socket = self.least_loaded()?;
                let count = self.segment_bytes.min(bytes.len() - taken);
                let frame = Frame { bytes: count as u32, offset: self.offset };
                self.offset += count as u64;
                let header = frame.serialise();
                self.owed = Owed { header, header_bytes: HEADER_BYTES, body_bytes: count };
            }
            taken += self.pay(&bytes[taken..])?;
            if self.owed.body_bytes > 0 && taken < bytes.len() {
                break;
            }
        }
        Ok(taken)
    }

    /// Send what is owed, as far as `bytes` and the socket's room go. Returns how many of `bytes`.
    fn pay(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Owed { header, header_bytes, body_bytes } = &mut self.owed;
        let header = &header[HEADER_BYTES - *header_bytes..];
        let body = &bytes[..bytes.len().min(*body_bytes)];
        let sent = self.outlets[self.socket].write(header, body)?;
        let of_body = sent.saturating_sub(*header_bytes);
        *header_bytes -= sent - of_body;
        *body_bytes -= of_body;
        Ok(of_body)
    }

    /// The socket for the next segment: the last one while it keeps up, so that small messages
    /// stay on one socket, else the one with the fewest bytes that have not left yet.
    fn least_loaded(&self) -> io::Result<usize> {
        let load = |index: usize| sys::unsent_bytes(&*self.link.sockets[index]);
        let mut best = (load(self.socket)?, self.socket);
        if best.0 > self.segment_bytes / 2 {
            for index in 0..self.link.sockets.len() {
                best = best.min((load(index)?, index));
            }
        }
        Ok(best.1)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};

    use super::super::link::Proved;
    use super::*;

    /// A link of connected TCP sockets, and the other ends.
    fn link(sockets: usize) -> (Arc<Link>, Vec<TcpStream>) {
        let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
        let address = listener.local_addr().unwrap();
        let pair = || (TcpStream::connect(address).unwrap(), listener.accept().unwrap().0);
        let (own, other): (Vec<_>, Vec<_>) = (0..sockets).map(|_| pair()).unzip();
        for socket in own.iter().chain(&other) {
            socket.set_nonblocking(true).unwrap();
        }
        let proved = |stream: TcpStream| Proved { socket: stream.into(), seals: None };
        (Arc::new(Link::of(own.into_iter().map(proved).collect())), other)
    }

    /// Read all that is there; returns how many bytes.
    fn drain(mut socket: &TcpStream, scratch: &mut [u8]) -> usize {
        let mut total = 0;
        while let Ok(count @ 1..) = socket.read(scratch) {
            total += count;
        }
        total
    }

    #[test]
    fn the_other_sockets_go_on_while_one_is_stalled() {
        const STALLED: usize = 1;
        const SEGMENT: usize = 64 << 10;
        let (own, other) = link(3);
        let mut cutter = Cutter::new(own, SEGMENT).unwrap();
        let (segment, mut scratch) = (vec![0; SEGMENT], vec![0; 1 << 20]);
        let mut read = [0; 3];
        for _ in 0..1 << 20 {
            cutter.write(&segment).unwrap();
            for lane in (0..3).filter(|&lane| lane != STALLED) {
                read[lane] += drain(&other[lane], &mut scratch);
            }
            if read[0] + read[2] > 64 << 20 {
                break;
            }
        }
        assert!(read[0] + read[2] > 64 << 20, "{read:?}");
        read[STALLED] += drain(&other[STALLED], &mut scratch);
        assert!(read[STALLED] < 16 << 20, "{read:?}");
    }
}
