//! The planner's promises: parts sum to the whole, budgets hold, more is never slower, and where it
//! stops fitting is exact.

use brigade_offload::memory::{Arena, Budget, Category};
use brigade_offload::plan::{
    Budgets, Drive, Model, Number, Optimizer, Plan, Rate, Rates, Refusal, Tier, What, plan,
};
use brigade_offload::step::{Pipeline, Shape};

const GIB: u64 = 1 << 30;

fn drive(read: f64, write: f64) -> Drive {
    Drive::new("/mnt/nvme", Rate::given(read), Rate::given(write))
}

fn seven_billion() -> (Model, Budgets, Rates) {
    let budgets =
        Budgets { device_bytes: 24 * GIB, host_bytes: 64 * GIB, drives: vec![drive(6.5, 4.5)] };
    (Model::of_size(7_000_000_000), budgets, Rates::assumed(true))
}

/// A random case that usually fits.
fn any(random: &mut fastrand::Rng) -> (Model, Budgets, Rates) {
    let pick = |random: &mut fastrand::Rng, from: &[Number]| from[random.usize(..from.len())];
    let all = [Number::F32, Number::Bf16, Number::F16];
    let mut model = match random.bool() {
        true => Model::of_size(random.u64(1..20_000_000_000)),
        false => Model::transformer(
            random.u64(1..80),
            64 * random.u64(1..100),
            random.u64(1..100_000),
            1 << random.u32(0..14),
        ),
    };
    model.tokens = random.u64(1..200_000);
    model.shards = random.u64(1..9);
    model.optimizer = Optimizer::ALL[random.usize(..Optimizer::ALL.len())];
    model.weights = pick(random, &all);
    model.gradients = pick(random, &all);
    model.moments = pick(random, &all[..2]);
    model.master = random.bool().then_some(Number::F32);
    let budgets = Budgets {
        device_bytes: if random.bool() { 0 } else { random.u64(GIB..80 * GIB) },
        host_bytes: random.u64(GIB / 4..128 * GIB),
        drives: (0..random.usize(0..4)).map(|_| any_drive(random)).collect(),
    };
    let rates = Rates {
        link: Rate::given(1.0 + 50.0 * random.f64()),
        update: Rate::given(1.0 + 200.0 * random.f64()),
        peak: Rate::given(0.01 + 1000.0 * random.f64()),
    };
    (model, budgets, rates)
}

fn any_drive(random: &mut fastrand::Rng) -> Drive {
    let mut drive = drive(0.1 + 10.0 * random.f64(), 0.1 + 10.0 * random.f64());
    drive.both = random.bool().then(|| drive.read.value.max(drive.write.value) * 1.2);
    if random.bool() {
        drive.capacity_bytes = random.u64(..400 * GIB);
    }
    drive.endurance_tb = Some(600.0);
    drive
}

fn cases(seed: u64, count: usize) -> impl Iterator<Item = (Model, Budgets, Rates)> {
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    (0..count).map(move |_| any(&mut random))
}

fn check_sums(plan: &Plan) {
    let model = &plan.model;
    let shard = model.shard_params();
    let kinds = [
        (What::Weights, model.weights.bytes()),
        (What::Gradients, model.gradients.bytes()),
        (What::State, model.state_bytes()),
    ];
    for (what, unit) in kinds {
        let memory: u64 = [Tier::Device, Tier::Pinned, Tier::Host]
            .map(|tier| plan.bytes(what, tier))
            .iter()
            .sum();
        let files = plan.bytes(what, Tier::File);
        assert_eq!(files % 2, 0, "two generations");
        assert_eq!(memory + files / 2, shard * unit, "{what:?}");
    }
    assert_eq!(plan.bytes(What::Gradients, Tier::File), 0, "gradients never touch a drive");
    let sum =
        |of: fn(&brigade_offload::plan::Share) -> u64| plan.shares.iter().map(of).sum::<u64>();
    assert_eq!(sum(|share| share.bytes), plan.tier_bytes(Tier::File));
    assert_eq!(sum(|share| share.read), plan.step.traffic.read);
    assert_eq!(sum(|share| share.written), plan.step.traffic.written);
    assert_eq!(plan.step.update.traffic.written, plan.step.traffic.written);
    assert_eq!(plan.step.traffic.written, plan.tier_bytes(Tier::File) / 2, "all of it, once");
}

