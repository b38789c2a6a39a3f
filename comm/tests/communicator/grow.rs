//! How newcomers join a group that is there already.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use brigade_comm::bootstrap::{Root, UniqueId};
use brigade_comm::transports::transports;
use brigade_comm::{Communicator, Error, Op, Settings};

use crate::world::{each_rank, over};

/// What can grow in one process: loopback's ranks are all there from the beginning.
const TRANSPORTS: [&str; 3] = ["shm", "tcp", "shm,tcp"];

/// An id of this host, and the root that it leads to.
fn draw() -> (UniqueId, Root) {
    UniqueId::create(Some(std::net::Ipv4Addr::LOCALHOST.into())).expect("a root")
}

/// The sum of what the members bring.
fn sum_of(group: &Communicator, mine: u64) -> u64 {
    let mut sum = [mine];
    group.all_reduce(&mut sum, Op::Sum).expect("an all-reduce of old ranks and new ones");
    sum[0]
}

/// A newcomer, as another process would be one: it has the id, and nothing else.
fn come(
    id: &UniqueId,
    rank: usize,
    ranks: usize,
    settings: &Settings,
) -> std::thread::JoinHandle<u64> {
    let (id, settings) = (id.clone(), settings.clone());
    std::thread::spawn(move || {
        let whole = Communicator::from_id(&id, rank, ranks, settings).expect("it is let in");
        assert_eq!((whole.rank(), whole.size()), (rank, ranks));
        sum_of(&whole, 100)
    })
}

#[test]
fn newcomers_stand_behind_the_ranks_that_were_there() {
    for transport in TRANSPORTS {
        let settings = over(transport);
        let (id, root) = draw();
        let newcomers = [3, 4].map(|rank| come(&id, rank, 5, &settings));
        let sums = each_rank(3, &settings, move |member| {
            let known = (member.rank() == 1).then_some(&id);
            let whole = member.grow(5, known).expect("five come together");
            assert_eq!((whole.rank(), whole.size()), (member.rank(), 5));
            let sums = [sum_of(&whole, 1), sum_of(&member, 1)];
            drop(member);
            // What the new world does is of no concern to the old one, nor the other way round.
            whole.barrier().map(|()| sums).expect_err("the newcomers have left");
            sums
        });
        assert_eq!(sums, [[203, 3]; 3], "{transport}");
        assert_eq!(newcomers.map(|it| it.join().unwrap()), [203; 2], "{transport}");
        drop(root);
    }
}

/// Of a world of three one is lost, and replaced; again and again.
#[test]
fn who_was_lost_is_replaced_after_the_others_have_shrunk() {
    let settings = over("shm");
    let roots: Arc<Mutex<Vec<Root>>> = Arc::default();
    let kept = Arc::clone(&roots);
    each_rank(3, &settings.clone(), move |member| {
        let old = member.rank();
        member.barrier().expect("all are there");
        if old == 2 {
            return;
        }
        member.barrier().expect_err("one is missing");
        let mut rest = member.shrink(&[2]).expect("two are left");
        for _ in 0..3 {
            let (drawn, newcomer) = match old {
                0 => {
                    let (id, root) = draw();
                    kept.lock().unwrap().push(root);
                    let newcomer = come(&id, 2, 3, &settings);
                    (Some(id), Some(newcomer))
                }
                _ => (None, None),
            };
            let whole = rest.grow(3, drawn.as_ref()).expect("three again");
            assert_eq!(sum_of(&whole, 1), 102);
            // The newcomer leaves with its sum.
            assert_eq!(newcomer.map_or(102, |it| it.join().unwrap()), 102);
            rest = whole.shrink(&[2]).expect("two are left");
            assert_eq!(sum_of(&rest, 1), 2);
        }
    });
    assert_eq!(roots.lock().unwrap().len(), 3);
}

/// Those of the old group say nothing of those of the new one.
#[test]
fn a_group_grows_over_transports_of_its_callers_making() {
    let (id, _root) = draw();
    let newcomer = come(&id, 2, 3, &over("tcp"));
    each_rank(2, &over("loopback"), move |member| {
        let settings = over("shm");
        let ours = transports(&over("tcp")).expect("it is known");
        let whole = member.grow_over(3, Some(&id), settings, &ours).expect("three come together");
        assert_eq!(whole.transports(), [("tcp".to_owned(), 2)]);
        assert_eq!(sum_of(&whole, 1), 102);
    });
    assert_eq!(newcomer.join().unwrap(), 102);
}

#[test]
fn a_group_that_does_not_agree_does_not_grow_and_goes_on() {
    let drawn = Arc::new([draw(), draw()]);
    each_rank(2, &over("shm"), move |member| {
        let rank = member.rank();
        let [(one, _), (other, _)] = &*drawn;
        for (ranks, id, what) in [
            (3, None, "no rank was given a unique id"),
            (3, Some([one, other][rank]), "rank 0 and rank 1 were given different"),
            (3 + rank, Some(one), "rank 0 asks for 3 ranks, but rank 1 for 4"),
            (1, Some(one), "1 ranks, but there are 2"),
            (0, Some(one), "0 ranks, but there are 2"),
        ] {
            let refused = member.grow(ranks, id).map(drop);
            let Err(Error::Invalid { .. }) = refused else { panic!("{what}: {refused:?}") };
            let problem = refused.unwrap_err().to_string();
            assert!(problem.contains(what), "{problem}");
        }
        // The same ranks in a world of their own, if that is what is asked for.
        let same = member.grow(2, Some(one)).expect("both are there");
        assert_eq!((sum_of(&same, 1), sum_of(&member, 1)), (2, 2));
    });
}

#[test]
fn newcomers_that_do_not_come_are_named_and_the_group_goes_on() {
    let drawn = Arc::new(draw());
    each_rank(2, &over("tcp"), move |member| {
        let join_timeout = Duration::from_millis(1500);
        let settings = Settings { join_timeout, ..member.settings().clone() };
        let ending = member.grow_with(4, Some(&drawn.0), settings);
        let ending = ending.map(drop).expect_err("two are missing");
        let words = ending.to_string();
        assert!(matches!(ending, Error::Join { .. }), "{words}");
        assert!(words.contains("ranks 2, 3 of 4"), "{words}");
        assert_eq!(sum_of(&member, 1), 2);
    });
}
