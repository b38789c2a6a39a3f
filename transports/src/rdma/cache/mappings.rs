//! What kind of memory lies at an address: only a program's own can be lent.
//!
//! Pages that come from a file, or that others have mapped too, can be replaced by means that no
//! watch is told of: by cutting the file off, say. Those are refused.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::ops::Range;

/// The largest range around `wanted` in which all memory is this process's own, and writable.
pub(super) fn around(wanted: &Range<usize>) -> Option<Range<usize>> {
    let file = BufReader::new(File::open("/proc/self/maps").ok()?);
    among(file.lines().map_while(Result::ok), wanted)
}

/// The same, given the lines of the kernel's list, which ascends.
fn among(lines: impl Iterator<Item = String>, wanted: &Range<usize>) -> Option<Range<usize>> {
    let mut run: Option<Range<usize>> = None;
    for line in lines {
        let (range, is_own) = parse(&line)?;
        let follows = run.as_ref().is_some_and(|run| run.end == range.start);
        match &mut run {
            Some(run) if is_own && follows => run.end = range.end,
            Some(run) if run.end > wanted.start => break,
            _ => run = is_own.then_some(range),
        }
    }
    run.filter(|run| run.start <= wanted.start && wanted.end <= run.end)
}

/// A line such as `7f0c8a000000-7f0c8a021000 rw-p 00000000 00:00 0   [heap]`: its range, and
/// whether it is private, writable and of no file.
fn parse(line: &str) -> Option<(Range<usize>, bool)> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let address = |text| usize::from_str_radix(text, 16).ok();
    let range = address(start)?..address(end)?;
    let access = words.next()?;
    let inode = words.nth(2)?;
    Some((range, access.starts_with("rw") && access.ends_with('p') && inode == "0"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rdma::unmap::tests::sys::Mapped;

    const LIST: &str = "\
        1000-2000 r--p 00000000 08:01 77 /bin/true\n\
        2000-4000 rw-p 00000000 00:00 0 [heap]\n\
        4000-9000 rw-p 00000000 00:00 0\n\
        9000-a000 ---p 00000000 00:00 0\n\
        a000-b000 rw-s 00000000 00:01 9 /dev/zero (deleted)\n\
        c000-d000 rw-p 00000000 00:00 0\n\
        d000-e000 rw-p 00001000 08:01 77 /bin/true\n";

    fn found(wanted: Range<usize>) -> Option<Range<usize>> {
        among(LIST.lines().map(str::to_owned), &wanted)
    }

    #[test]
    fn only_private_writable_memory_of_no_file_is_found() {
        assert_eq!(found(0x2000..0x3000), Some(0x2000..0x9000));
        assert_eq!(found(0x5000..0x9000), Some(0x2000..0x9000));
        assert_eq!(found(0xc000..0xd000), Some(0xc000..0xd000));
        for wanted in [
            0x1000..0x2000,
            0x1000..0x3000,
            0x8000..0xa000,
            0x9000..0xa000,
            0xa000..0xb000,
            0xb000..0xc000,
            0xb000..0xd000,
            0xc000..0xe000,
            0xd000..0xe000,
            0xf000..0x10000,
        ] {
            assert_eq!(found(wanted.clone()), None, "{wanted:x?}");
        }
    }

    #[test]
    fn a_vector_is_found_and_the_program_is_not() {
        let vector = vec![1_u8; 1 << 20];
        let start = vector.as_ptr().addr();
        let around = around(&(start..start + vector.len())).expect("memory of our own");
        assert!(around.start <= start && around.end >= start + vector.len());
        let code = (found as fn(_) -> _) as *const () as usize;
        assert_eq!(super::around(&(code..code + 1)), None);
    }

    #[test]
    fn memory_that_others_can_change_the_pages_of_is_refused() {
        let program = std::env::current_exe().and_then(File::open).expect("this program");
        for mapped in [Mapped::shared(1 << 16), Mapped::of_file(&program, 1 << 16)] {
            assert_eq!(around(&mapped.range()), None);
        }
        let mapped = Mapped::new(1 << 16);
        assert!(around(&mapped.range()).is_some());
    }
}
