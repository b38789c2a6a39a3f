//! Registered memory. For the transports behind us it needs no preparation; it is remembered so
//! that nothing outside of what was registered is ever read or written.

use std::ffi::c_int;

use brigade_transports::plugin::sys::PTR_HOST;

use crate::fault::{Fault, Outcome};

/// The most registrations of one connection.
const REGIONS_MAX: usize = 1 << 16;
const MAGIC: usize = 0xB7 << 56;

/// The registrations of a connection.
#[derive(Default)]
pub(crate) struct Regions {
    places: Vec<Option<Region>>,
    free: Vec<usize>,
    made: u32,
}

#[derive(Clone, Copy)]
struct Region {
    address: usize,
    bytes: usize,
    tag: u32,
}

impl Regions {
    /// Remember memory; the number that stands for it.
    pub(crate) fn register(&mut self, address: usize, bytes: usize, kind: c_int) -> Outcome<usize> {
        if kind != PTR_HOST {
            return Err(Fault::usage(format!(
                "memory of kind {kind} cannot be registered: only the host's (1) is supported"
            )));
        }
        if address == 0 && bytes > 0 || address.checked_add(bytes).is_none() {
            return Err(Fault::argument(format!("no memory has {bytes} bytes at {address:#x}")));
        }
        let place = match self.free.pop() {
            Some(place) => place,
            None if self.places.len() < REGIONS_MAX => {
                self.places.push(None);
                self.places.len() - 1
            }
            None => return Err(Fault::usage(format!("{REGIONS_MAX} registrations are alive"))),
        };
        self.made = self.made.wrapping_add(1);
        self.places[place] = Some(Region { address, bytes, tag: self.made });
        Ok(MAGIC | (self.made as usize & 0xFF_FFFF) << 16 | place)
    }

    /// Forget a registration.
    pub(crate) fn forget(&mut self, handle: usize) -> Outcome {
        self.find(handle)?;
        let place = handle & 0xFFFF;
        self.places[place] = None;
        self.free.push(place);
        Ok(())
    }

    /// Refuse bytes that do not lie within what the handle stands for.
    pub(crate) fn check(&self, handle: usize, address: usize, bytes: usize) -> Outcome {
        if bytes == 0 {
            return Ok(());
        }
        let region = self.find(handle)?;
        let is_within = address
            .checked_sub(region.address)
            .is_some_and(|offset| offset.checked_add(bytes).is_some_and(|end| end <= region.bytes));
        if is_within {
            return Ok(());
        }
        Err(Fault::argument(format!(
            "{bytes} bytes at {address:#x} are not within the {} that were registered at {:#x}",
            region.bytes, region.address
        )))
    }

    fn find(&self, handle: usize) -> Outcome<Region> {
        let region = self.places.get(handle & 0xFFFF).copied().flatten();
        let is_it = |it: &Region| handle & !0xFFFF == MAGIC | (it.tag as usize & 0xFF_FFFF) << 16;
        region.filter(is_it).ok_or_else(|| {
            Fault::argument(format!("{handle:#x} is no registration of this connection"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_lies_within_a_registration_passes() {
        let mut regions = Regions::default();
        let handle = regions.register(1000, 100, PTR_HOST).unwrap();
        for (address, bytes, passes) in [
            (1000, 100, true),
            (1099, 1, true),
            (1099, 2, false),
            (999, 1, false),
            (1000, usize::MAX, false),
            (usize::MAX, 2, false),
            (5, 0, true),
        ] {
            assert_eq!(regions.check(handle, address, bytes).is_ok(), passes, "{address} {bytes}");
        }
    }

    #[test]
    fn handles_end_once_and_are_not_mixed_up() {
        let mut regions = Regions::default();
        let first = regions.register(1000, 100, PTR_HOST).unwrap();
        regions.forget(first).unwrap();
        let second = regions.register(1000, 100, PTR_HOST).unwrap();
        assert!(first != second && regions.forget(first).is_err());
        for hostile in [0, 1, usize::MAX, second ^ 1, second ^ 1 << 20, second ^ 1 << 60] {
            assert!(regions.check(hostile, 1000, 1).is_err(), "{hostile:#x}");
        }
        assert!(regions.register(1000, 100, 2).is_err());
        assert!(regions.register(usize::MAX, 2, PTR_HOST).is_err());
    }
}
