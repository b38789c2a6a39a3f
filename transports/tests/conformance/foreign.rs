//! Our own network plugin, through the door for other people's.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use brigade_transports::Transport;
use brigade_transports::plugin::Plugin;
use brigade_transports::tcp::Settings as TcpSettings;

pub(crate) fn plugin(ranks: usize) -> Vec<Box<dyn Transport>> {
    let path = built().to_str().expect("a path in UTF-8");
    crate::many(ranks, || Plugin::new(path, TcpSettings::default()))
}

/// The plugin, built as this test was built, where cargo puts it: in the folder of the test itself,
/// without `deps`. Built with everything: by itself it would get fewer features of what it shares
/// with others, and all of that would be compiled once more.
fn built() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let test = std::env::current_exe().expect("a test knows where it is");
        let folder = test.parent().and_then(Path::parent).expect("it is in target/PROFILE/deps");
        let profile = match folder.file_name().and_then(|name| name.to_str()) {
            Some("debug") | None => "dev",
            Some(profile) => profile,
        };
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--workspace", "--lib", "--bins", "--examples"]);
        cargo.args(["--profile", profile]);
        cargo.current_dir(env!("CARGO_MANIFEST_DIR")).arg("--target-dir");
        let output = cargo.arg(folder.parent().expect("target/ is above")).output();
        let output = output.expect("cargo runs: it runs this test");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        folder.join("libnccl_net_brigade.so")
    })
}
