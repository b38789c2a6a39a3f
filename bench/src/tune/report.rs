//! What rank 0 of a tuning prints and keeps: a table for each collective, and rules.

use std::time::Duration;

use brigade_comm::{Communicator, Rule, Tuning};
use brigade_offload::storage::write_whole;

use super::TuneArgs;
use super::rounds::{Timed, enough, rules};
use crate::failure::{Failure, cannot_write};
use crate::kind::Kind;
use crate::size;
use crate::sys::processor;
use crate::table::{self, print};

/// What takes as long as this is told of beforehand.
const LONG: Duration = Duration::from_secs(5);

/// What rank 0 prints and keeps.
pub(super) struct Report {
    head: Vec<String>,
    ranks: u32,
    rounds: u32,
    factor: u32,
    rules: Vec<Rule>,
    /// Collectives, and their sizes at which it is not known what is the fastest.
    unsure: Vec<String>,
    has_begun: bool,
    /// Whether it was told how long it takes.
    has_foretold: bool,
}

impl Report {
    pub(super) fn new(args: &TuneArgs, comm: &Communicator) -> Result<Self, Failure> {
        let cores = std::thread::available_parallelism().map_or(0, |cores| cores.get());
        let (among, over) = (size::ranks(comm.size()), crate::measure::transport(comm));
        let machine = format!("machine: {}, {cores} cores", processor());
        let head = vec![
            format!("brigade {}: algorithms on {among} over {over}", env!("CARGO_PKG_VERSION")),
            machine,
            format!("time: median of {} rounds, all algorithms in turn, out of place", args.rounds),
        ];
        let (ranks, rounds, factor) = (comm.size() as u32, args.rounds, args.sweep.factor);
        let (rules, unsure) = (Vec::new(), Vec::new());
        let [has_begun, has_foretold] = [false; 2];
        Ok(Self { head, ranks, rounds, factor, rules, unsure, has_begun, has_foretold })
    }

    /// Print what is being timed, before that takes its time.
    pub(super) fn begin(&mut self, kind: Kind) -> Result<(), Failure> {
        let mut text = String::new();
        if !std::mem::replace(&mut self.has_begun, true) {
            self.head.iter().for_each(|line| text.push_str(&format!("# {line}\n")));
        }
        let (size, usual, fastest) = ("size", "without rules", "fastest");
        text.push_str(&format!(
            "#\n# {}\n# {size:>8} {usual:>16} {:>9} {fastest:>16} {:>9} {:>6} {:>5}\n",
            kind.name(),
            "(us)",
            "(us)",
            "ratio",
            "won"
        ));
        print(&text)
    }

    /// Print how long all that is left takes, once, if that is long.
    pub(super) fn foretell(&mut self, left: Option<Duration>) -> Result<(), Failure> {
        let Some(left) = left else { return Ok(()) };
        match std::mem::replace(&mut self.has_foretold, true) || left < LONG {
            true => Ok(()),
            false => print(&format!("# all of it takes some {} more\n", size::time(left))),
        }
    }

    /// Print what was found of it.
    pub(super) fn add(&mut self, kind: Kind, timed: &[Timed]) -> Result<(), Failure> {
        let collective = kind.collective(0).expect("what is tuned is a collective");
        self.rules.extend(rules(collective, self.ranks, timed, self.factor));
        let mut text = String::new();
        timed.iter().for_each(|one| text.push_str(&self.row(one)));
        let unsure: Vec<String> = timed
            .iter()
            .filter(|one| one.seeming().is_some())
            .map(|one| one.bytes.to_string())
            .collect();
        if !unsure.is_empty() {
            self.unsure.push(format!("{} at {}", kind.name(), unsure.join(", ")));
        }
        print(&text)
    }

    /// A line of the table.
    fn row(&self, one: &Timed) -> String {
        let seeming = one.seeming();
        let fastest = seeming.unwrap_or_else(|| one.choice());
        let (usual_us, us) = (one.median(one.usual), one.median(fastest));
        let won = match fastest == one.usual {
            true => String::from("-"),
            false => format!("{}/{}", one.won(fastest), self.rounds),
        };
        format!(
            "{:>10} {:>16} {:>9} {:>16} {:>9} {:>6.2} {won:>5}{}\n",
            one.bytes,
            one.usual.to_string(),
            table::us(usual_us),
            fastest.to_string(),
            table::us(us),
            usual_us / us,
            if seeming.is_some() { " ?" } else { "" }
        )
    }

    /// Where it is not known what is the fastest, and what to do about it.
    fn doubts(&self) -> String {
        if self.unsure.is_empty() {
            return String::new();
        }
        let (rounds, unsure) = (self.rounds, self.unsure.join("; "));
        let wanted = match enough(rounds) {
            Some(won) => format!("it takes {won} of {rounds}"),
            None => format!("no number of {rounds} is enough, but 7 of 7 are"),
        };
        format!(
            "# ? {unsure}:\n\
             #   what seemed fastest won too few rounds ({wanted}), and has no rule;\n\
             #   more --rounds, or a machine that does nothing else, would tell\n"
        )
    }

    /// Keep the rules of what is done, for who is interrupted in what is still to come. What is no
    /// file gets them once, at the end.
    pub(super) fn keep_so_far(&self, args: &TuneArgs, to_come: &[Kind]) -> Result<(), Failure> {
        let Some(path) = args.output.as_ref().filter(|_| !to_come.is_empty()) else {
            return Ok(());
        };
        if path.metadata().is_ok_and(|found| !found.is_file()) {
            return Ok(());
        }
        let (name, to_come) = (path.display().to_string(), to_come.iter().map(|kind| kind.name()));
        let missing = format!("# not tuned yet: {}\n", to_come.collect::<Vec<_>>().join(", "));
        write_whole(path, self.text(&missing)).map_err(cannot_write(&name))?;
        print(&format!("# {name} has the rules so far\n"))
    }

    /// A file of the rules, with remarks.
    fn text(&self, remarks: &str) -> String {
        let head: String = self.head.iter().map(|line| format!("# {line}\n")).collect();
        let rules: String = self.rules.iter().map(|rule| format!("{rule}\n")).collect();
        format!("{head}{remarks}{}\n{rules}", Tuning::HEADS)
    }

    /// Keep the rules where they were asked for.
    pub(super) fn finish(self, args: &TuneArgs) -> Result<(), Failure> {
        let doubts = self.doubts();
        let Some(path) = &args.output else {
            let kept = "nothing is kept: --output FILE writes rules for BRIGADE_TUNING";
            return print(&format!("#\n{doubts}# {kept}\n"));
        };
        let name = path.display().to_string();
        write_whole(path, self.text(&doubts)).map_err(cannot_write(&name))?;
        let kept = match self.rules.len() {
            1 => format!("1 rule in {name}; BRIGADE_TUNING={name} takes it"),
            count => format!("{count} rules in {name}; BRIGADE_TUNING={name} takes them"),
        };
        print(&format!("#\n{doubts}# {kept}\n"))
    }
}
