//! What `brigade train` may be told.

use crate::error::Error;
use crate::layout::Config;
use clap::{Args as ClapArgs, ValueEnum};
use serde::Serialize;
use std::path::PathBuf;

/// How the ranks share the work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum StrategyName {
    /// Each rank holds the whole model and a part of the batch; gradients are summed.
    #[default]
    Ddp,
}

/// Train a small GPT on text. The same seed and batch show every world size the same samples.
#[derive(Clone, Debug, ClapArgs, Serialize)]
pub struct Args {
    /// Processes to train with
    #[arg(long, default_value_t = 1)]
    pub ranks: usize,
    /// Steps in all, counting those before --resume
    #[arg(long, default_value_t = 600)]
    pub steps: usize,
    /// How the ranks share the work
    #[arg(long, value_enum, default_value_t)]
    pub strategy: StrategyName,
    /// What carries the bytes: auto, shm, tcp
    #[arg(long, default_value = "auto")]
    pub transport: String,
    /// Same digits at every number of ranks, for more bytes: all ranks' gradients are gathered and
    /// added in one order
    #[arg(long)]
    pub ordered: bool,
    /// Groups of samples whose gradients --ordered adds in order; --ranks must divide it
    #[arg(long, default_value_t = 4)]
    pub lanes: usize,
    /// Text to train on, a file or a folder; Moby-Dick if not given
    #[arg(long, value_name = "PATH")]
    pub text: Option<PathBuf>,
    /// Samples per step over all ranks
    #[arg(long, default_value_t = 16)]
    pub batch: usize,
    /// Bytes per sample
    #[arg(long, default_value_t = 128)]
    pub context: usize,
    /// Blocks
    #[arg(long, default_value_t = 4)]
    pub layers: usize,
    /// Numbers per token between blocks
    #[arg(long, default_value_t = 128)]
    pub width: usize,
    /// Attention heads per block
    #[arg(long, default_value_t = 4)]
    pub heads: usize,
    /// Highest learning rate; it warms up over 5 % of the steps and falls to a tenth
    #[arg(long, default_value_t = 3e-3)]
    pub lr: f32,
    /// Chooses weights and samples
    #[arg(long, default_value_t = 1851)]
    pub seed: u64,
    /// Threads per rank; all cores shared evenly if not given
    #[arg(long)]
    pub threads: Option<usize>,
    /// Most gradients per all-reduce, in MiB
    #[arg(long, default_value_t = 25.0, value_name = "MIB")]
    pub bucket_mb: f64,
    /// Write the training state to this file (safetensors) at the end
    #[arg(long, value_name = "FILE")]
    pub checkpoint: Option<PathBuf>,
    /// Also write it after every so many steps
    #[arg(long, value_name = "STEPS", requires = "checkpoint")]
    pub checkpoint_every: Option<usize>,
    /// Go on from this checkpoint
    #[arg(long, value_name = "FILE")]
    pub resume: Option<PathBuf>,
    /// Append one JSON object per step to this file
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
    /// Bytes of text to write at the end
    #[arg(long, default_value_t = 400, value_name = "BYTES")]
    pub sample: usize,
    /// How that text begins
    #[arg(long, default_value = "The whale ", value_name = "TEXT")]
    pub prompt: String,
    /// Print the step lines only
    #[arg(long)]
    pub quiet: bool,
}

impl Args {
    /// The model these settings describe.
    pub fn config(&self) -> Config {
        let Args { context, layers, heads, width, .. } = *self;
        Config { vocab: 256, context, layers, heads, width }
    }

    /// Refuse what cannot work at this number of ranks, naming the flag.
    pub fn validate(&self, ranks: usize) -> Result<(), Error> {
        self.config().validate()?;
        let positive = [("batch", self.batch), ("lanes", self.lanes), ("ranks", ranks)];
        for (name, value) in positive {
            if value == 0 {
                return Err(Error::setting(name, "must be at least 1".to_string()));
            }
        }
        if self.threads == Some(0) || self.checkpoint_every == Some(0) {
            let name = if self.threads == Some(0) { "threads" } else { "checkpoint-every" };
            return Err(Error::setting(name, "must be at least 1".to_string()));
        }
        // Not-a-number fails these comparisons too.
        if !(self.bucket_mb > 0.0 && self.bucket_mb <= 1e6) {
            return Err(Error::setting("bucket-mb", "must be above 0, in MiB".to_string()));
        }
        if !(self.lr > 0.0 && self.lr.is_finite()) {
            return Err(Error::setting("lr", "must be above 0".to_string()));
        }
        if self.prompt.is_empty() {
            return Err(Error::setting("prompt", "must have at least one byte".to_string()));
        }
        Ok(())
    }

    /// Threads of one of `ranks` ranks on this machine.
    pub fn threads(&self, ranks: usize) -> usize {
        let cores = || std::thread::available_parallelism().map_or(1, |cores| cores.get());
        self.threads.unwrap_or_else(|| (cores() / ranks).max(1))
    }
}
