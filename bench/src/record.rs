//! What was found out about one case in one placement, and the numbers made of it.

use serde::Serialize;

use crate::kind::Case;

/// One case, measured in one placement.
#[derive(Clone, Debug)]
pub struct Record {
    /// What was measured.
    pub case: Case,
    /// How many ranks took part.
    pub ranks: usize,
    /// Whether input and output were the same memory.
    pub in_place: bool,
    /// The algorithm that ran.
    pub algorithm: String,
    /// The transport or transports that carried it.
    pub transport: String,
    /// How many calls made a sample; times are of each.
    pub in_a_row: u32,
    /// Whether the times are also those of writing inputs and reading outputs.
    pub touched: bool,
    /// The time of each sample, the largest over the ranks, in ns, in increasing order.
    pub sorted_ns: Vec<u64>,
    /// Processor time of all ranks over all samples, a call each, in ns.
    pub cpu_ns: u64,
    /// Payload bytes that the busiest rank sent in one call.
    pub sent_bytes: u64,
    /// Elements that differ from the reference over all ranks, where that was looked at.
    pub wrong: Option<u64>,
}

/// One line of `--json`. Scripts rely on these names.
#[derive(Serialize)]
struct Line<'a> {
    op: &'a str,
    ranks: usize,
    bytes: usize,
    count: usize,
    dtype: &'a str,
    redop: String,
    root: i64,
    algorithm: &'a str,
    transport: &'a str,
    in_place: bool,
    in_a_row: u32,
    touched: bool,
    us_p50: f64,
    us_p99: f64,
    us_min: f64,
    us_max: f64,
    calls: usize,
    algbw: f64,
    busbw: f64,
    wrong: Option<u64>,
    sent_bytes_per_rank: u64,
    cpu_s_per_gb: Option<f64>,
    x_bound: Option<f64>,
    version: &'a str,
}

impl Record {
    /// The time that so many percent of the samples do not exceed, in microseconds.
    pub fn us(&self, percent: u8) -> f64 {
        assert!(percent <= 100 && !self.sorted_ns.is_empty());
        let rank = (self.sorted_ns.len() * usize::from(percent)).div_ceil(100);
        self.sorted_ns[rank.saturating_sub(1)] as f64 / 1e3
    }

    /// nccl-tests' size.
    pub fn bytes(&self) -> usize {
        self.case.sizes(self.ranks).total
    }

    /// Size over median time, in GB/s.
    pub fn algbw(&self) -> f64 {
        // A call that the clock could not see has no bandwidth worth printing.
        let us = self.us(50);
        if us > 0.0 { self.bytes() as f64 / us / 1e3 } else { 0.0 }
    }

    /// What each link would have carried, in GB/s.
    pub fn busbw(&self) -> f64 {
        self.algbw() * self.case.kind.bus_factor(self.ranks)
    }

    /// Processor seconds of all ranks per GB of size; `None` for calls without bytes.
    pub fn cpu_s_per_gb(&self) -> Option<f64> {
        let gb = self.bytes() as f64 * self.sorted_ns.len() as f64 / 1e9;
        (gb > 0.0).then(|| self.cpu_ns as f64 / 1e9 / gb)
    }

    /// What was sent over the least that could be; `None` where nothing need be sent.
    pub fn sent_over_bound(&self) -> Option<f64> {
        let bound = self.case.kind.sent_bound(&self.case.sizes(self.ranks), self.ranks);
        (bound > 0).then(|| self.sent_bytes as f64 / bound as f64)
    }

    /// The operator as tables name it.
    pub fn redop(&self) -> String {
        match self.case.kind.folds() {
            true => self.case.op.name().to_owned(),
            false => String::from("none"),
        }
    }

    /// The root as nccl-tests prints it: -1 where there is none.
    pub fn root(&self) -> i64 {
        if self.case.kind.has_root() { i64::from(self.case.root) } else { -1 }
    }

    /// The record as one JSON object.
    pub fn json(&self) -> serde_json::Result<String> {
        serde_json::to_string(&Line {
            op: self.case.kind.name(),
            ranks: self.ranks,
            bytes: self.bytes(),
            count: self.case.block_elems,
            dtype: self.case.dtype.name(),
            redop: self.redop(),
            root: self.root(),
            algorithm: &self.algorithm,
            transport: &self.transport,
            in_place: self.in_place,
            in_a_row: self.in_a_row,
            touched: self.touched,
            us_p50: self.us(50),
            us_p99: self.us(99),
            us_min: self.us(0),
            us_max: self.us(100),
            calls: self.sorted_ns.len(),
            algbw: self.algbw(),
            busbw: self.busbw(),
            wrong: self.wrong,
            sent_bytes_per_rank: self.sent_bytes,
            cpu_s_per_gb: self.cpu_s_per_gb(),
            x_bound: self.sent_over_bound(),
            version: env!("CARGO_PKG_VERSION"),
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use brigade_comm::{Dtype, Op};

    use super::*;
    use crate::Kind;

    pub(crate) fn record(block_elems: usize, in_place: bool, ns: u64) -> Record {
        let case =
            Case { kind: Kind::AllReduce, dtype: Dtype::F32, op: Op::Sum, root: 0, block_elems };
        Record {
            case,
            ranks: 4,
            in_place,
            algorithm: String::from("ring"),
            transport: String::from("shm"),
            in_a_row: 1,
            touched: false,
            sorted_ns: vec![ns, 2 * ns, 3 * ns],
            cpu_ns: 24 * ns,
            sent_bytes: 6 * block_elems as u64,
            wrong: Some(0),
        }
    }

    #[test]
    fn percentiles_are_samples() {
        let record = record(1000, false, 1000);
        assert_eq!([0, 50, 99, 100].map(|p| record.us(p)), [1.0, 2.0, 3.0, 3.0]);
    }

    #[test]
    fn bandwidths_are_decimal_gigabytes_over_the_median() {
        let record = record(1000, false, 1000);
        assert_eq!(record.algbw(), 2.0);
        assert_eq!(record.busbw(), 3.0);
        assert_eq!(record.cpu_s_per_gb(), Some(2.0));
        assert_eq!(record.sent_over_bound(), Some(1.0));
    }

    #[test]
    fn nothing_moved_has_no_ratio() {
        let record = record(0, false, 1000);
        assert_eq!((record.algbw(), record.cpu_s_per_gb()), (0.0, None));
        assert_eq!(record.sent_over_bound(), None);
    }

    #[test]
    fn json_has_the_keys_that_scripts_rely_on() {
        let text = record(1, true, 1000).json().unwrap();
        let keys = "op ranks bytes count dtype redop root algorithm transport in_place in_a_row \
                    touched us_p50 us_p99 us_min us_max calls algbw busbw wrong \
                    sent_bytes_per_rank cpu_s_per_gb x_bound version";
        let found: Vec<usize> =
            keys.split_whitespace().map(|key| text.find(&format!("\"{key}\":")).unwrap()).collect();
        assert!(found.is_sorted());
        assert_eq!(text.matches(':').count(), found.len());
    }
}
