//! A checkpoint of which any numbers are read without the rest.

use super::{HEADER, Header, strange};
use crate::error::Error;
use crate::intake;
use crate::layout::Layout;
use crate::state::Array;
use safetensors::tensor::{Dtype, Metadata};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// The longest header that is read. \[bytes\]
const HEADER_BYTES: u64 = 100_000_000;

/// An open checkpoint of a model.
pub(crate) struct Reader<'l> {
    layout: &'l Layout,
    path: PathBuf,
    file: File,
    /// What it says of itself.
    pub(crate) header: Header,
    /// Where each tensor of each array begins. \[bytes\]
    places: [Vec<u64>; 3],
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
        let header = Header::parse(header?, path)?;
        header.require(layout.config(), path)?;
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
        Ok(Reader { layout, path: path.to_owned(), file, header, places })
    }

    /// Numbers of an array, from one of them on.
    ///
    /// Errors: `File`; `Checkpoint` for numbers that no run comes to.
    pub(crate) fn read(
        &mut self,
        array: Array,
        first: usize,
        values: &mut [f32],
    ) -> Result<(), Error> {
        let end = first + values.len();
        for (tensor, place) in self.layout.tensors().iter().zip(&self.places[array as usize]) {
            let (from, to) = (tensor.range.start.max(first), tensor.range.end.min(end));
            if from >= to {
                continue;
            }
            let place = place + 4 * (from - tensor.range.start) as u64;
            let mut bytes = vec![0; 4 * (to - from)];
            let found = self.file.seek(SeekFrom::Start(place));
            let read = found.and_then(|_| self.file.read_exact(&mut bytes));
            read.map_err(Error::file("read", &self.path))?;
            let places = values[from - first..].iter_mut();
            for (value, bytes) in places.zip(bytes.as_chunks::<4>().0) {
                *value = f32::from_le_bytes(*bytes);
            }
            let values = &values[from - first..to - first];
            if let Some(strange) = strange(array, values) {
                let (prefix, name) = (array.prefix(), &tensor.name);
                let problem = format!("damaged: {prefix}{name} has {strange:?}");
                return Err(Error::checkpoint(&self.path, problem));
            }
        }
        Ok(())
    }
}
