//! What a row's run log says, and whether that is as it must be.

use super::rows::{Row, Want};
use crate::runlog::{RankEnd, StepRecord};
use serde::Deserialize;
use std::path::Path;

/// What came of a row.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// Which.
    pub row: Row,
    /// What its log says, or why there is none.
    pub reading: Result<Reading, String>,
    /// How far its losses are from those of one process: the first step's, and the worst one's,
    /// relatively. None if there is nothing to compare.
    pub off: Option<(f64, f64)>,
}

/// What a run log says.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    /// Loss of each step.
    pub losses: Vec<f64>,
    /// Of the median step.
    pub tokens_per_second: f64,
    /// Part of the time that was waiting for other ranks.
    pub exposed: f64,
    /// Each rank of each leg.
    pub legs: Vec<Vec<RankEnd>>,
    /// Steps of the last leg.
    pub last_steps: usize,
}

/// How far the peak of a rank may be from its formula: this part of it,
const PEAK_OFF: f64 = 0.02;
/// or so many bytes, if that is more. Formulas are of numbers that a model has; lists of calls are
/// as long for small models as for large ones.
const PEAK_OFF_BYTES: u64 = 384 << 10;

#[derive(Deserialize)]
struct End {
    ranks: Vec<RankEnd>,
}

#[derive(Deserialize)]
#[serde(tag = "event", rename_all = "lowercase")]
enum Event {
    Start {},
    Step(StepRecord),
    End(End),
}

impl Reading {
    /// Read a log, of one run or of several after each other.
    pub fn of(path: &Path) -> Result<Reading, String> {
        let text = std::fs::read_to_string(path);
        let text = text.map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        let (mut reading, mut steps) = (Reading::default(), Vec::new());
        for line in text.lines() {
            let event = serde_json::from_str(line);
            match event.map_err(|error| format!("{}: {error}", path.display()))? {
                Event::Start {} => steps.clear(),
                Event::Step(step) => {
                    reading.losses.push(step.loss);
                    steps.push(step);
                }
                Event::End(end) => reading.legs.push(end.ranks),
            }
        }
        if steps.is_empty() || reading.legs.is_empty() || reading.legs.iter().any(Vec::is_empty) {
            return Err("the run log has no end".to_string());
        }
        // The first step finds memory that was never touched.
        let warm = &steps[usize::from(steps.len() > 1)..];
        let total = |of: fn(&StepRecord) -> f64| warm.iter().map(of).sum::<f64>();
        reading.exposed = total(|step| step.exposed_ms) / total(|step| step.step_ms);
        let mut speeds: Vec<f64> = warm.iter().map(|step| step.tokens_per_second).collect();
        speeds.sort_by(f64::total_cmp);
        let (below, above) = ((speeds.len() - 1) / 2, speeds.len() / 2);
        reading.tokens_per_second = f64::midpoint(speeds[below], speeds[above]);
        reading.last_steps = steps.len();
        Ok(reading)
    }

    /// Each rank of the last leg.
    pub fn ranks(&self) -> &[RankEnd] {
        self.legs.last().expect("a reading has legs")
    }

    /// The rank that held most while it trained, in the last leg.
    pub fn largest(&self) -> &RankEnd {
        let largest = self.ranks().iter().max_by_key(|rank| rank.peak_bytes);
        largest.expect("a reading has ranks")
    }

    /// Whether every rank of every leg sent what its formula says.
    pub fn sent_as_predicted(&self) -> bool {
        let mut ranks = self.legs.iter().flatten();
        ranks.all(|rank| rank.sent_bytes == rank.formula_bytes)
    }

    /// What a rank of some leg sent or held that is not as predicted.
    fn surprise(&self) -> Option<String> {
        let legs = self.legs.iter().enumerate();
        legs.flat_map(|(leg, ranks)| ranks.iter().enumerate().map(move |it| (leg, it))).find_map(
            |(leg, (rank, end))| {
                let who = match self.legs.len() {
                    1 => format!("rank {rank}"),
                    _ => format!("rank {rank} of leg {}", leg + 1),
                };
                surprise(end).map(|what| format!("{who} {what}"))
            },
        )
    }
}

impl Verdict {
    /// Judge a row against the losses of one process.
    pub fn new(row: Row, reading: Result<Reading, String>, alone: Option<&Reading>) -> Verdict {
        let off = match (&reading, alone) {
            (Ok(here), Some(alone)) if here.losses.len() == alone.losses.len() => {
                let pairs = here.losses.iter().zip(&alone.losses);
                let off: Vec<f64> = pairs.map(|(here, alone)| apart(*here, *alone)).collect();
                let most = |off: &[f64]| off.iter().copied().fold(0.0, f64::max);
                // The second loss comes after the first update: it tells of wrong gradients.
                Some((most(&off[..off.len().min(2)]), most(&off)))
            }
            _ => None,
        };
        Verdict { row, reading, off }
    }

    /// Whether its losses have the bits of one process, as those of that process itself do.
    pub(super) fn has_same_bits(&self) -> bool {
        match self.off {
            Some((_, worst)) => worst == 0.0,
            None => self.row.want == Want::Itself && self.reading.is_ok(),
        }
    }

