//! One rank with its device, and every collective checked against sums on the host.

use std::ffi::c_int;
use std::sync::{Mutex, MutexGuard, PoisonError};

use brigade_cuda::{Context, Cuda, DeviceMemory, Stream};
pub(crate) use brigade_cuda_fake::has_device;

use super::library::{AVG, Address, F32, INVALID_ARGUMENT, MAX, Nccl, SUM, UniqueId};

/// Elements of the longest buffer.
pub(crate) const ROOM: usize = 4 * 20_000 + 1;
/// What lies in outputs before a call.
const STALE: f32 = -1.0;

pub(crate) struct Rank {
    pub(crate) nccl: &'static Nccl,
    pub(crate) comm: Address,
    pub(crate) rank: usize,
    pub(crate) ranks: usize,
    pub(crate) stream: Stream,
    input: DeviceMemory,
    output: DeviceMemory,
}

/// One world at a time: the machine has few cores and a fake device is hungry.
pub(crate) fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The first device, which ranks share.
pub(crate) fn context() -> Context {
    context_of(0)
}

pub(crate) fn context_of(device: usize) -> Context {
    let device = Cuda::load().expect("a driver").device(device as u32).expect("a device");
    Context::new(&device).expect("a context")
}

/// An id that ranks meet by.
pub(crate) fn unique_id() -> UniqueId {
    let mut id = UniqueId([0; 128]);
    let nccl = Nccl::get();
    // SAFETY: there is room for it.
    nccl.ok(unsafe { (nccl.unique_id)(&mut id) });
    id
}

/// What a rank brings: small numbers, every sum of which is exact.
pub(crate) fn brings(rank: usize, count: usize) -> Vec<f32> {
    (0..count).map(|at| ((at * 7 + rank * 3) % 5 + 1) as f32).collect()
}

pub(crate) fn bytes(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_ne_bytes()).collect()
}

pub(crate) fn read(memory: &DeviceMemory, stream: &Stream, count: usize) -> Vec<f32> {
    let mut bytes = vec![0; 4 * count];
    memory.read(stream, 0, &mut bytes).expect("a copy");
    bytes.chunks_exact(4).map(|word| f32::from_ne_bytes(word.try_into().unwrap())).collect()
}

impl Rank {
    /// Join, on the device of a context that is current meanwhile.
    pub(crate) fn join(context: &Context, id: UniqueId, rank: usize, ranks: usize) -> Self {
        let nccl = Nccl::get();
        let _here = context.enter().expect("a context");
        let mut comm = 0;
        // SAFETY: there is room for it.
        nccl.ok(unsafe { (nccl.init_rank)(&mut comm, ranks as c_int, id, rank as c_int) });
        Self::of(context, comm, rank, ranks)
    }

    pub(crate) fn of(context: &Context, comm: Address, rank: usize, ranks: usize) -> Self {
        let stream = Stream::new(context).expect("a stream");
        let memory = || DeviceMemory::new(context, 4 * ROOM).expect("memory");
        let (input, output) = (memory(), memory());
        let (nccl, at) = (Nccl::get(), output.address() as Address);
        // The fake's memory could be read by the host: make sure that nobody takes it for that.
        // A driver may have rounded the allocation up, to 2 MiB at the most.
        let beyond = ROOM + (2 << 20) / 4;
        // SAFETY: it is refused.
        let result = unsafe { (nccl.bcast)(at, beyond, F32, 0, comm, stream.raw().addr()) };
        nccl.refused(result, INVALID_ARGUMENT, "its allocation ends");
        Self { nccl, comm, rank, ranks, stream, input, output }
    }

    pub(crate) fn input(&self) -> Address {
        self.input.address() as Address
    }

    pub(crate) fn output(&self) -> Address {
        self.output.address() as Address
    }

    pub(crate) fn raw(&self) -> Address {
        self.stream.raw().addr()
    }

    pub(crate) fn write(&mut self, numbers: &[f32]) {
        self.input.write(&self.stream, 0, &bytes(numbers)).expect("a copy");
    }

    pub(crate) fn write_output(&mut self, numbers: &[f32]) {
        self.output.write(&self.stream, 0, &bytes(numbers)).expect("a copy");
    }

    /// Wait for the stream, and see what came out.
    pub(crate) fn result(&self, count: usize) -> Vec<f32> {
        read(&self.output, &self.stream, count)
    }

    /// Make a call on what this rank brings, in its stream, and compare what comes out.
    #[track_caller]
    fn check(
        &mut self,
        (name, brought): (&str, usize),
        wanted: &[f32],
        call: impl FnOnce(&Nccl, Address, Address, Address, Address) -> c_int,
    ) {
        let stale = vec![STALE; wanted.len() + 1];
        self.output.write(&self.stream, 0, &bytes(&stale)).expect("a copy");
        self.write(&brings(self.rank, brought));
        let result = call(self.nccl, self.input(), self.output(), self.comm, self.raw());
        self.nccl.ok(result);
        let got = self.result(wanted.len() + 1);
        let (rank, ranks) = (self.rank, self.ranks);
        let wrong = got.iter().zip(wanted).position(|(got, wanted)| got != wanted);
        assert_eq!(wrong, None, "{name} of {brought} elements on rank {rank} of {ranks}");
        assert_eq!(got[wanted.len()], STALE, "{name}: beyond the end");
    }

