//! The library, built and installed in a folder of its own for as long as a test uses it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

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
        let output = install.arg("--from").arg(built()).output().expect("there is a shell");
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
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| build().join("brigade")).clone()
}

/// Where the library is before it is installed.
fn built() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(build).clone()
}

/// Build everything as this test was built, and tell the folder where cargo puts it: that of the
/// test itself, without `deps`. Everything, because a package that is built by itself gets fewer
/// features of what it shares with others, and all of that would be compiled once more.
pub(crate) fn build() -> PathBuf {
    let test = std::env::current_exe().expect("a test knows where it is");
    let folder = test.parent().and_then(Path::parent).expect("it is in target/PROFILE/deps");
    let profile = match folder.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => "dev",
        Some(profile) => profile,
    };
    let target = folder.parent().expect("target/ is above");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--workspace", "--lib", "--bins", "--examples", "--profile", profile]);
    cargo.current_dir(root());
    let output = cargo.arg("--target-dir").arg(target).output();
    let output = output.expect("cargo runs: it runs this test");
    assert!(output.status.success(), "{}", words(&output));
    folder.to_owned()
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
