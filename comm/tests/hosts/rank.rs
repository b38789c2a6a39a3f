//! What the ranks do, each in its process on its host.

use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

use brigade_comm::launch::{Launch, RootSpec};
use brigade_comm::naive::{NaiveCall, expected, fill};
use brigade_comm::{Buffers, Call, Communicator, Counts, Dtype, Op, Settings};
use brigade_schedule::{Algorithm, Collective};

use crate::job::{FOLDER, PART, PLACES, say};
use crate::{listen, windows};

/// The child's side. Without a part this is an empty test.
#[test]
fn play_a_part() {
    let Ok(part) = std::env::var(PART) else { return };
    let places = std::env::var(PLACES).unwrap();
    let places: Vec<usize> = places.split(' ').map(|word| word.parse().unwrap()).collect();
    match part.as_str() {
        "groups" => groups(&places),
        "algorithms" => algorithms(),
        "flow" => flow(),
        "traffic" => traffic(),
        "crossing" => crossing(),
        "refused" => say(&format!("error {}", Communicator::from_env().err().unwrap())),
        "pace" => pace(),
        "listening" => listen::listen(),
        "speaking" => listen::speak(),
        "windows" => windows::ring(),
        "window flow" => windows::flow(),
        other => panic!("no part called {other}"),
    }
    say("done");
}

/// The same group by host and across hosts, each over the transports that it should have.
fn groups(places: &[usize]) {
    let world = Communicator::from_env().unwrap();
    let (me, here) = (world.rank(), places[world.rank()]);
    check_transports(&world, places, &(0..places.len()).collect::<Vec<_>>());
    check_all(&world, &[0, 1, 17, 5000, 300_001]);
    let before = |rank: usize| places[..rank].iter().filter(|&&host| host == places[rank]).count();
    let inside = |rank: usize| places[rank] == here;
    let across = |rank: usize| before(rank) == before(me);
    let members = |wanted: &dyn Fn(usize) -> bool| -> Vec<usize> {
        (0..places.len()).filter(|&rank| wanted(rank)).collect()
    };
    let host = world.split(Some(here as u32), 0).unwrap().unwrap();
    check_transports(&host, places, &members(&inside));
    check_all(&host, &[0, 1, 5000]);
    let row = world.split(Some(before(me) as u32), 0).unwrap().unwrap();
    check_transports(&row, places, &members(&across));
    check_all(&row, &[0, 1, 5000]);
    // All three at once, none in the way of another.
    for turn in 0..20 {
        check(&world, Collective::AllReduce, 40 + turn);
        check(&row, Collective::AllReduce, 30 + turn);
        check(&host, Collective::AllReduce, 20 + turn);
    }
}

/// This group has shared memory with so many of its members, and TCP with the others.
fn check_transports(group: &Communicator, places: &[usize], members: &[usize]) {
    let own = places[members[group.rank()]];
    let near = members.iter().filter(|&&rank| places[rank] == own).count() - 1;
    let far = members.len() - 1 - near;
    let wanted = [("shm", near), ("tcp", far)].map(|(name, count)| (name.to_owned(), count));
    let wanted: Vec<_> = wanted.into_iter().filter(|(_, count)| *count > 0).collect();
    assert_eq!(group.transports(), wanted, "rank {} of {members:?}", group.rank());
    let of_first = |member: usize| members.iter().position(|one| places[*one] == places[member]);
    let firsts: Vec<_> = members.iter().map(|member| of_first(*member)).collect();
    let nodes = group.nodes();
    let by_number = nodes.iter().map(|node| nodes.iter().position(|other| other == node));
    assert!(by_number.eq(firsts) && nodes[0] == 0, "{nodes:?} of {members:?} on {places:?}");
}

