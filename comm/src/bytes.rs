//! Bytes as people write them, and as this program prints them: `8`, `64K`, `1.5M`, `4GiB`, `1 T`.
//!
//! Units are powers of 1024, whatever they end in: one `M` is never two sizes.

/// What a value in bytes is, for errors.
pub(crate) const WANTED: &str = "a number of bytes, such as 65536, 64K, 1.5M, 4GiB or 1T";

/// Letters, each with the power of two that it stands for.
const UNITS: [(char, u32); 4] = [('K', 10), ('M', 20), ('G', 30), ('T', 40)];

/// More decimals than bytes can tell apart.
const DECIMALS_MAX: usize = 18;

/// How many; what a part of a byte would be is rounded.
///
/// # Errors
///
/// What is wrong, in words: no such number, or more than 64 bits hold.
pub fn parse(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is no size; write bytes such as 8, 64K, 1.5M, 4GiB or 1T");
    let (number, unit) = text.split_at(text.trim_end_matches(char::is_alphabetic).len());
    let shift = shift(unit).ok_or_else(wrong)?;
    let number = number.trim_end();
    let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit());
    let is_fine = shift > 0 || !number.contains('.');
    if !is_number(whole) || !is_number(part) || part.len() > DECIMALS_MAX || !is_fine {
        return Err(wrong());
    }
    // Within 128 bits, as a part has no more digits than that.
    let ten = 10_u128.pow(part.len() as u32);
    let part = ((part.parse::<u128>().unwrap_or_default() << shift) + ten / 2) / ten;
    let whole = whole.parse::<u64>().ok().and_then(|whole| whole.checked_mul(1 << shift));
    whole.and_then(|whole| whole.checked_add(part as u64)).ok_or_else(|| {
        let most = u64::MAX >> shift;
        format!("{text:?} is more than memory can be; {most}{unit} is the largest size")
    })
}

/// Of `K`, `KB` and `KiB` that of a K, and so on; nothing of `B` and of no unit.
fn shift(unit: &str) -> Option<u32> {
    let mut letters = unit.chars().map(|letter| letter.to_ascii_uppercase());
    let first = letters.next();
    let shift = match UNITS.into_iter().find(|(letter, _)| Some(*letter) == first) {
        Some((_, shift)) => shift,
        None => return matches!(unit, "" | "B" | "b").then_some(0),
    };
    let ending: String = letters.collect();
    matches!(ending.as_str(), "" | "B" | "IB").then_some(shift)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Settings;

    #[test]
    fn sizes_are_read_as_they_are_printed() {
        for (text, bytes) in [
            ("0", 0),
            ("8", 8),
            ("8 B", 8),
            ("512B", 512),
            ("64K", 64 << 10),
            ("64 KiB", 64 << 10),
            ("4m", 4 << 20),
            ("4MB", 4 << 20),
            ("24GB", 24 << 30),
            ("1.5T", 3 << 39),
            ("1.50 TiB", 3 << 39),
            ("0.1K", 102),
            ("0.7K", 717),
            ("0.5gib", 1 << 29),
            ("16777215.999999T", 18_446_744_073_708_452_104),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_told_apart_from_what_is_too_large() {
        for wrong in [
            "", "K", "B", "-1", "1.5", "1.5B", ".5M", "1.M", "1e3", "4X", "4MM", "4iB", "1..5M",
            "é",
        ] {
            let refused = parse(wrong).unwrap_err();
            assert!(refused.contains("is no size; write bytes such as 8, 64K"), "{refused}");
        }
        for (wrong, most) in [
            ("18446744073709551616", "18446744073709551615"),
            ("99999999999999999999k", "18014398509481983k"),
            ("17179869184GiB", "17179869183GiB"),
            ("16777216T", "16777215T"),
        ] {
            let refused = parse(wrong).unwrap_err();
            assert!(refused.contains(&format!(" {most} is the largest")), "{refused}");
            assert!(parse(most).is_ok(), "{most}");
        }
    }

    #[test]
    fn settings_in_bytes_may_have_a_unit() {
        let mut settings = Settings::default();
        for (text, bytes) in [
            ("8192", 8192),
            ("64K", 64 << 10),
            ("2m", 2 << 20),
            ("1G", 1 << 30),
            ("1.5MiB", 3 << 19),
        ] {
            settings.set("BRIGADE_WINDOW_BYTES", text).unwrap();
            settings.set("BRIGADE_RDMA_CACHE_BYTES", text).unwrap();
            assert_eq!((settings.window_bytes, settings.rdma.cache_bytes), (bytes, bytes as usize));
        }
        for wrong in ["K", "1X", "1.5", "-1K", "17179869184G", "\u{e9}"] {
            let error = settings.set("BRIGADE_WINDOW_BYTES", wrong).unwrap_err().to_string();
            assert!(error.contains("such as 65536, 64K"), "{error}");
        }
    }
}
