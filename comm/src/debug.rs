//! What handles show of themselves to programmers who print what holds them: whose they are, never
//! the memory, and nothing that would have to be waited for.

use std::fmt::{Debug, Formatter, Result};

use crate::device::{DeviceGroup, DeviceWindow, DeviceWork};
use crate::{Buffers, Communicator, Element, Owned, Scope, Window, Work};

impl Debug for Communicator {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let mut shown = f.debug_struct("Communicator");
        shown.field("rank", &self.rank()).field("size", &self.size()).finish_non_exhaustive()
    }
}

impl Debug for Window {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let mut shown = f.debug_struct("Window");
        shown.field("rank", &self.rank()).field("size", &self.size()).finish_non_exhaustive()
    }
}

impl Debug for Work<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("Work").field("is_done", &self.is_done()).finish_non_exhaustive()
    }
}

impl<T: Element> Debug for Owned<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("Owned").field("is_done", &self.is_done()).finish_non_exhaustive()
    }
}

impl Debug for Scope<'_, '_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("Scope").finish_non_exhaustive()
    }
}

impl Debug for Buffers<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Self::OutOfPlace { input, output } => {
                let mut shown = f.debug_struct("OutOfPlace");
                shown.field("input_bytes", &input.len()).field("output_bytes", &output.len());
                shown.finish_non_exhaustive()
            }
            Self::InPlace(buffer) => {
                f.debug_struct("InPlace").field("bytes", &buffer.len()).finish_non_exhaustive()
            }
        }
    }
}

impl Debug for DeviceGroup {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("DeviceGroup").field("way", &self.way()).finish_non_exhaustive()
    }
}

impl Debug for DeviceWindow {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("DeviceWindow").finish_non_exhaustive()
    }
}

impl Debug for DeviceWork {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("DeviceWork").finish_non_exhaustive()
    }
}
