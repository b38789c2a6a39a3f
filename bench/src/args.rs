//! The flags of `brigade bench`, and those of them that `brigade tune` and `brigade explain` have.

mod sweep;

use std::path::PathBuf;

use brigade_comm::{Dtype, Op};
use brigade_schedule::{Algorithm, Collective, program};

pub use self::sweep::Sweep;
pub(crate) use self::sweep::accepted;
use crate::kind::{Case, Kind};
use crate::size;

/// Time a collective, with nccl-tests' columns.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = "\
A sample is one call, waited for, started together after a barrier; its time is the largest over
the ranks. `time` is the median of the samples. Bandwidths are in GB/s with GB = 1e9, and bus
bandwidths use nccl-tests' factors. `sent` is what the busiest rank sent in one call, and `x bound`
how many times that is of the least that any algorithm could do with.

Of a line of --json, bytes and sent_bytes_per_rank are bytes, count is elements of a block, us_p50,
us_p99, us_min and us_max are microseconds of a call, of which calls were timed, algbw and busbw
GB/s, wrong is elements (null without --check), cpu_s_per_gb is processor seconds of all ranks per
GB and x_bound as above (null where there is nothing to move), root is -1 where there is none, and
version is Brigade's.

Without a launcher's environment this command starts the ranks itself: processes, or
threads for loopback. Under a launcher (brigade run, torchrun, mpirun, srun) it is one rank of the
world that the launcher made, and -n is ignored.

Examples:
  brigade bench all-reduce -n 2
  brigade bench all-reduce -n 4 --transport tcp -b 8 -e 64M -f 4 --json -
  brigade bench reduce-scatter -n 3 -b 1 -e 4M -f 4 --dtype all --op all --check --iters 1
  brigade bench all-reduce,all-gather -n 2 --check
  brigade bench all-reduce -n 8 --transport cuda -b 8 -e 64M --check
  brigade bench all-gather -n 2 --transport shm -b 64K -e 4M --touch
  brigade bench all-gather -n 2 --plot all-gather.svg")]
pub struct Args {
    /// What to measure; several, separated by commas, get a table each from the same ranks
    #[arg(
        value_enum,
        value_name = "COLLECTIVE",
        required = true,
        num_args = 1,
        value_delimiter = ','
    )]
    pub kinds: Vec<Kind>,
    /// Among how many ranks, at which sizes, over what.
    #[command(flatten)]
    pub sweep: Sweep,
    /// With --transport cuda: capture each call in a CUDA graph and time its replay
    #[arg(long)]
    pub graph: bool,
    /// With --transport cuda under `brigade run`: processes leave each other's buffers open between
    /// calls, as for owners who say that they keep them (not in C, nor by NCCL's names)
    #[arg(long, conflicts_with = "graph")]
    pub keep_open: bool,
    /// Use this algorithm rather than the one that would be chosen; `brigade schedule show
    /// COLLECTIVE -n RANKS` lists those there are
    #[arg(long, value_name = "NAME")]
    pub algorithm: Option<Algorithm>,
    /// Fold in rank order, whatever the transport: the same bits everywhere; folds then have an
    /// algorithm of their own
    #[arg(long)]
    pub ordered: bool,
    /// Element types, separated by commas, as here or as in Python (float32), or `all`
    #[arg(long, default_value = "f32", value_parser = parse_dtypes)]
    pub dtype: Dtypes,
    /// Operators, separated by commas, or `all`
    #[arg(long, default_value = "sum", value_parser = parse_ops)]
    pub op: Ops,
    /// The root, or `all` for each rank in turn
    #[arg(long, default_value = "0", value_parser = parse_root)]
    pub root: Root,
    /// Take so many samples rather than as many as fit in 40 ms; a sample is a call
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub iters: Option<u32>,
    /// Samples before the first that counts; without --iters at least 2
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    pub warmup: u32,
    /// Make a sample of so many calls, and divide its time: on devices they are enqueued one behind
    /// the other and only the last is waited for, as by nccl-tests
    #[arg(long, value_name = "CALLS", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub in_a_row: u32,
    /// Write the input in front of each call and read the output behind it, within its time, as
    /// programs do: what a call leaves in whose cache costs them, too
    #[arg(long, conflicts_with_all = ["graph", "keep_open"])]
    pub touch: bool,
    /// Compare every element with a plain sequential fold; exit with 1 if any is wrong
    #[arg(long)]
    pub check: bool,
    /// Write JSON, an object a line, to FILE; `-`: to stdout, the table to stderr
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Draw times and bandwidths over sizes
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,
}

/// One or more element types.
#[derive(Clone, Debug)]
pub struct Dtypes(Vec<Dtype>);

/// One or more operators.
#[derive(Clone, Debug)]
pub struct Ops(Vec<Op>);

/// Which ranks take a turn as root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Root {
    /// This one.
    One(u32),
    /// Every rank.
    All,
}

