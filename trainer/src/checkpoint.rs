//! The whole training state in one safetensors file: parameters, both moments, the step, the shape,
//! and the settings it came by. Samples are drawn by seed and step, so no generator has a state.
//!
//! It takes its name when it is whole, so a crash leaves the old file or the new one, and nothing
//! else. Everything read is checked against the model and against checksums before a byte of it is
//! used.

mod header;
mod read;
mod sums;
mod write;

pub use header::Course;
pub(crate) use header::{Header, strange};
pub(crate) use read::Reader;
pub(crate) use write::Writer;

use crate::error::Error;
use crate::layout::Layout;
use crate::offload::Kept;
use crate::state::{Array, State};
use brigade_offload::storage::Partial;
use std::path::Path;

/// What a run that goes on knows of the one that wrote what it goes on from.
#[derive(Clone, Debug, PartialEq)]
pub struct Written {
    /// The settings it came by.
    pub course: Course,
    /// Whether there were checksums to hold its numbers against.
    pub is_checked: bool,
}

impl Array {
    /// What its tensors' names begin with.
    fn prefix(self) -> &'static str {
        match self {
            Array::Params => "",
            Array::Mean => "adam.m/",
            Array::Square => "adam.v/",
        }
    }

    /// What it is called in files that `--keep` leaves.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Array::Params => "params",
            Array::Mean => "mean",
            Array::Square => "square",
        }
    }
}

/// Find out before the first step whether a `Writer` will be able to write the state of such a
/// model here.
///
/// Errors: `File` if not.
pub fn probe(path: &Path, layout: &Layout) -> Result<(), Error> {
    let numbers = (Array::ALL.len() * layout.len()) as u64;
    Partial::probe(path, 4 * numbers).map_err(Error::file("write", path))
}

/// What a file that a `Writer` wrote, or a folder of what a run has kept, says of itself: no
/// numbers are read. And whether it has checksums of these.
///
/// Errors: as those of `load`.
pub(crate) fn header(path: &Path, layout: &Layout) -> Result<(Header, bool), Error> {
    if !path.is_dir() {
        let reader = Reader::open(path, layout)?;
        let is_checked = reader.is_checked();
        return Ok((reader.header, is_checked));
    }
    let header = Kept::find(path)?.header;
    header.require(layout.config(), path)?;
    Ok((header, true))
}

/// Read what a `Writer` wrote, or what a run has kept in a folder, and what is known of that.
///
/// Errors: `File` or `Offload` if it cannot be read, `Checkpoint` if it is damaged or of another
/// model.
pub fn load(path: &Path, layout: &Layout) -> Result<(State, Written), Error> {
    if path.is_dir() {
        let kept = Kept::find(path)?;
        kept.header.require(layout.config(), path)?;
        let state = kept.state(layout)?;
        return Ok((state, Written { course: kept.header.course, is_checked: true }));
    }
    let mut file = Reader::open(path, layout)?;
    let mut state = State::room(layout);
    for array in Array::ALL {
        file.read(array, 0, state.array_mut(array))?;
    }
    (state.steps, state.scale) = (file.header.step, file.header.loss_scale);
    let is_checked = file.is_checked();
    Ok((state, Written { course: file.header.course, is_checked }))
}

/// Which step a checkpoint brought, and in what this run departs from the one that wrote it, which
/// went the `former` way in what it says nothing of; and whether its numbers are believed unseen.
pub(crate) fn departure(step: usize, written: &Written, former: &Course, now: &Course) -> String {
    let Written { course: written, is_checked } = written;
    let mut note = format!("after step {step}");
    for (flag, now) in now {
        let then = written.get(flag).or_else(|| former.get(flag));
        if let Some(then) = then.filter(|then| *then != now) {
            let unlike = if note.contains(';') { ", " } else { "; unlike before, " };
            note += &format!("{unlike}{flag} {now} (was {then})");
        }
    }
    if !is_checked {
        note += "; an older version wrote it, without checksums: its numbers cannot be checked";
    }
    note
}

