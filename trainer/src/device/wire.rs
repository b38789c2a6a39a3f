//! What crosses between the host and a device around a pass: text, parameters, gradients, losses.
//! Numbers are cast while they are put into pinned memory or taken out of it, which they pass
//! through anyway, so that bf16 and f16 cross as 16 bits.
//!
//! Views here are of memory that their owner keeps for as long as this: see `DeviceGpt`.

use super::text::Text;
use crate::error::Error;
use crate::kernels::cuda::{ProductFormat, View};
use brigade_cuda::{Context, Event, Pinned, Stream};
use brigade_offload::device::{Download, Upload};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use rayon::prelude::*;

/// Numbers that a thread casts at a time.
const NUMBERS: usize = 1 << 15;
/// Bytes of each pinned slot up.
const SLOT_BYTES: usize = 4 << 20;

/// Both directions between host and device, beside the stream that computes.
pub(crate) struct Wire {
    up: Upload,
    down: Download,
    compute: Stream,
    /// Marks in `compute`: everything before it is done.
    computed: Event,
    /// Marks in `up`.
    sent: Event,
    /// What numbers of two bytes are.
    inside: ProductFormat,
}

impl Wire {
    /// Beside this stream; `down_bytes` is the most that comes down as one.
    pub(crate) fn new(compute: &Stream, down_bytes: usize) -> Result<Wire, Error> {
        let context = compute.context();
        Ok(Wire {
            up: Upload::new(context, 3, SLOT_BYTES)?,
            down: Download::new(context, 2, down_bytes.max(SLOT_BYTES))?,
            computed: Event::new(context)?,
            sent: Event::new(context)?,
            compute: compute.clone(),
            inside: ProductFormat::Bf16,
        })
    }

    /// The same where numbers of two bytes are not bf16 but such as these.
    pub(crate) fn of(self, inside: ProductFormat) -> Wire {
        Wire { inside, ..self }
    }

    /// Bytes of pinned memory.
    pub(crate) fn bytes(&self) -> u64 {
        (self.up.bytes() + self.down.bytes()) as u64
    }

    /// Numbers to the device, after all that was given to it so far and before what comes next.
    pub(crate) fn put(&mut self, to: View, from: &[f32]) -> Result<(), Error> {
        self.compute.record(&self.computed)?;
        self.up.stream().wait(&self.computed)?;
        self.upload(to, from)?;
        self.arrive()
    }

    /// Numbers to the device, once `free` has been reached and before what comes next there.
    pub(crate) fn send(&mut self, to: View, from: &[f32], free: &Event) -> Result<(), Error> {
        self.bring(to, from, free)?;
        self.arrive()
    }

    /// Numbers to the device, once `free` has been reached, beside what comes next, until they
    /// shall `arrive`.
    pub(crate) fn bring(&mut self, to: View, from: &[f32], free: &Event) -> Result<(), Error> {
        self.up.stream().wait(free)?;
        self.upload(to, from)
    }

    fn upload(&mut self, to: View, from: &[f32]) -> Result<(), Error> {
        assert_eq!(to.len(), from.len(), "as many numbers as there is room for");
        if from.is_empty() {
            return Ok(self.up.stream().record(&self.sent)?);
        }
        let inside = self.inside;
        let fill = |start: usize, slot: &mut [u8]| match to.size() {
            4 => {
                fill(bytemuck::cast_slice_mut(slot), &from[start / 4..], |to: &mut [f32], from| {
                    to.copy_from_slice(from);
                })
            }
            _ if inside == ProductFormat::F16 => {
                fill(bytemuck::cast_slice_mut(slot), &from[start / 2..], |to: &mut [f16], from| {
                    to.convert_from_f32_slice(from);
                })
            }
            _ => {
                fill(bytemuck::cast_slice_mut(slot), &from[start / 2..], |to: &mut [bf16], from| {
                    to.convert_from_f32_slice(from);
                })
            }
        };
        // SAFETY: nothing uses the view until `sent`, and nothing does since `free`, or what was
        // computed.
        unsafe { self.up.send(to.address(), to.bytes(), fill) }?;
        Ok(self.up.stream().record(&self.sent)?)
    }

    /// What is computed after this comes after what was brought before.
    pub(crate) fn arrive(&self) -> Result<(), Error> {
        Ok(self.compute.wait(&self.sent)?)
    }

    /// The text of a pass to the device.
    pub(crate) fn send_text(&mut self, to: View, text: &Text, free: &Event) -> Result<(), Error> {
        assert_eq!(to.len(), text.len(), "room for the text");
        self.up.stream().wait(free)?;
        let fill = |start: usize, slot: &mut [u8]| {
            let slot: &mut [u32] = bytemuck::cast_slice_mut(slot);
            let numbers = text.numbers().skip(start / 4);
            slot.iter_mut().zip(numbers).for_each(|(to, from)| *to = from);
        };
        // SAFETY: nothing uses the view until `sent`, and nothing does since `free`.
        unsafe { self.up.send(to.address(), to.bytes(), fill) }?;
        self.up.stream().record(&self.sent)?;
        self.arrive()
    }

