//! The table: nccl-tests' columns first, column by column, so that scripts that read those can read
//! these; then, as comment lines, what nccl-tests does not say.

use std::io::{self, Write};

use brigade_comm::LendingStats;

use crate::failure::{Failure, cannot_write};
use crate::record::Record;
use crate::size;

/// Write the lines above the table. `facts`: what was measured where, a line each.
pub(crate) fn write_head(out: &mut dyn Write, facts: &[String]) -> io::Result<()> {
    for fact in facts {
        writeln!(out, "# {fact}")?;
    }
    writeln!(out, "#")?;
    writeln!(
        out,
        "#{:>9} {:>9} {:>6} {:>9} {:>4} {:^28} {:^28}",
        "", "", "", "", "", "out of place", "in place"
    )?;
    let half = format!("{:>7} {:>6} {:>6} {:>6}", "time", "algbw", "busbw", "#wrong");
    let (size, count) = ("size", "count");
    writeln!(
        out,
        "#{size:>9} {count:>9} {:>6} {:>9} {:>4} {half} {half}",
        "type", "redop", "root"
    )?;
    let half = format!("{:>7} {:>6} {:>6} {:>6}", "(us)", "(GB/s)", "(GB/s)", "");
    let (size, count) = ("(B)", "(elems)");
    writeln!(out, "#{size:>9} {count:>9} {:>6} {:>9} {:>4} {half} {half}", "", "", "")?;
    out.flush()
}

/// Write one line: the same case out of place and, where there is such a thing, in place.
pub(crate) fn write_row(out: &mut dyn Write, pair: &[Record]) -> io::Result<()> {
    let record = &pair[0];
    write!(
        out,
        "{:>10} {:>9} {:>6} {:>9} {:>4}",
        record.bytes(),
        record.case.block_elems,
        record.case.dtype,
        record.redop(),
        record.root()
    )?;
    for record in pair {
        let wrong = record.wrong.map_or_else(|| String::from("N/A"), |wrong| wrong.to_string());
        write!(
            out,
            " {:>7} {:>6.2} {:>6.2} {wrong:>6}",
            us(record.us(50)),
            record.algbw(),
            record.busbw()
        )?;
    }
    if pair.len() == 1 {
        write!(out, " {:>7} {:>6} {:>6} {:>6}", "N/A", "N/A", "N/A", "N/A")?;
    }
    writeln!(out)?;
    out.flush()
}

/// What tells rows apart that have one size: its head, its width, and what it is of each.
type Mark = (&'static str, usize, fn(&Record) -> String);

const MARKS: [Mark; 3] = [
    ("type", 6, |record| record.case.dtype.to_string()),
    ("redop", 9, Record::redop),
    ("root", 4, |record| record.root().to_string()),
];

/// Write what stands under the table: spread, processor time and traffic of each line, and the sum.
pub(crate) fn write_tail(out: &mut dyn Write, records: &[Record]) -> io::Result<()> {
    let differs =
        |of: fn(&Record) -> String| records.windows(2).any(|pair| of(&pair[0]) != of(&pair[1]));
    let marks: Vec<Mark> = MARKS.into_iter().filter(|(_, _, of)| differs(*of)).collect();
    let marked = |word: &dyn Fn(&Mark) -> String| -> String {
        marks.iter().map(|mark| format!("{:>1$} ", word(mark), mark.1)).collect()
    };
    writeln!(out, "#")?;
    writeln!(
        out,
        "# {:>6} {}{:>5} {:>8} {:>8} {:>8} {:>6} {:>8} {:>11} {:>7}  algorithm",
        "size",
        marked(&|mark| mark.0.to_owned()),
        "place",
        "p50 (us)",
        "p99 (us)",
        "max (us)",
        "calls",
        "cpu s/GB",
        "sent (B)",
        "x bound"
    )?;
    for record in records {
        let or_dash = |value: Option<f64>, digits: usize| {
            value.map_or_else(|| String::from("-"), |value| format!("{value:.digits$}"))
        };
        writeln!(
            out,
            "# {:>6} {}{:>5} {:>8} {:>8} {:>8} {:>6} {:>8} {:>11} {:>7}  {}",
            size::show(record.bytes()),
            marked(&|mark| mark.2(record)),
            if record.in_place { "in" } else { "out" },
            us(record.us(50)),
            us(record.us(99)),
            us(record.us(100)),
            record.sorted_ns.len(),
            or_dash(record.cpu_s_per_gb(), 2),
            record.sent_bytes,
            or_dash(record.sent_over_bound(), 2),
            record.algorithm,
        )?;
    }
    let bus = records.iter().map(Record::busbw).sum::<f64>() / records.len().max(1) as f64;
    writeln!(out, "#")?;
    match records.iter().map(|record| record.wrong).sum::<Option<u64>>() {
        None => {
            writeln!(out, "# Out of bounds values : not checked (--check compares every element)")?
        }
        Some(0) => writeln!(out, "# Out of bounds values : 0 OK")?,
        Some(wrong) => writeln!(out, "# Out of bounds values : {wrong} FAILED")?,
    }
    writeln!(out, "# Avg bus bandwidth    : {bus:.3} GB/s")?;
    out.flush()
}

/// What became of memory that was lent to devices, where any was.
pub(crate) fn write_lending(out: &mut dyn Write, lending: &LendingStats) -> io::Result<()> {
    let LendingStats { hits, misses, evicted, invalidated, .. } = *lending;
    let pieces = hits + misses;
    if pieces == 0 {
        return Ok(());
    }
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    writeln!(out, "# Sent without a copy  : {:.1} MiB by rank 0", mib(lending.lent_bytes))?;
    writeln!(
        out,
        "# Registration cache   : {:.1} % hits ({hits} of {pieces}), {:.1} MiB registered (at most \
         {:.1}), {evicted} evicted, {invalidated} invalidated",
        100.0 * hits as f64 / pieces as f64,
        mib(lending.registered_bytes),
        mib(lending.registered_bytes_max),
    )?;
    out.flush()
}

/// Print what rank 0 has to tell, now.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.map_err(cannot_write("the table"))
}

