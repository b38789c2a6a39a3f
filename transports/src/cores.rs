//! Which cores a rank may run on, and how many ranks have to make do with them. Launchers such as
//! mpirun and srun bind each rank to cores of its own: it has few then, but nobody contends them.

use std::io;

use crate::sys;

/// Room for this many cores. A system with more of them says only how many there are.
const MASK_BYTES: usize = sys::AFFINITY_BYTES;

/// The cores that one rank may run on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cores {
    /// A bit for each core, by the system's numbers; none at all where they are not known.
    mask: [u8; MASK_BYTES],
    /// How many of them may be busy at a time: a control group may grant fewer than it shows.
    usable: u16,
}

/// How many ranks have how many cores between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// The ranks, oneself included.
    pub ranks: usize,
    /// The cores that any of them may run on.
    pub cores: usize,
}

impl Share {
    /// Whether there are fewer cores than ranks.
    pub fn is_crowded(&self) -> bool {
        self.ranks > self.cores
    }
}

impl Cores {
    /// The cores of the calling thread, and of those that it starts. A system call or two.
    pub fn of_this_thread() -> Self {
        let usable = std::thread::available_parallelism().map_or(1, usize::from);
        let mask = sys::affinity().unwrap_or([0; MASK_BYTES]);
        Self { mask, usable: u16::try_from(usable).unwrap_or(u16::MAX) }
    }

    /// Those of them that have these numbers of the system's.
    pub fn only(&self, numbers: &[usize]) -> Self {
        let mut mask = [0; MASK_BYTES];
        for number in self.numbers().filter(|number| numbers.contains(number)) {
            mask[number / 8] |= 1 << (number % 8);
        }
        Self { mask, usable: self.usable.min(count(&mask) as u16) }
    }

    /// The system's numbers of them, least first; none where they are not known.
    pub fn numbers(&self) -> impl Iterator<Item = usize> + '_ {
        (0..8 * MASK_BYTES).filter(|number| self.mask[number / 8] >> (number % 8) & 1 == 1)
    }

    /// Have the calling thread run on no others, and so what it starts from now on. Allocates
    /// nothing and takes no lock, so a child may call it before it becomes another program.
    ///
    /// # Errors
    ///
    /// What the system says; of no cores, that they are none.
    pub fn bind_this_thread(&self) -> io::Result<()> {
        sys::set_affinity(&self.mask)
    }

    /// As bytes for other ranks: two, and one for each eight cores up to the last that is ours.
    pub fn to_bytes(&self) -> Vec<u8> {
        let used = self.mask.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        let mut bytes = self.usable.to_le_bytes().to_vec();
        bytes.extend(&self.mask[..used]);
        bytes
    }

    /// What [`Cores::to_bytes`] wrote, from the network; `None` for anything else.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (usable, rest) = bytes.split_first_chunk()?;
        let mut mask = [0; MASK_BYTES];
        mask.get_mut(..rest.len())?.copy_from_slice(rest);
        Some(Self { mask, usable: u16::from_le_bytes(*usable) })
    }

    /// Among how many of the ranks of this host, of which we are one, the cores are shared that we
    /// may run on. Who is bound elsewhere does not count; whose cores are not known, does. Those
    /// that have no cores but ours may be too many for them, whatever others have besides.
    pub fn share<'a>(&self, here: impl Iterator<Item = Option<&'a Cores>>) -> Share {
        let own = self.count();
        let is_known = (1..=usize::from(self.usable)).contains(&own);
        let (mut ranks, mut within, mut union) = (0, 0, self.mask);
        for other in here {
            match other.filter(|_| is_known) {
                // As on most hosts. A world of many ranks asks this of each for each new group.
                Some(other) if other.mask == self.mask => within += 1,
                Some(other) if other.is_known_elsewhere(self) => continue,
                Some(other) => {
                    union.iter_mut().zip(other.mask).for_each(|(all, its)| *all |= its);
                    within += usize::from(other.is_within(self));
                }
                None => {}
            }
            ranks += 1;
        }
        let own = Share { ranks: within, cores: own };
        match is_known {
            true if own.is_crowded() => own,
            true => Share { ranks, cores: count(&union) },
            false => Share { ranks, cores: usize::from(self.usable) },
        }
    }

    fn count(&self) -> usize {
        count(&self.mask)
    }

    fn is_within(&self, other: &Cores) -> bool {
        self.mask.iter().zip(other.mask).fold(0, |beyond, (ours, its)| beyond | ours & !its) == 0
    }

    /// They are known, and none of them is among the others.
    fn is_known_elsewhere(&self, others: &Cores) -> bool {
        let met = self.mask.iter().zip(others.mask).fold(0, |met, (ours, its)| met | ours & its);
        met == 0 && self.mask != [0; MASK_BYTES]
    }
}

/// Have the calling thread go on on another of its cores, if it has another. Afterwards it may run
/// on as many as before. A few microseconds where the other core is free; where a stranger has it,
/// until this thread's turn there. An error leaves it where it was.
///
/// # Errors
///
/// What the system says.
pub fn step_aside() -> io::Result<()> {
    let (here, before) = (sys::current_core()?, sys::affinity()?);
    let mut others = before;
    if let Some(byte) = others.get_mut(here / 8) {
        *byte &= !(1 << (here % 8));
    }
    if count(&others) == 0 {
        return Ok(());
    }
    sys::set_affinity(&others)?;
    if sys::affinity().is_ok_and(|now| now != others) {
        // Somebody else has bound this thread meanwhile.
        return Ok(());
    }
    // The system remembers what was asked for, and holds a thread to that when its control group is
    // given more cores. Who asked for nothing is to go on asking for nothing.
    match sys::set_affinity(&[0xff; MASK_BYTES]).and_then(|()| sys::affinity()) {
        Ok(now) if now == before => Ok(()),
        _ => sys::set_affinity(&before),
    }
}

