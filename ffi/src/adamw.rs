//! AdamW over state that lies in files and passes through memory once each step.

use std::ffi::{c_char, c_int, c_void};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use brigade_offload::layout::{Directory, Dtype, Placed, Tensor};
use brigade_offload::optimizer::{AdamW, Crew, Gradients, Narrowed};
use brigade_offload::step::{Drafted, Format, Optimize, Pipeline, Shape, State, StepError, Tier};
use brigade_offload::store::{Carrier, StateFile, StoreError, Which};

use crate::arena::{Tiers, brigade_arena_t, failed, files};
use crate::dtype::DtypeCode;
use crate::error::{Failure, Outcome, brigade_result_t, enter};
use crate::floats::{Copied, lie_apart, parse_copy, parse_gradients};
use crate::settings::sized;
use brigade_wall::Cause;
use brigade_wall::handle::{Noun, Pinned, close, pin, register};
use brigade_wall::pointer::{Out, list, list_mut};

/// Files are read and written in blocks of this size at most.
const BLOCK_BYTES: usize = 1 << 20;
const BLOCK_BYTES_MIN: usize = 4 << 10;
/// A state is cut into so many chunks, if it is not too small for that, so that filling and
/// draining the pipeline costs little.
const CHUNKS: usize = 32;
const ARRAYS: [&str; 3] = ["weights", "mean", "square"];
const THREADS_MAX: c_int = 1024;

/// An optimizer over state in files. What is inside is nobody's.
pub struct brigade_adamw {
    _nobody: (),
}

/// A handle of AdamW over state in files: weights and both moments as float32, 12 bytes an element,
/// of which only some chunks are ever in memory.
pub type brigade_adamw_t = *mut brigade_adamw;

/// How a brigade_adamw_t shall be. Begin with BRIGADE_ADAMW_INIT; members are only ever added at
/// the end.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct brigade_adamw_config_t {
    /// sizeof(brigade_adamw_config_t).
    pub struct_size: usize,
    /// Memory of the mean gradient.
    pub beta1: f32,
    /// Memory of the mean squared gradient.
    pub beta2: f32,
    /// Keeps the division finite.
    pub eps: f32,
    /// Weight decay, apart from the gradients.
    pub decay: f32,
    /// Threads that update.
    pub threads: c_int,
}

/// The same number as in tests/c/layout.c.
const _: () = assert!(size_of::<brigade_adamw_config_t>() == 32);

/// What stands behind a handle.
struct Streamed(Mutex<Machinery>);

struct Machinery {
    carrier: Carrier,
    state: StateFile,
    pipeline: Pipeline,
    crew: Crew,
    config: brigade_adamw_config_t,
    elements: usize,
}

impl Noun for Streamed {
    const KIND: u8 = 7;
    const NAME: &'static str = "optimizer over files";
}

/// A new state in files, one for each path, over which it is striped; what was there is gone, but
/// for an error because memory, room or one of the paths is not to be had. It begins with these
/// weights and moments of zero. `config` may be NULL. Takes five chunks of the arena, of at most
/// 3 MiB each. `adamw` is NULL after an error.
///
/// Threads: from any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_adamw_create(
    adamw: *mut brigade_adamw_t,
    arena: brigade_arena_t,
    paths: *const *const c_char,
    path_count: usize,
    weights: *const f32,
    count: usize,
    config: *const brigade_adamw_config_t,
) -> brigade_result_t {
    let make = |Tiers { arena, carrier, .. }: &Tiers, paths: &[PathBuf]| {
        // SAFETY: C passes as much memory as it says.
        let weights = unsafe { list(weights, count, "weights") }?;
        let block = count.div_ceil(CHUNKS).saturating_mul(4);
        let block = block.clamp(BLOCK_BYTES_MIN, BLOCK_BYTES).next_power_of_two() as u64;
        let tensors = ARRAYS.map(|name| Tensor::whole(name, Dtype::F32, &[count as u64]));
        let directory = Directory::pack(tensors, block).map_err(|error| failed(error.into()))?;
        // Memory that there is too little of shows while what was in the files is there still.
        let shape = Shape::cut(count, &[4; ARRAYS.len()], block as usize / 4);
        Pipeline::new(arena, shape).map_err(|error| failed(error.into()))?;
        let mut state = StateFile::create(carrier, paths, directory, block).map_err(failed)?;
        let bytes: &[u8] = bytemuck::cast_slice(weights);
        let fill = |placed: &Placed, from: u64, target: &mut [u8]| {
            match placed.tensor.name == ARRAYS[0] {
                true => target.copy_from_slice(&bytes[from as usize..][..target.len()]),
                false => target.fill(0),
            }
            Ok(())
        };
        state.save(0, b"", fill).map_err(failed)?;
        Ok(state)
    };
    // SAFETY: the caller's promise.
    unsafe { open(adamw, arena, (paths, path_count), config, make) }
}