impl Default for Args {
    /// As without a flag, of nothing yet.
    fn default() -> Self {
        Self {
            kinds: Vec::new(),
            sweep: Sweep::default(),
            graph: false,
            keep_open: false,
            algorithm: None,
            ordered: false,
            dtype: Dtypes(vec![Dtype::F32]),
            op: Ops(vec![Op::Sum]),
            root: Root::One(0),
            iters: None,
            warmup: 2,
            in_a_row: 1,
            touch: false,
            check: false,
            json: None,
            plot: None,
        }
    }
}

impl Args {
    /// The lines of the tables, in order: for each collective a block of sizes for every type,
    /// operator and root. Combinations without a meaning are left out.
    pub fn cases(&self, ranks: usize) -> Result<Vec<Case>, String> {
        if self.plot.is_some() && self.kinds.len() > 1 {
            return Err(String::from("--plot draws one collective; leave the others out"));
        }
        self.refuse_idle_algorithm(ranks)?;
        let each = self.kinds.iter().map(|kind| self.cases_of(*kind, ranks));
        Ok(each.collect::<Result<Vec<_>, _>>()?.concat())
    }

    /// An algorithm that can do none of the collectives would never be measured.
    fn refuse_idle_algorithm(&self, ranks: usize) -> Result<(), String> {
        let Some(algorithm) = self.algorithm else { return Ok(()) };
        let ranks = u32::try_from(ranks).map_err(|_| format!("{ranks} ranks are too many"))?;
        let collectives = self.kinds.iter().filter_map(|kind| kind.collective(0));
        let collectives: Vec<_> = collectives.collect();
        if collectives.is_empty() {
            return Err(String::from("nothing of this has an algorithm; leave --algorithm out"));
        }
        let is_overruled = |one: &Collective| self.ordered && one.folds();
        if algorithm != Algorithm::Ordered && collectives.iter().all(is_overruled) {
            let ordered = Algorithm::Ordered;
            return Err(format!(
                "--ordered folds by {ordered}, not by {algorithm}; leave one of the two out"
            ));
        }
        let does = |collective: &_| program(*collective, algorithm, ranks, 0).is_some();
        if collectives.iter().any(does) {
            return Ok(());
        }
        let able = collectives.iter().flat_map(|&one| Algorithm::all_for(one, ranks));
        let mut able: Vec<String> = able.map(Algorithm::name).collect();
        able.sort();
        able.dedup();
        let (these, among) = (able.join(", "), size::ranks(ranks as usize));
        Err(format!(
            "--algorithm {algorithm} does nothing of this among {among}; these do: {these}"
        ))
    }

    fn cases_of(&self, kind: Kind, ranks: usize) -> Result<Vec<Case>, String> {
        let roots = self.roots(kind, ranks)?;
        let sizes = match kind {
            Kind::Barrier => vec![0],
            _ => self.sweep.sizes()?,
        };
        // What has no elements is the same call for every type.
        let types = if kind == Kind::Barrier { 1 } else { self.dtype.0.len() };
        let mut cases = Vec::new();
        for dtype in &self.dtype.0[..types] {
            let elems = sizes.iter().map(|bytes| kind.block_elems(*bytes, *dtype, ranks));
            let mut elems: Vec<usize> = elems.collect();
            // Sizes below an element would all be the same empty call.
            elems.dedup();
            for op in self.ops(kind, *dtype) {
                for root in &roots {
                    cases.extend(elems.iter().map(|&block_elems| Case {
                        kind,
                        dtype: *dtype,
                        op: op.clone(),
                        root: *root,
                        block_elems,
                    }));
                }
            }
        }
        match cases.is_empty() {
            true => Err(String::from(
                "no operator given makes sense for a type given; sum, prod, min and max always do",
            )),
            false => Ok(cases),
        }
    }

    fn ops(&self, kind: Kind, dtype: Dtype) -> Vec<Op> {
        match kind.folds() {
            true => self.op.0.iter().filter(|op| op.supports(dtype)).cloned().collect(),
            false => vec![Op::Sum],
        }
    }

    fn roots(&self, kind: Kind, ranks: usize) -> Result<Vec<u32>, String> {
        let ranks = u32::try_from(ranks).map_err(|_| format!("{ranks} ranks are too many"))?;
        match self.root {
            Root::One(root) if root >= ranks => {
                Err(format!("--root {root} is no rank of {ranks}; the last one is {}", ranks - 1))
            }
            Root::All if kind.has_root() => Ok((0..ranks).collect()),
            Root::All => Ok(vec![0]),
            Root::One(root) => Ok(vec![root]),
        }
    }
}

pub(crate) fn parse_dtypes(text: &str) -> Result<Dtypes, String> {
    match text {
        "all" => Ok(Dtypes(Dtype::ALL.to_vec())),
        _ => text
            .split(',')
            .map(|name| name.parse::<Dtype>().map_err(|error| format!("{error}{}", meant(name))))
            .collect::<Result<_, _>>()
            .map(Dtypes),
    }
}

