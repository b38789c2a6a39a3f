//! What `brigade train` may be told.

mod refusals;
mod room;
mod travel;

use crate::data::Corpus;
use crate::device::DeviceArgs;
use crate::error::Error;
use crate::layout::Config;
use crate::offload::{self, Tier};
use crate::optim::{Hyper, Rule};
use crate::parallel::tensor::Split;
use crate::parallel::{Axis, Lanes, Mesh, Travel, Way, Ways};
use crate::precision::Precision;
use brigade_comm::transports;
use clap::Args as ClapArgs;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// What the help has flags under.
const RANKS: &str = "Ranks, and what is whose";
const TRAVEL: &str = "How gradients and parameters travel";
const TRAINING: &str = "Training";
const MODEL: &str = "Model";
const MEMORY: &str = "Memory and devices";
const FILES: &str = "Files";
const PLANNING: &str = "Planning";
const OUTPUT: &str = "What is printed";

/// Train a small GPT on text, byte by byte.
///
/// The samples of a step depend on --seed and --batch only: any number of ranks sees the same ones.
#[derive(Clone, Debug, ClapArgs, Serialize)]
#[command(after_help = "\
Each step prints its loss, the milliseconds of rank 0 in forward, backward and optimizer, those in
which it waited for files (disk) and for other ranks (comm, also as a part of the step), and the
tokens of all ranks per second. What rank 0 sent stands under the first step, and under those that
sent something else. At the end stands how much of the time even the rank that waited least waited:
what others waited beyond that was for ranks that came later, not for bytes.

Examples:
  brigade train --ranks 2                             Moby-Dick, on two processes
  brigade train --ranks 4 --ordered                   the same digits as with any number of ranks
  brigade train --text notes/ --checkpoint notes.gpt --checkpoint-every 100
  brigade train --text notes/ --checkpoint notes.gpt --resume notes.gpt --steps 3000")]
