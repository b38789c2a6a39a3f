//! Completions: what came of work requests, and a descriptor to sleep at until there are some.

use std::ffi::c_void;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::sys::{IBV_WC_RECV, IBV_WC_WITH_IMM, ibv_comp_channel, ibv_cq, ibv_wc};
use crate::{Device, Result, Status, VerbsError};

/// What came of one work request.
#[derive(Clone, Copy, Default)]
#[repr(transparent)]
pub struct Completion(ibv_wc);

impl Completion {
    /// The number that the request was given.
    pub fn id(&self) -> u64 {
        self.0.wr_id
    }

    /// Whether it worked.
    pub fn status(&self) -> Status {
        Status(self.0.status)
    }

    /// Which queue pair it belongs to.
    pub fn queue_pair(&self) -> u32 {
        self.0.qp_num
    }

    /// How many bytes arrived. Only of a receive that worked.
    pub fn bytes(&self) -> u32 {
        self.0.byte_len
    }

    /// The number that came with what arrived, if one did. Only of a receive that worked.
    pub fn immediate(&self) -> Option<u32> {
        (self.0.wc_flags & IBV_WC_WITH_IMM != 0).then(|| u32::from_be(self.0.imm_data))
    }

    /// Whether something arrived, rather than went out. Only of one that worked.
    pub fn is_receive(&self) -> bool {
        self.0.opcode & IBV_WC_RECV != 0
    }
}

/// Where completion queues of one device ring.
pub struct CompletionChannel {
    raw: NonNull<ibv_comp_channel>,
    device: Arc<Device>,
}

// SAFETY: libibverbs may be called from any thread with the same channel.
unsafe impl Send for CompletionChannel {}
// SAFETY: as above.
unsafe impl Sync for CompletionChannel {}

impl CompletionChannel {
    /// A new one, that never blocks.
    ///
    /// # Errors
    ///
    /// When the device refuses, or no file is to be had.
    pub fn new(device: &Arc<Device>) -> Result<Arc<Self>> {
        // SAFETY: an open context.
        let raw = unsafe { (device.library.create_comp_channel)(device.raw.as_ptr()) };
        let failed = |call| VerbsError::last(call, format!("a channel of {}", device.name()));
        let raw = NonNull::new(raw).ok_or_else(|| failed("ibv_create_comp_channel"))?;
        let channel = Self { raw, device: Arc::clone(device) };
        // SAFETY: a descriptor that the channel owns; no pointers.
        let changed = unsafe {
            let fd = raw.as_ref().fd;
            libc::fcntl(fd, libc::F_SETFL, libc::fcntl(fd, libc::F_GETFL) | libc::O_NONBLOCK)
        };
        if changed < 0 { Err(failed("fcntl")) } else { Ok(Arc::new(channel)) }
    }

    /// The token of a queue that rang, and is not armed any more; `None` when none has.
    pub fn rung(&self) -> Option<usize> {
        let library = self.device.library;
        let (mut queue, mut token) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: an open channel that does not block, and places for the answers.
        if unsafe { (library.get_cq_event)(self.raw.as_ptr(), &mut queue, &mut token) } != 0 {
            return None;
        }
        // SAFETY: the queue lives at least until its events have been acknowledged.
        unsafe { (library.ack_cq_events)(queue, 1) };
        Some(token.addr())
    }
}

impl AsFd for CompletionChannel {
    /// Readable when a queue has rung.
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel owns the descriptor and lives as long as the borrow.
        unsafe { BorrowedFd::borrow_raw(self.raw.as_ref().fd) }
    }
}

impl Drop for CompletionChannel {
    fn drop(&mut self) {
        // SAFETY: queues hold their channel, so none is left.
        let _gone = unsafe { (self.device.library.destroy_comp_channel)(self.raw.as_ptr()) };
    }
}

/// Where completions are found.
pub struct CompletionQueue {
    pub(crate) raw: NonNull<ibv_cq>,
    device: Arc<Device>,
    _channel: Option<Arc<CompletionChannel>>,
}

// SAFETY: libibverbs may be called from any thread with the same queue.
unsafe impl Send for CompletionQueue {}
// SAFETY: as above.
unsafe impl Sync for CompletionQueue {}

impl CompletionQueue {
    /// A queue for so many completions, which rings with `token` at a channel, if at any.
    ///
    /// # Errors
    ///
    /// When the device refuses.
    pub fn new(
        device: &Arc<Device>,
        entries: u32,
        channel: Option<(&Arc<CompletionChannel>, usize)>,
    ) -> Result<Arc<Self>> {
        let (rings_at, token) = match channel {
            Some((channel, token)) => (channel.raw.as_ptr(), token),
            None => (std::ptr::null_mut(), 0),
        };
        let token: *mut c_void = std::ptr::without_provenance_mut(token);
        let entries = i32::try_from(entries).expect("a few hundred");
        let (library, context) = (device.library, device.raw.as_ptr());
        // SAFETY: the context is open, and the channel is held for as long as the queue.
        let raw = unsafe { (library.create_cq)(context, entries, token, rings_at, 0) };
        let raw = NonNull::new(raw).ok_or_else(|| {
            let what = format!("a queue of {entries} completions of {}", device.name());
            VerbsError::last("ibv_create_cq", what)
        })?;
        let _channel = channel.map(|(channel, _)| Arc::clone(channel));
        Ok(Arc::new(Self { raw, device: Arc::clone(device), _channel }))
    }

    /// Take completions, as many as there are and as `target` has room for; how many.
    ///
    /// # Errors
    ///
    /// When the queue is broken.
    #[inline]
    pub fn poll(&self, target: &mut [Completion]) -> Result<usize> {
        let room = target.len() as i32;
        // SAFETY: a live queue of this context, and room for so many; a `Completion` is an
        // `ibv_wc`.
        let count = unsafe {
            let poll = self.device.raw.as_ref().ops.poll_cq;
            poll(self.raw.as_ptr(), room, target.as_mut_ptr().cast())
        };
        usize::try_from(count).map_err(|_| VerbsError::Call {
            call: "ibv_poll_cq",
            errno: libc::EIO,
            what: format!("code {count}"),
        })
    }

    /// Ring at the channel for the next completion, once.
    ///
    /// # Errors
    ///
    /// When the queue is broken.
    pub fn arm(&self) -> Result<()> {
        // SAFETY: a live queue of this context.
        let code = unsafe {
            let arm = self.device.raw.as_ref().ops.req_notify_cq;
            arm(self.raw.as_ptr(), 0)
        };
        self.device.checked("ibv_req_notify_cq", code, "arming a completion queue")
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: queue pairs hold their queues, so none is left; events were acknowledged when
        // they were taken.
        let _gone = unsafe { (self.device.library.destroy_cq)(self.raw.as_ptr()) };
    }
}