fn count(mask: &[u8; MASK_BYTES]) -> usize {
    mask.iter().map(|byte| byte.count_ones() as usize).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cores(numbers: &[usize]) -> Cores {
        let mut mask = [0; MASK_BYTES];
        numbers.iter().for_each(|core| mask[core / 8] |= 1 << (core % 8));
        Cores { mask, usable: numbers.len() as u16 }
    }

    fn share(of: usize, all: &[Cores]) -> (usize, usize) {
        let Share { ranks, cores } = all[of].share(all.iter().map(Some));
        (ranks, cores)
    }

    #[test]
    fn ranks_bound_to_cores_of_their_own_share_none() {
        let bound = [cores(&[0]), cores(&[1]), cores(&[2, 3])];
        assert_eq!([0, 1, 2].map(|rank| share(rank, &bound)), [(1, 1), (1, 1), (1, 2)]);
    }

    #[test]
    fn ranks_that_may_run_anywhere_share_all() {
        let all = vec![cores(&[0, 1, 900]); 5];
        assert_eq!(share(3, &all), (5, 3));
        assert!(all[3].share(all.iter().map(Some)).is_crowded());
        assert!(!all[3].share(all[..3].iter().map(Some)).is_crowded());
    }

    #[test]
    fn ranks_whose_cores_overlap_have_them_together() {
        assert_eq!(share(0, &[cores(&[0, 1]), cores(&[1, 2]), cores(&[3])]), (2, 3));
    }

    #[test]
    fn ranks_bound_to_one_core_are_crowded_whatever_cores_a_third_has() {
        let all = [cores(&[0]), cores(&[0]), cores(&[0, 1, 2, 3])];
        assert_eq!([0, 1, 2].map(|rank| share(rank, &all)), [(2, 1), (2, 1), (3, 4)]);
        assert!(all[0].share(all.iter().map(Some)).is_crowded());
    }

    #[test]
    fn where_cores_are_not_known_or_granted_in_part_all_ranks_share_what_is_granted() {
        let granted = Cores { usable: 2, ..cores(&[0, 1, 2, 3]) };
        assert_eq!(share(0, &[granted.clone(), cores(&[9]), granted]), (3, 2));
        let unknown = Cores { usable: 2000, ..cores(&[]) };
        assert_eq!(share(0, &[unknown.clone(), unknown.clone()]), (2, 2000));
        assert_eq!(share(1, &[unknown, cores(&[4])]), (2, 1));
        let ours = cores(&[4]);
        assert_eq!(ours.share([None, Some(&ours)].into_iter()), Share { ranks: 2, cores: 1 });
    }

    #[test]
    fn cores_travel_and_nothing_else_is_taken_for_them() {
        for cores in [cores(&[]), cores(&[0]), cores(&[7, 8, 1023]), Cores::of_this_thread()] {
            assert_eq!(Cores::parse(&cores.to_bytes()), Some(cores));
        }
        for length in [0, 1, 2 + MASK_BYTES + 1, 4096] {
            assert_eq!(Cores::parse(&vec![255; length]), None);
        }
    }

    #[test]
    fn a_thread_that_is_bound_to_one_core_has_that_one() {
        let all = Cores::of_this_thread();
        for number in all.numbers() {
            let bound = std::thread::spawn({
                let one = all.only(&[number, 8 * MASK_BYTES]);
                move || one.bind_this_thread().map(|()| Cores::of_this_thread())
            });
            assert_eq!(bound.join().expect("a thread").expect("a core of ours"), cores(&[number]));
        }
        assert!(all.only(&[]).bind_this_thread().is_err(), "nobody runs nowhere");
    }

    #[test]
    fn who_steps_aside_is_elsewhere_then_and_may_come_back() {
        let there = || {
            let core = || sys::current_core().expect("a core");
            let (all, before) = (Cores::of_this_thread(), core());
            step_aside().expect("cores of our own");
            assert_eq!(Cores::of_this_thread(), all);
            before != core()
        };
        // The system may bring it back at once.
        let mut tries = (0..100).map(|_| std::thread::spawn(there).join().expect("a thread"));
        assert!(Cores::of_this_thread().count() == 1 || tries.any(|gone| gone));
    }

    #[test]
    fn who_was_bound_to_some_cores_is_bound_to_no_others_afterwards() {
        let all = Cores::of_this_thread();
        let numbers: Vec<_> = all.numbers().collect();
        // To all but one, and to one.
        for some in [&numbers[1..], &numbers[..1]] {
            let some = all.only(some);
            if some.count() > 0 {
                let there = move || {
                    some.bind_this_thread().expect("cores of our own");
                    step_aside().expect("cores of our own");
                    assert_eq!(Cores::of_this_thread(), some);
                };
                std::thread::spawn(there).join().expect("a thread");
            }
        }
    }
}