pub struct Args {
    /// Processes to train with
    #[arg(short = 'n', long, default_value_t = 1, help_heading = RANKS)]
    pub ranks: usize,
    /// Steps in all, counting those before --resume; the learning rate falls over all of them
    #[arg(long, default_value_t = 1500, help_heading = TRAINING)]
    pub steps: usize,
    /// End after this step already, as if interrupted there; at most --steps
    #[arg(long, value_name = "STEP", help_heading = TRAINING)]
    pub stop_at: Option<usize>,
    /// Ways to train, separated by commas: at most one of each kind
    #[arg(
        long, value_enum, value_delimiter = ',', default_value = "ddp", value_name = "WAYS",
        help_heading = RANKS
    )]
    pub strategy: Vec<Way>,
    /// Ranks along each axis (dp, shard, pp, tp), of which the last runs fastest, such as
    /// dp=2,pp=2; replicate=2,shard=2 are two states, each in two parts
    #[arg(long, value_name = "AXES", help_heading = RANKS)]
    pub mesh: Option<Mesh>,
    /// How gradients and parameters travel.
    #[command(flatten, next_help_heading = TRAVEL)]
    #[serde(flatten)]
    pub travel: Travel,
    /// Stages on each rank of an interleaved pipeline; 2 if not given
    #[arg(long, value_name = "STAGES", help_heading = RANKS)]
    pub chunks: Option<usize>,
    /// Carry out this schedule of a pipeline, a CSV file as torch.distributed.pipelining has it
    #[arg(long, value_name = "FILE", help_heading = RANKS)]
    pub schedule: Option<PathBuf>,
    /// Draw when the ranks of a pipeline did what in the last step, and when they should have: SVG
    #[arg(long, value_name = "FILE", help_heading = FILES)]
    pub draw: Option<PathBuf>,
    /// What carries the bytes; without it, what the environment asks for.
    #[arg(long, value_name = "NAMES", help = transport_help(), help_heading = RANKS)]
    pub transport: Option<String>,
    /// Print the same digits with any number of ranks: gradients are gathered, which sends more,
    /// and added in one order
    #[arg(long, help_heading = RANKS)]
    pub ordered: bool,
    /// Parts of a batch whose gradients --ordered adds in order; --ranks must divide it
    #[arg(long, default_value_t = 4, requires = "ordered", help_heading = RANKS)]
    pub lanes: usize,
    /// Parts of a rank's share of a batch that are computed one after the other, in less memory;
    /// in a pipeline the micro-batches, 4 if not given
    #[arg(
        long, visible_alias = "micro-batches", value_name = "PARTS", conflicts_with = "ordered",
        help_heading = TRAINING
    )]
    pub accumulate: Option<usize>,
    /// What the model computes with; updates are made in 32 bits
    #[arg(long, value_enum, default_value_t, help_heading = TRAINING)]
    pub precision: Precision,
    /// How gradients become steps
    #[arg(long, value_enum, default_value_t, help_heading = TRAINING)]
    pub optimizer: Rule,
    /// The numbers of that.
    #[command(flatten, next_help_heading = TRAINING)]
    #[serde(flatten)]
    pub hyper: Hyper,
    /// Shorten gradients whose norm, over all parameters, is larger than this; --log and
    /// --tensorboard have the norm of each step
    #[arg(long, value_name = "NORM", help_heading = TRAINING)]
    pub clip: Option<f32>,
    /// Whether a GPU computes
    #[command(flatten, next_help_heading = MEMORY)]
    #[serde(flatten)]
    pub device: DeviceArgs,
    /// Keep moments, and parameters that are held in parts, in cheaper memory: cpu (an arena with
    /// a budget) or nvme:FOLDER (a file, through which the update streams)
    #[arg(long, value_name = "TIER", help_heading = MEMORY)]
    pub offload: Option<Tier>,
    /// Keep only what goes into blocks, and compute their forward again in backward
    #[arg(long, help_heading = MEMORY)]
    pub recompute: bool,
    /// As --recompute, and what goes into blocks is kept elsewhere, too: nvme:FOLDER, or, if a GPU
    /// computes, cpu
    #[arg(long, value_name = "TIER", help_heading = MEMORY)]
    pub offload_activations: Option<Tier>,
    /// Cut each linear layer into so many parts, which are fetched and let go of one by one
    #[arg(long, value_name = "TILES", help_heading = MEMORY)]
    pub tile: Option<usize>,
    /// Bytes of host memory that a rank may use for --offload, such as 64M or 1.5G
    #[arg(
        long, value_name = "BYTES", requires = "offload", value_parser = offload::parse_bytes,
        help_heading = MEMORY
    )]
    pub host_budget: Option<usize>,
    /// Text to train on, a file or a folder (without hidden files), up to 1 GiB; Moby-Dick if not
    /// given
    #[arg(long, value_name = "PATH", help_heading = TRAINING)]
    pub text: Option<PathBuf>,
    /// Samples per step over all ranks
    #[arg(long, default_value_t = 48, help_heading = TRAINING)]
    pub batch: usize,
    /// Bytes per sample
    #[arg(long, default_value_t = 64, help_heading = MODEL)]
    pub context: usize,
    /// Blocks
    #[arg(long, default_value_t = 2, help_heading = MODEL)]
    pub layers: usize,
    /// Numbers per token between blocks
    #[arg(long, default_value_t = 128, help_heading = MODEL)]
    pub width: usize,
    /// Attention heads per block
    #[arg(long, default_value_t = 4, help_heading = MODEL)]
    pub heads: usize,
    /// Experts in place of each block's perceptron; ranks with the same samples divide them
    #[arg(long, default_value_t = 0, help_heading = MODEL)]
    pub experts: usize,
    /// Experts that a token goes to
    #[arg(long, default_value_t = 1, requires = "experts", help_heading = MODEL)]
    pub top: usize,
    /// Highest learning rate; it warms up over 5 % of the steps and falls to a tenth
    #[arg(long, default_value_t = 5e-3, help_heading = TRAINING)]
    pub lr: f32,
    /// Chooses weights and samples
    #[arg(long, default_value_t = 1851, help_heading = TRAINING)]
    pub seed: u64,
    /// Threads per rank, up to 512; all cores shared evenly if not given
    #[arg(long, help_heading = RANKS)]
    pub threads: Option<usize>,
    /// Write the training state to this file (safetensors) at the end
    #[arg(long, value_name = "FILE", help_heading = FILES)]
    pub checkpoint: Option<PathBuf>,
    /// Also write it after every so many steps
    #[arg(long, value_name = "STEPS", help_heading = FILES)]
    pub checkpoint_every: Option<usize>,
    /// Leave the files of --offload: with --strategy fsdp they are a checkpoint themselves, made
    /// one at the end and after every --checkpoint-every steps at the cost of an index
    #[arg(long, requires = "offload", help_heading = MEMORY)]
    pub keep: bool,
    /// Go on from this checkpoint, or from the files that --keep has left in this folder
    #[arg(long, value_name = "PATH", help_heading = FILES)]
    pub resume: Option<PathBuf>,
    /// Append one JSON object per step to this file
    #[arg(long, value_name = "FILE", help_heading = FILES)]
    pub log: Option<PathBuf>,
    /// Print what the run would need and take, and do not train
    #[arg(long, help_heading = PLANNING)]
    pub plan: bool,
    /// Refuse, before anything is started, what needs more memory a rank, such as 512M or 1.5G;
    /// what gates of --experts hold depends on the text, and is not counted
    #[arg(long, value_name = "BYTES", value_parser = offload::parse_bytes, help_heading = PLANNING)]
    pub budget: Option<usize>,
    /// For --plan: billions of operations that a rank does in a second; measured if not given
    #[arg(long, value_name = "GFLOPS", requires = "plan", help_heading = PLANNING)]
    pub rate: Option<f64>,
    /// For --plan: GB that a rank sends in a second
    #[arg(
        long, value_name = "GB", default_value_t = 4.0, requires = "plan",
        help_heading = PLANNING
    )]
    pub link: f64,
    /// Write what each rank did when to this file, for Perfetto or Chrome's about:tracing
    #[arg(long, value_name = "FILE.json", help_heading = FILES)]
    pub trace: Option<PathBuf>,
    /// Write event files for tensorboard to this folder
    #[arg(long, value_name = "FOLDER", help_heading = FILES)]
    pub tensorboard: Option<PathBuf>,
    /// Draw loss, time and memory of the run to this file at the end
    #[arg(long, value_name = "FILE.svg", help_heading = FILES)]
    pub report: Option<PathBuf>,
    /// Bytes of text to write at the end
    #[arg(long, default_value_t = 400, value_name = "BYTES", help_heading = OUTPUT)]
    pub sample: usize,
    /// How that text begins
    #[arg(long, default_value = "The whale ", value_name = "TEXT", help_heading = OUTPUT)]
    pub prompt: String,
    /// Windows of unseen text, each as long as a sample, whose loss is told at the end; 0 for none,
    /// and never more than there are
    #[arg(long, default_value_t = 256, value_name = "WINDOWS", help_heading = OUTPUT)]
    pub held_out: usize,
    /// Print no settings, no text and no sums, only the step lines
    #[arg(long, help_heading = OUTPUT)]
    pub quiet: bool,
    /// Print the lines of every so many steps only, of the first, and of the last; --log has all
    #[arg(
        long, visible_alias = "log-every", default_value_t = 1, value_name = "STEPS",
        help_heading = OUTPUT
    )]
    pub print_every: usize,
}

