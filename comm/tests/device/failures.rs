//! What goes wrong: memory that is not there, ranks in different calls, ranks that do not come.

use std::time::{Duration, Instant};

use brigade_comm::device::Way;
use brigade_comm::{Call, Dtype, Error, Op, Settings};
use brigade_cuda::{Registered, Stream};
use brigade_schedule::{Algorithm, Collective};

use super::processes::{TWO_DEVICES, Variable, in_processes, is_real};
use super::world::{Rank, compile, context, even, has_device, ranks, turn};

fn all_reduce(elems: usize) -> Call {
    Call::new(Collective::AllReduce, Dtype::F32, Op::Sum, elems)
}

#[test]
fn memory_that_is_not_there_is_refused_and_the_group_goes_on() {
    if !has_device() {
        return;
    }
    let _turn = turn();
    ranks(2, &Settings::default(), |rank| {
        let memory = rank.memory_of_each(&[0; 64]);
        let host = [0_u64; 8];
        let at = memory.address();
        let refuse = |input: u64, call: &Call, why: &str| {
            // SAFETY: it is refused.
            let refused = unsafe { rank.group.enqueue(call, input, at, &rank.stream) };
            let what = match refused {
                Err(Error::Invalid { what }) => what,
                // A real driver may as well say that it is no address at all.
                Err(error) if is_real() && why.is_empty() => error.to_string(),
                other => panic!("{other:?}"),
            };
            assert!(what.contains(why), "{what}");
        };
        // The plan is made with all ranks, and kept.
        let call = all_reduce(16);
        // SAFETY: the memory is as long as the call.
        unsafe { rank.group.start(&call, at, at, &rank.stream) }.unwrap().wait().unwrap();
        refuse(host.as_ptr() as u64, &call, "ordinary memory of the host");
        refuse(at + 2, &call, "a multiple of 4");
        refuse(at, &all_reduce(1 << 28), "its allocation ends");
        refuse(u64::MAX - 63, &call, if is_real() { "" } else { "ordinary memory of the host" });
        let strange = Call::new(Collective::Broadcast { root: 9 }, Dtype::U8, Op::Sum, 1);
        refuse(at, &strange, "root 9");
        // SAFETY: as above.
        unsafe { rank.group.start(&call, at, at, &rank.stream) }.unwrap().wait().unwrap();
        rank.free(vec![memory]);
    });
}

/// What is pinned where it lies may be let go there, and is the host's alone again.
#[test]
fn memory_that_is_pinned_no_more_is_refused() {
    if !has_device() {
        return;
    }
    let _turn = turn();
    ranks(2, &Settings::default(), |rank| {
        let mut numbers = vec![1.0_f32; 16 << 10];
        let at = numbers.as_mut_ptr();
        // Whole pages of it, which nothing else lies in.
        let pages = at.cast::<u8>().wrapping_add(at.cast::<u8>().align_offset(4096));
        // SAFETY: the numbers outlive the pin.
        let pin = unsafe { Registered::new(rank.group.context(), pages, 8192) }.expect("a pin");
        let (call, at) = (all_reduce(1024), pages as u64);
        // SAFETY: the memory is as long as the call.
        let start = || unsafe { rank.group.start(&call, at, at, &rank.stream) };
        start().unwrap().wait().unwrap();
        rank.comm.barrier().expect("a barrier");
        drop(pin);
        let error = start().map(drop).expect_err("the host's").to_string();
        assert!(error.contains("ordinary memory of the host"), "{error}");
        drop(numbers);
    });
}

/// Loading code waits for the device, on which an earlier call may wait for a rank that is late.
#[test]
fn a_first_call_of_a_kind_waits_for_nobody_who_waits_for_it() {
    if !has_device() {
        return;
    }
    let _turn = turn();
    let new = all_reduce(16);
    // A first run compiles, which may take longer than the time that is given.
    ranks(2, &Settings::default(), |rank| {
        rank.check(&even(Collective::AllReduce, Dtype::F32, Op::Sum, 16, 2), 1);
    });
    let settings = Settings { timeout: Duration::from_secs(4), ..Settings::default() };
    for elems in [100, 20_000] {
        ranks(2, &settings, |rank| {
            let memory = rank.memory_of_each(&[0; 40_000]);
            let known = Call::moving(Collective::Broadcast { root: 1 }, Dtype::U8, elems);
            if rank.comm.rank() == 1 {
                std::thread::sleep(Duration::from_millis(500));
            }
            for call in [&known, &new] {
                let at = memory.address();
                // SAFETY: the memory is longer than the calls, and they are waited for.
                unsafe { rank.group.enqueue(call, at, at, &rank.stream) }.expect("a call");
            }
            rank.group.mark(&rank.stream).unwrap().wait().expect("the calls' end");
            rank.free(vec![memory]);
        });
    }
}