fn check_budgets(plan: &Plan) {
    assert!(plan.tier_bytes(Tier::Device) <= plan.budgets.device_bytes);
    assert!(plan.host_bytes() <= plan.budgets.host_bytes);
    for (drive, share) in plan.budgets.drives.iter().zip(&plan.shares) {
        assert!(share.bytes <= drive.capacity_bytes);
    }
}

fn check_times(plan: &Plan) {
    let step = &plan.step;
    assert!(step.passes.seconds >= step.compute_s && step.update.seconds >= step.update_s);
    assert!(plan.efficiency() > 0.0 && plan.efficiency() <= 1.0);
    let Rate { value: link, .. } = plan.rates.link;
    for phase in [step.passes, step.update] {
        assert!(phase.seconds.is_finite());
        for bytes in [phase.traffic.to_device, phase.traffic.from_device] {
            assert!(phase.seconds >= bytes as f64 / (link * 1e9));
        }
    }
    for (drive, share) in plan.budgets.drives.iter().zip(&plan.shares) {
        assert!(step.seconds() * 1.000_001 >= share.read as f64 / (drive.read.value * 1e9));
        assert!(step.seconds() * 1.000_001 >= share.written as f64 / (drive.write.value * 1e9));
    }
}

#[test]
fn parts_sum_to_the_whole_and_budgets_hold() {
    let mut planned = 0;
    for (model, budgets, rates) in cases(41, 200) {
        match plan(&model, &budgets, &rates) {
            Ok(plan) => {
                check_sums(&plan);
                check_budgets(&plan);
                check_times(&plan);
                planned += 1;
            }
            Err(Refusal::DoesNotFit(_)) => {}
            Err(refusal) => panic!("{refusal}"),
        }
    }
    assert!(planned > 50, "only {planned} of 200 cases fit");
}

#[test]
fn more_memory_is_never_slower() {
    let mut random = fastrand::Rng::with_seed(43);
    for (model, mut budgets, rates) in cases(42, 100) {
        // Of several drives a full one gives what it cannot take to others that may be slower.
        if budgets.drives.len() > 1 {
            budgets.drives.iter_mut().for_each(|drive| drive.capacity_bytes = u64::MAX);
        }
        let Ok(before) = plan(&model, &budgets, &rates) else { continue };
        let mut more = budgets.clone();
        match random.u32(..3) {
            0 if budgets.has_device() => more.device_bytes += random.u64(..16 * GIB),
            1 => more.drives.iter_mut().for_each(|drive| {
                drive.capacity_bytes = drive.capacity_bytes.saturating_add(100 * GIB);
            }),
            _ => more.host_bytes += random.u64(..16 * GIB),
        }
        let after = plan(&model, &more, &rates).expect("what fits in less fits in more");
        let (before_s, after_s) = (before.step.seconds(), after.step.seconds());
        assert!(after_s <= before_s * (1.0 + 1e-9), "{model:?} {budgets:?} {more:?}");
    }
}

