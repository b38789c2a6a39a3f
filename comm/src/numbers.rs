//! Numbers in words: which of how many, how many of what, and runs of those that follow each other.

use std::fmt::Display;

/// A rank that a group does not have, behind what it should be: `root 2 of 2 ranks: ..`.
pub(crate) fn beyond(rank: impl Display, ranks: usize) -> String {
    format!("{rank} of {}: ranks count from 0", count_of(ranks, "rank"))
}

/// How many of something there are: `1 rank`, `2 ranks`.
pub(crate) fn count_of(number: usize, one: &str) -> String {
    format!("{number} {one}{}", if number == 1 { "" } else { "s" })
}

/// Numbers that rise, with those that follow each other as one: `0, 2-5`.
pub(crate) fn ranges(numbers: &[usize]) -> String {
    let runs = numbers.chunk_by(|one, next| one + 1 == *next);
    let words = runs.map(|run| match run {
        [one] => one.to_string(),
        [first, .., last] => format!("{first}-{last}"),
        [] => String::new(),
    });
    words.collect::<Vec<_>>().join(", ")
}

/// The first of these runs, and how many numbers are in the others: `0, 2-5 and 12 more`.
pub(crate) fn first_ranges(numbers: &[usize], most: usize) -> String {
    let runs = numbers.chunk_by(|one, next| one + 1 == *next);
    let told: usize = runs.take(most).map(<[usize]>::len).sum();
    let (told, rest) = numbers.split_at(told);
    match rest.len() {
        0 => ranges(told),
        more => format!("{} and {more} more", ranges(told)),
    }
}

#[cfg(test)]
mod tests {
    use super::{beyond, first_ranges, ranges};

    #[test]
    fn ranks_are_told_in_short() {
        assert_eq!(ranges(&[0, 2, 3, 4, 7, 8]), "0, 2-4, 7-8");
        assert_eq!(ranges(&[5]), "5");
        assert_eq!(beyond(7, 1), "7 of 1 rank: ranks count from 0");
        assert_eq!(beyond(7, 2), "7 of 2 ranks: ranks count from 0");
        assert_eq!(first_ranges(&[0, 2, 3, 4, 7, 8], 2), "0, 2-4 and 2 more");
        assert_eq!(first_ranges(&[0, 2, 3, 4], 2), "0, 2-4");
    }
}
