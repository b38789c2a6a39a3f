//! What kind of memory lies at an address: only a program's own can be lent.
//!
//! Pages that come from a file, or that others have mapped too, can be replaced by means that no
//! watch is told of: by cutting the file off, say. Those are refused.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::ops::Range;

/// The largest range around `wanted` in which all memory is this process's own, and writable.
/// Errors: a range around it in which none is.
pub(super) fn around(wanted: &Range<usize>) -> Result<Range<usize>, Range<usize>> {
    let Ok(file) = File::open("/proc/self/maps") else { return Err(wanted.clone()) };
    let lines = BufReader::new(file).split(b'\n').map_while(Result::ok);
    among(lines.map(|line| String::from_utf8_lossy(&line).into_owned()), wanted)
}

/// The same, given the lines of the kernel's list, which ascends.
fn among(
    lines: impl Iterator<Item = String>,
    wanted: &Range<usize>,
) -> Result<Range<usize>, Range<usize>> {
    // Mappings of one kind that follow one another.
    let mut run = (0..0, false);
    for (range, is_own) in lines.map_while(|line| parse(&line)) {
        if run.0.end == range.start && run.1 == is_own {
            run.0.end = range.end;
        } else if run.0.end > wanted.start {
            break;
        } else {
            run = (range, is_own);
        }
    }
    match run {
        (run, is_own) if run.start <= wanted.start && wanted.end <= run.end => {
            if is_own {
                Ok(run)
            } else {
                Err(run)
            }
        }
        _ => Err(wanted.clone()),
    }
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

    fn found(wanted: Range<usize>) -> Result<Range<usize>, Range<usize>> {
        among(LIST.lines().map(str::to_owned), &wanted)
    }

    #[test]
    fn only_private_writable_memory_of_no_file_is_found() {
        assert_eq!(found(0x2000..0x3000), Ok(0x2000..0x9000));
        assert_eq!(found(0x5000..0x9000), Ok(0x2000..0x9000));
        assert_eq!(found(0xc000..0xd000), Ok(0xc000..0xd000));
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
            assert!(found(wanted.clone()).is_err(), "{wanted:x?}");
        }
    }

    #[test]
    fn what_is_refused_is_refused_altogether() {
        assert_eq!(found(0xa000..0xb000), Err(0x9000..0xb000));
        assert_eq!(found(0x1000..0x1800), Err(0x1000..0x2000));
        assert_eq!(found(0x1000..0x3000), Err(0x1000..0x3000));
    }

    #[test]
    fn a_vector_is_found_and_the_program_is_not() {
        let vector = vec![1_u8; 1 << 20];
        let start = vector.as_ptr().addr();
        let around = around(&(start..start + vector.len())).expect("memory of our own");
        assert!(around.start <= start && around.end >= start + vector.len());
        let code = (found as fn(_) -> _) as *const () as usize;
        assert!(super::around(&(code..code + 1)).is_err());
    }

    #[test]
    fn memory_that_others_can_change_the_pages_of_is_refused() {
        let program = std::env::current_exe().and_then(File::open).expect("this program");
        for mapped in [Mapped::shared(1 << 16), Mapped::of_file(&program, 1 << 16)] {
            let refused = around(&mapped.range()).expect_err("others can");
            assert!(refused.start <= mapped.start && mapped.range().end <= refused.end);
        }
        let mapped = Mapped::new(1 << 16);
        assert!(around(&mapped.range()).is_ok());
    }
}
