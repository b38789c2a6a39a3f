//! Looking a name up, for no longer than one has time: a resolver whose servers do not answer takes
//! as long as it was told to, which may be beyond all deadlines.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::Builder;
use std::time::Instant;

type Found = io::Result<Vec<SocketAddr>>;

/// A name that is looked up again and again. A thread asks for it; when the time is over it goes on
/// asking, and the next time its answer is waited for.
#[derive(Debug, Default)]
pub(super) struct Lookup {
    asked: Option<Receiver<Found>>,
    /// The last answer: addresses to try, or what is wrong, while the next one has not come.
    last: Option<Result<Vec<SocketAddr>, (io::ErrorKind, String)>>,
}

impl Lookup {
    /// The addresses of `host`, without a port, waiting for them at most until `until`.
    pub(super) fn find(&mut self, host: &str, until: Instant) -> Found {
        if let Ok(ip) = host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(ip, 0)]);
        }
        let host = host.to_owned();
        self.ask(until, move || Ok((host.as_str(), 0).to_socket_addrs()?.collect()))
    }

    fn ask(&mut self, until: Instant, resolve: impl FnOnce() -> Found + Send + 'static) -> Found {
        let answer = match self.asked.take() {
            Some(pending) => pending,
            None => {
                let (tell, answer) = channel();
                // Whoever asked may have given up meanwhile.
                let ask = move || drop(tell.send(resolve()));
                Builder::new().name("brigade-names".into()).spawn(ask)?;
                answer
            }
        };
        match answer.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(found) => {
                let said = |error: &io::Error| (error.kind(), error.to_string());
                self.last = Some(found.as_ref().map_err(said).cloned());
                found
            }
            Err(RecvTimeoutError::Timeout) => {
                self.asked = Some(answer);
                let silent = "no name server has answered so far".to_owned();
                let last = self.last.clone().unwrap_or(Err((io::ErrorKind::TimedOut, silent)));
                last.map_err(|(kind, said)| io::Error::new(kind, said))
            }
            Err(RecvTimeoutError::Disconnected) => Err(io::ErrorKind::Other.into()),
        }
    }
}

/// The same address with another port, and the interface that a link-local one needs beside it.
pub(super) fn at_port(mut address: SocketAddr, port: u16) -> SocketAddr {
    address.set_port(port);
    address
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_server_that_does_not_answer_is_asked_once_and_waited_for_again_and_again() {
        let mut lookup = Lookup::default();
        let (server, asked) = channel::<()>();
        let found = vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 0))];
        let answer = found.clone();
        let resolve = move || {
            asked.recv().expect("the test goes on");
            Ok(answer)
        };
        let start = Instant::now();
        let error = lookup.ask(start + Duration::from_millis(10), resolve).expect_err("no answer");
        assert_eq!(error.to_string(), "no name server has answered so far");
        let again = || -> Found { unreachable!("asked twice") };
        lookup.ask(Instant::now(), again).expect_err("no answer yet");
        server.send(()).expect("the thread waits");
        let later = Instant::now() + Duration::from_secs(20);
        assert_eq!(lookup.ask(later, again).expect("an answer"), found);
        let failed = || Err(io::ErrorKind::NotFound.into());
        assert_eq!(lookup.ask(later, failed).unwrap_err().kind(), io::ErrorKind::NotFound);
        // What an answer said is not forgotten while the next one is waited for.
        let (_server, asked) = channel::<()>();
        let resolve = move || asked.recv().map(|()| Vec::new()).map_err(io::Error::other);
        let error = lookup.ask(Instant::now(), resolve).expect_err("no answer");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn addresses_that_were_found_are_tried_while_they_are_looked_up_again() {
        let (mut lookup, later) = (Lookup::default(), Instant::now() + Duration::from_secs(20));
        let found = vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 0))];
        let answer = found.clone();
        lookup.ask(later, move || Ok(answer)).expect("an answer");
        let (_server, asked) = channel::<()>();
        let resolve = move || asked.recv().map(|()| Vec::new()).map_err(io::Error::other);
        assert_eq!(lookup.ask(Instant::now(), resolve).expect("the last ones"), found);
    }

    #[test]
    fn addresses_are_not_looked_up_and_keep_their_interface() {
        let over = Instant::now();
        for host in ["127.0.0.1", "::1"] {
            let found = Lookup::default().find(host, over).expect("it is an address");
            assert_eq!(at_port(found[0], 5).to_string().rsplit_once(':').unwrap().1, "5");
        }
        let later = Instant::now() + Duration::from_secs(20);
        let found = Lookup::default().find("fe80::1%1", later).expect("an address and a number");
        assert_eq!(at_port(found[0], 5).to_string(), "[fe80::1%1]:5");
    }
}
