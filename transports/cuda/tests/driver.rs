//! Streams, events, graphs and memory on the fake device: order, and who owns what.

use std::ops::Deref;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use brigade_cuda::{
    CaptureMode, Context, Cuda, CudaError, DeviceMemory, Event, Pinned, Place, Registered,
    Shareable, Stream,
};

/// A context, while no other test has one: who holds up whom is looked at here, and tests may be
/// threads of one process.
struct Alone {
    context: Context,
    _turn: MutexGuard<'static, ()>,
}

impl Deref for Alone {
    type Target = Context;

    fn deref(&self) -> &Context {
        &self.context
    }
}

fn context() -> Alone {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    // It stays, as in most programs: to end and make one takes a device as long as many a test.
    static KEPT: OnceLock<Context> = OnceLock::new();
    let context = KEPT.get_or_init(|| {
        brigade_cuda_fake::install();
        let device = Cuda::load().expect("the fake driver").device(0).expect("a device");
        Context::new(&device).expect("a context")
    });
    Alone { context: context.clone(), _turn }
}

#[test]
fn a_stream_does_in_order_what_it_was_given_and_another_waits_for_its_event() {
    let context = context();
    let [first, second] = [(); 2].map(|()| Stream::new(&context).expect("a stream"));
    let order = Arc::new(AtomicU32::new(0));
    let event = Event::new(&context).expect("an event");
    let seen = order.clone();
    let late = move || {
        thread::sleep(Duration::from_millis(50));
        assert_eq!(seen.fetch_add(1, Ordering::SeqCst), 0);
    };
    first.call(late).expect("a call");
    assert!(!first.is_done().expect("an answer"), "given, not done");
    first.record(&event).expect("a record");
    assert!(!event.is_done().expect("an answer"));
    second.wait(&event).expect("a wait");
    let seen = order.clone();
    second.call(move || assert_eq!(seen.fetch_add(1, Ordering::SeqCst), 1)).expect("a call");
    second.synchronize().expect("a wait");
    assert_eq!(order.load(Ordering::SeqCst), 2);
    assert!(event.is_done().expect("an answer"));
}

/// What happens to who gives a stream more than it begins.
struct Crowded {
    /// Commands that it took before whoever gave them stood still.
    taken: u32,
    /// Whether giving another stream something stood still, too.
    is_other_held_up: bool,
}

/// Give a stream 3000 commands, all behind one that waits until nothing else goes on.
fn crowd(stream: &Stream, other: &Stream) -> Crowded {
    let context = stream.context();
    let number = Pinned::new(context, 4).expect("pinned memory");
    // SAFETY: ours, aligned, and written by nobody else; the device reads it.
    let host = unsafe { AtomicU32::from_ptr(number.as_ptr().cast_mut().cast()) };
    let [mine, others] = [(); 2].map(|()| DeviceMemory::new(context, 4).expect("memory"));
    let (taken, is_other_taken) = (AtomicU32::new(0), AtomicBool::new(false));
    let crowded = thread::scope(|scope| {
        let giver = scope.spawn(|| {
            // SAFETY: this memory and that of the number outlive the wait below.
            unsafe { stream.wait_number(number.device_address(), 1) }.expect("a wait");
            for _ in 0..3000 {
                // SAFETY: as above.
                unsafe { stream.fill(mine.address(), 1, 4) }.expect("a fill");
                taken.fetch_add(1, Ordering::SeqCst);
            }
        });
        let (mut before, mut looks) = (0, 0);
        while looks < 5 && !giver.is_finished() {
            thread::sleep(Duration::from_millis(100));
            let now = taken.load(Ordering::SeqCst);
            looks = if now > 0 && now == before { looks + 1 } else { 0 };
            before = now;
        }
        scope.spawn(|| {
            // SAFETY: as above.
            unsafe { other.fill(others.address(), 1, 4) }.expect("a fill");
            is_other_taken.store(true, Ordering::SeqCst);
        });
        let is_soon_taken = (0..20).any(|_| {
            thread::sleep(Duration::from_millis(50));
            is_other_taken.load(Ordering::SeqCst)
        });
        // Nothing of this asks the driver, so all goes on from here.
        host.store(1, Ordering::SeqCst);
        Crowded { taken: before, is_other_held_up: !is_soon_taken }
    });
    [stream, other].iter().for_each(|stream| stream.synchronize().expect("its end"));
    crowded
}

