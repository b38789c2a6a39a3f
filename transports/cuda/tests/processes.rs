//! What needs processes of its own: memory and events of another one, and drivers that are
//! missing, old or failing. Each child is this program again, told its part by a variable.

use std::os::fd::AsFd;
use std::process::{Command, Output};
use std::sync::mpsc::channel;
use std::time::Duration;

use brigade_cuda::{
    CaptureMode, Context, Cuda, DeviceMemory, Event, EventHandle, IpcHandle, Opened, Pinned,
    Registered, Result, Shareable, Stream,
};

const PART: &str = "BRIGADE_TEST_PART";
const BYTES: usize = 4096;

fn child(part: &str, variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(std::env::current_exe().expect("our path"));
    command.args(["--exact", "the_part_of_a_child", "--nocapture"]).env(PART, part);
    command.envs(brigade_cuda_fake::environment());
    command.envs(variables.iter().copied());
    command.output().expect("a child")
}

/// What a child printed between its marks.
fn said(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout);
    let said = text.split_once("<<").and_then(|(_, rest)| rest.split_once(">>"));
    said.unwrap_or_else(|| panic!("{output:?}")).0.to_owned()
}

fn context() -> Result<Context> {
    Context::new(&Cuda::load()?.device(0)?)
}

/// Does nothing unless it is a child.
#[test]
fn the_part_of_a_child() {
    let Ok(part) = std::env::var(PART) else { return };
    let words = match part.split_once(' ') {
        Some(("write", handles)) => format!("{:?}", write(handles)),
        _ => match part.as_str() {
            "load" => format!("{:?}", Cuda::load().map(|cuda| cuda.version())),
            "allocate" => format!("{:?}", allocate()),
            "stick" => stick(),
            "look" => format!("{:?}", look()),
            "aside" => format!("{:?}", aside()),
            "behind" => format!("{:?}", behind()),
            _ => panic!("{part}"),
        },
    };
    println!("<<{words}>>");
}

fn write(handles: &str) -> Result<()> {
    let words: Vec<u8> = handles.split(',').map(|byte| byte.parse().expect("a byte")).collect();
    let (memory, event) = words.split_at(IpcHandle::BYTES);
    let context = context()?;
    let handle = IpcHandle::from_bytes(memory.try_into().expect("so long"));
    let captured = Stream::new(&context)?;
    captured.begin_capture(CaptureMode::Global)?;
    // SAFETY: our parent keeps it until we have ended.
    drop(unsafe { Opened::open(&context, &handle) }?);
    captured.end_capture()?;
    // SAFETY: as above.
    let opened = unsafe { Opened::open(&context, &handle) }?;
    let event = Event::open(&context, &EventHandle(event.try_into().expect("so long")))?;
    let stream = Stream::new(&context)?;
    // SAFETY: nobody else uses it meanwhile.
    unsafe { stream.fill(opened.address(), 77, opened.bytes()) }?;
    stream.record(&event)?;
    stream.synchronize()
}

fn allocate() -> Result<Vec<bool>> {
    let context = context()?;
    let tries = (0..4).map(|_| DeviceMemory::new(&context, 1 << 20));
    let kept: Vec<Result<DeviceMemory>> = tries.collect();
    Ok(kept.iter().map(|one| one.as_ref().is_err_and(|error| error.is_out_of_memory())).collect())
}

fn stick() -> String {
    let context = context().expect("a context");
    let stream = Stream::new(&context).expect("a stream");
    let first = stream.synchronize().expect_err("a fault");
    let second = stream.synchronize().expect_err("it sticks");
    format!("{} {} {first}", first.is_sticky(), second.is_sticky())
}

/// Look at a stream and at an event, and wait for both, while another thread captures a stream and
/// forbids to all what could disturb that; and what is done by then.
fn look() -> Result<[bool; 2]> {
    let context = context()?;
    let [captured, other] = [Stream::new(&context)?, Stream::new(&context)?];
    let event = Event::new(&context)?;
    captured.begin_capture(CaptureMode::Global)?;
    let is_done = std::thread::scope(|scope| {
        let looking = scope.spawn(|| {
            other.record(&event)?;
            other.synchronize()?;
            event.synchronize()?;
            Ok([other.is_done()?, event.is_done()?])
        });
        looking.join().expect("it does not panic")
    });
    captured.end_capture()?;
    is_done
}

