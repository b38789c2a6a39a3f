//! The listening side of one rank: a thread that reads what the root says and writes it down.

use std::collections::BTreeMap;
use std::io;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, Weak};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use brigade_transports::OursAlone;

use super::decoder::Decoder;
use super::frame::Frame;
use super::verdict::{Verdict, WaitingReport};
use crate::locked::locked;

/// A monitor reads small frames; it needs no more.
const STACK_BYTES: usize = 128 << 10;

/// What has been heard so far.
#[derive(Debug)]
pub(super) struct Heard {
    /// Ranks in the root's own process, in order.
    beside_root: Vec<usize>,
    verdict: OnceLock<Verdict>,
    left: Mutex<Vec<usize>>,
    losses: Mutex<Losses>,
    /// Who has left each communicator that we asked about and are still in, and why if they could
    /// not join it: the root goes on telling of those that we have left.
    partings: Mutex<BTreeMap<u64, Vec<(usize, String)>>>,
    /// How often we have said that we wait, and the root has not read it yet.
    unread: AtomicU32,
    /// Whether the root still listens to us and speaks to us.
    listening: AtomicBool,
    leaving: AtomicBool,
    paper: Mutex<Paper>,
    rustle: Condvar,
}

/// Who is gone, and who wants to hear of it although the verdict has been.
#[derive(Debug, Default)]
struct Losses {
    /// How, of each rank.
    lost: BTreeMap<usize, String>,
    meetings: Vec<(Vec<usize>, Weak<Heard>)>,
}

#[derive(Debug, Default)]
struct Paper {
    over: bool,
    answer: Option<(u32, Vec<WaitingReport>)>,
}

impl Heard {
    pub(super) fn new(beside_root: Vec<usize>) -> Arc<Self> {
        Arc::new(Self {
            beside_root,
            verdict: OnceLock::new(),
            left: Mutex::new(Vec::new()),
            losses: Mutex::default(),
            partings: Mutex::default(),
            unread: AtomicU32::new(0),
            listening: AtomicBool::new(true),
            leaving: AtomicBool::new(false),
            paper: Mutex::new(Paper::default()),
            rustle: Condvar::new(),
        })
    }

    /// Start the thread.
    pub(super) fn listen(
        self: &Arc<Self>,
        stream: TcpStream,
        decoder: Decoder,
        rank: usize,
    ) -> io::Result<JoinHandle<()>> {
        let heard = Arc::clone(self);
        Builder::new()
            .name(format!("brigade-watch-{rank}"))
            .stack_size(STACK_BYTES)
            .spawn(move || heard.run(&OursAlone::new(stream), decoder))
    }

    pub(super) fn verdict(&self) -> Option<&Verdict> {
        self.verdict.get()
    }

    /// Decide alone; what has been decided before stands.
    pub(super) fn decide(&self, verdict: Verdict) {
        // Losing against an earlier verdict is what is wanted.
        let _first = self.verdict.set(verdict);
    }

    /// Take a verdict of the root's or, if it gives none, of this rank's own.
    pub(super) fn settle(&self, verdict: Verdict) {
        match verdict {
            Verdict::Lost { rank, how } => self.note_lost(rank, how),
            verdict => self.decide(verdict),
        }
    }

    /// A place for verdicts of a meeting of some ranks: the end of any other rank is none there.
    pub(super) fn meeting(&self, members: Vec<usize>) -> Arc<Self> {
        let meeting = Self::new(Vec::new());
        meeting.stop_listening();
        let mut losses = locked(&self.losses);
        let lost = losses.lost.iter().find(|(rank, _)| members.contains(rank));
        if let Some((&rank, how)) = lost {
            meeting.decide(Verdict::Lost { rank, how: how.clone() });
        }
        losses.meetings.retain(|(_, meeting)| meeting.strong_count() > 0);
        losses.meetings.push((members, Arc::downgrade(&meeting)));
        meeting
    }

    /// How a rank was lost, if it was.
    pub(super) fn lost(&self, rank: usize) -> Option<String> {
        locked(&self.losses).lost.get(&rank).cloned()
    }

    pub(super) fn left_ranks(&self) -> Vec<usize> {
        locked(&self.left).clone()
    }

    pub(super) fn has_left(&self, rank: usize) -> bool {
        locked(&self.left).contains(&rank)
    }

    pub(super) fn has_parted(&self, rank: usize, group: u64) -> bool {
        let partings = locked(&self.partings);
        partings.get(&group).into_iter().flatten().any(|(parted, _)| *parted == rank)
    }

    /// Who has left that communicator, as far as we have asked about it.
    pub(super) fn parted_ranks(&self, group: u64) -> Vec<usize> {
        let partings = locked(&self.partings);
        partings.get(&group).into_iter().flatten().map(|(parted, _)| *parted).collect()
    }

    /// The first that could not join that communicator, and why.
    pub(super) fn unjoined(&self, group: u64) -> Option<(usize, String)> {
        let partings = locked(&self.partings);
        partings.get(&group).into_iter().flatten().find(|(_, why)| !why.is_empty()).cloned()
    }

    /// From now on note who leaves that communicator.
    pub(super) fn ask_about(&self, group: u64) {
        locked(&self.partings).entry(group).or_default();
    }

