//! Striping: which drive holds how much, so that all of them finish together.

use super::budget::Drive;

/// What one drive holds, and moves in a step.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Share {
    /// The folder.
    pub path: String,
    /// Bytes of room that files take there.
    pub bytes: u64,
    /// Bytes read of it in a step.
    pub read: u64,
    /// Bytes written to it in a step.
    pub written: u64,
}

/// Divide `bytes` among the drives in proportion to the slower of each drive's two directions,
/// since both are used at once; a drive that is full takes no more. `None`: there is no room.
///
/// The parts sum to `bytes`, and none shrinks when `bytes` grows.
pub(super) fn stripe(bytes: u64, drives: &[Drive]) -> Option<Vec<u64>> {
    let room = drives.iter().fold(0_u64, |sum, drive| sum.saturating_add(drive.capacity_bytes));
    if bytes > room {
        return None;
    }
    let mut parts = vec![0_u64; drives.len()];
    let mut left = bytes;
    while left > 0 {
        let open: Vec<usize> =
            (0..drives.len()).filter(|&at| parts[at] < drives[at].capacity_bytes).collect();
        let speed = |at: usize| drives[at].read.value.min(drives[at].write.value);
        let total: f64 = open.iter().map(|&at| speed(at)).sum();
        let round = left;
        for &at in &open {
            let wanted = (round as f64 * speed(at) / total).ceil() as u64;
            let part = wanted.min(left).min(drives[at].capacity_bytes - parts[at]);
            parts[at] += part;
            left -= part;
        }
    }
    Some(parts)
}

/// Divide `bytes` as `parts` are divided; the sum is exact.
pub(super) fn divide(bytes: u64, parts: &[u64]) -> Vec<u64> {
    let whole: u128 = parts.iter().map(|&part| u128::from(part)).sum();
    if whole == 0 {
        return vec![0; parts.len()];
    }
    let mut before = 0_u128;
    let mut given = 0_u64;
    let each = parts.iter().map(|&part| {
        before += u128::from(part);
        let until = (u128::from(bytes) * before / whole) as u64;
        let piece = until - given;
        given = until;
        piece
    });
    each.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Rate;

    fn drive(read: f64, write: f64, capacity_bytes: u64) -> Drive {
        Drive { capacity_bytes, ..Drive::new("/d", Rate::given(read), Rate::given(write)) }
    }

    #[test]
    fn parts_are_in_proportion_until_a_drive_is_full() {
        let drives = [drive(6.0, 2.0, 1 << 40), drive(1.0, 9.0, 1 << 40)];
        assert_eq!(stripe(3000, &drives), Some(vec![2000, 1000]));
        let drives = [drive(2.0, 2.0, 500), drive(1.0, 1.0, 1 << 40), drive(1.0, 1.0, 300)];
        assert_eq!(stripe(1000, &drives), Some(vec![500, 250, 250]));
        assert_eq!(stripe(2000, &drives), Some(vec![500, 1200, 300]));
    }

    #[test]
    fn what_has_no_room_is_not_striped() {
        assert_eq!(stripe(1, &[]), None);
        assert_eq!(stripe(0, &[]), Some(vec![]));
        assert_eq!(stripe(501, &[drive(1.0, 1.0, 500)]), None);
        assert_eq!(stripe(500, &[drive(1.0, 1.0, 500)]), Some(vec![500]));
    }

    #[test]
    fn a_division_loses_nothing() {
        assert_eq!(divide(10, &[1, 1, 1]), [3, 3, 4]);
        assert_eq!(divide(u64::MAX, &[7, 0, 5]).iter().sum::<u64>(), u64::MAX);
        assert_eq!(divide(10, &[0, 0]), [0, 0]);
    }
}
