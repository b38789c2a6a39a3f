//! Devices, their ports, and the domains that memory and queues belong to.

use std::ffi::CStr;
use std::fmt;
use std::mem::MaybeUninit;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::library::Library;
use crate::sys::{
    IBV_LINK_LAYER_ETHERNET, IBV_PORT_ACTIVE, ibv_context, ibv_device_attr, ibv_pd, ibv_port_attr,
};
use crate::{Result, VerbsError};

/// An open device. Closed when the last of what was made from it is gone.
pub struct Device {
    pub(crate) raw: NonNull<ibv_context>,
    pub(crate) library: &'static Library,
    name: String,
    limits: ibv_device_attr,
}

// SAFETY: libibverbs may be called from any thread with the same context.
unsafe impl Send for Device {}
// SAFETY: as above; what is read here without a call does not change.
unsafe impl Sync for Device {}

/// What a port's cable speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkLayer {
    /// InfiniBand, with LIDs.
    InfiniBand,
    /// Ethernet: RoCE or iWARP, addressed by GID.
    Ethernet,
}

/// A port as it is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortState {
    /// Counted from 1.
    pub number: u8,
    /// Whether it can carry traffic.
    pub is_active: bool,
    /// The largest packet, as verbs count it: 1 is 256 bytes, 5 is 4096.
    pub mtu: u8,
    /// Its local identifier, on InfiniBand.
    pub lid: u16,
    /// What its cable speaks.
    pub link_layer: LinkLayer,
    /// How many entries its table of GIDs has.
    pub gids: u32,
}

impl Device {
    /// Open every device of this machine that can be opened, and answers.
    ///
    /// # Errors
    ///
    /// When the library is missing, cannot list devices, or can open none of those it lists.
    pub fn open_all() -> Result<Vec<Arc<Device>>> {
        let library = Library::load()?;
        let mut count = 0;
        // SAFETY: writes one count; the list that it returns is freed below.
        let list = unsafe { (library.get_device_list)(&mut count) };
        if list.is_null() {
            return match VerbsError::last("ibv_get_device_list", "listing RDMA devices") {
                // The kernel has no such thing loaded.
                VerbsError::Call { errno: libc::ENOSYS, .. } => Ok(Vec::new()),
                error => Err(error),
            };
        }
        let mut opened = Vec::new();
        let mut failed = None;
        for index in 0..usize::try_from(count).unwrap_or(0) {
            // SAFETY: the list has `count` entries and has not been freed.
            let raw = unsafe { *list.add(index) };
            // SAFETY: a device of the list; its name ends with a zero.
            let name = unsafe { CStr::from_ptr((library.get_device_name)(raw)) };
            let name = name.to_string_lossy().into_owned();
            // SAFETY: a device of the list, which has not been freed.
            match NonNull::new(unsafe { (library.open_device)(raw) }) {
                Some(raw) => match Self::new(raw, library, name) {
                    Ok(device) => opened.push(Arc::new(device)),
                    Err(error) => failed = Some(error),
                },
                None => {
                    failed = Some(VerbsError::last("ibv_open_device", format!("opening {name}")))
                }
            }
        }
        // SAFETY: the list came from get_device_list and is freed once; open devices survive it.
        unsafe { (library.free_device_list)(list) };
        match failed {
            Some(error) if opened.is_empty() => Err(error),
            _ => Ok(opened),
        }
    }

    fn new(raw: NonNull<ibv_context>, library: &'static Library, name: String) -> Result<Self> {
        // SAFETY: zeroes are a value of the structure.
        let limits = unsafe { MaybeUninit::zeroed().assume_init() };
        let mut device = Self { raw, library, name, limits };
        // SAFETY: an open context, and a place for the answer.
        let errno = unsafe { (library.query_device)(raw.as_ptr(), &mut device.limits) };
        device.checked("ibv_query_device", errno, "asking a device what it can do")?;
        Ok(device)
    }

    /// Its name, such as `mlx5_0`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it sits on a bus, rather than being a program of the kernel: soft-RoCE, soft-iWARP.
    pub fn is_hardware(&self) -> bool {
        Path::new(&format!("/sys/class/infiniband/{}/device", self.name)).exists()
    }

