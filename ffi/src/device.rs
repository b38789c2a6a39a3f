//! Memory of devices: a communicator's ranks on them, and calls in the order of a stream.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use brigade_comm::Dtype;
use brigade_comm::device::cuda::{Context, Cuda};
use brigade_comm::device::{DeviceShare, Way};
use brigade_wall::handle::{close, pin, reserve};
use brigade_wall::listed::What;
use brigade_wall::memory::{Memory, Seat};
use brigade_wall::pointer::Out;
use brigade_wall::streams::{Streams, first_without};

use crate::comm::{Comm, brigade_comm_t, may_wait};
use crate::dtype::DtypeCode;
use crate::error::{Failure, Outcome, brigade_result_t, enter};
use crate::on_device::OnDevice;
use crate::settings::sized;
use crate::shape::Shape;
use crate::work::{InFlight, brigade_work_t, fill};
use crate::{group, thread};

/// The ranks of a communicator on devices. What is inside is nobody's.
pub struct brigade_device_group {
    _nobody: (),
}

/// A handle of a communicator's ranks on devices, for calls on memory that lies there. Their
/// functions are named brigade_device_*, and take a group and a stream where NCCL's take a
/// communicator and a stream: a call is enqueued in the stream and the function returns. What comes
/// behind it in the stream sees its result; until then the memory is the call's.
///
/// The stream is a CUstream or cudaStream_t of the rank's device, and one rank's alone; NULL is the
/// default stream. Ranks that are threads and share a device share its default stream too, where
/// none could wait for another: a call in it waits for what the stream has, and is done when it
/// returns. Calls of one group come in the order in which they were made, in whichever streams.
///
/// Buffers lie on the rank's device, or in pinned memory of the host. Ordinary memory of the host
/// is BRIGADE_INVALID_ARGUMENT, as memory of devices is to all other functions. Calls in a group
/// (brigade_group_start) are enqueued at its end, before its calls on memory of the host; a thread
/// that has several ranks makes their calls so. brigade_comm_abort of the communicator ends all.
pub type brigade_device_group_t = *mut brigade_device_group;

/// The device whose context the calling thread has: after cudaSetDevice and a first allocation, or
/// cuCtxSetCurrent.
pub const BRIGADE_CURRENT_DEVICE: c_int = -1;

/// How the calls of a group on devices are carried out.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum brigade_way_t {
    /// As one kernel, where ranks are threads of one process: functions wait for nobody, except at
    /// the first call of a kind, and calls can be captured in graphs after that one.
    BRIGADE_WAY_TOGETHER = 0,
    /// By kernels between two meetings of the processes of one machine: a call is done when its
    /// function returns, and cannot be captured.
    BRIGADE_WAY_MET = 1,
    /// Through pinned memory of the host, anywhere: likewise.
    BRIGADE_WAY_STAGED = 2,
    /// As one kernel that carries out a schedule, where no device is shared by processes of one
    /// machine, or an algorithm was named: otherwise as BRIGADE_WAY_TOGETHER.
    BRIGADE_WAY_LINKED = 3,
    /// By the devices of each node, which reach each other, and what goes from node to node through
    /// pinned memory of the hosts; short calls as BRIGADE_WAY_STAGED. A call is done when its
    /// function returns, and cannot be captured.
    BRIGADE_WAY_BY_NODES = 4,
}

/// Any number where C says `brigade_way_t`.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct WayCode(c_int);

/// What a group on devices is. Begin with BRIGADE_DEVICE_INFO_INIT; members are only ever added at
/// the end.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct brigade_device_info_t {
    /// sizeof(brigade_device_info_t).
    pub struct_size: usize,
    /// The number of this rank's device, as CUDA counts them.
    pub device: c_int,
    /// How calls are carried out; the same on all ranks.
    pub way: WayCode,
    /// 1 if calls can be captured in graphs, else 0.
    pub captures: c_int,
    /// 1 if another rank of this process is on the same device, else 0.
    pub shares_device: c_int,
}

