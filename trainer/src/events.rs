//! Event files that tensorboard reads: numbers by name and step.
//!
//! A file is records after each other: the length of the data in 8 bytes, a checksum of these 8,
//! the data, a checksum of the data; all little-endian. The data is a message in protobuf's wire
//! format: fields as (number << 3 | type), then a varint, 8 or 4 bytes, or a length and so many
//! bytes.
//!
//! Source: TensorFlow's `event.proto`, `summary.proto` and `record_writer`.

use crate::error::Error;
use crc_fast::CrcAlgorithm;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// An open event file.
pub(crate) struct Events {
    path: PathBuf,
    file: File,
}

impl Events {
    /// A new file in `folder`, which is made if it is not there. Errors: `File`.
    pub(crate) fn create(folder: &Path) -> Result<Events, Error> {
        std::fs::create_dir_all(folder).map_err(Error::file("write", folder))?;
        // Tensorboard looks for this word, and takes files of a folder in the order of their names.
        let name = format!("events.out.tfevents.{:010}.{}", now() as u64, std::process::id());
        let path = folder.join(name);
        let file = File::options().create(true).append(true).open(&path);
        let mut events = Events { file: file.map_err(Error::file("write", &path))?, path };
        let mut event = double(1, now());
        event.extend(bytes(3, b"brain.Event:2"));
        events.write(&event)?;
        Ok(events)
    }

    /// Numbers of one step, by name.
    pub(crate) fn scalars(&mut self, step: u64, values: &[(&str, f32)]) -> Result<(), Error> {
        let mut summary = Vec::new();
        for (name, value) in values {
            let mut one = bytes(1, name.as_bytes());
            one.push(2 << 3 | 5);
            one.extend(value.to_le_bytes());
            summary.extend(bytes(1, &one));
        }
        let mut event = double(1, now());
        event.push(2 << 3);
        varint(&mut event, step);
        event.extend(bytes(5, &summary));
        self.write(&event)
    }

    fn write(&mut self, event: &[u8]) -> Result<(), Error> {
        self.file.write_all(&record(event)).map_err(Error::file("write", &self.path))
    }
}

fn now() -> f64 {
    // A clock before 1970 is wrong anyway.
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

fn double(field: u8, value: f64) -> Vec<u8> {
    let mut out = vec![field << 3 | 1];
    out.extend(value.to_le_bytes());
    out
}

fn bytes(field: u8, value: &[u8]) -> Vec<u8> {
    let mut out = vec![field << 3 | 2];
    varint(&mut out, value.len() as u64);
    out.extend(value);
    out
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn record(data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u64).to_le_bytes();
    let sum = |bytes: &[u8]| masked(bytes).to_le_bytes();
    [&length[..], &sum(&length), data, &sum(data)].concat()
}

/// CRC-32C, turned and shifted: a checksum of data that holds checksums would else be weak.
fn masked(bytes: &[u8]) -> u32 {
    let sum = crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32;
    sum.rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_of_the_castagnoli_polynomial() {
        // RFC 3720, appendix B.4: 32 bytes of zeros, and of ones.
        let plain = |bytes: &[u8]| crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes);
        assert_eq!((plain(&[0; 32]), plain(&[0xff; 32])), (0x8a91_36aa, 0x62a8_ab43));
    }

    #[test]
    fn a_file_is_whole_records_that_end_with_the_numbers() {
        let folder = std::env::temp_dir().join(format!("brigade-events-{}", std::process::id()));
        let mut events = Events::create(&folder).unwrap();
        events.scalars(300, &[("loss", 2.5), ("lr", 0.125)]).unwrap();
        let data = std::fs::read(&events.path).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        let mut records = Vec::new();
        let mut rest = &data[..];
        while !rest.is_empty() {
            let length = u64::from_le_bytes(rest[..8].try_into().unwrap()) as usize;
            let word = |at: usize| u32::from_le_bytes(rest[at..at + 4].try_into().unwrap());
            assert_eq!(word(8), masked(&rest[..8]));
            assert_eq!(word(12 + length), masked(&rest[12..12 + length]));
            records.push(&rest[12..12 + length]);
            rest = &rest[16 + length..];
        }
        assert_eq!(records.len(), 2);
        assert!(records[0].ends_with(b"\x1a\x0dbrain.Event:2"));
        // The step is a varint of two bytes; then a summary of two values.
        let step = &records[1][9..12];
        assert_eq!(step, [0x10, 0xac, 0x02]);
        let loss = [&b"\x0a\x04loss\x15"[..], &2.5f32.to_le_bytes()].concat();
        let lr = [&b"\x0a\x02lr\x15"[..], &0.125f32.to_le_bytes()].concat();
        let values = [&[0x2a, 24, 0x0a, 11][..], &loss, &[0x0a, 9], &lr].concat();
        assert_eq!(records[1][12..], values);
    }
}