    /// Every collective, and messages, on blocks of so many elements.
    pub(crate) fn collectives(&mut self, count: usize) {
        let (rank, ranks, root) = (self.rank, self.ranks, self.ranks - 1);
        let parts: Vec<Vec<f32>> = (0..ranks).map(|rank| brings(rank, ranks * count)).collect();
        let sum = |at: usize| parts.iter().map(|part| part[at]).sum::<f32>();
        let sums: Vec<f32> = (0..ranks * count).map(sum).collect();
        let max = |at: usize| parts.iter().map(|part| part[at]).fold(0.0, f32::max);
        let maxima: Vec<f32> = (0..count).map(max).collect();
        let means: Vec<f32> = sums[..count].iter().map(|sum| sum / ranks as f32).collect();
        let all: Vec<f32> = parts.iter().flat_map(|part| part[..count].to_vec()).collect();
        let own = rank * count..(rank + 1) * count;
        let columns: Vec<f32> = parts.iter().flat_map(|part| part[own.clone()].to_vec()).collect();
        let only = |numbers: &[f32]| if rank == root { numbers.to_vec() } else { Vec::new() };
        let to = root as c_int;
        // SAFETY: the buffers are longer than the call, and waited for.
        self.check(("all-reduce", count), &sums[..count], |n, i, o, c, s| unsafe {
            (n.all_reduce)(i, o, count, F32, SUM, c, s)
        });
        // SAFETY: the buffers are longer than the call, and waited for.
        self.check(("greatest", count), &maxima, |n, i, o, c, s| unsafe {
            (n.all_reduce)(i, o, count, F32, MAX, c, s)
        });
        // SAFETY: the buffers are longer than the call, and waited for.
        self.check(("mean", count), &means, |n, i, o, c, s| unsafe {
            (n.all_reduce)(i, o, count, F32, AVG, c, s)
        });
        // SAFETY: the buffers are longer than the call, and waited for.
        self.check(("reduce-scatter", ranks * count), &sums[own.clone()], |n, i, o, c, s| unsafe {
            (n.reduce_scatter)(i, o, count, F32, SUM, c, s)
        });
        // SAFETY: the buffers are longer than the call, and waited for.
        self.check(("all-gather", count), &all, |n, i, o, c, s| unsafe {
            (n.all_gather)(i, o, count, F32, c, s)
        });
        // SAFETY: the buffers are longer than the call, and waited for.
        self.check(("all-to-all", ranks * count), &columns, |n, i, o, c, s| unsafe {
            (n.all_to_all)(i, o, count, F32, c, s)
        });
        // SAFETY: the buffers are longer than the call, and waited for.
        self.check(("broadcast", count), &parts[root][..count], |n, i, o, c, s| unsafe {
            (n.broadcast)(i, o, count, F32, to, c, s)
        });
        // SAFETY: the buffers are longer than the call, and waited for.
        self.check(("reduce", count), &only(&sums[..count]), |n, i, o, c, s| unsafe {
            (n.reduce)(i, o, count, F32, SUM, to, c, s)
        });
        // SAFETY: the buffers are longer than the call, and waited for.
        self.check(("gather", count), &only(&all), |n, i, o, c, s| unsafe {
            (n.gather)(i, o, count, F32, to, c, s)
        });
        let last = &parts[(rank + ranks - 1) % ranks][..count];
        let (next, from) = (((rank + 1) % ranks) as c_int, ((rank + ranks - 1) % ranks) as c_int);
        // SAFETY: the buffers are longer than the call, and waited for.
        self.check(("a message", count), last, |n, i, o, c, s| unsafe {
            n.ok((n.group_start)());
            n.ok((n.send)(i, count, F32, next, c, s));
            n.ok((n.recv)(o, count, F32, from, c, s));
            (n.group_end)()
        });
        self.in_place(count, &sums[..count], &parts[root][..count]);
    }

    /// In place, as NCCL has it.
    fn in_place(&mut self, count: usize, sums: &[f32], of_root: &[f32]) {
        let (nccl, at, raw) = (self.nccl, self.output(), self.raw());
        for (wanted, sums_up) in [(sums, true), (of_root, false)] {
            let mine = bytes(&brings(self.rank, count));
            self.output.write(&self.stream, 0, &mine).expect("a copy");
            let root = self.ranks as c_int - 1;
            // SAFETY: the buffer is longer than the call, and waited for.
            nccl.ok(unsafe {
                match sums_up {
                    true => (nccl.all_reduce)(at, at, count, F32, SUM, self.comm, raw),
                    false => (nccl.bcast)(at, count, F32, root, self.comm, raw),
                }
            });
            assert_eq!(self.result(count), wanted, "in place, rank {}", self.rank);
        }
    }

    /// Leave; the buffers go when all have come here.
    pub(crate) fn leave(self, meet: impl FnOnce()) {
        // SAFETY: nobody calls it any more.
        self.nccl.ok(unsafe { (self.nccl.destroy)(self.comm) });
        meet();
    }
}