/// Allocate, pin, share, make a graph ready and let go of all of it, while another thread captures
/// a stream likewise.
fn aside() -> Result<usize> {
    let context = context()?;
    let stream = Stream::new(&context)?;
    let mut plain = vec![0_u8; 10_000];
    stream.begin_capture(CaptureMode::Thread)?;
    let mut graph = Some(stream.end_capture()?);
    stream.begin_capture(CaptureMode::Global)?;
    let used = std::thread::scope(|scope| {
        let using = scope.spawn(|| {
            let memory = DeviceMemory::new(&context, 64)?;
            IpcHandle::of(&context, memory.address())?;
            let pinned = Pinned::new(&context, 64)?;
            // SAFETY: the vector outlives it.
            let registered = unsafe { Registered::new(&context, plain.as_mut_ptr(), 10_000) }?;
            registered.let_go()?;
            // SAFETY: as above.
            drop(unsafe { Registered::new(&context, plain.as_mut_ptr(), 10_000) }?);
            let shared = Shareable::new(&context, 64)?;
            shared.open_to(context.device())?;
            let file = shared.descriptor()?;
            // SAFETY: the file is of memory that long.
            drop(unsafe { Shareable::open(&context, file.as_fd(), 64) }?);
            let other = Stream::new(&context)?;
            let mut executable = graph.take().expect("it was captured").instantiate()?;
            executable.upload(&other)?;
            drop((executable, other));
            let free = context.memory()?.0;
            drop((memory, pinned, shared));
            Ok(context.memory()?.0.saturating_sub(free))
        });
        using.join().expect("it does not panic")
    });
    stream.end_capture()?;
    used
}

/// Read and write memory behind what waits in a stream for another thread to give the device
/// something; and whether that came in time.
fn behind() -> Result<[bool; 2]> {
    let context = context()?;
    let [waiting, other] = [Stream::new(&context)?, Stream::new(&context)?];
    let mut memory = DeviceMemory::new(&context, 1 << 20)?;
    let filled = DeviceMemory::new(&context, 1 << 20)?;
    let mut came_in_time = [false; 2];
    for (turn, in_time) in came_in_time.iter_mut().enumerate() {
        let (came, has_come) = channel();
        let (said, is_said) = channel();
        waiting.call(move || {
            let in_time = has_come.recv_timeout(Duration::from_secs(5)).is_ok();
            said.send(in_time).expect("it is listened to");
        })?;
        std::thread::scope(|scope| {
            let giving = scope.spawn(|| -> Result<()> {
                // The copy has begun by then.
                std::thread::sleep(Duration::from_millis(100));
                // SAFETY: ours, and waited for.
                unsafe { other.fill(filled.address(), 1, filled.bytes()) }?;
                other.synchronize()?;
                // Who has waited for too long hears it no more.
                let _ = came.send(());
                Ok(())
            });
            let mut bytes = vec![7; 1 << 20];
            match turn {
                0 => memory.read(&waiting, 0, &mut bytes)?,
                _ => memory.write(&waiting, 0, &bytes)?,
            }
            giving.join().expect("it does not panic")
        })?;
        *in_time = is_said.recv().expect("it is said");
    }
    Ok(came_in_time)
}

/// What memory of this process holds after a child has written it.
fn written_by_a_child(offset: u64, variables: &[(&str, &str)]) -> (String, Vec<u8>) {
    brigade_cuda_fake::install();
    let context = context().expect("a context");
    let stream = Stream::new(&context).expect("a stream");
    let mut memory = DeviceMemory::new(&context, BYTES).expect("memory");
    memory.write(&stream, 0, &[1; BYTES]).expect("a copy");
    let event = Event::interprocess(&context).expect("an event");
    let handle = IpcHandle::of(&context, memory.address() + offset).expect("a handle");
    let words = [handle.to_bytes().as_slice(), &event.handle().expect("a handle").0].concat();
    let words: Vec<String> = words.iter().map(u8::to_string).collect();
    let output = child(&format!("write {}", words.join(",")), variables);
    stream.wait(&event).expect("a wait");
    let mut bytes = vec![0; BYTES];
    memory.read(&stream, 0, &mut bytes).expect("a copy");
    (said(&output), bytes)
}

