//! Each operation on a device against the processor's.

mod attention;
mod mixture;

use super::blas::by_cublas;
use super::world::is_child_with;
use super::{beside, has_device};
use brigade_cuda::{Context, Cuda, DeviceMemory, Stream};
use brigade_trainer::kernels::cuda::{
    AdamWStep, Columns, Device, Matrix, Norm, Product, ProductFormat, Room, SQUARES, View,
};
use brigade_trainer::kernels::{Cpu, Heads, Kernels};
use std::path::Path;

const SEED: u64 = 1851;
/// Of the largest number of an output.
const TOLERANCE: f32 = 1e-5;

/// A device with room for some megabytes of f32.
struct Rig {
    device: Device,
    memory: DeviceMemory,
    room: Room,
    rng: fastrand::Rng,
}

impl Rig {
    fn new() -> Rig {
        Rig::with(8 << 20, ProductFormat::Full)
    }

    fn with(bytes: usize, inside: ProductFormat) -> Rig {
        let _beside = beside();
        let device = Cuda::load().unwrap().device(0).unwrap();
        let stream = Stream::new(&Context::new(&device).unwrap()).unwrap();
        let memory = DeviceMemory::new(stream.context(), bytes).unwrap();
        let room = Room::at(memory.address());
        let device = Device::new(&stream, inside).unwrap();
        println!("seed {SEED}, {}", device.describe());
        Rig { device, memory, room, rng: fastrand::Rng::with_seed(SEED) }
    }

    /// Numbers between -1 and 1, on both sides.
    fn random(&mut self, len: usize) -> (Vec<f32>, View) {
        let numbers: Vec<f32> = (0..len).map(|_| 2.0 * self.rng.f32() - 1.0).collect();
        let view = self.put(bytemuck::cast_slice(&numbers), len);
        (numbers, view)
    }

    fn tokens(&mut self, len: usize, below: u32) -> (Vec<u32>, View) {
        let tokens: Vec<u32> = (0..len).map(|_| self.rng.u32(0..below)).collect();
        let view = self.put(bytemuck::cast_slice(&tokens), len);
        (tokens, view)
    }

    /// Room that holds no number until it is written.
    fn unwritten(&mut self, len: usize) -> View {
        self.put(&vec![0xff; 4 * len], len)
    }

    fn put(&mut self, bytes: &[u8], len: usize) -> View {
        let view = self.room.take(len, 4);
        let offset = (view.address() - self.memory.address()) as usize;
        self.memory.write(self.device.stream(), offset, bytes).unwrap();
        view
    }

    fn whole(&self, got: View) -> Vec<u32> {
        let offset = (got.address() - self.memory.address()) as usize;
        let mut numbers = vec![0u32; got.len()];
        let bytes = bytemuck::cast_slice_mut(&mut numbers);
        self.memory.read(self.device.stream(), offset, bytes).unwrap();
        numbers
    }

    fn check(&self, what: &str, got: View, want: &[f32]) {
        let numbers: Vec<f32> = self.whole(got).into_iter().map(f32::from_bits).collect();
        assert_eq!(numbers.len(), want.len(), "{what}");
        let largest = want.iter().fold(0.0f32, |most, x| most.max(x.abs()));
        for (at, (got, want)) in numbers.iter().zip(want).enumerate() {
            let off = (got - want).abs() / largest;
            assert!(off < TOLERANCE, "{what}: element {at} is {got}, not {want}");
        }
    }
}

/// Neither a tile nor a block divides any of these.
const ROWS: usize = 70;
const WIDTH: usize = 36;

#[test]
fn norms_agree() {
    if !has_device() {
        return;
    }
    let mut rig = Rig::new();
    let (x, x_there) = rig.random(ROWS * WIDTH);
    let ((gain, gain_there), (bias, bias_there)) = (rig.random(WIDTH), rig.random(WIDTH));
    let (mut y, mut stats) = (vec![0.0; ROWS * WIDTH], vec![0.0; 2 * ROWS]);
    Cpu.layernorm(&mut y, &mut stats, &x, &gain, &bias);
    let [y_there, stats_there] = [ROWS * WIDTH, 2 * ROWS].map(|len| rig.unwritten(len));
    let norm = Norm { x: x_there, stats: stats_there, gain: gain_there };
    rig.device.layernorm(y_there, norm, bias_there).unwrap();
    rig.check("norm", y_there, &y);
    rig.check("statistics", stats_there, &stats);

    let ((dy, dy_there), (mut dx, dx_there)) = (rig.random(ROWS * WIDTH), rig.random(ROWS * WIDTH));
    let (mut dgain, mut dbias) = (vec![0.0; WIDTH], vec![0.0; WIDTH]);
    Cpu.layernorm_backward(&mut dx, &mut dgain, &mut dbias, &dy, &x, &stats, &gain);
    let there = [WIDTH; 2].map(|len| rig.unwritten(len));
    let partials = rig.unwritten(Device::partials(WIDTH, 16));
    rig.device.layernorm_backward(dx_there, there, dy_there, norm, partials).unwrap();
    rig.check("norm's dx", dx_there, &dx);
    rig.check("norm's dgain", there[0], &dgain);
    rig.check("norm's dbias", there[1], &dbias);
}

