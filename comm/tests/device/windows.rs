//! Windows: what ranks copy into each other's memory arrives.

use brigade_comm::Communicator;
use brigade_cuda::{Context, DeviceMemory, Stream};

use super::processes::{TWO_DEVICES, Variable, in_processes, is_real};
use super::world::{has_device, ranks, turn};

/// Bytes that each rank copies to each.
const BYTES: usize = 70_001;

/// What `from` sends `to` in a turn.
fn letter(from: usize, to: usize, turn: usize) -> Vec<u8> {
    (0..BYTES).map(|at| (at * 7 + from * 31 + to * 57 + turn * 101) as u8).collect()
}

/// Ranks copy into each other's windows, and into their own, and look there. The window of one
/// rank is longer than it needs.
fn copy_to_everybody(comm: &Communicator, context: &Context, stream: &Stream) {
    let (me, size) = (comm.rank(), comm.size());
    let bytes = size * BYTES + me * 100_000;
    let window = comm.device_window(context, bytes).expect("a window");
    let window = window.expect("all reach each other");
    assert_eq!(window.address(), window.address_of(me));
    assert_eq!(format!("{window:?}"), "DeviceWindow { .. }");
    let mut out = DeviceMemory::new(context, BYTES).expect("memory");
    let mut found = vec![0; BYTES];
    for turn in 0..3 {
        for to in 0..size {
            out.write(stream, 0, &letter(me, to, turn)).expect("a copy");
            let target = window.address_of(to) + (me * BYTES) as u64;
            // SAFETY: the part of the window is this rank's to write to, until they have met.
            unsafe { stream.copy(target, out.address(), BYTES) }.expect("a copy");
            stream.synchronize().expect("its end");
        }
        comm.barrier().expect("a barrier");
        for from in 0..size {
            let (target, source) = (found.as_mut_ptr() as u64, (from * BYTES) as u64);
            // SAFETY: the buffer is as long, and nobody writes to the window before all have met.
            unsafe { stream.copy(target, window.address() + source, BYTES) }.expect("a copy");
            stream.synchronize().expect("its end");
            assert!(found == letter(from, me, turn), "{me}: of {from}, turn {turn}");
        }
        comm.barrier().expect("a barrier");
    }
    window.close().expect("the end of a window");
}

/// All are told that there is none.
fn have_none(comm: &Communicator, context: &Context) {
    assert!(comm.device_window(context, BYTES).expect("no failure").is_none());
    // And go on.
    let mut sum = [1];
    comm.all_reduce(&mut sum, brigade_comm::Op::Sum).expect("a call");
    assert_eq!(sum, [comm.size()].map(|size| size as i32));
}

#[test]
fn threads_copy_into_each_others_windows() {
    if !has_device() {
        return;
    }
    let _turn = turn();
    for count in [1, 2, 5] {
        ranks(count, &Default::default(), |rank| {
            copy_to_everybody(&rank.comm, rank.group.context(), &rank.stream);
        });
    }
}

fn windows_of_processes(name: &str, count: usize, variables: &[Variable<'_>]) {
    in_processes(&format!("windows::{name}"), count, variables, |comm, context| {
        let stream = Stream::new(&context).expect("a stream");
        copy_to_everybody(&comm, &context, &stream);
        // Another one is made as well.
        copy_to_everybody(&comm, &context, &stream);
    });
}

#[test]
fn processes_copy_into_each_others_windows_on_one_device() {
    windows_of_processes("processes_copy_into_each_others_windows_on_one_device", 3, &[]);
}

#[test]
fn processes_copy_into_each_others_windows_on_other_devices() {
    if is_real() {
        return;
    }
    let name = "processes_copy_into_each_others_windows_on_other_devices";
    windows_of_processes(name, 2, &[TWO_DEVICES]);
}

/// One rank has no memory for it, or cannot open another's, or what is written does not arrive.
fn no_window(name: &str, variables: &[Variable<'_>]) {
    if is_real() {
        return;
    }
    in_processes(&format!("windows::{name}"), 2, variables, |comm, context| {
        have_none(&comm, &context);
    });
}

#[test]
fn a_rank_without_memory_leaves_all_without_a_window() {
    let poor = (Some(1), "BRIGADE_FAKE_CUDA_FAULTS", "cuMemAlloc_v2@1=2");
    no_window("a_rank_without_memory_leaves_all_without_a_window", &[poor]);
}

#[test]
fn a_rank_that_opens_nothing_leaves_all_without_a_window() {
    let refused = (Some(0), "BRIGADE_FAKE_CUDA_FAULTS", "cuIpcOpenMemHandle_v2=801");
    no_window("a_rank_that_opens_nothing_leaves_all_without_a_window", &[refused]);
}

#[test]
fn where_what_is_written_does_not_arrive_there_is_no_window() {
    let broken = (None, "BRIGADE_FAKE_CUDA_PEERS", "broken");
    no_window("where_what_is_written_does_not_arrive_there_is_no_window", &[TWO_DEVICES, broken]);
}
