//! The middle of some numbers.

/// The median, of an even count the mean of the two in the middle; of none there is none.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_unstable_by(f64::total_cmp);
    let above = values.len() / 2;
    match values.len() % 2 {
        1 => Some(values[above]),
        _ => Some(f64::midpoint(*values.get(above.checked_sub(1)?)?, values[above])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_the_middle_is_the_median() {
        for (values, wanted) in [
            (&[][..], None),
            (&[3.0], Some(3.0)),
            (&[4.0, 2.0], Some(3.0)),
            (&[9.0, 1.0, 2.0], Some(2.0)),
            (&[9.0, 1.0, 2.0, 4.0], Some(3.0)),
        ] {
            assert_eq!(median(values.iter().copied()), wanted);
        }
    }
}
