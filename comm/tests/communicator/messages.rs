//! Messages between pairs: every pair, groups in flight at once, order, lengths, and what becomes
//! of two ranks that do not mean the same message.

use std::time::{Duration, Instant};

use brigade_comm::{Communicator, Dtype, Error, Op};

use crate::world::{TRANSPORTS, each_rank, over};

/// Lengths around every border: none, one, a cache line, header and body in one piece, a slot of
/// shared memory, more than any wire holds.
const LENGTHS: [usize; 10] = [0, 1, 63, 64, 65, 992, 993, 65_536, 65_537, 4 << 20];

/// Bytes that only this message has.
fn letter(from: usize, to: usize, number: usize, bytes: usize) -> Vec<u8> {
    let salt = from * 7919 + to * 104_729 + number * 1_299_709;
    (0..bytes).map(|at| ((at + salt).wrapping_mul(0x9e37_79b1) >> 13) as u8).collect()
}

#[test]
fn every_pair_exchanges_messages() {
    for transport in TRANSPORTS {
        each_rank(4, &over(transport), move |member| {
            let me = member.rank();
            for (number, bytes) in [0, 1, 1000, 70_001].into_iter().enumerate() {
                for from in 0..4 {
                    for to in (0..4).filter(|&to| to != from) {
                        let wanted = letter(from, to, number, bytes);
                        if me == from {
                            member.send(&wanted, to).expect("a send");
                        } else if me == to {
                            let mut got = vec![0xEE; bytes];
                            member.recv(&mut got, from).expect("a receive");
                            assert!(got == wanted, "{transport}: {from} to {to}, {bytes} bytes");
                        }
                    }
                }
            }
        });
    }
}

/// A byte of 2 is true, and none that a `bool` may have: to oneself, and to another rank.
#[test]
fn what_arrives_as_a_bool_is_one() {
    for ranks in [1, 2] {
        each_rank(ranks, &over("loopback"), move |member| {
            let me = member.rank();
            for ahead in 0..ranks {
                let (to, from) = ((me + ahead) % ranks, (me + ranks - ahead) % ranks);
                let mut got = [9; 4];
                let messages = member.messages().send_bytes(Dtype::Bool, &[2, 0, 255, 1], to);
                messages.recv_bytes(Dtype::Bool, &mut got, from).run().expect("a message");
                assert_eq!(got, [1, 0, 1, 1], "{ranks} ranks: rank {me} to {to}");
            }
        });
    }
}

#[test]
fn a_ring_sends_and_receives_at_once() {
    for transport in TRANSPORTS {
        for ranks in [1, 2, 3, 5] {
            each_rank(ranks, &over(transport), move |member| {
                let me = member.rank();
                let (next, last) = ((me + 1) % ranks, (me + ranks - 1) % ranks);
                for (number, bytes) in LENGTHS.into_iter().enumerate() {
                    let (mine, mut got) = (letter(me, next, number, bytes), vec![0xEE; bytes]);
                    member.messages().send(&mine, next).recv(&mut got, last).run().expect("a ring");
                    assert!(
                        got == letter(last, me, number, bytes),
                        "{transport}, {ranks} ranks: rank {me} of {bytes} bytes"
                    );
                }
            });
        }
    }
}

/// What one rank sends to all and receives from all, itself included, as one group of messages.
fn all_to_all_of_messages(member: &Communicator, input: &[u32], output: &mut [u32], count: usize) {
    let mut group = member.messages();
    for (to, block) in input.chunks(count).enumerate() {
        group = group.send(block, to);
    }
    for (from, block) in output.chunks_mut(count).enumerate() {
        group = group.recv(block, from);
    }
    group.run().expect("a group of messages");
}

#[test]
fn messages_to_all_come_to_the_same_as_an_all_to_all() {
    for transport in TRANSPORTS {
        for ranks in [2, 3, 5, 8] {
            each_rank(ranks, &over(transport), move |member| {
                for count in [1, 17, 20_000] {
                    let first = (member.rank() * ranks * count) as u32;
                    let input: Vec<u32> = (first..).take(ranks * count).collect();
                    let (mut ours, mut theirs) = (vec![0; input.len()], vec![1; input.len()]);
                    all_to_all_of_messages(&member, &input, &mut ours, count);
                    member.all_to_all(&input, &mut theirs).expect("an all-to-all");
                    assert!(ours == theirs, "{transport}, {ranks} ranks, {count} elements");
                }
            });
        }
    }
}

#[test]
fn messages_of_a_group_to_one_peer_keep_their_order() {
    for transport in TRANSPORTS {
        each_rank(2, &over(transport), move |member| {
            let (me, peer) = (member.rank(), 1 - member.rank());
            let bytes = |number: usize| LENGTHS[number * 7 % 9] + number % 3;
            let sent: Vec<_> = (0..200).map(|n| letter(me, peer, n, bytes(n))).collect();
            let mut got: Vec<_> = (0..200).map(|n| vec![0xEE; bytes(n)]).collect();
            let mut group = member.messages();
            for (letter, place) in sent.iter().zip(&mut got) {
                group = group.send(letter, peer).recv(place, peer);
            }
            group.run().expect("a group of messages");
            for (number, got) in got.iter().enumerate() {
                let wanted = letter(peer, me, number, bytes(number));
                assert!(*got == wanted, "{transport}: message {number} to rank {me}");
            }
        });
    }
}