    /// Whether it speaks iWARP, whose connections only librdmacm can make.
    pub fn is_iwarp(&self) -> bool {
        let kind =
            std::fs::read_to_string(format!("/sys/class/infiniband/{}/node_type", self.name));
        kind.is_ok_and(|kind| kind.contains("RNIC"))
    }

    /// How many reads and atomic operations a connection may have on their way at once.
    pub fn reads_max(&self) -> u8 {
        u8::try_from(self.limits.max_qp_rd_atom.clamp(0, 255)).expect("clamped")
    }

    /// Whether it has atomic operations on memory.
    pub fn has_atomics(&self) -> bool {
        self.limits.atomic_cap != 0
    }

    /// Its ports as they are now.
    ///
    /// # Errors
    ///
    /// When the device does not answer: it may have been removed.
    pub fn ports(&self) -> Result<Vec<PortState>> {
        (1..=self.limits.phys_port_cnt).map(|number| self.port(number)).collect()
    }

    /// What the cable at a port carries, in gigabits a second, if the kernel says so.
    pub fn rate_gbit(&self, port: u8) -> Option<f64> {
        let file = format!("/sys/class/infiniband/{}/ports/{port}/rate", self.name);
        let text = std::fs::read_to_string(file).ok()?;
        text.split_whitespace().next()?.parse().ok()
    }

    fn port(&self, number: u8) -> Result<PortState> {
        // SAFETY: zeroes are a value of the structure.
        let mut state: ibv_port_attr = unsafe { MaybeUninit::zeroed().assume_init() };
        // SAFETY: an open context, a port that it has, and a place for the answer.
        let errno = unsafe { (self.library.query_port)(self.raw.as_ptr(), number, &mut state) };
        self.checked("ibv_query_port", errno, &format!("asking about port {number}"))?;
        Ok(PortState {
            number,
            is_active: state.state == IBV_PORT_ACTIVE,
            mtu: u8::try_from(state.active_mtu.clamp(1, 5)).expect("clamped"),
            lid: state.lid,
            link_layer: match state.link_layer {
                IBV_LINK_LAYER_ETHERNET => LinkLayer::Ethernet,
                _ => LinkLayer::InfiniBand,
            },
            gids: u32::try_from(state.gid_tbl_len).unwrap_or(0),
        })
    }

    /// Turn a code that is an error number into a result.
    pub(crate) fn checked(&self, call: &'static str, errno: i32, what: &str) -> Result<()> {
        if errno == 0 {
            return Ok(());
        }
        // Some providers return the number negated, or -1 and leave it in `errno`.
        let what = format!("{what} ({})", self.name);
        if errno == -1 {
            return Err(VerbsError::last(call, what));
        }
        Err(VerbsError::Call { call, errno: errno.abs(), what })
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: everything made from the context holds this value, so nothing is left of it.
        let _closed = unsafe { (self.library.close_device)(self.raw.as_ptr()) };
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// What memory and queues must share to work together.
pub struct ProtectionDomain {
    pub(crate) raw: NonNull<ibv_pd>,
    pub(crate) device: Arc<Device>,
}

// SAFETY: libibverbs may be called from any thread with the same domain.
unsafe impl Send for ProtectionDomain {}
// SAFETY: as above.
unsafe impl Sync for ProtectionDomain {}

impl ProtectionDomain {
    /// A new one.
    ///
    /// # Errors
    ///
    /// When the device refuses.
    pub fn new(device: &Arc<Device>) -> Result<Arc<Self>> {
        // SAFETY: an open context.
        let raw = NonNull::new(unsafe { (device.library.alloc_pd)(device.raw.as_ptr()) });
        let raw = raw.ok_or_else(|| VerbsError::last("ibv_alloc_pd", device.name()))?;
        Ok(Arc::new(Self { raw, device: Arc::clone(device) }))
    }

    /// The device that it belongs to.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }
}

impl Drop for ProtectionDomain {
    fn drop(&mut self) {
        // SAFETY: memory and queues of the domain hold it, so none is left.
        let _freed = unsafe { (self.device.library.dealloc_pd)(self.raw.as_ptr()) };
    }
}
