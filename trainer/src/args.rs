//! What `brigade train` may be told.

use crate::device::DeviceArgs;
use crate::error::Error;
use crate::layout::Config;
use crate::offload::{self, Tier};
use crate::optim::Rule;
use crate::parallel::tensor::Inside;
use crate::parallel::{Axis, Lanes, Mesh, Travel, Way, Ways};
use crate::precision::Precision;
use brigade_comm::transports;
use clap::Args as ClapArgs;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Train a small GPT on text, byte by byte.
///
/// The samples of a step depend on --seed and --batch only: any number of ranks sees the same ones.
#[derive(Clone, Debug, ClapArgs, Serialize)]
#[command(after_help = "\
Each step prints its loss, the milliseconds of rank 0 in forward, backward, communication that
backward did not hide, and optimizer, the tokens of all ranks per second, and what rank 0 sent.

Examples:
  brigade train --ranks 2                             Moby-Dick, on two processes
  brigade train --ranks 4 --ordered                   the same digits as with any number of ranks
  brigade train --text notes/ --checkpoint notes.gpt --checkpoint-every 100
  brigade train --text notes/ --checkpoint notes.gpt --resume notes.gpt --steps 3000")]
pub struct Args {
    /// Processes to train with
    #[arg(long, default_value_t = 1)]
    pub ranks: usize,
    /// Steps in all, counting those before --resume; the learning rate falls over all of them
    #[arg(long, default_value_t = 1500)]
    pub steps: usize,
    /// End after this step already, as if interrupted there
    #[arg(long, value_name = "STEP")]
    pub stop_at: Option<usize>,
    /// Ways to train, separated by commas: at most one of each kind
    #[arg(long, value_enum, value_delimiter = ',', default_value = "ddp", value_name = "WAYS")]
    pub strategy: Vec<Way>,
    /// Ranks along each axis, the last of which runs fastest, such as dp=2,pp=2; on
    /// replicate=2,shard=2 two states, each in two parts
    #[arg(long, value_name = "AXES")]
    pub mesh: Option<Mesh>,
    /// How gradients and parameters travel.
    #[command(flatten)]
    #[serde(flatten)]
    pub travel: Travel,
    /// Stages on each rank of an interleaved pipeline
    #[arg(long, default_value_t = 2, value_name = "STAGES")]
    pub chunks: usize,
    /// Carry out this schedule of a pipeline, a CSV file as torch.distributed.pipelining has it
    #[arg(long, value_name = "FILE")]
    pub schedule: Option<PathBuf>,
    /// Draw when the ranks of a pipeline did what in the last step, and when they should have: SVG
    #[arg(long, value_name = "FILE")]
    pub draw: Option<PathBuf>,
    /// What carries the bytes; without it, what the environment asks for.
    #[arg(long, value_name = "NAMES", help = transport_help())]
    pub transport: Option<String>,
    /// Print the same digits with any number of ranks: gradients are gathered, which sends more,
    /// and added in one order
    #[arg(long)]
    pub ordered: bool,
    /// Parts of a batch whose gradients --ordered adds in order; --ranks must divide it
    #[arg(long, default_value_t = 4)]
    pub lanes: usize,
    /// Parts of a rank's share of a batch that are computed one after the other, in less memory;
    /// in a pipeline the micro-batches, 4 if not given
    #[arg(long, visible_alias = "micro-batches", value_name = "PARTS", conflicts_with = "ordered")]
    pub accumulate: Option<usize>,
    /// What the model computes with; updates are made in 32 bits
    #[arg(long, value_enum, default_value_t)]
    pub precision: Precision,
    /// How gradients become steps
    #[arg(long, value_enum, default_value_t)]
    pub optimizer: Rule,
    /// Whether a GPU computes
    #[command(flatten)]
    #[serde(flatten)]
    pub device: DeviceArgs,
    /// Keep moments, and parameters that are held in parts, in cheaper memory: cpu (an arena with
    /// a budget) or nvme:FOLDER (a file, through which the update streams)
    #[arg(long, value_name = "TIER")]
    pub offload: Option<Tier>,
    /// Keep only what goes into blocks, and compute their forward again in backward
    #[arg(long)]
    pub recompute: bool,
    /// As --recompute, and what goes into blocks is kept in files, too: nvme:FOLDER
    #[arg(long, value_name = "TIER")]
    pub offload_activations: Option<Tier>,
    /// Cut each linear layer into so many parts, which are fetched and let go of one by one
    #[arg(long, value_name = "TILES")]
    pub tile: Option<usize>,
    /// Bytes of host memory that a rank may use for --offload, such as 64M
    #[arg(long, value_name = "BYTES", requires = "offload", value_parser = offload::parse_bytes)]
    pub host_budget: Option<usize>,
    /// Text to train on, a file or a folder (without hidden files); Moby-Dick if not given
    #[arg(long, value_name = "PATH")]
    pub text: Option<PathBuf>,
    /// Samples per step over all ranks
    #[arg(long, default_value_t = 48)]
    pub batch: usize,
    /// Bytes per sample
    #[arg(long, default_value_t = 64)]
    pub context: usize,
    /// Blocks
    #[arg(long, default_value_t = 2)]
    pub layers: usize,
    /// Numbers per token between blocks
    #[arg(long, default_value_t = 128)]
    pub width: usize,
    /// Attention heads per block
    #[arg(long, default_value_t = 4)]
    pub heads: usize,
    /// Experts in place of each block's perceptron; ranks with the same samples divide them
    #[arg(long, default_value_t = 0)]
    pub experts: usize,
    /// Experts that a token goes to
    #[arg(long, default_value_t = 1)]
    pub top: usize,
    /// Highest learning rate; it warms up over 5 % of the steps and falls to a tenth
    #[arg(long, default_value_t = 5e-3)]
    pub lr: f32,
    /// Chooses weights and samples
    #[arg(long, default_value_t = 1851)]
    pub seed: u64,
    /// Threads per rank; all cores shared evenly if not given
    #[arg(long)]
    pub threads: Option<usize>,
    /// Write the training state to this file (safetensors) at the end
    #[arg(long, value_name = "FILE")]
    pub checkpoint: Option<PathBuf>,
    /// Also write it after every so many steps
    #[arg(long, value_name = "STEPS")]
    pub checkpoint_every: Option<usize>,
    /// Leave the files of --offload: with --strategy fsdp they are a checkpoint themselves, made
    /// one at the end and after every --checkpoint-every steps at the cost of an index
    #[arg(long, requires = "offload")]
    pub keep: bool,
    /// Go on from this checkpoint, or from the files that --keep has left in this folder
    #[arg(long, value_name = "PATH")]
    pub resume: Option<PathBuf>,
    /// Append one JSON object per step to this file
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
    /// Print what the run would need and take, and do not train
    #[arg(long)]
    pub plan: bool,
    /// Refuse, before anything is started, what needs more memory a rank, such as 512M or 4G
    #[arg(long, value_name = "BYTES", value_parser = offload::parse_bytes)]
    pub budget: Option<usize>,
    /// For --plan: billions of operations that a rank does in a second; measured if not given
    #[arg(long, value_name = "GFLOPS", requires = "plan")]
    pub rate: Option<f64>,
    /// For --plan: GB that a rank sends in a second
    #[arg(long, value_name = "GB", default_value_t = 4.0)]
    pub link: f64,
    /// Write what each rank did when to this file, for Perfetto or Chrome's about:tracing
    #[arg(long, value_name = "FILE.json")]
    pub trace: Option<PathBuf>,
    /// Write event files for tensorboard to this folder
    #[arg(long, value_name = "FOLDER")]
    pub tensorboard: Option<PathBuf>,
    /// Draw loss, time and memory of the run to this file at the end
    #[arg(long, value_name = "FILE.svg")]
    pub report: Option<PathBuf>,
    /// Bytes of text to write at the end
    #[arg(long, default_value_t = 400, value_name = "BYTES")]
    pub sample: usize,
    /// How that text begins
    #[arg(long, default_value = "The whale ", value_name = "TEXT")]
    pub prompt: String,
    /// Print nothing but the step lines
    #[arg(long)]
    pub quiet: bool,
}