/// The same numbers as in tests/c/layout.c.
const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<brigade_device_info_t>() == 24 && size_of::<brigade_way_t>() == 4);
    assert!(offset_of!(brigade_device_info_t, device) == 8);
    assert!(offset_of!(brigade_device_info_t, way) == 12);
    assert!(offset_of!(brigade_device_info_t, captures) == 16);
    assert!(offset_of!(brigade_device_info_t, shares_device) == 20);
};

/// Open the devices of a communicator's ranks to each other: every rank calls it, with the number
/// of its device as CUDA counts them, or BRIGADE_CURRENT_DEVICE. Several ranks may be on one
/// device. The first time it compiles kernels. `group` is NULL after an error; where a rank has no
/// device, that is BRIGADE_INVALID_USAGE on the others, and the communicator stays as it was. A
/// driver is opened by this function, or by the program, or not at all.
///
/// Threads: from any thread; several ranks of one process need as many threads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_device_group_create(
    group: *mut brigade_device_group_t,
    device: c_int,
    comm: brigade_comm_t,
) -> brigade_result_t {
    let share = || Ok(DeviceShare::default());
    // SAFETY: C passes what the function needs.
    enter(|| unsafe { create("brigade_device_group_create", group, device, share, comm) })
}

/// The same where calls of `groups` groups, this one among them, may be on the rank's device at
/// once: a call that waits for other ranks takes an equal part of the device then, so that all fit.
/// There must be one order of all calls, of whichever groups, in which each rank makes its own.
/// Ranks may say different numbers. One below 1 is BRIGADE_INVALID_ARGUMENT, and
/// BRIGADE_INVALID_USAGE on the others.
///
/// Threads: as brigade_device_group_create.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_device_group_create_among(
    group: *mut brigade_device_group_t,
    device: c_int,
    groups: c_int,
    comm: brigade_comm_t,
) -> brigade_result_t {
    let share = || match u32::try_from(groups) {
        Ok(groups @ 1..) => Ok(DeviceShare::among(groups)),
        _ => Err(Failure::argument(format!("groups: {groups}, but this one is among them"))),
    };
    // SAFETY: C passes what the function needs.
    enter(|| unsafe { create("brigade_device_group_create_among", group, device, share, comm) })
}

/// Make a group with a share of each rank's device.
///
/// # Safety
///
/// `group` is NULL, or can be written to.
unsafe fn create(
    name: &'static str,
    group: *mut brigade_device_group_t,
    device: c_int,
    share: impl FnOnce() -> Outcome<DeviceShare>,
    comm: brigade_comm_t,
) -> Outcome {
    // SAFETY: the caller's promise.
    let out = unsafe { Out::new(group, "group")?.holding(std::ptr::null_mut()) };
    may_wait(name)?;
    let (comm, reserved) = (pin::<Comm>(comm.addr() as u64)?, reserve()?);
    let opened = share().and_then(|share| Ok((context(device)?, share)));
    // All hear of it before anybody waits for a rank that cannot come.
    let without = first_without(&comm.communicator, opened.is_ok())?;
    let (context, share) = opened?;
    if let Some(rank) = without {
        return Err(Failure::usage(format!("rank {rank} takes no part: its error says why")));
    }
    let streams = Streams::new(&comm.communicator, &context, share)?;
    let (seat, ordinal) = (comm.seat(), context.device().ordinal);
    let made = OnDevice { streams, seat, ordinal, _comm: comm.share() };
    let handle = reserved.fill(Arc::new(made));
    // SAFETY: as above.
    unsafe { out.put(std::ptr::without_provenance_mut(handle as usize)) };
    Ok(())
}

