//! Ranks that are threads of one process and share a device.

use std::ffi::c_int;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use brigade_cuda::{Context, DeviceMemory, Pinned, Stream};

use super::library::{Address, Config, F32, INVALID_ARGUMENT, INVALID_USAGE, Nccl, SUCCESS, SUM};
use super::rank::{Rank, brings, bytes, context, has_device, read, turn, unique_id};

/// Run `body` on so many ranks.
pub(crate) fn ranks(count: usize, body: impl Fn(&mut Rank, &Barrier) + Sync) {
    if !has_device() {
        return;
    }
    let _turn = turn();
    let (id, all) = (unique_id(), Barrier::new(count));
    std::thread::scope(|scope| {
        for number in 0..count {
            let (body, all) = (&body, &all);
            scope.spawn(move || {
                let mut rank = Rank::join(&context(), id, number, count);
                // Each has allocated its buffers, which may wait for the device.
                all.wait();
                body(&mut rank, all);
                rank.leave(|| {
                    all.wait();
                });
            });
        }
    });
}

/// Run `body` in one thread that has both ranks of a communicator, on one device.
fn both_ranks(body: impl FnOnce(&'static Nccl, &Context, [Address; 2])) {
    if !has_device() {
        return;
    }
    let _turn = turn();
    let (nccl, context) = (Nccl::get(), context());
    let mut comms = [0; 2];
    // SAFETY: there is room for as many.
    nccl.ok(unsafe { (nccl.init_all)(comms.as_mut_ptr(), 2, [0, 0].as_ptr()) });
    body(nccl, &context, comms);
    for comm in comms {
        // SAFETY: nobody calls it any more.
        nccl.ok(unsafe { (nccl.destroy)(comm) });
    }
}

/// With as many blocks of a call as a config says, and as the parts of a communicator inherit.
#[test]
fn calls_of_few_blocks_are_the_same_calls() {
    if !has_device() {
        return;
    }
    let _turn = turn();
    let (nccl, id, all) = (Nccl::get(), unique_id(), Barrier::new(2));
    let body = |number: usize| {
        let context = context();
        let here = context.enter().unwrap();
        let (mut comm, mut part, config) = (0, 0, Config::at_most(1));
        // SAFETY: the places and the config are there for the calls.
        unsafe {
            nccl.ok((nccl.init_rank_config)(&mut comm, 2, id, number as c_int, &config));
            nccl.ok((nccl.split)(comm, 0, number as c_int, &mut part, 0));
        }
        drop(here);
        for comm in [comm, part] {
            let mut rank = Rank::of(&context, comm, number, 2);
            all.wait();
            [1, 20_000].into_iter().for_each(|elems| rank.collectives(elems));
            rank.leave(|| {
                all.wait();
            });
        }
    };
    std::thread::scope(|scope| {
        (0..2).for_each(|number| drop(scope.spawn(move || body(number))));
    });
}

#[test]
fn threads_on_one_device_make_every_call() {
    for count in [2, 4] {
        ranks(count, |rank, _| {
            for elems in [1, 1000, 20_000] {
                rank.collectives(elems);
            }
        });
    }
}

#[test]
fn calls_keep_the_order_of_their_streams() {
    ranks(2, |rank, all| {
        let context = rank.stream.context().clone();
        let streams = [0; 2].map(|_| Stream::new(&context).expect("a stream"));
        let mut buffers = [0; 2].map(|_| DeviceMemory::new(&context, 4 * 9000).expect("memory"));
        for (at, (buffer, stream)) in buffers.iter_mut().zip(&streams).enumerate() {
            let numbers: Vec<f32> = brings(at, 9000);
            buffer.write(stream, 0, &bytes(&numbers)).expect("a copy");
        }
        // Nothing waits between calls, each of which needs the result of the one before.
        for _ in 0..10 {
            for (buffer, stream) in buffers.iter().zip(&streams) {
                let (at, raw) = (buffer.address() as usize, stream.raw().addr());
                // SAFETY: the buffer is as long as the call, and waited for below.
                let result =
                    unsafe { (rank.nccl.all_reduce)(at, at, 9000, F32, SUM, rank.comm, raw) };
                rank.nccl.ok(result);
            }
        }
        for (at, (buffer, stream)) in buffers.iter().zip(&streams).enumerate() {
            let wanted: Vec<f32> = brings(at, 9000).iter().map(|number| number * 1024.0).collect();
            assert!(read(buffer, stream, 9000) == wanted, "stream {at}");
        }
        all.wait();
    });
}

#[test]
fn messages_of_a_group_may_be_in_several_streams() {
    ranks(2, |rank, all| {
        rank.write(&brings(rank.rank, 5000));
        let other = Stream::new(rank.stream.context()).expect("a stream");
        // Making one may wait for kernels that wait for this rank.
        all.wait();
        let (nccl, peer, raw) = (rank.nccl, 1 - rank.rank as c_int, rank.raw());
        // SAFETY: the buffers are longer than the messages, and waited for.
        unsafe {
            nccl.ok((nccl.group_start)());
            nccl.ok((nccl.send)(rank.input(), 5000, F32, peer, rank.comm, other.raw().addr()));
            nccl.ok((nccl.recv)(rank.output(), 5000, F32, peer, rank.comm, raw));
            nccl.ok((nccl.group_end)());
        }
        assert_eq!(rank.result(5000), brings(peer as usize, 5000));
    });
}

#[test]
fn the_default_stream_of_a_device_does_for_all_its_ranks() {
    ranks(2, |rank, all| {
        for _ in 0..3 {
            rank.write(&brings(rank.rank, 3000));
            let (from, to) = (rank.input(), rank.output());
            // SAFETY: the buffers are longer than the call, and waited for.
            let result = unsafe { (rank.nccl.all_reduce)(from, to, 3000, F32, SUM, rank.comm, 0) };
            rank.nccl.ok(result);
            let pairs = brings(0, 3000).into_iter().zip(brings(1, 3000));
            assert_eq!(rank.result(3000), pairs.map(|(one, two)| one + two).collect::<Vec<_>>());
        }
        all.wait();
    });
}

#[test]
fn one_thread_may_have_all_ranks_in_a_group() {
    both_ranks(|nccl, context, comms| {
        let join = |rank: usize| Rank::of(context, comms[rank], rank, 2);
        let mut world = [0, 1].map(join);
        let mut on_host = [1.5_f32; 2];
        for _ in 0..3 {
            // SAFETY: the buffers are longer than the calls, and waited for.
            unsafe {
                nccl.ok((nccl.group_start)());
                for rank in &mut world {
                    rank.write(&brings(rank.rank, 9000));
                    let (from, to, raw) = (rank.input(), rank.output(), rank.raw());
                    nccl.ok((nccl.all_gather)(from, to, 9000, F32, rank.comm, raw));
                    // What lies with the host is done when the group ends.
                    let at = on_host.as_mut_ptr().add(rank.rank).expose_provenance();
                    nccl.ok((nccl.all_reduce)(at, at, 1, F32, SUM, rank.comm, raw));
                }
                nccl.ok((nccl.group_end)());
            }
            for rank in &world {
                assert!(rank.result(18_000) == [brings(0, 9000), brings(1, 9000)].concat());
            }
        }
        assert_eq!(on_host, [12.0; 2]);
    });
}

/// A group's calls are enqueued by other threads, whose default streams are others.
#[test]
fn a_group_of_all_ranks_keeps_the_order_of_the_threads_own_stream() {
    both_ranks(|nccl, context, comms| {
        // SAFETY: the thread has it for as long as it lives.
        let own = unsafe { Stream::borrowed(context, std::ptr::without_provenance_mut(2)) };
        let mut buffers = [0; 2].map(|_| DeviceMemory::new(context, 4 * 9000).expect("memory"));
        let late = [0, 1].map(|rank| {
            let mut late = Pinned::new(context, 4 * 9000).expect("memory");
            late.as_mut_slice().copy_from_slice(&bytes(&brings(rank, 9000)));
            late
        });
        let want: Vec<f32> =
            brings(0, 9000).into_iter().zip(brings(1, 9000)).map(|(one, two)| one + two).collect();
        for round in 0..3 {
            for (buffer, late) in buffers.iter_mut().zip(&late) {
                buffer.write(&own, 0, &bytes(&[7.0; 9000])).expect("a copy");
                own.call(|| std::thread::sleep(Duration::from_millis(100))).expect("a call");
                // SAFETY: both are as long as the copy, and kept until it is done.
                unsafe { own.copy(buffer.address(), late.as_ptr() as u64, late.bytes()) }
                    .expect("a copy");
            }
            // SAFETY: the buffers are as long as the calls, and waited for.
            unsafe {
                nccl.ok((nccl.group_start)());
                for (comm, buffer) in comms.iter().zip(&buffers) {
                    let at = buffer.address() as Address;
                    nccl.ok((nccl.all_reduce)(at, at, 9000, F32, SUM, *comm, 2));
                }
                nccl.ok((nccl.group_end)());
            }
            for buffer in &buffers {
                assert!(read(buffer, &own, 9000) == want, "round {round}");
            }
        }
    });
}

#[test]
fn a_part_of_a_communicator_has_its_device() {
    ranks(4, |rank, all| {
        let (nccl, half) = (rank.nccl, (rank.rank % 2) as c_int);
        let mut part = 0;
        // SAFETY: there is room for it.
        nccl.ok(unsafe { (nccl.split)(rank.comm, half, rank.rank as c_int, &mut part, 0) });
        rank.write(&brings(rank.rank, 100));
        let (from, to, raw) = (rank.input(), rank.output(), rank.raw());
        let half = half as usize;
        let gather = || {
            // SAFETY: the buffers are longer than the call, and waited for.
            nccl.ok(unsafe { (nccl.all_gather)(from, to, 100, F32, part, raw) });
            assert!(rank.result(200) == [brings(half, 100), brings(half + 2, 100)].concat());
        };
        // The first call loads code, for which the device must have nothing of the other half.
        for turn in 0..2 {
            all.wait();
            if half == turn {
                gather();
            }
        }
        all.wait();
        gather();
        let mut number: c_int = -1;
        // SAFETY: there is room for it.
        nccl.ok(unsafe { (nccl.device)(part, &mut number) });
        assert_eq!(number, 0);
        all.wait();
        // SAFETY: nobody calls it any more.
        nccl.ok(unsafe { (nccl.destroy)(part) });
    });
}

#[test]
fn what_lies_half_with_the_host_is_refused_and_calls_go_on() {
    ranks(2, |rank, _| {
        let mut host = vec![1.0_f32; 1000];
        let (nccl, comm, raw) = (rank.nccl, rank.comm, rank.raw());
        let (at, on_device) = (host.as_mut_ptr().expose_provenance(), rank.output());
        let mut op: c_int = 0;
        // SAFETY: the first are refused, and the last one has been carried out when it returns.
        unsafe {
            let result = (nccl.all_reduce)(at, on_device, 1000, F32, SUM, comm, raw);
            nccl.refused(result, INVALID_ARGUMENT, "a call takes one kind");
            let result = (nccl.all_reduce)(on_device, at, 1000, F32, SUM, comm, raw);
            nccl.refused(result, INVALID_ARGUMENT, "a call takes one kind");
            let result = (nccl.bcast)(on_device, 1 << 20, F32, 0, comm, raw);
            nccl.refused(result, INVALID_ARGUMENT, "its allocation ends");
            let result = (nccl.factor)(&mut op, on_device, F32, 0, comm);
            nccl.refused(result, INVALID_USAGE, "in memory of a device");
            nccl.ok((nccl.group_start)());
            let result = (nccl.all_reduce)(at, on_device, 1000, F32, SUM, comm, raw);
            nccl.refused(result, INVALID_ARGUMENT, "a call takes one kind");
            let result = (nccl.group_end)();
            nccl.refused(result, INVALID_ARGUMENT, "nothing of the group was carried out");
            nccl.ok((nccl.all_reduce)(at, at, 1000, F32, SUM, comm, raw));
        }
        assert_eq!(host, vec![2.0; 1000]);
        rank.collectives(10);
    });
}

#[test]
fn without_a_context_memory_of_devices_is_refused() {
    if !has_device() {
        return;
    }
    let _turn = turn();
    let (nccl, context, id) = (Nccl::get(), context(), unique_id());
    let mut comm = 0;
    // SAFETY: there is room for it.
    nccl.ok(unsafe { (nccl.init_rank)(&mut comm, 1, id, 0) });
    let memory = DeviceMemory::new(&context, 64).expect("memory");
    let at = memory.address() as usize;
    // SAFETY: it is refused.
    let result = unsafe { (nccl.all_reduce)(at, at, 16, F32, SUM, comm, 0) };
    nccl.refused(result, INVALID_USAGE, "cudaSetDevice");
    // SAFETY: nobody calls it any more.
    nccl.ok(unsafe { (nccl.destroy)(comm) });
}

#[test]
fn an_aborted_communicator_is_an_error_and_no_hang() {
    if !has_device() {
        return;
    }
    let _turn = turn();
    let (id, all) = (unique_id(), Barrier::new(2));
    std::thread::scope(|scope| {
        for number in 0..2 {
            let all = &all;
            scope.spawn(move || {
                let mut rank = Rank::join(&context(), id, number, 2);
                rank.collectives(3000);
                all.wait();
                match number {
                    0 => be_left(rank),
                    _ => {
                        std::thread::sleep(Duration::from_millis(100));
                        // SAFETY: nobody calls it any more.
                        rank.nccl.ok(unsafe { (rank.nccl.abort)(rank.comm) });
                    }
                }
            });
        }
    });
}

/// Be in a call that the other rank never makes.
fn be_left(rank: Rank) {
    let (nccl, comm, start) = (rank.nccl, rank.comm, Instant::now());
    let (from, to, raw) = (rank.input(), rank.output(), rank.raw());
    // SAFETY: the buffers are longer than the call, which ends before they go.
    nccl.ok(unsafe { (nccl.all_reduce)(from, to, 3000, F32, SUM, comm, raw) });
    rank.stream.synchronize().expect("the kernel ends");
    let mut state = SUCCESS;
    // SAFETY: there is room for it.
    nccl.ok(unsafe { (nccl.async_error)(comm, &mut state) });
    assert_ne!(state, SUCCESS);
    // SAFETY: as above.
    let again = unsafe { (nccl.all_reduce)(from, to, 3000, F32, SUM, comm, raw) };
    nccl.refused(again, state, "abort");
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    rank.leave(|| {});
}

#[test]
fn a_communicator_that_is_being_made_takes_no_memory_of_devices() {
    if !has_device() {
        return;
    }
    let _turn = turn();
    let (nccl, context, id) = (Nccl::get(), context(), unique_id());
    let memory = DeviceMemory::new(&context, 4000).expect("memory");
    let (at, mut comms) = (memory.address() as Address, [0; 2]);
    let _here = context.enter().expect("a context");
    // SAFETY: there is room for the communicators; a call that is refused touches no memory.
    unsafe {
        nccl.ok((nccl.group_start)());
        nccl.ok((nccl.init_rank)(&mut comms[0], 2, id, 0));
        // It waits for the other rank, which comes after this.
        let early = (nccl.all_reduce)(at, at, 1000, F32, SUM, comms[0], 0);
        nccl.refused(early, INVALID_USAGE, "still joining");
        let early = (nccl.send)(at, 1000, F32, 1, comms[0], 0);
        nccl.refused(early, INVALID_USAGE, "while the communicator is being made");
        nccl.ok((nccl.init_rank)(&mut comms[1], 2, id, 1));
        nccl.refused((nccl.group_end)(), INVALID_USAGE, "nothing of the group was carried out");
        comms.into_iter().for_each(|comm| nccl.ok((nccl.abort)(comm)));
    }
}
