//! Text as bytes, and which sample the world sees when.
//!
//! A sample is a function of the seed, the step and its index in the *global* batch. Ranks do not
//! appear: however many there are, together they see the same samples.

use crate::error::Error;
use crate::intake;
use crate::report::grouped;
use crc_fast::CrcAlgorithm;
use std::borrow::Cow;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Moby-Dick, or The Whale (1851); licence in data/LICENCE.md.
static MOBY_DICK: &[u8] = include_bytes!("../data/moby-dick.txt");

/// The longest text: every rank has all of it in memory.
const TEXT_BYTES_MAX: u64 = 1 << 30;

/// A text; its last twentieth is held out of training.
pub struct Corpus {
    name: String,
    bytes: Cow<'static, [u8]>,
    train: usize,
    /// Without the ends of lines that files have got.
    given: usize,
}

impl Corpus {
    /// Moby-Dick, embedded in the program.
    pub fn embedded() -> Corpus {
        Corpus::new("Moby-Dick (embedded)".to_string(), Cow::Borrowed(MOBY_DICK))
    }

    /// A file, or every file of a folder and its sub-folders in order of their names, without those
    /// whose names begin with a dot; 1 GiB in all at most.
    ///
    /// Errors: `File` for what cannot be read, or is too long.
    pub fn read(path: &Path) -> Result<Corpus, Error> {
        let (mut bytes, mut ended) = (Vec::new(), 0);
        for file in files(path)? {
            let room = TEXT_BYTES_MAX.saturating_sub(bytes.len() as u64);
            bytes.extend(intake::read(&file, room)?);
            if !bytes.is_empty() && !bytes.ends_with(b"\n") {
                bytes.push(b'\n');
                ended += 1;
            }
        }
        let text = Corpus::new(path.display().to_string(), Cow::Owned(bytes));
        Ok(Corpus { given: text.given - ended, ..text })
    }

    /// The embedded text, or what `path` names.
    pub fn open(path: Option<&Path>) -> Result<Corpus, Error> {
        path.map_or_else(|| Ok(Corpus::embedded()), Corpus::read)
    }

    /// Where the text came from.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Bytes in all.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Bytes of its files, as these were.
    pub(crate) fn given_bytes(&self) -> u64 {
        self.given as u64
    }

    /// What tells it from another text, wherever that lies and whatever it is called. Cost: one
    /// pass over all of it.
    pub(crate) fn mark(&self) -> String {
        let sum = crc_fast::checksum(CrcAlgorithm::Crc64Nvme, &self.bytes);
        format!("{} bytes with checksum {sum:016x}", grouped(self.len() as u64))
    }

    /// Whether there is no text at all.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Refuse a text from which no window of `context` + 1 bytes can be cut on either side of the
    /// split.
    pub fn require(&self, context: usize) -> Result<(), Error> {
        let held_out = self.len() - self.train;
        if self.train.min(held_out) > context {
            return Ok(());
        }
        let need = 20 * (context + 1);
        let plural = if self.given == 1 { "" } else { "s" };
        let (given, need) = (grouped(self.given_bytes()), grouped(need as u64));
        let problem = format!(
            "{} has {given} byte{plural}, but a context of {context} needs {need}; a longer text, \
             or a smaller --context",
            self.name
        );
        Err(Error::setting("text", problem))
    }

    /// `context` + 1 bytes of training text for sample `index` of the global batch of `step`.
    pub fn sample(&self, seed: u64, step: usize, index: usize, context: usize) -> &[u8] {
        let last = self.train - context - 1;
        let draw = mix(mix(mix(seed) ^ step as u64) ^ index as u64);
        let start = ((u128::from(draw) * (last as u128 + 1)) >> 64) as usize;
        &self.bytes[start..=start + context]
    }

    /// How many windows of `context` + 1 bytes the held-out text has, each from another byte on.
    pub fn windows(&self, context: usize) -> usize {
        self.len() - self.train - context
    }

    /// Window `index` of `of` evenly spread over the held-out text: `context` + 1 bytes.
    pub fn held_out(&self, index: usize, of: usize, context: usize) -> &[u8] {
        let start = self.train + self.windows(context) * index / of.max(1);
        &self.bytes[start..=start + context]
    }

    fn new(name: String, bytes: Cow<'static, [u8]>) -> Corpus {
        let train = bytes.len() - bytes.len() / 20;
        Corpus { name, given: bytes.len(), bytes, train }
    }
}