/// What a type is called here that has this name elsewhere.
fn meant(name: &str) -> String {
    let ours = match name {
        "float" | "fp32" | "single" => "f32",
        "double" | "fp64" => "f64",
        "half" | "fp16" => "f16",
        "float8_e4m3" | "float8_e4m3fn" | "fp8_e4m3" => "f8e4m3",
        "float8_e5m2" | "fp8_e5m2" => "f8e5m2",
        "char" => "i8",
        "byte" => "u8",
        "int" => "i32",
        "long" => "i64",
        _ => return String::new(),
    };
    format!("; did you mean {ours}?")
}

pub(crate) fn parse_ops(text: &str) -> Result<Ops, String> {
    match text {
        "all" => {
            let mut ops = Op::PLAIN.to_vec();
            ops.push(Op::PreMulSum(2.0));
            Ok(Ops(ops))
        }
        _ => text
            .split(',')
            .map(|name| name.parse::<Op>().map_err(|error| error.to_string()))
            .collect::<Result<_, _>>()
            .map(Ops),
    }
}

pub(crate) fn parse_root(text: &str) -> Result<Root, String> {
    match text {
        "all" => Ok(Root::All),
        _ => text.parse().map(Root::One).map_err(|_| format!("{text:?} is no rank, nor `all`")),
    }
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

    #[test]
    fn sizes_below_an_element_are_one_row() {
        let elems = |flags: &str| -> Vec<usize> {
            let words = ["bench", "all-reduce"].into_iter().chain(flags.split_whitespace());
            let cases = Command::parse_from(words).args.cases(2).unwrap();
            cases.into_iter().map(|case| case.block_elems).collect()
        };
        assert_eq!(elems("-b 0 -e 8 -f 2"), [0, 1, 2]);
        assert_eq!(elems("-b 0 -e 8 -f 2 --dtype u8"), [0, 1, 2, 4, 8]);
        assert_eq!(elems("-b 0 -e 4 -f 4 --dtype f32,u8"), [0, 1, 0, 1, 4]);
    }

    #[test]
    fn types_by_other_names_are_told_by_ours() {
        for (name, ours) in [("float", "f32"), ("half", "f16"), ("long", "i64")] {
            let refused = parse_dtypes(name).unwrap_err();
            assert!(refused.ends_with(&format!("; did you mean {ours}?")), "{refused}");
            assert!(parse_dtypes(ours).is_ok());
        }
        assert!(!parse_dtypes("f33").unwrap_err().contains("mean"));
        let of_python = parse_dtypes("float32,bfloat16,uint8").unwrap();
        assert_eq!(of_python.0, [Dtype::F32, Dtype::Bf16, Dtype::U8]);
    }

    #[test]
    fn collectives_follow_one_another() {
        let of = |words: &[&str]| Command::parse_from(words).args.cases(2);
        let cases = of(&["bench", "barrier,all-reduce,gather", "-b", "8", "-e", "8"]).unwrap();
        assert_eq!(of(&["bench", "barrier", "--dtype", "all"]).unwrap().len(), 1, "of no type");
        let kinds: Vec<Kind> = cases.iter().map(|case| case.kind).collect();
        assert_eq!(kinds, [Kind::Barrier, Kind::AllReduce, Kind::Gather]);
        assert!(of(&["bench", "barrier,gather", "--plot", "x.svg"]).is_err());
        assert!(Command::try_parse_from(["bench", "barrier,nonsense"]).is_err());
    }

    #[test]
    fn an_algorithm_that_nothing_would_run_is_refused() {
        let of = |words: &[&str], ranks| Command::parse_from(words).args.cases(ranks);
        assert!(of(&["bench", "all-gather", "--algorithm", "bruck"], 2).is_ok());
        assert!(of(&["bench", "all-reduce,all-gather", "--algorithm", "bruck"], 2).is_ok());
        let refusal = of(&["bench", "all-reduce", "--algorithm", "bruck"], 2).unwrap_err();
        assert!(refusal.contains("bruck") && refusal.contains("doubling"), "{refusal}");
        assert!(of(&["bench", "all-reduce", "--algorithm", "hierarchical:3"], 2).is_err());
        assert!(of(&["bench", "all-reduce", "--algorithm", "ring"], 1).is_ok());
        let refusal = of(&["bench", "send-recv", "--algorithm", "ring"], 2).unwrap_err();
        assert!(refusal.contains("leave --algorithm out"), "{refusal}");
        // What folds in rank order does so by one algorithm; what folds nothing has its choice.
        let ordered = |kinds, name| of(&["bench", kinds, "--ordered", "--algorithm", name], 2);
        let refusal = ordered("all-reduce", "ring").unwrap_err();
        assert!(refusal.contains("leave one of the two out"), "{refusal}");
        assert!(ordered("all-reduce", "ordered").is_ok());
        assert!(ordered("all-reduce,all-gather", "ring").is_ok());
    }
}