impl Args {
    /// The model these settings describe.
    pub fn config(&self) -> Config {
        let Args { context, layers, heads, width, experts, top, .. } = *self;
        Config { vocab: 256, context, layers, heads, width, experts, top }
    }

    /// Refuse what cannot work at this number of ranks, naming the flag.
    pub fn validate(&self, ranks: usize) -> Result<(), Error> {
        self.config().validate()?;
        let positive = [
            ("batch", Some(self.batch)),
            ("lanes", Some(self.lanes)),
            ("accumulate", self.accumulate),
            ("chunks", Some(self.chunks)),
            ("ranks", Some(ranks)),
            ("steps", Some(self.steps)),
            ("stop-at", self.stop_at),
            ("threads", self.threads),
            ("tile", self.tile),
            ("checkpoint-every", self.checkpoint_every),
        ];
        for (name, value) in positive {
            if value == Some(0) {
                return Err(Error::setting(name, "must be at least 1".to_string()));
            }
        }
        if self.ranks > 1 && self.ranks != ranks {
            let problem = format!("{} were asked for, but {ranks} were started", self.ranks);
            return Err(Error::setting("ranks", problem));
        }
        // Not-a-number fails this comparison too.
        if !(self.lr > 0.0 && self.lr.is_finite()) {
            return Err(Error::setting("lr", "must be above 0".to_string()));
        }
        let rates = [("rate", self.rate.unwrap_or(1.0)), ("link", self.link)];
        if let Some((name, _)) = rates.iter().find(|(_, rate)| !(*rate > 0.0 && rate.is_finite())) {
            return Err(Error::setting(name, "must be above 0".to_string()));
        }
        if self.prompt.is_empty() {
            return Err(Error::setting("prompt", "must have at least one byte".to_string()));
        }
        let ways = Ways::of(&self.strategy)?;
        let mesh = self.mesh(ranks);
        ways.suit(&mesh, self.experts)?;
        let is_plain = self.check_travel(&ways, &mesh, ranks)?;
        if mesh.ranks() != ranks {
            let problem = format!("{mesh} has {} ranks, but there are {ranks}", mesh.ranks());
            return Err(Error::setting("mesh", problem));
        }
        if self.optimizer.has_norms() && mesh.length(Axis::Tp) > 1 {
            let problem = "has no norms of tensors that ranks divide".to_string();
            return Err(Error::setting("optimizer", problem));
        }
        if self.precision == Precision::F16 && mesh.length(Axis::Tp) > 1 {
            let problem = "f16 has overflows that ranks who divide tensors would not hear of; \
                           bf16 works";
            return Err(Error::setting("precision", problem.to_string()));
        }
        if self.draw.is_some() && !self.is_pipeline() {
            let problem = "there is nothing to draw without a pipeline: --strategy 1f1b is one";
            return Err(Error::setting("draw", problem.to_string()));
        }
        self.check_memory(&mesh)?;
        self.check_keep(ranks)?;
        let is_whole = !self.is_pipeline() && mesh.length(Axis::Tp) == 1 && self.tile.is_none();
        self.device.check(is_whole && is_plain, self.plan)?;
        self.share_of(0, ranks)?;
        self.pipeline(ranks).map(drop)
    }