/// A world for each algorithm, and every collective that it can do.
fn algorithms() {
    let launch = Launch::discover().unwrap();
    let folder = std::env::var(FOLDER).unwrap();
    let ranks = launch.ranks as u32;
    let mut wishes: Vec<Algorithm> = Vec::new();
    for collective in collectives(ranks) {
        let all = Algorithm::all_for(collective, ranks);
        wishes.extend(all.into_iter().filter(|wish| !wishes.contains(wish)).collect::<Vec<_>>());
    }
    assert!(wishes.contains(&Algorithm::Hierarchical { node_ranks: 2 }));
    for (number, wish) in wishes.into_iter().enumerate() {
        let root = RootSpec::IdFile(Path::new(&folder).join(format!("id-{number}")));
        let settings = Settings { algorithm: Some(wish), ..Settings::from_env().unwrap() };
        let world = Communicator::join(Launch { root, ..launch.clone() }, settings).unwrap();
        for collective in collectives(ranks).filter(|&c| wish.can_do(c, ranks)) {
            assert_eq!(world.algorithm_for(&call(collective, 17)).unwrap(), wish);
            for count in [1, 17, 5000].into_iter().take(counts_of(collective)) {
                check(&world, collective, count);
            }
            if matches!(collective, Collective::ReduceScatter | Collective::AllGather) {
                [1, 5000].into_iter().for_each(|count| check_uneven(&world, collective, count));
                check_update(&world);
            }
        }
    }
}

fn collectives(ranks: u32) -> impl Iterator<Item = Collective> {
    let rooted = [0, ranks - 1].into_iter().flat_map(|root| {
        [
            Collective::Broadcast { root },
            Collective::Reduce { root },
            Collective::Gather { root },
            Collective::Scatter { root },
        ]
    });
    let plain = [
        Collective::AllReduce,
        Collective::ReduceScatter,
        Collective::AllGather,
        Collective::AllToAll,
        Collective::Barrier,
    ];
    plain.into_iter().chain(rooted)
}

/// A barrier has nothing to count.
fn counts_of(collective: Collective) -> usize {
    if collective == Collective::Barrier { 1 } else { usize::MAX }
}

fn check_all(group: &Communicator, counts: &[usize]) {
    for collective in collectives(group.size() as u32) {
        for &count in counts.iter().take(counts_of(collective)) {
            check(group, collective, count);
        }
    }
}

fn call(collective: Collective, count: usize) -> Call {
    let count = if collective == Collective::Barrier { 0 } else { count };
    Call { collective, dtype: Dtype::F32, op: Op::Sum, counts: Counts::Even(count) }
}

fn check(group: &Communicator, collective: Collective, count: usize) {
    check_call(group, &call(collective, count));
}

/// Blocks of as many different lengths as there are ranks, one of which is empty.
fn check_uneven(group: &Communicator, collective: Collective, count: usize) {
    let ranks = group.size();
    let counts = (0..ranks).map(|rank| count * ((rank + 2) % ranks)).collect();
    check_call(group, &Call { counts: Counts::PerRank(counts), ..call(collective, 0) });
}

/// One call, against the judge.
fn check_call(group: &Communicator, call: &Call) {
    let (rank, ranks, collective) = (group.rank(), group.size() as u32, call.collective);
    let blocks = collective.blocks(ranks);
    let counts = match &call.counts {
        Counts::Even(count) => vec![*count; blocks as usize],
        Counts::PerRank(counts) => counts.to_vec(),
        Counts::PerPair { .. } => unreachable!("no all-to-all is uneven here"),
    };
    let brought = |rank| -> usize {
        let blocks = (0..blocks).filter(|&block| collective.has_input(ranks, rank, block));
        blocks.map(|block| counts[block as usize]).sum()
    };
    let input = |rank| fill(call.dtype, &call.op, rank, ranks, 7, brought(rank));
    let inputs: Vec<_> = (0..ranks).map(input).collect();
    let op = call.op.clone();
    let naive = NaiveCall { collective, dtype: call.dtype, op, counts: counts.clone() };
    let wanted = expected(&naive, &inputs);
    let (_, outs) = call.buffer_elems(ranks, rank as u32);
    let mut output = vec![0xEE; outs * call.dtype.size()];
    let buffers = Buffers::OutOfPlace { input: &inputs[rank], output: &mut output };
    group.run(call, buffers).unwrap_or_else(|error| panic!("rank {rank}, {call}: {error}"));
    if let Some(wanted) = &wanted[rank] {
        assert!(output == *wanted, "rank {rank} of {ranks}, {call}: wrong");
    }
}

