//! What `brigade train` may be told of devices.

use crate::error::Error;
use crate::kernels::cuda::ProductFormat;
use crate::offload::parse_bytes;
use crate::precision::Precision;
use brigade_comm::launch::Launch;
use clap::{Args, ValueEnum};
use serde::Serialize;

/// What computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Machine {
    /// The processor
    #[default]
    Cpu,
    /// A CUDA device; its driver is found at run time
    Cuda,
}

/// Flags about devices.
#[derive(Clone, Debug, Args, Serialize)]
pub struct DeviceArgs {
    /// What computes; ranks share the devices of a machine if they are more
    #[arg(long, value_enum, default_value_t)]
    pub device: Machine,
    /// Bytes of a device that a rank may use, such as 2G, in place of its part of what is free:
    /// parameters and gradients stream through it if it does not hold the state, or with zero1,
    /// zero2, fsdp and pipelines this rank's part
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub device_budget: Option<usize>,
    /// Let products of f32 on a device read 10 bits of each fraction (TF32)
    #[arg(long)]
    pub tf32: bool,
}

/// How a rank uses a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceUse {
    /// Which of this machine's, modulo how many there are.
    pub index: usize,
    /// What products read.
    pub inside: ProductFormat,
    /// The most bytes of it that a rank may use.
    pub budget: Option<usize>,
}

impl DeviceArgs {
    /// What computes, in words: devices have other last bits than the processor.
    pub(crate) fn name(&self) -> String {
        let machine = if self.is_cuda() { "cuda" } else { "cpu" };
        format!("{machine}{}", if self.tf32 { " --tf32" } else { "" })
    }

    /// How a rank uses a device, if it does.
    pub(crate) fn usage(&self, rank: usize, precision: Precision) -> Option<DeviceUse> {
        let inside = match precision {
            Precision::Bf16 => ProductFormat::Bf16,
            Precision::F16 => ProductFormat::F16,
            _ if self.tf32 => ProductFormat::Tf32,
            _ => ProductFormat::Full,
        };
        // A host's ranks may be numbered by turns with those of others.
        let index = Launch::local_rank().unwrap_or(rank);
        let usage = DeviceUse { index, inside, budget: self.device_budget };
        (self.device == Machine::Cuda).then_some(usage)
    }

    /// Whether a device computes.
    pub(crate) fn is_cuda(&self) -> bool {
        self.device == Machine::Cuda
    }

    /// Refuse what no device does, or what means nothing without one.
    pub(crate) fn check(&self, is_plan: bool) -> Result<(), Error> {
        let refuse = |name, problem: &str| Err(Error::setting(name, problem.to_string()));
        match self.device {
            Machine::Cuda if is_plan => {
                refuse("plan", "tells of the processor only: leave --device away")
            }
            Machine::Cpu if self.device_budget.is_some() => {
                refuse("device-budget", "means nothing without --device cuda")
            }
            Machine::Cpu if self.tf32 => refuse("tf32", "means nothing without --device cuda"),
            _ => Ok(()),
        }
    }
}
