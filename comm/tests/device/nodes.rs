//! Ranks on several nodes, whose devices reach each other inside of each only. The nodes are
//! network namespaces of this machine, in which it says to have started at other times: so neither
//! devices nor shared memory reach beyond one. Needs root; a test that cannot have them says so.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use brigade_comm::device::Way;
use brigade_comm::launch::Launch;
use brigade_comm::{Call, Dtype, Op, Settings};
use brigade_cuda::{CaptureMode, DeviceMemory};
use brigade_schedule::{Algorithm, Collective};

use super::net::{Family, Hosts};
use super::processes::{TWO_DEVICES, Variable, WAY, is_real, start_by};
use super::world::{Rank, even, join};

const FOUR_DEVICES: Variable<'static> = (None, "BRIGADE_FAKE_CUDA_DEVICES", "4");
/// Elements of f32 that are too few to come apart, and enough, and so many that parts differ.
const LENGTHS: [usize; 3] = [1000, 16_384, 50_001];

/// Nodes, and files that say which start of a machine each is; gone in the end.
struct Nodes {
    hosts: Hosts,
    folder: PathBuf,
}

impl Nodes {
    fn new(count: usize) -> Option<Self> {
        let hosts = Hosts::new("d", count, Family::Both)?;
        let name = format!("brigade-nodes-{}", std::process::id());
        let nodes = Self { hosts, folder: std::env::temp_dir().join(name) };
        std::fs::create_dir_all(&nodes.folder).expect("a folder");
        for node in 0..count {
            let id = format!("{node:08x}-0000-4000-8000-000000000000\n");
            std::fs::write(nodes.folder.join(node.to_string()), id).expect("a file");
        }
        Some(nodes)
    }