    /// Refuse ways to save memory that do not go with others.
    fn check_memory(&self, mesh: &Mesh) -> Result<(), Error> {
        let is_divided = mesh.length(Axis::Tp) > 1 || self.experts > 0 || self.is_pipeline();
        let is_lean = self.recompute || self.offload_activations.is_some();
        if self.tile.is_some() && (is_divided || is_lean || self.optimizer.has_norms()) {
            let problem = "is for ranks that have whole samples, all they compute, and no norms of \
                           tensors: ddp, zero1, zero2 and fsdp, also with --offload";
            return Err(Error::setting("tile", problem.to_string()));
        }
        if let Some(tiles) = self.tile.filter(|tiles| !self.width.is_multiple_of(*tiles)) {
            let problem = format!("{tiles} tiles do not divide width {}", self.width);
            return Err(Error::setting("tile", problem));
        }
        if self.precision != Precision::F32 && self.is_pipeline() {
            return Err(Error::setting("precision", "does not go with a pipeline".to_string()));
        }
        if self.offload_activations == Some(Tier::Cpu) {
            let problem = "they are in the host's memory already; nvme:FOLDER is elsewhere";
            return Err(Error::setting("offload-activations", problem.to_string()));
        }
        Ok(())
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
            return Lanes::new(self.batch, ranks * parts, rank, ranks);
        }
        // Ranks that divide experts have samples of their own: each takes whole lanes.
        let shares = match Ways::of(&self.strategy)?.inside {
            Some(Inside::Experts) => mesh.length(Axis::Tp),
            _ => 1,
        };
        Lanes::new(self.batch, self.lanes, rank, ranks * shares)?;
        Lanes::new(self.batch, self.lanes / shares, rank, ranks)
    }

    /// The step after which this run ends.
    pub(crate) fn last_step(&self) -> usize {
        self.stop_at.map_or(self.steps, |step| step.min(self.steps))
    }

    /// What decides, beside the shape of the model, which numbers a run computes: by flag.
    pub(crate) fn course(&self) -> BTreeMap<String, String> {
        BTreeMap::from([
            ("--batch".to_string(), self.batch.to_string()),
            ("--lr".to_string(), self.lr.to_string()),
            ("--optimizer".to_string(), self.optimizer.name()),
            ("--precision".to_string(), self.precision.name()),
            ("--seed".to_string(), self.seed.to_string()),
            ("--steps".to_string(), self.steps.to_string()),
        ])
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
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        args: Args,
    }

    fn args(flags: &str) -> Args {
        Command::parse_from(["train"].into_iter().chain(flags.split_whitespace())).args
    }

    #[test]
    fn what_cannot_work_is_refused_by_the_name_of_its_flag() {
        for (flags, ranks, name) in [
            ("--ranks 0", 0, "--ranks"),
            ("--ranks 3", 2, "--ranks"),
            ("--batch 16", 3, "--batch"),
            ("--batch 0", 1, "--batch"),
            ("--ordered --lanes 4", 3, "--lanes"),
            ("--heads 3", 1, "--heads"),
            ("--steps 0", 1, "--steps"),
            ("--stop-at 0", 1, "--stop-at"),
            ("--threads 0", 1, "--threads"),
            ("--lr nan", 1, "--lr"),
            ("--accumulate 0", 1, "--accumulate"),
            ("--accumulate 5", 2, "--batch"),
            ("--strategy tp --precision f16", 2, "--precision"),
            ("--strategy tp --device cuda", 2, "--device"),
            ("--strategy 1f1b --device cuda", 2, "--device"),
            ("--tf32", 1, "--tf32"),
            ("--plan --device cuda", 1, "--plan"),
            ("--device-budget 1G", 1, "--device-budget"),
            ("--draw x.svg", 2, "--draw"),
            ("--strategy interleaved --chunks 1000000000", 2, "--layers"),
            ("--checkpoint x --checkpoint-every 0", 1, "--checkpoint-every"),
            ("--prompt=", 1, "--prompt"),
            ("--plan --rate 0", 1, "--rate"),
            ("--link nan", 1, "--link"),
            ("--strategy zero1,fsdp", 2, "--strategy"),
            ("--mesh dp=2", 3, "--mesh"),
            ("--strategy tp --mesh dp=2", 2, "--mesh"),
            ("--strategy tp,ring", 2, "--strategy"),
            ("--strategy ep", 2, "--experts"),
            ("--strategy tp --experts 4", 2, "--experts"),
            ("--experts 4 --top 5", 1, "--top"),
        ] {
            let problem = args(flags).validate(ranks).unwrap_err().to_string();
            assert!(problem.starts_with(&format!("{name}: ")), "{flags}: {problem}");
        }
    }

    #[test]
    fn the_defaults_work_for_the_usual_numbers_of_ranks() {
        for ranks in [1, 2, 3, 4, 6, 8, 12, 16] {
            args("").validate(ranks).unwrap();
        }
    }

    #[test]
    fn a_run_ends_at_the_earlier_of_its_two_limits() {
        assert_eq!(args("--steps 9").last_step(), 9);
        assert_eq!(args("--steps 9 --stop-at 5").last_step(), 5);
        assert_eq!(args("--steps 9 --stop-at 12").last_step(), 9);
    }
}
