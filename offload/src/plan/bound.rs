//! The efficiency that a bandwidth allows when nothing overlaps.
//!
//! Rajbhandari et al. 2021, ZeRO-Infinity, section 4: with `ait` operations for each byte moved,
//! the operations take `ait * bandwidth / (ait * bandwidth + peak)` of the time of both.

/// The part of the time in which a device computes, between 0 and 1, when it waits for every byte.
///
/// `operations_per_byte`: of what moves; `bandwidth`: in bytes a second; `peak`: in operations a
/// second.
pub fn efficiency(operations_per_byte: f64, bandwidth: f64, peak: f64) -> f64 {
    if operations_per_byte.is_infinite() {
        return 1.0;
    }
    operations_per_byte * bandwidth / (operations_per_byte * bandwidth + peak)
}

/// Bytes a second that `efficiency` asks for.
pub fn bandwidth_for(efficiency: f64, operations_per_byte: f64, peak: f64) -> f64 {
    efficiency / (1.0 - efficiency) * peak / operations_per_byte
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The paper says 70 GB/s for a V100, 1024 tokens, half of the peak; the rest is its formula.
    #[test]
    fn the_bandwidths_that_devices_want() {
        let cases = [
            (70e12, 1024.0, 0.5, 68.4),
            (70e12, 1024.0, 0.9, 615.0),
            (200e12, 8192.0, 0.5, 24.4),
            (200e12, 65_536.0 / 4.0, 0.9, 110.0),
            (450e12, 8192.0 / 4.0, 0.5, 220.0),
        ];
        for (peak, ait, part, want_gb_s) in cases {
            let bandwidth = bandwidth_for(part, ait, peak);
            assert!((bandwidth / 1e9 / want_gb_s - 1.0).abs() < 0.01, "{bandwidth} {want_gb_s}");
            assert!((efficiency(ait, bandwidth, peak) - part).abs() < 1e-12);
        }
    }

    #[test]
    fn what_moves_nothing_waits_for_nothing() {
        assert_eq!(efficiency(f64::INFINITY, 1e9, 1e12), 1.0);
    }
}
