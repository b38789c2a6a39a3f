//! A world of ranks as a grid with named axes.
//!
//! The last axis runs fastest: in `dp=2,pp=3` ranks 0, 1 and 2 are the stages of the first
//! pipeline. Ranks that differ in one coordinate only are that axis's group, and have a
//! communicator of their own.

use crate::error::Error;
use brigade_comm::Communicator;
use serde::Serialize;
use std::fmt;
use std::str::FromStr;

/// What ranks along an axis have in common, and what they divide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Axis {
    /// They have the same part of the model and different samples.
    Dp,
    /// They have the same samples and different units of the model.
    Pp,
    /// They have the same samples and units, and divide each tensor or sequence.
    Tp,
}

impl Axis {
    const ALL: [Axis; 3] = [Axis::Dp, Axis::Pp, Axis::Tp];

    fn name(self) -> &'static str {
        match self {
            Axis::Dp => "dp",
            Axis::Pp => "pp",
            Axis::Tp => "tp",
        }
    }
}

/// Axes and their lengths, slowest first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Mesh(Vec<(Axis, usize)>);

impl Mesh {
    /// All ranks along one axis.
    pub fn line(axis: Axis, ranks: usize) -> Mesh {
        Mesh(vec![(axis, ranks)])
    }

    /// Ranks in all.
    pub fn ranks(&self) -> usize {
        self.0.iter().map(|(_, length)| length).product()
    }

    /// Ranks along an axis: 1 if the mesh does not have it.
    pub fn length(&self, axis: Axis) -> usize {
        self.0.iter().find(|(it, _)| *it == axis).map_or(1, |(_, length)| *length)
    }

    /// Where `rank` stands along an axis.
    pub fn place(&self, rank: usize, axis: Axis) -> usize {
        rank / self.stride(axis) % self.length(axis)
    }

    /// The communicator of this rank's group along each axis that has more than one rank.
    /// Collective over the world.
    pub fn split(&self, world: &Communicator) -> Result<Groups, Error> {
        let group = |axis: Axis| -> Result<Option<Communicator>, Error> {
            if self.length(axis) == 1 {
                return Ok(None);
            }
            let (rank, place) = (world.rank(), self.place(world.rank(), axis));
            let color = rank - place * self.stride(axis);
            Ok(world.split(Some(color as u32), place as i32)?)
        };
        Ok(Groups { dp: group(Axis::Dp)?, pp: group(Axis::Pp)?, tp: group(Axis::Tp)? })
    }

    /// How far apart neighbours along an axis are.
    fn stride(&self, axis: Axis) -> usize {
        let after = self.0.iter().rev().take_while(|(it, _)| *it != axis);
        match self.0.iter().any(|(it, _)| *it == axis) {
            true => after.map(|(_, length)| length).product(),
            false => 1,
        }
    }
}

/// The communicators of one rank, by axis; none where there is nobody else.
#[derive(Default)]
pub struct Groups {
    /// Those with other samples.
    pub dp: Option<Communicator>,
    /// Those with other units.
    pub pp: Option<Communicator>,
    /// Those with other parts of the same units.
    pub tp: Option<Communicator>,
}

impl fmt::Display for Mesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let axes: Vec<String> =
            self.0.iter().map(|(axis, length)| format!("{}={length}", axis.name())).collect();
        f.write_str(&axes.join(","))
    }
}

impl FromStr for Mesh {
    type Err = String;

    /// As it is displayed: `dp=2,pp=2`.
    fn from_str(text: &str) -> Result<Mesh, String> {
        let mut axes: Vec<(Axis, usize)> = Vec::new();
        for part in text.split(',') {
            let wrong = || format!("{part:?} is no axis with its length, such as dp=2");
            let (name, length) = part.split_once('=').ok_or_else(wrong)?;
            let axis = Axis::ALL.into_iter().find(|axis| axis.name() == name.trim());
            let axis = axis.ok_or_else(|| {
                let names = Axis::ALL.map(Axis::name).join(", ");
                format!("there is no axis {:?}; there are {names}", name.trim())
            })?;
            let length: usize = length.trim().parse().map_err(|_| wrong())?;
            if length == 0 || length > 4096 {
                return Err(format!("{name} has 1 to 4096 ranks, not {length}"));
            }
            if axes.iter().any(|(it, _)| *it == axis) {
                return Err(format!("{name} is given twice"));
            }
            axes.push((axis, length));
        }
        Ok(Mesh(axes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use brigade_comm::Settings;

    #[test]
    fn places_count_through_all_ranks_with_the_last_axis_fastest() {
        let mesh: Mesh = "dp=2, tp=3,pp=2".parse().unwrap();
        assert_eq!((mesh.ranks(), mesh.to_string().as_str()), (12, "dp=2,tp=3,pp=2"));
        let places = |rank| [Axis::Dp, Axis::Tp, Axis::Pp].map(|axis| mesh.place(rank, axis));
        let all: Vec<_> = (0..12).map(places).collect();
        assert!(all.is_sorted() && all[7] == [1, 0, 1], "{all:?}");
    }

    #[test]
    fn what_is_no_mesh_is_refused_by_what_is_wrong_with_it() {
        for (text, problem) in [
            ("", "no axis with its length"),
            ("dp", "no axis with its length"),
            ("dp=x", "no axis with its length"),
            ("xp=2", "there is no axis \"xp\"; there are dp, pp, tp"),
            ("dp=0", "1 to 4096"),
            ("dp=2,dp=2", "twice"),
        ] {
            let refused = text.parse::<Mesh>().unwrap_err();
            assert!(refused.contains(problem), "{text}: {refused}");
        }
    }

    #[test]
    fn groups_hold_the_ranks_that_differ_along_their_axis_only() {
        let mesh: Mesh = "dp=2,pp=3".parse().unwrap();
        let settings = Settings { transport: "loopback".to_string(), ..Settings::default() };
        let run = |world: Communicator| {
            let groups = mesh.split(&world).unwrap();
            assert!(groups.tp.is_none());
            for (group, axis, stride) in [(groups.dp, Axis::Dp, 3), (groups.pp, Axis::Pp, 1)] {
                let group = group.unwrap();
                let place = mesh.place(world.rank(), axis);
                assert_eq!((group.rank(), group.size()), (place, mesh.length(axis)));
                let mut all = vec![0u64; group.size()];
                group.all_gather(&[world.rank() as u64], &mut all).unwrap();
                assert!(all.windows(2).all(|pair| pair[1] - pair[0] == stride), "{all:?}");
            }
        };
        std::thread::scope(|scope| {
            for world in Communicator::local_world(6, &settings).unwrap() {
                scope.spawn(|| run(world));
            }
        });
    }
}
