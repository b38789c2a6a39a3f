//! `brigade train --device cuda` on ranks that are processes, on a fake device or a real one
//! (`BRIGADE_FAKE_CUDA=off`): the processor's losses, and the devices do what they are said to.

use brigade_cuda_fake::{environment, has_device, is_off, watched};
use brigade_tests::command::{Folder, bounded, brigade, text, words};

/// A model for seconds.
const MODEL: &str = "train --batch 16 --layers 4 --width 20 --heads 2 --context 12 --steps 3 \
                     --threads 1 --sample 0 --held-out 0";

/// One for fewer seconds, where there are many ranks or many calls.
const SMALL: &str = "--layers 2 --batch 32";

/// Pipelines side by side, each rank with a device and a process of its own: the devices add up the
/// gradients of those who share a stage.
#[test]
fn pipelines_on_devices_of_their_own_have_the_losses_of_the_processor() {
    if is_off() || !has_device() {
        return;
    }
    let alone = losses(&run("--quiet", 1));
    for order in ["1f1b", "zbv"] {
        let flags = format!("--ranks 4 --strategy ddp,{order} --mesh pp=2,dp=2 --device cuda");
        let output = run(&flags, 4);
        let how = "which has its stages' state too, gradients summed by the devices, letters from \
                   device to device\n";
        assert!(output.contains(how) && output.contains(", as predicted"), "{output}");
        near(&losses(&output), &alone, &flags);
    }
}

/// The same where those who share a stage have its state in parts: whole parameters of up to three
/// of four stages at a time, or of all, and gradients that are added up first, or sent each time.
#[test]
fn stages_in_parts_on_devices_of_their_own_have_the_losses_of_the_processor() {
    if is_off() || !has_device() {
        return;
    }
    let alone = losses(&run("--layers 6 --quiet", 1));
    let mesh = "--layers 6 --ranks 4 --mesh pp=2,dp=2 --device cuda --strategy";
    let folder = Folder::new("let-go");
    let file = folder.0.join("let-go.csv");
    // What is let go of comes back, of its own or for a computation, and at the end for nothing.
    let first = "0F0,0SEND_F0,0RESHARD,0F1,0SEND_F1,0RESHARD,0UNSHARD,0RECV_B0,0B0,0RECV_B1,0B1";
    let other = "1RECV_F0,1F0,1B0,1SEND_B0,1RESHARD,1RECV_F1,1F1,1B1,1SEND_B1,1RESHARD";
    std::fs::write(&file, format!("{first},0RESHARD,0UNSHARD\n{other}\n")).unwrap();
    for (strategy, devices, by) in [
        ("zero1,1f1b", 4, "by the devices, letters from device to device\n"),
        ("zero2,zbv", 4, "by the devices, letters from device to device\n"),
        ("fsdp,interleaved --chunks 4 --micro-batches 2", 4, "by the devices, letters"),
        ("fsdp,zb1p", 1, "by the devices between meetings of their hosts, letters"),
        (&format!("fsdp --micro-batches 2 --schedule {}", file.display()), 4, "by the devices, "),
    ] {
        let flags = format!("{mesh} {strategy}");
        let output = run(&flags, devices);
        let how = "which has this rank's parts of its stages' state too, gradients summed";
        assert!(output.contains(&format!("{how} {by}")), "{flags}: {output}");
        assert!(output.contains(", as predicted"), "{flags}: {output}");
        near(&losses(&output), &alone, &flags);
    }
}

