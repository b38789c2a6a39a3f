//! Starting the ranks of a world on this machine, and ending them together.
//!
//! Each rank is a process in a process group of its own. Ranks are told who they are by environment
//! variables (ours, and torchrun's names for programs that know only those). When one fails, the
//! others get a grace period to notice and say so, then SIGTERM, then SIGKILL. If the launcher
//! itself is killed, the system kills the ranks, and a guard what they have started (`guard`).
//! Nothing here knows what the ranks compute.

mod news;
mod quitters;

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use brigade_comm::bootstrap::store::StoreServer;
use brigade_comm::bootstrap::{Root, UniqueId};

use crate::cores;
use crate::guard::Guard;
use crate::relay::{Passed, Relay};
use crate::sys::{self, Signals};
use news::News;
use quitters::Quitters;

/// How long ranks have between SIGTERM and SIGKILL.
const TERM_GRACE: Duration = Duration::from_secs(2);
/// How long to wait between looks at who is left of ranks that have ended: nothing tells of those.
const LOOK: Duration = Duration::from_millis(20);

/// A world to start.
pub(crate) struct World {
    /// How many ranks.
    pub(crate) ranks: usize,
    /// What every rank runs.
    pub(crate) program: OsString,
    /// Its arguments.
    pub(crate) args: Vec<OsString>,
    /// Whether each rank keeps to a part of the cores.
    pub(crate) bind: bool,
    /// Whether each line a rank prints is marked with its rank.
    pub(crate) prefix: bool,
    /// Whether ranks explain themselves before they exit with a code, so that the code is no news.
    pub(crate) explains: bool,
    /// How long the others may go on after one rank failed.
    pub(crate) grace: Duration,
}

/// How a world ended.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// Every rank exited with 0.
    Success,
    /// So it was, but not all that they printed could be passed on.
    OutputLost,
    /// A rank failed; this one was the first, or was killed before the launcher ended anybody.
    RankFailed(Failure),
    /// A signal asked the launcher to stop.
    Interrupted(i32),
}

/// One rank's end, when it was not exit code 0.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Failure {
    rank: usize,
    pid: u32,
    status: ExitStatus,
    /// The signal on which it had not ended when the launcher killed it, if the launcher did.
    outlasted: Option<i32>,
}

impl Outcome {
    /// The exit code of the launcher, as a shell would give it.
    pub(crate) fn code(&self) -> u8 {
        let code = match self {
            Self::Success => 0,
            Self::OutputLost => 1,
            Self::RankFailed(failure) => match failure.status.signal() {
                Some(signal) => 128 + signal,
                None => failure.status.code().unwrap_or(1),
            },
            Self::Interrupted(signal) => 128 + signal,
        };
        u8::try_from(code).unwrap_or(1)
    }
}

impl Failure {
    /// Whether this end may be what made the other rank give up.
    fn explains(&self, other: &Self) -> bool {
        self.status.signal().is_some() && other.status.signal().is_none()
    }

    /// Whether the other rank has ended as this one has.
    fn is_like(&self, other: &Self) -> bool {
        (self.status, self.outlasted) == (other.status, other.outlasted)
    }
}

impl World {
    /// Start all ranks and wait until the last one has ended. Failures are told on standard error
    /// as they are seen. Call it from the main thread: ranks die with the thread that started them.
    pub(crate) fn run(&self) -> io::Result<Outcome> {
        assert!(self.ranks > 0, "a world has at least one rank");
        // Before any thread is started, so that no thread takes a signal from the one that waits.
        let signals = Signals::hold()?;
        let guard = Guard::start(self.ranks)?;
        // The ranks meet at a root in this process, which outlives them all.
        let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let (id, root) = UniqueId::create(Some(loopback)).map_err(io::Error::other)?;
        // And programs that use PyTorch at its store, as under torchrun.
        let store = StoreServer::start(TcpListener::bind((loopback, 0))?)?;
        let relay = Relay::new(self.prefix, self.ranks);
        let (news, quitters) = (News::default(), Quitters::default());
        let (running, ended) = (Vec::new(), Vec::new());
        let mut ranks = Ranks { running, ended, root, news, quitters, asked: None, relay, guard };
        for (rank, mut command) in
            self.commands(&id, store.address().port())?.into_iter().enumerate()
        {
            match ranks.relay.spawn(rank, &mut command) {
                Ok(child) => {
                    ranks.guard.watch(rank, child.id());
                    ranks.running.push((rank, child));
                }
                Err(error) => {
                    ranks.kill();
                    let program = self.program.to_string_lossy();
                    let mut what = format!("cannot start `{program}` as rank {rank}: {error}");
                    if !program.contains('/') && error.kind() == io::ErrorKind::NotFound {
                        what.push_str("; a name without a / is looked for in PATH only");
                        if Path::new(&self.program).is_file() {
                            what.push_str(&format!(": the file in this folder is ./{program}"));
                        }
                    }
                    if program.starts_with('-') {
                        what.push_str("; it is no flag of this command, which --help lists");
                    }
                    return Err(io::Error::new(error.kind(), what));
                }
            }
        }
        let outcome = ranks.wait(&signals, self)?;
        Ok(match (outcome, ranks.relay.finish(&signals)) {
            (Outcome::Success, Passed::Less) => Outcome::OutputLost,
            (Outcome::Success, Passed::Interrupted(signal)) => Outcome::Interrupted(signal),
            (outcome, _) => outcome,
        })
    }