    /// Whether the row is as it must be.
    pub fn is_right(&self) -> bool {
        self.problem().is_none()
    }

    /// What is wrong with it.
    pub fn problem(&self) -> Option<String> {
        let reading = match &self.reading {
            Ok(reading) => reading,
            Err(problem) => return Some(problem.clone()),
        };
        // One process has nothing to compare with; the others must have it.
        let (first, worst) = match (self.off, self.row.want == Want::Itself) {
            (Some(off), _) => off,
            (None, true) => (0.0, 0.0),
            (None, false) => return Some("has other steps than one process".to_string()),
        };
        match self.row.want {
            Want::SameBits if worst > 0.0 => {
                return Some(format!("must have the bits of one process, but is {worst:.1e} off"));
            }
            Want::Within(limit) if first > limit => {
                return Some(format!(
                    "may be {limit:.0e} off in its first two steps, is {first:.1e}"
                ));
            }
            _ => {}
        }
        let (legs, ends) = (self.row.legs.len(), reading.legs.len());
        if legs != ends {
            return Some(format!("has the ends of {ends} runs, but is made of {legs}"));
        }
        reading.surprise()
    }
}

/// What is not as predicted. Where nothing counts there is no peak.
fn surprise(end: &RankEnd) -> Option<String> {
    let RankEnd { sent_bytes, formula_bytes, peak_bytes, memory_bytes, .. } = *end;
    if sent_bytes != formula_bytes {
        return Some(format!("sent {sent_bytes} bytes, its formula says {formula_bytes}"));
    }
    let allowed = ((memory_bytes as f64 * PEAK_OFF) as u64).max(PEAK_OFF_BYTES);
    (peak_bytes > 0 && peak_bytes.abs_diff(memory_bytes) > allowed)
        .then(|| format!("held up to {peak_bytes} bytes, its formula says {memory_bytes}"))
}

/// Relative distance; 0 only for the same bits.
fn apart(here: f64, alone: f64) -> f64 {
    match here.to_bits() == alone.to_bits() {
        true => 0.0,
        false => ((here - alone) / alone).abs().max(f64::MIN_POSITIVE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(want: Want, losses: &[f64], formula_bytes: u64) -> Verdict {
        let rank = RankEnd { sent_bytes: 8, formula_bytes, ..Default::default() };
        verdict_of(want, losses, &[vec![rank]])
    }

    fn verdict_of(want: Want, losses: &[f64], legs: &[Vec<RankEnd>]) -> Verdict {
        let row = Row::of_legs("row", want, legs.len());
        let reading = |losses: &[f64]| Reading {
            losses: losses.to_vec(),
            legs: legs.to_vec(),
            ..Default::default()
        };
        Verdict::new(row, Ok(reading(losses)), Some(&reading(&[2.0, 1.0])))
    }

    #[test]
    fn every_leg_is_judged_and_so_are_peaks() {
        let end = |sent_bytes: u64, peak_bytes: u64| {
            let memory_bytes = 100 << 20;
            RankEnd { sent_bytes, formula_bytes: 8, peak_bytes, memory_bytes, start_bytes: 0 }
        };
        let judge = |legs: &[Vec<RankEnd>]| verdict_of(Want::SameBits, &[2.0, 1.0], legs).problem();
        let fine = end(8, 101 << 20);
        assert_eq!(judge(&[vec![fine], vec![fine, end(8, 0)]]), None);
        let sent = judge(&[vec![fine, end(9, 0)], vec![fine]]).unwrap();
        assert_eq!(sent, "rank 1 of leg 1 sent 9 bytes, its formula says 8");
        for peak in [97 << 20, 103 << 20] {
            let held = judge(&[vec![fine, end(8, peak)]]).unwrap();
            assert!(held.starts_with("rank 1 held up to "), "{held}");
        }
        let mut short = verdict_of(Want::SameBits, &[2.0, 1.0], &[vec![fine]]);
        short.row = Row::of_legs("row", Want::SameBits, 2);
        assert!(short.problem().unwrap().contains("ends of 1 runs"));
    }

    #[test]
    fn a_row_is_right_only_with_its_bits_and_its_bytes() {
        assert!(verdict(Want::SameBits, &[2.0, 1.0], 8).is_right());
        let last_bit = f64::from_bits(1.0f64.to_bits() + 1);
        assert!(!verdict(Want::SameBits, &[2.0, last_bit], 8).is_right());
        assert!(!verdict(Want::SameBits, &[2.0], 8).is_right());
        assert!(!verdict(Want::SameBits, &[2.0, 1.0], 9).is_right());
        assert!(verdict(Want::Within(1e-5), &[2.00001, 1.000001], 8).is_right());
        assert!(!verdict(Want::Within(1e-5), &[2.0001, 1.0], 8).is_right());
        assert!(!verdict(Want::Within(1e-5), &[2.0, 1.1], 8).is_right());
        let nan = verdict(Want::SameBits, &[2.0, f64::NAN], 8);
        assert!(!nan.is_right(), "{:?}", nan.off);
    }
}
