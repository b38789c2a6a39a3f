//! The whole training state in one safetensors file: parameters, both moments, the step, the shape.
//!
//! Written beside the target and renamed, so a crash leaves the old file or the new one. Everything
//! read is checked against the model before a byte of it is used.

use crate::error::Error;
use crate::layout::{Config, Layout};
use crate::optim::AdamW;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use std::collections::HashMap;
use std::io::Write;
use std::path::Path;

/// Write parameters (under their own names) and moments (under `adam.m/` and `adam.v/`).
///
/// Errors: `File` if the file cannot be written.
pub fn save(path: &Path, layout: &Layout, params: &[f32], adam: &AdamW) -> Result<(), Error> {
    let mut views = Vec::new();
    for (prefix, flat) in [("", params), ("adam.m/", &adam.mean), ("adam.v/", &adam.square)] {
        for tensor in layout.tensors() {
            let data = little_endian(&flat[tensor.range.clone()]);
            views.push((format!("{prefix}{}", tensor.name), tensor.shape.clone(), data));
        }
    }
    let views = views.iter().map(|(name, shape, data)| {
        let view = TensorView::new(Dtype::F32, shape.clone(), data);
        (name, view.expect("the bytes of a tensor are four times its elements"))
    });
    let config = serde_json::to_string(layout.config()).expect("a config is plain numbers");
    let metadata = HashMap::from([
        ("step".to_string(), adam.steps.to_string()),
        ("config".to_string(), config),
    ]);
    let bytes = safetensors::serialize(views, Some(metadata))
        .map_err(|problem| Error::checkpoint(path, problem))?;
    replace(path, &bytes).map_err(Error::file("write", path))
}

/// Read what `save` wrote into `params` and `adam`.
///
/// Errors: `File` if it cannot be read, `Checkpoint` if it is damaged or of another model.
pub fn load(
    path: &Path,
    layout: &Layout,
    params: &mut [f32],
    adam: &mut AdamW,
) -> Result<(), Error> {
    let bytes = std::fs::read(path).map_err(Error::file("read", path))?;
    let wrong = |problem: String| Error::checkpoint(path, problem);
    let (_, header) = SafeTensors::read_metadata(&bytes).map_err(|e| wrong(e.to_string()))?;
    let file = SafeTensors::deserialize(&bytes).map_err(|e| wrong(e.to_string()))?;
    let field = |name: &str| {
        let value = header.metadata().as_ref().and_then(|fields| fields.get(name));
        value.ok_or_else(|| wrong(format!("no `{name}` in its header: not a checkpoint of ours")))
    };
    let config: Config =
        serde_json::from_str(field("config")?).map_err(|e| wrong(format!("config: {e}")))?;
    if config != *layout.config() {
        return Err(wrong(format!("has {config:?}, this run has {:?}", layout.config())));
    }
    let step: usize = field("step")?.parse().map_err(|e| wrong(format!("step: {e}")))?;

    let AdamW { mean, square, steps, .. } = adam;
    for (prefix, flat) in [("", params), ("adam.m/", mean), ("adam.v/", square)] {
        for tensor in layout.tensors() {
            let name = format!("{prefix}{}", tensor.name);
            let view = file.tensor(&name).map_err(|e| wrong(e.to_string()))?;
            if view.dtype() != Dtype::F32 || view.shape() != tensor.shape {
                let (dtype, shape) = (view.dtype(), view.shape());
                return Err(wrong(format!(
                    "{name} is {dtype:?} {shape:?}, want {:?}",
                    tensor.shape
                )));
            }
            let (values, _) = view.data().as_chunks::<4>();
            for (place, bytes) in flat[tensor.range.clone()].iter_mut().zip(values) {
                *place = f32::from_le_bytes(*bytes);
            }
        }
    }
    *steps = step;
    Ok(())
}

fn little_endian(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// Write all of it beside `path`, reach the disk, then take its name.
fn replace(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".partial");
    let mut file = std::fs::File::create(&beside)?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all());
    written.and_then(|()| std::fs::rename(&beside, path)).inspect_err(|_| {
        // The first error is the one to report; a left-over that cannot be removed changes nothing.
        let _ = std::fs::remove_file(&beside);
    })
}
