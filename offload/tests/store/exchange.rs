//! safetensors: what we write their crate reads, and what it writes we read.

use std::collections::HashMap;

use brigade_offload::layout::{Dtype, Hold, Tensor};
use brigade_offload::store::{Checkpoint, export, import};
use safetensors::tensor::TensorView;
use safetensors::{Dtype as Theirs, SafeTensors};

use crate::place::Place;

/// Tensors of some types, as the bytes of a file.
fn theirs() -> (Vec<u8>, HashMap<&'static str, Vec<u8>>) {
    let bytes = |count: usize, seed: u64| {
        let mut rng = fastrand::Rng::with_seed(seed);
        (0..count).map(|_| rng.u8(..)).collect::<Vec<u8>>()
    };
    let tensors = HashMap::from([
        ("wide", bytes(3000 * 4, 1)),
        ("narrow", bytes(70 * 30 * 2, 2)),
        ("one", bytes(8, 3)),
        ("none", Vec::new()),
        ("flags", bytes(5, 4).into_iter().map(|byte| byte & 1).collect()),
    ]);
    let shapes = HashMap::from([
        ("wide", (Theirs::F32, vec![3000])),
        ("narrow", (Theirs::BF16, vec![70, 30])),
        ("one", (Theirs::I64, vec![])),
        ("none", (Theirs::F16, vec![4, 0])),
        ("flags", (Theirs::BOOL, vec![5])),
    ]);
    let views: Vec<(&str, TensorView)> = tensors
        .iter()
        .map(|(name, bytes)| {
            let (dtype, shape) = shapes[name].clone();
            (*name, TensorView::new(dtype, shape, bytes).unwrap())
        })
        .collect();
    let file = safetensors::serialize(views, None).unwrap();
    (file, tensors)
}

#[test]
fn in_and_out_again() {
    let place = Place::new("exchange", Default::default());
    let (file, tensors) = theirs();
    let path = place.folder.join("in.safetensors");
    std::fs::write(&path, &file).unwrap();
    // Three ranks take a third each of the rows of one tensor and of the elements of the others.
    let mut paths = Vec::new();
    for rank in 0..3_u64 {
        let state = place.paths(&format!("rank{rank}"), 2);
        let share = |whole: Tensor| {
            let all: u64 = whole.shape.iter().product();
            let (begin, end) = (all * rank / 3, all * (rank + 1) / 3);
            let hold = match whole.name.as_str() {
                "narrow" => Hold::Box { start: vec![0, 10 * rank], extent: vec![70, 10] },
                _ => Hold::Flat { start: begin, count: end - begin },
            };
            Some(Tensor { hold, ..whole })
        };
        let state_file = import(&place.carrier, &path, &state, 4096, share).unwrap();
        state_file.verify().unwrap();
        paths.push(state);
    }
    let checkpoint = Checkpoint::open(&place.carrier, &paths).unwrap();
    let out = place.folder.join("out.safetensors");
    export(&checkpoint, &out).unwrap();
    let bytes = std::fs::read(&out).unwrap();
    let read = SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(read.len(), tensors.len());
    for (name, wanted) in &tensors {
        assert_eq!(read.tensor(name).unwrap().data(), wanted, "{name}");
    }
    assert_eq!(read.tensor("narrow").unwrap().shape(), [70, 30]);
    assert!(!place.folder.join("out.safetensors.partial").exists());

    // The label goes through the file.
    let whole = place.paths("whole", 1);
    let mut state = import(&place.carrier, &out, &whole, 4096, Some).unwrap();
    state
        .save(77, b"", |_, _, target| {
            target.fill(1);
            Ok(())
        })
        .unwrap();
    let checkpoint = Checkpoint::open(&place.carrier, &[whole]).unwrap();
    export(&checkpoint, &out).unwrap();
    let again = place.paths("again", 1);
    let state = import(&place.carrier, &out, &again, 4096, Some).unwrap();
    assert_eq!(state.generation().unwrap().label, 77);
    let wide = state.directory().named("wide").next().unwrap();
    assert_eq!(wide.tensor.dtype, Dtype::F32);
}

#[test]
fn files_that_are_not_what_they_say_are_refused() {
    let place = Place::new("foreign", Default::default());
    let (file, _) = theirs();
    let path = place.folder.join("bad.safetensors");
    let refuse = |bytes: &[u8], wanted: &str| {
        std::fs::write(&path, bytes).unwrap();
        let state = place.paths("state", 1);
        let error = import(&place.carrier, &path, &state, 4096, Some).unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}");
        assert!(!state[0].exists(), "nothing is made of it");
    };
    let pipe = place.folder.join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let state = place.paths("state", 1);
    let error = import(&place.carrier, &pipe, &state, 4096, Some).unwrap_err().to_string();
    assert!(error.contains("this is no file"), "{error}");
    refuse(&file[..file.len() - 1], "truncated?");
    refuse(&[file.as_slice(), &[0]].concat(), "truncated?");
    refuse(&file[..5], "no header");
    refuse(&[], "no header");
    refuse(&[0xff; 100], "a header of 18446744073709551615 bytes in a file of 100");
    let mut hostile = file.clone();
    hostile[9] ^= 0x55;
    refuse(&hostile, "bad.safetensors");
    let theirs = safetensors::serialize(
        [("t", TensorView::new(Theirs::C64, vec![1], &[0; 8]).unwrap())],
        None,
    );
    refuse(&theirs.unwrap(), "is of type C64, which is not known");
}
