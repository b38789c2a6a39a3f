//! The harness of these tests: worlds of threads under a watchdog, and lists of calls that a judge
//! has decided beforehand.

use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use brigade_comm::naive::{NaiveCall, expected, fill};
use brigade_comm::transports::transports;
use brigade_comm::{Buffers, Call, Communicator, Counts, Dtype, Op, Settings};
use brigade_schedule::Collective;
use brigade_transports::Transport;
use brigade_transports::loopback::{Clock, World};

use crate::hosted::Hosted;

/// `late` is loopback with wires that read lent memory as late as they may, `sealed` TCP that
/// encrypts.
pub(crate) const TRANSPORTS: [&str; 5] = ["loopback", "late", "shm", "tcp", "sealed"];

/// What hangs shall fail, not hang; what is only slow on a loaded machine shall not fail.
const WATCHDOG: Duration = Duration::from_secs(60);

/// Settings of a world over one transport. A call that stands still ends before the watchdog barks.
pub(crate) fn over(transport: &str) -> Settings {
    let timeout = Duration::from_secs(40);
    let encrypt = transport == "sealed";
    Settings { transport: transport.into(), timeout, encrypt, ..Settings::default() }
}

/// Be every rank of a new world, a thread each; returns what each came to, by rank.
///
/// Panics if a rank does, or if one is not done when the watchdog barks.
pub(crate) fn each_rank<R, F>(ranks: usize, settings: &Settings, body: F) -> Vec<R>
where
    R: Send + 'static,
    F: Fn(Communicator) -> R + Send + Sync + 'static,
{
    let members = match special(ranks, settings) {
        Some(transports) => Communicator::local_world_over(ranks, settings, &transports),
        None => Communicator::local_world(ranks, settings),
    };
    let members = members.expect("a world");
    let (done, outcomes) = mpsc::channel();
    let body = Arc::new(body);
    for member in members {
        let (done, body) = (done.clone(), Arc::clone(&body));
        std::thread::spawn(move || {
            let rank = member.rank();
            let outcome = body(member);
            // The watchdog may have given up on us.
            let _ = done.send((rank, outcome));
        });
    }
    drop(done);
    let mut results: Vec<Option<R>> = (0..ranks).map(|_| None).collect();
    let deadline = Instant::now() + WATCHDOG;
    let end = loop {
        match outcomes.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok((rank, outcome)) => results[rank] = Some(outcome),
            Err(end) => break end,
        }
    };
    let missing: Vec<usize> = (0..ranks).filter(|&rank| results[rank].is_none()).collect();
    let what = if end == mpsc::RecvTimeoutError::Timeout { "hang" } else { "panicked" };
    assert!(missing.is_empty(), "{}: ranks {missing:?} of {ranks} {what}", settings.transport);
    results.into_iter().flatten().collect()
}

/// The transports of worlds that only tests have.
pub(crate) fn special(ranks: usize, settings: &Settings) -> Option<Vec<Arc<dyn Transport>>> {
    let shm = || transports(&over("shm")).expect("a name").remove(0);
    let tcp = || transports(&Settings { transport: "tcp".into(), ..settings.clone() });
    Some(match &*settings.transport {
        "late" => vec![Arc::new(World::new(ranks).late_sends().transport())],
        "sealed" => {
            assert!(settings.encrypt);
            tcp().expect("a name")
        }
        "loopback without windows" => {
            let memory = World::new(ranks).clock(Clock::Real).transport();
            vec![Hosted::transport(Arc::new(memory), 1, false)]
        }
        "loopback without wires" => {
            let memory = World::new(ranks).clock(Clock::Real).transport();
            vec![Hosted::without_wires(Arc::new(memory))]
        }
        "loopback that lies at first" => {
            let memory = World::new(ranks).clock(Clock::Real).transport();
            vec![Hosted::lying_at_first(Arc::new(memory))]
        }
        "shm without windows" => vec![Hosted::transport(shm(), 1, false)],
        "shm without windows on one" => vec![Hosted::without_windows_on_one(shm())],
        "shm in two hosts" => {
            let mut all = vec![Hosted::transport(shm(), 2, true)];
            all.extend(tcp().expect("a name"));
            all
        }
        "tcp to every other one, then shm" => {
            let tcp = tcp().expect("a name").remove(0);
            vec![Hosted::transport(tcp, 2, false), shm()]
        }
        "shm refusing at first" => vec![Hosted::refusing_at_first(shm())],
        "tcp refusing at first" => {
            vec![Hosted::refusing_at_first(tcp().expect("a name").remove(0))]
        }
        "tcp, then shm refusing at first" => {
            vec![tcp().expect("a name").remove(0), Hosted::refusing_at_first(shm())]
        }
        "shm refusing once" => vec![Hosted::refusing_once(shm())],
        "tcp refusing once" => vec![Hosted::refusing_once(tcp().expect("a name").remove(0))],
        _ => return None,
    })
}