/// Ranks that divide tensors, beside others with other samples or units: the devices do what either
/// do together, and have calls of both groups at once.
#[test]
fn parts_of_tensors_on_devices_of_their_own_have_the_losses_of_the_processor() {
    if is_off() || !has_device() {
        return;
    }
    let alone = losses(&run(SMALL, 1));
    let heads = "heads and hidden numbers divided by 2 and summed by the devices, which has";
    let rows = "hidden numbers and rows divided by 2 and summed by the devices, which has";
    let tokens = "tokens divided by 2, keys and values passed on by the devices, which has";
    let (state, stages) = ("the state too", "its stages' state too");
    let letters = ", letters from device to device\n";
    let shares = "this rank's parts of its stages' state too, gradients summed by the devices";
    let (part, sums) = ("this rank's parts of the state too", ", gradients summed by the devices");
    for (strategy, mesh, how) in [
        ("ddp,tp", "dp=2,tp=2", [heads, state, sums]),
        ("ddp,ring", "tp=2,dp=2", [tokens, state, sums]),
        ("fsdp,tp", "dp=2,tp=2", [heads, part, sums]),
        ("zero1,sp", "dp=2,tp=2", [rows, part, sums]),
        ("1f1b,ring", "pp=2,tp=2", [tokens, stages, letters]),
        // Calls of two groups on each device, and letters of a third.
        ("ddp,1f1b,tp", "dp=2,pp=2,tp=2", [heads, sums, letters]),
        ("zero1,1f1b,tp", "dp=2,pp=2,tp=2", [heads, shares, letters]),
    ] {
        let ranks = 1 << mesh.split(',').count();
        let way = format!("--ranks {ranks} --strategy {strategy} --mesh {mesh} --device cuda");
        let flags = format!("{SMALL} {way}");
        let output = run(&flags, ranks);
        let is_so = how.iter().all(|clause| output.contains(clause));
        assert!(is_so && output.contains(", as predicted"), "{flags}: {output}");
        near(&losses(&output), &alone, &flags);
    }
}

/// Ranks in a square, several and a cube: calls of up to four groups on each device, of which those
/// along rows and columns are beside each other, and beside products.
#[test]
fn grids_of_devices_have_the_losses_of_the_processor() {
    if is_off() || !has_device() {
        return;
    }
    // Few calls, of whatever length: eight ranks take turns on what cores there are.
    let few = "--layers 1 --batch 128 --context 4";
    let alone = losses(&run(few, 1));
    let met = "tiles sent by the devices between meetings of their hosts, which";
    for (way, devices, how) in [
        ("--ranks 4 --strategy 2d", 4, "by a grid of 4, tiles sent by the devices, which"),
        ("--ranks 8 --strategy 2.5d", 8, "by a grid of 8, tiles sent by the devices, which"),
        ("--ranks 8 --strategy 3d --recompute", 8, "by a grid of 8, tiles sent by the devices,"),
        ("--ranks 4 --strategy 2d", 1, met),
    ] {
        let flags = format!("{few} {way} --device cuda");
        let output = run(&flags, devices);
        assert!(output.contains(how) && output.contains(", as predicted"), "{flags}: {output}");
        near(&losses(&output), &alone, &flags);
    }
}

/// The same where all ranks share one device, as on a developer's machine: no call waits there, and
/// hosts meet for those of every group.
#[test]
fn groups_of_ranks_that_share_a_device_have_the_losses_of_the_processor() {
    if !has_device() {
        return;
    }
    let alone = losses(&run(SMALL, 1));
    let by = "by the devices between meetings of their hosts";
    let heads = format!("heads and hidden numbers divided by 2 and summed {by}, which has");
    let (sums, letters) = (format!(", gradients summed {by}"), ", letters from device to device\n");
    let copies = format!(", and of 2 copies {by}\n");
    for (strategy, mesh, how) in [
        ("ddp,tp", "dp=2,tp=2", [&heads[..], &sums, ""]),
        ("fsdp,tp", "dp=2,tp=2", [&heads, &sums, "parts of the state"]),
        ("fsdp", "dp=2,shard=2", [&sums, &copies, "parts of the state"]),
        ("ddp,1f1b", "dp=2,pp=2", [&sums, letters, ""]),
    ] {
        let way = format!("--ranks 4 --strategy {strategy} --mesh {mesh} --device cuda");
        let flags = format!("{SMALL} {way}");
        let output = run(&flags, 1);
        let is_so = how.iter().all(|clause| output.contains(clause));
        assert!(is_so && output.contains(", as predicted"), "{flags}: {output}");
        near(&losses(&output), &alone, &flags);
    }
}

