//! Whether ranks have cores of their own, without which a call takes what no prediction knows.

use brigade_comm::{Communicator, Error};

use crate::news::news;
use crate::sys::{CORE_WORDS, cores};

/// The node on which the most ranks come to a core: how many ranks, and how many cores they have;
/// `None` where each rank has one. Collective.
pub(super) fn crowd(comm: &Communicator) -> Result<Option<(usize, usize)>, Error> {
    let usable = std::thread::available_parallelism().map_or(0, |cores| cores.get());
    let mut mine = [0; 1 + CORE_WORDS];
    mine[0] = usable as u64;
    mine[1..].copy_from_slice(&cores());
    let (all, nodes) = (news(comm, &mine)?, comm.nodes());
    let each = (0..comm.size()).map(|node| {
        let here = nodes.iter().zip(&all).filter(|&(of, _)| *of == node).map(|(_, told)| told);
        of_node(&here.map(Vec::as_slice).collect::<Vec<_>>())
    });
    let crowded = each.filter(|(ranks, cores)| ranks > cores);
    Ok(crowded.max_by(|one, other| (one.0 * other.1).cmp(&(other.0 * one.1))))
}

/// How many ranks there are, and how many cores they have between them, by what each tells: how
/// many it may keep busy, and a bit for each that it may run on.
fn of_node(told: &[&[u64]]) -> (usize, usize) {
    let Some(first) = told.first() else { return (0, 0) };
    // A control group may grant fewer than it shows.
    let cores = match told.iter().all(|one| one[1..] == first[1..]) {
        true => first[0] as usize,
        false => {
            let word = |at: usize| told.iter().fold(0, |all, one| all | one[at]);
            (1..first.len()).map(|at| word(at).count_ones() as usize).sum()
        }
    };
    (told.len(), cores)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_share_cores_unless_each_has_one() {
        let (two, first, second) = ([2, 0b11], [1, 0b01], [1, 0b10]);
        assert_eq!(of_node(&[&two, &two, &two]), (3, 2));
        assert_eq!(of_node(&[&first, &second]), (2, 2));
        assert_eq!(of_node(&[&first, &second, &first, &second]), (4, 2));
        assert_eq!(of_node(&[&[2, 0b1111], &[2, 0b1111]]), (2, 2));
    }
}
