//! A world of ranks as a grid with named axes.
//!
//! The last axis runs fastest: in `dp=2,pp=3` ranks 0, 1 and 2 are the stages of the first
//! pipeline. Ranks that differ in one coordinate only are that axis's group, and have a
//! communicator of their own.

use super::Peers;
use crate::error::Error;
use brigade_comm::Communicator;
use serde::Serialize;
use std::fmt;
use std::str::FromStr;

/// What ranks along an axis have in common, and what they divide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Axis {
    /// They have the same part of the model and different samples; beside `shard` the same state.
    Dp,
    /// They have different samples too, and divide the state among themselves.
    Shard,
    /// They have the same samples and different units of the model.
    Pp,
    /// They have the same samples and units, and divide each tensor or sequence.
    Tp,
}

impl Axis {
    const ALL: [Axis; 4] = [Axis::Dp, Axis::Shard, Axis::Pp, Axis::Tp];

    fn name(self) -> &'static str {
        match self {
            Axis::Dp => "dp",
            Axis::Shard => "shard",
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

    /// Whether it names this axis.
    pub fn has(&self, axis: Axis) -> bool {
        self.0.iter().any(|(it, _)| *it == axis)
    }

    /// Where `rank` stands along an axis.
    pub fn place(&self, rank: usize, axis: Axis) -> usize {
        rank / self.stride(axis) % self.length(axis)
    }

    /// Which of how many shares of the samples `rank` has: those who divide a state have
    /// neighbouring ones.
    pub fn share(&self, rank: usize) -> (usize, usize) {
        let shards = self.length(Axis::Shard);
        let share = self.place(rank, Axis::Dp) * shards + self.place(rank, Axis::Shard);
        (share, self.length(Axis::Dp) * shards)
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
        let mut groups = Groups { pp: group(Axis::Pp)?, tp: group(Axis::Tp)?, ..Groups::default() };
        let (rank, (share, shares)) = (world.rank(), self.share(world.rank()));
        if self.length(Axis::Shard) == 1 || self.length(Axis::Dp) == 1 {
            groups.dp =
                group(if shares == self.length(Axis::Dp) { Axis::Dp } else { Axis::Shard })?;
            return Ok(groups);
        }
        let places = [Axis::Dp, Axis::Shard].map(|axis| self.place(rank, axis) * self.stride(axis));
        let color = rank - places[0] - places[1];
        groups.dp = world.split(Some(color as u32), share as i32)?;
        (groups.shard, groups.replicas) = (group(Axis::Shard)?, group(Axis::Dp)?);
        Ok(groups)
    }

    /// How far apart neighbours along an axis are.
    fn stride(&self, axis: Axis) -> usize {
        let after = self.0.iter().rev().take_while(|(it, _)| *it != axis);
        match self.has(axis) {
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
    /// Of these, those who divide a state, if there are several states.
    pub shard: Option<Communicator>,
    /// And those who have the same part of it.
    pub replicas: Option<Communicator>,
    /// Those with other units.
    pub pp: Option<Communicator>,
    /// Those with other parts of the same units.
    pub tp: Option<Communicator>,
}

impl Groups {
    /// Who shares what among those with other samples. `is_secondary`: all of them divide one
    /// state, and those along `shard` a second copy of the parameters.
    pub fn peers(&self, is_secondary: bool) -> Peers<'_> {
        let (data, shard) = (self.dp.as_ref(), self.shard.as_ref());
        match shard {
            Some(_) if is_secondary => Peers { near: shard, ..Peers::from(data) },
            Some(_) => Peers { data, parts: shard, replicas: self.replicas.as_ref(), near: None },
            None => data.into(),
        }
    }
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
            // Another name for dp, beside shard.
            let name = if name.trim() == "replicate" { "dp" } else { name.trim() };
            let axis = Axis::ALL.into_iter().find(|axis| axis.name() == name);
            let axis = axis.ok_or_else(|| {
                let names = Axis::ALL.map(Axis::name).join(", ");
                format!("there is no axis {name:?}; there are {names}")
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
            ("xp=2", "there is no axis \"xp\"; there are dp, shard, pp, tp"),
            ("dp=0", "1 to 4096"),
            ("dp=2,dp=2", "twice"),
            ("dp=2,replicate=2", "twice"),
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

    #[test]
    fn those_who_divide_a_state_are_neighbours_wherever_their_axis_is() {
        for text in ["replicate=2,shard=3", "shard=3,dp=2", "shard=3,tp=2,dp=2"] {
            let mesh: Mesh = text.parse().unwrap();
            let mut shares: Vec<_> = (0..mesh.ranks()).map(|rank| mesh.share(rank).0).collect();
            shares.sort();
            shares.dedup();
            assert!(shares == [0, 1, 2, 3, 4, 5] && mesh.share(0).1 == 6, "{text}: {shares:?}");
            let settings = Settings { transport: "loopback".to_string(), ..Settings::default() };
            let run = |world: Communicator| {
                let groups = mesh.split(&world).unwrap();
                let (share, _) = mesh.share(world.rank());
                let rank = |group: Option<Communicator>| group.unwrap().rank();
                let ranks = [groups.dp, groups.shard, groups.replicas].map(rank);
                assert_eq!(ranks, [share, share % 3, share / 3], "{text}");
            };
            std::thread::scope(|scope| {
                for world in Communicator::local_world(mesh.ranks(), &settings).unwrap() {
                    scope.spawn(|| run(world));
                }
            });
        }
    }
}
