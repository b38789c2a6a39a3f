//! The devices that this process may use.

use std::ffi::{c_char, c_int};

use crate::sys::{
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
    CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED,
    CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
    CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE,
    CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
    CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED, CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK,
    CUdevice, CUuuid,
};
use crate::{Cuda, Result};

/// A device, and what was read about it once.
#[derive(Clone, Debug)]
pub struct Device {
    /// The driver that it was found with.
    pub cuda: Cuda,
    /// Its number in this process; `CUDA_VISIBLE_DEVICES` changes it.
    pub ordinal: u32,
    /// What the maker calls it.
    pub name: String,
    /// The same in every process and after every start.
    pub uuid: [u8; 16],
    /// Its compute capability as one number: 90 is 9.0.
    pub sm: u32,
    /// Bytes of memory.
    pub memory_bytes: usize,
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Bytes of the second cache, which every multiprocessor reads through.
    pub l2_bytes: usize,
    /// Where it sits, as `lspci` writes it: domain:bus:device.function.
    pub pci: String,
    /// Whether blocks of one launch may wait for each other.
    pub has_cooperative_launch: bool,
    /// Whether memory can be allocated in the order of a stream.
    pub has_pools: bool,
    /// Whether memory can be handed to another process as a file descriptor.
    pub has_shareable: bool,
    /// Whether a network card can be handed its memory (dmabuf).
    pub has_dmabuf: bool,
    /// Whether memory of the process can be pinned where it lies.
    pub has_host_register: bool,
    pub(crate) raw: CUdevice,
}

/// How one device reaches another's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerLink {
    /// Whether it can at all, without the host's memory in between.
    pub reaches: bool,
    /// Whether atomic operations work across (NVLink; not PCIe).
    pub has_atomics: bool,
    /// The driver's rank of such links: 0 is the fastest of this machine.
    pub rank: u32,
}

impl Device {
    pub(crate) fn new(cuda: Cuda, ordinal: u32) -> Result<Self> {
        let mut raw = 0;
        // SAFETY: the pointer is to a number that outlives the call.
        unsafe { cuda.driver.device_get(&mut raw, ordinal as c_int) }.ok("looking up a device")?;
        let mut memory_bytes = 0;
        // SAFETY: as above.
        unsafe { cuda.driver.device_total_mem(&mut memory_bytes, raw) }
            .ok("asking for a device's memory")?;
        let mut uuid = CUuuid { bytes: [0; 16] };
        // SAFETY: as above.
        unsafe { cuda.driver.device_get_uuid(&mut uuid, raw) }.ok("asking for a device's id")?;
        let attribute = |attribute| -> Result<u32> {
            let mut value = 0;
            // SAFETY: as above.
            unsafe { cuda.driver.device_get_attribute(&mut value, attribute, raw) }
                .ok(format_args!("asking for attribute {attribute} of a device"))?;
            Ok(value.max(0) as u32)
        };
        // Newer questions are not known to older drivers; the answer to them is no.
        let has = |which| attribute(which).unwrap_or(0) != 0;
        Ok(Self {
            cuda,
            ordinal,
            name: text(|buffer, bytes| {
                // SAFETY: the buffer has this many bytes.
                unsafe { cuda.driver.device_get_name(buffer, bytes, raw) }.ok("naming a device")
            })?,
            uuid: uuid.bytes,
            sm: 10 * attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?
                + attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
            memory_bytes,
            multiprocessors: attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            l2_bytes: attribute(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)? as usize,
            pci: text(|buffer, bytes| {
                // SAFETY: the buffer has this many bytes.
                unsafe { cuda.driver.device_get_pci_bus_id(buffer, bytes, raw) }
                    .ok("asking where a device sits")
            })?,
            has_cooperative_launch: has(CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH),
            has_pools: has(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED),
            has_shareable: has(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED),
            has_dmabuf: has(CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED),
            has_host_register: has(CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED),
            raw,
        })
    }

    /// How this device reaches the memory of `peer`. A device reaches its own, with atomics.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn link_to(&self, peer: &Device) -> Result<PeerLink> {
        if self.uuid == peer.uuid {
            return Ok(PeerLink { reaches: true, has_atomics: true, rank: 0 });
        }
        let mut reaches = 0;
        // SAFETY: the pointer is to a number that outlives the call.
        unsafe { self.cuda.driver.device_can_access_peer(&mut reaches, self.raw, peer.raw) }
            .ok("asking whether devices reach each other")?;
        let attribute = |which| -> Result<u32> {
            let mut value = 0;
            let (driver, from, to) = (self.cuda.driver, self.raw, peer.raw);
            // SAFETY: as above.
            unsafe { driver.device_get_p2p_attribute(&mut value, which, from, to) }
                .ok("asking how devices reach each other")?;
            Ok(value.max(0) as u32)
        };
        Ok(PeerLink {
            reaches: reaches != 0,
            has_atomics: attribute(CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED)? != 0,
            rank: attribute(CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK)?,
        })
    }

    /// The name of its architecture, as compilers want it: `sm_90`.
    pub fn arch(&self) -> String {
        format!("sm_{}", self.sm)
    }
}

/// What a function that fills a buffer with a C string wrote.
fn text(fill: impl FnOnce(*mut c_char, c_int) -> Result<()>) -> Result<String> {
    let mut bytes = [0_u8; 256];
    fill(bytes.as_mut_ptr().cast(), bytes.len() as c_int - 1)?;
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    Ok(String::from_utf8_lossy(&bytes[..end]).into_owned())
}
