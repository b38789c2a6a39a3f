//! Schedules of pipelines, without a tensor: what they say, what is wrong with them, how long they
//! take, and that torch.distributed.pipelining understands them.

use brigade_trainer::parallel::pipeline::{
    Action, Cell, Kind, Needs, Order, Plan, Schedule, Timeline, generate,
};
use std::path::PathBuf;
use std::process::Command;

const ORDERS: [Order; 6] =
    [Order::Gpipe, Order::OneFOneB, Order::Interleaved, Order::Zb1p, Order::Zbv, Order::DualPipeV];

/// Every order with 1 to 8 ranks and 1 to 32 micro-batches, as far as there is one.
fn all() -> Vec<(Order, usize, usize, usize, Schedule)> {
    let mut all = Vec::new();
    for order in ORDERS {
        for ranks in 1..=8 {
            for micros in 1..=32 {
                let most = if order == Order::Interleaved { 3 } else { 1 };
                for chunks in 1..=most {
                    if let Ok(schedule) = generate(order, ranks, chunks, micros) {
                        all.push((order, ranks, micros, chunks, schedule));
                    }
                }
            }
        }
    }
    assert!(all.len() > 4 * 8 * 32, "{} schedules", all.len());
    all
}

fn bubble(schedule: &Schedule, backward: f64) -> f64 {
    let plan = Plan::new(schedule).unwrap();
    let seconds = |action: Action| match action.kind {
        Kind::Forward | Kind::Input | Kind::Weight => 1.0,
        Kind::Backward => backward,
        _ => 0.0,
    };
    Timeline::predict(&plan.schedule, &plan.shape, seconds).unwrap().bubble()
}

#[test]
fn every_order_comes_to_an_end_with_every_micro_batch() {
    for (order, ranks, micros, chunks, schedule) in all() {
        let plan = Plan::new(&schedule);
        let plan = plan.unwrap_or_else(|fault| panic!("{order:?} {ranks} {micros}: {fault}"));
        assert_eq!(plan.shape.micros, micros, "{order:?}, {ranks} ranks");
        let stages = order.stages_per_rank(chunks) * ranks;
        assert_eq!(plan.shape.stages(), stages);
    }
}

/// What is completed in the square of its length would take minutes here.
#[test]
fn long_schedules_are_completed() {
    for (order, ranks, micros) in [(Order::Gpipe, 1, 60_000), (Order::OneFOneB, 2, 20_000)] {
        let plan = Plan::new(&generate(order, ranks, 1, micros).unwrap()).unwrap();
        assert_eq!(plan.shape.micros, micros, "{order:?}");
    }
    let plan = Plan::new(&generate(Order::Gpipe, 2, 1, 30_000).unwrap()).unwrap();
    assert_eq!(plan.shape.stages(), 2);
}

#[test]
fn bubbles_are_those_of_the_papers() {
    for (order, ranks, micros, chunks, schedule) in all() {
        let (p, m, v) = (ranks as f64, micros as f64, chunks as f64);
        let (got, want) = match order {
            Order::Gpipe | Order::OneFOneB => (bubble(&schedule, 2.0), (p - 1.0) / (m + p - 1.0)),
            Order::Interleaved if micros % ranks == 0 => {
                (bubble(&schedule, 2.0), (p - 1.0) / (v * m + p - 1.0))
            }
            Order::Zb1p if micros >= ranks => {
                (bubble(&schedule, 2.0), (p - 1.0) / (3.0 * m + p - 1.0))
            }
            Order::Zbv if micros >= 2 * ranks - 1 => {
                (bubble(&schedule, 2.0), (p - 1.0) / (6.0 * m + p - 1.0))
            }
            Order::DualPipeV if micros >= 2 * ranks => {
                (bubble(&schedule, 2.0), (p - 1.0) / (3.0 * m + p - 1.0))
            }
            _ => continue,
        };
        let what = format!("{order:?}, {ranks} ranks, {micros} micro-batches, {chunks} chunks");
        assert!((got - want).abs() < 1e-9, "{what}: {got}, not {want}");
    }
}

