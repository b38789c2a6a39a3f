//! Which numbers of ranks can divide which models: asked before there are any ranks, and by every
//! division when it is made.

use super::{Cube, Expert, Megatron, Ring, Split, Summa, grid};
use crate::args::Args;
use crate::error::Error;
use crate::layout::Config;
use crate::parallel::{Axis, Mesh, Ways};

/// Numbers of ranks that are tried for those that would do, and how many of these are told.
const TRIED: usize = 64;
const TOLD: usize = 4;

impl Split {
    /// Refuse what so many ranks cannot divide in passes over `batch` samples.
    ///
    /// Errors: `Setting`, by the flag whose value does not divide, with one that does.
    pub fn fits(self, ranks: usize, config: &Config, batch: usize) -> Result<(), Error> {
        let refused = self.suits(ranks, config, batch);
        let Err(Error::Setting { name, problem }) = refused else { return refused };
        let would = self.would_do(ranks, config, batch, name);
        let would = would.map_or(String::new(), |value| format!("; {value} works"));
        Err(Error::setting(name, problem + &would))
    }

    /// The same without a word on what would do.
    fn suits(self, ranks: usize, config: &Config, batch: usize) -> Result<(), Error> {
        let tokens = batch * config.context;
        let parts = match self {
            Split::Heads => return Megatron::fits(ranks, false, config, tokens),
            Split::Sequence => return Megatron::fits(ranks, true, config, tokens),
            Split::Ring => return Ring::fits(ranks, config),
            Split::Experts => return Expert::fits(ranks, config, batch),
            Split::Square | Split::Squares => {
                self.sides(ranks).map(|[side, layers]| (Summa::parts_of(side, layers), 1))
            }
            Split::Cube => self.sides(ranks).map(|[side, _]| (Cube::parts_of(side), side)),
        };
        let Some((parts, depth)) = parts else {
            let (name, shape) = match self {
                Split::Cube => ("3d", "a cube of ranks, such as 8 or 27"),
                _ => ("2d", "a square of ranks, such as 4 or 9"),
            };
            let problem = format!("{name} divides among {shape}: {ranks} make none");
            return Err(Error::setting("strategy", problem));
        };
        grid::fits(parts, depth, config, batch)
    }

    /// The value of a setting that so many ranks could divide, with all others as they are: the
    /// next one above, or else the nearest below.
    fn would_do(self, ranks: usize, config: &Config, batch: usize, name: &str) -> Option<usize> {
        let (mut config, mut batch) = (*config, batch);
        let (width, heads) = (config.width, config.heads);
        let value = match name {
            "heads" => heads,
            "width" => width,
            "context" => config.context,
            "experts" => config.experts,
            _ => batch,
        };
        let mut works = |value: usize| {
            let place = match name {
                "heads" => &mut config.heads,
                "width" => &mut config.width,
                "context" => &mut config.context,
                "experts" => &mut config.experts,
                "batch" => &mut batch,
                _ => return false,
            };
            *place = value;
            // What else is wrong is told once this is right.
            let is_right = match self.suits(ranks, &config, batch) {
                Err(Error::Setting { name: other, .. }) => other != name,
                suits => suits.is_ok(),
            };
            is_right && config.validate().is_ok()
        };
        // Every multiple of all that may have to divide it is among these.
        let most = value.max(width) + ranks * heads.max(2);
        let above = (value + 1..=most).find(|value| works(*value));
        above.or_else(|| (1..value).rev().find(|value| works(*value)))
    }

    /// The side of the squares or of the cube that so many ranks make, and how many squares.
    pub(super) fn sides(self, ranks: usize) -> Option<[usize; 2]> {
        match self {
            // The fewest layers: a square if there is one.
            Split::Squares => {
                let fits = |side: &usize| ranks.is_multiple_of(side * side);
                let side = (1..=ranks.isqrt()).rev().find(fits)?;
                Some([side, ranks / (side * side)])
            }
            Split::Cube => {
                let side = (1..=ranks).find(|side| side.pow(3) >= ranks)?;
                (side.pow(3) == ranks).then_some([side, side])
            }
            _ => {
                let side = ranks.isqrt();
                (side * side == ranks).then_some([side, 1])
            }
        }
    }
}

impl Args {
    /// Refuse ranks that cannot divide the model, naming numbers of them that could.
    pub(crate) fn check_inside(&self, mesh: &Mesh, ways: &Ways) -> Result<(), Error> {
        let (ranks, config) = (mesh.length(Axis::Tp), self.config());
        let Some(inside) = ways.inside.filter(|_| ranks > 1) else { return Ok(()) };
        let batch = self.share_of(0, mesh.ranks())?.samples();
        let refused = inside.suits(ranks, &config, batch);
        let Err(Error::Setting { name, problem }) = refused else { return refused };
        let value = match (name, inside.would_do(ranks, &config, batch, name)) {
            // Passes are over a part of the batch.
            ("batch", Some(value)) => format!("; --batch {} works", value * self.batch / batch),
            (_, Some(value)) => format!("; {value} works"),
            ("heads", None) => format!("; no number that divides width {} works", config.width),
            (_, None) => String::new(),
        };
        // How many samples a pass has depends on how many ranks divide experts.
        let tried = if inside == Split::Experts { 0 } else { TRIED };
        let would = (2..=tried).filter(|ranks| inside.suits(*ranks, &config, batch).is_ok());
        let would: Vec<String> = would.take(TOLD).map(|ranks| ranks.to_string()).collect();
        let would = match would.is_empty() {
            true => String::new(),
            false => format!("; with the other settings as they are, {} would", would.join(", ")),
        };
        Err(Error::setting(name, problem + &value + &would))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_that_divide_nothing_are_refused_before_they_are_started_with_those_that_would() {
        for (flags, ranks, name, would) in [
            ("--strategy 2d", 3, "--strategy", " 4, 16 would"),
            ("--strategy 2d", 9, "--heads", " 4, 16 would"),
            ("--strategy 3d", 4, "--strategy", " 8, 64 would"),
            ("--strategy 2.5d", 5, "--batch", " 2, 3, 4, 6 would"),
            ("--strategy tp", 3, "--heads", " 2, 4 would"),
            ("--strategy sp --heads 64", 5, "--heads", " 2, 4, 8, 16 would"),
            ("--strategy ring", 3, "--context", " 2, 4, 8, 16 would"),
            ("--strategy ep --experts 4 --batch 12", 3, "--experts", "6 works"),
            ("--strategy 2d --mesh dp=2,tp=3", 6, "--strategy", " 4, 16 would"),
            ("--strategy tp --width 96", 3, "--heads", "evenly; 6 works"),
            ("--strategy tp --width 20 --heads 10", 4, "--heads", "evenly; 20 works"),
            (
                "--strategy tp --width 12 --heads 12",
                8,
                "--heads",
                "no number that divides width 12 works",
            ),
            ("--strategy ring --context 60", 4, "--context", "evenly; 64 works"),
            ("--strategy ep --experts 4", 32, "--experts", "evenly; 32 works"),
            ("--strategy ep --experts 32 --accumulate 3", 32, "--batch", "; --batch 96 works"),
        ] {
            let problem = Args::of(flags).validate(ranks).unwrap_err().to_string();
            let is_right = problem.starts_with(name) && problem.contains(would);
            assert!(is_right, "{flags} of {ranks}: {problem}");
        }
    }
}
