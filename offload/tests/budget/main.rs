//! A run whose state is four times its memory: the same loss, bit by bit, within the memory that it
//! was given, moving the bytes that were planned.

mod child;
mod group;
mod measured;
mod problem;
mod run;

use child::{BLOCK_ELEMENTS, Report, Size, run_child};
use group::OwnGroup;
use problem::{STEPS, in_memory, planned};

/// What the run may take over its budget, in percent.
const OVER_PERCENT: u64 = 2;

/// What a file system may read and write for itself meanwhile, as far as it counts as the run's:
/// less than a block for each step.
const FILE_SYSTEM_BYTES: u64 = STEPS * 4 * BLOCK_ELEMENTS as u64 - 4096;

/// A child in a group of its own, or why there is none.
fn child(arena_bytes: u64) -> Option<Report> {
    let report = OwnGroup::new().and_then(|group| run_child(&group, arena_bytes));
    report.inspect_err(|why| println!("skipped: {why}")).ok()
}

fn check_memory(report: &Report, budget_bytes: u64) {
    let most = budget_bytes + budget_bytes * OVER_PERCENT / 100;
    let ledger = report.number("ledger peak");
    assert!(ledger <= budget_bytes, "the ledger's peak is {ledger} of {budget_bytes}");
    let (before, peak) = (report.number("resident before"), report.number("resident peak"));
    let taken = peak.saturating_sub(before);
    assert!(taken <= most, "{taken} resident over {before}, budget {budget_bytes} and 2 %: {most}");
    assert!(taken > budget_bytes / 2, "{taken} of {budget_bytes}: nothing was measured");
}

/// What was counted is what was planned. The kernel adds what the file system needs.
fn check_bytes(report: &Report, size: Size) {
    let plan = planned(size.elements as u64, size.budget_bytes());
    let (read, written) = (STEPS * plan.read, STEPS * plan.written);
    assert_eq!(report.number("moved read"), read, "bytes read as the run counts them");
    assert_eq!(report.number("moved written"), written, "bytes written as the run counts them");
    let written = written + report.number("committed");
    let counted = [report.number("kernel read"), report.number("kernel written")];
    for (what, counted, want) in [("read", counted[0], read), ("written", counted[1], written)] {
        let most = want + FILE_SYSTEM_BYTES;
        assert!((want..=most).contains(&counted), "{counted} {what}, {want} to {most} planned");
    }
}

#[test]
fn four_times_the_memory_reaches_the_same_loss() {
    let size = Size::full();
    let budget_bytes = size.budget_bytes();
    assert!(size.state_bytes() >= 4 * budget_bytes);
    let Some(report) = child(budget_bytes) else { return };
    assert!(report.is_finished, "the run did not reach its end: {report:?}");
    let want = in_memory(size.elements);
    let got = report.losses();
    println!("{}", report.line(size));
    assert_eq!(got, want, "losses of the run in files and of the one in memory");
    assert!(got[STEPS as usize] < got[0] / 1.1, "nothing was learnt: {got:?}");
    check_memory(&report, budget_bytes);
    check_bytes(&report, size);
}

/// That the limit is one: who takes more memory than the budget does not get to the end.
#[test]
fn a_run_that_takes_more_than_its_budget_is_stopped() {
    let Some(report) = child(2 * Size::full().budget_bytes()) else { return };
    println!("{}", report.ended);
    assert!(report.has("resident before"), "it did not even begin: {report:?}");
    assert!(!report.has("loss 0"), "twice the budget was taken, and nobody minded: {report:?}");
}
