//! Which algorithm is the fastest, by collective, number of ranks and size: what `brigade tune` has
//! measured, as a text that people can read and mend.

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use brigade_schedule::{Algorithm, Collective};

/// A file is no longer than that.
const BYTES_MAX: u64 = 1 << 20;
/// Longer lines are no rules, and are not repeated whole.
const LINE_MAX: usize = 200;
/// So much of such a line is.
const SHOWN_MAX: usize = 60;
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
        let text = text_of(path).map_err(|error| error.to_string())?;
        Ok(Self { path: path.to_owned(), rules: parse(&text)? })
    }

    /// The rules of a text.
    #[cfg(test)]
    pub(crate) fn of(text: &str) -> Self {
        Self { rules: parse(text).expect("rules"), ..Self::default() }
    }

    /// Where the rules come from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Why none of these rules is for so many ranks, where others are.
    pub(crate) fn is_for_others(&self, ranks: u32) -> Option<String> {
        let mut counts: Vec<u32> = self.rules.iter().map(|rule| rule.ranks).collect();
        counts.sort_unstable();
        counts.dedup();
        if counts.is_empty() || counts.contains(&ranks) {
            return None;
        }
        let counts: Vec<String> = counts.iter().map(u32::to_string).collect();
        let (path, counts) = (self.path.display(), counts.join(", "));
        Some(format!("BRIGADE_TUNING: {path} has rules for {counts} ranks, none for {ranks}"))
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

fn text_of(path: &Path) -> io::Result<String> {
    let refused = |why| Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    // Asked of the path, since to open a pipe is to wait for whoever writes to it.
    if !std::fs::metadata(path)?.is_file() {
        return refused(String::from("it is no file, but a folder, a device or a pipe"));
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > BYTES_MAX {
        return refused(format!("more than {BYTES_MAX} bytes are no list of rules"));
    }
    String::from_utf8(bytes).or_else(|_| refused(String::from("it is no text")))
}

fn parse(text: &str) -> Result<Vec<Rule>, String> {
    let mut rules: Vec<Rule> = Vec::new();
    // Up to which size there are rules so far.
    let mut ends: HashMap<(Collective, u32), u64> = HashMap::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let told = |why: String| format!("line {}: {why}", number + 1);
        let rule = parse_rule(line).map_err(told)?;
        let before = ends.insert((rule.collective, rule.ranks), rule.up_to);
        if before.is_some_and(|before| before >= rule.up_to) {
            return Err(told(format!("an earlier rule has all of `{line}`")));
        }
        rules.push(rule);
    }
    Ok(rules)
}

fn parse_rule(line: &str) -> Result<Rule, String> {
    let is_plain = |byte: u8| byte == b'\t' || (b' '..=b'~').contains(&byte);
    let words: Vec<&str> = line.split_whitespace().collect();
    let ([collective, ranks, up_to, algorithm], true) =
        (&words[..], line.len() <= LINE_MAX && line.bytes().all(is_plain))
    else {
        // It may be of another kind of file altogether, and whoever reads this has a terminal.
        let shown: String = line.chars().take(SHOWN_MAX).flat_map(char::escape_debug).collect();
        return Err(format!("`{shown}` is not: collective, ranks, up to bytes, algorithm"));
    };
    let collective: Collective = collective.parse().map_err(|error| format!("{error}"))?;
    let ranks: u32 = ranks.parse().map_err(|_| format!("{ranks} is no number of ranks"))?;
    let up_to = match *up_to {
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
    use std::time::{Duration, Instant};

    use brigade_schedule::RANKS_MAX;

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
        let tuning = Tuning::of(&text);
        assert_eq!(tuning.rules, rules);
        let choose = |ranks, bytes| tuning.choose(Collective::AllReduce, ranks, bytes);
        assert_eq!(choose(3, 1000), Some(Algorithm::Doubling));
        assert_eq!(choose(3, 1001), Some(Algorithm::Ring));
        assert_eq!(choose(4, 65), None);
        assert_eq!(choose(5, 8), None);
        assert_eq!(tuning.choose(Collective::AllGather, 3, 8), None);
    }

    #[test]
    fn rules_for_other_worlds_are_told() {
        let tuning = Tuning::of("all-reduce 8 * ring\nbroadcast 2 * binomial");
        assert_eq!(tuning.is_for_others(2), None);
        let told = tuning.is_for_others(4).unwrap();
        assert!(told.ends_with("has rules for 2, 8 ranks, none for 4"), "{told}");
        assert_eq!(Tuning::of("").is_for_others(4), None);
    }

    #[test]
    fn rules_hold_for_every_root() {
        let tuning = Tuning::of("broadcast 4 * binomial");
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

    /// By an algorithm's whole program, each of these would take from half a minute to some.
    #[test]
    fn the_longest_file_is_read_at_once_also_for_the_most_ranks() {
        type Names = fn(u64) -> (&'static str, String);
        let all: [Names; 3] = [
            |_| ("all-reduce", "ring".into()),
            |line| ("all-reduce", format!("hierarchical:{}", line + 1)),
            |_| ("all-to-all", "pairwise".into()),
        ];
        for names in all {
            let mut text = String::new();
            for line in 1.. {
                let (collective, algorithm) = names(line);
                let rule = format!("{collective} {RANKS_MAX} {line} {algorithm}\n");
                if text.len() + rule.len() > BYTES_MAX as usize {
                    break;
                }
                text.push_str(&rule);
            }
            let start = Instant::now();
            assert!(parse(&text).unwrap().len() > 20_000);
            assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
        }
    }

    #[test]
    fn rules_that_people_have_mended_are_read_whatever_they_write_with() {
        let text = "# ours\r\n\tall-reduce\t3 100   ring # slow\r\n\r\nall-reduce 3 * server:1";
        let ring = rule("all-reduce 3 100 ring");
        assert_eq!(parse(text), Ok(vec![ring, rule("all-reduce 3 * server:1")]));
        let most = format!("all-reduce 3 {} ring", u64::MAX);
        assert_eq!(rule(&most), rule("all-reduce 3 * ring"));
    }

    /// Of a file of another kind little is said, and nothing that a terminal would obey.
    #[test]
    fn what_is_no_rule_is_not_repeated_whole() {
        let zeros = "\0".repeat(1 << 20);
        for text in ["x ".repeat(1000), zeros, "\u{1b}[2J 1 2 3".into(), "\u{feff}x 1 2 3".into()] {
            let error = parse(&text).unwrap_err();
            assert!(error.len() < 800 && !error.contains(char::is_control), "{error}");
            assert!(error.contains(" is not: collective, ranks, up to bytes"), "{error}");
        }
    }

    /// `BRIGADE_TEST_SEED` repeats one trial.
    #[test]
    fn texts_that_are_nearly_rules_are_rules_or_refused_in_a_sentence() {
        let one = std::env::var("BRIGADE_TEST_SEED").ok().map(|seed| seed.parse().unwrap());
        for seed in one.map_or(0..3000, |seed: u64| seed..seed + 1) {
            let text = mutant(&mut fastrand::Rng::with_seed(seed));
            match parse(&text) {
                Ok(rules) => {
                    let lines: Vec<String> = rules.iter().map(Rule::to_string).collect();
                    assert_eq!(parse(&lines.join("\n")), Ok(rules), "seed {seed}: {text:?}");
                }
                Err(why) => {
                    let is_sentence = why.len() < 800 && !why.contains(char::is_control);
                    assert!(why.starts_with("line ") && is_sentence, "seed {seed}: {why:?}");
                }
            }
        }
    }

    fn rule(line: &str) -> Rule {
        parse_rule(line).unwrap()
    }

    /// Rules of which something was changed.
    fn mutant(rng: &mut fastrand::Rng) -> String {
        let ranks = rng.u32(1..10);
        let of = |collective| Algorithm::all_for(collective, ranks).into_iter().zip(1u64..);
        let rule = |(collective, (algorithm, up_to))| {
            Rule { collective, ranks, up_to: up_to * 1000, algorithm }.to_string()
        };
        let all = Collective::ALL.into_iter().flat_map(|one| of(one).map(move |it| (one, it)));
        let mut text: Vec<char> = all.map(rule).collect::<Vec<_>>().join("\n").chars().collect();
        const SPICE: [char; 12] =
            ['\0', '\n', '\r', '#', '*', '-', '9', ' ', ':', '\u{1b}', 'é', '\u{2028}'];
        for _ in 0..rng.u32(0..3) {
            let (at, to) = (rng.usize(..text.len()), rng.usize(..text.len()));
            match rng.u8(0..5) {
                0 => text.truncate(at.max(1)),
                1 => text.swap(at, to),
                2 => drop(text.remove(at)),
                3 => text.extend_from_within(at.min(to)..),
                _ => text.insert(at, SPICE[rng.usize(..SPICE.len())]),
            }
        }
        text.into_iter().collect()
    }
}
