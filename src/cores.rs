//! A part of this machine's cores for each rank that is bound.

use std::fs;
use std::io;

use brigade_transports::Cores;

/// Where a processor of the system's numbers is: its NUMA node, package and core.
type Place = [usize; 3];

/// The cores of each of these ranks: parts of those that this process may use, as equal as whole
/// cores allow, neighbours together. Ranks beyond the number of processors share one.
pub(crate) fn parts(ranks: usize) -> io::Result<Vec<Cores>> {
    let all = Cores::of_this_thread();
    let processors: Vec<_> = all.numbers().map(|it| (place(it), it)).collect();
    if processors.is_empty() {
        return Err(io::Error::other("--bind: the system does not say which cores there are"));
    }
    Ok(split(&processors, ranks).iter().map(|part| all.only(part)).collect())
}

fn split(processors: &[(Place, usize)], ranks: usize) -> Vec<Vec<usize>> {
    let mut sorted = processors.to_vec();
    sorted.sort_unstable();
    let is_one_core = |a: &(Place, usize), b: &(Place, usize)| a.0 == b.0;
    let mut cores: Vec<&[(Place, usize)]> = sorted.chunk_by(is_one_core).collect();
    if cores.len() < ranks {
        cores = sorted.chunks(1).collect();
    }
    let part = |rank: usize| {
        let (from, to) = (rank * cores.len() / ranks, (rank + 1) * cores.len() / ranks);
        cores[from..to.max(from + 1)].iter().flat_map(|core| core.iter().map(|it| it.1)).collect()
    };
    (0..ranks).map(part).collect()
}

/// What the system says of it. A processor of which it says nothing is a core of its own.
fn place(processor: usize) -> Place {
    let folder = format!("/sys/devices/system/cpu/cpu{processor}");
    let number = |name: &str| {
        let text = fs::read_to_string(format!("{folder}/topology/{name}")).ok()?;
        text.trim().parse::<usize>().ok()
    };
    let core = number("core_id").unwrap_or(processor);
    [node(&folder).unwrap_or(0), number("physical_package_id").unwrap_or(0), core]
}

/// The NUMA node stands among a processor's folders as a link named for it.
fn node(folder: &str) -> Option<usize> {
    let mut names = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.file_name());
    names.find_map(|name| name.to_str()?.strip_prefix("node")?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two nodes of three cores of two threads, numbered as systems like to: second threads last.
    fn machine() -> Vec<(Place, usize)> {
        (0..12).map(|it| ([it % 6 / 3, 0, it % 3], it)).collect()
    }

    #[test]
    fn each_rank_has_whole_cores_of_one_node_where_that_is_possible() {
        assert_eq!(
            split(&machine(), 1),
            [(0..12).map(|it| it / 2 + it % 2 * 6).collect::<Vec<_>>()]
        );
        assert_eq!(split(&machine(), 2), [[0, 6, 1, 7, 2, 8], [3, 9, 4, 10, 5, 11]]);
        assert_eq!(split(&machine(), 6), [[0, 6], [1, 7], [2, 8], [3, 9], [4, 10], [5, 11]]);
        assert_eq!(
            split(&machine(), 4),
            [vec![0, 6], vec![1, 7, 2, 8], vec![3, 9], vec![4, 10, 5, 11]]
        );
    }

    #[test]
    fn where_cores_do_not_suffice_ranks_have_threads_and_then_share_them() {
        let each = split(&machine(), 12);
        assert_eq!(each.concat(), split(&machine(), 1)[0]);
        assert!(each.iter().all(|part| part.len() == 1));
        let shared = split(&machine()[..2], 5);
        assert_eq!(shared, [[0], [0], [0], [1], [1]]);
    }

    #[test]
    fn the_parts_of_this_machine_are_what_this_process_may_use() {
        let parts = parts(2).expect("the system's answer");
        let mut all: Vec<_> = parts.iter().flat_map(|part| part.numbers()).collect();
        all.sort_unstable();
        all.dedup();
        assert!(all.into_iter().eq(Cores::of_this_thread().numbers()));
    }
}
