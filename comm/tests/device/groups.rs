//! Several groups of one rank, whose calls are on its device at once.

use std::time::Duration;

use brigade_comm::device::{DeviceShare, Way};
use brigade_comm::{Call, Communicator, Dtype, Op};
use brigade_cuda::{Context, DeviceMemory, Stream};
use brigade_schedule::Collective;

use super::processes::{in_processes, is_real};

/// Calls of each group.
const CALLS: usize = 30;
const ELEMS: usize = 50_000;

/// A square of ranks, each in a row and a column. What a rank gives its streams when is another
/// thing on each, and nothing but the order of its calls puts one stream behind the other. (A fake
/// device has room for any number of blocks: shares are a matter of `setup`'s own test.)
fn be_in_a_row_and_a_column(comm: &Communicator, context: &Context) {
    let me = comm.rank();
    let part = |colour: usize| {
        let part = comm.split(Some(colour as u32), 0).expect("a split").expect("a part of it");
        let group =
            part.on_device_with(context, DeviceShare::among(2)).expect("a group on devices");
        assert_eq!(group.way(), Way::Linked);
        let memory = DeviceMemory::new(context, 4 * ELEMS).expect("memory");
        (part, group, Stream::new(context).expect("a stream"), memory)
    };
    let mut parts = [part(me / 2), part(me % 2)];
    let call = Call::new(Collective::AllReduce, Dtype::I32, Op::Sum, ELEMS);
    for (_, group, stream, memory) in &mut parts {
        memory.write(stream, 0, &1_i32.to_le_bytes().repeat(ELEMS)).expect("a copy");
        let at = memory.address();
        // SAFETY: the memory is as long as the call, and outlives what is waited for.
        let work = unsafe { group.start(&call, at, at, stream) };
        // Ranks meet for the first one.
        work.expect("a call").wait().expect("its end");
    }
    for turn in 1..CALLS {
        for (at, (_, group, stream, memory)) in parts.iter().enumerate() {
            let address = memory.address();
            // SAFETY: likewise.
            unsafe { group.enqueue(&call, address, address, stream) }.expect("a call");
            // No two ranks are late for the same calls.
            let late = (37 * turn * (me + 1) + 211 * at) as u64 % 900;
            std::thread::sleep(Duration::from_micros(late));
        }
    }
    for (part, group, stream, memory) in &parts {
        group.mark(stream).expect("a mark").wait().expect("its end");
        let mut found = vec![0; 4 * ELEMS];
        memory.read(stream, 0, &mut found).expect("a copy");
        assert!(found == (1_i32 << CALLS).to_le_bytes().repeat(ELEMS), "of {}", part.size());
    }
    parts.iter().for_each(|(_, group, ..)| group.close().expect("the end of a group"));
    // Rank 0 leaves last: it is of no use to those who close the groups of others.
    comm.barrier().expect("a barrier");
}

#[test]
fn calls_of_rows_and_columns_are_on_a_device_at_once() {
    if is_real() {
        return;
    }
    let name = "groups::calls_of_rows_and_columns_are_on_a_device_at_once";
    let devices = [(None, "BRIGADE_FAKE_CUDA_DEVICES", "4")];
    in_processes(name, 4, &devices, |comm, context| be_in_a_row_and_a_column(&comm, &context));
}
