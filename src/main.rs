//! The `brigade` command: flags in, exit code out. What it does lies in the library crates.

// In front of all others, which print by its macros.
#[macro_use]
mod terminal;

mod bench;
mod compare;
mod completions;
mod cores;
mod doctor;
mod explain;
mod findings;
mod gpu;
mod guard;
mod interrupt;
mod launch;
mod machine;
mod offload;
mod outputs;
mod refusal;
mod relay;
mod run;
mod schedule;
mod sys;
mod train;
mod transports;
mod tune;
mod words;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

/// Collective communication: train, measure, look inside.
#[derive(Parser)]
#[command(
    version,
    propagate_version = true,
    after_help = "\
Exit codes:
  0    all is well
  1    it failed on the way, or what was found is wrong; or what `offload plan` plans does not fit
  2    nothing came of it: what is asked for cannot be (a training beyond its --budget, too), or
       what it takes is missing here
  69   that is said instead of 2 by `brigade gpu`, which bench/gpu-check is made of, where there is
       no GPU, or no compiler for one
  126  `brigade run` cannot start the program; 127: there is none of that name
  128  and the number of a signal that ended the command or a rank: 130 of Ctrl-C, and 141 where
       nobody reads on what is printed, as with `| head`, of which nothing more is said
Of ranks that are processes, as with `brigade run`, it is that of the first that failed.

First steps:
  brigade train --ranks 2                 train a small GPT on two processes of this machine
  brigade compare                         the same model by every strategy, in one table
  brigade bench all-reduce -n 2           time an all-reduce between two processes
  brigade explain all-reduce -n 4         which algorithm a call goes by, why, and beside which
  brigade tune -n 4                       which algorithm is the fastest here, by size
  brigade doctor                          what this machine has, and why something does not work
  brigade schedule show all-reduce -n 4   look at an algorithm
  brigade offload plan --help             train what does not fit in memory

`brigade COMMAND --help` has examples for each command."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Bench(Box<brigade_bench::Args>),
    Run(run::Args),
    Train(Box<brigade_trainer::Args>),
    Compare(brigade_trainer::compare::Args),
    Completions(completions::Args),
    Doctor(doctor::Args),
    Explain(brigade_bench::ExplainArgs),
    #[command(subcommand, hide = true)]
    Gpu(gpu::Command),
    #[command(subcommand)]
    Offload(offload::Command),
    #[command(subcommand)]
    Schedule(schedule::Command),
    Tune(brigade_bench::TuneArgs),
}

/// Counted, so that a training can say what it held.
#[global_allocator]
static HEAP: brigade_trainer::Counting = brigade_trainer::Counting;

fn main() -> ExitCode {
    sys::ask_for_queues();
    sys::outlive_long_files();
    sys::hear_of_children();
    // Whoever reads what is printed may stop reading. That ends these at once. Ranks and their
    // launcher must outlive the signal, as not every socket of theirs is told to raise none: theirs
    // is an error like any other, after which they end by the signal, too.
    let matches = command()
        .try_get_matches_from(words::as_ours(std::env::args_os()))
        .unwrap_or_else(|error| terminal::end_with(&refusal::clearer(error)));
    let command =
        Cli::from_arg_matches(&matches).unwrap_or_else(|error| terminal::end_with(&error)).command;
    if matches!(command, Command::Doctor(_) | Command::Offload(_) | Command::Schedule(_)) {
        sys::end_with_reader();
    }
    match command {
        Command::Bench(args) => bench::bench(&args),
        Command::Run(args) => run::run(&args),
        Command::Train(args) => train::train(&args),
        Command::Compare(args) => compare::compare(&args),
        Command::Completions(args) => completions::completions(&args, self::command()),
        Command::Doctor(args) => doctor::doctor(&args),
        Command::Explain(args) => explain::explain(&args),
        Command::Gpu(command) => gpu::gpu(&command),
        Command::Offload(command) => offload::offload(&command),
        Command::Schedule(command) => schedule::schedule(&command),
        Command::Tune(args) => tune::tune(&args),
    }
}

/// How wide help is at most; less where the terminal is narrower.
const COLUMNS: usize = 100;

fn command() -> clap::Command {
    let command = with_negative_numbers(Cli::command()).max_term_width(COLUMNS);
    // The parser would take that for a width, and break the help after every word.
    match terminal::is_of_no_width() {
        true => command.term_width(COLUMNS),
        false => command,
    }
}

