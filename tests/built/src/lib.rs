//! For tests of what cargo builds: the command, libraries for C, plugins and examples.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// How variables begin that cargo and nextest set for a test, and that no user has: with them the
/// scripts that build our guests take what they were built with for something else, and nearly
/// everything is compiled anew, now and by the next build without them.
const OF_PACKAGES: [&str; 4] = ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_EXE_", "OUT_DIR"];

/// The folder in which cargo puts what the test that calls this was built with: that of the test
/// itself, without `deps`. Everything is built there, in the test's profile, if it is not: what is
/// built by itself gets fewer features of what it shares with others, which would be compiled once
/// more.
///
/// # Panics
///
/// With cargo's words, if it cannot be built.
pub fn folder() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let test = std::env::current_exe().expect("a test knows where it is");
        let folder = test.ancestors().nth(2).expect("it is in target/PROFILE/deps");
        let profile = match folder.file_name().and_then(|name| name.to_str()) {
            Some("debug") | None => "dev",
            Some(profile) => profile,
        };
        let mut cargo = Command::new(env!("CARGO"));
        for (name, _) in std::env::vars_os() {
            if OF_PACKAGES.iter().any(|prefix| name.to_string_lossy().starts_with(prefix)) {
                cargo.env_remove(name);
            }
        }
        cargo.args(["build", "--workspace", "--lib", "--bins", "--examples"]);
        cargo.args(["--profile", profile, "--target-dir"]);
        cargo.arg(folder.parent().expect("target/ is above"));
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
        let output = cargo.current_dir(root).output().expect("cargo runs this test");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "cargo builds nothing: {}\n{said}", output.status);
        folder.to_owned()
    })
}
