//! Each operation on a device against the processor's.

mod attention;
mod mixture;

use super::{beside, has_device};
use brigade_cuda::{Context, Cuda, DeviceMemory, Stream};
use brigade_trainer::kernels::cuda::{Columns, Device, Inside, Norm, Room, View};
use brigade_trainer::kernels::{Cpu, Heads, Kernels};

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
        let _beside = beside();
        let device = Cuda::load().unwrap().device(0).unwrap();
        let stream = Stream::new(&Context::new(&device).unwrap()).unwrap();
        let memory = DeviceMemory::new(stream.context(), 8 << 20).unwrap();
        let room = Room::at(memory.address());
        let device = Device::new(&stream, Inside::Full).unwrap();
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

#[test]
fn linear_layers_agree() {
    if !has_device() {
        return;
    }
    let mut rig = Rig::new();
    let (inputs, outputs) = (WIDTH, 131);
    let (x, x_there) = rig.random(ROWS * inputs);
    let (weight, weight_there) = rig.random(outputs * inputs);
    let (bias, bias_there) = rig.random(outputs);
    let (onto, onto_there) = rig.random(ROWS * outputs);
    let mut y = vec![0.0; ROWS * outputs];
    let y_there = rig.unwritten(ROWS * outputs);
    Cpu.linear(&mut y, &x, &weight, &bias, inputs, Some(&onto));
    rig.device.leave(y_there, x_there, [weight_there, bias_there], Some(onto_there)).unwrap();
    rig.check("leaving", y_there, &y);
    Cpu.linear(&mut y, &x, &weight, &bias, inputs, None);
    rig.device.enter(y_there, x_there, weight_there, bias_there).unwrap();
    rig.check("entering", y_there, &y);
    Cpu.linear(&mut y, &x, &weight, &[], inputs, None);
    rig.device.project(y_there, x_there, weight_there, outputs).unwrap();
    rig.check("projecting", y_there, &y);

    let (mut dx, mut dweight, mut dbias) =
        (vec![0.0; ROWS * inputs], vec![0.0; outputs * inputs], vec![0.0; outputs]);
    Cpu.linear_backward(&mut dx, &mut dweight, &mut dbias, &onto, &x, &weight, inputs);
    let [dx_there, dweight_there, dbias_there] =
        [ROWS * inputs, outputs * inputs, outputs].map(|len| rig.unwritten(len));
    let device = &rig.device;
    device
        .linear_backward(dx_there, dweight_there, onto_there, x_there, weight_there, outputs)
        .unwrap();
    let partials = rig.unwritten(Device::partials(outputs, 1));
    rig.device.bias_backward(dbias_there, onto_there, partials).unwrap();
    rig.check("linear's dx", dx_there, &dx);
    rig.check("linear's dweight", dweight_there, &dweight);
    rig.check("linear's dbias", dbias_there, &dbias);
}

/// A layer in tiles of its outputs, whose columns lie among those of the others.
#[test]
fn linear_layers_agree_tile_by_tile() {
    if !has_device() {
        return;
    }
    let mut rig = Rig::new();
    let (inputs, outputs) = (WIDTH, 131);
    let (x, x_there) = rig.random(ROWS * inputs);
    let (weight, weight_there) = rig.random(outputs * inputs);
    let (bias, bias_there) = rig.random(outputs);
    let (onto, onto_there) = rig.random(ROWS * outputs);
    let [left, entered, dx_there] =
        [outputs, outputs, inputs].map(|width| rig.unwritten(ROWS * width));
    let [dweight_there, dbias_there] = [outputs * inputs, outputs].map(|len| rig.unwritten(len));
    let partials = rig.unwritten(Device::partials(outputs, 1));
    let device = &rig.device;
    for (at, tile) in [40..41, 0..40, 41..131].into_iter().enumerate() {
        let of_weight = tile.start * inputs..tile.end * inputs;
        let layer = [weight_there.part(of_weight.clone()), bias_there.part(tile.clone())];
        let columns = |view| Columns::all(view, outputs).part(tile.clone());
        device.leave_columns(columns(left), x_there, layer, Some(columns(onto_there))).unwrap();
        device.enter_columns(columns(entered), x_there, layer).unwrap();
        let dy = columns(onto_there);
        device.columns_input(dx_there, dy, layer[0], at == 0).unwrap();
        device.columns_weight(dweight_there.part(of_weight), dy, x_there).unwrap();
        device.columns_bias(dbias_there.part(tile.clone()), dy, partials).unwrap();
    }
    let mut y = vec![0.0; ROWS * outputs];
    Cpu.linear(&mut y, &x, &weight, &bias, inputs, Some(&onto));
    rig.check("leaving", left, &y);
    Cpu.linear(&mut y, &x, &weight, &bias, inputs, None);
    rig.check("entering", entered, &y);
    let (mut dx, mut dweight, mut dbias) =
        (vec![0.0; ROWS * inputs], vec![0.0; outputs * inputs], vec![0.0; outputs]);
    Cpu.linear_backward(&mut dx, &mut dweight, &mut dbias, &onto, &x, &weight, inputs);
    rig.check("linear's dx", dx_there, &dx);
    rig.check("linear's dweight", dweight_there, &dweight);
    rig.check("linear's dbias", dbias_there, &dbias);
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