#[test]
fn another_process_writes_our_memory() {
    let (said, bytes) = written_by_a_child(256, &[]);
    assert_eq!(said, "Ok(())");
    assert_eq!(bytes, [[1; 256].as_slice(), &[77; BYTES - 256]].concat());
}

/// In a process of its own, whose other threads a capture of this kind would disturb.
#[test]
fn who_looks_and_waits_disturbs_no_capture_of_another_thread() {
    brigade_cuda_fake::install();
    assert_eq!(said(&child("look", &[])), "Ok([true, true])");
}

/// Likewise. What was let go of meanwhile is free.
#[test]
fn who_allocates_pins_and_lets_go_disturbs_no_capture_of_another_thread() {
    brigade_cuda_fake::install();
    let freed = said(&child("aside", &[]));
    assert!(freed.starts_with("Ok("), "{freed}");
    assert!(brigade_cuda_fake::is_off() || freed == "Ok(4096)", "{freed}");
}

/// A driver may hold up all who give the device something while it copies memory that is not pinned
/// and waits for what comes before: so that is waited for by other means.
#[test]
fn who_reads_and_writes_behind_a_wait_holds_up_no_thread_that_it_waits_for() {
    brigade_cuda_fake::install();
    assert_eq!(said(&child("behind", &[])), "Ok([true, true])");
}

#[test]
fn peers_that_are_broken_open_memory_and_write_elsewhere() {
    if brigade_cuda_fake::is_off() {
        return eprintln!("skipped: only the fake breaks by request");
    }
    let (said, bytes) = written_by_a_child(0, &[("BRIGADE_FAKE_CUDA_PEERS", "broken")]);
    assert_eq!((said.as_str(), bytes), ("Ok(())", vec![1; BYTES]));
}

#[test]
fn our_own_memory_cannot_be_opened_again() {
    brigade_cuda_fake::install();
    let context = context().expect("a context");
    let memory = DeviceMemory::new(&context, 64).expect("memory");
    let handle = IpcHandle::of(&context, memory.address()).expect("a handle");
    assert_eq!(IpcHandle::from_bytes(&handle.to_bytes()), handle);
    // SAFETY: it is refused.
    let refused = unsafe { Opened::open(&context, &handle) }.expect_err("our own");
    assert!(refused.to_string().contains("INVALID_CONTEXT"), "{refused}");
    let nonsense = IpcHandle { token: [3; 64], ..handle };
    // SAFETY: as above.
    assert!(unsafe { Opened::open(&context, &nonsense) }.is_err());
}

#[test]
fn what_is_missing_is_said_in_a_sentence() {
    if brigade_cuda_fake::is_off() {
        return eprintln!("skipped: only the fake is missing by request");
    }
    let none = said(&child("load", &[("BRIGADE_CUDA_LIBRARY", "/nowhere/libcuda.so")]));
    assert!(none.contains("BRIGADE_CUDA_LIBRARY=/nowhere/libcuda.so cannot be loaded"), "{none}");
    let no_device = said(&child("load", &[("BRIGADE_FAKE_CUDA_DEVICES", "0")]));
    assert!(no_device.contains("no device that this process may use"), "{no_device}");
    let old = said(&child("load", &[("BRIGADE_FAKE_CUDA_VERSION", "11020")]));
    assert!(old.contains("the driver speaks CUDA 11.2, and 11.4 is needed"), "{old}");
    assert_eq!(said(&child("load", &[])), "Ok(Version { major: 12, minor: 8 })");
}

#[test]
fn faults_come_when_they_are_asked_for() {
    if brigade_cuda_fake::is_off() {
        return eprintln!("skipped: only the fake fails by request");
    }
    let second = said(&child("allocate", &[("BRIGADE_FAKE_CUDA_FAULTS", "cuMemAlloc_v2@2=2")]));
    assert_eq!(second, "Ok([false, true, false, false])");
    let three = said(&child("allocate", &[("BRIGADE_FAKE_CUDA_MEMORY", "3145728")]));
    assert_eq!(three, "Ok([false, false, false, true])");
    let faults = [("BRIGADE_FAKE_CUDA_FAULTS", "cuStreamSynchronize@1=719")];
    let stuck = said(&child("stick", &faults));
    assert!(stuck.starts_with("true true waiting for a stream: cuStreamSynchronize"), "{stuck}");
    assert!(stuck.contains("compute-sanitizer"), "{stuck}");
}
