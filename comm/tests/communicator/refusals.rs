//! Calls that make no sense are refused by the rank that makes them, with a sentence, before
//! anything is sent; the communicator is as good as before.

use brigade_comm::bootstrap::UniqueId;
use brigade_comm::launch::{JobSecret, Launch, RootAddress, RootSpec};
use brigade_comm::{
    Buffers, Call, Communicator, Counts, Dtype, Error, Messages, Op, Settings, WindowSize,
};
use brigade_schedule::Collective;

use crate::world::{each_rank, over, special};

/// The refusal must be `Invalid`, and its sentence must have these words.
fn check(what: &str, outcome: Result<(), Error>, words: &[&str]) {
    let Err(error @ Error::Invalid { .. }) = outcome else { panic!("{what}: {outcome:?}") };
    let text = error.to_string();
    assert!(words.iter().all(|word| text.contains(word)), "{what}: {text}");
}

fn run(member: &Communicator, call: &Call, input: usize, output: usize) -> Result<(), Error> {
    let (input, mut output) = (vec![0; input], vec![0; output]);
    member.run(call, Buffers::OutOfPlace { input: &input, output: &mut output })
}

fn wrong_roots(member: &Communicator) {
    let mut data = [1f32; 6];
    check("a root beyond", member.broadcast(&mut data, 3), &["root 3", "3 ranks"]);
    check("a root beyond", member.reduce(&mut data, Op::Sum, 7), &["root 7", "3 ranks"]);
    // A number that has nothing left when cut to 32 bits.
    check("a vast root", member.broadcast(&mut data, 1 << 32), &["3 ranks"]);
    check("a vast root", member.reduce(&mut data, Op::Sum, 1 << 32), &["3 ranks"]);
    let mut all = [0f32; 18];
    check("a vast root", member.gather(&data, &mut all, 1 << 32), &["3 ranks"]);
    check("a vast root", member.scatter(&all, &mut data, 1 << 32), &["3 ranks"]);
}

fn wrong_lengths(member: &Communicator) {
    let (short, mut long) = ([1i32; 2], [0i32; 7]);
    let outcome = member.all_gather(&short, &mut long);
    check("an output that is too long", outcome, &["28 bytes", "6 elements", "24 bytes"]);
    let outcome = member.reduce_scatter(&long, &mut [0i32; 2], Op::Sum);
    check("an input that is too long", outcome, &["28 bytes", "24 bytes"]);
    check("unequal lengths", member.all_reduce_into(&short, &mut long, Op::Sum), &["8 bytes"]);
    let outcome = member.all_to_all(&[1u8; 7], &mut [0u8; 7]);
    check("seven among three", outcome, &["7 elements", "3 ranks"]);
    let outcome = member.all_gather_v(&short, &mut long, &[2, 5]);
    check("too few counts", outcome, &["2 counts", "3 ranks"]);
    let mut to = vec![1; 3];
    to[member.rank()] = 2;
    let counts = Counts::PerPair { to: to.into(), from: vec![1; 3].into() };
    let call = Call { counts, ..Call::moving(Collective::AllToAll, Dtype::U8, 0) };
    let wanted = format!("rank {} sends itself 2 elements, and receives 1", member.rank());
    check("two lengths of one block", run(member, &call, 4, 3), &[&wanted]);
    let call = Call::new(Collective::AllReduce, Dtype::F64, Op::Sum, 4);
    let mut buffer = [0u8; 31];
    let outcome = member.run(&call, Buffers::InPlace(&mut buffer));
    check("a torn element", outcome, &["31 bytes", "32 bytes"]);
}

/// Lengths that no memory has must not wrap around to lengths that some have.
fn vast_lengths(member: &Communicator) {
    for count in [usize::MAX, usize::MAX / 2 + 1, usize::MAX / 8 + 1, usize::MAX / 24 + 1] {
        for collective in [Collective::AllGather, Collective::AllReduce, Collective::AllToAll] {
            let call = Call::new(collective, Dtype::F64, Op::Sum, count);
            check("a vast count", run(member, &call, 0, 0), &[]);
        }
    }
    let counts = Counts::PerRank([usize::MAX, 1, 1].into());
    let call = Call { counts, ..Call::moving(Collective::AllGather, Dtype::U8, 0) };
    check("vast counts", run(member, &call, 1, 1), &[]);
}

