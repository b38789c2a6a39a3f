//! Where the two halves meet: gradients from all ranks, weights to all ranks, and in the middle an
//! optimizer whose state comes from files and goes back there, chunk by chunk. No gradient is ever
//! written, and the weights have the bits of the same steps in memory.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use brigade_comm::{Communicator, Op, Settings, ShardUpdate};
use brigade_offload::memory::{Arena, Budget, Category};
use brigade_offload::optimizer::{
    AdamW, Crew, Gradients, Moment, Narrowed, Shard, Update, Weights,
};
use brigade_offload::step::{
    Files, Format, Home, Optimize, Pipeline, Running, Shape, Span, State, Tier,
};
use brigade_offload::storage::{self, File, Priority, Storage};
use half::bf16;

const STEPS: u64 = 3;
const LIMIT: Duration = Duration::from_secs(30);
const ADAMW: AdamW = AdamW { lr: 1e-2, beta1: 0.9, beta2: 0.95, eps: 1e-8, decay: 0.1 };

/// A folder that is gone when the test ends, well or not.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("brigade-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What cannot be removed stays in a folder for such things.
        let _gone = std::fs::remove_dir_all(&self.0);
    }
}

fn gradient(rank: usize, step: u64, index: usize) -> f32 {
    let mixed = (index as u64 + 1)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .wrapping_add(step * 977 + rank as u64 * 131);
    (mixed >> 40) as f32 / (1 << 23) as f32 - 1.0
}

fn start(index: usize) -> f32 {
    (index % 1_000) as f32 / 250.0 - 2.0
}

/// The shard's master weights and moments, streamed through a pipeline by whoever asks for parts.
struct Streamed<'a, H: Home> {
    running: Running<'a, H>,
    optimize: Optimize<'a>,
    parts: usize,
    waits: usize,
}

impl<H: Home> ShardUpdate<f32, bf16> for Streamed<'_, H> {
    fn is_ready(&mut self, part: Range<usize>) -> bool {
        let is_ready = self.running.is_ready(part);
        self.waits += usize::from(!is_ready);
        is_ready
    }

    fn update(&mut self, part: Range<usize>, gradients: &mut [f32], weights: &mut [bf16]) {
        let (optimize, first) = (&mut self.optimize, part.start);
        self.parts += 1;
        let mut middle = |elements: Range<usize>, arrays: &mut [&mut [u8]]| {
            let here = elements.start - first..elements.end - first;
            let narrowed = Narrowed::Bf16(&mut weights[here.clone()]);
            let gradients = Gradients::F32(&gradients[here]);
            Ok(optimize.part(elements, arrays, gradients, narrowed)?)
        };
        self.running.update(part, &mut middle).expect("the files are whole");
    }
}

/// One rank's state in a file: master weights, means, mean squares, one after another.
struct Disk {
    storage: Storage,
    file: File,
    arena: Arena,
    elems: usize,
}

impl Disk {
    fn new(folder: &Path, rank: usize, shard: Range<usize>) -> Self {
        let arena = Arena::new(Budget::new(16 << 20)).expect("there is memory");
        let storage = Storage::new(&arena, storage::Settings::default()).expect("an engine");
        let path = folder.join(format!("state-{rank}"));
        let bytes = 3 * Self::array_bytes(shard.len());
        let file = storage.create(&path, bytes).expect("there is space");
        let disk = Self { storage, file, arena, elems: shard.len() };
        let masters: Vec<f32> = shard.map(start).collect();
        for (array, numbers) in
            [masters, vec![0.0; disk.elems], vec![0.0; disk.elems]].into_iter().enumerate()
        {
            if disk.elems > 0 {
                let mut buffer =
                    disk.arena.take(4 * disk.elems, Category::Optimizer).expect("room");
                buffer.view_mut::<f32>().copy_from_slice(&numbers);
                let (at, range) = (disk.at(array), 0..4 * disk.elems);
                let write = disk.storage.write(&disk.file, at, buffer, range, Priority::Urgent);
                write.wait(LIMIT).result.expect("it is written");
            }
        }
        disk
    }

    fn array_bytes(elems: usize) -> u64 {
        (4 * elems as u64).next_multiple_of(4096).max(4096)
    }

    fn at(&self, array: usize) -> u64 {
        array as u64 * Self::array_bytes(self.elems)
    }

