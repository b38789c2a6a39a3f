//! Bytes as people write them: `8`, `64K`, `4M`, `1G`, in powers of 1024.

/// What a value in bytes is, for errors.
pub(super) const WANTED: &str = "a number of bytes, such as 65536, 64K, 4M or 1G";

/// How many; none for what is no such number, or more than 64 bits hold.
pub(super) fn parse(text: &str) -> Option<u64> {
    let units = [("kK", 10), ("mM", 20), ("gG", 30)];
    let unit = units.into_iter().find(|(letters, _)| text.ends_with(|end| letters.contains(end)));
    let (digits, shift) = unit.map_or((text, 0), |(_, shift)| (&text[..text.len() - 1], shift));
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use crate::Settings;

    #[test]
    fn settings_in_bytes_may_have_a_unit() {
        let mut settings = Settings::default();
        for (text, bytes) in [("8192", 8192), ("64K", 64 << 10), ("2m", 2 << 20), ("1G", 1 << 30)] {
            settings.set("BRIGADE_WINDOW_BYTES", text).unwrap();
            settings.set("BRIGADE_RDMA_CACHE_BYTES", text).unwrap();
            assert_eq!((settings.window_bytes, settings.rdma.cache_bytes), (bytes, bytes as usize));
        }
        for wrong in ["K", "1MB", "1.5M", "-1K", "17179869184G", "\u{e9}"] {
            let error = settings.set("BRIGADE_WINDOW_BYTES", wrong).unwrap_err().to_string();
            assert!(error.contains("such as 65536, 64K"), "{error}");
        }
    }
}
