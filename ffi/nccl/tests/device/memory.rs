//! Memory of devices: that of calls, and what is allocated here.

use brigade_cuda::{Cuda, DeviceMemory, Place};
use brigade_cuda_fake::is_off;

use super::library::{Address, F32, INVALID_ARGUMENT, Nccl, SUM};
use super::rank::{context, has_device, turn, unique_id};

/// What a pool of memory does all the time.
#[test]
fn memory_may_lie_where_less_of_it_lay_before() {
    if !has_device() {
        return;
    }
    let _turn = turn();
    let (nccl, context, id) = (Nccl::get(), context(), unique_id());
    let _here = context.enter().expect("a context");
    let (mut comm, mut seen) = (0, Vec::new());
    // SAFETY: there is room for it.
    nccl.ok(unsafe { (nccl.init_rank)(&mut comm, 1, id, 0) });
    let mut again = 0;
    for round in 0..200 {
        let bytes = if round % 2 == 0 { 512 } else { 4096 };
        let memory = DeviceMemory::new(&context, bytes).expect("memory");
        let at = memory.address() as Address;
        again += usize::from(round % 2 == 1 && seen.last() == Some(&at));
        // SAFETY: memory of that length, until the call is over.
        nccl.ok(unsafe { (nccl.all_reduce)(at, at, bytes / 4, F32, SUM, comm, 0) });
        context.synchronize().expect("the call ends");
        seen.push(at);
    }
    // A device puts what is short into one piece with others, where it likes.
    if again == 0 {
        assert!(is_off(), "no address has come again: {seen:x?}");
        println!("no address has come again, so the case did not arise");
    }
    // SAFETY: nobody calls it any more.
    nccl.ok(unsafe { (nccl.destroy)(comm) });
}

#[test]
fn memory_is_of_the_device_that_the_thread_has() {
    if !has_device() {
        return;
    }
    let _turn = turn();
    let (nccl, context) = (Nccl::get(), context());
    let cuda = Cuda::load().expect("a driver");
    let place = |at: usize| cuda.where_is(at as u64).expect("an answer").place;
    let (mut on_device, mut on_host) = (0, 0);
    // SAFETY: there is room for the addresses; what is freed was given, once or not at all.
    unsafe {
        let here = context.enter().expect("a context");
        nccl.ok((nccl.memory)(&mut on_device, 1000));
        drop(here);
        nccl.ok((nccl.memory)(&mut on_host, 1000));
        assert_eq!((place(on_device), place(on_host)), (Place::Device(0), Place::Host));
        nccl.ok((nccl.free)(on_device));
        nccl.ok((nccl.free)(on_host));
        nccl.refused((nccl.free)(on_device), INVALID_ARGUMENT, "was not allocated here");
    }
}