/// A grid has 65 535 blocks along its second dimension, too, of 64 rows or columns each.
#[test]
fn a_product_of_more_rows_than_a_grid_is_high_agrees() {
    if !has_device() {
        return;
    }
    let rows = 65_535 * 64 + 70;
    let mut rig = Rig::with(10 * rows, ProductFormat::Full);
    let ((a, a_there), (b, b_there)) = (rig.random(rows), rig.random(1));
    let want: Vec<f32> = a.iter().map(|a| a * b[0]).collect();
    let there = rig.unwritten(rows);
    let [out, a, b] = [there, a_there, b_there].map(|view| Matrix::rows(view, 1));
    rig.device.product(&Product::new(out, a, b, [rows, 1, 1])).unwrap();
    rig.check("rows", there, &want);
}

/// A grid has 65 535 blocks along its third dimension, one for each product.
#[test]
fn more_products_than_a_grid_is_deep_agree() {
    if has_device() {
        check_many_products();
    }
}

#[test]
fn more_products_by_cublas_than_a_grid_is_deep_agree() {
    if by_cublas("operations::more_products_by_cublas_than_a_grid_is_deep_agree") {
        check_many_products();
    }
}

fn check_many_products() {
    let (mut rig, count) = (Rig::new(), 65_535 + 70);
    let ((a, a_there), (b, b_there)) = (rig.random(count), rig.random(count));
    let want: Vec<f32> = a.iter().zip(&b).map(|(a, b)| a * b).collect();
    let there = rig.unwritten(count);
    let [out, a, b] = [there, a_there, b_there].map(|view| Matrix::rows(view, 1).each(1));
    rig.device.product(&Product::new(out, a, b, [1; 3]).times(count)).unwrap();
    rig.check("products", there, &want);
}

/// A linear layer's numbers, here and there, and room for what comes of them.
struct Layer {
    x: (Vec<f32>, View),
    weight: (Vec<f32>, View),
    bias: (Vec<f32>, View),
    onto: (Vec<f32>, View),
    /// What leaves, what enters, and the gradients of x, weight and bias, from `onto`.
    left: View,
    entered: View,
    grads: [View; 3],
    partials: View,
}

impl Layer {
    const OUTPUTS: usize = 131;

    fn new(rig: &mut Rig) -> Layer {
        let (x, y, weight) = (ROWS * WIDTH, ROWS * Layer::OUTPUTS, Layer::OUTPUTS * WIDTH);
        Layer {
            x: rig.random(x),
            weight: rig.random(weight),
            bias: rig.random(Layer::OUTPUTS),
            onto: rig.random(y),
            left: rig.unwritten(y),
            entered: rig.unwritten(y),
            grads: [x, weight, Layer::OUTPUTS].map(|len| rig.unwritten(len)),
            partials: rig.unwritten(Device::partials(Layer::OUTPUTS, 1)),
        }
    }

    fn check(&self, rig: &Rig) {
        let [x, weight, bias, onto] =
            [&self.x, &self.weight, &self.bias, &self.onto].map(|it| &it.0);
        let mut y = vec![0.0; onto.len()];
        Cpu.linear(&mut y, x, weight, bias, WIDTH, Some(onto));
        rig.check("leaving", self.left, &y);
        Cpu.linear(&mut y, x, weight, bias, WIDTH, None);
        rig.check("entering", self.entered, &y);
        let [mut dx, mut dweight, mut dbias] = self.grads.map(|view| vec![0.0; view.len()]);
        Cpu.linear_backward(&mut dx, &mut dweight, &mut dbias, onto, x, weight, WIDTH);
        rig.check("linear's dx", self.grads[0], &dx);
        rig.check("linear's dweight", self.grads[1], &dweight);
        rig.check("linear's dbias", self.grads[2], &dbias);
    }
}