/// The state that was left in these files, after the last step that came to its end. `config` may
/// be NULL. `adamw` is NULL after an error.
///
/// Threads: from any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_adamw_open(
    adamw: *mut brigade_adamw_t,
    arena: brigade_arena_t,
    paths: *const *const c_char,
    path_count: usize,
    config: *const brigade_adamw_config_t,
) -> brigade_result_t {
    let make = |Tiers { carrier, .. }: &Tiers, paths: &[PathBuf]| {
        StateFile::open(carrier, paths, Which::Newest).map_err(failed)
    };
    // SAFETY: the caller's promise.
    unsafe { open(adamw, arena, (paths, path_count), config, make) }
}

/// One step: `gradients`, as many as there are weights, of float32, float16 or bfloat16, each
/// multiplied by `scale` first. `copy`, which may be NULL, gets all new weights as `copy_dtype`
/// (float32, float16, bfloat16), and must not overlap `gradients`. Chunks are read, updated and
/// written, all three at a time; then the whole survives a loss of power. If it fails, the state is
/// as it was before the step, and `copy` may have some of what would have been.
///
/// Threads: from any thread; calls on one optimizer come one after the other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_adamw_step(
    adamw: brigade_adamw_t,
    gradients: *const c_void,
    gradient_dtype: DtypeCode,
    copy: *mut c_void,
    copy_dtype: DtypeCode,
    lr: f32,
    scale: f32,
) -> brigade_result_t {
    enter(|| {
        let streamed: Pinned<Streamed> = pin(adamw.addr() as u64)?;
        let mut machinery = streamed.machinery();
        let count = machinery.elements;
        if !(lr.is_finite() && scale.is_finite()) {
            return Err(Failure::argument(format!("lr {lr} and scale {scale} must be finite")));
        }
        let read = gradient_dtype.parse()?;
        let copy = match copy.is_null() {
            true => Copied::None,
            false => {
                let written = copy_dtype.parse()?;
                lie_apart(gradients, copy, count, (read, written))?;
                // SAFETY: C passes room for as many weights as there are, which nobody else reads.
                unsafe { parse_copy(copy, count, written) }?
            }
        };
        // SAFETY: C passes as many gradients as there are weights.
        let gradients = unsafe { parse_gradients(gradients, count, read) }?;
        machinery.step(gradients, copy, lr, scale)
    })
}

/// Read the weights, `count` of them, as many as there are.
///
/// Threads: from any thread; calls on one optimizer come one after the other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_adamw_weights(
    adamw: brigade_adamw_t,
    weights: *mut f32,
    count: usize,
) -> brigade_result_t {
    enter(|| {
        let streamed: Pinned<Streamed> = pin(adamw.addr() as u64)?;
        let machinery = streamed.machinery();
        if count != machinery.elements {
            let has = machinery.elements;
            return Err(Failure::argument(format!("there are {has} weights, not {count}")));
        }
        // SAFETY: C passes as much memory as it says.
        let weights = unsafe { list_mut(weights, count, "weights") }?;
        let state = &machinery.state;
        let placed = &state.directory().tensors()[0];
        state.read_tensor(placed, 0, bytemuck::cast_slice_mut(weights)).map_err(failed)
    })
}