#[test]
fn micro_batches_in_memory_are_as_many_as_they_must_be() {
    for (order, ranks, micros, _, schedule) in all() {
        let plan = Plan::new(&schedule).unwrap();
        for rank in 0..ranks {
            let live = Needs::of(&plan.schedule, &plan.shape, rank).live;
            let what = format!("{order:?}, rank {rank} of {ranks}, {micros} micro-batches");
            match order {
                Order::Gpipe => assert_eq!(live, micros, "{what}"),
                Order::OneFOneB => assert_eq!(live, micros.min(ranks - rank), "{what}"),
                // Of two stages, which hold half as much each.
                Order::Zbv => assert!(live <= 2 * ranks, "{what}: {live}"),
                Order::Zb1p => assert!(live <= ranks, "{what}: {live}"),
                Order::DualPipeV if micros >= 2 * ranks => {
                    assert_eq!(live, 2 * ranks + 1, "{what}")
                }
                Order::DualPipeV => assert!(live <= 2 * micros, "{what}: {live}"),
                Order::Interleaved => {}
            }
        }
    }
}

#[test]
fn stages_are_whole_until_a_schedule_lets_go_of_them() {
    let needs = |text: &str| {
        let plan = Plan::new(&text.parse::<Schedule>().unwrap()).unwrap();
        let needs = Needs::of(&plan.schedule, &plan.shape, 0);
        (needs.whole, needs.stages.iter().map(|stage| stage.gathers).collect::<Vec<_>>())
    };
    let turns = |rows: usize| (0..rows).map(|stage| format!("{stage}F0")).collect::<Vec<_>>();
    // Of more than three stages of a rank, three at a time, and the last ones stay.
    let (forward, back) = (turns(5), (0..5).rev().map(|stage| format!("{stage}B0")));
    let all: Vec<String> = forward.into_iter().chain(back).collect();
    assert_eq!(needs(&all.join(",")), (3, vec![2, 2, 1, 1, 1]));
    // A file with messages says so itself, or not at all, and lets go where it likes.
    let first = "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1";
    let other = "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1";
    assert_eq!(needs(&format!("{first}\n{other}")), (1, vec![1, 0]));
    let first = first.replace("0F1,", "0RESHARD,0F1,") + ",0UNSHARD,0RESHARD,0UNSHARD";
    assert_eq!(needs(&format!("{first}\n{other}")), (1, vec![3, 0]));
}

#[test]
fn an_interleaved_pipeline_says_which_micro_batches_it_takes() {
    let fault = generate(Order::Interleaved, 4, 2, 11).unwrap_err().to_string();
    assert!(fault.contains("such as 12"), "{fault}");
    assert!(generate(Order::Interleaved, 4, 2, 12).is_ok());
}

#[test]
fn what_is_written_is_what_is_read() {
    for (_, _, _, _, schedule) in all().into_iter().step_by(7) {
        let plan = Plan::new(&schedule).unwrap();
        for schedule in [schedule, plan.schedule] {
            assert_eq!(schedule.to_string().parse::<Schedule>().unwrap(), schedule);
        }
    }
}