/// Tell what a group on devices is.
///
/// Threads: from any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_device_group_info(
    group: brigade_device_group_t,
    info: *mut brigade_device_info_t,
) -> brigade_result_t {
    enter(|| {
        let device = pin::<OnDevice>(group.addr() as u64)?;
        // SAFETY: C passes NULL or a struct that begins with its size.
        let asked: brigade_device_info_t = unsafe { sized(info.cast(), "info") }?;
        let way = device.streams.group().way();
        let told = brigade_device_info_t {
            struct_size: asked.struct_size,
            device: device.ordinal as c_int,
            way: WayCode(match way {
                Way::Together => brigade_way_t::BRIGADE_WAY_TOGETHER,
                Way::Met => brigade_way_t::BRIGADE_WAY_MET,
                Way::Staged => brigade_way_t::BRIGADE_WAY_STAGED,
                Way::Linked => brigade_way_t::BRIGADE_WAY_LINKED,
                Way::ByNodes => brigade_way_t::BRIGADE_WAY_BY_NODES,
            } as c_int),
            captures: c_int::from(way.is_enqueued()),
            shares_device: c_int::from(device.streams.group().shares_device()),
        };
        let bytes = asked.struct_size.min(size_of::<brigade_device_info_t>());
        // SAFETY: C's struct has as many bytes as it says, and ours has no fewer than these.
        unsafe {
            std::ptr::copy_nonoverlapping((&raw const told).cast::<u8>(), info.cast(), bytes)
        };
        Ok(())
    })
}

/// Why nothing can be called any more, if it is so: for those whose calls run in graphs, or who
/// wait for streams by CUDA's own functions. BRIGADE_SUCCESS as long as all is well.
///
/// Threads: from any thread, at any time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_device_group_check(
    group: brigade_device_group_t,
) -> brigade_result_t {
    enter(|| Ok(pin::<OnDevice>(group.addr() as u64)?.streams.group().check()?))
}

/// End a group on all ranks: wait for the calls that were enqueued, and until no other process has
/// memory of this one open any more, for as long as a call may take. Nothing can be called
/// afterwards, and what lies in graphs must not be launched; the handle stays. Every rank calls it,
/// where ranks are processes that share a machine; of those of one process only the last one waits
/// for other processes, so one thread may do it for several. BRIGADE_TIMEOUT names the ranks that
/// did not come, and what they may have open is kept until the process ends.
///
/// Threads: from any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_device_group_close(
    group: brigade_device_group_t,
) -> brigade_result_t {
    enter(|| {
        thread::refuse_in_group("brigade_device_group_close")?;
        may_wait("brigade_device_group_close")?;
        Ok(pin::<OnDevice>(group.addr() as u64)?.streams.group().close()?)
    })
}

/// End a handle. What was enqueued is waited for; what lies in graphs must not be launched any
/// more. Where brigade_device_group_close was not called, and ranks of other processes have not
/// destroyed theirs after two seconds, what they may have open is kept until the process ends. It
/// may outlive the handle of its communicator. Works of the group keep it until they are freed.
///
/// Threads: from any thread; if another one is inside a call, the rest ends with that call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_device_group_destroy(
    group: brigade_device_group_t,
) -> brigade_result_t {
    enter(|| {
        thread::refuse_in_group("brigade_device_group_destroy")?;
        close::<OnDevice>(group.addr() as u64)
    })
}

/// A work for what `stream` has by now: brigade_work_test and brigade_work_wait tell its end, and
/// whether it went well; brigade_work_on_done and brigade_work_fd have nothing for it, since CUDA's
/// own functions do that (cudaLaunchHostFunc, events).
///
/// Threads: from any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_device_mark(
    group: brigade_device_group_t,
    stream: *mut c_void,
    work: *mut brigade_work_t,
) -> brigade_result_t {
    enter(|| {
        thread::refuse_in_group("brigade_device_mark")?;
        let device = pin::<OnDevice>(group.addr() as u64)?;
        let (out, reserved) = (Out::new(work, "work")?, reserve()?);
        // SAFETY: C passes a stream of this device.
        let work = unsafe { device.streams.mark(stream.expose_provenance()) }?;
        let handle = fill(reserved, InFlight::Marked { work, _group: device.share() });
        // SAFETY: C passes a place for it.
        unsafe { out.put(handle) };
        Ok(())
    })
}