    fn home(&self) -> Files {
        let span = |array| Span {
            file: self.file.clone(),
            read_at: self.at(array),
            write_at: self.at(array),
        };
        Files::new(&self.storage, (0..3).map(span).collect())
    }
}

/// The weights after some steps with the state on disk, and how many parts each step had.
fn on_disk(comm: &Communicator, folder: &Path, elems: usize) -> (Vec<bf16>, usize) {
    let (me, shard) = (comm.rank(), comm.shard(elems));
    let disk = Disk::new(folder, me, shard.clone());
    let mut weights: Vec<bf16> = (0..elems).map(|index| bf16::from_f32(start(index))).collect();
    let mut crew = Crew::new(1).expect("a thread");
    let mut pipeline =
        Pipeline::new(&disk.arena, Shape::cut(shard.len(), &[4, 4, 4], 4096)).expect("it fits");
    let mut parts = 0;
    for step in 1..=STEPS {
        let mut gradients: Vec<f32> = (0..elems).map(|index| gradient(me, step, index)).collect();
        let groups = [(0..shard.len(), ADAMW.at(step, 1.0))];
        let streamed = Tier::Streamed(Format::F32);
        let state = State {
            weights: streamed,
            mean: Tier::Streamed(Format::F32),
            square: Tier::Streamed(Format::F32),
        };
        let mut home = disk.home();
        let running = pipeline.begin(&mut home).expect("it begins");
        let optimize = Optimize { crew: &mut crew, groups: &groups, state };
        let mut update = Streamed { running, optimize, parts: 0, waits: 0 };
        comm.sharded_update(&mut gradients, Op::Avg, &mut weights, &mut update).expect("a step");
        parts = update.parts;
        let moved = update.running.finish().expect("all of it is written");
        assert_eq!([moved.read_bytes, moved.written_bytes], [12 * shard.len() as u64; 2]);
    }
    (weights, parts)
}

/// The same with everything in memory.
fn in_memory(comm: &Communicator, elems: usize) -> Vec<bf16> {
    let (me, shard) = (comm.rank(), comm.shard(elems));
    let mut weights: Vec<bf16> = (0..elems).map(|index| bf16::from_f32(start(index))).collect();
    let mut masters: Vec<f32> = shard.clone().map(start).collect();
    let (mut mean, mut square) = (vec![0.0; shard.len()], vec![0.0; shard.len()]);
    let mut crew = Crew::new(2).expect("threads");
    for step in 1..=STEPS {
        let mut gradients: Vec<f32> = (0..elems).map(|index| gradient(me, step, index)).collect();
        let rule: Update = ADAMW.at(step, 1.0);
        let mut update = |part: Range<usize>, gradients: &mut [f32], narrowed: &mut [bf16]| {
            let shard = Shard {
                weights: Weights::F32(&mut masters[part.clone()]),
                gradients: Gradients::F32(gradients),
                mean: Moment::F32(&mut mean[part.clone()]),
                square: Moment::F32(&mut square[part]),
                narrowed: Narrowed::Bf16(narrowed),
            };
            rule.apply(&mut crew, shard).expect("the arrays fit");
        };
        comm.sharded_update(&mut gradients, Op::Avg, &mut weights, &mut update).expect("a step");
    }
    weights
}

#[test]
fn a_step_over_ranks_and_files_has_the_bits_of_a_step_in_memory() {
    let folder = Folder::new("streamed-update");
    for transport in ["loopback", "shm"] {
        for (ranks, elems) in [(1, 50_000), (2, 200_001), (3, 70_000), (4, 3)] {
            let settings = Settings {
                transport: transport.into(),
                window_bytes: 64 << 10,
                ..Settings::default()
            };
            let world = Communicator::local_world(ranks, &settings).expect("a world");
            let path = &folder.0;
            std::thread::scope(|scope| {
                let run = |comm: Communicator| {
                    scope.spawn(move || {
                        let (got, parts) = on_disk(&comm, path, elems);
                        let want = in_memory(&comm, elems);
                        let wrong = got.iter().zip(&want).position(|(got, want)| got != want);
                        let rank = comm.rank();
                        assert_eq!(wrong, None, "{transport}, rank {rank} of {ranks}, {elems}");
                        assert!(elems < 50_000 || parts > 2, "{parts} parts: nothing overlaps");
                    })
                };
                world.into_iter().map(run).collect::<Vec<_>>().into_iter().for_each(|rank| {
                    rank.join().expect("every rank ends well");
                });
            });
        }
    }
}