/// A state in parts that is held twice: the devices give gradients to those who own them, and add
/// up what owners of the same part have.
#[test]
fn states_that_devices_hold_twice_have_the_losses_of_the_processor() {
    if is_off() || !has_device() {
        return;
    }
    let alone = losses(&run(SMALL, 1));
    let copies = "summed by the devices, and of 2 copies by the devices\n";
    let four = "--ranks 4 --mesh replicate=2,shard=2";
    for stage in ["fsdp", "zero2", "zero1"] {
        let flags = format!("{SMALL} {four} --strategy {stage} --accumulate 2 --device cuda");
        let output = run(&flags, 4);
        assert!(output.contains(copies) && output.contains(", as predicted"), "{flags}: {output}");
        near(&losses(&output), &alone, &flags);
    }
    // Through a checkpoint, and on from there.
    let file = std::env::temp_dir().join(format!("brigade-hold-twice-{}", std::process::id()));
    let flags = format!("{SMALL} {four} --strategy fsdp --device cuda");
    run(&format!("{flags} --stop-at 2 --checkpoint {}", file.display()), 4);
    let rest = losses(&run(&format!("{flags} --resume {}", file.display()), 4));
    std::fs::remove_file(&file).unwrap();
    near(&[&alone[..2], &rest[..1]].concat(), &alone, "the rest from a checkpoint");
    // Owners of the same part do not reach each other, as on other machines.
    let far: Vec<String> = (3..40).map(|at| format!("cuIpcOpenMemHandle_v2@{at}=801")).collect();
    let output = run_with(&flags, 4, &[("BRIGADE_FAKE_CUDA_FAULTS", &far.join(","))]);
    let is_so = output.contains("summed by the devices, and of 2 copies by the hosts\n");
    assert!(is_so && output.contains(", as predicted"), "{output}");
    near(&losses(&output), &alone, &flags);
}

/// Hosts that wait for what goes into blocks to be down, of devices that wait for each other, have
/// sent before what others wait for.
#[test]
fn inputs_elsewhere_go_with_pipelines_of_divided_blocks() {
    if is_off() || !has_device() {
        return;
    }
    let more = "--layers 12 --width 12 --context 8";
    let alone = losses(&run(more, 1));
    let way = "--strategy 1f1b,tp --mesh pp=2,tp=2 --offload-activations cpu";
    let output = run(&format!("{more} --ranks 4 {way} --device cuda"), 4);
    assert!(output.contains("summed by the devices") && output.contains("predicted"), "{output}");
    near(&losses(&output), &alone, way);
}

/// Ranks that divide experts: rows go from device to device, or, where ranks share one, through the
/// hosts; gradients of what all have are summed by the devices.
#[test]
fn experts_on_devices_of_their_own_have_the_losses_of_the_processor() {
    if is_off() || !has_device() {
        return;
    }
    let experts = "--layers 2 --experts 4 --top 2";
    let alone = losses(&run(experts, 1));
    let sums = "divided by 2, rows from device to device, gradients summed by the devices, which";
    let all = "divided by 4, rows from device to device, gradients summed by the devices, which";
    let others = "which has this rank's parts of the state too, gradients summed by the devices";
    let shared = "gradients summed by the devices between meetings of their hosts, which has";
    for (way, devices, how) in [
        ("--ranks 4 --strategy ep --recompute", 4, all),
        ("--ranks 4 --strategy ddp,ep --mesh dp=2,tp=2 --accumulate 2", 4, sums),
        ("--ranks 2 --strategy ep", 1, shared),
        ("--ranks 2 --strategy fsdp", 2, others),
    ] {
        let flags = format!("{experts} {way} --device cuda");
        let output = run(&flags, devices);
        assert!(output.contains(how) && output.contains(", as predicted"), "{output}");
        near(&losses(&output), &alone, &flags);
    }
}

