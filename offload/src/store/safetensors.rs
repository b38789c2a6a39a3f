//! Checkpoints as safetensors, and back: a few blocks in memory, whatever the size of the state.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use safetensors::tensor::{Metadata, TensorInfo};

use super::carrier::Carrier;
use super::checkpoint::Checkpoint;
use super::error::StoreError;
use super::state::StateFile;
use crate::layout::{Directory, Dtype, Held, Placed, Tensor, pieces};
use crate::memory::Category;
use crate::storage::Partial;

/// As much of a tensor as is in memory at once. \[bytes\]
const CHUNK_BYTES: u64 = 4 << 20;
/// The longest header that the format's own reader takes. \[bytes\]
const HEADER_BYTES_MAX: u64 = 100_000_000;
/// The checkpoint's label, in the file's metadata.
const LABEL: &str = "brigade.label";
/// What the format calls what is no tensor.
const NOTES: &str = "__metadata__";

/// Write the whole tensors of a checkpoint into one file. It bears its name only once it is
/// complete.
pub fn export(checkpoint: &Checkpoint, path: &Path) -> Result<(), StoreError> {
    let foreign = |what: String| StoreError::Foreign { path: path.to_path_buf(), what };
    let io = |e: std::io::Error| foreign(e.to_string());
    let tensors = in_order(checkpoint);
    let header = header(checkpoint.label(), &tensors).map_err(foreign)?;
    let partial = Partial::create(path).map_err(io)?;
    let mut file = BufWriter::new(partial.file());
    file.write_all(&(header.len() as u64).to_le_bytes()).map_err(io)?;
    file.write_all(&header).map_err(io)?;
    let carrier = &checkpoint.state(0).shared.carrier;
    let mut buffer = carrier.buffer(CHUNK_BYTES, Category::Checkpoint)?;
    for tensor in &tensors {
        let size = tensor.dtype.bytes();
        let (all, step) = (tensor.count(), CHUNK_BYTES / size);
        for start in (0..all).step_by(step as usize) {
            let count = step.min(all - start);
            let (name, shape) = (tensor.name.as_str(), &tensor.shape);
            let part = Tensor::flat(name, tensor.dtype, shape, start, count);
            let target = &mut buffer[..(count * size) as usize];
            checkpoint.load(&part, target)?;
            file.write_all(target).map_err(io)?;
        }
    }
    file.into_inner().map_err(|e| io(e.into_error()))?;
    partial.finish().map_err(io)
}

/// Make a state of the tensors in a file. `share` gives the part of a whole tensor that this state
/// shall hold, so every rank can take its own out of one file.
///
/// Errors: the file is not what its header says, or the state cannot be written.
pub fn import(
    carrier: &Carrier,
    path: &Path,
    state: &[impl AsRef<Path>],
    block_bytes: u64,
    mut share: impl FnMut(Tensor) -> Option<Tensor>,
) -> Result<StateFile, StoreError> {
    let foreign = |what: String| StoreError::Foreign { path: path.to_path_buf(), what };
    // Opening a pipe would wait for whoever writes to it.
    match std::fs::metadata(path) {
        Ok(about) if !about.is_file() => return Err(foreign(String::from("this is no file"))),
        _ => {}
    }
    let file = File::open(path).map_err(|e| foreign(e.to_string()))?;
    let (begin, metadata) = read_header(&file).map_err(foreign)?;
    let label = metadata.metadata().as_ref().and_then(|notes| notes.get(LABEL)?.parse().ok());
    let stored = stored(&metadata, begin).map_err(foreign)?;
    let wanted = stored.iter().filter_map(|placed| share(placed.tensor.clone()));
    let directory = Directory::pack(wanted, 64)?;
    let mut state = StateFile::create(carrier, state, directory, block_bytes)?;
    let held: HashMap<&str, Held> = stored
        .iter()
        .map(|placed| (placed.tensor.name.as_str(), Held { source: 0, placed }))
        .collect();
    let mut current = None;
    state.save(label.unwrap_or(0), b"", |placed, from, target| {
        if current.as_ref().is_none_or(|(tensor, _)| *tensor != placed.tensor) {
            let held = held.get(placed.tensor.name.as_str()).copied();
            let held: Vec<Held> = held.into_iter().collect();
            current = Some((placed.tensor.clone(), pieces(&placed.tensor, &held)?));
        }
        let (_, pieces) = current.as_ref().expect("set the line above");
        let to = from + target.len() as u64;
        let first = pieces.partition_point(|piece| piece.target + piece.bytes <= from);
        for piece in pieces[first..].iter().take_while(|piece| piece.target < to) {
            let (begin, end) = (piece.target.max(from), (piece.target + piece.bytes).min(to));
            let at = piece.offset + (begin - piece.target);
            let part = &mut target[(begin - from) as usize..(end - from) as usize];
            let wanted = part.len();
            file.read_exact_at(part, at)
                .map_err(|e| foreign(format!("{wanted} bytes at offset {at}: {e}")))?;
        }
        Ok(())
    })?;
    Ok(state)
}