    /// Nobody waits there any more.
    pub(super) fn forget_group(&self, group: u64) {
        locked(&self.partings).remove(&group);
    }

    /// Count one more report of waiting, unless `most` are unread.
    pub(super) fn may_report(&self, most: u32) -> bool {
        let more = |unread| (unread < most).then_some(unread + 1);
        self.unread.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    pub(super) fn is_listening(&self) -> bool {
        self.listening.load(Ordering::Acquire)
    }

    pub(super) fn stop_listening(&self) {
        self.listening.store(false, Ordering::Release);
    }

    /// From now on the end of the connection means nothing.
    pub(super) fn leave(&self) {
        self.leaving.store(true, Ordering::Release);
    }

    /// Wait for the root's answer to question `token`.
    pub(super) fn answer(&self, token: u32, timeout: Duration) -> Option<Vec<WaitingReport>> {
        let still_open = |paper: &mut Paper| {
            !paper.over && paper.answer.as_ref().is_none_or(|(answered, _)| *answered != token)
        };
        let paper = locked(&self.paper);
        let waited = self.rustle.wait_timeout_while(paper, timeout, still_open);
        let (mut paper, _) = waited.unwrap_or_else(std::sync::PoisonError::into_inner);
        paper.answer.take().filter(|(answered, _)| *answered == token).map(|(_, reports)| reports)
    }

    /// Wait until the thread has stopped reading; whether it has.
    pub(super) fn wait_until_over(&self, timeout: Duration) -> bool {
        let paper = locked(&self.paper);
        let waited = self.rustle.wait_timeout_while(paper, timeout, |paper| !paper.over);
        waited.unwrap_or_else(std::sync::PoisonError::into_inner).0.over
    }

    fn run(&self, stream: &TcpStream, mut decoder: Decoder) {
        let how = self.read_to_end(stream, &mut decoder);
        let beside_root = self.beside_root.iter().copied().find(|rank| !self.has_left(*rank));
        let root_left = !self.beside_root.is_empty() && beside_root.is_none();
        let expected = root_left || self.leaving.load(Ordering::Acquire) || !self.is_listening();
        self.stop_listening();
        match beside_root {
            _ if expected => {}
            Some(rank) => self.note_lost(rank, how),
            None => self.decide(Verdict::RootLost { how }),
        }
        locked(&self.paper).over = true;
        self.rustle.notify_all();
    }

    fn read_to_end(&self, mut stream: &TcpStream, decoder: &mut Decoder) -> String {
        loop {
            loop {
                match decoder.next() {
                    Ok(Some(frame)) => {
                        if let Err(how) = self.take(frame) {
                            return how;
                        }
                    }
                    Ok(None) => break,
                    Err(malformed) => {
                        return format!("it sent bytes that are not ours: {malformed}");
                    }
                }
            }
            match decoder.read(&mut stream) {
                Ok(0) => return "its process ended or closed the connection".into(),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return format!("the connection to it broke: {error}"),
            }
        }
    }

    fn take(&self, frame: Frame) -> Result<(), String> {
        match frame {
            Frame::Verdict(verdict) => self.settle(verdict),
            Frame::Lost { rank, how } => self.note_lost(rank as usize, how),
            Frame::Left { rank } => self.note_left(rank as usize),
            Frame::LeftGroup { rank, group, why } => {
                let rank = rank as usize;
                if let Some(parted) = locked(&self.partings).get_mut(&group)
                    && parted.iter().all(|(known, _)| *known != rank)
                {
                    parted.push((rank, why));
                }
            }
            Frame::Noted => {
                let less = |unread: u32| unread.checked_sub(1);
                self.unread
                    .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less)
                    .map_err(|_| "it notes what was not said")?;
            }
            Frame::RootEnds => self.stop_listening(),
            Frame::Answer { token, reports } => {
                locked(&self.paper).answer = Some((token, reports));
                self.rustle.notify_all();
            }
            _ => return Err("it sent a frame that only ranks send".into()),
        }
        Ok(())
    }

    /// The first loss is a verdict; later ones concern those who meet without the ones before.
    pub(super) fn note_lost(&self, rank: usize, how: String) {
        let lost = Verdict::Lost { rank, how: how.clone() };
        let mut losses = locked(&self.losses);
        for (_, meeting) in losses.meetings.iter().filter(|(members, _)| members.contains(&rank)) {
            if let Some(meeting) = meeting.upgrade() {
                meeting.decide(lost.clone());
            }
        }
        losses.lost.entry(rank).or_insert(how);
        drop(losses);
        self.decide(lost);
    }

    fn note_left(&self, rank: usize) {
        let mut left = locked(&self.left);
        if !left.contains(&rank) {
            left.push(rank);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_groups_that_come_and_go_nothing_is_kept() {
        let heard = Heard::new(Vec::new());
        for group in 0..1000 {
            let why = String::new;
            let left = |rank| heard.take(Frame::LeftGroup { rank, group, why: why() }).unwrap();
            left(1);
            assert!(!heard.has_parted(1, group), "it was not asked for");
            heard.ask_about(group);
            [2, 2].into_iter().for_each(left);
            assert!(heard.has_parted(2, group) && !heard.has_parted(2, group + 1));
            heard.forget_group(group);
            left(3);
        }
        assert!(locked(&heard.partings).is_empty());
    }
}
