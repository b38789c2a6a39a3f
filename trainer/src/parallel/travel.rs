//! What a run may choose of how gradients and parameters travel between ranks with other samples.

use super::packing::Packing;
use super::{Axis, Mesh, Stage, Ways};
use crate::error::Error;
use crate::offload::parse_bytes;
use crate::precision::Precision;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use serde::{Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// How gradients and parameters travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Args, Serialize)]
pub struct Travel {
    /// Have DDP send less of gradients: bf16, f16, `topk[:PART]` (the largest numbers, a hundredth
    /// if not said), `powersgd[:RANK]` (factors of matrices, of rank 4); what is left of the last
    /// two is added to the next step's
    #[arg(long, value_name = "HOW")]
    pub compress: Option<Compress>,
    /// What gradients of zero1, zero2 and fsdp travel as; they are added in 32 bits
    #[arg(long, value_enum, default_value_t, value_name = "TYPE")]
    pub reduce: Packing,
    /// What parameters of fsdp travel as; those of --precision have 16 bits anyway
    #[arg(long, default_value = "f32", value_name = "TYPE", value_parser = gathers())]
    pub gather: Packing,
    /// Hold the state of fsdp in parts over dp and shard, and beside it a copy of parameters in
    /// parts over shard alone, from which backward gathers them
    #[arg(long)]
    pub secondary: bool,
    /// Most bytes that horovod sends in one call, such as 16M; 64M if not given
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub fusion: Option<usize>,
    /// Units of backward between two of horovod's agreements on what is ready; 1 if not given
    #[arg(long, value_name = "UNITS")]
    pub cycle: Option<usize>,
    /// Ranks that are servers, for ps and ps-async; half of all if not given
    #[arg(long, value_name = "RANKS")]
    pub servers: Option<usize>,
    /// Steps that a worker of ps-async may be ahead of another
    #[arg(long, value_name = "STEPS")]
    pub staleness: Option<usize>,
    /// Whether ranks agree on what is ready, and send it in common: `--strategy horovod`.
    #[arg(skip)]
    #[serde(skip)]
    pub is_fused: bool,
}

/// How DDP sends less.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Compress {
    /// An all-reduce in bf16.
    Bf16,
    /// An all-reduce in f16.
    F16,
    /// This part of the numbers, the largest ones (Aji and Heafield 2017).
    TopK(f64),
    /// Two factors of this rank in place of each matrix (Vogels et al. 2019).
    PowerSgd(usize),
}

/// Who makes less of gradients and parameters before they travel, where devices compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PackedBy {
    /// They travel as they are.
    Nobody,
    /// Who has them.
    Devices,
    /// Hosts, as without devices.
    Hosts,
}

impl Travel {
    /// Refuse what does not go with each other, or with the rest of a run.
    ///
    /// Errors: `Setting`.
    pub(crate) fn suit(
        &self,
        stage: Stage,
        mesh: &Mesh,
        is_ordered: bool,
        precision: Precision,
    ) -> Result<(), Error> {
        let refuse = |name, problem: &str| Err(Error::setting(name, problem.to_string()));
        let is_hybrid = mesh.length(Axis::Shard) > 1;
        if self.compress.is_some() && (stage != Stage::Ddp || self.is_fused) {
            return refuse("compress", "is ddp's; zero1, zero2 and fsdp have --reduce");
        }
        if self.compress.is_some() && is_ordered {
            return refuse("compress", "depends on which rank has which lane: not with --ordered");
        }
        let leaves = matches!(self.compress, Some(Compress::TopK(_) | Compress::PowerSgd(_)));
        if leaves && precision == Precision::F16 {
            return refuse("compress", "would keep what has overflowed f16: bf16 works");
        }
        self.suit_fusion(is_ordered)?;
        if self.reduce != Packing::F32 && stage == Stage::Ddp {
            return refuse("reduce", "is that of zero1, zero2 and fsdp; ddp has --compress");
        }
        if self.reduce.has_blocks() && is_ordered {
            return refuse("reduce", "has scales that depend on the ranks: --ordered takes bf16");
        }
        self.suit_gather(stage, is_ordered, precision != Precision::F32)?;
        if is_hybrid && stage == Stage::Ddp {
            return refuse("mesh", "ddp holds nothing in parts: shard goes with zero1 to fsdp");
        }
        if self.secondary && (stage != Stage::Fsdp || !is_hybrid) {
            return refuse("secondary", "goes with fsdp and --mesh dp=..,shard=..");
        }
        Ok(())
    }

