//! Sizes as people write them: `8`, `64K`, `1.5M`, `4GiB`, in powers of 1024; and times as they
//! read them.

use std::time::Duration;

/// Bytes from text such as `4M`.
pub fn parse(text: &str) -> Result<usize, String> {
    let bytes = brigade_comm::bytes::parse(text)?;
    usize::try_from(bytes).map_err(|_| format!("{text:?} is more than memory can be"))
}

/// How many of something, in powers of 1024 too; what ends as bytes do counts none.
pub fn parse_count(text: &str) -> Result<usize, String> {
    match text.ends_with(['b', 'B']) {
        true => Err(format!("{text:?} is no count; write 4096, 16M or 1G, in powers of 1024")),
        false => parse(text),
    }
}

/// Bytes as people read them: `4M` where that is exact, plain digits elsewhere.
pub fn show(bytes: usize) -> String {
    for (shift, unit) in [(30, "G"), (20, "M"), (10, "K")] {
        if bytes > 0 && bytes.is_multiple_of(1 << shift) {
            return format!("{}{unit}", bytes >> shift);
        }
    }
    bytes.to_string()
}

/// The same in sentences: `8 B`, `64 KiB`, `4 MiB`.
pub fn words(bytes: usize) -> String {
    let shown = show(bytes);
    match shown.strip_suffix(['K', 'M', 'G']) {
        Some(number) => format!("{number} {}iB", &shown[number.len()..]),
        None => shown + " B",
    }
}

/// So many ranks, in words.
pub fn ranks(count: usize) -> String {
    if count == 1 { String::from("1 rank") } else { format!("{count} ranks") }
}

/// About how long something takes: `41 s`, `3 min`, `1 h 34 min`.
pub fn time(time: Duration) -> String {
    let seconds = time.as_secs_f64().round() as u64;
    let minutes = (seconds + 30) / 60;
    match seconds {
        0..100 => format!("{seconds} s"),
        _ if minutes < 100 => format!("{minutes} min"),
        _ => format!("{} h {} min", minutes / 60, minutes % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suffixes_are_powers_of_1024() {
        assert_eq!(parse("0"), Ok(0));
        assert_eq!(parse("8"), Ok(8));
        assert_eq!(parse("64K"), Ok(65536));
        assert_eq!(parse("4m"), Ok(4 << 20));
        assert_eq!(parse("3G"), Ok(3 << 30));
        for wrong in ["", "K", "4MX", "-1", "1.5", "é"] {
            assert!(parse(wrong).unwrap_err().contains("is no size"), "{wrong}");
        }
    }

    #[test]
    fn counts_are_not_bytes() {
        assert_eq!(parse_count("16M"), Ok(16 << 20));
        for wrong in ["7B", "16MB", "1GiB"] {
            assert!(parse_count(wrong).unwrap_err().contains("is no count"), "{wrong}");
        }
    }

    #[test]
    fn in_sentences_sizes_have_units() {
        assert_eq!([0, 8, 1 << 16, 3 << 30].map(words), ["0 B", "8 B", "64 KiB", "3 GiB"]);
        assert_eq!(words(1000), "1000 B");
    }

    #[test]
    fn times_have_the_units_that_one_counts_in() {
        let of = |seconds: u64| time(Duration::from_millis(seconds * 1000 + 400));
        assert_eq!([0, 99, 100, 5641].map(of), ["0 s", "99 s", "2 min", "94 min"]);
        assert_eq!([6000, 45_296].map(of), ["1 h 40 min", "12 h 35 min"]);
    }

    #[test]
    fn sizes_survive_being_shown() {
        for bytes in [0, 1, 1000, 1024, 1 << 20, 3 << 30, (1 << 20) + 1] {
            assert_eq!(parse(&show(bytes)), Ok(bytes));
            assert_eq!(parse(&words(bytes)), Ok(bytes));
        }
    }
}
