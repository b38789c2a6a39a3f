//! Which rows there are: names and flags, as data.

use super::Args;
use crate::error::Error;
use std::path::Path;

/// What a row's losses owe to those of one process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Want {
    /// Nothing: it is one process.
    Itself,
    /// The same bits, in every step.
    SameBits,
    /// Another order of additions: in the first step off by this much at most, relatively. From
    /// there on training itself makes more of it.
    Within(f64),
}

/// One `brigade train`. A row has two where the second goes on from the first one's checkpoint.
#[derive(Clone, Debug)]
pub struct Leg {
    ranks: usize,
    flags: String,
    saves: bool,
    resumes: bool,
}

/// One line of the table.
#[derive(Clone, Debug)]
pub struct Row {
    /// What the table calls it.
    pub name: String,
    /// What its losses owe to one process.
    pub want: Want,
    /// The row of one process that trains the same model.
    pub alone: usize,
    /// What is run.
    pub legs: Vec<Leg>,
}

/// A strategy: its name, the numbers of ranks it needs (none: any that were asked for), flags in
/// which `{lanes}`, `{ranks}` and `{folder}` are filled in, and what its losses owe to one process.
type Strategy = (&'static str, &'static [usize], &'static str, Want);

/// One process that trains another model than the others, and how rows of that model begin.
const EXPERTS: &str = "experts";
/// Ranks that divide experts take a lane each: they have the bits of one process with as many.
const DIVIDED: &str = "experts, ep";
const REORDERED: Want = Want::Within(1e-5);
const ORDERED: &str = "--ordered --lanes {lanes}";

/// Everything beside the row of one process.
const STRATEGIES: &[Strategy] = &[
    ("accumulate", &[1], "--accumulate {lanes}", Want::SameBits),
    ("ddp", &[], "--strategy ddp --ordered --lanes {lanes}", Want::SameBits),
    ("zero1", &[], "--strategy zero1 --ordered --lanes {lanes}", Want::SameBits),
    ("zero2", &[], "--strategy zero2 --ordered --lanes {lanes}", Want::SameBits),
    ("fsdp", &[], "--strategy fsdp --ordered --lanes {lanes}", Want::SameBits),
    ("gpipe", &[], "--strategy gpipe --ordered --lanes {lanes}", Want::SameBits),
    ("1f1b", &[], "--strategy 1f1b --ordered --lanes {lanes}", Want::SameBits),
    ("interleaved", &[2], "--strategy interleaved --ordered --lanes {lanes}", Want::SameBits),
    ("zb1p", &[], "--strategy zb1p --ordered --lanes {lanes}", Want::SameBits),
    ("zbv", &[2], "--strategy zbv --ordered --lanes {lanes}", Want::SameBits),
    ("dualpipev", &[2], "--strategy dualpipev --ordered --lanes {lanes}", Want::SameBits),
    (
        "ddp and 1f1b",
        &[4],
        "--strategy ddp,1f1b --mesh dp=2,pp=2 --ordered --lanes {lanes}",
        Want::SameBits,
    ),
    ("recompute", &[], "--recompute --ordered --lanes {lanes}", Want::SameBits),
    (
        "offload to cpu",
        &[],
        "--strategy zero1 --offload cpu --ordered --lanes {lanes}",
        Want::SameBits,
    ),
    (
        "offload to files",
        &[],
        "--strategy fsdp --offload nvme:{folder} --ordered --lanes {lanes}",
        Want::SameBits,
    ),
    (
        "1f1b, all in files",
        &[2],
        "--strategy 1f1b --offload nvme:{folder} --offload-activations nvme:{folder} --ordered \
         --lanes {lanes}",
        Want::SameBits,
    ),
    ("fsdp in tiles", &[], "--strategy fsdp --tile 4 --ordered --lanes {lanes}", REORDERED),
    ("tp", &[], "--strategy tp --ordered --lanes {lanes}", REORDERED),
    ("sp", &[], "--strategy sp --ordered --lanes {lanes}", REORDERED),
    ("ring", &[], "--strategy ring --ordered --lanes {lanes}", REORDERED),
    ("2d", &[4], "--strategy 2d --ordered --lanes {lanes}", REORDERED),
    ("2.5d", &[8], "--strategy 2.5d --ordered --lanes {lanes}", REORDERED),
    ("3d", &[8], "--strategy 3d --ordered --lanes {lanes}", REORDERED),
    (
        "fsdp and tp",
        &[4],
        "--strategy fsdp,tp --mesh dp=2,tp=2 --ordered --lanes {lanes}",
        REORDERED,
    ),
    (EXPERTS, &[1], "--experts 8 --top 2 --ordered --lanes {lanes}", Want::Itself),
    (
        "experts, ddp",
        &[],
        "--experts 8 --top 2 --strategy ddp --ordered --lanes {lanes}",
        Want::SameBits,
    ),
    (DIVIDED, &[], "--experts 8 --top 2 --strategy ep --ordered --lanes {ranks}", Want::SameBits),
    ("ddp, fast", &[], "--strategy ddp", REORDERED),
    ("zero1, fast", &[], "--strategy zero1", REORDERED),
    ("zero2, fast", &[], "--strategy zero2", REORDERED),
    ("fsdp, fast", &[], "--strategy fsdp", REORDERED),
    (
        "states held twice",
        &[4],
        "--strategy fsdp --mesh replicate=2,shard=2 --ordered --lanes {lanes}",
        Want::SameBits,
    ),
    (
        "a copy near",
        &[4],
        "--strategy fsdp --mesh dp=2,shard=2 --secondary --ordered --lanes {lanes}",
        Want::SameBits,
    ),
    ("horovod", &[], "--strategy horovod", REORDERED),
    ("ps", &[], "--strategy ps --ordered --lanes {lanes}", Want::SameBits),
    ("compress bf16", &[], "--compress bf16", Want::Within(1e-3)),
    ("compress topk", &[], "--compress topk:0.1", Want::Within(0.05)),
    ("compress powersgd", &[], "--compress powersgd:4", Want::Within(0.05)),
    ("reduce bf16", &[], "--strategy fsdp --reduce bf16", Want::Within(1e-3)),
    ("zero++", &[], "--strategy fsdp --gather int8 --reduce int4", Want::Within(0.01)),
];

/// A run that ends half-way, and one that goes on from its checkpoint: ranks and flags of both.
type Resume = (&'static str, [(usize, &'static str); 2]);

