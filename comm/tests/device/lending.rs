//! Processes that share a device lend each other many buffers, and buffers where others lay before.

use brigade_comm::device::Way;
use brigade_comm::{Call, Communicator, Dtype, Op};
use brigade_cuda::{Context, DeviceMemory, Stream};
use brigade_schedule::Collective;

use super::processes::{WAY, be_a_rank, start};
use super::world::Rank;

/// More pairs than a rank keeps open of another one's buffers.
const PAIRS: usize = 70;
const ELEMS: usize = 5000;
/// Long enough that the kernel finds a place of its own for it, and the same one again.
const LONG: usize = 1 << 20;

/// What a rank does.
pub(crate) fn be_one_that_lends(comm: Communicator, context: &Context) {
    let group = comm.on_device(context).expect("a group on devices");
    let stream = Stream::new(context).expect("a stream");
    let rank = Rank { group, comm, stream };
    rank.assert_way(Way::Met);
    use_many(&rank);
    use_one_place_again(&rank);
}

/// All-reduce from one buffer to another: each of the others opens both.
fn all_reduce(rank: &Rank, input: &DeviceMemory, output: &DeviceMemory, elems: usize) {
    let call = Call::new(Collective::AllReduce, Dtype::I32, Op::Sum, elems);
    rank.run(&call, input.address(), output.address());
}

/// None is closed that the call at hand uses, whichever of them is one too many.
fn use_many(rank: &Rank) {
    let ones = 1_i32.to_le_bytes().repeat(ELEMS);
    let twos = 2_i32.to_le_bytes().repeat(ELEMS);
    let alone = [rank.memory(&ones), rank.memory(&[ones.clone(), ones.clone()].concat())];
    let pairs: Vec<[DeviceMemory; 2]> =
        (0..PAIRS).map(|_| [rank.memory(&ones), rank.memory(&ones)]).collect();
    // One buffer of the other rank's, so that pairs begin at an odd number.
    let call = Call::moving(Collective::AllGather, Dtype::I32, ELEMS);
    rank.run(&call, alone[0].address(), alone[1].address());
    for [input, output] in &pairs {
        all_reduce(rank, input, output, ELEMS);
    }
    assert!(pairs.iter().all(|[_, output]| rank.bytes(output) == twos));
    rank.free(alone.into_iter().chain(pairs.into_iter().flatten()).collect());
}

/// What lay there before is closed, or the driver would refuse what lies there now, and the bytes
/// go through the host.
fn use_one_place_again(rank: &Rank) {
    let before = rank.comm.stats().sent_bytes;
    for round in 1..4_i32 {
        let [input, output] = [0, 1].map(|_| rank.memory(&round.to_le_bytes().repeat(LONG)));
        all_reduce(rank, &input, &output, LONG);
        assert!(rank.bytes(&output) == (2 * round).to_le_bytes().repeat(LONG), "round {round}");
        rank.free(vec![input, output]);
    }
    let sent = rank.comm.stats().sent_bytes - before;
    assert!(sent < LONG as u64, "{sent} bytes went through the host");
}

/// Two processes, which start the test of this name again as their ranks.
fn test(name: &str, way: &str, variables: &[(Option<usize>, &str, &str)]) {
    match std::env::var(WAY) {
        Ok(way) => be_a_rank(&way),
        Err(_) => start(&format!("lending::{name}"), 2, way, variables),
    }
}

#[test]
fn many_buffers_are_lent_and_new_ones_where_others_lay() {
    test("many_buffers_are_lent_and_new_ones_where_others_lay", "lends", &[]);
}

/// A kernel that waits for another rank would be waited for by its launch.
#[test]
fn where_launches_wait_for_kernels_processes_meet() {
    let devices = (None, "BRIGADE_FAKE_CUDA_DEVICES", "2");
    let waits = (Some(1), "CUDA_LAUNCH_BLOCKING", "1");
    test("where_launches_wait_for_kernels_processes_meet", "met", &[devices, waits]);
}