    /// Have numbers on their way to the host, once all is computed that was asked for so far.
    pub(crate) fn fetch(&mut self, from: View) -> Result<(), Error> {
        self.compute.record(&self.computed)?;
        self.down.stream().wait(&self.computed)?;
        // SAFETY: the view's owner lets nothing overwrite it before it is taken.
        Ok(unsafe { self.down.begin(from.address(), from.bytes()) }?)
    }

    /// Wait for all that is on its way.
    pub(crate) fn settle(&self) -> Result<(), Error> {
        self.up.stream().synchronize()?;
        Ok(self.down.stream().synchronize()?)
    }

    /// Whether something must be taken before more is fetched.
    pub(crate) fn is_full(&self) -> bool {
        self.down.is_full()
    }

    /// Wait for what was fetched first, and take it; `size` is the bytes of each number there.
    pub(crate) fn take(&mut self, to: &mut [f32], size: usize) -> Result<(), Error> {
        let inside = self.inside;
        let see = |slot: &[u8]| match size {
            _ if size == 2 && inside == ProductFormat::F16 => {
                fill(to, bytemuck::cast_slice(slot), |to, from: &[f16]| {
                    from.convert_to_f32_slice(to);
                })
            }
            4 => fill(to, bytemuck::cast_slice(slot), |to, from| to.copy_from_slice(from)),
            _ => fill(to, bytemuck::cast_slice(slot), |to, from: &[bf16]| {
                from.convert_to_f32_slice(to);
            }),
        };
        Ok(self.down.finish(see)?)
    }

    /// Numbers to the host, waited for: a part is cast while the next comes down.
    pub(crate) fn read(&mut self, from: View, to: &mut [f32]) -> Result<(), Error> {
        assert_eq!(from.len(), to.len(), "as many numbers as there are");
        let numbers = SLOT_BYTES / 4;
        let part = |start: usize| from.part(start..from.len().min(start + numbers));
        if !to.is_empty() {
            self.fetch(part(0))?;
        }
        for (at, to) in to.chunks_mut(numbers).enumerate() {
            let next = (at + 1) * numbers;
            if next < from.len() {
                self.fetch(part(next))?;
            }
            self.take(to, from.size())?;
        }
        Ok(())
    }

    /// Whole numbers to the host, waited for.
    pub(crate) fn read_whole(&mut self, from: View, to: &mut [u32]) -> Result<(), Error> {
        assert_eq!(from.size(), 4, "they cross bit by bit");
        self.read(from, bytemuck::cast_slice_mut(to))
    }

    /// Whole numbers to the device, as `put`.
    pub(crate) fn put_whole(&mut self, to: View, from: &[u32]) -> Result<(), Error> {
        assert_eq!(to.size(), 4, "they cross bit by bit");
        self.put(to, bytemuck::cast_slice(from))
    }
}

/// Numbers of the host that kernels' results come to, a few bytes each.
pub(crate) struct Results {
    pinned: Pinned,
}

impl Results {
    /// Room for so many f64.
    pub(crate) fn new(context: &Context, count: usize) -> Result<Results, Error> {
        Ok(Results { pinned: Pinned::new(context, 8 * count)? })
    }

    /// Have a number on its way to its place, in this stream.
    pub(crate) fn fetch(&mut self, stream: &Stream, at: usize, from: View) -> Result<(), Error> {
        assert!(from.bytes() == 8 && 8 * at < self.pinned.bytes(), "result {at}: {from:?}");
        let target = self.pinned.as_mut_ptr() as u64 + 8 * at as u64;
        // SAFETY: the place is within ours, and read only after the stream was waited for.
        Ok(unsafe { stream.copy(target, from.address(), 8) }?)
    }

    /// Wait for this stream, and see all of them.
    pub(crate) fn take(&self, stream: &Stream, to: &mut [f64]) -> Result<(), Error> {
        stream.synchronize()?;
        to.copy_from_slice(&bytemuck::cast_slice(self.pinned.as_slice())[..to.len()]);
        Ok(())
    }
}

/// Cast the first numbers of `from` into `to`, on all threads.
fn fill<A: Sync, B: Send>(to: &mut [B], from: &[A], cast: impl Fn(&mut [B], &[A]) + Sync) {
    let from = &from[..to.len()];
    to.par_chunks_mut(NUMBERS).zip(from.par_chunks(NUMBERS)).for_each(|(to, from)| cast(to, from));
}
