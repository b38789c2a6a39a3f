//! Reliable connections: queues of work requests, whose other end is at a peer.

mod making;

use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::sys::{
    IBV_QP_ACCESS_FLAGS, IBV_QP_AV, IBV_QP_DEST_QPN, IBV_QP_MAX_DEST_RD_ATOMIC,
    IBV_QP_MAX_QP_RD_ATOMIC, IBV_QP_MIN_RNR_TIMER, IBV_QP_PATH_MTU, IBV_QP_PKEY_INDEX, IBV_QP_PORT,
    IBV_QP_RETRY_CNT, IBV_QP_RNR_RETRY, IBV_QP_RQ_PSN, IBV_QP_SQ_PSN, IBV_QP_STATE, IBV_QP_TIMEOUT,
    IBV_QPS_ERR, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_SEND_INLINE, IBV_SEND_SIGNALED,
    IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM,
    IBV_WR_SEND_WITH_IMM, atomic, ibv_global_route, ibv_qp, ibv_qp_attr, ibv_recv_wr, ibv_send_wr,
    ibv_sge, rdma, wr,
};
use crate::{Access, CompletionQueue, Gid, MemoryRegion, ProtectionDomain, Result, VerbsError};

/// How much a queue pair holds, and what its other end may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Work requests that are posted and not completed.
    pub sends: u32,
    /// Receives that are posted and not completed.
    pub receives: u32,
    /// Bytes that may be handed to the device with the request itself, if it takes so many.
    pub inline_bytes: u32,
    /// What the other end may do with memory that is known to the domain: devices without atomic
    /// operations give nobody `Everything`.
    pub access: Access,
}

/// How a queue pair reaches its other end.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    /// Our port.
    pub port: u8,
    /// Our address, as a row of the port's table; `None` to route by LID only.
    pub gid_index: Option<u8>,
    /// The largest packet, as verbs count it.
    pub mtu: u8,
    /// The other end's address.
    pub gid: Gid,
    /// The other end's local identifier.
    pub lid: u16,
    /// The other end's queue pair.
    pub number: u32,
    /// Where our packets begin to count.
    pub our_start: u32,
    /// Where the other end's packets begin to count.
    pub their_start: u32,
    /// How long to wait for an answer: 4.096 us times two to the power of this.
    pub timeout: u8,
    /// How often to try again without an answer, at most 6 (7 means for ever on some devices).
    pub retries: u8,
    /// How often to try again when the other end has no receive posted; 7 means for ever.
    pub receiver_retries: u8,
    /// InfiniBand's service level, or RoCE's priority.
    pub service_level: u8,
    /// The traffic class of the routed header: on RoCE, differentiated services and congestion.
    pub traffic_class: u8,
    /// How many reads and atomic operations may be on their way at once.
    pub reads: u8,
}

/// A place in a peer's memory, and the key to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// The peer's address.
    pub address: u64,
    /// What the peer's device asks for.
    pub key: u32,
}

/// One end of a reliable connection. Ready for receives at once, for the rest once it is connected.
pub struct QueuePair {
    /// None once it is destroyed.
    raw: Option<NonNull<ibv_qp>>,
    number: u32,
    inline_bytes: u32,
    domain: Arc<ProtectionDomain>,
    _sends: Arc<CompletionQueue>,
    _receives: Arc<CompletionQueue>,
}

// SAFETY: libibverbs may be called from any thread with the same queue pair.
unsafe impl Send for QueuePair {}
// SAFETY: as above.
unsafe impl Sync for QueuePair {}

impl QueuePair {
    /// A new one at `port`, whose completions go to these queues.
    ///
    /// # Errors
    ///
    /// When the device refuses.
    pub fn new(
        domain: &Arc<ProtectionDomain>,
        port: u8,
        sends: &Arc<CompletionQueue>,
        receives: &Arc<CompletionQueue>,
        limits: Limits,
    ) -> Result<Self> {
        let queues = [sends, receives].map(|queue| &**queue);
        let (raw, inline_bytes) = making::make(domain, queues, limits)?;
        // SAFETY: a live queue pair, whose number does not change.
        let number = unsafe { raw.as_ref() }.qp_num;
        let pair = Self {
            raw: Some(raw),
            number,
            inline_bytes,
            domain: Arc::clone(domain),
            _sends: Arc::clone(sends),
            _receives: Arc::clone(receives),
        };
        let mut change = blank(IBV_QPS_INIT);
        change.port_num = port;
        change.qp_access_flags = limits.access.flags() as u32;
        let what = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
        pair.modify(change, what, "preparing a queue pair")?;
        Ok(pair)
    }