#[test]
fn single_messages_keep_their_order_among_collectives() {
    for transport in TRANSPORTS {
        each_rank(3, &over(transport), move |member| {
            for number in 0..60 {
                let (from, to) = (number % 3, (number + 1) % 3);
                if member.rank() == from {
                    member.send(&[number as u64; 5], to).expect("a send");
                } else if member.rank() == to {
                    let mut got = [0u64; 5];
                    member.recv(&mut got, from).expect("a receive");
                    assert_eq!(got, [number as u64; 5], "{transport}");
                }
                if number % 7 == 0 {
                    let mut sum = [(member.rank() + number) as i64];
                    member.all_reduce(&mut sum, Op::Sum).expect("an all-reduce");
                    assert_eq!(sum, [3 + 3 * number as i64], "{transport}");
                }
            }
        });
    }
}

#[test]
fn messages_of_a_group_have_types_of_their_own() {
    for transport in TRANSPORTS {
        each_rank(3, &over(transport), move |member| {
            let (me, next, last) =
                (member.rank(), (member.rank() + 1) % 3, (member.rank() + 2) % 3);
            for round in 0..4u8 {
                let (floats, bytes, flags) = ([me as f64; 3], [round; 7], [round % 2 == 0; 2]);
                let (mut float, mut byte, mut flag, mut own) =
                    ([9.0; 3], [9; 7], [false; 2], [0; 3]);
                // Alternating, so that types change on every wire.
                let group = member.messages().send(&floats, next).send(&bytes, next);
                let group = group.send(&flags, next).send(&bytes[..3], me).recv(&mut own, me);
                let group = group.recv(&mut float, last).recv(&mut byte, last);
                group.recv(&mut flag, last).run().expect("a group of three types");
                assert_eq!((float, byte, flag), ([last as f64; 3], bytes, flags), "{transport}");
                assert_eq!(own, [round; 3]);
            }
        });
    }
}

/// The second message of a group has the right length and another type.
#[test]
fn a_message_of_another_type_behind_others_is_noticed() {
    for transport in TRANSPORTS {
        disagree(
            transport,
            |m| m.messages().send(&[1u8; 4], 1).send(&[1f32; 10], 1).run(),
            Communicator::barrier,
            |m| m.messages().recv(&mut [0u8; 4], 0).recv(&mut [0i32; 10], 0).run(),
            ["f32", "i32"],
        );
    }
}

/// Which peer is served first is up to the wires, not to the order in which messages were added.
#[test]
fn messages_of_different_peers_do_not_wait_for_each_other() {
    for transport in TRANSPORTS {
        each_rank(3, &over(transport), move |member| {
            let bytes = 4 << 20;
            if member.rank() == 0 {
                let (mut late, mut early) = (vec![0; bytes], vec![0; bytes]);
                member.messages().recv(&mut late, 2).recv(&mut early, 1).run().expect("both");
                assert!(late == letter(2, 0, 0, bytes) && early == letter(1, 0, 0, bytes));
                member.send(&[1u8], 1).expect("a send");
            } else if member.rank() == 1 {
                member.send(&letter(1, 0, 0, bytes), 0).expect("a send");
                // Rank 2 sends only when all that rank 1 had to say has left it.
                member.send(&[1u8], 2).expect("a send");
                member.recv(&mut [0u8], 0).expect("a receive");
            } else {
                member.recv(&mut [0u8], 1).expect("a receive");
                member.send(&letter(2, 0, 0, bytes), 0).expect("a send");
            }
        });
    }
}

#[test]
fn a_peer_that_comes_late_gets_everything() {
    for transport in TRANSPORTS {
        each_rank(2, &over(transport), move |member| {
            if member.rank() == 0 {
                return member.send(&letter(0, 1, 0, 4 << 20), 1).expect("a send");
            }
            std::thread::sleep(Duration::from_millis(100));
            let mut got = vec![0; 4 << 20];
            member.recv(&mut got, 0).expect("a receive");
            assert!(got == letter(0, 1, 0, 4 << 20), "{transport}");
        });
    }
}

