//! `brigade tune`: decide who the ranks are, as `brigade bench` does, and leave the rest to
//! `brigade_bench`.

use std::process::ExitCode;

use brigade_bench::TuneArgs;

use crate::bench;

/// Tune; the exit code is 2 when nothing could be started.
pub(crate) fn tune(args: &TuneArgs) -> ExitCode {
    let of_rank = |comm: &_| brigade_bench::tune_rank(args, comm);
    bench::as_ranks("brigade tune", args.as_bench(), &args.output, of_rank)
}