/// Whole tensors, the widest types first, so that every one of them is aligned.
fn in_order(checkpoint: &Checkpoint) -> Vec<Tensor> {
    let whole = |(name, (dtype, shape)): (&str, (Dtype, &[u64]))| Tensor::whole(name, dtype, shape);
    let mut tensors: Vec<Tensor> = checkpoint.tensors().into_iter().map(whole).collect();
    tensors.sort_by_key(|tensor| std::cmp::Reverse(tensor.dtype.bytes()));
    tensors
}

fn header(label: u64, tensors: &[Tensor]) -> Result<Vec<u8>, String> {
    if tensors.iter().any(|tensor| tensor.name == NOTES) {
        return Err(format!("a tensor is named {NOTES}, which has another meaning there"));
    }
    let mut end = 0;
    let infos = tensors.iter().map(|tensor| {
        let begin = end;
        end += tensor.bytes() as usize;
        let shape = tensor.shape.iter().map(|size| *size as usize).collect();
        let dtype = to_theirs(tensor.dtype);
        (tensor.name.clone(), TensorInfo { dtype, shape, data_offsets: (begin, end) })
    });
    let notes = HashMap::from([(String::from(LABEL), label.to_string())]);
    let metadata = Metadata::new(Some(notes), infos.collect()).map_err(|e| e.to_string())?;
    let mut bytes = serde_json::to_vec(&metadata).map_err(|e| e.to_string())?;
    bytes.resize(bytes.len().next_multiple_of(8), b' ');
    if bytes.len() as u64 > HEADER_BYTES_MAX {
        let (bytes, tensors) = (bytes.len(), tensors.len());
        return Err(format!("a header of {bytes} bytes for {tensors} tensors, which none reads"));
    }
    Ok(bytes)
}

/// Where the tensors' bytes begin, and what the header says about them.
fn read_header(mut file: &File) -> Result<(u64, Metadata), String> {
    let found = file.metadata().map_err(|e| e.to_string())?.len();
    let mut length = [0; 8];
    file.read_exact(&mut length).map_err(|e| format!("no header: {e}"))?;
    let length = u64::from_le_bytes(length);
    if length > HEADER_BYTES_MAX.min(found.saturating_sub(8)) {
        return Err(format!("a header of {length} bytes in a file of {found}"));
    }
    let mut header = vec![0; length as usize];
    file.read_exact(&mut header).map_err(|e| format!("the header: {e}"))?;
    let metadata: Metadata = serde_json::from_slice(&header).map_err(|e| e.to_string())?;
    let wanted = (8 + length).checked_add(metadata.data_len() as u64);
    if wanted != Some(found) {
        let wanted = wanted.map_or(String::from("more than there can be"), |it| it.to_string());
        return Err(format!("wanted {wanted} bytes, found {found}: truncated?"));
    }
    Ok((8 + length, metadata))
}

/// The tensors with their places in the file.
fn stored(metadata: &Metadata, begin: u64) -> Result<Vec<Placed>, String> {
    let mut stored = Vec::new();
    for name in metadata.offset_keys() {
        let info = metadata.info(&name).expect("one of its own names");
        let shape: Vec<u64> = info.shape.iter().map(|size| *size as u64).collect();
        let dtype = to_ours(info.dtype)
            .ok_or_else(|| format!("{name:?} is of type {:?}, which is not known", info.dtype))?;
        let tensor = Tensor::whole(name, dtype, &shape);
        tensor.check().map_err(|e| e.to_string())?;
        stored.push(Placed { tensor, offset: begin + info.data_offsets.0 as u64 });
    }
    Ok(stored)
}

/// Our types and theirs, in the order of ours.
const TYPES: [(Dtype, safetensors::Dtype); Dtype::ALL.len()] = [
    (Dtype::F32, safetensors::Dtype::F32),
    (Dtype::F16, safetensors::Dtype::F16),
    (Dtype::Bf16, safetensors::Dtype::BF16),
    (Dtype::F64, safetensors::Dtype::F64),
    (Dtype::I8, safetensors::Dtype::I8),
    (Dtype::U8, safetensors::Dtype::U8),
    (Dtype::I16, safetensors::Dtype::I16),
    (Dtype::U16, safetensors::Dtype::U16),
    (Dtype::I32, safetensors::Dtype::I32),
    (Dtype::U32, safetensors::Dtype::U32),
    (Dtype::I64, safetensors::Dtype::I64),
    (Dtype::U64, safetensors::Dtype::U64),
    (Dtype::Bool, safetensors::Dtype::BOOL),
    (Dtype::F8E4M3, safetensors::Dtype::F8_E4M3),
    (Dtype::F8E5M2, safetensors::Dtype::F8_E5M2),
];

fn to_theirs(dtype: Dtype) -> safetensors::Dtype {
    let (_, theirs) = TYPES[dtype as usize];
    theirs
}

fn to_ours(dtype: safetensors::Dtype) -> Option<Dtype> {
    TYPES.iter().find(|(_, theirs)| *theirs == dtype).map(|(ours, _)| *ours)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_means_something_else_in_such_a_file_is_refused() {
        let tensor = |name: &str| Tensor::whole(name, Dtype::F32, &[3]);
        assert!(header(1, &[tensor("a"), tensor("b")]).is_ok());
        let error = header(1, &[tensor("a"), tensor("__metadata__")]).unwrap_err();
        assert!(error.contains("a tensor is named __metadata__"), "{error}");
    }
}