const RESUMES: &[Resume] = &[
    ("resume 1 as fsdp", [(1, ""), (2, "--strategy fsdp")]),
    ("resume fsdp 4 as zero1", [(4, "--strategy fsdp"), (2, "--strategy zero1")]),
    ("resume zero2 2 as 1f1b", [(2, "--strategy zero2"), (4, "--strategy 1f1b")]),
];

/// The most ranks of a row: each is a process of this machine.
const RANKS_MAX: usize = 4096;

/// The greatest common divisor (Euclid).
fn common(one: usize, other: usize) -> usize {
    if other == 0 { one } else { common(other, one % other) }
}

/// How names of rows begin. All of them begin with nothing, which is hardly what was meant.
pub(super) fn parse_beginning(text: &str) -> Result<String, String> {
    match text.is_empty() {
        true => Err("name rows, as in --only ddp,fsdp; without --only all are compared".into()),
        false => Ok(text.to_string()),
    }
}

/// The rows that were asked for; the first is one process.
///
/// Errors: `Setting` if only one is left, or steps cannot be cut in two.
pub fn rows(args: &Args) -> Result<Vec<Row>, Error> {
    if args.steps < 2 {
        return Err(Error::setting("steps", "must be at least 2, to be interrupted".to_string()));
    }
    if !args.ranks.iter().all(|ranks| (1..=RANKS_MAX).contains(ranks)) {
        return Err(Error::setting("ranks", format!("must be 1 to {RANKS_MAX}")));
    }
    // Every number of ranks, and those of the rows that need one, divides the lanes of a batch.
    let lanes = args
        .ranks
        .iter()
        .try_fold(4usize, |lanes, ranks| (lanes / common(lanes, *ranks)).checked_mul(*ranks));
    let lanes = lanes.ok_or_else(|| {
        Error::setting("ranks", "no batch is divided by all of these: ask for fewer".to_string())
    })?;
    let leg = |ranks: usize, flags: &str, saves: bool, resumes: bool| Leg {
        ranks,
        flags: flags.replace("{lanes}", &lanes.to_string()),
        saves,
        resumes,
    };
    let mut rows = vec![Row {
        name: "one process".to_string(),
        want: Want::Itself,
        alone: 0,
        legs: vec![leg(1, ORDERED, false, false)],
    }];
    let is_wanted = |name: &str| {
        let asks =
            |only: &String| name.starts_with(only) || name == EXPERTS && only.starts_with(EXPERTS);
        args.only.is_empty() || args.only.iter().any(asks)
    };
    for (name, needs, flags, want) in STRATEGIES.iter().filter(|row| is_wanted(row.0)) {
        let ranks = if needs.is_empty() { &args.ranks[..] } else { needs };
        rows.extend(ranks.iter().filter(|ranks| **ranks > 1 || !needs.is_empty()).map(|ranks| {
            let flags = flags.replace("{ranks}", &ranks.to_string());
            let legs = vec![leg(*ranks, &flags, false, false)];
            Row { name: name.to_string(), want: *want, alone: 0, legs }
        }));
    }
    pair_experts(&mut rows, lanes);
    for (name, [first, second]) in RESUMES.iter().filter(|row| is_wanted(row.0)) {
        let ordered = |(ranks, flags): &(usize, &str), resumes: bool| {
            leg(*ranks, &format!("{flags} {ORDERED}"), !resumes, resumes)
        };
        let legs = vec![ordered(first, false), ordered(second, true)];
        rows.push(Row { name: name.to_string(), want: Want::SameBits, alone: 0, legs });
    }
    match rows.len() {
        1 => Err(Error::setting("only", {
            let names: Vec<_> =
                STRATEGIES.iter().map(|row| row.0).chain(RESUMES.iter().map(|row| row.0)).collect();
            format!("no row of so many ranks begins so; there are: {}", names.join("; "))
        })),
        _ => Ok(rows),
    }
}

