//! A checkpoint that comes into being piece by piece: nobody has all of it in memory.

use super::header::{HEADER, Header};
use super::read::HEADER_BYTES;
use super::sums::{Piece, Sums, seal};
use crate::error::Error;
use crate::layout::Layout;
use crate::state::Array;
use brigade_offload::storage::Partial;
use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use std::collections::HashMap;
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// A file that becomes a checkpoint when it has all numbers.
pub(crate) struct Writer<'l> {
    layout: &'l Layout,
    path: PathBuf,
    file: Partial,
    header: Header,
    /// Everything that the format itself says, and how long that is. \[bytes\]
    infos: Vec<(String, TensorInfo)>,
    text_bytes: usize,
    sums: Sums,
    /// Where each tensor of each array begins. \[bytes\]
    places: [Vec<u64>; 3],
}

impl<'l> Writer<'l> {
    /// Parameters under their own names, moments under `adam.m/` and `adam.v/`; all of them zeros
    /// until they come.
    ///
    /// Errors: `File` if it cannot be written, `Checkpoint` if the header would be too long.
    pub(crate) fn create(
        path: &Path,
        layout: &'l Layout,
        header: &Header,
    ) -> Result<Writer<'l>, Error> {
        let tensors = layout.tensors();
        let name =
            |array: Array, tensor: usize| format!("{}{}", array.prefix(), tensors[tensor].name);
        let all = Array::ALL
            .into_iter()
            .flat_map(|array| (0..tensors.len()).map(move |tensor| (array, tensor)));
        let mut all: Vec<_> = all.map(|(array, at)| (name(array, at), array, at)).collect();
        // The order that the format's own writer has for tensors of one type.
        all.sort_by(|(name, ..), (other, ..)| name.cmp(other));
        let mut places = [(); 3].map(|()| vec![0; tensors.len()]);
        let (mut end, mut infos) = (0, Vec::new());
        for (name, array, at) in all {
            let (first, shape) = (end, tensors[at].shape.clone());
            places[array as usize][at] = first as u64;
            end += 4 * tensors[at].range.len();
            let info = TensorInfo { dtype: Dtype::F32, shape, data_offsets: (first, end) };
            infos.push((name, info));
        }
        let sums = Sums::of_zeros(layout);
        let text = text(path, header, &sums, &infos)?;
        let start = 8 + text.len() as u64;
        places.iter_mut().flatten().for_each(|place| *place += start);
        let failed = Error::file("write", path);
        let file = Partial::create(path).map_err(failed)?;
        let (path, header, text_bytes) = (path.to_owned(), header.clone(), text.len());
        let writer = Writer { layout, path, file, header, infos, text_bytes, sums, places };
        writer.file(|mut file| {
            file.set_len(start + end as u64)?;
            file.write_all(&(text.len() as u64).to_le_bytes())?;
            file.write_all(&text)
        })?;
        Ok(writer)
    }

    /// Numbers of an array, from one of them on; each comes once.
    ///
    /// Errors: `File`; `Checkpoint` for what is no number any more, which would take the place of
    /// what another run could go on from.
    pub(crate) fn put(&mut self, array: Array, first: usize, values: &[f32]) -> Result<(), Error> {
        let end = first + values.len();
        let layout = self.layout;
        for (at, tensor) in layout.tensors().iter().enumerate() {
            let (from, to) = (tensor.range.start.max(first), tensor.range.end.min(end));
            if from < to {
                let (inside, whole) = (4 * (from - tensor.range.start), 4 * tensor.range.len());
                let place = self.places[array as usize][at] + inside as u64;
                let values = &values[from - first..to - first];
                if let Some(lost) = values.iter().find(|value| !value.is_finite()) {
                    let problem = format!(
                        "{}{} would be {lost}: try a smaller --lr; what was there before still is",
                        array.prefix(),
                        tensor.name
                    );
                    return Err(Error::checkpoint(&self.path, problem));
                }
                let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
                self.file(|mut file| {
                    file.seek(SeekFrom::Start(place))?;
                    file.write_all(&bytes)
                })?;
                self.sums.put((array, at), whole, Piece { first: inside, bytes: &bytes });
            }
        }
        Ok(())
    }

    /// It has all of them: have it reach the disk, with the checksums, then take its name.
    pub(crate) fn finish(self) -> Result<(), Error> {
        let text = text(&self.path, &self.header, &self.sums, &self.infos)?;
        assert_eq!(text.len(), self.text_bytes, "sums are as long whatever they are");
        self.file(|mut file| {
            file.seek(SeekFrom::Start(8))?;
            file.write_all(&text)
        })?;
        self.file.finish().map_err(Error::file("write", &self.path))
    }

    fn file(&self, act: impl FnOnce(&File) -> std::io::Result<()>) -> Result<(), Error> {
        act(self.file.file()).map_err(Error::file("write", &self.path))
    }
}

