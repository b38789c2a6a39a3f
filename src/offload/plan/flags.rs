//! Words of the command line as the numbers and names that a plan is made of.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use brigade_bench::size;
use brigade_comm::Dtype;
use brigade_offload::plan::{Number, Optimizer};

/// A folder, with the rates that the user gives for it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Place {
    pub(super) path: PathBuf,
    pub(super) rates: Option<(f64, f64, Option<f64>)>,
}

/// So few bytes, without a unit, hold nothing of a model.
const BUDGET_MIN: usize = 1 << 20;
/// So few parameters, without a unit, are no model.
const PARAMS_MIN: u64 = 10_000;

/// A size; whoever forgets its unit is asked.
pub(super) fn parse_budget(text: &str) -> Result<usize, String> {
    match size::parse(text)? {
        few @ 1..BUDGET_MIN if has_no_unit(text) => {
            Err(format!("{few} bytes hold nothing of a model; did you mean {few}G?"))
        }
        bytes => Ok(bytes),
    }
}

fn has_no_unit(text: &str) -> bool {
    text.ends_with(|last: char| last.is_ascii_digit())
}

/// `7B`, `1.5B`, `124M`, or plain digits; whoever forgets the unit is asked.
pub(super) fn parse_count(text: &str) -> Result<u64, String> {
    match parse_number_of_params(text)? {
        few @ 1..PARAMS_MIN if has_no_unit(text) => {
            Err(format!("{few} parameters are no model; did you mean {few}B?"))
        }
        params => Ok(params),
    }
}

fn parse_number_of_params(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is no number of parameters; write 124M, 1.5B or plain digits");
    let (digits, unit) = match text.char_indices().next_back() {
        Some((at, 'k' | 'K')) => (&text[..at], 1e3),
        Some((at, 'm' | 'M')) => (&text[..at], 1e6),
        Some((at, 'b' | 'B')) => (&text[..at], 1e9),
        Some((at, 't' | 'T')) => (&text[..at], 1e12),
        _ => return text.parse().map_err(|_| wrong()),
    };
    let number: f64 = digits.parse().map_err(|_| wrong())?;
    let count = (number * unit).round();
    if (1.0..1e18).contains(&count) { Ok(count as u64) } else { Err(wrong()) }
}

/// What is above zero, such as `6.5`.
pub(super) fn parse_rate(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(rate) if rate > 0.0 && f64::is_finite(rate) => Ok(rate),
        _ => Err(format!("{text:?} is no number above zero")),
    }
}

/// `DIR`, `DIR=READ/WRITE` or `DIR=READ/WRITE/BOTH`.
pub(super) fn parse_place(text: &OsStr) -> Result<Place, String> {
    let wrong = || format!("{text:?}: write DIR, DIR=READ/WRITE or DIR=READ/WRITE/BOTH in GB/s");
    // A path may have any bytes.
    let bytes = text.as_bytes();
    let at = bytes.iter().rposition(|byte| *byte == b'=');
    let path = PathBuf::from(OsStr::from_bytes(&bytes[..at.unwrap_or(bytes.len())]));
    if path.as_os_str().is_empty() {
        return Err(wrong());
    }
    let Some(at) = at else { return Ok(Place { path, rates: None }) };
    let rates = std::str::from_utf8(&bytes[at + 1..]).map_err(|_| wrong())?;
    let rates: Result<Vec<f64>, _> = rates.split('/').map(str::parse).collect();
    let rates = match rates.map_err(|_| wrong())?[..] {
        [read, write] => (read, write, None),
        [read, write, both] => (read, write, Some(both)),
        _ => return Err(wrong()),
    };
    Ok(Place { path, rates: Some(rates) })
}

pub(super) fn parse_optimizer(text: &str) -> Result<Optimizer, String> {
    let mut all = Optimizer::ALL.into_iter();
    all.find(|optimizer| optimizer.name() == text).ok_or_else(|| {
        let names = Optimizer::ALL.map(Optimizer::name).join(", ");
        format!("{text:?} is none of {names}")
    })
}

pub(super) fn parse_number(text: &str) -> Result<Number, String> {
    // By Python's names, too.
    let dtype = text.parse::<Dtype>();
    let mut all = [Number::F32, Number::Bf16, Number::F16].into_iter();
    all.find(|number| dtype.as_ref().is_ok_and(|dtype| dtype.name() == number.name()))
        .ok_or_else(|| format!("{text:?} is none of f32, bf16, f16"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_powers_of_a_thousand() {
        assert_eq!(parse_count("7B"), Ok(7_000_000_000));
        assert_eq!(parse_count("1.5b"), Ok(1_500_000_000));
        assert_eq!(parse_count("124M"), Ok(124_000_000));
        assert_eq!(parse_count("470528"), Ok(470_528));
        for wrong in ["", "B", "7G", "-1B", "0K", "nanB", "1e30B"] {
            assert!(parse_count(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn numbers_have_the_names_of_python_too() {
        for (text, number) in [("bf16", Number::Bf16), ("float32", Number::F32)] {
            assert_eq!(parse_number(text), Ok(number));
        }
        assert!(parse_number("int8").is_err() && parse_number("f33").is_err());
    }

    #[test]
    fn whoever_forgets_a_unit_is_asked() {
        let of_budget = |text| parse_budget(text).unwrap_err();
        assert!(of_budget("24").contains("did you mean 24G?"), "{}", of_budget("24"));
        assert!(parse_count("7").unwrap_err().contains("did you mean 7B?"));
        for (text, bytes) in [("0", 0), ("1K", 1 << 10), ("24B", 24), ("1048576", 1 << 20)] {
            assert_eq!(parse_budget(text), Ok(bytes), "{text}");
        }
        for (text, bytes) in [("1T", 1 << 40), ("1.5T", 3 << 39), ("24GB", 24 << 30)] {
            assert_eq!(parse_budget(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn rates_are_above_zero() {
        assert_eq!(parse_rate("6.5"), Ok(6.5));
        for wrong in ["0", "-1", "nan", "inf", "fast", ""] {
            assert!(parse_rate(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn folders_may_carry_their_rates() {
        let place = |text: &str| parse_place(OsStr::new(text));
        let rates = |text| place(text).unwrap().rates;
        assert_eq!(rates("/mnt/nvme"), None);
        assert_eq!(rates("/mnt/nvme=6.5/4.5"), Some((6.5, 4.5, None)));
        assert_eq!(rates("/mnt/a=b=3/2/4"), Some((3.0, 2.0, Some(4.0))));
        for wrong in ["", "=1/1", "/mnt=", "/mnt=3", "/mnt=1/2/3/4", "/mnt=fast/slow"] {
            assert!(place(wrong).is_err(), "{wrong}");
        }
        let strange = parse_place(OsStr::from_bytes(b"/mnt/\xff=1/2")).unwrap();
        assert_eq!(strange.path.as_os_str().as_bytes(), b"/mnt/\xff");
        assert_eq!(strange.rates, Some((1.0, 2.0, None)));
    }
}
