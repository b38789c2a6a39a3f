//! Ranks that divide the inside of a model train the same model as one process, send what their
//! formulas say, and leave checkpoints that anybody can go on from.

use brigade_comm::{Communicator, Settings};
use brigade_trainer::data::Corpus;
use brigade_trainer::kernels::Cpu;
use brigade_trainer::layout::Config;
use brigade_trainer::model::Gpt;
use brigade_trainer::optim::{Hyper, Optimizer};
use brigade_trainer::parallel::tensor::Split;
use brigade_trainer::parallel::{
    Axis, Batch, DataParallel, Lanes, Memory, Mesh, Sharing, Stage, Strategy, Thrift,
};
use brigade_trainer::state::State;
use brigade_trainer::{Outcome, train};

const SEED: u64 = 1851;
const SAMPLES: usize = 36;
/// Everything divides by 2, 3 and 4; contexts have chunks for 4 ranks of a ring.
const CONFIG: Config =
    Config { vocab: 256, context: 24, layers: 2, heads: 12, width: 36, experts: 0, top: 0 };

const TP: Split = Split::Heads;
const SP: Split = Split::Sequence;

/// How a rank of a run ended.
struct End {
    losses: Vec<f64>,
    state: State,
    sent: u64,
    formula: u64,
    memory: Memory,
}

/// A run: its mesh, how tensors are divided, what is held in parts, lanes one after the other.
#[derive(Clone, Copy, Debug)]
struct Way {
    mesh: &'static str,
    inside: Split,
    stage: Stage,
    slots: usize,
}

fn way(mesh: &'static str, inside: Split) -> Way {
    Way { mesh, inside, stage: Stage::Ddp, slots: 1 }
}

/// One rank's run of some steps from a state, or a process alone.
fn rank(way: Way, world: Option<Communicator>, start: &State, steps: usize) -> End {
    let mesh: Mesh = way.mesh.parse().unwrap();
    let me = world.as_ref().map_or(0, Communicator::rank);
    let groups = world.map(|world| mesh.split(&world).unwrap()).unwrap_or_default();
    let (shares, share) = (mesh.length(Axis::Dp), mesh.place(me, Axis::Dp));
    let lanes = Lanes::new(SAMPLES, shares * way.slots, share, shares).unwrap();
    let model = match groups.tp {
        Some(tp) => {
            let division = way.inside.divide(tp, &CONFIG, lanes.samples()).unwrap();
            Gpt::divided(CONFIG, Cpu, division).unwrap()
        }
        None => Gpt::new(CONFIG, Cpu).unwrap(),
    };
    let sharing =
        Sharing { stage: way.stage, is_ordered: false, slots: lanes.slots(), ..Sharing::default() };
    let optimizer = Optimizer::new(Hyper::default(), 1, start.steps).unwrap();
    let dp = groups.dp.as_ref();
    let mut run =
        DataParallel::new(&model, dp, lanes, sharing, optimizer, &Thrift::default(), start)
            .unwrap();
    let memory = run.memory();
    let corpus = Corpus::open(None).unwrap();
    let batch = |step| Batch {
        corpus: &corpus,
        seed: SEED,
        step,
        samples: SAMPLES,
        context: CONFIG.context,
    };
    let before = run.sent_bytes();
    let losses = (start.steps..start.steps + steps)
        .map(|step| run.step(&batch(step), 3e-3).unwrap().loss)
        .collect();
    let (sent, formula) = (run.sent_bytes() - before, run.formula_bytes() * steps as u64);
    let state = run.gather().unwrap();
    End { losses, state, sent, formula, memory }
}

