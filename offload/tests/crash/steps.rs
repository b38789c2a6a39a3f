//! The streamed step through drafts: power fails in the middle of a step, and the state is that of
//! a whole step, bit by bit.

use brigade_offload::layout::{Directory, Dtype, Placed, Tensor};
use brigade_offload::step::{Drafted, Pipeline};
use brigade_offload::storage::simulated::Unsynced;
use brigade_offload::store::{Carrier, StateFile, StoreError, Which};
use half::bf16;

use crate::world::{arena, carrier, device, paths};

const ELEMENTS: usize = 10_000;

/// What a step does to a weight and its momentum.
fn update(weight: &mut f32, momentum: &mut f32) {
    *momentum = 0.9 * *momentum + *weight;
    *weight -= 0.01 * *momentum;
}

/// Both arrays after so many steps.
fn reference(steps: u64) -> [Vec<f32>; 2] {
    let mut weights: Vec<f32> = (0..ELEMENTS).map(|at| at as f32).collect();
    let mut momenta = vec![0.0; ELEMENTS];
    for _ in 0..steps {
        weights.iter_mut().zip(&mut momenta).for_each(|(w, m)| update(w, m));
    }
    [weights, momenta]
}

/// Weights and momenta, after it was seen that the copies are those of the weights.
fn arrays(state: &StateFile) -> Result<[Vec<f32>; 2], StoreError> {
    let mut arrays = [vec![0.0; ELEMENTS], vec![0.0; ELEMENTS]];
    let [first, second, third] = state.directory().tensors() else { unreachable!("three") };
    for (placed, array) in [first, second].into_iter().zip(&mut arrays) {
        state.read_tensor(placed, 0, bytemuck::cast_slice_mut(array))?;
    }
    let mut copies = vec![bf16::ZERO; ELEMENTS];
    state.read_tensor(third, 0, bytemuck::cast_slice_mut(&mut copies))?;
    let narrowed = arrays[0].iter().map(|weight| bf16::from_f32(*weight));
    assert!(narrowed.eq(copies), "copies of another step");
    Ok(arrays)
}

fn step(carrier: &Carrier, state: &mut StateFile, pipeline: &mut Pipeline, label: u64) {
    let mut draft = state.begin().unwrap();
    let tensors: Vec<&Placed> = state.directory().tensors().iter().collect();
    let home = Drafted::new(carrier, state, &mut draft, &tensors[..2]).unwrap();
    let mut home = home.and_written(&tensors[2..]).unwrap();
    let mut middle = |_, arrays: &mut [&mut [u8]]| {
        let [weights, momenta, copies] = arrays else { unreachable!("three are streamed") };
        let weights: &mut [f32] = bytemuck::cast_slice_mut(weights);
        let momenta: &mut [f32] = bytemuck::cast_slice_mut(momenta);
        let copies: &mut [bf16] = bytemuck::cast_slice_mut(copies);
        weights.iter_mut().zip(momenta).for_each(|(w, m)| update(w, m));
        weights.iter().zip(copies).for_each(|(w, copy)| *copy = bf16::from_f32(*w));
        Ok(())
    };
    let moved = pipeline.run(&mut home, &mut middle).unwrap();
    let elements = ELEMENTS as u64;
    assert_eq!((moved.read_bytes, moved.written_bytes), (8 * elements, 10 * elements));
    state.commit(draft, label, b"").unwrap();
}

#[test]
fn a_cut_in_a_step_leaves_a_whole_step() {
    for stripes in 1..=2 {
        let device = device();
        let tensors = [("weights", Dtype::F32), ("momenta", Dtype::F32), ("copies", Dtype::Bf16)]
            .map(|(name, dtype)| Tensor::whole(name, dtype, &[ELEMENTS as u64]));
        let directory = Directory::pack(tensors, 4096).unwrap();
        let there = carrier(&device);
        let mut state = StateFile::create(&there, &paths(stripes), directory, 4096).unwrap();
        let start = reference(0);
        let fill = |placed: &Placed, from: u64, target: &mut [u8]| {
            let copies: Vec<bf16> = start[0].iter().map(|w| bf16::from_f32(*w)).collect();
            let bytes: &[u8] = match placed.tensor.name.as_str() {
                "weights" => bytemuck::cast_slice(&start[0]),
                "momenta" => bytemuck::cast_slice(&start[1]),
                _ => bytemuck::cast_slice(&copies),
            };
            target.copy_from_slice(&bytes[from as usize..from as usize + target.len()]);
            Ok(())
        };
        state.save(0, b"", fill).unwrap();
        let mut draft = state.begin().unwrap();
        let tensors: Vec<&Placed> = state.directory().tensors().iter().collect();
        let home = Drafted::new(&there, &state, &mut draft, &tensors[..2]).unwrap();
        let shape = home.and_written(&tensors[2..]).unwrap().shape();
        assert_eq!((shape.chunk_elements(), shape.chunks()), (2048, 5), "a block of copies each");
        drop(draft);
        let mut pipeline = Pipeline::with_slots(&arena(), shape, 3).unwrap();
        device.start_record();
        let mut ends = vec![0];
        for label in 1..=3 {
            step(&there, &mut state, &mut pipeline, label);
            ends.push(device.cuts());
        }
        assert_eq!(arrays(&state).unwrap(), reference(3));
        for at in 0..=device.cuts() {
            for unsynced in [Unsynced::Kept, Unsynced::Lost, Unsynced::Tossed(at as u64)] {
                let after = device.after_cut(at, unsynced);
                let state = StateFile::open(&carrier(&after), &paths(stripes), Which::Newest)
                    .unwrap_or_else(|error| panic!("cut {at}: {error}"));
                let label = state.generation().unwrap().label;
                let done = ends.iter().rposition(|end| *end <= at).unwrap() as u64;
                assert!((done..=(done + 1).min(3)).contains(&label), "{label} at cut {at}");
                assert_eq!(arrays(&state).unwrap(), reference(label), "cut {at}");
            }
        }
    }
}