#[test]
fn where_it_stops_fitting_is_exact() {
    let mut refused = 0;
    for (model, mut budgets, rates) in cases(44, 60) {
        budgets.device_bytes /= 16;
        budgets.host_bytes /= 16;
        let Err(Refusal::DoesNotFit(shortage)) = plan(&model, &budgets, &rates) else { continue };
        refused += 1;
        for row in &shortage.rows {
            assert!(row.wants > row.has);
            let holds: u64 = row.holds.iter().map(|part| part.bytes).sum();
            assert_eq!(holds, row.wants, "the account of {:?} is complete", row.tier);
        }
        let with = |less: u64| {
            let mut budgets = budgets.clone();
            for (at, row) in shortage.rows.iter().enumerate() {
                let bytes = row.wants - if at == 0 { less } else { 0 };
                match row.tier {
                    Tier::Device => budgets.device_bytes = bytes,
                    Tier::Pinned | Tier::Host => budgets.host_bytes = bytes,
                    Tier::File => {
                        budgets.drives = vec![Drive { capacity_bytes: bytes, ..drive(1.0, 1.0) }];
                    }
                }
                if !shortage.together {
                    break;
                }
            }
            plan(&model, &budgets, &rates)
        };
        let fits = with(0).expect("what is said to be enough is enough");
        check_budgets(&fits);
        assert!(with(1).is_err(), "a byte less is not: {shortage}");
        if let Some(shards) = shortage.shards {
            let half = Model { shards, ..model.clone() };
            plan(&half, &budgets, &rates).expect("so many shards fit");
        }
    }
    assert!(refused > 10, "only {refused} of 60 cases were refused");
}

#[test]
fn everything_on_the_device_moves_nothing() {
    let (_, mut budgets, rates) = seven_billion();
    budgets.device_bytes = 1 << 40;
    let plan = plan(&Model::of_size(1_000_000_000), &budgets, &rates).unwrap();
    assert_eq!(plan.step.traffic.bytes(), 0);
    assert_eq!((plan.host_bytes(), plan.tier_bytes(Tier::File)), (0, 0));
    assert!((plan.efficiency() - 1.0).abs() < 1e-12);
    assert_eq!((plan.written_per_day(), plan.years()), (0.0, None));
}

/// The table of times for 7 B parameters of f32 AdamW: read 12 bytes and write 12 for each.
#[test]
fn the_update_takes_as_long_as_its_slowest_stream() {
    let (mut model, mut budgets, rates) = seven_billion();
    model.shards = 8;
    // Room for everything but the state.
    (budgets.device_bytes, budgets.host_bytes) = (0, 7 * GIB);
    for (read, write, want_s) in [(3.2, 2.5, 4.2), (6.5, 4.5, 2.33), (12.3, 8.1, 1.30)] {
        budgets.drives = vec![drive(read, write)];
        let plan = plan(&model, &budgets, &rates).unwrap();
        let state = plan.bytes(What::State, Tier::File) as f64 / 2.0;
        let whole = (model.shard_params() * model.state_bytes()) as f64;
        let update_s = plan.step.update.seconds * whole / state;
        assert!((update_s / want_s - 1.0).abs() < 0.05, "{update_s} instead of {want_s}\n{plan}");
        // Bytes have a unit, which is not that of parameters.
        let text = plan.to_string();
        assert!(text.contains("GB in the passes") && text.contains("7.00 billion param"), "{text}");
    }
}

#[test]
fn drives_that_hinder_each_other_take_both_times() {
    let (mut model, mut budgets, rates) = seven_billion();
    model.shards = 8;
    (budgets.device_bytes, budgets.host_bytes) = (0, 7 * GIB);
    let mut check = |drives, want_s: fn(read_gb: f64, written_gb: f64) -> f64| {
        budgets.drives = drives;
        let update = plan(&model, &budgets, &rates).unwrap().step.update;
        let (read, written) = (update.traffic.read as f64, update.traffic.written as f64);
        let (is_s, want_s) = (update.seconds, want_s(read / 1e9, written / 1e9));
        assert!((1.0..1.02).contains(&(is_s / want_s)), "{is_s} instead of {want_s}");
    };
    check(vec![drive(3.0, 2.0)], |_, written| written / 2.0);
    check(vec![Drive { both: Some(3.0), ..drive(3.0, 3.0) }], |read, written| {
        (read + written) / 3.0
    });
    check(vec![drive(3.0, 2.0), drive(4.0, 1.0)], |_, written| written / 3.0);
}