    /// What runs a program on this node.
    fn command(&self, node: usize, program: &Path) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.hosts.names[node]]);
        // Whoever is in a network namespace has mounts of its own, too.
        let script = "mount --bind \"$0\" /proc/sys/kernel/random/boot_id && exec \"$@\"";
        command.args(["sh", "-c", script]).arg(self.folder.join(node.to_string())).arg(program);
        command
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Run the test of this name in processes on these nodes, each a rank or several threads that are.
fn on_nodes(name: &str, places: &[usize], variables: &[Variable<'_>], be: impl FnOnce()) {
    if std::env::var_os(WAY).is_some() {
        return be();
    }
    if is_real() {
        return;
    }
    let Some(nodes) = Nodes::new(places.iter().max().expect("a rank") + 1) else { return };
    let all = [variables, &[(None, "BRIGADE_ROOT", "10.78.0.1:4000")]].concat();
    let command = |rank: usize, program: &Path| nodes.command(places[rank], program);
    start_by(&format!("nodes::{name}"), places.len(), "by nodes", &all, &command);
}

/// The same with each process one rank, which goes by nodes and ends its group.
fn by_nodes(name: &str, places: &[usize], variables: &[Variable<'_>], be: impl FnOnce(&Rank)) {
    on_nodes(name, places, variables, || {
        let rank = rank();
        rank.assert_way(Way::ByNodes);
        be(&rank);
        rank.group.close().expect("the end of a group");
    });
}

/// The same with each process several ranks, which are threads on its device: these of so many.
fn by_threads(
    name: &str,
    places: &[usize],
    variables: &[Variable<'_>],
    ranks: (usize, fn(usize) -> Range<usize>),
    be: fn(&Rank),
) {
    on_nodes(name, places, variables, || {
        let launch = Launch::discover().expect("a world");
        let process = launch.rank;
        let one = |rank: usize| {
            let rank = join(Launch { rank, ranks: ranks.0, ..launch.clone() }, process);
            rank.assert_way(Way::ByNodes);
            be(&rank);
            rank
        };
        let all: Vec<Rank> = std::thread::scope(|scope| {
            let threads = ranks.1(process).map(|rank| scope.spawn(move || one(rank)));
            let threads: Vec<_> = threads.collect();
            threads.into_iter().map(|thread| thread.join().expect("a rank")).collect()
        });
        all.iter().for_each(|rank| rank.group.close().expect("the end of a group"));
    });
}

/// This process as one rank.
fn rank() -> Rank {
    let launch = Launch::discover().expect("a world");
    let device = launch.rank;
    join(launch, device)
}

/// Every collective, of lengths that come apart and of some that do not.
fn check_all(rank: &Rank) {
    let ranks = rank.comm.size();
    for collective in Collective::ALL {
        let counts = if collective == Collective::Barrier { &[0] } else { &LENGTHS[..] };
        for &count in counts {
            // A root on each node.
            for root in [0, ranks as u32 - 1] {
                let collective = collective.with_root(root);
                rank.check(&even(collective, Dtype::F32, Op::Sum, count, ranks), count as u64);
                if collective.root().is_none() {
                    break;
                }
            }
        }
    }
    for (dtype, op) in [
        (Dtype::F32, Op::Avg),
        (Dtype::I32, Op::Avg),
        (Dtype::F64, Op::PreMulSum(0.5)),
        (Dtype::Bf16, Op::Max),
        (Dtype::U8, Op::Bxor),
    ] {
        for collective in [Collective::AllReduce, Collective::ReduceScatter] {
            rank.check(&even(collective, dtype, op.clone(), 100_000, ranks), 7);
        }
    }
    rank.pass_around(70_001);
}

fn sum(elems: usize) -> Call {
    Call::new(Collective::AllReduce, Dtype::I32, Op::Sum, elems)
}

/// Of a longer call by two ranks on each of two nodes a host carries half, and of a short one all.
fn check_bytes(rank: &Rank) {
    let sent = |elems: usize| {
        let before = rank.comm.stats().sent_bytes;
        rank.comm.barrier().expect("a barrier");
        let barrier = rank.comm.stats().sent_bytes - before;
        let memory = DeviceMemory::new(rank.group.context(), 4 * elems).expect("memory");
        let before = rank.comm.stats().sent_bytes;
        rank.run(&sum(elems), memory.address(), memory.address());
        let sent = rank.comm.stats().sent_bytes - before - barrier;
        rank.free(vec![memory]);
        sent
    };
    let sent = [50_000, 1000].map(sent);
    assert!((99_000..102_000).contains(&sent[0]) && sent[1] >= 4000, "{sent:?}");
}

#[test]
fn processes_divide_what_goes_from_node_to_node() {
    let name = "processes_divide_what_goes_from_node_to_node";
    by_nodes(name, &[0, 0, 1, 1], &[FOUR_DEVICES], |rank| {
        check_all(rank);
        check_bytes(rank);
    });
}

/// Windows so short that what takes one piece elsewhere takes up to sixteen: of vectors, of blocks
/// between nodes, and of whole calls through hosts.
#[test]
fn long_calls_go_in_pieces() {
    let pieces = (None, "BRIGADE_WINDOW_BYTES", "4096");
    by_nodes("long_calls_go_in_pieces", &[0, 0, 1, 1], &[FOUR_DEVICES, pieces], |rank| {
        for collective in Collective::ALL.into_iter().filter(|it| *it != Collective::Barrier) {
            let collective = collective.with_root(2);
            rank.check(&even(collective, Dtype::F32, Op::Sum, 50_001, 4), 9);
        }
        for (dtype, op) in [(Dtype::F64, Op::PreMulSum(0.5)), (Dtype::Bf16, Op::Avg)] {
            rank.check(&even(Collective::AllReduce, dtype, op, 100_000, 4), 9);
        }
        check_bytes(rank);
    });
}

/// Whoever is in another call reads of the whole one, not of a piece, and so does who counts.
#[test]
fn pieces_are_told_as_the_call_that_they_are_of() {
    let name = "pieces_are_told_as_the_call_that_they_are_of";
    let pieces = (None, "BRIGADE_WINDOW_BYTES", "4096");
    on_nodes(name, &[0, 0, 1], &[FOUR_DEVICES, pieces], || {
        let rank = rank();
        let memory = rank.memory(&[0; 160_000]);
        let at = memory.address();
        let calls = |elems| {
            let before = rank.comm.stats().calls;
            rank.run(&sum(elems), at, at);
            rank.comm.stats().calls - before
        };
        assert_eq!(calls(40_000), calls(1000));
        let own = sum(if rank.comm.rank() == 1 { 39_000 } else { 40_000 });
        // SAFETY: the memory is as long as the call.
        let differ = || unsafe { rank.group.enqueue(&own, at, at, &rank.stream) };
        // Two can find it out while the third is late, but not in what came before the barrier.
        let error = rank.comm.barrier().and_then(|()| differ());
        let error = error.expect_err("another length").to_string();
        assert!(error.contains("i32 x 39000") && error.contains("i32 x 40000"), "{error}");
    });
}

#[test]
fn ranks_of_a_node_need_not_be_neighbours_by_number() {
    let name = "ranks_of_a_node_need_not_be_neighbours_by_number";
    by_nodes(name, &[0, 1, 2, 0, 1, 2], &[(None, "BRIGADE_FAKE_CUDA_DEVICES", "6")], |rank| {
        check_all(rank);
    });
}

/// Nor have the ranks of a place numbers in the order of their nodes.
#[test]
fn roots_are_found_wherever_their_nodes_come_up() {
    let name = "roots_are_found_wherever_their_nodes_come_up";
    by_nodes(name, &[0, 1, 1, 0], &[FOUR_DEVICES], |rank| {
        for collective in Collective::ALL.into_iter().filter(|it| it.root().is_some()) {
            for root in 0..4 {
                let case = even(collective.with_root(root), Dtype::I32, Op::Sum, 20_000, 4);
                rank.check(&case, u64::from(root));
            }
        }
    });
}

/// What one leg alone can find out is told by the call that it is of, without a wait.
#[test]
fn ranks_of_a_node_that_fold_otherwise_are_told_so() {
    let name = "ranks_of_a_node_that_fold_otherwise_are_told_so";
    on_nodes(name, &[0, 0, 1, 1], &[FOUR_DEVICES], || {
        let rank = rank();
        let call = |op| Call::new(Collective::ReduceScatter, Dtype::I32, op, 20_000);
        let (input, output) = (rank.memory(&[0; 320_000]), rank.memory(&[0; 80_000]));
        let (from, to) = (input.address(), output.address());
        // SAFETY: the memory is as long as the call.
        let enqueue = |op| unsafe { rank.group.enqueue(&call(op), from, to, &rank.stream) };
        let own = if rank.comm.rank().is_multiple_of(2) { Op::Sum } else { Op::Max };
        // A rank that is late hears of it in a call that all agree on.
        let error = [Op::Sum, Op::Max, own].into_iter().try_for_each(enqueue);
        let error = error.expect_err("another operator").to_string();
        assert!(error.contains("sum") && error.contains("max"), "{error}");
    });
}

/// Kernels of a node take turns on its device.
#[test]
fn processes_that_share_the_device_of_their_node_meet() {
    let name = "processes_that_share_the_device_of_their_node_meet";
    by_nodes(name, &[0, 0, 1, 1], &[], |rank| {
        check_all(rank);
        rank.group.keep_open();
        let memory = rank.memory(&1_i32.to_le_bytes().repeat(50_000));
        for turn in 1..3 {
            rank.run(&sum(50_000), memory.address(), memory.address());
            assert!(rank.bytes(&memory) == 4_i32.pow(turn).to_le_bytes().repeat(50_000));
        }
        // Which stays until then.
        rank.group.close().expect("the end of a group");
    });
}

#[test]
fn a_rank_that_dies_is_told_to_those_in_a_leg_with_it_and_to_others() {
    let name = "a_rank_that_dies_is_told_to_those_in_a_leg_with_it_and_to_others";
    on_nodes(name, &[0, 0, 1, 1], &[FOUR_DEVICES], || {
        let rank = rank();
        let memory = rank.memory(&[0; 200_000]);
        let at = memory.address();
        rank.run(&sum(50_000), at, at);
        let met = rank.comm.barrier();
        if rank.comm.rank() == 3 {
            std::process::exit(0);
        }
        let begin = Instant::now();
        // SAFETY: the memory is as long as the call.
        let start = || unsafe { rank.group.start(&sum(50_000), at, at, &rank.stream) };
        // Who is late is still in the barrier then.
        let error = met.and_then(|()| start()).and_then(|work| work.wait());
        let error = error.expect_err("rank 3 is lost").to_string();
        assert!(error.contains("rank 3"), "{error}");
        assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    });
}

/// The hosts carry a part, so nothing is enqueued for later.
#[test]
fn nothing_is_captured_and_who_names_an_algorithm_has_it() {
    let name = "nothing_is_captured_and_who_names_an_algorithm_has_it";
    on_nodes(name, &[0, 0, 1, 1], &[FOUR_DEVICES], || {
        let rank = rank();
        let memory = rank.memory(&[0; 200_000]);
        let at = memory.address();
        rank.run(&sum(50_000), at, at);
        rank.stream.begin_capture(CaptureMode::Thread).expect("a capture");
        // SAFETY: the memory is as long as the call.
        let refused = unsafe { rank.group.enqueue(&sum(50_000), at, at, &rank.stream) };
        let refused = refused.expect_err("a capture").to_string();
        assert!(refused.contains("cannot be captured"), "{refused}");
        drop(rank.stream.end_capture());
        rank.run(&sum(50_000), at, at);
        let settings =
            Settings { algorithm: Some(Algorithm::Ring), ..rank.comm.settings().clone() };
        let named = rank.comm.split_with(Some(0), 0, settings).expect("a split").expect("a group");
        let group = named.on_device(rank.group.context()).expect("a group on devices");
        assert_eq!(group.way(), Way::Staged);
        rank.free(vec![memory]);
    });
}

/// Pinning memory for what goes between nodes may wait for kernels of the other thread.
#[test]
fn threads_of_each_node_do_not_wait_for_each_others_memory() {
    let name = "threads_of_each_node_do_not_wait_for_each_others_memory";
    let two = |process| 2 * process..2 * process + 2;
    by_threads(name, &[0, 1], &[TWO_DEVICES], (4, two), |rank| {
        assert!(rank.group.shares_device() && rank.group.kernels_wait());
        check_all(rank);
    });
}

/// Of each node one process is two ranks, which may wait for each other's memory, and one is one.
#[test]
fn processes_of_a_node_may_have_different_numbers_of_threads() {
    let name = "processes_of_a_node_may_have_different_numbers_of_threads";
    let some = |process| 3 * process / 2 + process % 2..3 * (process + 1) / 2 + (process + 1) % 2;
    by_threads(name, &[0, 0, 1, 1], &[FOUR_DEVICES], (6, some), |rank| {
        for collective in Collective::ALL.into_iter().filter(|it| *it != Collective::Barrier) {
            let collective = collective.with_root(4);
            rank.check(&even(collective, Dtype::F32, Op::Sum, 20_000, 6), 5);
        }
    });
}

#[test]
fn nodes_with_different_numbers_of_ranks_go_through_their_hosts() {
    let name = "nodes_with_different_numbers_of_ranks_go_through_their_hosts";
    on_nodes(name, &[0, 0, 1], &[FOUR_DEVICES], || {
        let rank = rank();
        rank.assert_way(Way::Staged);
        check_all(&rank);
    });
}