/// Rows of a mixture of experts are compared with one process that trains it: in so many lanes, or
/// for ranks that divide experts, in a row of its own, in as many as they are.
fn pair_experts(rows: &mut Vec<Row>, lanes: usize) {
    let Some(alone) = rows.iter().position(|row| row.name == EXPERTS) else { return };
    let mut at = alone;
    while let Some(row) = rows.get_mut(at).filter(|row| row.name.starts_with(EXPERTS)) {
        let ranks = row.ranks();
        row.alone = alone;
        if row.name == DIVIDED && ranks != lanes {
            row.alone = at;
            let flags = format!("--experts 8 --top 2 --ordered --lanes {ranks}");
            let legs = vec![Leg { ranks: 1, flags, saves: false, resumes: false }];
            let name = format!("{EXPERTS}, {ranks} lanes");
            rows.insert(at, Row { name, want: Want::Itself, alone: at, legs });
            at += 1;
        }
        at += 1;
    }
}

impl Row {
    /// A row of so many runs of nothing in particular.
    #[cfg(test)]
    pub(super) fn of_legs(name: &str, want: Want, legs: usize) -> Row {
        let leg = Leg { ranks: 1, flags: String::new(), saves: false, resumes: false };
        Row { name: name.to_string(), want, alone: 0, legs: vec![leg; legs] }
    }