    /// Its number, which the other end must know.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// How many bytes a request may carry itself.
    pub fn inline_bytes(&self) -> u32 {
        self.inline_bytes
    }

    /// The device that it belongs to.
    pub fn device(&self) -> &crate::Device {
        &self.domain.device
    }

    /// Connect it: from now on it can receive and send.
    ///
    /// # Errors
    ///
    /// When the device does not like the path.
    pub fn connect(&self, path: &Path) -> Result<()> {
        let mut change = blank(IBV_QPS_RTR);
        change.path_mtu = path.mtu.into();
        change.dest_qp_num = path.number;
        change.rq_psn = path.their_start;
        change.max_dest_rd_atomic = path.reads;
        // 0.64 ms: receives are posted before they are needed, so this is a rare wait.
        change.min_rnr_timer = 12;
        change.ah_attr.dlid = path.lid;
        change.ah_attr.sl = path.service_level;
        change.ah_attr.port_num = path.port;
        if let Some(sgid_index) = path.gid_index {
            let (first, second) = path.gid.0.split_at(8);
            let word = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().expect("eight bytes"));
            change.ah_attr.is_global = 1;
            change.ah_attr.grh = ibv_global_route {
                dgid: [word(first), word(second)],
                flow_label: 0,
                sgid_index,
                hop_limit: 64,
                traffic_class: path.traffic_class,
            };
        }
        let what = IBV_QP_AV
            | IBV_QP_PATH_MTU
            | IBV_QP_DEST_QPN
            | IBV_QP_RQ_PSN
            | IBV_QP_MAX_DEST_RD_ATOMIC
            | IBV_QP_MIN_RNR_TIMER;
        let doing = format!("opening a path to {} (MTU {})", path.gid, 128_u32 << path.mtu);
        self.modify(change, what, &doing)?;
        let mut change = blank(IBV_QPS_RTS);
        change.timeout = path.timeout;
        change.retry_cnt = path.retries;
        change.rnr_retry = path.receiver_retries;
        change.sq_psn = path.our_start;
        change.max_rd_atomic = path.reads;
        let what = IBV_QP_TIMEOUT
            | IBV_QP_RETRY_CNT
            | IBV_QP_RNR_RETRY
            | IBV_QP_SQ_PSN
            | IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify(change, what, "starting a queue pair")
    }

    /// Stop it for good: what is posted completes as flushed, and what still arrives is ignored.
    ///
    /// # Errors
    ///
    /// When the device does not answer: then it does not touch memory either.
    pub fn stop(&self) -> Result<()> {
        self.modify(blank(IBV_QPS_ERR), 0, "stopping a queue pair")
    }

    /// Be done with it: when this returns, its device works on nothing of what was posted here,
    /// unless the system refuses even that, and whatever is asked of it is an error.
    pub fn destroy(&mut self) {
        if let Some(raw) = self.raw.take() {
            // SAFETY: made once, and destroyed once, since it is taken.
            let _gone = unsafe { (self.domain.device.library.destroy_qp)(raw.as_ptr()) };
        }
    }

    fn raw(&self, call: &'static str) -> Result<*mut ibv_qp> {
        let gone = || {
            let what = format!("queue pair {} was given up", self.number);
            VerbsError::Call { call, errno: libc::ENOTCONN, what }
        };
        self.raw.map(NonNull::as_ptr).ok_or_else(gone)
    }

    fn modify(&self, mut change: ibv_qp_attr, what: i32, doing: &str) -> Result<()> {
        let (device, raw) = (&self.domain.device, self.raw("ibv_modify_qp")?);
        // SAFETY: a live queue pair, and a structure that the call reads.
        let code = unsafe { (device.library.modify_qp)(raw, &mut change, what | IBV_QP_STATE) };
        device.checked("ibv_modify_qp", code, doing)
    }

    /// Be ready for one more number to arrive.
    ///
    /// # Errors
    ///
    /// When the queue is full or broken.
    pub fn post_receive(&self, id: u64) -> Result<()> {
        let mut request = ibv_recv_wr {
            wr_id: id,
            next: std::ptr::null_mut(),
            sg_list: std::ptr::null_mut(),
            num_sge: 0,
        };
        let (raw, mut refused) = (self.raw("ibv_post_recv")?, std::ptr::null_mut());
        // SAFETY: a live queue pair of this context; the request is read during the call.
        let code = unsafe {
            let post = self.domain.device.raw.as_ref().ops.post_recv;
            post(raw, &mut request, &mut refused)
        };
        self.domain.device.checked("ibv_post_recv", code, "posting a receive")
    }

    /// Write `bytes` at `offset` of `from` to `remote`. With a number, the other end is told it
    /// after the bytes are there, at the cost of one of its receives.
    ///
    /// # Errors
    ///
    /// When the queue is full or broken.
    ///
    /// # Panics
    ///
    /// When the bytes do not lie within the region.
    #[inline]
    pub fn post_write(
        &self,
        id: u64,
        from: (&MemoryRegion, usize, usize),
        remote: Remote,
        immediate: Option<u32>,
    ) -> Result<()> {
        let opcode =
            if immediate.is_some() { IBV_WR_RDMA_WRITE_WITH_IMM } else { IBV_WR_RDMA_WRITE };
        let inline = from.2 <= self.inline_bytes as usize && from.0.is_ours_to_read();
        let flags = if inline { IBV_SEND_SIGNALED | IBV_SEND_INLINE } else { IBV_SEND_SIGNALED };
        self.post(id, Some(from), opcode, flags, immediate, plain(remote))
    }

    /// Read `bytes` of `remote` to `offset` of `to`.
    ///
    /// # Errors
    ///
    /// When the queue is full or broken.
    ///
    /// # Panics
    ///
    /// When the bytes do not lie within the region.
    pub fn post_read(
        &self,
        id: u64,
        to: (&MemoryRegion, usize, usize),
        remote: Remote,
    ) -> Result<()> {
        self.post(id, Some(to), IBV_WR_RDMA_READ, IBV_SEND_SIGNALED, None, plain(remote))
    }

    /// Add to the eight bytes at `remote`; what was there before goes to `offset` of `to`.
    ///
    /// # Errors
    ///
    /// When the queue is full or broken.
    ///
    /// # Panics
    ///
    /// When there is no room for it in the region.
    pub fn post_add(
        &self,
        id: u64,
        to: (&MemoryRegion, usize),
        remote: Remote,
        add: u64,
    ) -> Result<()> {
        let Remote { address: remote_addr, key: rkey } = remote;
        let target = wr { atomic: atomic { remote_addr, compare_add: add, swap: 0, rkey } };
        let (opcode, flags) = (IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_SEND_SIGNALED);
        self.post(id, Some((to.0, to.1, 8)), opcode, flags, None, target)
    }

    /// Tell the other end a number, at the cost of one of its receives.
    ///
    /// # Errors
    ///
    /// When the queue is full or broken.
    #[inline]
    pub fn post_number(&self, id: u64, number: u32) -> Result<()> {
        let nowhere = plain(Remote { address: 0, key: 0 });
        self.post(id, None, IBV_WR_SEND_WITH_IMM, IBV_SEND_SIGNALED, Some(number), nowhere)
    }

    #[inline]
    fn post(
        &self,
        id: u64,
        local: Option<(&MemoryRegion, usize, usize)>,
        opcode: u32,
        send_flags: u32,
        immediate: Option<u32>,
        target: wr,
    ) -> Result<()> {
        let (addr, lkey, length) = match local {
            Some((region, offset, bytes)) => {
                let (address, key) = region.place(offset, bytes);
                (address, key, u32::try_from(bytes).expect("less than 4 GiB at a time"))
            }
            None => (0, 0, 0),
        };
        let mut piece = ibv_sge { addr, length, lkey };
        let mut request = ibv_send_wr {
            wr_id: id,
            next: std::ptr::null_mut(),
            sg_list: &raw mut piece,
            num_sge: i32::from(length > 0),
            opcode,
            send_flags,
            imm_data: immediate.unwrap_or(0).to_be(),
            wr: target,
            rest: [0; 7],
        };
        let (raw, mut refused) = (self.raw("ibv_post_send")?, std::ptr::null_mut());
        // SAFETY: a live queue pair of this context; the request and its piece are read during the
        // call. The region named is registered; should it be dropped before the device is done,
        // the device answers with an error.
        let code = unsafe {
            let post = self.domain.device.raw.as_ref().ops.post_send;
            post(raw, &mut request, &mut refused)
        };
        self.domain.device.checked("ibv_post_send", code, "posting a work request")
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        self.destroy();
    }
}

fn plain(remote: Remote) -> wr {
    wr { rdma: rdma { remote_addr: remote.address, rkey: remote.key } }
}

/// A change to this state and nothing else yet.
fn blank(state: u32) -> ibv_qp_attr {
    // SAFETY: zeroes are a value of the structure.
    let mut change: ibv_qp_attr = unsafe { MaybeUninit::zeroed().assume_init() };
    change.qp_state = state;
    change
}
