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

/// A `cargo` that makes what it is asked for, and tells for what.
const MAKING: &str = r#"#!/bin/sh
echo "cargo: $*"
mkdir -p $CARGO_TARGET_DIR/release
cd $CARGO_TARGET_DIR/release
for name in brigade brigade_nccl nccl_net_brigade; do cp /bin/true lib$name.so; done
: > libbrigade.a
"#;

/// Whoever has built the command has compiled all but the last bit of each library, and debuggers
/// are the only ones to read most of what rustc has put into it.
#[test]
fn installers_build_beside_the_command_and_say_how_large_the_stripped_library_is() {
    let folder = Folder::new("install");
    let cargo = folder.0.join("cargo");
    std::fs::write(&cargo, MAKING).unwrap();
    assert!(Command::new("chmod").arg("+x").arg(&cargo).status().unwrap().success());
    let strip = folder.0.join("strip");
    std::fs::write(&strip, "#!/bin/sh\necho stripped $*\nprintf %1234567d 0 > $2\n").unwrap();
    assert!(Command::new("chmod").arg("+x").arg(&strip).status().unwrap().success());
    let path = format!("{}:{}", folder.0.display(), std::env::var("PATH").unwrap());
    for (script, package, flag) in [
        ("install.sh", "brigade-ffi", "--prefix"),
        ("nccl/install.sh", "brigade-nccl", "--libdir"),
        ("net/install.sh", "brigade-net", "--libdir"),
    ] {
        let script = format!("{}/../ffi/{script}", env!("CARGO_MANIFEST_DIR"));
        let mut install = bounded("sh");
        install.args([&script, flag, "here"]).env("PATH", &path).current_dir(&folder.0);
        let output = install.env("CARGO_TARGET_DIR", folder.0.join("target")).output().unwrap();
        let said = text(&output.stdout);
        assert!(output.status.success(), "{}", words(&output));
        let built = format!("cargo: build --release --lib -p brigade -p {package}\n");
        assert!(said.starts_with(&built), "{said}");
        let put = format!("stripped --strip-unneeded {}/here/", folder.0.display());
        assert!(said.contains(&put) && said.contains("(1.2 MB)"), "{said}");
    }
}