#[test]
fn ranks_in_different_calls_are_told() {
    if !has_device() {
        return;
    }
    let _turn = turn();
    for elems in [[16, 8], [20_000, 19_000]] {
        ranks(2, &Settings::default(), |rank| {
            let memory = rank.memory_of_each(&[0; 80_000]);
            let at = memory.address();
            for elems in elems {
                // Both kinds are known to both, so that only the last calls differ.
                // SAFETY: the memory is longer than the calls.
                let work = unsafe { rank.group.start(&all_reduce(elems), at, at, &rank.stream) };
                work.unwrap().wait().unwrap();
            }
            let call = all_reduce(elems[rank.comm.rank()]);
            let start = Instant::now();
            // SAFETY: as above.
            let work = unsafe { rank.group.start(&call, at, at, &rank.stream) };
            let error = work.and_then(|work| work.wait()).expect_err("a mismatch");
            assert!(matches!(error, Error::Mismatch { .. }), "{error}");
            let text = error.to_string();
            assert!(elems.iter().all(|elems| text.contains(&format!("f32 x {elems}"))), "{text}");
            assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
        });
    }
}

#[test]
fn a_rank_that_does_not_come_is_named_with_the_place() {
    if !has_device() {
        return;
    }
    let _turn = turn();
    let settings = Settings { timeout: Duration::from_millis(1500), ..Settings::default() };
    // A first run compiles, which may take longer than that.
    ranks(3, &Settings::default(), |rank| {
        rank.check(&even(Collective::AllReduce, Dtype::F32, Op::Sum, 16, 3), 1);
    });
    for elems in [16, 20_000] {
        ranks(3, &settings, |rank| {
            let memory = rank.memory_of_each(&[0; 80_000]);
            let (call, at) = (all_reduce(elems), memory.address());
            // SAFETY: the memory is as long as the call.
            let start = || unsafe { rank.group.start(&call, at, at, &rank.stream) };
            start().unwrap().wait().unwrap();
            if rank.comm.rank() == 1 {
                let begun = Instant::now();
                let ended = || rank.group.check().err();
                let error = std::iter::from_fn(|| {
                    std::thread::sleep(Duration::from_millis(50));
                    Some(ended())
                });
                let in_time = |_: &Option<Error>| begun.elapsed() < Duration::from_secs(30);
                let error = error.take_while(in_time).find_map(|error| error);
                let error = error.expect("the world ends without us");
                assert!(error.to_string().contains("rank 1"), "{error}");
                return;
            }
            let error = start().unwrap().wait().expect_err("nobody comes");
            let text = error.to_string();
            // Whoever gives up first tells the other one.
            assert!(matches!(error, Error::Timeout { .. } | Error::Aborted { .. }), "{text}");
            assert!(text.contains("all-reduce") && text.contains("rank 1"), "{text}");
            assert!(text.contains("#"), "{text}");
            let again = start().map(drop).expect_err("it has ended");
            assert_eq!(again.to_string(), text);
        });
    }
}

/// One rank makes the call on memory of the host, the others on memory of devices: nobody can go
/// on, and whoever says so first says where both are.
#[test]
fn a_rank_in_a_call_of_the_host_is_named_by_those_on_devices() {
    if !has_device() {
        return;
    }
    let _turn = turn();
    let times = |timeout_ms, report_ms| Settings {
        timeout: Duration::from_millis(timeout_ms),
        report_after: Duration::from_millis(report_ms),
        ..Settings::default()
    };
    // A first run compiles, which may take longer than that.
    ranks(2, &Settings::default(), |rank| {
        rank.check(&even(Collective::AllReduce, Dtype::F32, Op::Sum, 16, 2), 1);
    });
    ranks(2, &times(2000, 200), |rank| {
        let memory = rank.memory_of_each(&[0; 64]);
        let (call, at) = (all_reduce(16), memory.address());
        // SAFETY: the memory is as long as the call.
        let start = || unsafe { rank.group.start(&call, at, at, &rank.stream) };
        start().unwrap().wait().unwrap();
        let error = match rank.comm.rank() {
            0 => start().unwrap().wait().expect_err("rank 1 does not come"),
            _ => rank.comm.all_reduce(&mut [0_i64; 5], Op::Sum).expect_err("rank 0 does not come"),
        };
        let text = error.to_string();
        assert!(text.contains("all-reduce(i64 x 5, sum)"), "{text}");
        assert!(text.contains("all-reduce(f32 x 16, sum)") && text.contains("device"), "{text}");
    });
}

