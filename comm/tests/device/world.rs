//! Ranks with devices, and one way to check a call on all of them.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use brigade_comm::device::{DeviceGroup, DeviceMessage, Way};
use brigade_comm::launch::Launch;
use brigade_comm::naive::{NaiveCall, expected, fill};
use brigade_comm::{Call, Communicator, Counts, Dtype, Op, Settings};
use brigade_cuda::{Context, Cuda, DeviceMemory, Stream};
pub(crate) use brigade_cuda_fake::has_device;
use brigade_cuda_fake::is_off;
use brigade_schedule::Collective;

use super::processes::is_rank;

/// What lies in outputs before a call.
const STALE: u8 = 0xa5;

/// One rank with its device.
pub(crate) struct Rank {
    pub(crate) group: DeviceGroup,
    pub(crate) comm: Communicator,
    pub(crate) stream: Stream,
}

/// The machine has two cores and a fake device is hungry: one world at a time.
pub(crate) fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The context of a rank: ranks take the devices in turn. All of them stay, as in most programs:
/// the last one that goes ends it, and to make it anew takes a device as long as many a test.
pub(crate) fn context(rank: usize) -> Context {
    static KEPT: OnceLock<Vec<Context>> = OnceLock::new();
    let all = KEPT.get_or_init(|| {
        let devices = Cuda::load().expect("the fake driver").devices().expect("devices");
        devices.iter().map(|device| Context::new(device).expect("a context")).collect()
    });
    all[rank % all.len()].clone()
}

/// A rank of this launch, on this device.
pub(crate) fn join(launch: Launch, device: usize) -> Rank {
    let settings = Settings::from_env().expect("settings");
    let comm = Communicator::join(launch, settings).expect("a world");
    let context = context(device);
    let group = comm.on_device(&context).expect("a group on devices");
    let stream = Stream::new(&context).expect("a stream");
    Rank { group, comm, stream }
}

/// Run `body` on so many ranks, which are threads.
pub(crate) fn ranks(count: usize, settings: &Settings, body: impl Fn(&Rank) + Sync) {
    let mut settings = Settings { transport: "loopback".into(), ..settings.clone() };
    // Whoever waits for longer says where it stands. On a device nothing compiles for long, and
    // time there is dear.
    let most = Duration::from_secs(if is_off() { 30 } else { 120 });
    settings.timeout = settings.timeout.min(most);
    let world = Communicator::local_world(count, &settings).expect("a world");
    std::thread::scope(|scope| {
        for (rank, comm) in world.into_iter().enumerate() {
            let body = &body;
            scope.spawn(move || {
                let context = context(rank);
                let group = comm.on_device(&context).expect("a group on devices");
                let stream = Stream::new(&context).expect("a stream");
                let rank = Rank { group, comm, stream };
                body(&rank);
                // Boards go when nobody's kernel waits; a world that has ended has none.
                let _ = rank.comm.barrier();
            });
        }
    });
}

/// Have kernels compiled that add or else fold such elements, which may take longer at a first run
/// than processes with a short deadline have.
pub(crate) fn compile(dtype: Dtype, op: &Op) {
    if is_rank() || !has_device() {
        return;
    }
    let _turn = turn();
    let case = even(Collective::AllReduce, dtype, op.clone(), 16, 2);
    ranks(2, &Settings::default(), |rank| rank.check(&case, 1));
}

/// A call with these counts, one for each block.
pub(crate) fn case(collective: Collective, dtype: Dtype, op: Op, counts: Vec<usize>) -> NaiveCall {
    NaiveCall { collective, dtype, op, counts }
}

/// The same with as many elements in every block.
pub(crate) fn even(
    collective: Collective,
    dtype: Dtype,
    op: Op,
    count: usize,
    ranks: usize,
) -> NaiveCall {
    case(collective, dtype, op, vec![count; collective.blocks(ranks as u32) as usize])
}

/// The call as `rank` makes it.
pub(crate) fn call(case: &NaiveCall, ranks: usize, rank: usize) -> Call {
    let same = case.counts.windows(2).all(|pair| pair[0] == pair[1]);
    let counts = if same {
        Counts::Even(case.counts[0])
    } else if case.collective == Collective::AllToAll {
        let to = case.counts[rank * ranks..][..ranks].into();
        let from = case.counts.iter().skip(rank).step_by(ranks).copied().collect();
        Counts::PerPair { to, from }
    } else {
        Counts::PerRank(case.counts.clone().into())
    };
    Call { collective: case.collective, dtype: case.dtype, op: case.op.clone(), counts }
}

impl Rank {
    /// Memory on the device with these bytes.
    pub(crate) fn memory(&self, bytes: &[u8]) -> DeviceMemory {
        let context = self.group.context();
        let mut memory = DeviceMemory::new(context, bytes.len()).expect("memory");
        memory.write(&self.stream, 0, bytes).expect("a copy");
        memory
    }

    /// The same, once all ranks have theirs: allocating may wait for the device, too.
    pub(crate) fn memory_of_each(&self, bytes: &[u8]) -> DeviceMemory {
        let memory = self.memory(bytes);
        self.comm.barrier().expect("a barrier");
        memory
    }

