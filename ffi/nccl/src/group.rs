//! Groups: calls that are listed first and carried out together, by each thread for itself.

use std::cell::RefCell;
use std::sync::Arc;

use brigade_comm::Work;
use brigade_wall::failure::guard;
use brigade_wall::fork;
use brigade_wall::handle::{Pinned, close};
use brigade_wall::listed::{Listed, What};
use brigade_wall::sight::hidden_in;
use brigade_wall::streams::{Enqueued, Streams, ended};
use brigade_wall::{Failure, Outcome};

use crate::comm::{Comm, Member};
use crate::device::cudaStream_t;
use crate::joining::Joining;
use crate::open::{self, is_open};
use crate::result::{IN_PROGRESS, SUCCESS, enter, enter_for, ncclResult_t};

/// What a thread has listed.
#[derive(Default)]
struct Group {
    /// Where it was opened; a child of `fork` inherits it.
    process: u32,
    /// Communicators to be made.
    joining: Vec<Joining>,
    /// Whether others, that do not block, are being made.
    is_joining: bool,
    /// By communicator, in the order in which they were first named.
    shares: Vec<Share>,
    /// Communicators to be finalized behind their calls, and handles to be closed behind that.
    finalizing: Vec<Arc<Comm>>,
    destroying: Vec<u64>,
}

/// The calls of one communicator.
struct Share {
    comm: Arc<Comm>,
    /// Those on memory of the host.
    listed: Listed,
    /// Those on memory of devices.
    enqueued: Enqueued,
}

