//! Any parts of a tensor, put together from any other parts of it, against the plain way.

use brigade_offload::layout::{Directory, Dtype, Held, Hold, Missing, Piece, Tensor, pieces};

/// The elements of a part, by their number in the whole tensor, in the order of its bytes.
fn elements(tensor: &Tensor) -> Vec<u64> {
    match &tensor.hold {
        Hold::Flat { start, count } => (*start..start + count).collect(),
        Hold::Box { start, extent } => {
            let all: u64 = tensor.shape.iter().product();
            let is_inside = |element: &u64| {
                let mut rest = *element;
                (0..tensor.shape.len()).rev().all(|axis| {
                    let at = rest % tensor.shape[axis];
                    rest /= tensor.shape[axis];
                    (start[axis]..start[axis] + extent[axis]).contains(&at)
                })
            };
            (0..all).filter(is_inside).collect()
        }
    }
}

fn part(rng: &mut fastrand::Rng, shape: &[u64]) -> Tensor {
    let all: u64 = shape.iter().product();
    let mut tensor = Tensor::whole("t", Dtype::I16, shape);
    tensor.hold = if rng.bool() {
        let start = rng.u64(..=all);
        Hold::Flat { start, count: rng.u64(..=all - start) }
    } else {
        let start: Vec<u64> = shape.iter().map(|size| rng.u64(..=*size)).collect();
        let room = |(size, start): (&u64, &u64)| rng.u64(..=size - start);
        let extent = shape.iter().zip(&start).map(room).collect();
        Hold::Box { start, extent }
    };
    tensor
}

/// What each byte of the wanted part comes from, the plain way: the first holder that has it.
fn naive(want: &Tensor, held: &[Held]) -> Option<Vec<(usize, u64)>> {
    let mut sources = Vec::new();
    for element in elements(want) {
        sources.push(held.iter().find_map(|Held { source, placed }| {
            let at = elements(&placed.tensor).iter().position(|other| *other == element)?;
            Some((*source, placed.offset + 2 * at as u64))
        })?);
    }
    Some(sources)
}

fn check(want: &Tensor, held: &[Held], seed: u64) {
    let found = pieces(want, held);
    match (naive(want, held), found) {
        (None, Err(Missing::Elements { .. })) => {}
        (Some(sources), Ok(pieces)) => {
            let mut at = 0;
            let mut last: Option<Piece> = None;
            for piece in pieces {
                assert_eq!(piece.target, at, "seed {seed}: pieces lie behind one another");
                for byte in (0..piece.bytes).step_by(2) {
                    let wanted = sources[((at + byte) / 2) as usize];
                    assert_eq!((piece.source, piece.offset + byte), wanted, "seed {seed}");
                }
                at += piece.bytes;
                let joins = last.is_some_and(|last| {
                    last.source == piece.source && last.offset + last.bytes == piece.offset
                });
                assert!(!joins, "seed {seed}: pieces are as long as they can be");
                last = Some(piece);
            }
            assert_eq!(at, want.bytes(), "seed {seed}");
        }
        (naive, found) => panic!("seed {seed}: {want:?}: {naive:?}, {found:?}"),
    }
}

#[test]
fn any_parts_from_any_parts() {
    for seed in 0..8000 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let shape: Vec<u64> = (0..rng.usize(..4)).map(|_| rng.u64(0..6)).collect();
        let mut parts: Vec<Tensor> = (0..rng.usize(..5)).map(|_| part(&mut rng, &shape)).collect();
        if rng.u8(..3) > 0 {
            parts.push(Tensor::whole("t", Dtype::I16, &shape));
        }
        // Each part in a state of its own, behind something else.
        let other = Tensor::whole("other", Dtype::F64, &[3]);
        let pack = |part| Directory::pack([other.clone(), part], 8).unwrap();
        let states: Vec<Directory> = parts.into_iter().map(pack).collect();
        let held: Vec<Held> = states
            .iter()
            .enumerate()
            .flat_map(|(source, state)| {
                state.tensors().iter().map(move |placed| Held { source, placed })
            })
            .collect();
        let want = part(&mut rng, &shape);
        let held_named: Vec<Held> =
            held.iter().filter(|held| held.placed.tensor.name == "t").copied().collect();
        if naive(&want, &held_named).is_some() || !want.bytes().eq(&0) {
            check(&want, &held_named, seed);
        }
        assert_eq!(pieces(&want, &held).ok(), pieces(&want, &held_named).ok(), "seed {seed}");
    }
}

/// Four ranks of a column split to three of a flat one: what loading at another size is about.
#[test]
fn columns_of_four_make_thirds_of_a_flat_range() {
    let shape = [6, 8];
    let column = |rank: u64| Tensor {
        hold: Hold::Box { start: vec![0, 2 * rank], extent: vec![6, 2] },
        ..Tensor::whole("w", Dtype::F32, &shape)
    };
    let states: Vec<Directory> =
        (0..4).map(|rank| Directory::pack([column(rank)], 64).unwrap()).collect();
    let held: Vec<Held> =
        (0..4).map(|source: usize| Held { source, placed: &states[source].tensors()[0] }).collect();
    let third = pieces(&Tensor::flat("w", Dtype::F32, &shape, 16, 16), &held).unwrap();
    assert_eq!(third.len(), 8);
    assert_eq!(third[1], Piece { source: 1, offset: 16, target: 8, bytes: 8 });
    let error = pieces(&Tensor::whole("w", Dtype::F32, &shape), &held[..3]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "nobody holds 12 of the 48 elements wanted of \"w\", the first of them number 6"
    );
    let error = pieces(&Tensor::whole("w", Dtype::F16, &shape), &held).unwrap_err();
    assert_eq!(error.to_string(), "\"w\" is stored as F32 [6, 8], wanted F16 [6, 8]");
}