/// What a rank cannot do its part of a call for ends the call for all, long before the deadline.
fn check_told(name: &str, fault: &str, why: &str) {
    if is_real() {
        return;
    }
    compile(Dtype::F32, &Op::PreMulSum(2.0));
    let fault: Variable<'_> = (Some(1), "BRIGADE_FAKE_CUDA_FAULTS", fault);
    let deadline = (None, "BRIGADE_TIMEOUT_MS", "8000");
    in_processes(name, 2, &[TWO_DEVICES, deadline, fault], |comm, context| {
        let group = comm.on_device(&context).expect("a group on devices");
        let stream = Stream::new(&context).expect("a stream");
        let rank = Rank { group, comm, stream };
        let memory = rank.memory_of_each(&[0; 40_000]);
        // Numbers are multiplied in memory of the group's before they are sent.
        let call = Call::new(Collective::AllReduce, Dtype::F32, Op::PreMulSum(2.0), 10_000);
        let (begin, at) = (Instant::now(), memory.address());
        // SAFETY: the memory is as long as the call.
        let start = || unsafe { rank.group.start(&call, at, at, &rank.stream) };
        let error = start().and_then(|work| work.wait()).expect_err("rank 1 cannot");
        let text = error.to_string();
        assert!(text.contains("all-reduce(f32 x 10000") && text.contains(why), "{text}");
        let told = ["rank 1 aborted: ", ""][rank.comm.rank()];
        assert!(text.starts_with(told) && !error.is_recoverable(), "{text}");
        assert!(begin.elapsed() < Duration::from_secs(6), "{:?}", begin.elapsed());
        let again = start().map(drop).expect_err("it has ended");
        assert_eq!(again.to_string(), text);
    });
}

#[test]
fn a_rank_without_room_for_a_call_is_told_to_those_whose_kernels_wait() {
    let name = "failures::a_rank_without_room_for_a_call_is_told_to_those_whose_kernels_wait";
    check_told(name, "cuMemCreate@1=2", "CUDA_ERROR_OUT_OF_MEMORY");
}

#[test]
fn where_memory_cannot_be_mapped_a_call_has_its_room_from_the_pool() {
    if is_real() {
        return;
    }
    compile(Dtype::F32, &Op::PreMulSum(2.0));
    let name = "failures::where_memory_cannot_be_mapped_a_call_has_its_room_from_the_pool";
    let refused: Variable<'_> = (None, "BRIGADE_FAKE_CUDA_FAULTS", "cuMemCreate=801");
    in_processes(name, 2, &[TWO_DEVICES, refused], |comm, context| {
        let group = comm.on_device(&context).expect("a group on devices");
        let stream = Stream::new(&context).expect("a stream");
        let rank = Rank { group, comm, stream };
        rank.assert_way(Way::Linked);
        rank.check(&even(Collective::AllReduce, Dtype::F32, Op::PreMulSum(2.0), 10_000, 2), 1);
    });
}

#[test]
fn a_rank_whose_kernel_cannot_be_launched_is_told_to_those_whose_kernels_wait() {
    let name =
        "failures::a_rank_whose_kernel_cannot_be_launched_is_told_to_those_whose_kernels_wait";
    // The first two prove the way, and the third multiplies.
    check_told(name, "cuLaunchKernel@4=1", "CUDA_ERROR_INVALID_VALUE");
}

/// By a setting that only some ranks have they would add in different orders, or by different
/// kernels.
#[test]
fn ranks_with_other_settings_make_no_group() {
    if !has_device() {
        return;
    }
    let _turn = turn();
    let by = |ordered, algorithm| Settings { ordered, algorithm, ..Settings::default() };
    let halving = Some(Algorithm::Halving);
    for (settings, wanted) in [
        (by(true, None), "rank 0 has BRIGADE_ORDERED 0, but rank 1 has BRIGADE_ORDERED 1"),
        (by(false, halving), "rank 0 has BRIGADE_ALGORITHM (none), but rank 1 has BRIGADE_ALG"),
    ] {
        ranks(3, &Settings::default(), |rank| {
            let settings = [by(false, None), settings.clone(), by(false, None)];
            let own = settings[rank.comm.rank()].clone();
            let part = rank.comm.split_with(Some(0), 0, own).expect("a split").expect("a part");
            let error = part.on_device(&context(0)).map(drop).expect_err("they differ");
            assert!(matches!(error, Error::Join { .. }), "{error}");
            assert!(error.to_string().contains(wanted), "{error}");
            part.barrier().expect("the communicator goes on");
        });
    }
}