/// Spread windows over `tokens` and, one byte later, `targets`: both [windows × context].
pub fn fill<'a>(
    windows: impl Iterator<Item = &'a [u8]>,
    tokens: &mut [u32],
    targets: &mut [u32],
    context: usize,
) {
    let rows = tokens.chunks_exact_mut(context).zip(targets.chunks_exact_mut(context));
    for ((tokens, targets), window) in rows.zip(windows) {
        for (place, (token, target)) in tokens.iter_mut().zip(targets).enumerate() {
            *token = u32::from(window[place]);
            *target = u32::from(window[place + 1]);
        }
    }
}

/// SplitMix64's finaliser (Steele, Lea and Flood 2014).
fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn files(path: &Path) -> Result<Vec<PathBuf>, Error> {
    if !std::fs::metadata(path).map_err(Error::file("read", path))?.is_dir() {
        return Ok(vec![path.to_path_buf()]);
    }
    let mut entries = std::fs::read_dir(path)
        .and_then(|entries| {
            entries.map(|entry| entry.map(|e| e.path())).collect::<Result<Vec<_>, _>>()
        })
        .map_err(Error::file("read", path))?;
    let hidden = |name: &OsStr| name.as_bytes().starts_with(b".");
    entries.retain(|entry| entry.file_name().is_none_or(|name| !hidden(name)));
    entries.sort();
    let mut found = Vec::new();
    for entry in entries {
        // Links are not followed: a link to a parent folder would never end.
        let kind = std::fs::symlink_metadata(&entry).map_err(Error::file("read", &entry))?;
        if kind.is_dir() {
            found.extend(files(&entry)?);
        } else if kind.is_file() {
            found.push(entry);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_depend_on_all_three_coordinates() {
        let text = Corpus::embedded();
        let here = text.sample(1, 2, 3, 64).as_ptr();
        assert_eq!(here, text.sample(1, 2, 3, 64).as_ptr());
        for other in [text.sample(9, 2, 3, 64), text.sample(1, 9, 3, 64), text.sample(1, 2, 9, 64)]
        {
            assert_ne!(here, other.as_ptr());
        }
    }

    #[test]
    fn held_out_text_is_never_trained_on() {
        let text = Corpus::embedded();
        let split = text.bytes[text.train..].as_ptr();
        for index in 0..10_000 {
            let sample = text.sample(7, 0, index, 128);
            assert!(sample.as_ptr_range().end <= split && sample.len() == 129);
        }
        for index in 0..32 {
            let window = text.held_out(index, 32, 128);
            assert!(window.as_ptr() >= split && window.len() == 129);
        }
        // In all windows each is one of them, and the last one ends where the text does.
        let count = text.windows(128);
        let starts = (0..count).map(|index| text.held_out(index, count, 128).as_ptr());
        assert!(starts.enumerate().all(|(index, start)| start == split.wrapping_add(index)));
        let end = text.held_out(count - 1, count, 128).as_ptr_range().end;
        assert_eq!(end, text.bytes.as_ptr_range().end);
    }

    #[test]
    fn a_short_text_is_refused_with_its_size() {
        let text = Corpus::new("short".to_string(), Cow::Borrowed(b"0123456789"));
        let problem = text.require(16).unwrap_err().to_string();
        assert!(problem.contains("10 bytes") && problem.contains("340"), "{problem}");
        assert!(Corpus::embedded().require(1024).is_ok());
    }

    #[test]
    fn a_file_has_as_many_bytes_as_it_says() {
        let path = std::env::temp_dir().join(format!("brigade-short-{}", std::process::id()));
        for (bytes, told) in
            [("", " has 0 bytes,"), ("x", " has 1 byte,"), ("x\n", " has 2 bytes,")]
        {
            std::fs::write(&path, bytes).unwrap();
            let text = Corpus::read(&path);
            std::fs::remove_file(&path).unwrap();
            let problem = text.unwrap().require(8).unwrap_err().to_string();
            assert!(problem.contains(told), "{problem}");
        }
    }

    #[test]
    fn a_folder_is_its_files_in_order() {
        let folder = std::env::temp_dir().join(format!("brigade-corpus-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("b")).unwrap();
        std::fs::write(folder.join("c"), "third").unwrap();
        std::fs::write(folder.join(".hidden"), "never").unwrap();
        std::fs::write(folder.join("a"), "first\n").unwrap();
        std::fs::write(folder.join("b/x"), "second\n").unwrap();
        let text = Corpus::read(&folder).map(|text| text.bytes.into_owned());
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(text.unwrap(), b"first\nsecond\nthird\n");
    }
}
