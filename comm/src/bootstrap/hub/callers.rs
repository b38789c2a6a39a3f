//! Those who call: taken in, as many as there is room for.

use std::io;
use std::time::{Duration, Instant};

use brigade_transports::opened;

use super::{Conn, Hub, Phase, Stage};

/// The most connections that have not yet got a seat.
const STRANGERS_MAX: usize = 1024;
/// The most connections taken in one turn.
const ACCEPTS_MAX: usize = 128;
/// Rest after the system refused to give us a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(5);

impl Hub {
    pub(super) fn accept(&mut self) {
        for _ in 0..ACCEPTS_MAX {
            let Some(listener) = &self.listener else { return };
            match opened(|| listener.accept()) {
                Ok((stream, _)) => {
                    // A stream that cannot be set up is as good as one that never came.
                    self.conns.extend(Conn::new(stream, Instant::now()).ok());
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    // Mostly no descriptors left: make room, and do not spin on a full house.
                    if let Stage::Gathering(roster) = &mut self.stage
                        && roster.deaf.is_none()
                    {
                        tracing::warn!(%error, "the root cannot accept connections now");
                        roster.deaf = Some(error.to_string());
                    }
                    self.drop_oldest_stranger();
                    std::thread::sleep(ACCEPT_PAUSE);
                    break;
                }
            }
        }
        while self.conns.iter().filter(|conn| conn.is_stranger()).count() > STRANGERS_MAX {
            self.drop_oldest_stranger();
        }
    }

    /// The oldest of those who have not proved themselves, if there are any: others are on their
    /// way to a seat.
    fn drop_oldest_stranger(&mut self) {
        let is_proved = |conn: &Conn| matches!(conn.phase, Phase::Proven | Phase::Sealing(_));
        let mut strangers: Vec<_> =
            self.conns.iter_mut().filter(|conn| conn.is_stranger()).collect();
        let oldest = strangers.iter().position(|conn| !is_proved(conn)).unwrap_or(0);
        if let Some(oldest) = strangers.get_mut(oldest) {
            oldest.dead = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener, TcpStream};
    use std::sync::Arc;

    use super::super::super::bell::Bell;
    use super::*;

    #[test]
    fn whoever_has_proved_itself_goes_last() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let bell = Arc::new(Bell::new().unwrap());
        let mut hub = Hub::new((listener, None), [[0; 32]; 2], bell).unwrap();
        for phase in [Phase::Proven, Phase::Greeting, Phase::Seated(0), Phase::Greeting] {
            let mut conn = Conn::new(TcpStream::connect(address).unwrap(), Instant::now()).unwrap();
            conn.phase = phase;
            hub.conns.push(conn);
        }
        let mut left = || {
            hub.drop_oldest_stranger();
            hub.conns.iter().map(|conn| !conn.dead).collect::<Vec<_>>()
        };
        assert_eq!(left(), [true, false, true, true]);
        assert_eq!(left(), [true, false, true, false]);
        assert_eq!(left(), [false, false, true, false]);
        assert_eq!(left(), [false, false, true, false]);
    }
}