/// brigade_send from memory of a device, in the order of a stream. Messages that ranks send to each
/// other, and those to the own rank, need a group around them.
///
/// Threads: from any thread; calls on one group come one after the other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_device_send(
    sendbuf: *const c_void,
    count: usize,
    dtype: DtypeCode,
    peer: c_int,
    group: brigade_device_group_t,
    stream: *mut c_void,
) -> brigade_result_t {
    let what = |dtype, memory, peer| What::Send { dtype, memory, peer };
    // SAFETY: the caller's promise.
    unsafe { message(group, (sendbuf, count, dtype), (peer, stream), what) }
}

/// brigade_recv into memory of a device, in the order of a stream.
///
/// Threads: from any thread; calls on one group come one after the other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_device_recv(
    recvbuf: *mut c_void,
    count: usize,
    dtype: DtypeCode,
    peer: c_int,
    group: brigade_device_group_t,
    stream: *mut c_void,
) -> brigade_result_t {
    let what = |dtype, memory, peer| What::Recv { dtype, memory, peer };
    // SAFETY: the caller's promise.
    unsafe { message(group, (recvbuf, count, dtype), (peer, stream), what) }
}

/// Enqueue one half of a message, or list it in the open group.
///
/// # Safety
///
/// As `enqueue`.
unsafe fn message(
    group: brigade_device_group_t,
    (buffer, count, dtype): (*const c_void, usize, DtypeCode),
    (peer, stream): (c_int, *mut c_void),
    what: impl FnOnce(Dtype, Memory, usize) -> What,
) -> brigade_result_t {
    enter(|| {
        let device = pin::<OnDevice>(group.addr() as u64)?;
        let dtype = dtype.parse()?;
        let peer = device.seat.member("message: rank", peer)?;
        let what = what(dtype, Memory::of_message("the buffer", buffer, count, dtype)?, peer);
        // SAFETY: the caller's promise.
        unsafe { group::enqueue(&device, what, stream.expose_provenance()) }
    })
}

/// Enqueue a collective, or list it in the open group. The stream comes last.
///
/// # Safety
///
/// The memory is what C must pass, until the stream has done the call.
pub(crate) unsafe fn enqueue(
    group: brigade_device_group_t,
    (sendbuf, recvbuf, stream): (*const c_void, *mut c_void, *mut c_void),
    shape: impl FnOnce(Seat) -> Outcome<Shape>,
) -> brigade_result_t {
    enter(|| {
        let device = pin::<OnDevice>(group.addr() as u64)?;
        let Shape { call, lengths } = shape(device.seat)?;
        let memory = Memory::new(sendbuf, recvbuf, lengths, call.dtype)?;
        let what = What::Collective { call, memory };
        // SAFETY: the caller's promise.
        unsafe { group::enqueue(&device, what, stream.expose_provenance()) }
    })
}

/// The context of the device that C means.
fn context(device: c_int) -> Outcome<Context> {
    if device == BRIGADE_CURRENT_DEVICE {
        let current = Context::current().map_err(|error| Failure::usage(error.to_string()))?;
        return current.ok_or_else(|| {
            Failure::usage("this thread has no context of CUDA: pass the number of its device")
        });
    }
    let wrong = |_| Failure::argument(format!("no device has the number {device}"));
    let ordinal = u32::try_from(device).map_err(wrong)?;
    let cuda = Cuda::load().map_err(|missing| Failure::usage(missing.to_string()))?;
    let device = cuda.device(ordinal).map_err(|error| Failure::argument(error.to_string()))?;
    Context::new(&device).map_err(|error| Failure::usage(error.to_string()))
}