fn wrong_operators(member: &Communicator) {
    let outcome = member.all_reduce(&mut [1f32; 3], Op::Band);
    check("bits of a number", outcome, &["band", "f32"]);
    check("half a truth", member.all_reduce(&mut [true; 3], Op::Avg), &["avg", "bool"]);
    let call = Call::moving(Collective::Barrier, Dtype::U8, 1);
    check("a barrier with a load", run(member, &call, 1, 1), &["barrier"]);
    let counts = Counts::PerRank([1, 2, 3].into());
    for collective in [Collective::AllReduce, Collective::Broadcast { root: 0 }] {
        let call = Call { counts: counts.clone(), ..Call::moving(collective, Dtype::U8, 0) };
        check("lengths by rank of a single vector", run(member, &call, 6, 6), &["counts"]);
    }
}

#[test]
fn refusals_name_what_is_wrong_and_leave_the_communicator_as_it_was() {
    for refuse in [wrong_roots, wrong_lengths, wrong_operators, vast_lengths] {
        each_rank(3, &over("loopback"), move |member| {
            // Only one rank errs: if anything had been sent, the others would notice.
            if member.rank() == 1 {
                refuse(&member);
            }
            let mut sum = [member.rank() as i64];
            member.all_reduce(&mut sum, Op::Sum).expect("as good as before");
            assert_eq!((sum, member.stats().calls), ([3], 1));
        });
    }
}

#[test]
fn members_of_a_group_are_named_by_their_ranks_in_the_world() {
    each_rank(4, &over("loopback"), |member| {
        let pair = member.split(Some(member.rank() as u32 / 2), 0).expect("two pairs").unwrap();
        let (first, second) = (member.rank() / 2 * 2, member.rank() / 2 * 2 + 1);
        let (me, of_second) = (member.rank(), format!("rank {second}"));
        let call = Call::new(Collective::AllReduce, Dtype::F64, Op::Sum, 4);
        let torn = pair.run(&call, Buffers::InPlace(&mut [0u8; 31]));
        check("a torn element", torn, &[&format!("of rank {me} has 31 bytes")]);
        let vast = if me == second { usize::MAX / 2 } else { 8 };
        let window = pair.window(WindowSize { bytes: vast, signals: 1 }).map(drop);
        check("a vast window", window, &[&of_second, "no window has"]);
        let grown = pair.agree_to_grow(3 + i64::from(me == second), None).map(drop);
        check("two sizes", grown, &[&format!("rank {first} asks for 3 ranks"), &of_second]);
    });
}

#[test]
fn a_transport_that_there_is_not_is_named_also_where_a_rank_is_alone() {
    let settings = Settings { transport: "shm,foo".into(), ..Settings::default() };
    let alone = Launch { rank: 0, ranks: 1, local_rank: None, root: RootSpec::Alone };
    let refused = Communicator::join(alone, settings).map(drop).expect_err("no such transport");
    assert!(refused.to_string().contains("\"foo\""), "{refused}");
}

#[test]
fn who_cannot_join_the_others_tells_them_why() {
    for name in ["shm refusing at first", "tcp refusing at first"] {
        let (ranks, settings) = (3, over(name));
        let transports = special(ranks, &settings).expect("one of them");
        let here = Some(std::net::Ipv4Addr::LOCALHOST.into());
        let (id, root) = UniqueId::create(here).expect("a root");
        let be = |rank: usize| {
            let root = RootSpec::Id(id.clone());
            let launch = Launch { rank, ranks, local_rank: Some(rank), root };
            let comm = Communicator::join_over(launch, settings.clone(), &transports)?;
            // Another has joined, and hears of it in its first call.
            comm.barrier()
        };
        let outcomes: Vec<_> = std::thread::scope(|scope| {
            let all: Vec<_> = (0..ranks).map(|rank| scope.spawn(move || be(rank))).collect();
            all.into_iter().map(|rank| rank.join().expect("no panic")).collect()
        });
        drop(root);
        let said: Vec<String> = outcomes
            .iter()
            .map(|outcome| format!("{:?}", outcome.as_ref().map_err(ToString::to_string)))
            .collect();
        assert!(said.iter().all(|said| said.contains("this test wants it so")), "{name}: {said:?}");
        let told = |outcome: &&Result<(), Error>| matches!(outcome, Err(Error::Aborted { .. }));
        assert_eq!(outcomes.iter().filter(told).count(), 2, "{name}: {said:?}");
    }
}

