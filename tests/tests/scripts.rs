//! The scripts that build and install what other languages link: told nonsense, and what they hand
//! on.

use std::process::{Command, Output};

use brigade_tests::command::{Folder, bounded, text, words};

#[test]
fn installers_say_which_flag_lacks_its_value() {
    for (script, flag) in
        [("install.sh", "--prefix"), ("nccl/install.sh", "--from"), ("net/install.sh", "--libdir")]
    {
        let script = format!("{}/../ffi/{script}", env!("CARGO_MANIFEST_DIR"));
        let output: Output = bounded("sh").args([&script, flag]).output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{}", words(&output));
        assert!(
            said.contains(&format!("{flag} needs a value")) && said.contains("usage: "),
            "{said}"
        );
    }
}

/// A `cargo` that only tells which flags it would hand to rustc.
const TELLING: &str = "#!/bin/sh\nprintf '%s\\n' \"$@\" \"env=$CARGO_ENCODED_RUSTFLAGS\"\n";

#[test]
fn libraries_for_others_are_built_without_the_paths_of_this_machine_and_with_the_users_flags() {
    let folder = Folder::new("build");
    let cargo = folder.0.join("cargo");
    std::fs::write(&cargo, TELLING).unwrap();
    assert!(Command::new("chmod").arg("+x").arg(&cargo).status().unwrap().success());
    let path = format!("{}:{}", folder.0.display(), std::env::var("PATH").unwrap());
    let script = format!("{}/../ffi/build.sh", env!("CARGO_MANIFEST_DIR"));
    let root = std::fs::canonicalize(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).unwrap();
    let root = format!("--remap-path-prefix={}=/brigade", root.display());
    for (name, flags, kept) in [
        ("RUSTFLAGS", "-C target-cpu=native", "env=-C\u{1f}target-cpu=native\u{1f}--remap"),
        ("CARGO_ENCODED_RUSTFLAGS", "-Cx=a b", "env=-Cx=a b\u{1f}--remap"),
        // Beside what a configuration file has.
        ("NOTHING", "", "\n--config\nbuild.rustflags=['--remap"),
    ] {
        let mut build = bounded("sh");
        build.args([&script, "brigade-ffi"]).env("PATH", &path).env("CARGO_HOME", "/of a user");
        build.env_remove("RUSTFLAGS").env_remove("CARGO_ENCODED_RUSTFLAGS").env(name, flags);
        let output = build.output().unwrap();
        let told = text(&output.stdout);
        assert!(output.status.success(), "{}", words(&output));
        assert!(told.starts_with("build\n--release\n") && told.contains(kept), "{told}");
        assert!(told.contains("--package\nbrigade-ffi\n") && told.contains(&root), "{told}");
        assert!(told.contains("--remap-path-prefix=/of a user=/cargo"), "{told}");
    }
}
