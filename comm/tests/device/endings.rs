//! How groups end whose ranks are processes: the fake ends whoever frees memory that another one
//! has open, and says so.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use brigade_comm::device::{DeviceGroup, Way};
use brigade_comm::{Call, Communicator, Dtype, Error, Op, Settings};
use brigade_cuda::{Context, DeviceMemory, Stream};
use brigade_schedule::Collective;

use super::processes::{TWO_DEVICES, Variable, in_processes, is_real};
use super::world::{Rank, compile, context, has_device, turn};

/// An inbox for one peer is longer than this, and a board shorter.
const INBOX_BYTES: usize = 4 << 20;

/// A short deadline for calls, and two devices.
const SOON: [Variable<'static>; 2] = [TWO_DEVICES, (None, "BRIGADE_TIMEOUT_MS", "1500")];

fn group_on(comm: &Communicator, context: &Context, way: Way) -> DeviceGroup {
    let group = comm.on_device(context).expect("a group on devices");
    assert_eq!(group.way(), way);
    group
}

/// One call, through slots where there are some.
fn call_once(group: &DeviceGroup, comm: &Communicator) {
    let stream = Stream::new(group.context()).expect("a stream");
    let memory = DeviceMemory::new(group.context(), 40_000).expect("memory");
    let call = Call::new(Collective::AllReduce, Dtype::I32, Op::Sum, 10_000);
    let at = memory.address();
    // SAFETY: the memory is as long as the call, and it is waited for.
    let work = unsafe { group.start(&call, at, at, &stream) };
    work.expect("a call").wait().expect("its end");
    comm.barrier().expect("a barrier");
    drop(memory);
    comm.barrier().expect("a barrier");
}

/// A rank that keeps the memory of its calls, which others then leave open.
fn keeper(comm: Communicator, context: &Context) -> Rank {
    let group = group_on(&comm, context, Way::Met);
    group.keep_open();
    let stream = Stream::new(context).expect("a stream");
    Rank { group, comm, stream }
}

fn free_bytes(context: &Context) -> usize {
    context.memory().expect("a number").0
}

#[test]
fn who_closes_waits_for_the_others_and_frees_all() {
    if is_real() {
        return;
    }
    let name = "endings::who_closes_waits_for_the_others_and_frees_all";
    in_processes(name, 3, &[(None, "BRIGADE_FAKE_CUDA_DEVICES", "3")], |comm, context| {
        let before = free_bytes(&context);
        let group = group_on(&comm, &context, Way::Linked);
        call_once(&group, &comm);
        assert!(before - free_bytes(&context) > INBOX_BYTES);
        if comm.rank() == 1 {
            std::thread::sleep(Duration::from_millis(700));
        }
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock").as_micros();
        let mut last_begun = [now() as u64];
        group.close().expect("the end of all");
        let ended = now() as u64;
        comm.all_reduce(&mut last_begun, Op::Max).expect("the communicator goes on");
        assert!(ended >= last_begun[0], "it did not wait for the last one");
        group.close().expect("it is closed already");
        let stream = Stream::new(&context).expect("a stream");
        let call = Call::new(Collective::Barrier, Dtype::U8, Op::Sum, 0);
        // SAFETY: a barrier has no memory.
        let refused = unsafe { group.enqueue(&call, 0, 0, &stream) }.expect_err("it is closed");
        assert!(refused.to_string().contains("was closed"), "{refused}");
        drop(group);
        assert_eq!(free_bytes(&context), before);
    });
}

#[test]
fn groups_whose_calls_may_take_for_ever_close_like_others() {
    if !has_device() {
        return;
    }
    let _turn = turn();
    let settings = Settings {
        transport: "loopback".into(),
        join_timeout: Duration::MAX,
        timeout: Duration::MAX,
        ..Settings::default()
    };
    let world = Communicator::local_world(2, &settings).expect("a world");
    std::thread::scope(|scope| {
        for (rank, comm) in world.into_iter().enumerate() {
            scope.spawn(move || {
                let group = comm.on_device(&context(rank)).expect("a group on devices");
                call_once(&group, &comm);
                group.close().expect("the end of it");
            });
        }
    });
}

/// Rank 0 goes on with another group of the same ranks meanwhile.
#[test]
fn what_is_dropped_while_another_has_it_open_is_kept() {
    if is_real() {
        return;
    }
    let name = "endings::what_is_dropped_while_another_has_it_open_is_kept";
    in_processes(name, 2, &[TWO_DEVICES], |comm, context| {
        let before = free_bytes(&context);
        let group = group_on(&comm, &context, Way::Linked);
        call_once(&group, &comm);
        let mut group = Some(group);
        if comm.rank() == 0 {
            let begin = Instant::now();
            drop(group.take());
            assert!(begin.elapsed() < Duration::from_secs(4), "{:?}", begin.elapsed());
            assert!(before - free_bytes(&context) > INBOX_BYTES, "it is freed under rank 1");
        }
        comm.barrier().expect("a barrier");
        let other = group_on(&comm, &context, Way::Linked);
        call_once(&other, &comm);
        other.close().expect("the end of the other one");
        // The last one to go knows that all others have.
        drop((group, other));
        let is_kept = before - free_bytes(&context) > INBOX_BYTES;
        assert_eq!(is_kept, comm.rank() == 0);
    });
}

#[test]
fn whoever_does_not_close_is_named_at_the_deadline() {
    if is_real() {
        return;
    }
    compile(Dtype::I32, &Op::Sum);
    let name = "endings::whoever_does_not_close_is_named_at_the_deadline";
    in_processes(name, 2, &SOON, |comm, context| {
        let group = group_on(&comm, &context, Way::Linked);
        call_once(&group, &comm);
        if comm.rank() == 0 {
            let begin = Instant::now();
            let error = group.close().expect_err("rank 1 does not come");
            assert!(matches!(error, Error::Timeout { .. }), "{error}");
            assert!(error.to_string().contains("rank 1 did not close it"), "{error}");
            assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
            comm.barrier().expect("the communicator goes on");
        } else {
            std::thread::sleep(Duration::from_millis(1500));
            comm.barrier().expect("the communicator goes on");
            group.close().expect("rank 0 has closed it");
        }
    });
}

/// Ranks hear of each other through rank 0, which is in no group of theirs, and ends first.
#[test]
fn rank_0_stays_for_those_who_close() {
    if is_real() {
        return;
    }
    compile(Dtype::I32, &Op::Sum);
    let name = "endings::rank_0_stays_for_those_who_close";
    in_processes(name, 3, &[(None, "BRIGADE_FAKE_CUDA_DEVICES", "3")], |comm, context| {
        let color = (comm.rank() > 0).then_some(0);
        let pair = comm.split(color, 0).expect("a split");
        let Some(pair) = pair else {
            // Nobody is left in it who would wait for this rank.
            comm.barrier().expect("all have their groups");
            let begin = Instant::now();
            drop(comm);
            let took = begin.elapsed();
            assert!(took > Duration::from_secs(2) && took < Duration::from_secs(9), "{took:?}");
            return;
        };
        let group = group_on(&pair, &context, Way::Linked);
        call_once(&group, &pair);
        comm.barrier().expect("all have their groups");
        // One waits for the other, which has rank 0 gone for long.
        std::thread::sleep(Duration::from_millis(if comm.rank() == 1 { 1000 } else { 3000 }));
        group.close().expect("rank 0's process is still there");
    });
}

#[test]
fn who_dies_keeps_nobody_from_closing() {
    if is_real() {
        return;
    }
    let name = "endings::who_dies_keeps_nobody_from_closing";
    in_processes(name, 2, &[TWO_DEVICES], |comm, context| {
        let group = group_on(&comm, &context, Way::Linked);
        call_once(&group, &comm);
        if comm.rank() == 1 {
            std::process::exit(0);
        }
        let begin = Instant::now();
        let error = group.close().expect_err("rank 1 is lost");
        assert!(error.to_string().contains("rank 1 is lost"), "{error}");
        drop(group);
        assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    });
}

#[test]
fn who_aborts_waits_for_nobody() {
    if is_real() {
        return;
    }
    let name = "endings::who_aborts_waits_for_nobody";
    in_processes(name, 2, &[TWO_DEVICES], |comm, context| {
        let group = group_on(&comm, &context, Way::Linked);
        call_once(&group, &comm);
        if comm.rank() == 0 {
            comm.abort("a test has had enough");
        }
        let begin = Instant::now();
        while comm.ended().is_none() && begin.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let begin = Instant::now();
        let error = group.close().expect_err("it was aborted");
        assert!(error.to_string().contains("had enough"), "{error}");
        drop(group);
        assert!(begin.elapsed() < Duration::from_millis(1500), "{:?}", begin.elapsed());
    });
}

/// Who keeps memory until its group is closed lends more of it than stays open, in one call
/// after the other.
#[test]
fn memory_that_is_kept_stays_open_until_the_end() {
    let name = "endings::memory_that_is_kept_stays_open_until_the_end";
    in_processes(name, 2, &[], |comm, context| {
        let rank = keeper(comm, &context);
        let call = Call::new(Collective::AllReduce, Dtype::I32, Op::Sum, 10_000);
        let ones = 1_i32.to_le_bytes().repeat(10_000);
        let memory: Vec<_> = (0..75).map(|_| rank.memory(&ones)).collect();
        let run = |from: usize, to: usize| {
            let (input, output) = (memory[from].address(), memory[to].address());
            // SAFETY: the memory is as long as the call, which is done when this returns.
            unsafe { rank.group.enqueue(&call, input, output, &rank.stream) }.expect("a call");
            assert!(rank.bytes(&memory[to]) == 2_i32.to_le_bytes().repeat(10_000), "{to}");
        };
        // One allocation by one, so that places run out within a call.
        run(0, 0);
        (1..75).step_by(2).for_each(|at| run(at, at + 1));
        rank.group.close().expect("the end of both");
        drop(memory);
    });
}

/// Without closing it, though another process closes what it has open only later.
#[test]
fn who_drops_a_group_may_free_what_it_kept() {
    let name = "endings::who_drops_a_group_may_free_what_it_kept";
    in_processes(name, 2, &[], |comm, context| {
        let rank = keeper(comm, &context);
        let call = Call::new(Collective::AllReduce, Dtype::I32, Op::Sum, 1000);
        let memory = rank.memory(&1_i32.to_le_bytes().repeat(1000));
        let at = memory.address();
        // SAFETY: the memory is as long as the call, which is done when this returns.
        unsafe { rank.group.enqueue(&call, at, at, &rank.stream) }.expect("a call");
        assert!(rank.bytes(&memory) == 2_i32.to_le_bytes().repeat(1000));
        if rank.comm.rank() == 1 {
            std::thread::sleep(Duration::from_millis(300));
        }
        drop((rank.group, memory));
    });
}

/// Two groups of the same ranks have inboxes of their own: calls take turns, and one group ends on
/// one rank while the other one still has it.
fn be_in_two_groups(comm: &Communicator, context: &Context) {
    let me = comm.rank();
    let half = comm.split(Some(0), 0).expect("a split").expect("a part of it");
    let groups = [comm, &half].map(|comm| comm.on_device(context).expect("a group on devices"));
    let stream = Stream::new(context).expect("a stream");
    let elems = 10_000;
    let mut memory = DeviceMemory::new(context, 4 * elems).expect("memory");
    memory.write(&stream, 0, &1_i32.to_le_bytes().repeat(elems)).expect("a copy");
    let call = Call::new(Collective::AllReduce, Dtype::I32, Op::Sum, elems);
    let at = memory.address();
    // SAFETY: the memory is as long as the call, and outlives what is waited for.
    let start = |group: &DeviceGroup| unsafe { group.start(&call, at, at, &stream) };
    for group in [0, 1, 0, 1, 1, 0] {
        assert_eq!(groups[group].way(), Way::Linked);
        start(&groups[group]).expect("a call").wait().expect("its end");
    }
    let [one, other] = groups;
    // Whoever has dropped it calls it no more.
    comm.barrier().expect("a barrier");
    let one = (me == 1).then_some(one);
    comm.barrier().expect("a barrier");
    start(&other).expect("a call").wait().expect("its end");
    let mut found = vec![0; 4 * elems];
    memory.read(&stream, 0, &mut found).expect("a copy");
    assert!(found == (1_i32 << 7).to_le_bytes().repeat(elems));
    comm.barrier().expect("a barrier");
    drop((one, other));
    comm.barrier().expect("a barrier");
}

#[test]
fn two_groups_of_the_same_processes_end_in_any_order() {
    if is_real() {
        return;
    }
    let name = "endings::two_groups_of_the_same_processes_end_in_any_order";
    in_processes(name, 2, &[TWO_DEVICES], |comm, context| be_in_two_groups(&comm, &context));
}
