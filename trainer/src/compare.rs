//! The same model trained by every strategy, in one table: `brigade compare`.
//!
//! A row is a name and flags of `brigade train`; whoever adds a strategy adds a row to `rows`. The
//! rows run one after the other, each in a fresh world of processes, and leave a run log; `row`
//! reads it and judges it against the row of one process, `table` prints what came of it.
//!
//! Not here: how a world is started. The command hands in a function that does.

mod picture;
mod row;
mod rows;
mod table;
mod told;

pub use row::{Reading, Verdict};
pub use rows::{Leg, Row, Want, rows};

use crate::error::Error;
use crate::report::bar_style;
use indicatif::ProgressBar;
use std::io::Write;
use std::path::{Path, PathBuf};
use told::Told;

/// Train the same model by every strategy, and compare digits, bytes, memory and speed.
///
/// Each row is a `brigade train` in a world of its own. Exits with 1 if a row does not have the
/// digits of one process that it must have, sends other bytes than its formula says, or holds more
/// or less than its formula by over 2 % (of a model so small that this is less than 384 KiB, by
/// over 384 KiB).
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Columns: the loss after the last step; whether the losses of all steps have the same bits as those
of one process, or how far they are off (1e-8..3e-8: by these parts of them, the first step's and
the worst one's); tokens of all ranks per second (median step); how much of the step was waiting for
other ranks; the largest heap of a rank while it trains, and what part of its formula that is; the
bytes that rank 0 sends in a step, and whether all that ranks sent is as their formulas say.

An object of --json has what a line of the table has: strategy; ranks; right, and what the problem
is if it is not; losses of all steps; same_bits, or first_off and worst_off, as parts of the loss;
tokens_per_second; exposed, the part of a step in which ranks wait; peak_bytes, the largest heap of
a rank, and memory_bytes, what its formula says; what that rank sent in all, sent_bytes, and its
formula_bytes; sent_bytes_per_step, of rank 0; and sent_as_predicted, of all ranks.

Examples:
  brigade compare                          everything there is, a few steps each
  brigade compare --steps 200 --json -     the long run, a JSON object a row
  brigade compare --only ddp,fsdp --plot strategies.svg
  brigade compare -- --layers 4 --width 256 --text notes/")]
pub struct Args {
    /// Steps of every row
    #[arg(long, default_value_t = 10)]
    pub steps: usize,
    /// Only rows whose names begin with one of these
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = rows::parse_beginning)]
    pub only: Vec<String>,
    /// Numbers of ranks to try; rows that need another number keep theirs
    #[arg(short = 'n', long, value_name = "RANKS", value_delimiter = ',', default_value = "2,4")]
    pub ranks: Vec<usize>,
    /// Write a JSON object a row, as soon as it has ended, to this file, or instead of the table
    /// to standard output (-)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Draw speed and memory of the rows
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,
    /// Further flags of `brigade train`, for every row
    #[arg(last = true, value_name = "TRAIN FLAGS")]
    pub train: Vec<String>,
}

/// Runs one `brigade train` with these flags, telling each step.
pub type Train<'a> = dyn FnMut(&[String], &mut dyn FnMut()) -> Result<(), Broken> + 'a;

/// Why a training has not come to its end.
#[derive(Clone, Debug)]
pub enum Broken {
    /// It failed: a sentence. Other rows may not.
    Failed(String),
    /// Nobody wants the end of it, or of others: by what it was stopped.
    Stopped(String),
}

/// Run all rows and print what came of them, each to files as soon as it has ended. Files of the
/// rows go to `folder`.
///
/// Returns whether every row is as it must be. Errors: `Setting` if there is nothing to compare,
/// `Alone` if the first row fails, to which the others would be compared, `Stopped` if a training
/// was, after what had ended was printed, `File` and `Output` for what cannot be written.
pub fn compare(
    args: &Args,
    folder: &Path,
    train: &mut Train<'_>,
    out: &mut dyn Write,
) -> Result<bool, Error> {
    let rows = rows::rows(args)?;
    let mut told = Told::new(args, out);
    let steps = rows.iter().map(|row| row.legs.len()).sum::<usize>().saturating_mul(args.steps);
    let bar = ProgressBar::new(steps as u64);
    bar.set_style(bar_style("{msg:32} {wide_bar} {pos}/{len} steps{left}", 0));
    let mut verdicts: Vec<Verdict> = Vec::new();
    for (at, row) in rows.into_iter().enumerate() {
        bar.set_message(row.told());
        let log = folder.join(format!("row-{at}.jsonl"));
        let trained = row.legs.iter().try_for_each(|leg| {
            let flags = leg.flags(args, &log, &folder.join(format!("row-{at}.gpt")));
            train(&flags, &mut || bar.inc(1))
        });
        let reading = match trained {
            Ok(()) => Reading::of(&log),
            Err(Broken::Failed(problem)) => Err(problem),
            Err(Broken::Stopped(by)) => {
                bar.finish_and_clear();
                if !verdicts.is_empty() {
                    told.end(&verdicts)?;
                }
                return Err(Error::Stopped { by, row: row.told(), ended: verdicts.len() });
            }
        };
        if let (0, Err(problem)) = (at, &reading) {
            bar.finish_and_clear();
            return Err(Error::Alone(problem.clone()));
        }
        // Of a row that is one process itself there is none yet.
        let alone = verdicts.get(row.alone).and_then(|alone| alone.reading.as_ref().ok());
        verdicts.push(Verdict::new(row, reading, alone));
        bar.suspend(|| told.row(&verdicts))?;
    }
    bar.finish_and_clear();
    told.end(&verdicts)?;
    Ok(verdicts.iter().all(Verdict::is_right))
}
