//! A checkpoint of which any numbers are read without the rest.

use super::header::{HEADER, Header, strange};
use super::sums::{BLOCK_BYTES, Sums, damaged, unseal};
use crate::error::Error;
use crate::intake;
use crate::layout::Layout;
use crate::state::Array;
use brigade_offload::layout::checksum;
use safetensors::tensor::{Dtype, Metadata};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// The longest header that is read. \[bytes\]
pub(super) const HEADER_BYTES: u64 = 100_000_000;

/// An open checkpoint of a model.
pub(crate) struct Reader<'l> {
    layout: &'l Layout,
    path: PathBuf,
    file: File,
    /// What it says of itself.
    pub(crate) header: Header,
    /// Files of the first format have none.
    sums: Option<Sums>,
    /// Where each tensor of each array begins. \[bytes\]
    places: [Vec<u64>; 3],
    /// The block that was read last, and which that is: array, tensor, number.
    block: (Vec<u8>, Option<(Array, usize, usize)>),
}

impl<'l> Reader<'l> {
    /// Everything but the numbers is read and checked.
    ///
    /// Errors: `File` if it cannot be read, `Checkpoint` if it is damaged or of another model.
    pub(crate) fn open(path: &Path, layout: &'l Layout) -> Result<Reader<'l>, Error> {
        let failed = || Error::file("read", path);
        let wrong = |problem: String| Error::checkpoint(path, problem);
        let damaged = |what: &dyn std::fmt::Display| {
            wrong(format!("damaged, cut short or no safetensors file: {what}"))
        };
        let mut file = intake::open(path).map_err(failed())?;
        let len = file.metadata().map_err(failed())?.len();
        if len < 8 {
            return Err(damaged(&format_args!("it has {len} bytes")));
        }
        let mut size = [0; 8];
        file.read_exact(&mut size).map_err(|e| damaged(&e))?;
        let size = u64::from_le_bytes(size);
        if size > HEADER_BYTES.min(len.saturating_sub(8)) {
            return Err(damaged(&"its header is too long"));
        }
        let mut text = vec![0; size as usize];
        file.read_exact(&mut text).map_err(|e| damaged(&e))?;
        let metadata: Metadata = serde_json::from_slice(&text).map_err(|e| damaged(&e))?;
        if metadata.data_len() as u64 != len - 8 - size {
            return Err(damaged(&"its tensors have other lengths"));
        }
        let header = metadata.metadata().as_ref().and_then(|fields| fields.get(HEADER));
        let header = header.ok_or_else(|| wrong("was not written by `brigade train`".to_string()));
        let (header, sums) = unseal(header?, path, layout)?;
        let mut places = [(); 3].map(|()| Vec::new());
        for (array, places) in Array::ALL.into_iter().zip(&mut places) {
            for tensor in layout.tensors() {
                let name = format!("{}{}", array.prefix(), tensor.name);
                let info = metadata.info(&name).ok_or_else(|| wrong(format!("has no {name}")))?;
                let (dtype, shape, want) = (info.dtype, &info.shape, &tensor.shape);
                if dtype != Dtype::F32 || shape != want {
                    return Err(wrong(format!("{name} is {dtype:?} {shape:?}, want {want:?}")));
                }
                places.push(8 + size + info.data_offsets.0 as u64);
            }
        }
        let (path, block) = (path.to_owned(), (Vec::new(), None));
        Ok(Reader { layout, path, file, header, sums, places, block })
    }

    /// Whether it has checksums: then no number is read that was not written.
    pub(crate) fn is_checked(&self) -> bool {
        self.sums.is_some()
    }

    /// Numbers of an array, from one of them on.
    ///
    /// Errors: `File`; `Checkpoint` for what is not what was written, and for numbers that no run
    /// comes to.
    pub(crate) fn read(
        &mut self,
        array: Array,
        first: usize,
        values: &mut [f32],
    ) -> Result<(), Error> {
        let (layout, end) = (self.layout, first + values.len());
        for (at, tensor) in layout.tensors().iter().enumerate() {
            let (from, to) = (tensor.range.start.max(first), tensor.range.end.min(end));
            if from >= to {
                continue;
            }
            let values = &mut values[from - first..to - first];
            let whole = 4 * tensor.range.len();
            let (mut byte, mut done) = (4 * (from - tensor.range.start), 0);
            while done < values.len() {
                let bytes =
                    &self.block(array, at, byte / BLOCK_BYTES, whole)?[byte % BLOCK_BYTES..];
                for (value, bytes) in values[done..].iter_mut().zip(bytes.as_chunks::<4>().0) {
                    *value = f32::from_le_bytes(*bytes);
                }
                (byte, done) = (byte + bytes.len(), done + bytes.len() / 4);
            }
            if let Some(strange) = strange(array, values) {
                let what = format!("{}{}", array.prefix(), tensor.name);
                return Err(damaged(&self.path, &what, &format!("has {strange:?}")));
            }
        }
        Ok(())
    }

    /// A block of a tensor of `whole` bytes, which is what was written if that can be told.
    fn block(
        &mut self,
        array: Array,
        at: usize,
        number: usize,
        whole: usize,
    ) -> Result<&[u8], Error> {
        let Reader { layout, path, file, sums, places, block: (room, last), .. } = self;
        if *last == Some((array, at, number)) {
            return Ok(room);
        }
        let first = number * BLOCK_BYTES;
        *last = None;
        room.resize(BLOCK_BYTES.min(whole - first), 0);
        let found = file.seek(SeekFrom::Start(places[array as usize][at] + first as u64));
        let read = found.and_then(|_| file.read_exact(room));
        read.map_err(Error::file("read", path))?;
        if sums.as_ref().is_some_and(|sums| sums.of(array, at, number) != checksum(room).0) {
            let what = format!("{}{}", array.prefix(), layout.tensors()[at].name);
            let how = "is not what was written: its checksum is another";
            return Err(damaged(path, &what, how));
        }
        *last = Some((array, at, number));
        Ok(room)
    }
}