#[test]
fn linear_layers_agree() {
    if !has_device() {
        return;
    }
    let mut rig = Rig::new();
    let layer = Layer::new(&mut rig);
    let projected = rig.unwritten(ROWS * Layer::OUTPUTS);
    let Layer { left, entered, grads: [dx, dweight, dbias], partials, .. } = layer;
    let [x, weight, bias, onto] =
        [&layer.x, &layer.weight, &layer.bias, &layer.onto].map(|it| it.1);
    let device = &rig.device;
    device.leave(left, x, [weight, bias], Some(onto)).unwrap();
    device.enter(entered, x, weight, bias).unwrap();
    device.project(projected, x, weight, Layer::OUTPUTS).unwrap();
    device.linear_backward(dx, dweight, onto, x, weight, Layer::OUTPUTS).unwrap();
    device.bias_backward(dbias, onto, partials).unwrap();
    layer.check(&rig);
    let mut y = vec![0.0; projected.len()];
    Cpu.linear(&mut y, &layer.x.0, &layer.weight.0, &[], WIDTH, None);
    rig.check("projecting", projected, &y);
}

/// Tiles of its outputs, whose columns lie among those of the others.
#[test]
fn linear_layers_agree_tile_by_tile() {
    if !has_device() {
        return;
    }
    let mut rig = Rig::new();
    let layer = Layer::new(&mut rig);
    let Layer { left, entered, grads: [dx, dweight, dbias], partials, .. } = layer;
    let [x, weight, bias, onto] =
        [&layer.x, &layer.weight, &layer.bias, &layer.onto].map(|it| it.1);
    let device = &rig.device;
    for (at, tile) in [40..41, 0..40, 41..Layer::OUTPUTS].into_iter().enumerate() {
        let of_weight = tile.start * WIDTH..tile.end * WIDTH;
        let part = [weight.part(of_weight.clone()), bias.part(tile.clone())];
        let columns = |view| Columns::all(view, Layer::OUTPUTS).part(tile.clone());
        device.leave_columns(columns(left), x, part, Some(columns(onto))).unwrap();
        device.enter_columns(columns(entered), x, part).unwrap();
        device.columns_input(dx, columns(onto), part[0], at == 0).unwrap();
        device.columns_weight(dweight.part(of_weight), columns(onto), x).unwrap();
        device.columns_bias(dbias.part(tile.clone()), columns(onto), partials).unwrap();
    }
    layer.check(&rig);
}

/// Rows of each sample that one of several ranks has: two chunks.
const FEW: usize = 5;

fn few() -> Vec<u32> {
    (0..ROWS as u32).filter(|row| matches!(row % 14, 2..4 | 11..14)).collect()
}

#[test]
fn embeddings_and_losses_agree() {
    if !has_device() {
        return;
    }
    let mut rig = Rig::new();
    let (vocab, shape) = (23, Heads { time: 14, heads: 1, width: WIDTH });
    let (tokens, tokens_there) = rig.tokens(ROWS, vocab as u32);
    let (wte, wte_there) = rig.random(vocab * WIDTH);
    let (wpe, wpe_there) = rig.random(shape.time * WIDTH);
    let nowhere = tokens_there.first(0);
    // Rows of whole samples, and such as one of several ranks has.
    for (rows, has_places) in [((0..ROWS as u32).collect::<Vec<_>>(), false), (few(), true)] {
        let own: Vec<u32> = rows.iter().map(|&row| tokens[row as usize]).collect();
        let places: Vec<u32> = rows.iter().map(|row| row % shape.time as u32).collect();
        let [own, places] =
            [own, places].map(|numbers| rig.put(bytemuck::cast_slice(&numbers), rows.len()));
        let picked = [own, if has_places { places } else { nowhere }];
        let mut x = vec![0.0; rows.len() * WIDTH];
        let x_there = rig.unwritten(x.len());
        Cpu.embed(&mut x, &rows, &tokens, [&wte, &wpe], shape);
        rig.device.embed(x_there, picked, [wte_there, wpe_there], shape).unwrap();
        rig.check("embedding", x_there, &x);
        let (mut dwte, mut dwpe) = (vec![0.0; wte.len()], vec![0.0; wpe.len()]);
        Cpu.embed_backward([&mut dwte, &mut dwpe], &x, &rows, &tokens, shape);
        let there = [wte.len(), wpe.len()].map(|len| rig.unwritten(len));
        let partials = rig.unwritten(Device::partials(WIDTH, vocab));
        let sizes = [if has_places { FEW } else { shape.time }, WIDTH];
        rig.device.embed_backward(there, x_there, picked, partials, sizes).unwrap();
        rig.check("tokens' gradient", there[0], &dwte);
        rig.check("places' gradient", there[1], &dwpe);
    }

    let (mut logits, logits_there) = rig.random(ROWS * vocab);
    let mut losses = vec![0.0; ROWS];
    let losses_there = rig.unwritten(ROWS);
    Cpu.cross_entropy(&mut logits, &mut losses, &tokens, 0.25);
    rig.device.cross_entropy(logits_there, losses_there, logits_there, tokens_there, 0.25).unwrap();
    rig.check("losses", losses_there, &losses);
    rig.check("logits' gradient", logits_there, &logits);
}

