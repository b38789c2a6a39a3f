//! Groups: calls that are listed first and carried out together.

use std::cell::RefCell;
use std::sync::Arc;

use brigade_comm::Work;

use crate::comm::Comm;
use crate::error::{Failure, Outcome, brigade_result_t, enter};
use crate::on_device::OnDevice;
use crate::thread::{
    is_plain, open_groups, refuse_in_operator, set_open_groups, spoil, take_spoilt,
};
use crate::work::{InFlight, brigade_work_t, fill};
use brigade_wall::fork;
use brigade_wall::handle::{Pinned, reserve};
use brigade_wall::listed::{Listed, What};
use brigade_wall::pointer::Out;
use brigade_wall::streams::{Enqueued, Streams};

/// Begin a group: from here to brigade_group_end this thread's calls are only listed. Groups may
/// lie within groups; the outermost one counts.
///
/// Threads: each thread has its own groups.
#[unsafe(no_mangle)]
pub extern "C" fn brigade_group_start() -> brigade_result_t {
    enter(|| {
        refuse_in_operator()?;
        if open_groups() == 0 {
            let open = |group: &RefCell<Group>| group.borrow_mut().process = std::process::id();
            GROUP.try_with(open).map_err(|_| Failure::usage(ENDING))?;
        }
        set_open_groups(open_groups() + 1);
        Ok(())
    })
}

/// Carry out the calls of the group. Of each communicator first its collectives, in their order,
/// and then its messages, all at once; different communicators at the same time. With `work` NULL
/// it returns when all are done; else `work` is one handle for all of them. Calls on memory of
/// devices come first and are only enqueued; a group that has some has no work. If a call in the
/// group failed when it was listed, or one on memory of the host makes no sense by itself, none is
/// carried out. A child that was forked inside a group can only end it: its calls are the parent's.
///
/// Buffers of messages of one communicator in a group lie apart, but for those that are only sent:
/// else nothing of it is carried out.
///
/// Threads: each thread has its own groups.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_group_end(work: *mut brigade_work_t) -> brigade_result_t {
    enter(|| {
        refuse_in_operator()?;
        match open_groups() {
            0 => Err(Failure::usage("brigade_group_end without brigade_group_start")),
            1 => {
                set_open_groups(0);
                let spoilt = take_spoilt();
                let group = GROUP.try_with(RefCell::take).map_err(|_| Failure::usage(ENDING))?;
                let group = fork::own_group(group.process, group)?;
                // SAFETY: the caller's promise.
                unsafe {
                    group.check(spoilt)?;
                    group.carry_out(work)
                }
            }
            count => {
                set_open_groups(count - 1);
                if !work.is_null() {
                    return Err(Failure::usage("only the outermost group has a work"));
                }
                Ok(())
            }
        }
    })
}

/// Whoever is called when a thread's own data has gone, by `atexit` say.
const ENDING: &str = "this thread is ending, and has no groups any more";

/// Forget the calls of the innermost group that this thread has open, and end it: for whoever
/// cannot go on listing, as in a handler of exceptions. Of a group around it nothing is carried out
/// either. Without an open group it does nothing.
///
/// Threads: each thread has its own groups.
#[unsafe(no_mangle)]
pub extern "C" fn brigade_group_cancel() -> brigade_result_t {
    enter(|| {
        refuse_in_operator()?;
        match open_groups() {
            0 => {}
            1 => {
                set_open_groups(0);
                drop(take_spoilt());
                // What a thread that is ending had listed has gone.
                if let Ok(group) = GROUP.try_with(RefCell::take) {
                    drop(fork::own_group(group.process, group));
                }
            }
            count => {
                spoil(&Failure::usage("a group within it was cancelled"));
                set_open_groups(count - 1);
            }
        }
        Ok(())
    })
}

/// What a thread has listed.
#[derive(Default)]
struct Group {
    /// Where it was opened; a child of `fork` inherits it.
    process: u32,
    /// By communicator, in the order in which they were first named.
    shares: Vec<Share>,
    /// Calls on memory of devices, by their groups there.
    on_devices: Vec<(Arc<OnDevice>, Enqueued)>,
}

/// What a group holds for one communicator.
struct Share {
    comm: Arc<Comm>,
    listed: Listed,
}

thread_local! {
    static GROUP: RefCell<Group> = RefCell::default();
}

