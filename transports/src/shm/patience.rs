//! For how long a rank waits for another one's memory: until a deadline, and no longer than whoever
//! has it wait wants, which is asked after every nap.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use crate::{NAP, TransportError};

/// A wait, from its making on.
pub(super) struct Patience<F> {
    since: Instant,
    deadline: Instant,
    go_on: F,
    is_called_off: bool,
}

impl<F: FnMut() -> bool> Patience<F> {
    /// Until `deadline`, as long as `go_on` says so.
    pub(super) fn until(deadline: Instant, go_on: F) -> Self {
        Self { since: Instant::now(), deadline, go_on, is_called_off: false }
    }

    /// Ask whether to wait on.
    pub(super) fn lasts(&mut self) -> bool {
        self.is_called_off = self.is_called_off || !(self.go_on)();
        !self.is_over()
    }

    /// Whether the wait has ended, without asking anybody.
    pub(super) fn is_over(&self) -> bool {
        self.is_called_off || self.left().is_zero()
    }

    /// How long there is until the deadline.
    pub(super) fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// Why there is nothing of `what`, once the wait is over.
    pub(super) fn error(&self, what: String) -> TransportError {
        let waited_ms = self.since.elapsed().as_millis() as u64;
        match self.is_called_off {
            true => TransportError::CalledOff { what, waited_ms },
            false => TransportError::Timeout { what, waited_ms },
        }
    }
}

/// A stream whose calls last as long as somebody's patience.
pub(super) struct Line<'a, F> {
    stream: UnixStream,
    patience: &'a mut Patience<F>,
}

impl<'a, F: FnMut() -> bool> Line<'a, F> {
    /// Over a stream whose calls time out after [`NAP`].
    pub(super) fn over(stream: UnixStream, patience: &'a mut Patience<F>) -> Self {
        debug_assert!(stream.read_timeout().is_ok_and(|set| set.is_some_and(|it| it <= 2 * NAP)));
        Self { stream, patience }
    }

    /// Make `call` again whenever a nap has ended in the middle of it. Errors: of the kind
    /// `WouldBlock` when the patience is over, or else those of the call.
    pub(super) fn call<T>(
        &mut self,
        mut call: impl FnMut(&UnixStream) -> io::Result<T>,
    ) -> io::Result<T> {
        loop {
            // The other end may be slow without ever being silent.
            if self.patience.is_over() {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            match call(&self.stream) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if !self.patience.lasts() {
                        return Err(error);
                    }
                }
                done => return done,
            }
        }
    }
}

impl<F: FnMut() -> bool> Read for Line<'_, F> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.call(|mut stream| stream.read(bytes))
    }
}

impl<F: FnMut() -> bool> Write for Line<'_, F> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.call(|mut stream| stream.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_never_silent_is_heard_no_longer_than_others() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_read_timeout(Some(NAP)).unwrap();
        (&theirs).write_all(b"so").unwrap();
        let heard = |deadline| {
            let mut patience = Patience::until(deadline, || true);
            let ours = ours.try_clone().unwrap();
            Line::over(ours, &mut patience).read(&mut [0]).map_err(|error| error.kind())
        };
        assert_eq!(heard(Instant::now() + Duration::from_secs(10)), Ok(1));
        assert_eq!(heard(Instant::now()), Err(io::ErrorKind::WouldBlock));
    }
}