#[test]
fn gelu_agrees() {
    if !has_device() {
        return;
    }
    let mut rig = Rig::new();
    let (x, x_there) = rig.random(1000);
    let (mut dy, dy_there) = rig.random(1000);
    let mut y = vec![0.0; 1000];
    let y_there = rig.unwritten(1000);
    Cpu.gelu(&mut y, &x);
    rig.device.gelu(y_there, x_there).unwrap();
    rig.check("GELU", y_there, &y);
    Cpu.gelu_backward(&mut dy, &x);
    rig.device.gelu_backward(dy_there, x_there).unwrap();
    rig.check("GELU's dx", dy_there, &dy);
}

/// With a compiler that adds products unrounded, as a device's does.
#[test]
fn adamw_has_the_bits_of_the_host() {
    let name = "operations::adamw_has_the_bits_of_the_host";
    if !has_device() || !is_child_with(&[("BRIGADE_FAKE_CUDA_CONTRACTS", Path::new("1"))], name) {
        return;
    }
    let (mut rig, len) = (Rig::new(), 10_007);
    let [mut params, mut mean, grads] = [(); 3].map(|()| rig.random(len));
    let mut square = rig.random(len);
    square.0.iter_mut().for_each(|number| *number = number.abs());
    square.1 = rig.put(bytemuck::cast_slice(&square.0), len);
    let (scale, beta1, beta2, eps, rate, root, shrink) = (0.7, 0.9, 0.999, 1e-8, 3e-3, 1.7, 0.9997);
    let step = AdamWStep { scale, beta1, beta2, eps, rate, root, shrink };
    rig.device.adamw(&step, [params.1, mean.1, square.1, grads.1], None).unwrap();
    // As it is written, Rust rounds every operation.
    for at in 0..len {
        let g = grads.0[at] * scale;
        let (m, s) = (&mut mean.0[at], &mut square.0[at]);
        *m = beta1 * *m + (1.0 - beta1) * g;
        *s = beta2 * *s + (1.0 - beta2) * g * g;
        params.0[at] = params.0[at] * shrink - rate * *m / (s.sqrt() * root + eps);
    }
    for (what, (want, there)) in [("mean", mean), ("square", square), ("parameters", params)] {
        let want: Vec<u32> = want.into_iter().map(f32::to_bits).collect();
        let got = rig.whole(there);
        let astray = got.iter().zip(&want).filter(|(got, want)| got != want).count();
        assert_eq!(astray, 0, "{what}");
    }
}

/// Of numbers of all sizes, and of some that are none.
#[test]
fn squares_add_up_to_the_same_bits_in_any_order() {
    if !has_device() {
        return;
    }
    let mut rig = Rig::new();
    let size = |rng: &mut fastrand::Rng| f32::from(rng.i8(-70..60)).exp2();
    let mut numbers: Vec<f32> =
        (0..10_007).map(|_| (rig.rng.f32() - 0.5) * size(&mut rig.rng)).collect();
    numbers.extend([0.0, -0.0, 1e-45, 1.2e-39, f32::MIN_POSITIVE]);
    let len = numbers.len();
    let view = rig.put(bytemuck::cast_slice(&numbers), len);
    let sum = |rig: &mut Rig, parts: &[std::ops::Range<usize>]| {
        let sum = rig.put(&[0; 8 * SQUARES], 2 * SQUARES);
        for part in parts {
            rig.device.squares(sum, view.part(part.clone())).unwrap();
        }
        rig.whole(sum)
    };
    let whole = sum(&mut rig, &[0..5, 5..len]);
    assert_eq!(sum(&mut rig, &[5000..len, 0..1, 1..5000]), whole);
    let digits = whole
        .as_chunks::<2>()
        .0
        .iter()
        .map(|[low, high]| f64::from(*low) + f64::from(*high) * 2f64.powi(32));
    let digits: Vec<f64> = digits.collect();
    let got: f64 = (0..SQUARES - 1).map(|at| digits[at] * 2f64.powi(32 * at as i32 - 298)).sum();
    let want: f64 = numbers.iter().map(|x| f64::from(*x).powi(2)).sum();
    assert!((got / want - 1.0).abs() < 1e-12, "{got}, not {want}");
    assert_eq!(digits[SQUARES - 1], 0.0);
    let none = rig.put(bytemuck::cast_slice(&[1.0, f32::NAN, f32::INFINITY]), 3);
    let sum = rig.put(&[0; 8 * SQUARES], 2 * SQUARES);
    rig.device.squares(sum, none).unwrap();
    assert_eq!(rig.whole(sum)[2 * (SQUARES - 1)], 2, "two are no numbers");
}
