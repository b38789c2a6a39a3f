//! Checksums of a checkpoint: of each block of each tensor, so that whoever reads a part of it
//! knows whether that is what was written; and of what the file says of itself. They are those of
//! the files that `--keep` leaves: CRC-64/NVME.

use super::header::Header;
use crate::error::Error;
use crate::layout::Layout;
use crate::state::Array;
use brigade_offload::layout::{checksum, checksum_padded};
use crc_fast::{CrcAlgorithm, checksum_combine};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// So much of a tensor has a sum of its own; its last block may be shorter. \[bytes\]
pub(super) const BLOCK_BYTES: usize = 1 << 20;

/// The format with sums. The first one had neither them nor a number.
const FORMAT: u32 = 2;

/// Digits of a sum.
const DIGITS: usize = 16;

/// A sum for each block of each tensor of each array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sums([Vec<Vec<u64>>; 3]);

impl Sums {
    /// Those of zeros.
    pub(super) fn of_zeros(layout: &Layout) -> Sums {
        let whole = zeros(BLOCK_BYTES);
        let of_tensor = |bytes: usize| {
            let mut sums = vec![whole; bytes / BLOCK_BYTES];
            sums.extend((!bytes.is_multiple_of(BLOCK_BYTES)).then(|| zeros(bytes % BLOCK_BYTES)));
            sums
        };
        let one: Vec<_> =
            layout.tensors().iter().map(|tensor| of_tensor(4 * tensor.range.len())).collect();
        Sums([one.clone(), one.clone(), one])
    }

    /// Bytes have come in the place of zeros, from one of a tensor's `whole` bytes on: every byte
    /// does so once, in whatever order. Sums of zeros but for a piece are added up without carry.
    pub(super) fn put(&mut self, (array, tensor): (Array, usize), whole: usize, piece: Piece<'_>) {
        let Piece { mut first, mut bytes } = piece;
        while !bytes.is_empty() {
            let (block, inside) = (first / BLOCK_BYTES, first % BLOCK_BYTES);
            let block_bytes = BLOCK_BYTES.min(whole - block * BLOCK_BYTES);
            let (here, rest) = bytes.split_at(bytes.len().min(block_bytes - inside));
            let sum = &mut self.0[array as usize][tensor][block];
            let changed = checksum(here).0 ^ zeros(here.len());
            let behind = block_bytes - inside - here.len();
            *sum ^= checksum_combine(CrcAlgorithm::Crc64Nvme, changed, 0, behind as u64);
            (first, bytes) = (first + here.len(), rest);
        }
    }

    /// That of a block.
    pub(super) fn of(&self, array: Array, tensor: usize, block: usize) -> u64 {
        self.0[array as usize][tensor][block]
    }

    fn text(&self) -> String {
        self.0.iter().flatten().flatten().map(|sum| format!("{sum:016x}")).collect()
    }

    /// None for a text that is not of so many sums.
    fn parse(text: &str, layout: &Layout) -> Option<Sums> {
        let mut sums = Sums::of_zeros(layout);
        let mut all = text.as_bytes().chunks(DIGITS);
        for sum in sums.0.iter_mut().flatten().flatten() {
            *sum = number(std::str::from_utf8(all.next()?).ok()?)?;
        }
        all.next().is_none().then_some(sums)
    }
}

/// Bytes of a tensor from one of them on.
pub(super) struct Piece<'a> {
    pub(super) first: usize,
    pub(super) bytes: &'a [u8],
}

fn zeros(bytes: usize) -> u64 {
    checksum_padded(&[], bytes).0
}

fn number(digits: &str) -> Option<u64> {
    let is_whole = digits.len() == DIGITS;
    is_whole.then(|| u64::from_str_radix(digits, 16).ok()).flatten()
}

/// What a file says of itself, under a sum of its own.
#[derive(Serialize, Deserialize)]
struct Sealed {
    #[serde(flatten)]
    header: Header,
    #[serde(default)]
    format: Option<u32>,
    /// Those of blocks: arrays one after the other, and their tensors in the order of a layout.
    #[serde(default)]
    sums: Option<String>,
    /// Of all the rest, with zeros in its own place.
    #[serde(default)]
    sum: Option<String>,
}

impl Sealed {
    fn text(&self) -> String {
        serde_json::to_string(self).expect("a header is numbers and words")
    }

    /// Its sum, if it has one and that is of what is there.
    fn has_its_sum(&mut self) -> bool {
        let told = self.sum.replace("0".repeat(DIGITS));
        let told = told.as_deref().and_then(number);
        told == Some(checksum(self.text().as_bytes()).0)
    }
}