thread_local! {
    static GROUP: RefCell<Group> = RefCell::default();
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGroupStart() -> ncclResult_t {
    enter(|| {
        if !is_open() {
            GROUP.with_borrow_mut(|group| group.process = std::process::id());
        }
        open::set_count(open::count().saturating_add(1));
        Ok(())
    })
}

/// Of each communicator first its collectives are carried out, in their order, and then its
/// messages, all at once; different communicators at the same time. Returns when all are done, but
/// for communicators that do not block; those on memory of devices come first, and are enqueued.
#[unsafe(no_mangle)]
pub extern "C" fn ncclGroupEnd() -> ncclResult_t {
    enter_for(|| match open::count() {
        0 => Err(Failure::usage("ncclGroupEnd without ncclGroupStart")),
        1 => {
            open::set_count(0);
            let spoilt = open::take_spoilt();
            let group = GROUP.with(RefCell::take);
            let mut group = fork::own_group(group.process, group)?;
            let finalizing = std::mem::take(&mut group.finalizing);
            let destroying = std::mem::take(&mut group.destroying);
            let is_joining = group.is_joining;
            // SAFETY: whoever listed the calls has promised to leave their memory alone.
            let result = unsafe {
                group.check(spoilt)?;
                group.carry_out()
            }?;
            let is_waited_for = !is_joining && finalizing.iter().all(|comm| comm.blocking);
            at_once(finalizing, |comm| comm.finalize())?;
            at_once(destroying, close::<Comm>)?;
            Ok(if is_waited_for { result } else { IN_PROGRESS })
        }
        count => {
            open::set_count(count - 1);
            Ok(SUCCESS)
        }
    })
}

/// The end of the open group makes this communicator.
pub(crate) fn list_joining(joining: Joining) {
    GROUP.with_borrow_mut(|group| group.joining.push(joining));
}

/// A communicator that does not block is being made: if a group is open, its end does not say that
/// all is done.
pub(crate) fn note_joining() {
    if is_open() {
        GROUP.with_borrow_mut(|group| group.is_joining = true);
    }
}

/// The end of the open group finalizes this communicator.
pub(crate) fn list_finalizing(comm: Arc<Comm>) {
    GROUP.with_borrow_mut(|group| group.finalizing.push(comm));
}

/// The end of the open group closes this communicator's handle.
pub(crate) fn list_destroying(handle: u64) {
    GROUP.with_borrow_mut(|group| group.destroying.push(handle));
}

/// Do it to all of them, each in a thread of its own, as they may wait for each other. The first
/// failure is told.
fn at_once<T: Send>(those: Vec<T>, what: impl Fn(T) -> Outcome + Sync) -> Outcome {
    if those.is_empty() {
        // As at the end of nearly every group, which nothing is allocated for.
        return Ok(());
    }
    let what = &what;
    std::thread::scope(|scope| {
        let start = |one: T| {
            let thread = std::thread::Builder::new().name("brigade-end".into());
            let body = move || guard(|| what(one));
            thread.spawn_scoped(scope, body).map_err(|error| {
                Failure::system(format!("no thread can be started to end one: {error}"))
            })
        };
        let threads: Vec<_> = those.into_iter().map(start).collect();
        let ended = threads.into_iter().map(|thread| ended(thread?));
        ended.fold(Ok(()), Result::and)
    })
}

/// Carry a call out, or list it in the open group, or start it.
///
/// # Safety
///
/// The memory is what C must pass, until the call has ended.
pub(crate) unsafe fn later(
    comm: &Pinned<Comm>,
    what: What,
    stream: cudaStream_t,
) -> Outcome<ncclResult_t> {
    let on_device = match comm.joined.get() {
        Some(Ok(Some(Member { on_device: Some(there), .. }))) => there.takes(&what)?,
        Some(Ok(Some(_))) if comm.sight.hidden(what.memory()).is_some() => {
            return Err(Failure::usage(
                "a call on memory of a device, but this process used no devices when the \
                 communicator was made: call cudaSetDevice before ncclCommInitRank",
            ));
        }
        // What it will have on devices is not known yet, and the host cannot read there.
        None if hidden_in(what.memory()).is_some() => {
            return Err(Failure::usage(
                "a call on memory of a device, while the communicator is being made: wait until \
                 it is there",
            ));
        }
        _ => false,
    };
    if !is_open() {
        if !comm.blocking && comm.dividing().is_some() {
            return Err(Failure::usage(
                "a division of the communicator goes on: wait until ncclCommGetAsyncError says \
                 that it has ended",
            ));
        }
        let member = comm.undivided()?;
        if on_device && let Some(there) = &member.on_device {
            // SAFETY: the caller's promise.
            unsafe { there.streams()?.run(what, stream.expose_provenance()) }?;
            return Ok(SUCCESS);
        }
        if comm.blocking
            && let What::Collective { call, memory } = &what
        {
            // SAFETY: the caller's promise.
            member.communicator.run(call, unsafe { memory.buffers() })?;
            return Ok(SUCCESS);
        }
        let mut listed = Listed::default();
        listed.push(what);
        let share = Share { comm: comm.share(), listed, enqueued: Enqueued::default() };
        let group = Group { shares: vec![share], ..Group::default() };
        // SAFETY: the caller's promise.
        return unsafe { group.carry_out() };
    }
    GROUP.with_borrow_mut(|group| {
        let comm = comm.share();
        let known = group.shares.iter().position(|other| Arc::ptr_eq(&other.comm, &comm));
        let place = known.unwrap_or_else(|| {
            let (listed, enqueued) = Default::default();
            group.shares.push(Share { comm, listed, enqueued });
            group.shares.len() - 1
        });
        match on_device {
            true => group.shares[place].enqueued.push(what, stream.expose_provenance()),
            false => group.shares[place].listed.push(what),
        }
    });
    Ok(SUCCESS)
}

impl Group {
    /// Refuse all of it for the sake of one call, or of what has spoilt it, and make communicators.
    ///
    /// # Safety
    ///
    /// The memory is what C must pass.
    unsafe fn check(&mut self, spoilt: Option<Box<Failure>>) -> Outcome {
        if let Some(failure) = spoilt {
            let sentence = format!("nothing of the group was carried out: {}", failure.sentence);
            return Err(Failure::new(failure.cause, sentence));
        }
        // All come to an end, and the first failure is told.
        let joining: Vec<_> = self.joining.drain(..).map(Joining::start).collect();
        let joined = joining.into_iter().map(|started| match started?.joined.wait() {
            Ok(_) => Ok(()),
            Err(failure) => Err(failure.clone()),
        });
        joined.fold(Ok(()), Result::and)?;
        for Share { comm, listed, .. } in &self.shares {
            if !listed.is_empty() {
                // SAFETY: the caller's promise.
                unsafe { listed.check(&comm.undivided()?.communicator) }?;
            }
        }
        Ok(())
    }

    /// # Safety
    ///
    /// The memory is what C must pass, until the calls have ended.
    unsafe fn carry_out(self) -> Outcome<ncclResult_t> {
        // SAFETY: the caller's promise.
        unsafe { enqueue(&self.shares) }?;
        let on_host: Vec<&Share> =
            self.shares.iter().filter(|one| !one.listed.is_empty()).collect();
        if let [Share { comm, listed, .. }] = on_host[..]
            && comm.blocking
        {
            // SAFETY: the caller's promise.
            unsafe { listed.run(&comm.undivided()?.communicator) }?;
            return Ok(SUCCESS);
        }
        let (mut awaited, mut result, mut started) = (Vec::new(), SUCCESS, Ok(()));
        for Share { comm, listed, .. } in on_host {
            let mut works = Vec::new();
            if started.is_ok() {
                // SAFETY: the caller's promise; what was started is waited for, here or by C.
                started = unsafe { start(comm, listed, &mut works) };
            }
            if comm.blocking {
                awaited.append(&mut works);
            } else {
                comm.keep(works);
                result = IN_PROGRESS;
            }
        }
        let ended = Work::all(awaited).wait();
        // That something could not be started is what is told; it came first.
        started?;
        ended?;
        Ok(result)
    }
}

/// Enqueue the calls on memory of devices.
///
/// # Safety
///
/// The memory is what C must pass, until the streams have done the calls.
unsafe fn enqueue(shares: &[Share]) -> Outcome {
    let mut calls = Vec::new();
    for Share { comm, enqueued, .. } in shares.iter().filter(|share| !share.enqueued.is_empty()) {
        if let Some(there) = &comm.undivided()?.on_device {
            calls.push((there.streams()?, enqueued));
        }
    }
    // SAFETY: the caller's promise.
    unsafe { Streams::run_together(&calls) }
}

/// # Safety
///
/// The memory is what C must pass, until the works have ended.
unsafe fn start(comm: &Comm, listed: &Listed, works: &mut Vec<Work<'static>>) -> Outcome {
    // SAFETY: the caller's promise.
    Ok(unsafe { listed.start(&comm.undivided()?.communicator, works) }?)
}
