//! Where memory lies: asked of the driver, which knows only what it allocated or pinned.

use std::ffi::{c_uint, c_void};
use std::ptr;

use crate::sys::{
    CU_MEM_ACCESS_FLAGS_PROT_READWRITE, CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_HOST,
    CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
    CU_POINTER_ATTRIBUTE_IS_MANAGED, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
    CU_POINTER_ATTRIBUTE_RANGE_SIZE, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
};
use crate::{Context, Cuda, Result};

/// A number that no other allocation of the process has, before or after.
const CU_POINTER_ATTRIBUTE_BUFFER_ID: c_uint = 7;

/// What kind of memory an address is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Ordinary memory of the host.
    Host,
    /// Memory of the host that devices reach.
    Pinned,
    /// Memory of the device with this number.
    Device(u32),
    /// Memory that moves between host and devices by itself.
    Managed,
}

/// A place, and the allocation around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Whereabouts {
    /// What kind of memory it is.
    pub place: Place,
    /// Where the allocation begins. Of ordinary memory, the address that was asked about.
    pub start: u64,
    /// Bytes of the allocation. Of ordinary memory none, since the driver does not know it: the
    /// next address may be anything.
    pub bytes: usize,
    /// A number that no other allocation of this process has, also when this one is freed and
    /// another lies at its address. Of ordinary memory, zero.
    pub id: u64,
}

impl Whereabouts {
    /// Whether it is a device's alone.
    pub fn is_on_device(&self) -> bool {
        matches!(self.place, Place::Device(_))
    }
}

impl Cuda {
    /// Where the memory at `address` lies. Costs some 100 ns; the answer holds for the whole
    /// allocation for as long as it lives, so callers keep it by range.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn where_is(self, address: u64) -> Result<Whereabouts> {
        let mut kind = 0_u32;
        let mut is_managed = 0_u32;
        let mut ordinal = -1_i32;
        let mut start = 0_u64;
        let mut bytes = 0_usize;
        let mut id = 0_u64;
        let mut attributes = [
            CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
            CU_POINTER_ATTRIBUTE_IS_MANAGED,
            CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
            CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
            CU_POINTER_ATTRIBUTE_RANGE_SIZE,
            CU_POINTER_ATTRIBUTE_BUFFER_ID,
        ];
        let mut values: [*mut c_void; 6] = [
            ptr::from_mut(&mut kind).cast(),
            ptr::from_mut(&mut is_managed).cast(),
            ptr::from_mut(&mut ordinal).cast(),
            ptr::from_mut(&mut start).cast(),
            ptr::from_mut(&mut bytes).cast(),
            ptr::from_mut(&mut id).cast(),
        ];
        let count = attributes.len() as u32;
        let (attributes, values) = (attributes.as_mut_ptr(), values.as_mut_ptr());
        // SAFETY: both arrays have `count` entries, and each value is of its attribute's type.
        unsafe { self.driver.pointer_get_attributes(count, attributes, values, address) }
            .ok("asking where memory lies")?;
        // A managed flag is a bool of C: only its first byte is written.
        let place = match kind {
            _ if is_managed & 0xff != 0 => Place::Managed,
            CU_MEMORYTYPE_HOST => Place::Pinned,
            CU_MEMORYTYPE_DEVICE => Place::Device(ordinal.max(0) as u32),
            _ => Place::Host,
        };
        match place {
            Place::Host => Ok(Whereabouts { place, start: address, bytes: 0, id: 0 }),
            _ => Ok(Whereabouts { place, start, bytes, id }),
        }
    }
}

impl Context {
    /// Whether kernels of this device read and write the memory at `address`, which may be of
    /// another one. That devices reach each other ([`Context::reach`]) opens what `cuMemAlloc`
    /// gives; memory of pools, and what is mapped, is opened to each device by itself. Costs some
    /// 100 ns. Drivers that do not know the question say no of all memory.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn accesses(&self, address: u64) -> Result<bool> {
        let _here = self.enter()?;
        let mut attribute = CU_POINTER_ATTRIBUTE_ACCESS_FLAGS;
        // Whatever the width of a driver's answer, the first bytes are the number.
        let mut flags = 0_u64;
        let mut value = ptr::from_mut(&mut flags).cast();
        // SAFETY: one attribute, and room for its value.
        unsafe { self.driver().pointer_get_attributes(1, &mut attribute, &mut value, address) }
            .ok("asking who reaches memory")?;
        Ok(flags as u32 == CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
    }
}
