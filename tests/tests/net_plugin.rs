//! libnccl-net-brigade as a program in C meets it that asks of it what NCCL asks of a network
//! plugin, in every version of the interface.

use std::path::{Path, PathBuf};
use std::process::Command;

const VERSIONS: [&str; 5] = ["8", "9", "10", "11", "12"];

/// The library and the driver, in a folder of their own that goes with this.
struct Workshop(PathBuf);

impl Workshop {
    /// `None` where there is no compiler.
    fn open(name: &str) -> Option<Workshop> {
        if Command::new("gcc").arg("--version").output().is_err() {
            println!("skipped: there is no gcc here");
            return None;
        }
        let folder = format!("brigade-net-{name}-{}", std::process::id());
        let workshop = Workshop(std::env::temp_dir().join(folder));
        std::fs::create_dir_all(&workshop.0).expect("a folder for temporary files");
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ has a parent");
        let built = build(root).join("libnccl_net_brigade.so");
        std::fs::copy(built, workshop.library()).expect("the library was built");
        let mut compiler = Command::new("gcc");
        compiler.args(["-std=c99", "-Wall", "-Wextra", "-Werror", "-O2", "-o"]);
        compiler.arg(workshop.driver()).arg(root.join("tests/c/net_driver.c")).arg("-ldl");
        run(&mut compiler);
        Some(workshop)
    }

    fn library(&self) -> PathBuf {
        self.0.join("libnccl-net-brigade.so")
    }

    fn driver(&self) -> PathBuf {
        self.0.join("net_driver")
    }

    /// The driver, which ends after two minutes and uses loopback addresses.
    fn drive(&self, version: &str, how: &str) -> Command {
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", "120"]).arg(self.driver()).arg(self.library());
        command.args([version, how]).env("BRIGADE_INTERFACE", "127.0.0.0/8");
        command
    }
}

impl Drop for Workshop {
    fn drop(&mut self) {
        // Nothing is left to do about a folder that cannot be removed.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Build the plugin as this test was built; where cargo puts it.
fn build(root: &Path) -> PathBuf {
    let test = std::env::current_exe().expect("a test knows where it is");
    let folder = test.parent().and_then(Path::parent).expect("it is in target/PROFILE/deps");
    let profile = match folder.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => "dev",
        Some(profile) => profile,
    };
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--package", "brigade-net", "--profile", profile]).current_dir(root);
    run(cargo.arg("--target-dir").arg(folder.parent().expect("target/ is above")));
    folder.to_owned()
}

#[track_caller]
fn run(command: &mut Command) -> String {
    let output = command.output().expect("the command can be started");
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    let said = text(&output.stdout) + &text(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{said}", output.status);
    said
}

#[test]
fn every_version_keeps_the_contract() {
    let Some(workshop) = Workshop::open("contract") else { return };
    for version in VERSIONS {
        let said = run(&mut workshop.drive(version, ""));
        assert!(said.contains(&format!("version {version} of Brigade")), "{said}");
        assert!(said.contains("all as it should be"), "{said}");
    }
}

#[test]
fn nothing_but_the_tables_is_exported() {
    if Command::new("nm").arg("--version").output().is_err() {
        return println!("skipped: there is no nm here");
    }
    let Some(workshop) = Workshop::open("symbols") else { return };
    let listed = run(Command::new("nm").args(["-D", "--defined-only"]).arg(workshop.library()));
    let mut names: Vec<&str> =
        listed.lines().filter_map(|line| line.split_whitespace().nth(2)).collect();
    let mut wanted = VERSIONS.map(|version| format!("ncclNetPlugin_v{version}"));
    names.sort_unstable();
    wanted.sort_unstable();
    assert_eq!(names, wanted);
}

/// What was measured of another plugin over TCP on such a machine (aws-ofi-nccl, 2026): 15.3 us and
/// 3.5 GB/s, one process with both ends.
#[test]
#[ignore = "a benchmark: it wants an optimised build and a quiet machine"]
fn small_messages_are_quick_and_long_ones_fast() {
    let Some(workshop) = Workshop::open("bench") else { return };
    let said = run(&mut workshop.drive("12", "bench"));
    println!("{said}");
    let number = |unit: &str| -> f64 {
        let (before, _) = said.split_once(unit).expect("the driver says it");
        before.split_whitespace().last().and_then(|it| it.parse().ok()).expect("a number")
    };
    let (latency_us, gigabytes) = (number(" us,"), number(" GB/s"));
    assert!(latency_us < 15.0 && gigabytes > 3.4, "{latency_us} us, {gigabytes} GB/s");
}
