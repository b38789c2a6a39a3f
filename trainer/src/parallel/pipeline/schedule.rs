//! A schedule: what each rank of a pipeline does, in order. It is read from and written to CSV
//! files in both dialects of torch.distributed.pipelining, with computation only or with messages
//! too.
//!
//! A row is a rank, a cell an action, an empty cell a time in which the rank has nothing to do.

use super::action::{Action, Kind};
use std::fmt;
use std::str::FromStr;

/// One cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cell {
    /// Nothing.
    Idle,
    /// One action.
    One(Action),
    /// The forward of one micro-batch while the backward of another waits for messages, and the
    /// other way round: `(0F1;3B0)OVERLAP_F_B`.
    Overlap([Action; 2]),
}

/// What each rank does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// By rank.
    pub rows: Vec<Vec<Cell>>,
}

/// What is wrong with a schedule, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Rank and cell, counted from 0, and what is in it.
    pub place: Option<(usize, usize, String)>,
    /// What is wrong.
    pub problem: String,
}

/// A file with more cells is no schedule.
const CELLS_MAX: usize = 1 << 24;

impl Cell {
    /// What it makes a rank do, in order.
    pub fn actions(&self) -> &[Action] {
        match self {
            Cell::Idle => &[],
            Cell::One(action) => std::slice::from_ref(action),
            Cell::Overlap(both) => both,
        }
    }
}

impl Schedule {
    /// Everything that `rank` does, in order, and in which cell.
    pub fn actions(&self, rank: usize) -> impl Iterator<Item = (usize, Action)> {
        let cells = self.rows[rank].iter().enumerate();
        cells.flat_map(|(at, cell)| cell.actions().iter().map(move |action| (at, *action)))
    }

    /// Whether it says who sends when.
    pub fn has_messages(&self) -> bool {
        let mut cells = self.rows.iter().flatten();
        cells.any(|cell| cell.actions().iter().any(|action| !action.kind.computes()))
    }
}

impl Fault {
    pub(super) fn at(rank: usize, cell: usize, what: impl ToString, problem: String) -> Fault {
        Fault { place: Some((rank, cell, what.to_string())), problem }
    }

    pub(super) fn of_all(problem: String) -> Fault {
        Fault { place: None, problem }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((rank, cell, what)) = &self.place {
            write!(f, "row {} (rank {rank}), cell {}, {what}: ", rank + 1, cell + 1)?;
        }
        f.write_str(&self.problem)
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cell::Idle => Ok(()),
            Cell::One(action) => write!(f, "{action}"),
            Cell::Overlap([first, second]) => write!(f, "({first};{second})OVERLAP_F_B"),
        }
    }
}

impl FromStr for Cell {
    type Err = String;

    /// As it is displayed.
    fn from_str(text: &str) -> Result<Cell, String> {
        let text = text.trim();
        if text.is_empty() || text == "\"\"" {
            return Ok(Cell::Idle);
        }
        let Some(pair) = text.strip_prefix('(') else { return Ok(Cell::One(text.parse()?)) };
        let pair = pair.strip_suffix(")OVERLAP_F_B").and_then(|pair| pair.split_once(';'));
        let (first, second) = pair.ok_or("no pair, such as (0F1;3B0)OVERLAP_F_B")?;
        let both: [Action; 2] = [first.trim().parse()?, second.trim().parse()?];
        match both.map(|action| action.kind) {
            [Kind::Forward, Kind::Backward | Kind::Input] => Ok(Cell::Overlap(both)),
            _ => Err("a pair is a forward and a backward".to_string()),
        }
    }
}

impl fmt::Display for Schedule {
    /// The CSV file, with the line ends that CSV files have.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for row in &self.rows {
            let cells: Vec<String> = row.iter().map(Cell::to_string).collect();
            write!(f, "{}\r\n", cells.join(","))?;
        }
        Ok(())
    }
}

impl FromStr for Schedule {
    type Err = Fault;

    /// The CSV file, in either dialect. What it says may still make no sense: see `Shape`.
    fn from_str(text: &str) -> Result<Schedule, Fault> {
        if text.bytes().filter(|byte| b",\n".contains(byte)).count() > CELLS_MAX {
            return Err(Fault::of_all(format!("more than {CELLS_MAX} cells")));
        }
        let row = |(rank, line): (usize, &str)| -> Result<Vec<Cell>, Fault> {
            let cell = |(at, text): (usize, &str)| {
                let shown = || text.chars().take(40).collect::<String>();
                text.parse()
                    .map_err(|problem| Fault::at(rank, at, format!("{:?}", shown()), problem))
            };
            line.split(',').enumerate().map(cell).collect()
        };
        let rows: Result<Vec<_>, Fault> = text.lines().enumerate().map(row).collect();
        let rows = rows?;
        if rows.is_empty() {
            return Err(Fault::of_all("there is no rank in it".to_string()));
        }
        Ok(Schedule { rows })
    }
}