impl Args {
    /// The model these settings describe.
    pub fn config(&self) -> Config {
        let Args { context, layers, heads, width, experts, top, .. } = *self;
        Config { vocab: 256, context, layers, heads, width, experts, top }
    }

    /// How `ranks` ranks stand to each other.
    pub(crate) fn mesh(&self, ranks: usize) -> Mesh {
        let axis = Ways::of(&self.strategy).map_or(Axis::Dp, |ways| ways.axis());
        let axis = if self.is_pipeline() { Axis::Pp } else { axis };
        self.mesh.clone().unwrap_or_else(|| Mesh::line(axis, ranks))
    }

    /// The samples that `rank` of `ranks` takes of each batch.
    pub(crate) fn share_of(&self, rank: usize, ranks: usize) -> Result<Lanes, Error> {
        let mesh = self.mesh(ranks);
        let (pace, share) = (Ways::of(&self.strategy)?.pace, mesh.share(rank));
        let (rank, ranks) = pace.map_or(share, |pace| pace.share(self, share));
        let parts = self.accumulate.unwrap_or(if self.is_pipeline() { 4 } else { 1 });
        if !self.ordered {
            self.check_parts(ranks, parts)?;
            return Lanes::new(self.batch, ranks * parts, rank, ranks);
        }
        // Ranks that divide experts have samples of their own: each takes whole lanes.
        let shares = match Ways::of(&self.strategy)?.inside {
            Some(Split::Experts) => mesh.length(Axis::Tp),
            _ => 1,
        };
        Lanes::new(self.batch, self.lanes, rank, ranks * shares)?;
        Lanes::new(self.batch, self.lanes / shares, rank, ranks)
    }

    /// Refuse a batch that ranks with samples of their own cannot cut into so many parts each.
    fn check_parts(&self, ranks: usize, parts: usize) -> Result<(), Error> {
        let all = ranks.saturating_mul(parts);
        if self.batch.is_multiple_of(all) || parts == 1 {
            return Ok(());
        }
        let what = match self.is_pipeline() {
            true => "micro-batches (--micro-batches)",
            false => "parts (--accumulate)",
        };
        let whose = if ranks > 1 { format!(" on each of {ranks} ranks") } else { String::new() };
        let (batch, next) = (self.batch, self.batch.next_multiple_of(all));
        let problem = format!(
            "{parts} {what}{whose} cannot share {batch} samples evenly; --batch {next} can"
        );
        Err(Error::setting("batch", problem))
    }