/// What the file begins with, after the length of that.
fn text(
    path: &Path,
    header: &Header,
    sums: &Sums,
    infos: &[(String, TensorInfo)],
) -> Result<Vec<u8>, Error> {
    let metadata = HashMap::from([(HEADER.to_string(), seal(header.clone(), sums))]);
    let metadata = Metadata::new(Some(metadata), infos.to_vec());
    let metadata = metadata.map_err(|problem| Error::checkpoint(path, problem))?;
    let mut text = serde_json::to_vec(&metadata).expect("metadata is names and numbers");
    text.resize(text.len().next_multiple_of(8), b' ');
    if text.len() as u64 > HEADER_BYTES {
        let problem = format!("its header would have {} bytes, of {HEADER_BYTES}", text.len());
        return Err(Error::checkpoint(path, problem));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::Course;
    use crate::layout::Config;
    use safetensors::tensor::{SafeTensors, TensorView, serialize};

    #[test]
    fn pieces_in_any_order_are_the_file_that_the_format_s_own_writer_makes() {
        let config =
            Config { vocab: 7, context: 5, layers: 2, heads: 2, width: 4, experts: 0, top: 0 };
        let layout = Layout::new(config);
        let header = Header { step: 3, config, course: Course::new(), loss_scale: None };
        let values: Vec<f32> = (0..layout.len()).map(|i| (i as f32 * 0.7).sin()).collect();
        let path = std::env::temp_dir().join(format!("brigade-pieces-{}", std::process::id()));
        let mut writer = Writer::create(&path, &layout, &header).unwrap();
        for part in [4, 1, 0, 3, 2] {
            let edge = |part: usize| layout.len() * part / 5;
            for array in Array::ALL {
                writer.put(array, edge(part), &values[edge(part)..edge(part + 1)]).unwrap();
            }
        }
        writer.finish().unwrap();
        let bytes = std::fs::read(&path);
        std::fs::remove_file(&path).unwrap();
        let little: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let pairs = Array::ALL.into_iter().flat_map(|array| {
            layout.tensors().iter().map(move |it| (format!("{}{}", array.prefix(), it.name), it))
        });
        let views = pairs.map(|(name, tensor)| {
            let bytes = &little[4 * tensor.range.start..4 * tensor.range.end];
            (name, TensorView::new(Dtype::F32, tensor.shape.clone(), bytes).unwrap())
        });
        let mut sums = Sums::of_zeros(&layout);
        for (at, tensor) in layout.tensors().iter().enumerate() {
            let bytes = &little[4 * tensor.range.start..4 * tensor.range.end];
            let put = |array| sums.put((array, at), bytes.len(), Piece { first: 0, bytes });
            Array::ALL.into_iter().for_each(put);
        }
        let metadata = HashMap::from([(HEADER.to_string(), seal(header, &sums))]);
        let want = serialize(views, Some(metadata)).unwrap();
        SafeTensors::deserialize(&want).unwrap();
        assert!(bytes.unwrap() == want, "the same bytes");
    }

    #[test]
    fn what_is_not_finished_or_no_number_is_gone() {
        let config =
            Config { vocab: 7, context: 5, layers: 1, heads: 1, width: 4, experts: 0, top: 0 };
        let layout = Layout::new(config);
        let header = Header { step: 3, config, course: Course::new(), loss_scale: None };
        let folder =
            std::env::temp_dir().join(format!("brigade-unfinished-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let path = folder.join("checkpoint");
        let mut writer = Writer::create(&path, &layout, &header).unwrap();
        writer.put(Array::Params, 0, &[1.0]).unwrap();
        drop(writer);
        for lost in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut writer = Writer::create(&path, &layout, &header).unwrap();
            let refused = writer.put(Array::Square, 7 * 4, &[1.0, lost]).unwrap_err().to_string();
            assert!(refused.contains("adam.v/wpe would be "), "{refused}");
        }
        // Fails if there is anything in it.
        std::fs::remove_dir(&folder).unwrap();
    }
}
