//! Sizes as people write them: `8`, `64K`, `4M`, `1G`, in powers of 1024.

use std::num::{IntErrorKind, ParseIntError};

/// Bytes from text such as `4M`.
pub fn parse(text: &str) -> Result<usize, String> {
    let (digits, shift) = match text.char_indices().next_back() {
        Some((at, 'k' | 'K')) => (&text[..at], 10),
        Some((at, 'm' | 'M')) => (&text[..at], 20),
        Some((at, 'g' | 'G')) => (&text[..at], 30),
        _ => (text, 0),
    };
    let too_large = || {
        let most = usize::MAX >> shift;
        let unit = &text[digits.len()..];
        format!("{text:?} is more than memory can be; {most}{unit} is the largest size")
    };
    let number: usize = digits.parse().map_err(|error: ParseIntError| match error.kind() {
        IntErrorKind::PosOverflow => too_large(),
        _ => format!("{text:?} is no size; write bytes such as 8, 64K, 4M or 1G"),
    })?;
    number.checked_mul(1 << shift).ok_or_else(too_large)
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
        for wrong in ["", "K", "4MB", "-1", "1.5M", "é"] {
            assert!(parse(wrong).unwrap_err().contains("is no size"), "{wrong}");
        }
    }

    #[test]
    fn what_is_too_large_is_told_by_the_largest() {
        for (wrong, most) in [
            ("18446744073709551616", "18446744073709551615"),
            ("99999999999999999999", "18446744073709551615"),
            ("99999999999999999999k", "18014398509481983k"),
            ("18014398509481984K", "18014398509481983K"),
            ("99999999999G", "17179869183G"),
        ] {
            let refused = parse(wrong).unwrap_err();
            assert!(refused.contains(&format!(" {most} is the largest")), "{refused}");
            assert!(parse(most).is_ok(), "{most}");
        }
    }

    #[test]
    fn in_sentences_sizes_have_units() {
        assert_eq!([0, 8, 1 << 16, 3 << 30].map(words), ["0 B", "8 B", "64 KiB", "3 GiB"]);
        assert_eq!(words(1000), "1000 B");
    }

    #[test]
    fn sizes_survive_being_shown() {
        for bytes in [0, 1, 1000, 1024, 1 << 20, 3 << 30, (1 << 20) + 1] {
            assert_eq!(parse(&show(bytes)), Ok(bytes));
        }
    }
}