    pub(crate) fn bytes(&self, memory: &DeviceMemory) -> Vec<u8> {
        let mut bytes = vec![0; memory.bytes()];
        memory.read(&self.stream, 0, &mut bytes).expect("a copy");
        bytes
    }

    /// Make the call out of place and, where there is such a thing, in place; compare every byte.
    pub(crate) fn check(&self, case: &NaiveCall, seed: u64) {
        let (ranks, rank) = (self.comm.size(), self.comm.rank());
        let call = |rank| call(case, ranks, rank);
        let input = |rank: usize| {
            let elems = call(rank).buffer_elems(ranks as u32, rank as u32).0;
            fill(case.dtype, &case.op, rank as u32, ranks as u32, seed, elems)
        };
        let inputs: Vec<Vec<u8>> = (0..ranks).map(input).collect();
        let wanted = expected(case, &inputs).swap_remove(rank).unwrap_or_default();
        let what = format!("{} on rank {rank} of {ranks}, seed {seed}", call(rank));
        let source = self.memory(&inputs[rank]);
        let target = self.memory(&vec![STALE; wanted.len()]);
        self.run(&call(rank), source.address(), target.address());
        assert_eq!(self.bytes(&target), wanted, "{what}");
        assert_eq!(self.bytes(&source), inputs[rank], "the input of {what}");
        self.free(vec![source, target]);
        self.check_in_place(case, &call(rank), &inputs[rank], &wanted, &what);
    }

    /// Freeing waits for the device: nobody's kernel may wait for us meanwhile.
    pub(crate) fn free(&self, memory: Vec<DeviceMemory>) {
        self.comm.barrier().expect("a barrier");
        drop(memory);
        self.comm.barrier().expect("a barrier");
    }

    fn check_in_place(
        &self,
        case: &NaiveCall,
        call: &Call,
        input: &[u8],
        wanted: &[u8],
        what: &str,
    ) {
        let is_uneven = !matches!(call.counts, Counts::Even(_));
        if is_uneven && case.collective == Collective::AllToAll {
            return;
        }
        let rank = self.comm.rank();
        let before = match input.len() == wanted.len() || input.is_empty() || wanted.is_empty() {
            true => 0,
            false => case.counts[..rank].iter().sum::<usize>() * case.dtype.size(),
        };
        let mut whole = vec![STALE; input.len().max(wanted.len())];
        let (input_at, output_at) =
            if input.len() > wanted.len() { (0, before) } else { (before, 0) };
        whole[input_at..][..input.len()].copy_from_slice(input);
        let memory = self.memory(&whole);
        let start = memory.address();
        self.run(call, start + input_at as u64, start + output_at as u64);
        let found = self.bytes(&memory);
        assert_eq!(&found[output_at..][..wanted.len()], wanted, "{what}, in place");
        self.free(vec![memory]);
    }

    /// Make a call on buffers as long as it says, and wait for its end.
    pub(crate) fn run(&self, call: &Call, input: u64, output: u64) {
        // Allocating may wait for the device, too.
        self.comm.barrier().expect("a barrier");
        // SAFETY: the buffers are as long as the call says, and outlive the wait.
        let work = unsafe { self.group.start(call, input, output, &self.stream) };
        work.expect("the call").wait().expect("the call's end");
    }

    /// Send two messages of so many bytes to the right and one to ourselves, while as many come.
    pub(crate) fn pass_around(&self, bytes: usize) {
        let (count, me) = (self.comm.size(), self.comm.rank());
        let (left, right) = ((me + count - 1) % count, (me + 1) % count);
        let out = [1, 2].map(|turn| self.memory(&vec![(10 * me + turn) as u8; bytes]));
        let into = [0, 0, 0].map(|stale| self.memory(&vec![stale; bytes]));
        let at = |memory: &DeviceMemory| memory.address();
        let list = [
            DeviceMessage::send(Dtype::U8, at(&out[0]), bytes, right),
            DeviceMessage::send(Dtype::U8, at(&out[1]), bytes, right),
            DeviceMessage::send(Dtype::U8, at(&out[0]), bytes, me),
            DeviceMessage::recv(Dtype::U8, at(&into[0]), bytes, left),
            DeviceMessage::recv(Dtype::U8, at(&into[1]), bytes, left),
            DeviceMessage::recv(Dtype::U8, at(&into[2]), bytes, me),
        ];
        self.comm.barrier().expect("a barrier");
        // SAFETY: each message has memory of its own, of its length.
        unsafe { self.group.messages(&list, &self.stream) }.expect("messages");
        self.group.mark(&self.stream).expect("a work").wait().expect("their end");
        let wanted = [10 * left + 1, 10 * left + 2, 10 * me + 1];
        for (memory, wanted) in into.iter().zip(wanted) {
            assert!(self.bytes(memory) == vec![wanted as u8; bytes], "rank {me}, {bytes} bytes");
        }
        self.free(out.into_iter().chain(into).collect());
    }

    pub(crate) fn assert_way(&self, way: Way) {
        assert_eq!(self.group.way(), way, "rank {}", self.comm.rank());
    }
}