    /// Refuse what would move tensors that ranks along tp share apart: picks and blocks are of a
    /// unit, in which each rank has other neighbours of theirs.
    pub(crate) fn suit_divided(&self, ways: &Ways, mesh: &Mesh) -> Result<(), Error> {
        if mesh.length(Axis::Tp) == 1 || !ways.divide_tensors() {
            return Ok(());
        }
        let name = match self {
            Travel { compress: Some(Compress::TopK(_)), .. } => "compress",
            Travel { reduce, .. } if reduce.has_blocks() => "reduce",
            Travel { gather, .. } if gather.has_blocks() => "gather",
            _ => return Ok(()),
        };
        let problem = "picks, or scales, across tensors: those that all ranks along tp have would \
                       differ from rank to rank; bf16 works, and --strategy ring";
        Err(Error::setting(name, problem.to_string()))
    }

    fn suit_fusion(&self, is_ordered: bool) -> Result<(), Error> {
        let refuse = |name, problem: &str| Err(Error::setting(name, problem.to_string()));
        if self.is_fused && is_ordered {
            return refuse("ordered", "is ddp's: horovod adds in no order");
        }
        for (name, number) in [("fusion", self.fusion), ("cycle", self.cycle)] {
            match number {
                Some(0) => return refuse(name, "must be at least 1"),
                Some(_) if !self.is_fused => return refuse(name, "is horovod's"),
                _ => {}
            }
        }
        Ok(())
    }

    fn suit_gather(&self, stage: Stage, is_ordered: bool, is_narrow: bool) -> Result<(), Error> {
        let problem = match self.gather {
            Packing::F32 => return Ok(()),
            Packing::Int8 if stage != Stage::Fsdp => "int8 is for parameters of fsdp",
            Packing::Int8 if is_narrow => "does not go with --precision, which sends 16 bits",
            Packing::Int8 if is_ordered => "has scales that depend on the ranks: not --ordered",
            Packing::Int8 => return Ok(()),
            Packing::Bf16 | Packing::F16 | Packing::Int4 => "is f32 or int8",
        };
        Err(Error::setting("gather", problem.to_string()))
    }

    /// The flags by which less travels than numbers as they are, each behind a space.
    pub(crate) fn flags(&self) -> String {
        let packed = |packing: Packing| (packing != Packing::F32).then(|| packing.name());
        let all = [
            ("compress", self.compress.map(|how| how.to_string())),
            ("reduce", packed(self.reduce)),
            ("gather", packed(self.gather)),
        ];
        let given = all.into_iter().filter_map(|(name, how)| how.map(|how| (name, how)));
        given.map(|(name, how)| format!(" --{name} {how}")).collect()
    }

    /// Who makes less of what devices have for each other. They round gradients to bf16 themselves,
    /// but not lanes of `is_ordered` runs.
    pub(super) fn packed_by(&self, is_ordered: bool) -> PackedBy {
        let is_narrow = self.reduce == Packing::Bf16 || self.compress == Some(Compress::Bf16);
        let rest = Travel { reduce: Packing::F32, compress: None, ..*self };
        match self.is_plain() {
            true => PackedBy::Nobody,
            false if is_narrow && !is_ordered && rest.is_plain() => PackedBy::Devices,
            false => PackedBy::Hosts,
        }
    }

    /// Whether everything travels as it is.
    pub(crate) fn is_plain(&self) -> bool {
        *self == Travel::default()
    }
}

impl fmt::Display for Compress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Compress::Bf16 => write!(f, "bf16"),
            Compress::F16 => write!(f, "f16"),
            Compress::TopK(part) => write!(f, "topk:{part}"),
            Compress::PowerSgd(rank) => write!(f, "powersgd:{rank}"),
        }
    }
}

impl FromStr for Compress {
    type Err = String;

    /// As it is displayed; a part and a rank may be left away.
    fn from_str(text: &str) -> Result<Compress, String> {
        let (name, number) = match text.split_once(':') {
            Some((name, number)) => (name, Some(number)),
            None => (text, None),
        };
        match (name, number) {
            ("bf16" | "bfloat16", None) => Ok(Compress::Bf16),
            ("f16" | "float16", None) => Ok(Compress::F16),
            ("topk", number) => {
                let part = number.unwrap_or("0.01").parse().unwrap_or(f64::NAN);
                let is_part = part > 0.0 && part <= 1.0;
                let wrong = || "topk: a part above 0 and at most 1, such as topk:0.01".to_string();
                is_part.then_some(Compress::TopK(part)).ok_or_else(wrong)
            }
            ("powersgd", number) => {
                let rank = number.unwrap_or("4").parse().unwrap_or(0);
                let is_rank = (1..=64).contains(&rank);
                let problem = "powersgd has a rank of 1 to 64".to_string();
                is_rank.then_some(Compress::PowerSgd(rank)).ok_or(problem)
            }
            _ => Err("there are bf16, f16, topk[:PART] and powersgd[:RANK]".to_string()),
        }
    }
}