/// What is not a plain collective: list it in the open group, or start it, or carry out a message.
///
/// # Safety
///
/// The memory is what C must pass, until the call has ended; so is the place of the work.
#[cold]
pub(crate) unsafe fn later(comm: &Pinned<Comm>, what: What, work: *mut brigade_work_t) -> Outcome {
    refuse_in_operator()?;
    if is_plain() {
        let mut share = Share::of(comm.share());
        share.listed.push(what);
        let group = Group { shares: vec![share], ..Group::default() };
        // SAFETY: the caller's promise.
        return unsafe { group.carry_out(work) };
    }
    if !work.is_null() {
        return Err(Failure::usage(
            "in a group work must be NULL: brigade_group_end gives one for all its calls",
        ));
    }
    list(|group| {
        let comm = comm.share();
        let known = group.shares.iter().position(|share| Arc::ptr_eq(&share.comm, &comm));
        let place = known.unwrap_or_else(|| {
            group.shares.push(Share::of(comm));
            group.shares.len() - 1
        });
        group.shares[place].listed.push(what);
    })
}

/// Add to the open group.
fn list(add: impl FnOnce(&mut Group)) -> Outcome {
    GROUP.try_with(|group| add(&mut group.borrow_mut())).map_err(|_| Failure::usage(ENDING))
}

/// Enqueue a call on memory of devices, or list it in the open group.
///
/// # Safety
///
/// The memory is what C must pass, until the stream has done the call.
pub(crate) unsafe fn enqueue(device: &Pinned<OnDevice>, what: What, stream: usize) -> Outcome {
    refuse_in_operator()?;
    if is_plain() {
        // SAFETY: the caller's promise.
        return unsafe { device.streams().run(what, stream) };
    }
    list(|group| {
        let device = device.share();
        let known = group.on_devices.iter().position(|(known, _)| Arc::ptr_eq(known, &device));
        let place = known.unwrap_or_else(|| {
            group.on_devices.push((device, Enqueued::default()));
            group.on_devices.len() - 1
        });
        group.on_devices[place].1.push(what, stream);
    })
}

impl Group {
    /// Refuse all of it for the sake of one call, or of what has spoilt it.
    ///
    /// # Safety
    ///
    /// The memory is what C must pass.
    unsafe fn check(&self, spoilt: Option<String>) -> Outcome {
        if let Some(why) = spoilt {
            let sentence = format!("nothing of the group was carried out: {why}");
            return Err(Failure::usage(sentence));
        }
        // SAFETY: the caller's promise.
        self.shares.iter().try_for_each(|share| unsafe { share.check() })
    }

    /// # Safety
    ///
    /// The memory is what C must pass, until the calls have ended; so is the place of the work.
    unsafe fn carry_out(self, work: *mut brigade_work_t) -> Outcome {
        if !self.on_devices.is_empty() {
            if !work.is_null() {
                return Err(Failure::usage(
                    "a group with calls on memory of devices has no work, and nothing of it was \
                     carried out: brigade_device_mark gives one for a stream",
                ));
            }
            let calls = self.on_devices.iter().map(|(device, calls)| (device.streams(), calls));
            // SAFETY: the caller's promise.
            unsafe { Streams::run_together(&calls.collect::<Vec<_>>()) }?;
        }
        if work.is_null() && self.shares.len() == 1 {
            // SAFETY: the caller's promise.
            return self.shares.into_iter().try_for_each(|share| unsafe { share.run() });
        }
        let out = match work.is_null() {
            true => None,
            false => Some((Out::new(work, "work")?, reserve::<InFlight>()?)),
        };
        let mut works = Vec::new();
        // SAFETY: the caller's promise; what was started is waited for, here or by C.
        let started = self.shares.iter().try_for_each(|share| unsafe { share.start(&mut works) });
        let work = Work::all(works);
        if let Err(failure) = started {
            // That something could not be started is what is told; it came first.
            let _ended = work.wait();
            return Err(failure);
        }
        match out {
            None => Ok(work.wait()?),
            Some((out, reserved)) => {
                let handle = fill(reserved, InFlight::started(work));
                // SAFETY: the caller's promise.
                unsafe { out.put(handle) };
                Ok(())
            }
        }
    }
}

impl Share {
    fn of(comm: Arc<Comm>) -> Self {
        Self { comm, listed: Listed::default() }
    }

    /// Refuse what makes no sense by itself.
    ///
    /// # Safety
    ///
    /// The memory is what C must pass.
    unsafe fn check(&self) -> Outcome {
        // SAFETY: the caller's promise.
        Ok(unsafe { self.listed.check(&self.comm.communicator) }?)
    }

    /// Carry all out on this thread.
    ///
    /// # Safety
    ///
    /// The memory is what C must pass.
    unsafe fn run(&self) -> Outcome {
        // SAFETY: the caller's promise.
        Ok(unsafe { self.listed.run(&self.comm.communicator) }?)
    }

    /// Start all.
    ///
    /// # Safety
    ///
    /// The memory is what C must pass, until the works have ended.
    unsafe fn start(&self, works: &mut Vec<Work<'static>>) -> Outcome {
        // SAFETY: the caller's promise.
        Ok(unsafe { self.listed.start(&self.comm.communicator, works) }?)
    }
}