#[cfg(test)]
mod tests {
    use super::header::HEADER;
    use super::*;
    use crate::layout::Config;
    use crate::precision::LossScale;
    use std::os::fd::AsRawFd;

    fn layout(layers: usize) -> Layout {
        Layout::new(Config { vocab: 7, context: 5, layers, heads: 2, width: 4, experts: 0, top: 0 })
    }

    fn file(name: &str) -> std::path::PathBuf {
        std::env::temp_dir().join(format!("brigade-{name}-{}", std::process::id()))
    }

    fn save(path: &Path, layout: &Layout, course: &Course, state: &State) {
        let (step, config, course, loss_scale) =
            (state.steps, *layout.config(), course.clone(), state.scale);
        let header = Header { step, config, course, loss_scale };
        let mut file = Writer::create(path, layout, &header).unwrap();
        for array in Array::ALL {
            file.put(array, 0, state.array(array)).unwrap();
        }
        file.finish().unwrap();
    }

    /// A state that differs everywhere.
    fn state(layout: &Layout) -> State {
        let wave = |by: f32| (0..layout.len()).map(|i| (i as f32 * by).sin()).collect();
        let scale = LossScale::new(crate::precision::Precision::F16).after(false).after(true);
        let (params, mean, mut square): (Vec<f32>, Vec<f32>, Vec<f32>) =
            (wave(0.7), wave(0.3), wave(0.1));
        square.iter_mut().for_each(|value| *value *= *value);
        State { params, mean, square, steps: 3, scale: Some(scale) }
    }

    #[test]
    fn what_is_read_is_what_was_written() {
        let (layout, path) = (layout(2), file("round-trip"));
        let written = (state(&layout), Course::from([("--seed".to_string(), "7".to_string())]));
        save(&path, &layout, &written.1, &written.0);
        let read = load(&path, &layout);
        std::fs::remove_file(&path).unwrap();
        let (state, Written { course, is_checked }) = read.unwrap();
        assert!((state, course) == written && is_checked);
    }

    #[test]
    fn numbers_that_no_run_comes_to_are_refused_by_their_tensor() {
        let (layout, path) = (layout(1), file("strange"));
        let mut negative = state(&layout);
        negative.square[7 * 4] = -1.5;
        save(&path, &layout, &Course::new(), &negative);
        let below = load(&path, &layout).unwrap_err().to_string();
        std::fs::remove_file(&path).unwrap();
        assert!(below.contains("strange") && below.contains("adam.v/wpe has -1.5"), "{below}");
    }

