//! The whole training state in one safetensors file: parameters, both moments, the step, the shape,
//! and the settings it came by. Samples are drawn by seed and step, so no generator has a state.
//!
//! It takes its name when it is whole, so a crash leaves the old file or the new one, and nothing
//! else. Everything read is checked against the model before a byte of it is used.

mod read;
mod write;

pub(crate) use read::Reader;
pub(crate) use write::Writer;

use crate::error::Error;
use crate::layout::{Config, Layout};
use crate::offload::Kept;
use crate::precision::LossScale;
use crate::state::{Array, State};
use brigade_offload::storage::Partial;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// Settings of the run that wrote a checkpoint, by flag.
pub type Course = BTreeMap<String, String>;

/// What a file says beside its tensors: JSON in a single field, because several would be written in
/// an order of their own each time, and equal states shall be equal files.
#[derive(Serialize, Deserialize)]
pub(crate) struct Header {
    /// Steps made; those that f16 skipped count, too.
    pub(crate) step: usize,
    pub(crate) config: Config,
    pub(crate) course: Course,
    /// Of runs of f16.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) loss_scale: Option<LossScale>,
}

impl Header {
    /// As it is written.
    pub(crate) fn text(&self) -> String {
        serde_json::to_string(self).expect("a header is numbers and words")
    }

    /// Read what was written to `path`.
    ///
    /// Errors: `Checkpoint` for what is no header.
    pub(crate) fn parse(text: &str, path: &Path) -> Result<Header, Error> {
        let wrong = |problem: String| Error::checkpoint(path, problem);
        let header: Header = serde_json::from_str(text).map_err(|e| wrong(e.to_string()))?;
        match header.loss_scale.is_some_and(|scale| !scale.is_sound(header.step)) {
            true => Err(wrong("has a loss scale that no run comes to".to_string())),
            false => Ok(header),
        }
    }

    /// Refuse the state of another model.
    pub(crate) fn require(&self, config: &Config, path: &Path) -> Result<(), Error> {
        // How many of no experts a row goes to makes no difference.
        let top = if self.config.experts == 0 { config.top } else { self.config.top };
        if (Config { top, ..self.config }) == *config {
            return Ok(());
        }
        Err(Error::checkpoint(path, format!("is of {}, not of {config}", self.config)))
    }
}

/// The field of the header.
const HEADER: &str = "brigade";

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

/// One of the numbers of an array that no run comes to: none at all, or a square below 0.
pub(crate) fn strange(array: Array, values: &[f32]) -> Option<f32> {
    let is_strange = |value: &&f32| !value.is_finite() || (array == Array::Square && **value < 0.0);
    values.iter().find(is_strange).copied()
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
/// numbers are read.
///
/// Errors: as those of `load`.
pub(crate) fn header(path: &Path, layout: &Layout) -> Result<Header, Error> {
    if !path.is_dir() {
        return Ok(Reader::open(path, layout)?.header);
    }
    let header = Kept::find(path)?.header;
    header.require(layout.config(), path)?;
    Ok(header)
}

/// Read what a `Writer` wrote, or what a run has kept in a folder, and the settings it came by.
///
/// Errors: `File` or `Offload` if it cannot be read, `Checkpoint` if it is damaged or of another
/// model.
pub fn load(path: &Path, layout: &Layout) -> Result<(State, Course), Error> {
    if path.is_dir() {
        let kept = Kept::find(path)?;
        kept.header.require(layout.config(), path)?;
        return Ok((kept.state(layout)?, kept.header.course));
    }
    let mut file = Reader::open(path, layout)?;
    let mut state = State::room(layout);
    for array in Array::ALL {
        file.read(array, 0, state.array_mut(array))?;
    }
    (state.steps, state.scale) = (file.header.step, file.header.loss_scale);
    Ok((state, file.header.course))
}

/// Which step a checkpoint brought, and in what this run departs from the one that wrote it, which
/// went the `former` way in what it says nothing of.
pub(crate) fn departure(step: usize, written: &Course, former: &Course, now: &Course) -> String {
    let mut note = format!("after step {step}");
    for (flag, now) in now {
        let then = written.get(flag).or_else(|| former.get(flag));
        if let Some(then) = then.filter(|then| *then != now) {
            let unlike = if note.contains(';') { ", " } else { "; unlike before, " };
            note += &format!("{unlike}{flag} {now} (was {then})");
        }
    }
    note
}

#[cfg(test)]
mod tests {
    use super::*;
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
        let file = Writer::create(path, layout, &header).unwrap();
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
        assert!(read.unwrap() == written);
    }

    #[test]
    fn numbers_that_no_run_comes_to_are_refused_by_their_tensor() {
        let (layout, path) = (layout(1), file("strange"));
        let mut negative = state(&layout);
        negative.square[7 * 4] = -1.5;
        save(&path, &layout, &Course::new(), &negative);
        let below = load(&path, &layout).unwrap_err().to_string();
        save(&path, &layout, &Course::new(), &state(&layout));
        let mut bytes = std::fs::read(&path).unwrap();
        let end = bytes.len();
        bytes[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
        std::fs::write(&path, bytes).unwrap();
        let none = load(&path, &layout).unwrap_err().to_string();
        std::fs::remove_file(&path).unwrap();
        assert!(below.contains("strange") && below.contains("adam.v/wpe has -1.5"), "{below}");
        assert!(none.contains("wte has NaN") && !none.contains("adam"), "{none}");
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
        let departure = |now: &Course| departure(5, &written, &former, now);
        assert_eq!(departure(&written), "after step 5");
        let clips = course([("--batch", "8"), ("--clip", "1"), ("--lr", "0.001")]);
        assert_eq!(departure(&clips), "after step 5; unlike before, --clip 1 (was none)");
        let now = course([("--batch", "8"), ("--lr", "0.002"), ("--seed", "7")]);
        assert_eq!(
            departure(&now),
            "after step 5; unlike before, --lr 0.002 (was 0.001), --seed 7 (was 1)"
        );
    }
}