fn world(way: Way, start: &State, steps: usize) -> Vec<End> {
    let ranks = way.mesh.parse::<Mesh>().unwrap().ranks();
    let settings = Settings { transport: "loopback".to_string(), ..Settings::default() };
    std::thread::scope(|scope| {
        let run = |comm| scope.spawn(move || rank(way, Some(comm), start, steps));
        let threads: Vec<_> =
            Communicator::local_world(ranks, &settings).unwrap().into_iter().map(run).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn start() -> State {
    State::new(Gpt::new(CONFIG, Cpu).unwrap().initial(SEED))
}

/// Losses within 1e-5 of one process's, the bytes of the formula, the same state on every rank.
fn check(ways: &[Way], steps: usize) {
    let start = start();
    let alone = rank(way("dp=1", TP), None, &start, steps);
    assert!(alone.losses[steps - 1] < alone.losses[0], "the model must learn to count");
    for way in ways {
        let ends = world(*way, &start, steps);
        let mut worst = 0.0f64;
        for (rank, end) in ends.iter().enumerate() {
            for (got, want) in end.losses.iter().zip(&alone.losses) {
                worst = worst.max((got - want).abs() / want);
            }
            assert_eq!(end.sent, end.formula, "bytes of rank {rank}, {way:?}");
            assert!(end.state == ends[0].state, "state of rank {rank}, {way:?}");
        }
        println!("{way:?}: losses within {worst:.1e}, {} bytes of rank 0", ends[0].sent);
        assert!(worst < 1e-5, "{way:?}: losses are off by {worst:e} (seed {SEED})");
    }
}

#[test]
fn heads_and_hidden_numbers_are_divided() {
    check(&[way("tp=2", TP), way("tp=3", TP), way("tp=4", TP)], 8);
}

#[test]
fn rows_of_the_stream_are_divided_too() {
    check(&[way("tp=2", SP), way("tp=3", SP), way("tp=4", SP)], 8);
}

#[test]
fn keys_and_values_go_round() {
    check(&[way("tp=2", Split::Ring), way("tp=3", Split::Ring), way("tp=4", Split::Ring)], 8);
}

#[test]
fn matrices_lie_on_grids() {
    let square = |mesh| way(mesh, Split::Square);
    check(
        &[square("tp=4"), square("tp=9"), way("tp=8", Split::Squares), way("tp=8", Split::Cube)],
        4,
    );
}

#[test]
fn data_and_tensors_are_divided_at_once() {
    let more = |mesh, inside, stage, slots| Way { mesh, inside, stage, slots };
    check(
        &[
            more("dp=2,tp=2", TP, Stage::Ddp, 1),
            more("tp=2,dp=3", SP, Stage::Fsdp, 2),
            more("dp=2,tp=2", Split::Ring, Stage::Zero2, 3),
            more("dp=2,tp=4", Split::Square, Stage::Zero1, 1),
        ],
        4,
    );
}

#[test]
fn a_state_goes_on_in_any_other_way() {
    let start = start();
    let whole = rank(way("dp=1", TP), None, &start, 6).losses;
    for (before, after) in
        [(way("tp=2", TP), way("tp=3", SP)), (way("tp=4", Split::Square), way("tp=2", Split::Ring))]
    {
        let half = world(before, &start, 3).swap_remove(0);
        assert_eq!(half.state.steps, 3);
        let rest = world(after, &half.state, 3).swap_remove(1);
        for (got, want) in half.losses.iter().chain(&rest.losses).zip(&whole) {
            assert!((got - want).abs() / want < 1e-5, "{got}, alone {want}: {before:?}, {after:?}");
        }
    }
}

#[test]
fn the_first_state_is_cut_and_put_together_without_a_change() {
    let start = start();
    for way in [way("tp=3", TP), way("tp=9", Split::Square), way("tp=8", Split::Cube)] {
        for end in world(way, &start, 0) {
            assert!(end.state == start, "{way:?}");
        }
    }
}

#[test]
fn memory_falls_as_the_formulas_say() {
    let start = start();
    let Config { vocab, context, layers, heads, width: c, .. } = CONFIG;
    let n = SAMPLES * context;
    let alone = rank(way("dp=1", TP), None, &start, 0).memory;
    // Of a block: 12 c of matrices inside, their 7 c of biases, and 6 c outside.
    let block = |t: usize| (12 * c * c + 7 * c) / t + 6 * c;
    let edges = (vocab + context) * c + (2 + vocab) * c;
    // Of activations: norms' outputs and statistics and the stream; inside, what heads and the
    // hidden layer make, and the scores; in the end the head's, and what backward needs.
    let activations = |rows: usize, inside: usize| {
        let (outer, inner) = (3 * n * c / rows + 4 * n / rows, 12 * n * c / inside);
        let stream = (layers + 1) * n * c / rows;
        let probs = n * context * heads / inside;
        // Also its rows' places and targets, and the text of the whole pass.
        let head = n / rows * (c + 2 + vocab + 1 + 2) + 2 * n;
        let narrow = (n * c / rows).max(n * c / inside);
        let scratch = n * c / rows + narrow + 4 * n * c / inside + n * context;
        (layers * (outer + inner + probs) + stream + head + scratch) as u64 * 4
    };
    assert_eq!(alone.params, 4 * (layers * block(1) + edges) as u64);
    assert_eq!(alone.activations, activations(1, 1));
    for t in [2, 3, 4] {
        for (inside, rows, name) in
            [(TP, 1, ["tp=2", "tp=3", "tp=4"]), (SP, t, ["tp=2", "tp=3", "tp=4"])]
        {
            let memory = world(way(name[t - 2], inside), &start, 0).swap_remove(0).memory;
            assert_eq!(memory.params, 4 * (layers * block(t) + edges) as u64, "{t} ranks");
            assert_eq!(memory.activations, activations(rows, t), "{inside:?} on {t} ranks");
        }
    }
}

#[test]
fn what_does_not_divide_is_refused_by_name() {
    let settings = Settings { transport: "loopback".to_string(), ..Settings::default() };
    let odd = Config { context: 23, heads: 6, ..CONFIG };
    const SQUARE: &str =
        "--strategy: 2d divides among a square of ranks, such as 4 or 9: 3 make none";
    const CUBE: &str = "--strategy: 3d divides among a cube of ranks, such as 8 or 27: 3 make none";
    for (ranks, inside, problem) in [
        (4, TP, "--heads: 4 ranks cannot share 6 heads evenly; 12 works"),
        (4, Split::Ring, "--context: 8 chunks cannot share 23 evenly; 24 works"),
        (3, Split::Square, SQUARE),
        (3, Split::Cube, CUBE),
    ] {
        let refuse = |comm: Communicator| {
            let refused = inside.divide(comm, &odd, 1).err().expect("it does not divide");
            assert_eq!(refused.to_string(), problem);
        };
        std::thread::scope(|scope| {
            for comm in Communicator::local_world(ranks, &settings).unwrap() {
                scope.spawn(move || refuse(comm));
            }
        });
    }
}

/// A run by flags on every rank of a world of threads.
fn run(ranks: usize, flags: &str) -> Vec<Outcome> {
    let base = "--batch 12 --context 16 --layers 2 --width 16 --heads 4 --quiet --sample 0 \
                --held-out 10 --threads 1 --steps 5";
    let flags = base.split_whitespace().chain(flags.split_whitespace());
    let args = &crate::world::flags(&flags.map(str::to_string).collect::<Vec<_>>());
    let settings = Settings { transport: "loopback".to_string(), ..Settings::default() };
    std::thread::scope(|scope| {
        let one =
            |comm| scope.spawn(move || train(args, Some(comm), &mut std::io::sink(), &mut |_| {}));
        let comms = Communicator::local_world(ranks, &settings).unwrap();
        let threads: Vec<_> = comms.into_iter().map(one).collect();
        threads.into_iter().map(|thread| thread.join().unwrap().unwrap()).collect()
    })
}

/// Runs by these flags agree with one process that has the same model.
fn check_flags(model: &str, ways: &[(usize, &str)]) {
    let alone = run(1, model).swap_remove(0);
    for (ranks, flags) in ways {
        for outcome in run(*ranks, &format!("{model} {flags}")) {
            assert!(outcome.formula_bytes > 0, "{flags} divides something");
            assert_eq!(outcome.sent_bytes, outcome.formula_bytes, "{flags}");
            for (got, want) in outcome.losses.iter().zip(&alone.losses) {
                assert!((got - want).abs() / want < 1e-5, "{flags}: {got}, alone {want}");
            }
            let [end, want] = [&outcome, &alone].map(|it| it.held_out.unwrap());
            assert!((end - want).abs() < 1e-5 * want, "{flags}: the whole model is put together");
        }
    }
}

#[test]
fn flags_choose_ways_and_meshes() {
    let ways = [
        (2, "--strategy tp"),
        (4, "--strategy zero1,sp --mesh dp=2,tp=2"),
        (2, "--strategy ring --accumulate 3"),
        (4, "--strategy 2d --recompute"),
        (2, "--strategy sp --recompute"),
        (8, "--strategy 2.5d"),
        (8, "--strategy 3d"),
        (4, "--mesh tp=2,dp=2"),
        (4, "--strategy 1f1b,tp --mesh pp=2,tp=2 --accumulate 2"),
        (4, "--strategy gpipe,sp --mesh pp=2,tp=2 --accumulate 2"),
        (4, "--strategy 1f1b,ring --mesh pp=2,tp=2 --accumulate 2"),
    ];
    check_flags("", &ways);
}

#[test]
fn experts_are_divided() {
    let ways = [
        (2, "--strategy ep"),
        (4, "--strategy ep"),
        (2, "--strategy ddp"),
        (4, "--strategy fsdp,ep --mesh dp=2,tp=2 --recompute"),
    ];
    check_flags("--experts 4 --top 2", &ways);
    check_flags("--experts 8", &ways[1..2]);
}

#[test]
fn ranks_that_divide_experts_have_the_bits_of_one_process_with_a_lane_for_each() {
    for (ranks, top) in [(2, 1), (2, 2), (3, 2), (4, 2)] {
        let model = format!("--experts 12 --top {top} --ordered --lanes {ranks}");
        let alone = run(1, &model).swap_remove(0);
        for outcome in run(ranks, &format!("{model} --strategy ep")) {
            assert_eq!(outcome.sent_bytes, outcome.formula_bytes, "{ranks} ranks, top {top}");
            let bits = |losses: &[f64]| losses.iter().map(|it| it.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&outcome.losses), bits(&alone.losses), "{ranks} ranks, top {top}");
        }
    }
}