fn golden(name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests").join(name);
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn the_golden_files_are_one_schedule_in_two_dialects() {
    let schedule: Schedule = golden("pipeline.csv").parse().unwrap();
    let plan = Plan::new(&schedule).unwrap();
    assert_eq!(plan.schedule.to_string().replace("\r\n", "\n"), golden("pipeline_comms.csv"));
    let again = Plan::new(&golden("pipeline_comms.csv").parse().unwrap()).unwrap();
    assert_eq!(again.schedule, plan.schedule);
    assert!(golden("pipeline.csv").contains(",,"), "bubbles are empty cells");
}

#[test]
fn files_are_refused_by_row_and_cell() {
    for (text, place, problem) in [
        ("", "", "there is no rank"),
        ("0F0,0X0", "row 1 (rank 0), cell 2, \"0X0\"", "no action"),
        ("0F0,0B0\n1F0,1B", "row 2 (rank 1), cell 2, \"1B\"", "which?"),
        ("0F99999999999999999999", "cell 1", "no action"),
        ("99999F0", "cell 1", "no action"),
        ("0UNSHARD3", "cell 1", "of no single micro-batch"),
        ("(0F0;0F1)OVERLAP_F_B", "cell 1", "a forward and a backward"),
        ("(0F0;0B0", "cell 1", "no pair"),
        ("0F0é\u{1b}[2J", "cell 1", "no action"),
    ] {
        let fault = text.parse::<Schedule>().unwrap_err().to_string();
        assert!(fault.contains(place) && fault.contains(problem), "{text:?}: {fault}");
        assert!(!fault.contains('\u{1b}'), "a file cannot steer the terminal");
    }
}

#[test]
fn what_makes_no_sense_is_refused_where_it_is() {
    for (text, problem) in [
        ("0B0,0F0", "cell 1, 0B0: 0F0 does not come before it"),
        ("0F0,0W0,0I0", "cell 2, 0W0: 0I0 does not come before it"),
        ("0F0,0F0,0B0", "cell 2, 0F0: it is done a second time"),
        ("0F0,0F1,0B0,0I0,0W0", "cell 4, 0I0: 0B0 has done that"),
        ("0F0,0F1,0I0,0B0", "cell 4, 0B0: 0I0 has done that"),
        ("0F0,0B0\n0F1,0B1", "row 2 (rank 1), cell 1, 0F1: stage 0 is on rank 0"),
        ("0F0,0B0\n2F0,2B0", "no rank has stage 1"),
        ("0F0,0F1,0B0", "2 micro-batches through 1 stages are 2 forwards"),
        ("0F0,0I0", "there are 1 and 0"),
        ("0F0,0B0\n,", "rank 1 has nothing to do"),
        ("0F65000,0B65000", "65001 micro-batches through 1 stages"),
        // Each waits for what the other does next.
        ("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0", "rank 1 at 1F1"),
        // Messages that cross, that nobody sends, that nobody receives.
        (
            "0F0,0F1,0SEND_F0,0SEND_F1,0RECV_B0,0RECV_B1,0B0,0B1\n\
          1RECV_F1,1RECV_F0,1F0,1SEND_B0,1F1,1B0,1B1,1SEND_B1",
            "1SEND_B0: 1I0 does not come",
        ),
        (
            "0F0,0F1,0SEND_F0,0SEND_F1,0RECV_B0,0RECV_B1,0B0,0B1\n\
          1RECV_F1,1RECV_F0,1F0,1F1,1B0,1SEND_B0,1B1,1SEND_B1",
            "would get what was sent for",
        ),
        ("0F0,0SEND_F0,0RECV_B0,0B0\n1F0,1B0,1SEND_B0", "1RECV_F0 does not come before it"),
        ("0F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0", "never comes"),
    ] {
        let fault = text.parse().and_then(|schedule| Plan::new(&schedule)).unwrap_err().to_string();
        assert!(fault.contains(problem), "{text:?}: {fault}");
    }
}

/// A schedule that lacks a computation, has one twice, or does two of the same rank in the other
/// order is refused, or still does everything.
#[test]
fn mutants_are_refused_or_harmless() {
    let seed = 5;
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let (mut refused, all) = (0, all());
    for _ in 0..2000 {
        let (order, ranks, micros, _, schedule) = &all[rng.usize(..all.len())];
        let mut mutant = schedule.clone();
        let row = &mut mutant.rows[rng.usize(..*ranks)];
        let (at, other) = (rng.usize(..row.len()), rng.usize(..row.len()));
        let must_be_refused = match rng.u8(..3) {
            0 => {
                row.remove(at);
                true
            }
            1 => {
                row.insert(other, row[at]);
                true
            }
            _ => {
                row.swap(at, other);
                false
            }
        };
        match Plan::new(&mutant) {
            Err(_) => refused += 1,
            Ok(plan) => {
                assert!(!must_be_refused, "{order:?}, {ranks} ranks, {micros}: {mutant}");
                assert_eq!(plan.shape, Plan::new(schedule).unwrap().shape);
            }
        }
    }
    assert!(refused > 1300, "{refused} of 2000");
}

/// Lowering by torch's own passes, its generators and its checks; rows of CSV in, rows out.
const TORCH: &str = r#"
import sys, types, csv
try:
    import torch.distributed.pipelining.schedules as s
except ModuleNotFoundError:
    sys.exit(76)
if not hasattr(s, "_add_wait_send"):
    sys.exit(77)
def read(path):
    with open(path, newline="") as f:
        return {r: [s._Action.from_str(c) for c in row] for r, row in enumerate(csv.reader(f))}
def write(path, rows):
    with open(path, "w", newline="") as f:
        w = csv.writer(f)
        for r in sorted(rows):
            w.writerow(rows[r])
def check(kind, ranks, chunks, micros, folder):
    compute, comms, out = (f"{folder}/{name}.csv" for name in ("compute", "comms", "out"))
    stages = ranks * chunks
    rows = read(compute)
    home = s._validate_schedule(rows, ranks, stages, micros)
    rounds = max(1, micros // ranks)
    me = types.SimpleNamespace(pp_group_size=ranks, n_local_stages=chunks, _n_microbatches=micros,
        num_stages=stages, number_of_rounds=rounds, microbatches_per_round=micros // rounds)
    cls = {"Interleaved": s.ScheduleInterleaved1F1B, "Zb1p": s.ScheduleInterleavedZeroBubble,
           "Zbv": s.ScheduleZBVZeroBubble, "DualPipeV": s.ScheduleDualPipeV}.get(kind)
    for r in range(ranks):
        if cls is not None:
            theirs = [a for a in cls._calculate_single_rank_operations(me, r) if a is not None]
            assert theirs == rows[r], (kind, r, theirs, rows[r])
    low = {r: s._add_reduce_grad(s._add_unshard_reshard(rows[r]), micros) for r in rows}
    low = s._add_send_recv(low, stage_to_rank=lambda x: home[x], num_stages=stages)
    write(out, s._add_wait_send(low))
    s._validate_send_waits(read(comms))
for case in sys.argv[1:]:
    kind, ranks, chunks, micros, folder = case.split(",", 4)
    check(kind, int(ranks), int(chunks), int(micros), folder)
"#;

#[test]
fn torch_reads_and_makes_the_same_files() {
    let python = std::env::var("TORCH_PYTHON").unwrap_or_else(|_| "python3".to_string());
    let folder = Folder::new();
    let mut cases = Vec::new();
    let mut plans = Vec::new();
    for (order, ranks, chunks, micros) in [
        (Order::Gpipe, 3, 1, 4),
        (Order::OneFOneB, 4, 1, 8),
        (Order::Interleaved, 4, 2, 8),
        (Order::Interleaved, 2, 3, 6),
        (Order::Zb1p, 4, 1, 7),
        (Order::Zbv, 4, 2, 9),
        (Order::Zbv, 3, 2, 2),
        (Order::DualPipeV, 2, 2, 5),
        (Order::DualPipeV, 3, 2, 9),
    ] {
        let schedule = generate(order, ranks, chunks, micros).unwrap();
        let plan = Plan::new(&schedule).unwrap();
        let place = folder.0.join(plans.len().to_string());
        std::fs::create_dir(&place).unwrap();
        std::fs::write(place.join("compute.csv"), schedule.to_string()).unwrap();
        std::fs::write(place.join("comms.csv"), plan.schedule.to_string()).unwrap();
        cases.push(format!("{order:?},{ranks},{chunks},{micros},{}", place.display()));
        plans.push((place, plan));
    }
    // One process for all: importing torch takes seconds.
    let run = Command::new(&python).args(["-c", TORCH]).args(&cases).output();
    let Some(run) = run.ok().filter(|run| run.status.code() != Some(76)) else {
        println!("skipped: {python} has no torch; TORCH_PYTHON names one that has");
        return;
    };
    if run.status.code() == Some(77) {
        println!("skipped: this torch has no explicit waits yet");
        return;
    }
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    for (case, (place, plan)) in cases.iter().zip(plans) {
        let theirs = std::fs::read_to_string(place.join("out.csv")).unwrap();
        assert_eq!(theirs, plan.schedule.to_string(), "{case}");
    }
    let overlap: Schedule = "0F0,(0F1;0B0)OVERLAP_F_B,0B1\r\n".parse().unwrap();
    assert!(matches!(overlap.rows[0][1], Cell::Overlap(_)));
}

/// A folder that is gone when the test ends, well or not.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        let path = std::env::temp_dir().join(format!("brigade-pipeline-{}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let gone = std::fs::remove_dir_all(&self.0);
        assert!(gone.is_ok() || std::thread::panicking(), "{gone:?}");
    }
}