    /// The step after which this run ends.
    pub(crate) fn last_step(&self) -> usize {
        self.stop_at.unwrap_or(self.steps)
    }

    /// What decides, beside the shape of the model, which numbers a run computes: by flag. Ranks
    /// and most strategies are not in it: others may go on with the same digits, or nearly.
    pub(crate) fn course(&self, text: &Corpus) -> BTreeMap<String, String> {
        let Travel { compress, reduce, gather, .. } = self.travel;
        let is_late = self.strategy.contains(&Way::PsAsync);
        let or_none = |value: Option<String>| value.unwrap_or_else(|| "none".to_string());
        // Micro-batches of a pipeline are its strategy's.
        let parts = self.accumulate.filter(|parts| *parts > 1 && !self.is_pipeline());
        let flags = [
            ("--accumulate", or_none(parts.map(|parts| parts.to_string()))),
            ("--batch", self.batch.to_string()),
            ("--clip", or_none(self.clip.map(|norm| norm.to_string()))),
            ("--compress", or_none(compress.map(|how| how.to_string()))),
            ("--device", self.device.name()),
            ("--gather", gather.name()),
            ("--lr", self.lr.to_string()),
            ("--optimizer", self.optimizer.name()),
            ("--ordered", or_none(self.ordered.then(|| format!("--lanes {}", self.lanes)))),
            ("--precision", self.precision.name()),
            ("--reduce", reduce.name()),
            ("--seed", self.seed.to_string()),
            ("--steps", self.steps.to_string()),
            ("--strategy", if is_late { Way::PsAsync.name() } else { "in step".to_string() }),
            ("--text", text.mark()),
            ("--tile", or_none(self.tile.map(|tiles| tiles.to_string()))),
        ];
        let numbers = self.hyper.by_flag().map(|(flag, value)| (format!("--{flag}"), value));
        let flags = flags.map(|(flag, value)| (flag.to_string(), value));
        flags.into_iter().chain(numbers).collect()
    }

    /// What was decided so by runs of before there were these flags.
    pub(crate) fn former_course() -> BTreeMap<String, String> {
        let numbers = Hyper::default().by_flag().map(|(flag, value)| (format!("--{flag}"), value));
        let clip = ("--clip".to_string(), "none".to_string());
        numbers.into_iter().chain([clip]).collect()
    }

    /// How gradients become steps, in words: what is unusual of it.
    pub(crate) fn optimizer(&self) -> String {
        let mut told = self.optimizer.name();
        for ((flag, value), (_, usual)) in
            self.hyper.by_flag().iter().zip(Hyper::default().by_flag())
        {
            if *value != usual {
                told += &format!(" --{flag} {value}");
            }
        }
        let clipped = self.clip.map(|norm| format!(", of gradients no longer than {norm}"));
        told + &clipped.unwrap_or_default()
    }

    /// The flags by which less is held than could be.
    pub(crate) fn thrift(&self) -> String {
        let [recompute, secondary] = [self.recompute, self.travel.secondary];
        let tile = self.tile.map(|tiles| format!("--tile {tiles}"));
        let recompute = recompute.then(|| "--recompute".to_string());
        let secondary = secondary.then(|| "--secondary".to_string());
        [recompute, tile, secondary].into_iter().flatten().collect::<Vec<_>>().join(" ")
    }

    /// Threads of one of `ranks` ranks on this machine.
    pub fn threads(&self, ranks: usize) -> usize {
        let cores = || std::thread::available_parallelism().map_or(1, |cores| cores.get());
        self.threads.unwrap_or_else(|| (cores() / ranks).max(1))
    }
}

fn transport_help() -> String {
    format!(
        "What carries the bytes: auto, or any of {}, separated by commas, best first [default: \
         BRIGADE_TRANSPORT, or else auto]",
        transports::NAMES.join(", ")
    )
}

#[cfg(test)]
impl Args {
    /// What these flags say.
    pub(crate) fn of(flags: &str) -> Args {
        #[derive(clap::Parser)]
        struct Command {
            #[command(flatten)]
            args: Args,
        }
        let words = ["train"].into_iter().chain(flags.split_whitespace());
        <Command as clap::Parser>::parse_from(words).args
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_asked_for_as_everywhere() {
        assert_eq!(Args::of("-n 3").ranks, Args::of("--ranks 3").ranks);
    }

    #[test]
    fn a_run_ends_where_it_is_told_to() {
        assert_eq!(Args::of("--steps 9").last_step(), 9);
        assert_eq!(Args::of("--steps 9 --stop-at 5").last_step(), 5);
    }
}
