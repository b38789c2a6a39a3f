//! Whatever a row of `brigade compare` does, its gradients are those of PyTorch.
//!
//! AdamW's first moment after one step from nothing is the gradient times 1 − β₁, so a checkpoint
//! after it has the gradient that all ranks together came to. `steps.safetensors` was written by
//! `make_steps.py`; no Python runs here.

use std::path::Path;

use brigade_trainer::compare::{Args, Want, rows};
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};

use crate::world::{Folder, flags, train, world};

static FIXTURE: &[u8] = include_bytes!("../steps.safetensors");

/// Of the largest gradient of a tensor.
const TOLERANCE: f32 = 1e-5;

fn floats(file: &SafeTensors<'_>, name: &str) -> Vec<f32> {
    let (numbers, _) = file.tensor(name).unwrap().data().as_chunks::<4>();
    numbers.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

/// Names of a model's tensors.
fn names(file: &SafeTensors<'_>, model: &str) -> Vec<String> {
    let prefix = format!("{model}/weight/");
    file.names().iter().filter_map(|name| name.strip_prefix(&prefix)).map(str::to_string).collect()
}

/// A checkpoint before the first step, with these weights.
fn write_start(path: &Path, file: &SafeTensors<'_>, model: &str) {
    let mut views = Vec::new();
    let zeros = vec![0u8; FIXTURE.len()];
    for name in names(file, model) {
        let weight = file.tensor(&format!("{model}/weight/{name}")).unwrap();
        let (shape, data) = (weight.shape().to_vec(), weight.data());
        for (prefix, data) in [("", data), ("adam.m/", &zeros), ("adam.v/", &zeros)] {
            let bytes = &data[..weight.data().len()];
            let view = TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap();
            views.push((format!("{prefix}{name}"), view));
        }
    }
    let (experts, top) = if model == "dense" { (0, 0) } else { (8, 2) };
    let shape = r#""vocab":256,"context":16,"layers":2,"heads":4,"width":8"#;
    let config = format!(r#"{{{shape},"experts":{experts},"top":{top}}}"#);
    let header = format!(r#"{{"step":0,"config":{config},"course":{{}}}}"#);
    let metadata = std::collections::HashMap::from([("brigade".to_string(), header)]);
    std::fs::write(path, safetensors::serialize(views, Some(metadata)).unwrap()).unwrap();
}

/// The norm of PyTorch's gradients.
fn norm(file: &SafeTensors<'_>, model: &str) -> f64 {
    let all = names(file, model).into_iter();
    let all = all.flat_map(|name| floats(file, &format!("{model}/grad/{name}")));
    all.map(|g| f64::from(g).powi(2)).sum::<f64>().sqrt()
}

/// The norm that the newest step in a run log tells, if it does.
fn told(log: &Path) -> Option<f64> {
    let text = std::fs::read_to_string(log).unwrap();
    let step = text.lines().rfind(|line| line.contains(r#""event":"step""#)).unwrap();
    serde_json::from_str::<serde_json::Value>(step).unwrap().get("grad_norm")?.as_f64()
}

/// The tensor whose gradient, of which `part` is left, is furthest off, as part of its largest
/// element.
fn worst(file: &SafeTensors<'_>, model: &str, checkpoint: &[u8], part: f32) -> (f32, String) {
    let found = SafeTensors::deserialize(checkpoint).unwrap();
    let off = |name: String| {
        let want = floats(file, &format!("{model}/grad/{name}"));
        let got = floats(&found, &format!("adam.m/{name}"));
        assert_eq!(got.len(), want.len(), "{name}");
        let largest = want.iter().fold(0.0f32, |most, g| most.max(g.abs()));
        let apart = |(m, want): (&f32, &f32)| (m / (1.0 - 0.9) / part - want).abs();
        let worst = got.iter().zip(&want).map(apart).fold(0.0, f32::max);
        assert!(got.iter().all(|m| m.is_finite()) && largest > 0.0, "{name}");
        (worst / largest, name)
    };
    names(file, model).into_iter().map(off).max_by(|a, b| a.0.total_cmp(&b.0)).unwrap()
}

#[test]
fn every_row_has_the_gradients_of_torch() {
    let file = SafeTensors::deserialize(FIXTURE).unwrap();
    let folder = Folder::new();
    for model in ["dense", "experts"] {
        write_start(&folder.0.join(model), &file, model);
    }
    let common = "--layers 2 --width 8 --heads 4 --context 16 --batch 16 --threads 1 --seed 1851 \
                  --stop-at 1";
    let ask = Args {
        steps: 2,
        only: Vec::new(),
        ranks: vec![2, 4],
        json: None,
        plot: None,
        train: common.split_whitespace().map(str::to_string).collect(),
    };
    let (log, after) = (folder.0.join("log"), folder.0.join("after"));
    let mut checked = 0;
    for row in rows(&ask).unwrap() {
        // What is rounded on its way is off on purpose; and a run that goes on is no first step.
        let is_rounded = matches!(row.want, Want::Within(limit) if limit > 1e-5);
        if is_rounded || row.legs.len() > 1 {
            continue;
        }
        let mut args = flags(&row.legs[0].flags(&ask, &log, &after));
        let model = if args.experts > 0 { "experts" } else { "dense" };
        (args.resume, args.checkpoint) = (folder.file(model), folder.file("after"));
        let norm = norm(&file, model);
        for part in [1.0, 0.25] {
            args.clip = (part < 1.0).then_some(norm as f32 * part);
            match row.ranks() {
                1 => drop(train(&args, None).unwrap()),
                ranks => drop(world(ranks, &args)),
            }
            let (worst, name) = worst(&file, model, &folder.bytes("after"), part);
            let what = format!("{} on {} ranks, clip {:?}", row.name, row.ranks(), args.clip);
            println!("{what}: {worst:.1e} of {name}");
            assert!(worst < TOLERANCE, "{what}: {name} is {worst:e} of its largest element off");
            let told = told(&log);
            assert_eq!(told.is_some(), args.clip.is_some(), "{what}");
            let apart = told.map_or(0.0, |told| (told / norm - 1.0).abs());
            assert!(apart < 1e-6, "{what}: norm {told:?}, not {norm}");
        }
        checked += 1;
    }
    assert!(checked > 30, "{checked} rows");
}