/// Over TCP each reaches all others, and joins what ranks of a host share for others only.
#[test]
fn a_seat_that_nobody_needs_is_left_out_where_it_cannot_be_taken() {
    each_rank(3, &over("tcp, then shm refusing at first"), |member| {
        let mut sum = [member.rank() as u64 + 1];
        member.all_reduce(&mut sum, Op::Sum).expect("an all-reduce");
        assert_eq!(sum, [6]);
    });
}

/// Names the file to the process that takes it for a plugin.
const PLUGIN_VARIABLE: &str = "TEST_PLUGIN";

#[test]
#[ignore = "the process of the test below"]
fn one_world_that_asks_for_a_plugin() {
    let Ok(plugin) = std::env::var(PLUGIN_VARIABLE) else { return };
    let world = Communicator::local_world(2, &over(&format!("plugin:{plugin},tcp")));
    let text = world.expect("a world over TCP")[0].describe();
    assert!(text.contains("tcp: to 1"), "{text}");
}

#[test]
fn a_plugin_that_is_no_library_is_told_once_and_left_out() {
    let file = std::env::temp_dir().join(format!("libnccl-net-junk{}.so", std::process::id()));
    std::fs::write(&file, "no library").expect("a file of our own");
    let one = "refusals::one_world_that_asks_for_a_plugin";
    let mut program = std::process::Command::new(std::env::current_exe().expect("this program"));
    program.args(["--ignored", "--exact", one, "--nocapture"]).env(PLUGIN_VARIABLE, &file);
    let output = program.output();
    std::fs::remove_file(&file).expect("it is ours");
    let output = output.expect("this program");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let [name, file] =
        [format!("plugin:junk{}", std::process::id()), format!("{}: ", file.display())];
    let why = format!("brigade: {name} is not available: no plugin could be loaded: {file}");
    assert!(said.contains(&why) && said.matches(&name).count() == 1, "{said}");
}

#[test]
fn nothing_is_encrypted_with_what_everybody_knows() {
    let secret = JobSecret::guard("a job");
    let address = RootAddress { host: "127.0.0.1".into(), port: 9, port_count: 1, secret };
    let launch = Launch { rank: 1, ranks: 2, local_rank: None, root: RootSpec::Address(address) };
    let settings = Settings { encrypt: true, ..over("tcp") };
    let outcome = Communicator::join(launch, settings).map(drop);
    check("no secret", outcome, &["BRIGADE_ENCRYPT", "BRIGADE_SECRET"]);
}

#[test]
fn messages_to_oneself_that_do_not_fit_are_told_by_what_differs() {
    each_rank(1, &over("loopback"), |member| {
        let mut got = [0f32; 3];
        let refused = |group: Messages<'_>| group.check().expect_err("no match").to_string();
        let only_sent = refused(member.messages().send(&[1f32; 3], 0));
        assert!(only_sent.contains("it sends 1 of them and receives 0"), "{only_sent}");
        let shorter = refused(member.messages().send(&[1f32; 2], 0).recv(&mut got, 0));
        let wanted =
            "message 0 to oneself is sent as 8 bytes of f32 and received as 12 bytes of f32";
        assert_eq!(shorter, wanted);
        let mut whole = [0i32; 3];
        let other = refused(member.messages().send(&[1f32; 3], 0).recv(&mut whole, 0));
        assert!(other.contains("12 bytes of f32 and received as 12 bytes of i32"), "{other}");
    });
}