    /// Whoever finds a byte of a file that may be another without a word has found a fault.
    #[test]
    fn a_flipped_bit_is_told_wherever_it_is() {
        let (layout, path) = (layout(1), file("flipped"));
        save(&path, &layout, &Course::from([("--seed".into(), "7".into())]), &state(&layout));
        let mut bytes = std::fs::read(&path).unwrap();
        let data = bytes.len() - 12 * layout.len();
        let read = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            load(&path, &layout)
        };
        let whole = read(&bytes).unwrap();
        let mut told = Vec::new();
        for at in (0..data).step_by(11).chain((data..bytes.len()).step_by(17)) {
            bytes[at] ^= 1 << (at % 8);
            match read(&bytes) {
                Err(refused) => told.push((at, refused.to_string())),
                // A space between words may be a tab, and an escape may be written in two ways.
                Ok(same) => assert!(at < data && same == whole, "byte {at}"),
            }
            bytes[at] ^= 1 << (at % 8);
        }
        let mut several = bytes.clone();
        several[data..data + 64].iter_mut().step_by(4).for_each(|byte| *byte ^= 1);
        told.push((data, read(&several).unwrap_err().to_string()));
        std::fs::remove_file(&path).unwrap();
        for (at, refused) in told.iter().filter(|(at, _)| *at >= data) {
            let is_named = layout.tensors().iter().any(|tensor| refused.contains(&tensor.name));
            assert!(is_named && refused.contains("take an earlier"), "byte {at}: {refused}");
        }
    }

    #[test]
    fn a_file_of_the_first_format_is_read_and_said_to_be_unchecked() {
        let (layout, path) = (layout(1), file("first-format"));
        let written = state(&layout);
        save(&path, &layout, &Course::new(), &written);
        let bytes = std::fs::read(&path).unwrap();
        let (_, metadata) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
        let text = metadata.metadata().as_ref().unwrap()[HEADER].clone();
        let sealed = [",\"format\":2", ",\"sums\":\""].map(|key| text.find(key).unwrap());
        let first = format!("{}}}", &text[..sealed[0]]);
        let later = text.replace("\"format\":2", "\"format\":3");
        let read = |text: &str| {
            let infos = metadata.offset_keys().into_iter();
            let infos = infos.map(|name| (name.clone(), metadata.info(&name).unwrap().clone()));
            let fields = [(HEADER.to_string(), text.to_string())].into();
            let metadata = safetensors::tensor::Metadata::new(Some(fields), infos.collect());
            let head = serde_json::to_vec(&metadata.unwrap()).unwrap();
            let data = &bytes[bytes.len() - 12 * layout.len()..];
            let file = [&(head.len() as u64).to_le_bytes(), &head[..], data].concat();
            std::fs::write(&path, file).unwrap();
            load(&path, &layout)
        };
        let (old, late) = (read(&first), read(&later));
        std::fs::remove_file(&path).unwrap();
        let (read, known) = old.unwrap();
        assert!(read == written && !known.is_checked);
        let told = departure(3, &known, &Course::new(), &Course::new());
        assert!(told.ends_with("without checksums: its numbers cannot be checked"), "{told}");
        let refused = late.unwrap_err().to_string();
        assert!(refused.contains("is of format 3, which a later version"), "{refused}");
    }

    #[test]
    fn a_pipe_is_not_waited_for() {
        let (reader, writer) = std::io::pipe().unwrap();
        let path = format!("/proc/self/fd/{}", reader.as_raw_fd());
        let (tell, told) = std::sync::mpsc::channel();
        let load = move || tell.send(load(Path::new(&path), &layout(1)).map(drop));
        let waiting = std::thread::spawn(load);
        let told = told.recv_timeout(std::time::Duration::from_secs(10));
        drop(writer);
        let refused = told.expect("it waits for who writes").unwrap_err().to_string();
        assert!(refused.contains("a device or a pipe"), "{refused}");
        waiting.join().unwrap().unwrap();
    }

    #[test]
    fn other_models_and_damaged_files_are_refused() {
        let (small, path) = (layout(1), file("refused"));
        save(&path, &small, &Course::new(), &state(&small));
        let bytes = std::fs::read(&path).unwrap();
        let wrong = load(&path, &layout(2)).unwrap_err().to_string();
        for len in (0..bytes.len()).step_by(97) {
            std::fs::write(&path, &bytes[..len]).unwrap();
            assert!(load(&path, &small).is_err(), "{len} bytes of it");
        }
        std::fs::remove_file(&path).unwrap();
        assert!(wrong.contains("--layers 1") && wrong.contains("--layers 2"), "{wrong}");
    }

    #[test]
    fn a_resume_names_the_settings_that_changed_and_no_others() {
        let course = |pairs: [(&str, &str); 3]| {
            Course::from(pairs.map(|(flag, value)| (flag.to_string(), value.to_string())))
        };
        let written = course([("--batch", "8"), ("--lr", "0.001"), ("--seed", "1")]);
        let former = Course::from([("--clip".to_string(), "none".to_string())]);
        let written = Written { course: written, is_checked: true };
        let departure = |now: &Course| departure(5, &written, &former, now);
        assert_eq!(departure(&written.course), "after step 5");
        let clips = course([("--batch", "8"), ("--clip", "1"), ("--lr", "0.001")]);
        assert_eq!(departure(&clips), "after step 5; unlike before, --clip 1 (was none)");
        let now = course([("--batch", "8"), ("--lr", "0.002"), ("--seed", "7")]);
        assert_eq!(
            departure(&now),
            "after step 5; unlike before, --lr 0.002 (was 0.001), --seed 7 (was 1)"
        );
    }
}
