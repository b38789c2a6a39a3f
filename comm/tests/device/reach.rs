//! Ranks that are threads on two devices: buffers that the other device does not reach.

use brigade_comm::device::Way;
use brigade_comm::{Call, Dtype, Op, Settings};
use brigade_cuda::{Context, DeviceMemory, Shareable};
use brigade_schedule::Collective;

use super::processes::{TWO_DEVICES, Variable, in_processes, is_real};
use super::world::{Rank, context, even, ranks};

/// Devices that do not reach each other at all.
const APART: Variable<'static> = (None, "BRIGADE_FAKE_CUDA_PEERS", "no");
/// No kernel may wait for another.
const ONE_AT_A_TIME: Variable<'static> = (None, "CUDA_LAUNCH_BLOCKING", "1");

const ELEMS: usize = 20_000;

/// Run `body` on two threads with a device each, in a process with these variables.
fn on_two_devices(name: &str, variables: &[Variable], body: impl Fn(&Rank) + Sync) {
    if is_real() {
        return;
    }
    let variables = [&[TWO_DEVICES], variables].concat();
    in_processes(&format!("reach::{name}"), 1, &variables, |_, _| {
        ranks(2, &Settings::default(), &body);
    });
}

/// The sum of every rank's number, made where the memory lies; or why it was refused.
fn add_up(rank: &Rank, address: u64) -> Result<Vec<f32>, String> {
    let call = Call::new(Collective::AllReduce, Dtype::F32, Op::Sum, ELEMS);
    let numbers = vec![rank.comm.rank() as f32 + 1.0; ELEMS];
    let mut bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    // SAFETY: callers give memory of so many bytes, which outlives the waits.
    unsafe { rank.stream.copy(address, bytes.as_ptr() as u64, bytes.len()) }.expect("a copy");
    // SAFETY: as above.
    let work = unsafe { rank.group.start(&call, address, address, &rank.stream) };
    work.map_err(|error| error.to_string())?.wait().expect("its end");
    // SAFETY: as above.
    unsafe { rank.stream.copy(bytes.as_mut_ptr() as u64, address, bytes.len()) }.expect("a copy");
    rank.stream.synchronize().expect("a copy");
    let number = |four: &[u8]| f32::from_le_bytes(four.try_into().expect("four bytes"));
    Ok(bytes.chunks_exact(4).map(number).collect())
}

/// Pools are opened to the others by the group; what is mapped has to be by who maps it.
#[test]
fn memory_that_other_devices_do_not_reach_is_refused() {
    let name = "memory_that_other_devices_do_not_reach_is_refused";
    on_two_devices(name, &[], |rank| {
        rank.assert_way(Way::Together);
        let context = rank.group.context();
        let pooled = DeviceMemory::pooled(&rank.stream, 4 * ELEMS).expect("memory");
        rank.stream.synchronize().expect("memory");
        let mapped = Shareable::new(context, 4 * ELEMS).expect("memory");
        let sums = vec![3.0; ELEMS];
        assert_eq!(add_up(rank, pooled.address()), Ok(sums.clone()));
        let why = add_up(rank, mapped.address()).expect_err("nobody else reaches it");
        let other = 1 - rank.comm.rank();
        assert!(why.contains(&format!("device {other} does not reach")), "{why}");
        assert!(why.contains("cuMemSetAccess"), "{why}");
        mapped.open_to(other_context(rank).device()).expect("access");
        assert_eq!(add_up(rank, mapped.address()), Ok(sums));
        rank.comm.barrier().expect("a barrier");
    });
}

/// Where ranks meet for each call, one that others do not reach goes through the host.
#[test]
fn where_ranks_meet_memory_that_they_do_not_reach_goes_through_the_host() {
    let name = "where_ranks_meet_memory_that_they_do_not_reach_goes_through_the_host";
    let no_kernel = (None, "BRIGADE_FAKE_CUDA_FAULTS", "cuLaunchKernel=1");
    on_two_devices(name, &[ONE_AT_A_TIME, no_kernel], |rank| {
        rank.assert_way(Way::Met);
        let mapped = Shareable::new(rank.group.context(), 4 * ELEMS).expect("memory");
        assert_eq!(add_up(rank, mapped.address()), Ok(vec![3.0; ELEMS]));
        rank.comm.barrier().expect("a barrier");
    });
}

/// A kernel that read another device's memory would end, though copies between them work.
#[test]
fn devices_that_do_not_reach_each_other_go_through_the_host() {
    let name = "devices_that_do_not_reach_each_other_go_through_the_host";
    on_two_devices(name, &[APART], |rank| {
        rank.assert_way(Way::Staged);
        assert_eq!(format!("{:?}", rank.group), "DeviceGroup { way: Staged, .. }");
        rank.check(&even(Collective::AllReduce, Dtype::F32, Op::Sum, 1000, 2), 1);
    });
}

fn other_context(rank: &Rank) -> Context {
    context(1 - rank.comm.rank())
}
