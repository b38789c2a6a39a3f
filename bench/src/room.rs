//! Whether buffers fit into this machine, asked before there are any: an allocation that the system
//! refuses ends a rank without a word.

use brigade_offload::memory::available_bytes;
use brigade_offload::plan::show_bytes;

use crate::args::Args;
use crate::kind::Case;
use crate::reference::lengths;
use crate::session::{DEVICES, are_threads, settings};
use crate::size;

/// Refuse sizes whose buffers do not fit into memory when all ranks are on this machine.
///
/// Errors: the flag, with what would be needed and what there is.
pub fn refuse_too_large(args: &Args, cases: &[Case]) -> Result<(), String> {
    // What nobody looks at lies on devices only, which say themselves what they have no room for.
    let is_elsewhere = || settings(args).is_ok_and(|settings| settings.transport == DEVICES);
    let Some(available) = available_bytes() else { return Ok(()) };
    if !args.check && is_elsewhere() {
        return Ok(());
    }
    let ranks = args.sweep.ranks as usize;
    // What `Bench` takes: room for the input, and for whichever of both is larger.
    let of_rank = |case: &Case| -> u128 {
        let whole = case.block_elems as u128 * case.dtype.size() as u128;
        if whole > available as u128 {
            return whole;
        }
        let (input, output) = lengths(case, ranks, 0);
        (input + output.max(input)) as u128 * case.dtype.size() as u128
    };
    let of_rank = cases.iter().map(of_rank).max().unwrap_or(0);
    let of_all = of_rank * ranks as u128;
    let of_process =
        if settings(args).is_ok_and(|settings| are_threads(&settings)) { of_all } else { of_rank };
    let text = |bytes: u128| show_bytes(u64::try_from(bytes).unwrap_or(u64::MAX));
    let (size, ranks) = (size::show(args.sweep.max_bytes), size::ranks(ranks));
    match addressable_bytes() {
        _ if of_all > available as u128 => Err(format!(
            "{size}: the buffers of {ranks} take {} or more, and {} are available here; a smaller \
             size, or fewer ranks",
            text(of_all),
            text(available as u128)
        )),
        Some(limit) if of_process > u128::from(limit) => Err(format!(
            "{size}: the buffers of a process take {} or more, and its limit (ulimit -v) leaves \
             {}; a smaller size, or a higher limit",
            text(of_process),
            text(u128::from(limit))
        )),
        _ => Ok(()),
    }
}

/// What this process may still map, as will those that it starts; none where there is no limit.
fn addressable_bytes() -> Option<u64> {
    let limits = std::fs::read_to_string("/proc/self/limits").ok()?;
    let used = std::fs::read_to_string("/proc/self/status").ok()?;
    let word = |text: &str, name: &str| -> Option<u64> {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse().ok()
    };
    let limit = word(&limits, "Max address space")?;
    Some(limit.saturating_sub(1024 * word(&used, "VmSize:")?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn buffers_that_no_memory_holds_are_refused() {
        let refusal = |flags: &str| {
            let words = ["bench"].into_iter().chain(flags.split_whitespace());
            let args = Command::parse_from(words).args;
            refuse_too_large(&args, &args.cases(args.sweep.ranks as usize).unwrap())
        };
        for kind in ["all-reduce", "all-gather", "all-to-all-v", "gather", "send-recv"] {
            for size in ["17179869183G", "1048576G"] {
                let refused = refusal(&format!("{kind} -b {size} -e {size}")).unwrap_err();
                assert!(refused.starts_with(&format!("{size}: ")), "{refused}");
            }
            refusal(kind).unwrap();
        }
        refusal("barrier -b 17179869183G -e 17179869183G").unwrap();
        let on_devices = "all-reduce -b 1048576G -e 1048576G --transport cuda";
        refusal(on_devices).unwrap();
        refusal(&format!("{on_devices} --check")).unwrap_err();
    }
}