/// One call, as all ranks make it. `counts` has one entry for equal blocks, else one a block.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) collective: Collective,
    pub(crate) dtype: Dtype,
    pub(crate) op: Op,
    pub(crate) counts: Vec<usize>,
    pub(crate) in_place: bool,
}

/// A case with what every rank brings, and what each must end with.
pub(crate) struct Judged {
    pub(crate) case: Case,
    inputs: Vec<Vec<u8>>,
    wanted: Vec<Option<Vec<u8>>>,
}

/// Let the judge decide cases on data that fold to the same bits in every order.
pub(crate) fn judge(ranks: u32, cases: Vec<Case>) -> Vec<Arc<Judged>> {
    let judged = |case: Case| {
        let inputs = inputs(&case, ranks);
        judge_inputs(case, inputs)
    };
    cases.into_iter().map(judged).map(Arc::new).collect()
}

/// Let the judge decide a case on the caller's own data, an input for each rank.
pub(crate) fn judge_inputs(case: Case, inputs: Vec<Vec<u8>>) -> Judged {
    let wanted = expected(&case.naive(inputs.len() as u32), &inputs);
    Judged { case, inputs, wanted }
}

/// Run every case on one world and compare every rank's bytes with the judge's.
pub(crate) fn check(ranks: u32, settings: &Settings, judged: &[Arc<Judged>]) {
    let (judged, wish) = (judged.to_vec(), settings.clone());
    each_rank(ranks as usize, settings, move |member| {
        let rank = member.rank();
        for Judged { case, inputs, wanted } in judged.iter().map(|judged| &**judged) {
            let got = run(&member, case, &inputs[rank]);
            let Some(want) = &wanted[rank] else { continue };
            let wrong = got.iter().zip(want).position(|(got, want)| got != want);
            assert!(
                got == *want,
                "rank {rank} of {ranks}, {}, {:?}, {case:?}: wrong from byte {wrong:?}",
                wish.transport,
                wish.algorithm
            );
        }
    });
}

impl Case {
    fn naive(&self, ranks: u32) -> NaiveCall {
        let blocks = self.collective.blocks(ranks) as usize;
        let counts =
            if self.counts.len() == 1 { vec![self.counts[0]; blocks] } else { self.counts.clone() };
        NaiveCall { collective: self.collective, dtype: self.dtype, op: self.op.clone(), counts }
    }

    pub(crate) fn call(&self, ranks: usize, rank: usize) -> Call {
        let counts = match (self.counts.len(), self.collective) {
            (1, _) => Counts::Even(self.counts[0]),
            (_, Collective::AllToAll) => Counts::PerPair {
                to: self.counts[rank * ranks..][..ranks].into(),
                from: (0..ranks).map(|source| self.counts[source * ranks + rank]).collect(),
            },
            _ => Counts::PerRank(Arc::from(&self.counts[..])),
        };
        Call { collective: self.collective, dtype: self.dtype, op: self.op.clone(), counts }
    }
}

fn inputs(case: &Case, ranks: u32) -> Vec<Vec<u8>> {
    let naive = case.naive(ranks);
    let blocks = 0..case.collective.blocks(ranks);
    (0..ranks)
        .map(|rank| {
            let brings = |block: &u32| case.collective.has_input(ranks, rank, *block);
            let count = blocks.clone().filter(brings).map(|b| naive.counts[b as usize]).sum();
            fill(case.dtype, &case.op, rank, ranks, 7, count)
        })
        .collect()
}

/// Make one call and return this rank's output bytes.
fn run(member: &Communicator, case: &Case, input: &[u8]) -> Vec<u8> {
    let (ranks, rank) = (member.size(), member.rank());
    let call = case.call(ranks, rank);
    let (ins, outs) = call.buffer_elems(ranks as u32, rank as u32);
    let size = case.dtype.size();
    if let Some(wish) = member.settings().algorithm {
        assert_eq!(member.algorithm_for(&call).expect("a call"), wish, "{case:?}");
    }
    if !case.in_place {
        let (before, mut output) = (input.to_vec(), vec![0xEE; outs * size]);
        member.run(&call, Buffers::OutOfPlace { input, output: &mut output }).expect("a call");
        assert_eq!(input, before, "{case:?}: the input of rank {rank} was changed");
        return output;
    }
    let own: usize = match &call.counts {
        Counts::Even(count) => rank * count,
        Counts::PerRank(counts) => counts[..rank].iter().sum(),
        Counts::PerPair { .. } => 0,
    };
    let mut buffer = vec![0xEE; ins.max(outs) * size];
    let at = |smaller: bool| if smaller { own * size } else { 0 };
    let from = at(ins < outs && ins > 0);
    buffer[from..from + ins * size].copy_from_slice(input);
    member.run(&call, Buffers::InPlace(&mut buffer)).expect("a call");
    let from = at(outs < ins && outs > 0);
    if outs == 0 {
        assert_eq!(buffer, input, "{case:?}: rank {rank} gets nothing, but its buffer changed");
    }
    buffer[from..from + outs * size].to_vec()
}
