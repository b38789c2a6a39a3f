//! `brigade schedule`: look at algorithms without running them. Nothing here moves a byte.

mod check;
mod effort;
mod show;
mod simulate;

use std::num::IntErrorKind;
use std::ops::RangeInclusive;
use std::process::ExitCode;

use brigade_bench::size;
use brigade_schedule::Link;

/// Print, draw, verify and price the schedules that collectives run by.
#[derive(clap::Subcommand)]
#[command(after_help = "\
Examples:
  brigade schedule show all-reduce -n 8
  brigade schedule show all-reduce -n 4 --algorithm ring --svg ring.svg
  brigade schedule check all -n 1..16
  brigade schedule simulate all-reduce -n 64 --node-ranks 8")]
pub(crate) enum Command {
    Show(show::Args),
    Check(check::Args),
    Simulate(simulate::Args),
}

/// Do what is asked; the exit code is 1 when a schedule is wrong, 2 when there is none.
pub(crate) fn schedule(command: &Command) -> ExitCode {
    match command {
        Command::Show(args) => show::show(args),
        Command::Check(args) => check::check(args),
        Command::Simulate(args) => simulate::simulate(args),
    }
}

/// A link to price schedules with when nothing was measured: roughly a local network of 10 GB/s.
const LINK: Link =
    Link { alpha_s: 5e-6, beta_s_per_byte: 1e-10, gamma_s_per_byte: 2.5e-11, crosses: false };

/// Seconds as people read them.
fn time(seconds: f64) -> String {
    match seconds {
        _ if seconds < 1e-3 => format!("{:.1} us", seconds * 1e6),
        _ if seconds < 1.0 => format!("{:.2} ms", seconds * 1e3),
        _ => format!("{seconds:.2} s"),
    }
}

/// Sums over all ranks have 64 bits.
const BYTES_MAX: usize = 1 << 50;

fn parse_bytes(text: &str) -> Result<usize, String> {
    let bytes = size::parse(text)?;
    if bytes <= BYTES_MAX { Ok(bytes) } else { Err("at most 1048576G".into()) }
}

/// The most ranks that a schedule is made for here: of more, proofs and tables take too long.
const RANKS_MAX: u32 = 4096;

/// `8`, or `1..64` with both ends meant.
fn parse_ranks(text: &str) -> Result<RangeInclusive<u32>, String> {
    let wrong = || format!("{text:?} is no number of ranks; write 8, or 1..64 for all of them");
    let too_many = || format!("{text:?}: {RANKS_MAX} ranks are the most");
    let number = |text: &str| {
        let parsed = text.trim().parse::<u32>();
        parsed.map_err(|error| match error.kind() {
            IntErrorKind::PosOverflow => too_many(),
            _ => wrong(),
        })
    };
    let range = match text.split_once("..") {
        None => number(text)?..=number(text)?,
        Some((first, last)) => number(first)?..=number(last.trim_start_matches('='))?,
    };
    match *range.start() >= 1 && range.start() <= range.end() {
        true if *range.end() > RANKS_MAX => Err(too_many()),
        true => Ok(range),
        false => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::parse_ranks;

    #[test]
    fn one_number_or_both_ends_of_a_range() {
        assert_eq!(parse_ranks("8"), Ok(8..=8));
        assert_eq!(parse_ranks("1..64"), Ok(1..=64));
        assert_eq!(parse_ranks("1..=64"), Ok(1..=64));
        for wrong in ["0", "5..4", "", "a", "1..", "-1", "4097", "1..999999999"] {
            assert!(parse_ranks(wrong).is_err(), "{wrong}");
        }
        for large in ["4097", "1..4097", "99999999999999999999", "1..99999999999999999999"] {
            assert!(
                parse_ranks(large).unwrap_err().ends_with("4096 ranks are the most"),
                "{large}"
            );
        }
    }
}
