//! The words of the command line, with what users of other launchers are used to.

use std::ffi::OsString;

/// `-np 2`, as every launcher of MPI has it, is `-n 2`. What a program is told that `brigade run`
/// starts is its own: words behind `--`, and behind how many ranks there are.
pub(crate) fn as_ours(words: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut words: Vec<OsString> = words.collect();
    let is_number_told = |word: &OsString| {
        let word = word.to_string_lossy();
        word == "--" || word.starts_with("-n") || word.starts_with("--ranks")
    };
    if let Some(word) = words.iter_mut().find(|word| is_number_told(word)).filter(|it| *it == "-np")
    {
        *word = OsString::from("-n");
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_counted_as_by_launchers_of_mpi() {
        for (line, wanted) in [
            ("brigade bench all-reduce -np 2", "brigade bench all-reduce -n 2"),
            ("brigade run -np 2 -- mpirun -np 4", "brigade run -n 2 -- mpirun -np 4"),
            ("brigade run -n 2 mpirun -np 4", "brigade run -n 2 mpirun -np 4"),
            ("brigade run --ranks=2 mpirun -np 4", "brigade run --ranks=2 mpirun -np 4"),
            ("brigade run -- mpirun -np 4", "brigade run -- mpirun -np 4"),
            ("brigade train -n2", "brigade train -n2"),
        ] {
            let words = as_ours(line.split(' ').map(OsString::from));
            let words: Vec<_> = words.iter().map(|word| word.to_str().unwrap()).collect();
            assert_eq!(words.join(" "), wanted);
        }
    }
}