/// How many weights there are, and how many steps they have seen; both may be NULL.
///
/// Threads: from any thread; calls on one optimizer come one after the other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_adamw_size(
    adamw: brigade_adamw_t,
    count: *mut usize,
    steps: *mut u64,
) -> brigade_result_t {
    enter(|| {
        let streamed: Pinned<Streamed> = pin(adamw.addr() as u64)?;
        let machinery = streamed.machinery();
        if !count.is_null() {
            // SAFETY: C passes NULL or a place for it.
            unsafe { Out::new(count, "count")?.put(machinery.elements) };
        }
        if !steps.is_null() {
            // SAFETY: likewise.
            unsafe { Out::new(steps, "steps")?.put(machinery.steps()) };
        }
        Ok(())
    })
}

/// End a handle. The files stay.
///
/// Threads: from any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_adamw_destroy(adamw: brigade_adamw_t) -> brigade_result_t {
    enter(|| close::<Streamed>(adamw.addr() as u64))
}

/// Make an optimizer, and a handle for it.
///
/// # Safety
///
/// All is what C must pass.
unsafe fn open(
    adamw: *mut brigade_adamw_t,
    arena: brigade_arena_t,
    (paths, path_count): (*const *const c_char, usize),
    config: *const brigade_adamw_config_t,
    make: impl FnOnce(&Tiers, &[PathBuf]) -> Outcome<StateFile>,
) -> brigade_result_t {
    enter(|| {
        let out = Out::new(adamw, "adamw")?;
        // SAFETY: the caller's promise.
        unsafe { out.put(std::ptr::null_mut()) };
        let tiers = pin::<Tiers>(arena.addr() as u64)?;
        // SAFETY: the caller's promise.
        let (config, paths) = unsafe { (parse_config(config)?, files(paths, path_count)?) };
        let crew = Crew::new(config.threads as usize)
            .map_err(|error| Failure::system(format!("threads that update: {error}")))?;
        let machinery = Machinery::new(&tiers, make(&tiers, &paths)?, crew, config)?;
        let handle = register(Arc::new(Streamed(Mutex::new(machinery))))?;
        // SAFETY: as above.
        unsafe { out.put(std::ptr::without_provenance_mut(handle as usize)) };
        Ok(())
    })
}

impl Machinery {
    fn new(
        tiers: &Tiers,
        mut state: StateFile,
        crew: Crew,
        config: brigade_adamw_config_t,
    ) -> Outcome<Self> {
        let there = || state.directory().tensors().iter().map(|placed| &placed.tensor);
        let elements = there().next().map_or(0, Tensor::count);
        let whole = |name| Tensor::whole(name, Dtype::F32, &[elements]);
        if !there().eq(ARRAYS.map(whole).iter()) {
            return Err(Failure::argument("these files hold another kind of state"));
        }
        let elements = elements as usize;
        let carrier = tiers.carrier.clone();
        let shape = {
            let tensors: Vec<Placed> = state.directory().tensors().to_vec();
            let mut draft = state.begin().map_err(failed)?;
            let tensors: Vec<&Placed> = tensors.iter().collect();
            let home = Drafted::new(&carrier, &state, &mut draft, &tensors);
            home.map_err(|error| Failure::argument(error.to_string()))?.shape()
        };
        let pipeline = Pipeline::new(&tiers.arena, shape).map_err(|error| failed(error.into()))?;
        Ok(Self { carrier, state, pipeline, crew, config, elements })
    }