/// What is planned is what the streamed step takes and moves.
#[test]
fn chunks_are_those_of_the_streamed_step() {
    for params in [1, 4096, 100_000, 10_000_000, 124_439_808, 7_000_000_000] {
        let shape = Shape::new(params, &[4, 4, 4]);
        let model = Model::of_size(params as u64);
        assert_eq!(shape.chunk_elements() as u64, model.chunk_params(), "{params}");
    }
    let model = Model::transformer(4, 256, 1000, 128);
    let params = model.params as usize;
    let arena = Arena::new(Budget::new(64 << 20)).unwrap();
    let pipeline = Pipeline::new(&arena, Shape::new(params, &[4, 4, 4])).unwrap();
    let rates = Rates::assumed(false);
    let mut budgets = Budgets { device_bytes: 0, host_bytes: 1 << 20, drives: Vec::new() };
    let refusal = plan(&model, &budgets, &rates).unwrap_err();
    let Refusal::DoesNotFit(shortage) = refusal else { panic!("{refusal}") };
    budgets.host_bytes = shortage.rows[0].wants;
    let whole = plan(&model, &budgets, &rates).unwrap();
    assert_eq!(whole.bytes(What::Chunks, Tier::Pinned), 0, "nothing is streamed from memory");
    budgets.host_bytes -= 1;
    budgets.drives.push(drive(1.0, 1.0));
    let spilled = plan(&model, &budgets, &rates).unwrap();
    assert_eq!(spilled.bytes(What::Weights, Tier::File), 0, "{spilled}");
    let held = arena.ledger().held(Category::Staging) as u64;
    assert_eq!(spilled.bytes(What::Chunks, Tier::Pinned), held, "{spilled}");
    drop(pipeline);
}

/// Masters and moments in files, and the weights that the passes read there too.
#[test]
fn what_an_update_moves_is_what_the_streamed_step_moves() {
    let model = Model::of_size(1_000_000_000);
    let mut both = 0;
    for eighths in 8..=80 {
        let host_bytes = eighths * (GIB / 8);
        let budgets = Budgets { device_bytes: 3 * GIB, host_bytes, drives: vec![drive(6.5, 4.5)] };
        let Ok(plan) = plan(&model, &budgets, &Rates::assumed(true)) else { continue };
        let [state, weights] =
            [What::State, What::Weights].map(|of| plan.bytes(of, Tier::File) / 2);
        both += usize::from(state > 0 && weights > 0);
        // What is in files of each kind is streamed over those elements only.
        let streamed = Shape::new((state / 12) as usize, &[4; 3]);
        let copied = Shape::new((weights / 2) as usize, &[]).and_written(&[2]);
        let moved = plan.step.update.traffic;
        assert_eq!(moved.read, streamed.read_bytes() + copied.read_bytes(), "{plan}");
        assert_eq!(moved.written, streamed.bytes() + copied.bytes(), "{plan}");
    }
    assert!(both > 0, "no plan has both in files");
}

#[test]
fn wear_is_told_by_the_day() {
    let (model, mut budgets, rates) = seven_billion();
    budgets.drives[0].endurance_tb = Some(600.0);
    let plan = plan(&model, &budgets, &rates).unwrap();
    let steps = 86_400.0 / plan.step.seconds();
    let day = plan.step.traffic.written as f64 * steps;
    assert!((plan.written_per_day() / day - 1.0).abs() < 1e-12);
    assert!((plan.years().unwrap() * 365.0 * day / 600e12 - 1.0).abs() < 1e-12);
}

#[test]
fn tokens_that_are_said_to_be_enough_are() {
    let (model, budgets, rates) = seven_billion();
    let tokens = plan(&model, &budgets, &rates).unwrap().tokens_for(0.9).unwrap();
    let more = plan(&Model { tokens, ..model }, &budgets, &rates).unwrap();
    assert!(more.efficiency() > 0.88, "{more}");
}

