//! What a communicator says of itself is what its calls do.

use brigade_comm::{Buffers, Call, Communicator, Dtype, Op, Settings, WindowSize};
use brigade_schedule::{Algorithm, Collective};

use crate::world::{each_rank, over};

#[test]
fn a_description_has_the_transports_and_the_algorithms_by_size() {
    let lines = each_rank(3, &over("shm"), |member| {
        let call = |bytes: usize| {
            let call = Call::new(Collective::AllReduce, Dtype::F32, Op::Sum, bytes / 4);
            member.algorithm_for(&call).expect("there is one").to_string()
        };
        let (short, long) = (call(8), call(64 << 20));
        assert_ne!(short, long);
        let text = member.describe();
        assert!(text.contains(&format!("\nall-reduce: {short}, ")), "{text}");
        assert!(text.contains(&format!("{long} from ")), "{text}");
        text.lines().take(2).map(str::to_owned).collect::<Vec<_>>()
    });
    let to = ["1-2", "0, 2", "0-1"];
    for (rank, lines) in lines.into_iter().enumerate() {
        let wanted = [format!("rank {rank} of 3, on node 0 of 1"), format!("shm: to {}", to[rank])];
        assert_eq!(lines, wanted);
    }
}

/// So that whoever keeps one in a structure of its own can derive `Debug`.
#[test]
fn handles_show_whose_they_are_and_no_memory() {
    each_rank(2, &over("loopback"), |member| {
        let rank = member.rank();
        let whose = format!("{{ rank: {rank}, size: 2, .. }}");
        assert_eq!(format!("{member:?}"), format!("Communicator {whose}"));
        let window = member.window(WindowSize::default()).expect("a window");
        assert_eq!(format!("{window:?}"), format!("Window {whose}"));
        let listed = member.messages().send(&[1_u8], 7).recv::<u8>(&mut [], 0);
        let listed = format!("{listed:?}");
        let problem = "problem: Some(message: rank 7 of 2 ranks), .. }";
        assert_eq!(listed, format!("Messages {{ count: 2, {problem}"));
        let mut data = [0_u8; 3];
        let buffers = Buffers::InPlace(&mut data);
        assert_eq!(format!("{buffers:?}"), "InPlace { bytes: 3, .. }");
        let apart = Buffers::OutOfPlace { input: &[1; 5], output: &mut [2; 4] };
        assert_eq!(format!("{apart:?}"), "OutOfPlace { input_bytes: 5, output_bytes: 4, .. }");
        let reduced = member.all_reduce_owned(vec![1_u8], Op::Sum).expect("a start");
        assert!(format!("{reduced:?}").starts_with("Owned { is_done: "));
        reduced.wait().expect("an all-reduce");
        let work = member.scope(|scope| {
            assert_eq!(format!("{scope:?}"), "Scope { .. }");
            let work = scope.all_reduce(&mut data, Op::Sum).expect("a start");
            work.wait().map(|()| format!("{work:?}"))
        });
        assert_eq!(work.expect("a scope").expect("a call"), "Work { is_done: true, .. }");
    });
}

#[test]
fn an_algorithm_that_is_asked_for_is_told() {
    let settings = Settings { algorithm: Some(Algorithm::Ring), ..over("loopback") };
    each_rank(2, &settings, |member| {
        let text = member.describe();
        assert!(text.contains("\nall-reduce: ring\n"), "{text}");
    });
    each_rank(1, &settings, |member| {
        assert_eq!(member.describe(), "rank 0 of 1, on node 0 of 1\n");
    });
}

/// Whoever reaches a part of a host only comes before what joins all of it.
#[test]
fn the_first_transport_that_reaches_a_rank_serves_it_whomever_else_it_reaches() {
    let mut carriers = each_rank(3, &over("tcp to every other one, then shm"), |member| {
        let sums = |member: &Communicator| {
            let mut sum = [1_i32 << member.rank(); 5000];
            member.all_reduce(&mut sum, Op::Sum).expect("a sum");
            assert_eq!(sum, [(1 << member.size()) - 1; 5000]);
        };
        sums(&member);
        sums(&member.split(Some(0), 0).expect("a division").expect("a part of it"));
        member.describe().matches(": to ").count()
    });
    // Two of them have TCP between them, whichever came first.
    carriers.sort_unstable();
    assert_eq!(carriers, [1, 2, 2]);
}
