//! The library, built and installed in a folder of its own for as long as a test uses it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// An installed library. The folder goes with the last test that uses it.
pub(crate) struct Installed {
    /// What `--prefix` was.
    pub(crate) prefix: PathBuf,
}

impl Installed {
    /// The library of this build, installed unless another test has just done so.
    pub(crate) fn get() -> Arc<Self> {
        static LAST: Mutex<Weak<Installed>> = Mutex::new(Weak::new());
        let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(installed) = last.upgrade() {
            return installed;
        }
        let name = format!("brigade-c-{}", std::process::id());
        let installed = Arc::new(Self { prefix: std::env::temp_dir().join(name) });
        let mut install = Command::new("sh");
        install.arg(root().join("ffi/install.sh")).arg("--prefix").arg(&installed.prefix);
        let output =
            install.arg("--from").arg(brigade_built::folder()).output().expect("there is a shell");
        assert!(output.status.success(), "{}", words(&output));
        *last = Arc::downgrade(&installed);
        installed
    }

    /// Where the libraries are.
    pub(crate) fn lib(&self) -> PathBuf {
        self.prefix.join("lib")
    }

    /// Where the headers are.
    pub(crate) fn include(&self) -> PathBuf {
        self.prefix.join("include")
    }
}

impl Drop for Installed {
    fn drop(&mut self) {
        // Nothing is left to do about a folder that cannot be removed.
        let _ = std::fs::remove_dir_all(&self.prefix);
    }
}

/// The folder of the project.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ has a parent")
}

/// A source in `tests/c`.
pub(crate) fn source(name: &str) -> PathBuf {
    root().join("tests/c").join(name)
}

/// The `brigade` command.
pub(crate) fn brigade() -> PathBuf {
    brigade_built::folder().join("brigade")
}

/// Whether a program can be started; says so if it cannot.
pub(crate) fn has(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok();
    if !found {
        println!("skipped: there is no {program} here");
    }
    found
}

/// A command that is ended after two minutes, and knows of no world but its own.
pub(crate) fn bounded(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", "120"]).arg(program);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("BRIGADE_") {
            command.env_remove(name);
        }
    }
    command
}

/// Run a command that must succeed; what it printed.
#[track_caller]
pub(crate) fn run(command: &mut Command) -> String {
    let output = command.output().expect("the command can be started");
    assert!(output.status.success(), "{command:?}: {}\n{}", output.status, words(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// All that a command said.
pub(crate) fn words(output: &Output) -> String {
    let text = |bytes| String::from_utf8_lossy(bytes);
    format!("{}{}", text(&output.stdout), text(&output.stderr))
}