/// Parameters travel as they are or in 8 bits: 4 are too coarse, and 16 are those of `--precision`.
fn gathers() -> impl TypedValueParser<Value = Packing> {
    let named = |packing: Packing| packing.to_possible_value().expect("no packing is hidden");
    let names = PossibleValuesParser::new([Packing::F32, Packing::Int8].map(named));
    names.map(|name| Packing::from_str(&name, false).expect("it is the name of a packing"))
}

impl Serialize for Compress {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_to_compress_are_read_as_they_are_written() {
        for (text, way) in [
            ("bf16", Compress::Bf16),
            ("f16", Compress::F16),
            ("topk:0.25", Compress::TopK(0.25)),
            ("powersgd:2", Compress::PowerSgd(2)),
        ] {
            assert_eq!((text.parse(), way.to_string().as_str()), (Ok(way), text));
        }
        assert_eq!("bfloat16".parse(), Ok(Compress::Bf16));
        assert_eq!("topk".parse(), Ok(Compress::TopK(0.01)));
        assert_eq!("powersgd".parse(), Ok(Compress::PowerSgd(4)));
        for wrong in ["", "bf16:2", "topk:0", "topk:2", "topk:x", "powersgd:0", "powersgd:-1"] {
            assert!(wrong.parse::<Compress>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn gathers_names_what_a_run_takes_and_nothing_else() {
        let all = gathers();
        let names = all.possible_values().expect("they are listed");
        for packing in names.map(|name| Packing::from_str(name.get_name(), false).unwrap()) {
            let flags = format!("--strategy fsdp --gather {}", packing.name());
            let args = crate::Args::of(&flags);
            assert_eq!(args.travel.gather, packing);
            args.validate(2).unwrap();
        }
        // By the names of Python, too.
        let flags = "--strategy fsdp --gather float32 --reduce bfloat16 --precision float16";
        let args = crate::Args::of(flags);
        assert_eq!((args.travel.gather, args.travel.reduce), (Packing::F32, Packing::Bf16));
        assert_eq!(args.precision, crate::precision::Precision::F16);
    }

    #[test]
    fn what_does_not_go_together_is_refused_by_the_name_of_its_flag() {
        for (flags, ranks, name) in [
            ("--compress bf16 --ordered", 2, "--compress"),
            ("--compress topk --strategy fsdp", 2, "--compress"),
            ("--compress powersgd --precision f16", 2, "--compress"),
            ("--reduce bf16", 2, "--reduce"),
            ("--strategy horovod --ordered", 2, "--ordered"),
            ("--strategy horovod --compress bf16", 2, "--compress"),
            ("--cycle 2", 2, "--cycle"),
            ("--servers 1", 2, "--servers"),
            ("--strategy ps --servers 2", 2, "--servers"),
            ("--strategy ps --staleness 2", 2, "--staleness"),
            ("--strategy ps-async --ordered", 2, "--ordered"),
            ("--strategy ps --compress bf16", 2, "--strategy"),
            ("--strategy ps,fsdp", 2, "--strategy"),
            ("--strategy fsdp --reduce int4 --ordered", 2, "--reduce"),
            ("--strategy zero2 --gather int8", 2, "--gather"),
            ("--strategy fsdp --gather int8 --precision bf16", 2, "--gather"),
            ("--strategy tp,ddp --mesh dp=2,tp=2 --compress topk", 4, "--compress"),
            ("--strategy ddp --mesh dp=2,tp=2 --compress topk", 4, "--compress"),
            ("--strategy sp,zero2 --mesh dp=2,tp=2 --reduce int8", 4, "--reduce"),
            ("--strategy tp,fsdp --mesh dp=2,tp=2 --gather int8", 4, "--gather"),
            ("--mesh replicate=2,shard=2", 4, "--mesh"),
            ("--strategy fsdp --secondary", 4, "--secondary"),
            ("--strategy fsdp,1f1b --mesh dp=2,pp=2 --reduce bf16", 4, "--strategy"),
        ] {
            let problem = crate::Args::of(flags).validate(ranks).unwrap_err().to_string();
            assert!(problem.starts_with(&format!("{name}: ")), "{flags}: {problem}");
        }
    }
}