    /// The command of each rank.
    fn commands(&self, id: &UniqueId, store_port: u16) -> io::Result<Vec<Command>> {
        let parts = if self.bind { cores::parts(self.ranks)? } else { Vec::new() };
        let commands = (0..self.ranks).map(|rank| {
            let mut command = Command::new(&self.program);
            command.args(&self.args);
            let size = self.ranks.to_string();
            for (name, value) in [
                ("RANK", rank.to_string()),
                ("WORLD_SIZE", size.clone()),
                ("LOCAL_RANK", rank.to_string()),
                ("LOCAL_WORLD_SIZE", size.clone()),
                ("MASTER_ADDR", "127.0.0.1".to_owned()),
                ("MASTER_PORT", store_port.to_string()),
                ("TORCHELASTIC_USE_AGENT_STORE", "True".to_owned()),
                // Older versions of PyTorch then fail without it.
                ("TORCHELASTIC_RESTART_COUNT", "0".to_owned()),
                ("BRIGADE_RANK", rank.to_string()),
                ("BRIGADE_WORLD_SIZE", size),
                ("BRIGADE_LOCAL_RANK", rank.to_string()),
                ("BRIGADE_ID", id.to_string()),
            ] {
                command.env(name, value);
            }
            // Whoever is not in its foreground is stopped when it reads from a terminal.
            if rank > 0 || io::stdin().is_terminal() {
                command.stdin(Stdio::null());
            }
            sys::die_with_parent(&mut command);
            if let Some(part) = parts.get(rank) {
                sys::bind(&mut command, part.clone());
            }
            command
        });
        Ok(commands.collect())
    }
}

/// The ranks that were started. None of them outlives this value.
struct Ranks {
    running: Vec<(usize, Child)>,
    /// Those that have ended, and were not asked how: so their numbers are theirs still, and those
    /// of their groups, in which they may have left somebody.
    ended: Vec<(usize, Child)>,
    /// Where they come together.
    root: Root,
    /// How ranks have failed, as far as it is not told yet.
    news: News,
    quitters: Quitters,
    /// By which signal the ranks were last asked to end.
    asked: Option<i32>,
    relay: Relay,
    guard: Guard,
}

impl Ranks {
    /// Wait for all; once one has failed or a signal came, see to it that the others end too.
    fn wait(&mut self, signals: &Signals, world: &World) -> io::Result<Outcome> {
        let mut outcome = Outcome::Success;
        let mut ending = Ending::NotYet;
        loop {
            for failure in self.reap(ending)? {
                self.root.call_off(&news::in_vain(failure));
                // A rank that ended by the signal that ended us all is no news.
                let told = match outcome {
                    Outcome::Interrupted(signal) => failure.status.signal() == Some(signal),
                    _ => false,
                };
                // Nor is it that nobody reads on what is printed, nor a code that a rank explains.
                let no_news = match failure.status.signal() {
                    Some(libc::SIGPIPE) => world.explains || sys::is_output_unread(),
                    signal => world.explains && signal.is_none(),
                };
                if !told && !no_news {
                    self.news.add(failure, Instant::now());
                }
                match outcome {
                    Outcome::Success => {
                        outcome = Outcome::RankFailed(failure);
                        ending = Ending::TermAt(Instant::now() + world.grace);
                    }
                    // Others may notice a death, and be gone, before the dead process is.
                    Outcome::RankFailed(first)
                        if matches!(ending, Ending::TermAt(_)) && failure.explains(&first) =>
                    {
                        outcome = Outcome::RankFailed(failure);
                    }
                    _ => {}
                }
            }
            if self.running.is_empty() || self.news.due().is_some_and(|due| due <= Instant::now()) {
                self.tell();
            }
            if self.root.awaits_ranks() {
                self.quitters.tell(Instant::now());
            }
            if self.running.is_empty() {
                ending = match self.end_of_all(&outcome, ending) {
                    None => return self.bury().map(|()| outcome),
                    Some(ending) => ending,
                };
            }
            ending = self.end(ending);
            let pause = if self.running.is_empty() { LOOK } else { ending.timeout() };
            let news = self.news.due().map(|due| due.saturating_duration_since(Instant::now()));
            let pause = news.map_or(pause, |news| news.min(pause));
            match signals.wait(pause) {
                None | Some(libc::SIGCHLD) => {}
                Some(signal) => {
                    self.signal(signal);
                    if !matches!(outcome, Outcome::RankFailed(_)) {
                        outcome = Outcome::Interrupted(signal);
                    }
                    // However often it is said, that is when the time is over.
                    if !matches!(ending, Ending::KillAt(_)) {
                        self.asked = Some(signal);
                        ending = Ending::KillAt(Instant::now() + TERM_GRACE);
                    }
                }
            }
        }
    }