/// Microseconds with four digits or so.
pub(crate) fn us(us: f64) -> String {
    match us {
        _ if us < 100.0 => format!("{us:.2}"),
        _ if us < 10_000.0 => format!("{us:.1}"),
        _ => format!("{us:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use brigade_comm::{Dtype, Op};

    use super::*;
    use crate::Kind;
    use crate::kind::Case;
    use crate::record::tests::record;

    fn written(write: impl Fn(&mut Vec<u8>) -> io::Result<()>) -> String {
        let mut out = Vec::new();
        write(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_row_has_the_thirteen_columns_of_nccl_tests() {
        let row =
            written(|out| write_row(out, &[record(1000, false, 1000), record(1000, true, 500)]));
        let columns: Vec<_> = row.split_whitespace().collect();
        let want = "4000 1000 f32 sum -1 2.00 2.00 3.00 0 1.00 4.00 6.00 0";
        assert_eq!(columns, want.split_whitespace().collect::<Vec<_>>());
    }

    #[test]
    fn heads_and_rows_are_aligned() {
        let head = written(|out| write_head(out, &[]));
        let row =
            written(|out| write_row(out, &[record(1000, false, 1000), record(1000, true, 500)]));
        let width = row.trim_end().len();
        // The first of them is a lone `#`, which sets them off.
        let heads: Vec<&str> = head.lines().filter(|line| line.len() > 1).collect();
        assert_eq!(heads.len(), 3, "{head}");
        assert!(heads.iter().all(|line| line.len() == width && width <= 100), "{head}{row}");
        let tail = written(|out| write_tail(out, &[record(1000, false, 1000)]));
        assert!(tail.lines().all(|line| line.len() <= 100), "{tail}");
    }

    #[test]
    fn everything_that_is_no_row_is_a_comment() {
        let tail = written(|out| write_tail(out, &[record(1000, false, 1000)]));
        assert!(tail.lines().all(|line| line.starts_with('#')), "{tail}");
        assert!(
            tail.contains("0 OK") && tail.contains("Avg bus bandwidth    : 3.000 GB/s"),
            "{tail}"
        );
    }

    #[test]
    fn rows_of_one_size_are_told_apart_by_what_differs() {
        let of = |dtype, op, root| {
            let plain = record(1000, false, 1000);
            Record { case: Case { kind: Kind::Reduce, dtype, op, root, ..plain.case }, ..plain }
        };
        let tail = |records: &[Record]| written(|out| write_tail(out, records));
        let one = of(Dtype::F32, Op::Sum, 0);
        assert!(!tail(std::slice::from_ref(&one)).contains("root"));
        let roots = tail(&[one.clone(), of(Dtype::F32, Op::Sum, 3)]);
        assert!(roots.contains("  size root place"), "{roots}");
        assert!(roots.contains("   3   out") && !roots.contains("redop"), "{roots}");
        let all = tail(&[one, of(Dtype::I64, Op::Max, 3)]);
        assert!(all.contains("  size   type     redop root place"), "{all}");
        assert!(all.contains("    i64       max    3   out"), "{all}");
    }

    #[test]
    fn the_cache_of_registrations_is_told_of_where_it_was_used() {
        let none = written(|out| write_lending(out, &LendingStats::default()));
        assert_eq!(none, "");
        let lending = LendingStats {
            hits: 3,
            misses: 1,
            registered_bytes: 1 << 20,
            registered_bytes_max: 2 << 20,
            lent_bytes: 5 << 20,
            ..LendingStats::default()
        };
        let told = written(|out| write_lending(out, &lending));
        assert!(told.contains("75.0 % hits (3 of 4), 1.0 MiB registered (at most 2.0)"), "{told}");
        assert!(told.lines().all(|line| line.starts_with('#')) && told.contains("5.0 MiB by rank"));
    }
}