/// A sharded update of whole numbers, which come to the same in any order.
fn check_update(group: &Communicator) {
    let (rank, ranks) = (group.rank(), group.size());
    for elems in [ranks, 20_001] {
        let mut gradients: Vec<f32> = (0..elems).map(|i| ((rank + 1) * (i % 9)) as f32).collect();
        let mut weights = vec![rank as f32; elems];
        let mut update = |_: Range<usize>, gradients: &mut [f32], weights: &mut [f32]| {
            weights.iter_mut().zip(gradients).for_each(|(weight, gradient)| *weight = *gradient);
        };
        group.sharded_update(&mut gradients, Op::Sum, &mut weights, &mut update).unwrap();
        let sum = ranks * (ranks + 1) / 2;
        assert!(weights.iter().enumerate().all(|(i, &weight)| weight == (sum * (i % 9)) as f32));
    }
}

/// Calls without end; tells the error that ends them, and how long it took to come.
fn flow() {
    let world = Communicator::from_env().unwrap();
    let mut data = vec![1.0f32; 100_000];
    world.all_reduce(&mut data, Op::Max).unwrap();
    say("flowing");
    let error = loop {
        if let Err(error) = world.all_reduce(&mut data, Op::Max) {
            break error;
        }
    };
    say(&format!("error {error}"));
    let start = Instant::now();
    drop(world);
    say(&format!("left {}", start.elapsed().as_millis()));
}

/// Sends megabytes and tells how many bytes have left by each interface.
fn traffic() {
    let world = Communicator::from_env().unwrap();
    let mut data = vec![1.0f32; 2 << 20];
    world.all_reduce(&mut data, Op::Sum).unwrap();
    // Whoever has heard from the other after it has got all has sent all.
    world.barrier().unwrap();
    say(&format!("sent {} {}", sent_by("cable"), sent_by("second")));
}

/// The bytes that this host has sent by that cable.
fn sent_by(name: &str) -> u64 {
    let table = std::fs::read_to_string("/proc/self/net/dev").unwrap();
    let row = table.lines().find_map(|line| line.trim().strip_prefix(&format!("{name}:")));
    row.unwrap().split_whitespace().nth(8).unwrap().parse().unwrap()
}

/// What a host sends to others in calls of 2 MiB.
fn crossing() {
    let world = Communicator::from_env().unwrap();
    let ranks = world.size() as u32;
    let rooted =
        (0..ranks).flat_map(|root| [Collective::Broadcast { root }, Collective::Reduce { root }]);
    let plain = [Collective::AllReduce, Collective::ReduceScatter, Collective::AllGather];
    for collective in plain.into_iter().chain(rooted) {
        // Wires are opened by the first of all calls.
        check(&world, collective, 1);
        let sent = || {
            world.barrier().unwrap();
            let sent = sent_by("cable") + sent_by("second");
            world.barrier().unwrap();
            sent
        };
        let before = sent();
        let blocks = collective.blocks(ranks) as usize;
        check(&world, collective, (2 << 20) / blocks / size_of::<f32>());
        say(&format!("sent {}", sent() - before));
    }
}

/// How long small calls take.
fn pace() {
    let world = Communicator::from_env().unwrap();
    let mut data = [0u64];
    let mut times = Vec::new();
    for turn in 0..1000 {
        let start = Instant::now();
        world.all_reduce(&mut data, Op::Sum).unwrap();
        if turn >= 100 {
            times.push(start.elapsed());
        }
        if turn % 10 == 0 {
            // Long enough for the others to fall asleep.
            std::thread::sleep(Duration::from_millis(if world.rank() == 0 { 4 } else { 0 }));
        }
    }
    times.sort();
    let at = |part: f64| times[(times.len() as f64 * part) as usize].as_secs_f64() * 1e6;
    let (p50, p90, p99) = (at(0.5), at(0.9), at(0.99));
    say(&format!("pace p50 {p50:.0} us, p90 {p90:.0} us, p99 {p99:.0} us"));
}