/// What a file with these numbers says of itself. It is as long whatever they are.
pub(super) fn seal(header: Header, sums: &Sums) -> String {
    let (sums, sum) = (Some(sums.text()), Some("0".repeat(DIGITS)));
    let mut sealed = Sealed { header, format: Some(FORMAT), sums, sum };
    let sum = checksum(sealed.text().as_bytes()).0;
    sealed.sum = Some(format!("{sum:016x}"));
    sealed.text()
}

/// Read what a file of this model says of itself, and its sums, which those of the first format
/// have not.
///
/// Errors: `Checkpoint` for what is no header, is damaged, of another model or of a later format.
pub(super) fn unseal(
    text: &str,
    path: &Path,
    layout: &Layout,
) -> Result<(Header, Option<Sums>), Error> {
    let sealed = serde_json::from_str(text).map_err(|e| Error::checkpoint(path, e));
    let mut sealed: Sealed = sealed?;
    if let Some(format) = sealed.format.filter(|format| *format > FORMAT) {
        let problem = format!("is of format {format}, which a later version of this has written");
        return Err(Error::checkpoint(path, problem));
    }
    let is_of_the_first = (&sealed.format, &sealed.sums, &sealed.sum) == (&None, &None, &None);
    if !is_of_the_first && !sealed.has_its_sum() {
        return Err(damaged(path, "what it says of itself", "is not what was written"));
    }
    let Sealed { header, sums, .. } = sealed;
    header.check(path)?;
    header.require(layout.config(), path)?;
    let sums = sums.map(|text| {
        let parsed = Sums::parse(&text, layout);
        parsed.ok_or_else(|| damaged(path, "its checksums", "are of another model"))
    });
    Ok((header, sums.transpose()?))
}

/// What is there is not what was written.
pub(super) fn damaged(path: &Path, what: &str, how: &str) -> Error {
    let remedy = "take an earlier checkpoint, or begin anew without --resume";
    Error::checkpoint(path, format!("damaged: {what} {how}; {remedy}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Config;

    #[test]
    fn pieces_in_any_order_come_to_the_sums_of_whole_blocks() {
        let config =
            Config { vocab: 300, context: 5, layers: 1, heads: 2, width: 1024, experts: 0, top: 0 };
        let layout = Layout::new(config);
        let tensor = &layout.tensors()[0];
        let whole = 4 * tensor.range.len();
        let bytes: Vec<u8> = (0..whole).map(|at| (at * 7 % 251) as u8).collect();
        let mut sums = Sums::of_zeros(&layout);
        let edge = |part: usize| whole * part / 7 / 4 * 4;
        for part in [3, 0, 6, 5, 1, 4, 2] {
            let (first, end) = (edge(part), edge(part + 1));
            sums.put((Array::Mean, 0), whole, Piece { first, bytes: &bytes[first..end] });
        }
        assert!(whole > BLOCK_BYTES && !whole.is_multiple_of(BLOCK_BYTES), "two blocks");
        for (block, bytes) in bytes.chunks(BLOCK_BYTES).enumerate() {
            assert_eq!(sums.of(Array::Mean, 0, block), checksum(bytes).0, "block {block}");
            let zeros = checksum(&vec![0; bytes.len()]).0;
            assert_eq!(sums.of(Array::Params, 0, block), zeros, "where nothing came");
        }
        assert_eq!(Sums::parse(&sums.text(), &layout), Some(sums));
    }

    /// What files of this format said of themselves when it was new.
    const WRITTEN: [[&str; 4]; 2] = [
        [
            r#"{"step":3,"config":{"vocab":9,"context":5,"layers":1,"heads":2,"#,
            r#""width":4,"experts":0,"top":0},"#,
            r#""course":{"--seed":"7"},"format":2,"sums":"0123456789abcdef","#,
            r#""sum":"e2411a703b6ccc37"}"#,
        ],
        [
            r#"{"step":3,"config":{"vocab":9,"context":5,"layers":1,"heads":2,"#,
            r#""width":4,"experts":0,"top":0},"#,
            r#""course":{},"loss_scale":{"scale":1024.0,"steps":5,"skipped":1},"#,
            r#""format":2,"sums":"","sum":"87caf95a9db8ad86"}"#,
        ],
    ];

    /// A sum is taken of JSON that is written anew: a field that is added to a header must be left
    /// away where it has its default, or whatever was written before counts as damaged.
    #[test]
    fn what_was_once_written_still_has_its_sum() {
        for text in WRITTEN.map(|lines| lines.concat()) {
            let mut sealed: Sealed = serde_json::from_str(&text).unwrap();
            let anew = sealed.text();
            assert!(sealed.has_its_sum(), "{text} is written anew as {anew}");
        }
    }
}