    /// What is to be done once every rank has ended; nothing, unless the world has failed, and
    /// ranks have left somebody who would go on alone.
    fn end_of_all(&self, outcome: &Outcome, ending: Ending) -> Option<Ending> {
        let has_failed = !matches!(outcome, Outcome::Success);
        let is_left = || self.ended.iter().any(|(_, child)| sys::has_left_anybody(child.id()));
        match ending {
            Ending::Killed => None,
            _ if !has_failed || !is_left() => None,
            Ending::KillAt(_) => Some(ending),
            Ending::NotYet | Ending::TermAt(_) => Some(Ending::TermAt(Instant::now())),
        }
    }

    /// Let go of the ranks that have ended.
    fn bury(&mut self) -> io::Result<()> {
        self.guard.dismiss();
        self.ended.drain(..).try_for_each(|(_, mut child)| child.wait().map(drop))
    }

    /// Tell the ranks that have ended from those that run; return those that failed, in rank order.
    fn reap(&mut self, ending: Ending) -> io::Result<Vec<Failure>> {
        let mut failures = Vec::new();
        let mut index = 0;
        while index < self.running.len() {
            let (rank, child) = &mut self.running[index];
            match sys::end_of(child.id())? {
                None => index += 1,
                Some(status) => {
                    if status.success() {
                        self.quitters.add(*rank, child.id(), Instant::now());
                    } else {
                        let is_ours = matches!(ending, Ending::Killed);
                        let killed = is_ours && status.signal() == Some(libc::SIGKILL);
                        let outlasted = self.asked.filter(|_| killed);
                        failures.push(Failure { rank: *rank, pid: child.id(), status, outlasted });
                    }
                    self.ended.push(self.running.remove(index));
                }
            }
        }
        Ok(failures)
    }

    /// Do what the ending has come to.
    fn end(&mut self, ending: Ending) -> Ending {
        let now = Instant::now();
        match ending {
            Ending::TermAt(due) if due <= now => {
                self.tell();
                match self.running.len() {
                    0 => eprintln!("brigade: ending what ranks have left behind"),
                    1 => eprintln!("brigade: ending the rank that still runs"),
                    running => eprintln!("brigade: ending the {running} ranks that still run"),
                }
                self.asked = Some(libc::SIGTERM);
                self.signal(libc::SIGTERM);
                Ending::KillAt(now + TERM_GRACE)
            }
            Ending::KillAt(due) if due <= now => {
                self.signal(libc::SIGKILL);
                Ending::Killed
            }
            other => other,
        }
    }

    /// Tell how ranks have failed.
    fn tell(&mut self) {
        self.news.take().iter().for_each(|sentence| eprintln!("brigade: {sentence}"));
    }

    /// Send a signal to all that still run, and whom ranks have left behind. Nobody was reaped, so
    /// their numbers are theirs.
    fn signal(&self, signal: i32) {
        for (rank, child) in self.running.iter().chain(&self.ended) {
            if let Err(error) = sys::signal_group(child.id(), signal) {
                eprintln!("brigade: signal {signal} did not reach rank {rank}: {error}");
            }
        }
    }

    /// End all at once.
    fn kill(&mut self) {
        self.signal(libc::SIGKILL);
        self.guard.dismiss();
        for (rank, mut child) in self.running.drain(..).chain(self.ended.drain(..)) {
            if let Err(error) = child.wait() {
                eprintln!("brigade: rank {rank} was killed but could not be waited for: {error}");
            }
        }
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        self.kill();
    }
}

/// How far the end of a world has come.
#[derive(Clone, Copy, Debug)]
enum Ending {
    /// Nothing is wrong.
    NotYet,
    /// A rank failed; the others get SIGTERM then.
    TermAt(Instant),
    /// They had their signal; they get SIGKILL then.
    KillAt(Instant),
    /// They had that.
    Killed,
}

impl Ending {
    /// How long to wait for signals. Never for ever: a lost signal must not hang the launcher.
    fn timeout(self) -> Duration {
        match self {
            Self::NotYet | Self::Killed => Duration::from_secs(1),
            Self::TermAt(due) | Self::KillAt(due) => {
                due.saturating_duration_since(Instant::now()).min(Duration::from_secs(1))
            }
        }
    }
}
