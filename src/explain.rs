//! `brigade explain`: decide who the ranks are, as `brigade bench` does, and leave the rest to
//! `brigade_bench`.

use std::process::ExitCode;

use brigade_bench::ExplainArgs;

use crate::bench;

/// Explain; the exit code is 2 when nothing could be started.
pub(crate) fn explain(args: &ExplainArgs) -> ExitCode {
    let of_rank = |comm: &_| brigade_bench::explain_rank(args, comm);
    bench::as_ranks("brigade explain", args.as_bench(), &None, of_rank)
}