/// Flags that take a value take negative numbers, too: then whoever reads the value says what is
/// wrong with it, and nobody is told to write `--` in front.
fn with_negative_numbers(command: clap::Command) -> clap::Command {
    let takes_value = |arg: &clap::Arg| !arg.is_positional() && arg.get_action().takes_values();
    command
        .mut_args(|arg| if takes_value(&arg) { arg.allow_negative_numbers(true) } else { arg })
        .mut_subcommands(with_negative_numbers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::error::ErrorKind;
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;

    #[test]
    fn commands_are_put_together_well() {
        command().debug_assert();
    }

    #[test]
    fn help_fits_into_a_hundred_columns() {
        fn check(command: &mut clap::Command) {
            for help in [command.render_help(), command.render_long_help()] {
                for line in help.to_string().lines() {
                    assert!(line.chars().count() <= COLUMNS, "{}: {line}", command.get_name());
                }
            }
            command.get_subcommands_mut().for_each(check);
        }
        let mut all = command();
        all.build();
        check(&mut all);
    }

    #[test]
    fn every_help_has_examples_that_are_understood() {
        fn check(command: &mut clap::Command) {
            let help = command.render_long_help().to_string();
            let found = help.split_once("Examples:\n").or(help.split_once("First steps:\n"));
            let (_, examples) = found.unwrap_or_else(|| panic!("no examples: {help}"));
            let examples = examples.replace(" \\\n      ", " ");
            let examples: Vec<_> =
                examples.lines().filter_map(|line| line.strip_prefix("  ")).collect();
            assert!(examples.len() > 1, "one example is not many: {help}");
            for example in examples {
                // What stands in front of the command is a launcher or a setting, what stands apart
                // behind it a remark.
                let (_, line) = example.split_at(example.find("brigade ").expect(example));
                let line = line.split("  ").next().unwrap_or_default();
                let wrong = super::command().try_get_matches_from(line.split(' ')).err();
                let wrong = wrong.filter(|error| error.kind() != ErrorKind::DisplayHelp);
                assert!(wrong.is_none(), "{example}: {wrong:?}");
            }
            let is_told = |command: &&mut clap::Command| {
                !command.is_hide_set() && command.get_name() != "help"
            };
            command.get_subcommands_mut().filter(is_told).for_each(check);
        }
        let mut all = command();
        all.build();
        check(&mut all);
    }

    #[test]
    fn what_is_wrong_with_a_negative_number_is_said() {
        for line in ["bench all-reduce -n -1", "run -n -1 true", "schedule show all-reduce -n -1"] {
            let words = ["brigade"].into_iter().chain(line.split(' '));
            let refusal = command().try_get_matches_from(words);
            let said = refusal::clearer(refusal.expect_err(line)).to_string();
            assert!(said.contains("': from 1 to 4096"), "{line}: {said}");
        }
    }

    #[test]
    fn what_is_no_number_or_none_that_is_wanted_is_said() {
        for (line, wanted) in [
            ("bench all-reduce -n abc", "'abc' for '--ranks <RANKS>': that is no whole number"),
            ("train --steps -1", "'-1' for '--steps <STEPS>': that is no whole number from 0 on"),
            ("train --steps 1.5", "'1.5' for '--steps <STEPS>': that is no whole number"),
            ("train --steps 99999999999999999999", "that is too large"),
            ("train --lr fast", "'fast' for '--lr <LR>': that is no number"),
            ("bench all-reduce -n -99999999999999999999", "that is too small"),
            ("bench all-reduce -n 0", "invalid value '0' for '--ranks <RANKS>': from 1 to 4096"),
            ("bench all-reduce --iters 0", "'0' for '--iters <ITERS>': 1 or more"),
            ("run -n 2 --grace-s 86401 true", "from 0 to 86400"),
            ("offload plan --params 7B --device -1G --host 1G", "'-1G' is negative, or no flag"),
            ("bench all-reduce -b -1K", "'-1K' is negative, or no flag"),
            ("launch -n 2 -- true", "a similar subcommand exists: 'run'"),
            ("plan --params 7B", "a similar subcommand exists: 'offload plan'"),
            ("bnech all-reduce", "a similar subcommand exists: 'bench'"),
        ] {
            let words = ["brigade"].into_iter().chain(line.split(' '));
            let refused = command().try_get_matches_from(words.clone()).expect_err(line);
            let said = refusal::clearer_of(refused, words.map(OsString::from)).to_string();
            assert!(said.contains(wanted), "{line}: {said}");
            assert!(said.contains("--help"), "{line}: {said}");
        }
    }

    #[test]
    fn what_is_no_text_is_named() {
        let bytes = |word: &[u8]| OsString::from_vec(word.to_vec());
        for (line, wanted) in [
            (&[&b"train"[..], b"--prompt", b"a\xff"][..], r#""a\xFF" is no UTF-8"#),
            (&[b"train", b"--text=\xfe", b"--lr=\xff"], r#"one of "--text=\xFE", "--lr=\xFF" is "#),
            (&[b"schedule", b"show", b"\xff", b"-n2"], "only paths, and what `brigade run` starts"),
        ] {
            let words: Vec<OsString> =
                [&b"brigade"[..]].iter().chain(line).map(|w| bytes(w)).collect();
            let refused = command().try_get_matches_from(&words).expect_err("no UTF-8");
            let said = refusal::clearer_of(refused, words.into_iter()).to_string();
            assert!(said.contains(wanted) && said.contains("--help"), "{line:?}: {said}");
        }
    }
}
