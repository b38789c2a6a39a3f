//! What a world may not leave behind, and where to look for it.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Where shared memory with a name lies.
const SHARED_MEMORY: &str = "/dev/shm";

/// The traces of one trial: its folder for temporary files, and the mark of its processes.
pub(crate) struct Traces {
    mark: String,
    folder: PathBuf,
    shared_before: BTreeSet<String>,
}

impl Traces {
    /// Look around before the trial. `mark` is its own.
    pub(crate) fn before(mark: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("brigade-deaths-{mark}"));
        fs::create_dir(&folder).expect("a folder of our own");
        Self { mark: format!("mark-{mark}"), folder, shared_before: shared_memory() }
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// A folder for one rank's temporary files.
    pub(crate) fn new_folder(&self, name: &str) -> PathBuf {
        let folder = self.folder.join(name);
        fs::create_dir(&folder).expect("a folder of our own");
        folder
    }

    /// The variable by which processes of the trial, and those that they start, are found again.
    pub(crate) fn variable(&self) -> (&'static str, String) {
        ("BRIGADE_TEST_MARK", self.mark.clone())
    }

    /// A running rank has nothing open or mapped that has a name where things are left behind.
    pub(crate) fn check_open_files(&self, pid: u32) {
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
        let mapped = maps.lines().filter_map(|line| line.find('/').map(|at| line[at..].into()));
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let open = descriptors.filter_map(|entry| fs::read_link(entry.path()).ok());
        for path in mapped.chain(open) {
            let path: PathBuf = path;
            let named = path.starts_with(SHARED_MEMORY) || path.starts_with(&self.folder);
            assert!(!named, "process {pid} has {} open", path.display());
        }
    }

    /// Every process has ended; nothing else is left either.
    pub(crate) fn check_nothing_left(self) {
        for entry in fs::read_dir(&self.folder).expect("the folder is there").flatten() {
            let left = fs::read_dir(entry.path()).map(|inside| inside.flatten().count());
            assert!(matches!(left, Ok(0)), "{} is left behind", entry.path().display());
        }
        let new: Vec<String> = shared_memory().difference(&self.shared_before).cloned().collect();
        assert!(new.is_empty(), "left behind in {SHARED_MEMORY}: {new:?}");
        assert_eq!(processes_with(&self.mark), Vec::<String>::new());
    }
}

impl Drop for Traces {
    fn drop(&mut self) {
        // After a failed trial it still holds what the ranks left; that is in the message.
        let _removed = fs::remove_dir_all(&self.folder);
    }
}

/// What could be ours: other programs use shared memory meanwhile.
fn shared_memory() -> BTreeSet<String> {
    let entries = fs::read_dir(SHARED_MEMORY).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.to_lowercase().contains("brigade")).collect()
}

/// Processes that have the mark in their environment.
fn processes_with(mark: &str) -> Vec<String> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let is_marked = |entry: &fs::DirEntry| {
        let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|one| one.ends_with(mark.as_bytes()))
    };
    let names = processes.filter(is_marked).map(|it| it.file_name().to_string_lossy().into_owned());
    names.collect()
}