    /// In words, for whoever has no columns to look at: `fsdp on 4 ranks`.
    pub(super) fn told(&self) -> String {
        match self.ranks() {
            1 => self.name.clone(),
            ranks => format!("{} on {ranks} ranks", self.name),
        }
    }

    /// Ranks of its last leg.
    pub fn ranks(&self) -> usize {
        self.legs.last().map_or(1, |leg| leg.ranks)
    }
}

impl Leg {
    /// The flags of `brigade train` for it.
    pub fn flags(&self, args: &Args, log: &Path, checkpoint: &Path) -> Vec<String> {
        let path = |path: &Path| path.display().to_string();
        let folder = path(log.parent().unwrap_or(log));
        let words = self.flags.split_whitespace();
        let mut flags: Vec<String> = words.map(|word| word.replace("{folder}", &folder)).collect();
        let mut flag = |name: &str, value: String| flags.extend([format!("--{name}"), value]);
        flag("ranks", self.ranks.to_string());
        flag("steps", args.steps.to_string());
        flag("log", path(log));
        flag("sample", "0".to_string());
        flag("held-out", "0".to_string());
        if self.saves {
            flag("stop-at", (args.steps / 2).to_string());
            flag("checkpoint", path(checkpoint));
        }
        if self.resumes {
            flag("resume", path(checkpoint));
        }
        flags.push("--quiet".to_string());
        flags.extend(args.train.iter().cloned());
        flags
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(only: &[&str], ranks: &[usize]) -> Args {
        Args {
            steps: 10,
            only: only.iter().map(|name| name.to_string()).collect(),
            ranks: ranks.to_vec(),
            json: None,
            plot: None,
            train: vec!["--layers".to_string(), "1".to_string()],
        }
    }

    #[test]
    fn rows_are_chosen_by_the_beginnings_of_their_names() {
        let rows = rows(&args(&["ddp", "resume 1"], &[2, 8])).unwrap();
        let names: Vec<_> = rows.iter().map(|row| (row.name.as_str(), row.ranks())).collect();
        let ddp = [("ddp", 2), ("ddp", 8), ("ddp and 1f1b", 4)];
        assert_eq!(names[0], ("one process", 1));
        assert_eq!(names[1..4], ddp);
        assert_eq!(names[4..6], [("ddp, fast", 2), ("ddp, fast", 8)]);
        assert_eq!(names[6..], [("resume 1 as fsdp", 2)]);
        for (only, ranks) in [(&["nothing"][..], &[2][..]), (&[], &[0]), (&[], &[usize::MAX])] {
            assert!(super::rows(&args(only, ranks)).is_err(), "{only:?} {ranks:?}");
        }
        let refused = super::rows(&args(&["nothing"], &[2])).unwrap_err().to_string();
        for (name, ..) in STRATEGIES {
            assert!(refused.contains(name), "{refused}");
        }
        let primes = [4093, 4091, 4079, 4073, 4057, 4051];
        assert!(super::rows(&args(&[], &primes)).is_err(), "too large for a number");
        let shared = super::rows(&args(&[], &[3, 2])).unwrap();
        assert!(shared[0].legs[0].flags.ends_with("--lanes 12"), "2, 3 and 4 divide the lanes");
    }

    #[test]
    fn a_resumed_row_ends_half_way_and_goes_on_from_there() {
        let rows = rows(&args(&["resume 1"], &[2])).unwrap();
        let flags = |leg: usize| {
            rows[1].legs[leg].flags(&args(&[], &[2]), Path::new("l"), Path::new("c")).join(" ")
        };
        let first = "--ordered --lanes 4 --ranks 1 --steps 10 --log l --sample 0 --held-out 0 \
                     --stop-at 5 --checkpoint c --quiet --layers 1";
        assert_eq!(flags(0), first);
        assert!(flags(1).contains("--strategy fsdp") && flags(1).contains("--resume c"));
    }
}