#[test]
fn nonsense_is_refused_by_name() {
    let (model, mut budgets, mut rates) = seven_billion();
    let refusal = |model: &Model, budgets: &Budgets, rates: &Rates| {
        plan(model, budgets, rates).unwrap_err().to_string()
    };
    let empty = Model { layers: 0, ..model.clone() };
    assert!(refusal(&empty, &budgets, &rates).contains("layers: 0"));
    rates.link = Rate::given(f64::NAN);
    assert!(refusal(&model, &budgets, &rates).contains("link"));
    rates = Rates::assumed(true);
    budgets.drives[0].write = Rate::given(0.0);
    assert!(refusal(&model, &budgets, &rates).contains("/mnt/nvme write: 0"));
    budgets.drives = vec![drive(1e308, 1e308); 2];
    assert!(refusal(&model, &budgets, &rates).contains("/mnt/nvme read: 1"));
    budgets.drives.clear();
    budgets.host_bytes = u64::MAX;
    assert!(refusal(&model, &budgets, &rates).contains("host: 18446744073709551615 bytes"));
}

/// At the largest numbers that are taken, what is counted is a number still.
#[test]
fn the_largest_numbers_overflow_nothing() {
    let model = Model { tokens: 1 << 40, ..Model::of_size(1 << 50) };
    for (device_bytes, host_bytes) in [(0, 1 << 60), (1 << 60, 1 << 60), (1 << 40, 1 << 60)] {
        for drives in [vec![], vec![drive(1e12, 1e-6), drive(1e-6, 1e12)]] {
            for context in [1, 2048, 1 << 32] {
                let budgets = Budgets { device_bytes, host_bytes, drives: drives.clone() };
                let model = Model { context, ..model.clone() };
                match plan(&model, &budgets, &Rates::assumed(device_bytes > 0)) {
                    Ok(plan) => {
                        assert!(plan.step.seconds().is_finite() && plan.host_bytes() <= host_bytes);
                        println!("{plan}");
                    }
                    Err(refusal) => println!("{refusal}"),
                }
            }
        }
    }
}

#[test]
fn a_refusal_shows_its_arithmetic() {
    let (model, mut budgets, rates) = seven_billion();
    budgets.host_bytes = 4 * GIB;
    budgets.device_bytes = 8 * GIB;
    let text = plan(&model, &budgets, &rates).unwrap_err().to_string();
    println!("{text}");
    for word in ["wants", "has", "missing", "gradients", "--host", "--ranks"] {
        assert!(text.contains(word), "{word} is not in\n{text}");
    }
}

#[test]
fn tables_line_up() {
    let (model, budgets, rates) = seven_billion();
    let text = plan(&model, &budgets, &rates).unwrap().to_string();
    println!("{text}");
    let lines: Vec<&str> = text.lines().collect();
    let first = lines.iter().position(|line| line.starts_with("what lives where")).unwrap();
    let table = &lines[first..][..lines[first..].iter().position(|line| line.is_empty()).unwrap()];
    let ends = |line: &str| line.find(" GiB").is_none_or(|_| line.len() <= table[0].len() + 20);
    assert!(table.len() > 5 && table.iter().all(|line| ends(line)), "{text}");
    assert!(lines.iter().all(|line| line.len() <= 120), "{text}");
}

#[test]
fn where_nothing_can_move_there_is_no_table_of_moves() {
    let (model, mut budgets, rates) = seven_billion();
    assert!(plan(&model, &budgets, &rates).unwrap().to_string().contains("a step moves"));
    (budgets.device_bytes, budgets.host_bytes) = (0, 200 * GIB);
    budgets.drives.clear();
    let text = plan(&model, &budgets, &rates).unwrap().to_string();
    assert!(!text.contains("a step moves") && text.contains("computing"), "{text}");
}