#[test]
fn who_runs_ahead_of_a_stream_holds_up_nobody() {
    let context = context();
    let [stream, other] = [(); 2].map(|()| Stream::new(&context).expect("a stream"));
    let Crowded { taken, is_other_held_up } = crowd(&stream, &other);
    assert!((100..300).contains(&taken) && !is_other_held_up, "{taken}, {is_other_held_up}");
    // And by itself, which the fake does as badly as it may be; of a device it is told.
    // SAFETY: the stream outlives its other name.
    let plain = unsafe { Stream::borrowed(&context, stream.raw()) };
    let Crowded { taken, is_other_held_up } = crowd(&plain, &other);
    println!("a driver takes {taken} commands ahead; others are held up then: {is_other_held_up}");
    assert!(!brigade_cuda_fake::is_off() || taken > 300, "{taken} commands are no room for ours");
    assert!(brigade_cuda_fake::is_off() || (1000..1100).contains(&taken) && is_other_held_up);
}

#[test]
fn time_passes_between_events() {
    let context = context();
    let stream = Stream::new(&context).expect("a stream");
    let [start, end] = [(); 2].map(|()| Event::timed(&context).expect("an event"));
    stream.record(&start).expect("a record");
    stream.call(|| thread::sleep(Duration::from_millis(20))).expect("a call");
    stream.record(&end).expect("a record");
    end.synchronize().expect("a wait");
    assert!(end.since(&start).expect("a time") >= Duration::from_millis(20));
}

#[test]
fn what_is_captured_runs_as_often_as_it_is_launched() {
    let context = context();
    let [stream, side] = [(); 2].map(|()| Stream::new(&context).expect("a stream"));
    let [one, two] = [(); 2].map(|()| DeviceMemory::new(&context, 64).expect("memory"));
    let [fork, join] = [(); 2].map(|()| Event::new(&context).expect("an event"));
    stream.begin_capture(CaptureMode::Thread).expect("a capture");
    assert!(stream.is_capturing().expect("an answer"));
    // SAFETY: both live until the graph has run.
    unsafe {
        stream.fill(one.address(), 3, 64).expect("a fill");
        stream.record(&fork).expect("a record");
        side.wait(&fork).expect("a wait");
        side.copy(two.address(), one.address(), 64).expect("a copy");
    }
    side.record(&join).expect("a record");
    stream.wait(&join).expect("a wait");
    let refused = stream.call(|| ()).expect_err("it could run more than once");
    assert!(matches!(refused, CudaError::Refused { .. }), "{refused}");
    let graph = stream.end_capture().expect("a graph");
    assert!(!side.is_capturing().expect("an answer"), "it was captured too, and is no more");
    assert_eq!(graph.nodes().expect("a number"), 2);
    let mut executable = graph.instantiate().expect("an executable");
    drop(graph);
    let mut bytes = [0; 64];
    for _ in 0..3 {
        // SAFETY: as when it was captured.
        unsafe {
            stream.fill(two.address(), 0, 64).expect("a fill");
            executable.launch(&stream).expect("a launch");
        }
        two.read(&stream, 0, &mut bytes).expect("a copy");
        assert_eq!(bytes, [3; 64]);
    }
}

/// What the driver says to somebody who allocates and knows nothing of captures.
fn plainly_allocated(context: &Context) -> u32 {
    type Allocate = unsafe extern "C" fn(*mut u64, usize) -> u32;
    let library = match brigade_cuda_fake::is_off() {
        true => PathBuf::from("libcuda.so.1"),
        false => brigade_cuda_fake::library(),
    };
    let _here = context.enter().expect("a context");
    let mut address = 0;
    // SAFETY: the library is open already, the type is the function's, and the number outlives the
    // call.
    unsafe {
        let library = libloading::Library::new(library).expect("the driver");
        let allocate = library.get::<Allocate>(b"cuMemAlloc_v2\0").expect("a function");
        allocate(&mut address, 64)
    }
}