    fn steps(&self) -> u64 {
        self.state.generation().map_or(0, |generation| generation.label)
    }

    fn step(
        &mut self,
        gradients: Gradients<'_>,
        mut copy: Copied<'_>,
        lr: f32,
        scale: f32,
    ) -> Outcome {
        let number = self.steps() + 1;
        let Self { carrier, state, pipeline, crew, config, elements } = self;
        let &mut brigade_adamw_config_t { beta1, beta2, eps, decay, .. } = config;
        let update = AdamW { lr, beta1, beta2, eps, decay }.at(number, scale);
        let mut draft = state.begin().map_err(failed)?;
        let tensors: Vec<&Placed> = state.directory().tensors().iter().collect();
        let mut home = Drafted::new(carrier, state, &mut draft, &tensors)
            .map_err(|error| Failure::argument(error.to_string()))?;
        let streamed = || Tier::Streamed(Format::F32);
        let weights = Tier::Streamed(Format::F32);
        let groups = [(0..*elements, update)];
        let state_arrays = State { weights, mean: streamed(), square: streamed() };
        let mut optimize = Optimize { crew, groups: &groups, state: state_arrays };
        let mut middle = |part: std::ops::Range<usize>, arrays: &mut [&mut [u8]]| {
            let mine = gradients.part(part.clone());
            let narrowed = match &mut copy {
                Copied::None | Copied::F32(_) => Narrowed::None,
                Copied::Bf16(copy) => Narrowed::Bf16(&mut copy[part.clone()]),
                Copied::F16(copy) => Narrowed::F16(&mut copy[part.clone()]),
            };
            optimize.part(part.clone(), arrays, mine, narrowed)?;
            if let Copied::F32(copy) = &mut copy {
                bytemuck::cast_slice_mut(&mut copy[part]).copy_from_slice(arrays[0]);
            }
            Ok(())
        };
        pipeline.run(&mut home, &mut middle).map_err(stopped)?;
        state.commit(draft, number, b"").map_err(failed)?;
        Ok(())
    }
}

impl Streamed {
    fn machinery(&self) -> MutexGuard<'_, Machinery> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why a step stopped, for C: of the kind of what stopped it.
#[cold]
fn stopped(error: StepError) -> Box<Failure> {
    let sentence = error.to_string();
    let cause = match error {
        StepError::Memory(_) => Cause::OverBudget,
        StepError::Stopped { cause, .. } => match cause.downcast::<StoreError>() {
            Ok(store) => failed(*store).cause,
            Err(_) => Cause::Argument,
        },
    };
    Failure::new(cause, sentence)
}

/// # Safety
///
/// The config is what C must pass.
unsafe fn parse_config(config: *const brigade_adamw_config_t) -> Outcome<brigade_adamw_config_t> {
    let struct_size = size_of::<brigade_adamw_config_t>();
    let usual = brigade_adamw_config_t {
        struct_size,
        beta1: 0.9,
        beta2: 0.999,
        eps: 1e-8,
        decay: 0.01,
        threads: 1,
    };
    if config.is_null() {
        return Ok(usual);
    }
    // SAFETY: the caller's promise.
    let config: brigade_adamw_config_t = unsafe { sized(config.cast(), "config") }?;
    let brigade_adamw_config_t { beta1, beta2, eps, decay, threads, .. } = config;
    let are_betas = [beta1, beta2].iter().all(|beta| (0.0..1.0).contains(beta));
    if !(are_betas && eps > 0.0 && eps.is_finite() && decay.is_finite()) {
        return Err(Failure::argument(format!(
            "beta1 {beta1} and beta2 {beta2} must be from 0 to below 1, eps {eps} above 0, and \
             decay {decay} finite"
        )));
    }
    if !(1..=THREADS_MAX).contains(&threads) {
        return Err(Failure::argument(format!("{threads} threads: 1 to {THREADS_MAX} can update")));
    }
    Ok(config)
}
