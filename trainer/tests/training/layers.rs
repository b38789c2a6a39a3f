//! Linear layers over grids of ranks: all three products of one process, tile by tile, with the
//! bytes of their formulas.

use brigade_comm::{Communicator, Settings};
use brigade_trainer::kernels::{Cpu, Kernels};
use brigade_trainer::parallel::tensor::{Cube, Grid, Group, Linear, LinearGrads, Side, Summa};

const SEED: u64 = 1851;
/// Rows, inputs and outputs of the whole layer: multiples of 36.
const SHAPE: [usize; 3] = [36, 72, 108];

/// A whole layer: what goes in, and what must come out.
struct Layer {
    x: Vec<f32>,
    weight: Vec<f32>,
    bias: Vec<f32>,
    dy: Vec<f32>,
    y: Vec<f32>,
    dx: Vec<f32>,
    dweight: Vec<f32>,
    dbias: Vec<f32>,
}

impl Layer {
    /// A layer that leaves has its bias elsewhere.
    fn new(side: Side) -> Layer {
        let ([rows, inputs, outputs], mut rng) = (SHAPE, fastrand::Rng::with_seed(SEED));
        let mut random = |len: usize| (0..len).map(|_| rng.f32() - 0.5).collect::<Vec<_>>();
        let (x, weight, dy) =
            (random(rows * inputs), random(outputs * inputs), random(rows * outputs));
        let bias = random(if side == Side::Enter { outputs } else { 0 });
        let (mut y, mut dx) = (vec![0.0; dy.len()], vec![0.0; x.len()]);
        let (mut dweight, mut dbias) = (vec![0.0; weight.len()], bias.clone());
        Cpu.linear(&mut y, &x, &weight, &bias, inputs, None);
        Cpu.linear_backward(&mut dx, &mut dweight, &mut dbias, &dy, &x, &weight, inputs);
        Layer { x, weight, bias, dy, y, dx, dweight, dbias }
    }
}

/// The part of a matrix that is in this row and this column of so many.
fn tile(whole: &[f32], columns: usize, at: [usize; 2], parts: [usize; 2]) -> Vec<f32> {
    let (height, width) = (whole.len() / columns / parts[0], columns / parts[1]);
    let rows = whole.chunks_exact(columns).skip(at[0] * height).take(height);
    rows.flat_map(|row| &row[at[1] * width..(at[1] + 1) * width]).copied().collect()
}

fn check_rank(grid: &dyn Grid, side: Side, layer: &Layer) {
    let [rows, inputs, outputs] = SHAPE;
    let (all, parts) = (&grid.groups()[0], grid.parts());
    let (rank, place) = (all.rank(), grid.place(all.rank()));
    // Entering comes from the stream's tiles and goes to the inside's; leaving goes back.
    let other = if side == Side::Enter { Side::Leave } else { Side::Enter };
    let (from, to) = (grid.tile(rank, side), grid.tile(rank, other));
    let x = tile(&layer.x, inputs, from, parts);
    let dy = tile(&layer.dy, outputs, to, parts);
    // A weight's inputs are divided like x's columns, its outputs like y's, and then once more.
    let at = if side == Side::Enter { place.enter } else { place.leave };
    let (row, column) = match side {
        Side::Enter => (at.inside, at.stream),
        Side::Leave => (at.stream, at.inside),
    };
    let (q, depth) = (place.share.stream, place.share.depth);
    let of_weight =
        |whole: &[f32]| tile(whole, inputs, [row * depth + at.depth, column], [q * depth, q]);
    let (weight, want_dweight) = (of_weight(&layer.weight), of_weight(&layer.dweight));

    let of_bias = |whole: &[f32]| {
        let width = whole.len() / parts[1];
        whole[to[1] * width..(to[1] + 1) * width].to_vec()
    };
    let (bias, mut dbias) = (of_bias(&layer.bias), of_bias(&layer.bias));

    let sent = || grid.groups().iter().map(Group::sent_bytes).sum::<u64>();
    let shape = [rows / parts[0], inputs / parts[1], outputs / parts[1]];
    let (before, formula) = (sent(), grid.formula_bytes(side, shape).unwrap());
    let (mut y, mut dx) = (vec![f32::NAN; dy.len()], vec![f32::NAN; x.len()]);
    let linear = Linear { weight: &weight, bias: &bias };
    grid.forward(&Cpu, side, &mut y, &x, linear, shape[1]).unwrap();
    assert_eq!(sent() - before, formula[0], "forward of rank {rank}, {side:?}");
    let mut dweight = vec![f32::NAN; weight.len()];
    let grads = LinearGrads { weight: &mut dweight, bias: &mut dbias };
    grid.backward(&Cpu, side, (&mut dx, grads), &dy, &x, &weight).unwrap();
    assert_eq!(sent() - before, formula[0] + formula[1], "backward of rank {rank}, {side:?}");

    close(&y, &tile(&layer.y, outputs, to, parts), "y", rank);
    close(&dx, &tile(&layer.dx, inputs, from, parts), "dx", rank);
    close(&dweight, &want_dweight, "dweight", rank);
    close(&dbias, &of_bias(&layer.dbias), "dbias", rank);
}

fn close(got: &[f32], want: &[f32], what: &str, rank: usize) {
    assert_eq!(got.len(), want.len(), "{what} of rank {rank}");
    for (got, want) in got.iter().zip(want) {
        assert!((got - want).abs() < 1e-5, "{what} of rank {rank}: {got}, not {want} ({SEED})");
    }
}

fn check(ranks: usize, grid: &(dyn Fn(Communicator) -> Box<dyn Grid> + Sync)) {
    let settings = Settings { transport: "loopback".to_string(), ..Settings::default() };
    let layers = [Side::Enter, Side::Leave].map(|side| (side, Layer::new(side)));
    let layers = &layers;
    std::thread::scope(|scope| {
        for comm in Communicator::local_world(ranks, &settings).unwrap() {
            scope.spawn(move || {
                let grid = grid(comm);
                layers.iter().for_each(|(side, layer)| check_rank(&*grid, *side, layer));
            });
        }
    });
}

#[test]
fn squares_multiply_as_one_process_does() {
    for side in [1, 2, 3] {
        check(side * side, &|comm| Box::new(Summa::new(comm, side, 1).unwrap()));
    }
}

#[test]
fn squares_on_top_of_each_other_divide_the_rows() {
    for (side, layers) in [(2, 2), (1, 3), (2, 3)] {
        check(side * side * layers, &|comm| Box::new(Summa::new(comm, side, layers).unwrap()));
    }
}

#[test]
fn cubes_multiply_as_one_process_does() {
    for side in [1, 2] {
        check(side * side * side, &|comm| Box::new(Cube::new(comm, side).unwrap()));
    }
}
