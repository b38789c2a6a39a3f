//! The `brigade` command as tests start it: built as they were, with a deadline, in no world.

use std::path::PathBuf;
use std::process::{Command, Output};

/// A command that is ended after four minutes, and knows of no world but its own.
pub fn bounded(program: impl AsRef<std::ffi::OsStr>) -> Command {
    const LAUNCHERS: [&str; 7] =
        ["BRIGADE_", "SLURM_", "OMPI_", "PMI", "RANK", "WORLD_SIZE", "MASTER_"];
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", "240"]).arg(program);
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if LAUNCHERS.iter().any(|prefix| name.starts_with(prefix)) {
            command.env_remove(name);
        }
    }
    command
}

/// The `brigade` command, built as this test was. Panics if it cannot be built.
pub fn brigade() -> PathBuf {
    brigade_built::folder().join("brigade")
}

/// What was printed, as far as it is text.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// How a command ended, and all that it printed.
pub fn words(output: &Output) -> String {
    format!("{}\n{}{}", output.status, text(&output.stdout), text(&output.stderr))
}

/// A folder of its own for a test, which goes with it.
pub struct Folder(pub PathBuf);

impl Folder {
    /// A new one; the name tells tests of one process apart.
    pub fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("brigade-{name}-{}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Nothing is left to do about a folder that cannot be removed.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