#[test]
fn who_waits_for_a_captured_stream_spoils_it() {
    let context = context();
    let stream = Stream::new(&context).expect("a stream");
    stream.begin_capture(CaptureMode::Thread).expect("a capture");
    assert!(stream.synchronize().is_err(), "a captured stream is not waited for");
    assert!(stream.end_capture().is_err(), "and its capture is spoilt");
    stream.begin_capture(CaptureMode::Thread).expect("another capture");
    assert_ne!(plainly_allocated(&context), 0, "nor is memory allocated meanwhile");
    assert!(stream.end_capture().is_err(), "or the capture is spoilt");
    stream.begin_capture(CaptureMode::Thread).expect("another capture");
    DeviceMemory::new(&context, 64).expect("but by who steps aside");
    assert_eq!(stream.end_capture().expect("a graph").nodes().expect("a number"), 0);
    stream.begin_capture(CaptureMode::Relaxed).expect("another capture");
    assert_eq!(plainly_allocated(&context), 0, "it may be where the capture says so");
    assert_eq!(stream.end_capture().expect("a graph").nodes().expect("a number"), 0);
    stream.begin_capture(CaptureMode::Relaxed).expect("another capture");
    let refused = context.synchronize().expect_err("the stream is one of the context's");
    assert!(refused.is_for_capture(), "{refused}");
    assert!(stream.end_capture().is_err(), "and its capture is spoilt, too");
}

#[test]
fn addresses_are_known_by_their_place() {
    let context = context();
    let cuda = context.device().cuda;
    let stream = Stream::new(&context).expect("a stream");
    let memory = DeviceMemory::new(&context, 1000).expect("memory");
    let found = cuda.where_is(memory.address() + 999).expect("a place");
    assert_eq!((found.place, found.start), (Place::Device(0), memory.address()));
    // Drivers say only that it is the allocation's size, and may have rounded it up to what they
    // map.
    assert!((1000..=2 << 20).contains(&found.bytes), "{} bytes", found.bytes);
    let pooled = DeviceMemory::pooled(&stream, 10).expect("memory");
    assert_eq!(cuda.where_is(pooled.address()).expect("a place").place, Place::Device(0));
    let mut plain = vec![1_u8; 5000];
    let start = plain.as_mut_ptr();
    assert_eq!(cuda.where_is(start as u64).expect("a place").place, Place::Host);
    // SAFETY: the vector outlives it.
    let registered = unsafe { Registered::new(&context, start, plain.len()) }.expect("pinned");
    assert_eq!(cuda.where_is(start as u64).expect("a place").place, Place::Pinned);
    // SAFETY: as above.
    let again = unsafe { Registered::new(&context, start, plain.len()) };
    assert!(again.expect_err("twice").to_string().contains("ALREADY_REGISTERED"));
    drop(registered);
    assert_eq!(cuda.where_is(start as u64).expect("a place").place, Place::Host);
    let pinned = Pinned::new(&context, 64).expect("pinned memory");
    assert_eq!(cuda.where_is(pinned.as_ptr() as u64 + 63).expect("a place").place, Place::Pinned);
}

#[test]
fn memory_that_is_shared_is_the_same_through_its_descriptor() {
    let context = context();
    let stream = Stream::new(&context).expect("a stream");
    let memory = Shareable::new(&context, 100).expect("memory");
    let fd = memory.descriptor().expect("a descriptor");
    // SAFETY: as many bytes as were asked for.
    let other = unsafe { Shareable::open(&context, std::os::fd::AsFd::as_fd(&fd), 100) };
    let other = other.expect("memory");
    assert_ne!(memory.address(), other.address());
    let mut bytes = [0_u8; 100];
    // SAFETY: all live until the stream is waited for.
    unsafe {
        stream.fill(memory.address(), 9, 100).expect("a fill");
        stream.copy(bytes.as_mut_ptr() as u64, other.address(), 100).expect("a copy");
    }
    stream.synchronize().expect("a wait");
    assert_eq!(bytes, [9; 100]);
}

#[test]
fn beyond_the_end_is_refused_and_the_context_is_left_as_it_was() {
    let context = context();
    let stream = Stream::new(&context).expect("a stream");
    let mut memory = DeviceMemory::new(&context, 8).expect("memory");
    let refused = memory.write(&stream, 4, &[0; 8]).expect_err("too long");
    assert_eq!(refused.to_string(), "8 bytes at 4 lie beyond the 8 there");
    assert!(memory.read(&stream, usize::MAX, &mut [0; 2]).is_err());
    let entered = context.enter().expect("entered");
    let within = context.enter().expect("entered twice");
    drop(within);
    drop(entered);
    let (free, all) = context.memory().expect("numbers");
    assert!(free < all, "{free} of {all}");
}
