//! `brigade run`: start a program as the ranks of a world on this machine.

use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::process::ExitCode;
use std::time::Duration;

use brigade_comm::launch::Launch;

use crate::launch::{Outcome, World};
use crate::terminal;

/// The longest that others may go on: a day.
const GRACE_MAX_S: u64 = 86_400;

/// Start N local ranks of a program and wait for them.
#[derive(clap::Args)]
#[command(override_usage = "brigade run [OPTIONS] --ranks <RANKS> [--] <PROGRAM>...")]
#[command(after_help = "\
Each rank finds in its environment:
  BRIGADE_RANK  BRIGADE_WORLD_SIZE  BRIGADE_LOCAL_RANK  BRIGADE_ID
  RANK  WORLD_SIZE  LOCAL_RANK  LOCAL_WORLD_SIZE  MASTER_ADDR  MASTER_PORT   (torchrun's names)
  TORCHELASTIC_USE_AGENT_STORE=True  TORCHELASTIC_RESTART_COUNT=0
PyTorch's processes meet in a store that this command serves at MASTER_ADDR:MASTER_PORT. A program
that serves one itself, TCPStore(.., is_server=True), needs another port for it.

If a rank fails, the others get --grace-s seconds to notice. Then they, and what any rank has left
in its process group, get SIGTERM, and then SIGKILL; where this command is killed, that at once. The
exit code is that of the first rank that failed (128 + signal when a signal killed it). With
--prefix it is 1 where what they printed could not be passed on. A carriage return ends a line, too.
Only rank 0 reads this command's standard input, and only when that is not a terminal.

Examples:
  brigade run -n 4 -- ./my_trainer --steps 100
  brigade run -n 8 --bind -- python train.py      (for several NUMA nodes, or a busy machine)
  brigade run -n 2 --prefix -- env")]
pub(crate) struct Args {
    /// How many ranks to start
    #[arg(short = 'n', long = "ranks", value_name = "RANKS",
          value_parser = clap::value_parser!(u32).range(1..=4096))]
    ranks: u32,
    /// Keep each rank to a part of the cores: whole ones, neighbours together, as equal as can be
    #[arg(long)]
    bind: bool,
    /// Mark each line of output with the rank that printed it
    #[arg(long)]
    prefix: bool,
    /// Seconds the other ranks may go on after one has failed
    #[arg(long, value_name = "SECONDS", default_value_t = 5,
          value_parser = clap::value_parser!(u64).range(..=GRACE_MAX_S))]
    grace_s: u64,
    /// The program, and its arguments
    #[arg(
        trailing_var_arg = true,
        required = true,
        allow_hyphen_values = true,
        value_name = "PROGRAM"
    )]
    command: Vec<OsString>,
}

/// Run the program; the exit code is that of the first rank that failed.
pub(crate) fn run(args: &Args) -> ExitCode {
    let (program, rest) = args.command.split_first().expect("the parser demands a program");
    finish(&World {
        ranks: args.ranks as usize,
        program: program.clone(),
        args: rest.to_vec(),
        bind: args.bind,
        prefix: args.prefix,
        explains: false,
        grace: Duration::from_secs(args.grace_s),
    })
}

/// Whether a launcher made this process a rank of a world.
pub(crate) fn in_a_world() -> bool {
    // Our own launcher makes worlds of one, too. An environment that contradicts itself counts:
    // whoever reads it next tells what is wrong with it.
    std::env::var_os("BRIGADE_RANK").is_some()
        || Launch::discover().map_or(true, |launch| launch.ranks > 1)
}

/// Whether what started this process is this very program, which then shows what all ranks say.
pub(crate) fn is_started_by_us() -> bool {
    let file = |process: u32| {
        let found = std::fs::metadata(format!("/proc/{process}/exe"));
        found.map(|found| (found.dev(), found.ino()))
    };
    let (parent, own) = (file(std::os::unix::process::parent_id()), file(std::process::id()));
    matches!((parent, own), (Ok(parent), Ok(own)) if parent == own)
}

/// Run this very program again, with the same arguments, as the ranks of a world.
pub(crate) fn run_self(ranks: usize) -> ExitCode {
    let program = match std::env::current_exe() {
        Ok(path) => path.into_os_string(),
        Err(error) => {
            eprintln!("brigade: cannot find the file of this program to start ranks: {error}");
            return ExitCode::FAILURE;
        }
    };
    finish(&World {
        ranks,
        program,
        args: std::env::args_os().skip(1).collect(),
        bind: false,
        prefix: false,
        explains: true,
        grace: Duration::from_secs(5),
    })
}

fn finish(world: &World) -> ExitCode {
    match world.run() {
        Ok(outcome) => {
            if let Outcome::Interrupted(signal) = outcome {
                terminal::say_stopped("brigade", signal);
            }
            ExitCode::from(outcome.code())
        }
        Err(error) => {
            eprintln!("brigade: {error}");
            // What shells say when a program cannot be found or started.
            ExitCode::from(if error.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 })
        }
    }
}
