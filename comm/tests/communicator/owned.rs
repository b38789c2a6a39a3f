//! Calls that own their memory.

use brigade_comm::{Call, Dtype, Op};
use brigade_schedule::Collective;

use crate::world::{TRANSPORTS, each_rank, over};

#[test]
fn memory_goes_with_a_call_and_comes_back_with_its_result() {
    for transport in TRANSPORTS {
        each_rank(3, &over(transport), move |comm| {
            let me = comm.rank() as f32;
            let sum = comm.all_reduce_owned(vec![me; 1000], Op::Sum).expect("it starts");
            let call = Call::moving(Collective::AllGather, Dtype::F32, 7);
            let gather = comm.start_owned(call, vec![me; 7], vec![9.0; 21]).expect("it starts");
            let (none, sum) = sum.wait().expect("nothing is wrong");
            assert!(none.is_empty() && sum == [3.0; 1000], "{transport}: {sum:?}");
            let (mine, all) = gather.wait().expect("nothing is wrong");
            assert_eq!(mine, [me; 7], "{transport}");
            assert_eq!(all, [[0.0; 7], [1.0; 7], [2.0; 7]].concat(), "{transport}");
        });
    }
}

#[test]
fn messages_own_what_they_carry() {
    for transport in TRANSPORTS {
        each_rank(2, &over(transport), move |comm| {
            let (me, other) = (comm.rank(), 1 - comm.rank());
            let rounds = 0..5u64;
            if me == 0 {
                let sent: Vec<_> =
                    rounds.map(|round| comm.send_owned(vec![round; 300], other)).collect();
                for call in sent {
                    call.and_then(|call| call.wait()).expect("nothing is wrong");
                }
                return;
            }
            for round in rounds {
                let call = comm.recv_owned(vec![u64::MAX; 300], other).expect("it starts");
                let (_, got) = call.wait().expect("nothing is wrong");
                assert_eq!(got, [round; 300], "{transport}");
            }
        });
    }
}

#[test]
fn what_is_dropped_has_ended_and_what_does_not_fit_is_refused() {
    each_rank(2, &over("loopback"), |comm| {
        drop(comm.all_reduce_owned(vec![1u8; 5000], Op::Sum).expect("it starts"));
        assert_eq!(comm.stats().calls, 1, "it was waited for");
        let wrong = Call::moving(Collective::AllGather, Dtype::Bool, 4);
        let refused = comm.start_owned(wrong, vec![7u8; 4], vec![0u8; 8]);
        let refused = refused.expect_err("u8 is no bool").to_string();
        assert!(refused.contains("its memory of u8"), "{refused}");
        let short = Call::moving(Collective::AllGather, Dtype::U8, 4);
        let short = comm.start_owned(short, vec![0u8; 4], vec![0u8; 7]);
        assert!(short.and_then(|call| call.wait()).is_err(), "seven is not two times four");
        comm.barrier().expect("a refusal leaves the communicator usable");
    });
}