/// What rank 1 gets when the two ranks mean different messages, and what rank 0 gets after that.
fn disagree(
    transport: &'static str,
    send: fn(&Communicator) -> Result<(), Error>,
    go_on: fn(&Communicator) -> Result<(), Error>,
    receive: fn(&Communicator) -> Result<(), Error>,
    words: [&'static str; 2],
) {
    each_rank(2, &over(transport), move |member| {
        let begin = Instant::now();
        let error = if member.rank() == 0 {
            // The message may be gone before anybody looks at it; the next call knows.
            send(&member).and_then(|()| go_on(&member))
        } else {
            receive(&member)
        };
        let error = error.expect_err("the ranks disagree");
        assert!(matches!(error, Error::Mismatch { .. }), "{transport}: {error}");
        let text = error.to_string();
        assert!(words.iter().all(|word| text.contains(word)), "{transport}: {text}");
        assert!(begin.elapsed() < Duration::from_secs(5), "{transport}: {:?}", begin.elapsed());
        let again = member.barrier().expect_err("the communicator is of no more use");
        assert_eq!(again.to_string(), text);
    });
}

#[test]
fn a_message_of_another_length_is_an_error_with_both_lengths() {
    for transport in TRANSPORTS {
        let send = |member: &Communicator| member.send(&[1f32; 10], 1);
        disagree(
            transport,
            send,
            Communicator::barrier,
            |m| m.recv(&mut [0f32; 12], 0),
            ["40 bytes", "48 bytes"],
        );
        disagree(
            transport,
            send,
            Communicator::barrier,
            |m| m.recv(&mut [0f32; 9], 0),
            ["40 bytes", "36 bytes"],
        );
        disagree(
            transport,
            send,
            Communicator::barrier,
            |m| m.recv::<f32>(&mut [], 0),
            ["40 bytes", "0 bytes"],
        );
    }
}

#[test]
fn a_message_of_another_type_is_an_error_with_both_types() {
    for transport in TRANSPORTS {
        let send = |member: &Communicator| member.send(&[1f32; 10], 1);
        disagree(
            transport,
            send,
            Communicator::barrier,
            |m| m.recv(&mut [0i32; 10], 0),
            ["f32", "i32"],
        );
    }
}

#[test]
fn a_message_that_meets_a_collective_is_an_error_with_both() {
    for transport in TRANSPORTS {
        let send = |member: &Communicator| member.send(&[1f32; 10], 1);
        let receive = |member: &Communicator| member.all_reduce(&mut [0f32; 10], Op::Sum);
        disagree(
            transport,
            send,
            |m| m.recv(&mut [0f32], 1),
            receive,
            ["rank 0", "all-reduce(f32 x 10"],
        );
    }
}

#[test]
fn messages_that_make_no_sense_are_refused_and_leave_everything_as_it_was() {
    for transport in TRANSPORTS {
        each_rank(2, &over(transport), move |member| {
            let me = member.rank();
            let mut bytes = [0u8; 4];
            let refused = [
                member.send(&[1u8], 2),
                member.recv(&mut bytes, 7),
                member.send(&[1u8], me),
                member.messages().send(&[1u8; 3], me).recv(&mut bytes, me).run(),
                member.messages().send(&[1u32], me).recv(&mut bytes, me).run(),
            ];
            for outcome in refused {
                assert!(matches!(outcome, Err(Error::Invalid { .. })), "{outcome:?}");
            }
            let two = member.messages().send_bytes(Dtype::F32, &[0; 3], 1 - me).send(&[1u8], 2);
            let first = two.check().expect_err("both are wrong").to_string();
            assert!(first.contains("no whole elements"), "{first}");
            member.messages().run().expect("no messages at all");
            let mut sum = [me as u8 + 1];
            member.all_reduce(&mut sum, Op::Sum).expect("the communicator is as good as before");
            assert_eq!((sum, bytes), ([3], [0; 4]));
        });
    }
}

#[test]
fn only_what_leaves_the_rank_counts_as_sent() {
    each_rank(3, &over("loopback"), |member| {
        let me = member.rank();
        let (mine, mut got) = ([7i16; 5], [[0i16; 5]; 2]);
        let before = member.stats();
        let [itself, last] = &mut got;
        let group = member.messages().send(&mine, me).send(&mine, (me + 1) % 3);
        group.recv(itself, me).recv(last, (me + 2) % 3).run().expect("a group");
        let after = member.stats();
        assert_eq!(got, [[7; 5]; 2]);
        assert_eq!((after.sent_bytes - before.sent_bytes, after.calls - before.calls), (10, 1));
    });
    // Like a collective, a group that failed does not count, whatever of it has left.
    each_rank(2, &over("loopback"), |member| {
        let (peer, mut got) = (1 - member.rank(), [0u8; 3]);
        let group = member.messages().send(&[7u8; 5], peer).recv(&mut got, peer);
        group.run().expect_err("they are longer");
        assert_eq!((member.stats().sent_bytes, member.stats().calls), (0, 0));
    });
}

#[test]
fn a_group_on_one_side_may_be_single_messages_on_the_other() {
    for transport in TRANSPORTS {
        each_rank(2, &over(transport), move |member| {
            let (mut one, mut two) = ([0u8; 3], [0u8; 5]);
            if member.rank() == 0 {
                member.messages().send(&[1u8; 3], 1).send(&[2u8; 5], 1).run().expect("a group");
                member.recv(&mut one, 1).expect("the first of a group");
                member.recv(&mut two, 1).expect("the second of a group");
            } else {
                member.recv(&mut one, 0).expect("the first of a group");
                member.recv(&mut two, 0).expect("the second of a group");
                member.messages().send(&[1u8; 3], 0).send(&[2u8; 5], 0).run().expect("a group");
            }
            assert_eq!((one, two), ([1; 3], [2; 5]), "{transport}");
        });
    }
}
