//! Which algorithm is the fastest, by collective, number of ranks and size: what `brigade tune` has
//! measured, as a text that people can read and mend.

use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};

use brigade_schedule::{Algorithm, Collective};

/// A file is no longer than that.
const BYTES_MAX: u64 = 1 << 20;
/// Stands for sizes without an end.
const UNBOUNDED: &str = "*";

/// Rules for the choice of algorithms. All ranks of a communicator must have the same.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tuning {
    path: PathBuf,
    rules: Vec<Rule>,
}

/// One algorithm for one collective among so many ranks, up to a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Which collective; its root means nothing.
    pub collective: Collective,
    /// How many ranks the communicator has.
    pub ranks: u32,
    /// Sizes up to so many bytes, as `brigade bench` has them in its first column.
    pub up_to: u64,
    /// What carries them out.
    pub algorithm: Algorithm,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let up_to = match self.up_to {
            u64::MAX => UNBOUNDED.to_owned(),
            bytes => bytes.to_string(),
        };
        let Self { collective, ranks, algorithm, .. } = self;
        write!(f, "{collective:<15} {ranks:<7} {up_to:<13} {algorithm}")
    }
}

impl Tuning {
    /// The heads of a rule's columns, as a comment.
    pub const HEADS: &'static str = "# collective    ranks   up to bytes   algorithm";

    /// The rules of a file.
    ///
    /// # Errors
    ///
    /// A sentence with the line, where the file cannot be read or means nothing.
    pub fn read(path: &Path) -> Result<Self, String> {
        let mut text = String::new();
        let read = std::fs::File::open(path)
            .and_then(|file| file.take(BYTES_MAX + 1).read_to_string(&mut text));
        read.map_err(|error| error.to_string())?;
        if text.len() as u64 > BYTES_MAX {
            return Err(format!("more than {BYTES_MAX} bytes are no list of rules"));
        }
        Ok(Self { path: path.to_owned(), rules: parse(&text)? })
    }

    /// Where the rules come from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The algorithm for a call of so many bytes, if there is a rule for it.
    pub(crate) fn choose(
        &self,
        collective: Collective,
        ranks: u32,
        bytes: u64,
    ) -> Option<Algorithm> {
        let collective = collective.with_root(0);
        let is_for = |rule: &&Rule| {
            (rule.collective, rule.ranks) == (collective, ranks) && bytes <= rule.up_to
        };
        self.rules.iter().find(is_for).map(|rule| rule.algorithm)
    }
}

fn parse(text: &str) -> Result<Vec<Rule>, String> {
    let mut rules: Vec<Rule> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let told = |why: String| format!("line {}: {why}", number + 1);
        let rule = parse_rule(line).map_err(told)?;
        let before = rules
            .iter()
            .rfind(|known| (known.collective, known.ranks) == (rule.collective, rule.ranks));
        if before.is_some_and(|before| before.up_to >= rule.up_to) {
            return Err(told(format!("an earlier rule has all of `{line}`")));
        }
        rules.push(rule);
    }
    Ok(rules)
}

fn parse_rule(line: &str) -> Result<Rule, String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [collective, ranks, up_to, algorithm] = words[..] else {
        return Err(format!("`{line}` is not: collective, ranks, up to bytes, algorithm"));
    };
    let collective: Collective = collective.parse().map_err(|error| format!("{error}"))?;
    let ranks: u32 = ranks.parse().map_err(|_| format!("{ranks} is no number of ranks"))?;
    let up_to = match up_to {
        UNBOUNDED => u64::MAX,
        _ => up_to.parse().map_err(|_| format!("{up_to} is no number of bytes"))?,
    };
    let algorithm: Algorithm = algorithm.parse().map_err(|error| format!("{error}"))?;
    if !algorithm.can_do(collective, ranks) {
        return Err(format!("{algorithm} cannot do {collective} among {ranks} ranks"));
    }
    Ok(Rule { collective, ranks, up_to, algorithm })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_read_back_and_found_by_size() {
        let rule = |ranks, up_to, algorithm| Rule {
            collective: Collective::AllReduce,
            ranks,
            up_to,
            algorithm,
        };
        let rules = [
            rule(3, 1000, Algorithm::Doubling),
            rule(3, u64::MAX, Algorithm::Ring),
            rule(4, 64, Algorithm::Hierarchical { node_ranks: 2 }),
        ];
        let lines = rules.map(|rule| rule.to_string()).join("\n");
        let text = format!("{}\n\n{lines}  # as measured", Tuning::HEADS);
        let tuning = Tuning { rules: parse(&text).unwrap(), ..Tuning::default() };
        assert_eq!(tuning.rules, rules);
        let choose = |ranks, bytes| tuning.choose(Collective::AllReduce, ranks, bytes);
        assert_eq!(choose(3, 1000), Some(Algorithm::Doubling));
        assert_eq!(choose(3, 1001), Some(Algorithm::Ring));
        assert_eq!(choose(4, 65), None);
        assert_eq!(choose(5, 8), None);
        assert_eq!(tuning.choose(Collective::AllGather, 3, 8), None);
    }

    #[test]
    fn rules_hold_for_every_root() {
        let rules = parse("broadcast 4 * binomial").unwrap();
        let tuning = Tuning { rules, ..Tuning::default() };
        let chosen = tuning.choose(Collective::Broadcast { root: 3 }, 4, 8);
        assert_eq!(chosen, Some(Algorithm::Binomial));
    }

    #[test]
    fn lines_that_mean_nothing_are_named() {
        for (text, why) in [
            ("all-reduce 4 8", "line 1: `all-reduce 4 8` is not"),
            ("\nall-rdeuce 4 8 ring", "line 2: "),
            ("all-reduce four 8 ring", "four is no number of ranks"),
            ("all-reduce 4 -8 ring", "-8 is no number of bytes"),
            ("all-reduce 4 8 rings", "rings"),
            ("gather 4 8 ring", "ring cannot do gather among 4 ranks"),
            ("all-reduce 4 8 ring\nall-reduce 4 8 doubling", "line 2: an earlier rule"),
            ("all-reduce 0 8 ring", "cannot do"),
            ("all-reduce 4000000000 8 ring", "cannot do"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
