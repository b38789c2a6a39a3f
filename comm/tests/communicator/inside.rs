//! Functions of the user's that run inside a call: what they may do with communicators, and that
//! nothing that they try hangs.

use std::ops::Range;
use std::sync::{Arc, Barrier, OnceLock};
use std::time::Duration;

use brigade_comm::{
    Buffers, Call, Communicator, CustomOp, Dtype, Error, Op, ShardUpdate, WindowSize,
};
use brigade_schedule::{Algorithm, Collective};

use crate::world::{TRANSPORTS, each_rank, over};

fn assert_refused<T>(what: &str, outcome: Result<T, Error>) {
    let error = outcome.err().unwrap_or_else(|| panic!("{what} would wait for itself"));
    assert!(matches!(error, Error::Invalid { .. }), "{what}: {error}");
    assert!(error.to_string().contains("runs inside a call"), "{what}: {error}");
}

/// Every kind of call is refused, and leaves everything as it was.
fn try_calls(comm: &Communicator) {
    let mut data = [1.0_f32; 4];
    assert_refused("an all-reduce", comm.all_reduce(&mut data, Op::Sum));
    assert_refused("a barrier", comm.barrier());
    let peer = (comm.rank() + 1) % comm.size();
    assert_refused("a message", comm.send(&data, peer));
    assert_refused("a receive", comm.recv(&mut data, peer));
    assert_refused("a receive from any", comm.recv_any(&mut data));
    assert_refused("a split", comm.split(Some(0), 0));
    assert_refused("a window", comm.window(WindowSize::default()));
    assert_refused("a call that is started", comm.all_reduce_owned(data.to_vec(), Op::Sum));
    let begun = comm.scope(|scope| scope.all_reduce(&mut data, Op::Sum).map(|_work| ()));
    assert_refused("a call in a scope", begun.expect("no call was started"));
    assert_eq!(data, [1.0; 4]);
}

/// What only looks waits for nobody.
fn look_at(comm: &Communicator) {
    let call = Call::new(Collective::AllReduce, Dtype::F32, Op::Sum, 1000);
    assert!(comm.algorithm_for(&call).is_ok());
    assert!(comm.choice_for(&call).is_ok());
    assert_eq!(comm.order_for(&call, Algorithm::Ring), None);
    assert_eq!(comm.transports().len(), 1);
    assert!(comm.describe().starts_with(&format!("rank {} of {}", comm.rank(), comm.size())));
    assert!(comm.ended().is_none() && comm.stats().calls < 10);
}

/// Tries both when it is asked and when it updates.
struct Meddler<'a> {
    comm: &'a Communicator,
    parts: usize,
}

impl ShardUpdate<f32, f32> for Meddler<'_> {
    fn is_ready(&mut self, _: Range<usize>) -> bool {
        look_at(self.comm);
        try_calls(self.comm);
        true
    }

    fn update(&mut self, _: Range<usize>, gradients: &mut [f32], weights: &mut [f32]) {
        look_at(self.comm);
        try_calls(self.comm);
        weights.copy_from_slice(gradients);
        self.parts += 1;
    }
}

#[test]
fn an_update_looks_at_its_communicator_and_makes_no_call_on_it() {
    for transport in TRANSPORTS {
        each_rank(2, &over(transport), |comm| {
            let (mut gradients, mut weights) = ([1.0_f32; 100], [0.0_f32; 100]);
            let mut meddler = Meddler { comm: &comm, parts: 0 };
            let mut copies = |_: Range<usize>, gradients: &mut [f32], weights: &mut [f32]| {
                weights.copy_from_slice(gradients);
            };
            let is_first = comm.rank() == 0;
            let update: &mut dyn ShardUpdate<f32, f32> =
                if is_first { &mut meddler } else { &mut copies };
            comm.sharded_update(&mut gradients, Op::Sum, &mut weights, update).expect("an update");
            assert_eq!(meddler.parts > 0, is_first);
            assert_eq!(weights, [2.0; 100]);
            let group = comm.split(Some(0), 0).expect("a split").expect("a group");
            group.barrier().expect("all count the same divisions");
        });
    }
}

/// As where a shard is one of a replica, whose ranks sum what all replicas have.
#[test]
fn an_update_makes_calls_on_another_communicator() {
    each_rank(4, &over("loopback"), |comm| {
        let half = |color| comm.split(Some(color), 0).expect("a split").expect("a group");
        let (shards, replicas) = (half(comm.rank() as u32 / 2), half(comm.rank() as u32 % 2));
        let (mut gradients, mut weights) = ([1.0_f32; 100], [0.0_f32; 100]);
        let mut update = |_: Range<usize>, gradients: &mut [f32], weights: &mut [f32]| {
            replicas.all_reduce(gradients, Op::Sum).expect("it is another communicator");
            // And what runs inside of that makes none at all.
            let mut within = |_: Range<usize>, _: &mut [f32], _: &mut [f32]| {
                try_calls(&shards);
                try_calls(&comm);
            };
            let (mut ours, mut theirs) = ([0.0_f32; 2], [0.0_f32; 2]);
            replicas
                .sharded_update(&mut ours, Op::Sum, &mut theirs, &mut within)
                .expect("an update in an update");
            weights.copy_from_slice(gradients);
        };
        shards
            .sharded_update(&mut gradients, Op::Sum, &mut weights, &mut update)
            .expect("an update");
        assert_eq!(weights, [4.0; 100]);
    });
}

/// A sum that tries what no operator may.
struct Tries(OnceLock<Arc<Communicator>>);

impl CustomOp for Tries {
    fn name(&self) -> &str {
        "tries"
    }

    fn fold(&self, arriving: &[u8], accumulator: &mut [u8], _: Dtype) {
        let comm = self.0.get().expect("it was told");
        look_at(comm);
        try_calls(comm);
        accumulator.iter_mut().zip(arriving).for_each(|(sum, one)| *sum += one);
    }
}

#[test]
fn an_operator_looks_at_its_communicator_and_makes_no_call_on_it() {
    each_rank(2, &over("shm"), |comm| {
        let comm = Arc::new(comm);
        let tries = Arc::new(Tries(OnceLock::from(Arc::clone(&comm))));
        let op = Op::Custom(tries);
        let mut data = [1_u8; 40];
        comm.all_reduce(&mut data, op.clone()).expect("a call that blocks");
        let call = Call::new(Collective::AllReduce, Dtype::U8, op, data.len());
        let started = comm.scope(|scope| {
            let work = scope.start(call, Buffers::InPlace(&mut data)).expect("a start");
            work.wait().expect("a call in flight");
        });
        started.expect("all went well");
        assert_eq!(data, [4; 40]);
    });
}

/// What never changes is told while another thread is inside a call, which may take long.
#[test]
fn looking_waits_for_no_call() {
    let has_looked = Arc::new(Barrier::new(2));
    each_rank(2, &over("loopback"), move |comm| {
        let mut data = [0_u8];
        if comm.rank() == 1 {
            has_looked.wait();
            return comm.send(&data, 0).expect("a send");
        }
        std::thread::scope(|scope| {
            let receive = scope.spawn(|| comm.recv(&mut data, 1));
            std::thread::sleep(Duration::from_millis(50));
            look_at(&comm);
            assert!(!receive.is_finished());
            has_looked.wait();
            receive.join().expect("no panic").expect("a receive");
        });
    });
}
