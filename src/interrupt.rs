//! A command that has files of its own, and a user who wants an end. Of a command that starts
//! others the signal is passed on to what runs, the command comes to its end as if that had failed,
//! takes its files with it, and only then ends as by the signal. One that works by itself ends at
//! once, and takes its files with it.

use std::io;
use std::process::{ChildStdout, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::sys::{self, Signals};

/// How long what was started has to end by the signal; its own launcher takes two seconds at most.
const GRACE: Duration = Duration::from_secs(5);

/// Who waits for signals while commands run, one after the other.
pub(crate) struct Interruption(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// The first that came.
    signal: Option<i32>,
    /// The leader of the group that runs, which has not been waited for.
    leader: Option<u32>,
}

impl Interruption {
    /// Wait for signals from now on. Call it before any thread is started.
    pub(crate) fn watch() -> io::Result<Self> {
        let signals = Signals::hold()?;
        let state = Arc::<Mutex<State>>::default();
        let watched = Arc::clone(&state);
        std::thread::Builder::new().spawn(move || watch(&signals, &watched))?;
        Ok(Self(state))
    }

    /// The signal that came, if one has.
    pub(crate) fn signal(&self) -> Option<i32> {
        lock(&self.0).signal
    }

    /// Run a command to its end and `read` what it prints; `None` if it was not to begin any more.
    pub(crate) fn run(
        &self,
        command: &mut Command,
        read: impl FnOnce(ChildStdout),
    ) -> io::Result<Option<ExitStatus>> {
        sys::die_with_parent(command);
        let mut state = lock(&self.0);
        if state.signal.is_some() {
            return Ok(None);
        }
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        state.leader = Some(child.id());
        drop(state);
        read(child.stdout.take().expect("it was asked for"));
        let ended = sys::wait_for_end(child.id());
        // Once it was waited for, another group may have its number.
        lock(&self.0).leader = None;
        ended?;
        child.wait().map(Some)
    }

    /// Take the command's files away, and end as by the signal if one came.
    pub(crate) fn end<T>(&self, files: impl FnOnce() -> T) -> T {
        let ended = files();
        match self.signal() {
            None => ended,
            Some(signal) => sys::end_by(signal),
        }
    }
}

/// Have this process take its `files` with it when a signal ends it, and then `tell` by which; what
/// the files give is kept to the end. Call it before any thread is started.
pub(crate) fn take_along<T>(
    files: impl FnOnce() -> T + Send + 'static,
    tell: impl FnOnce(i32) + Send + 'static,
) -> io::Result<()> {
    let signals = Signals::hold()?;
    let watch = move || {
        let signal = loop {
            match signals.wait(Duration::MAX) {
                None | Some(libc::SIGCHLD) => {}
                Some(signal) => break signal,
            }
        };
        let _kept = files();
        tell(signal);
        sys::end_by(signal)
    };
    std::thread::Builder::new().spawn(watch).map(drop)
}

/// Pass the first signal on, and let nobody outlive it for long, or a second one at all.
fn watch(signals: &Signals, state: &Mutex<State>) {
    let mut due: Option<Instant> = None;
    loop {
        let now = Instant::now();
        let left = due.map_or(Duration::MAX, |due| due.saturating_duration_since(now));
        let sent = match signals.wait(left) {
            Some(libc::SIGCHLD) => continue,
            Some(signal) => {
                let first = *lock(state).signal.get_or_insert(signal);
                if due.is_none() { first } else { libc::SIGKILL }
            }
            None if due.is_some_and(|due| due <= Instant::now()) => libc::SIGKILL,
            None => continue,
        };
        due = Some(Instant::now() + GRACE);
        if let Some(leader) = lock(state).leader
            && let Err(error) = sys::signal_group(leader, sent)
        {
            eprintln!("brigade: signal {sent} did not reach what runs: {error}");
        }
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    // Changed by code that does not panic between its lines.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