/// What a rank's streams do beside each other is put in order by events, which is more than that it
/// comes out right on a fake device: ThreadSanitizer sees what is too early, if only by luck.
#[test]
fn streams_beside_each_other_are_in_order() {
    if is_off() || !has_device() {
        return;
    }
    for (flags, ranks) in [
        ("--layers 4 --offload-activations cpu --offload cpu", 1),
        ("--layers 1 --strategy ring --ranks 2", 2),
        ("--layers 2 --strategy 1f1b --micro-batches 4 --ranks 2", 2),
        ("--layers 2 --strategy fsdp,zbv --mesh dp=2,pp=1 --micro-batches 2 --ranks 2", 2),
    ] {
        let shape = "--batch 16 --context 4 --width 4 --heads 2 --steps 1 --threads 1 \
                     --sample 0 --held-out 0";
        let mut command = bounded(brigade());
        command.args(["train", "--device", "cuda", "--quiet"]).args(shape.split_whitespace());
        command.args(flags.split_whitespace());
        command.envs(environment()).env("BRIGADE_FAKE_CUDA_DEVICES", ranks.to_string());
        let Some((output, said)) = watched(&mut command) else { return };
        assert!(output.status.success() && !said.contains("data race"), "{flags}: {said}");
    }
}

/// Where what a device writes to another does not arrive, the hosts carry what goes from stage to
/// stage, and add up gradients.
#[test]
fn pipelines_on_devices_that_do_not_reach_each_other_have_the_losses_of_the_processor() {
    if is_off() || !has_device() {
        return;
    }
    let alone = losses(&run("--quiet", 1));
    let flags = "--ranks 4 --strategy ddp,1f1b --mesh pp=2,dp=2 --device cuda";
    let output = run_with(flags, 4, &[("BRIGADE_FAKE_CUDA_PEERS", "broken")]);
    let is_so = output.contains("which has its stages' state too\n");
    assert!(is_so && output.contains(", as predicted"), "{output}");
    near(&losses(&output), &alone, flags);
}

/// Where a window for letters leaves no memory for the rest, the hosts carry them.
#[test]
fn pipelines_without_room_for_letters_have_the_losses_of_the_processor() {
    if is_off() || !has_device() {
        return;
    }
    let alone = losses(&run(SMALL, 1));
    let flags = format!("{SMALL} --ranks 2 --strategy 1f1b --device cuda");
    for (fault, want) in [("", "state too, letters from device"), ("cuMemAlloc_v2@2=2", "too\n")] {
        let output = run_with(&flags, 2, &[("BRIGADE_FAKE_CUDA_FAULTS", fault)]);
        assert!(output.contains(want) && output.contains(", as predicted"), "{fault}: {output}");
        near(&losses(&output), &alone, &flags);
    }
}

/// What the command prints with these flags, on a machine with so many fake devices.
fn run(flags: &str, devices: usize) -> String {
    run_with(flags, devices, &[])
}

fn run_with(flags: &str, devices: usize, variables: &[(&str, &str)]) -> String {
    let mut command = bounded(brigade());
    // What is said again is meant.
    let pairs: Vec<&str> = MODEL.split_whitespace().skip(1).collect();
    let pairs = pairs.chunks(2).filter(|pair| !flags.contains(pair[0]));
    command.arg("train").args(pairs.flatten()).args(flags.split_whitespace());
    command.envs(environment()).env("BRIGADE_FAKE_CUDA_DEVICES", devices.to_string());
    let output = command.envs(variables.iter().copied()).output().unwrap();
    assert!(output.status.success(), "{flags}: {}", words(&output));
    text(&output.stdout)
}

fn losses(output: &str) -> Vec<f64> {
    let steps = output.lines().filter_map(|line| line.split_once("loss ").map(|(_, rest)| rest));
    let losses = steps.filter_map(|rest| rest.split_whitespace().next()?.parse().ok());
    losses.take(3).collect()
}

/// As near as numbers are that were added in another order.
fn near(got: &[f64], want: &[f64], what: &str) {
    assert_eq!((got.len(), want.len()), (3, 3), "{what}: {got:?}");
    for (got, want) in got.iter().zip(want) {
        assert!((got - want).abs() / want < 1e-5, "{what}: {got}, the processor {want}");
    }
}
