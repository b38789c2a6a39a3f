//! What `brigade` writes in one go: a disk that is full leaves the file that was there, and what
//! is no file, or cannot have another beside it, is written as ever.

use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use brigade_tests::command::{Folder, bounded, brigade, text, words};
use brigade_tests::sys;

/// Every flag for such a file, in the least that writes it. No rank shares memory with others: that
/// takes room, too.
const LINES: [&str; 8] = [
    "tune all-reduce -n 2 --transport loopback -b 64 -e 1K --rounds 7 --iters 2 --output OUT",
    "bench all-reduce --transport loopback -n 2 -b 1K -e 1K --iters 1 --plot OUT",
    "offload bench step --simulate 1/1 --params 1K --turns 1 --plot OUT",
    "offload plan --params 1B --device 0 --host 64G --json OUT",
    "schedule show all-reduce -n 2 --algorithm ring --svg OUT",
    "train --report OUT --steps 2 --sample 0 --layers 1 --width 16 --heads 2 --context 8",
    "train --trace OUT --steps 2 --sample 0 --layers 1 --width 16 --heads 2 --context 8",
    "train --draw OUT --strategy 1f1b --ranks 2 --transport tcp --steps 2 --sample 0 --layers 1 \
     --width 16 --heads 2 --context 8",
];

/// The line that draws a picture and says so.
const SHOW: &str = LINES[4];

/// This line, with a path in the place of `OUT`.
fn told(command: &mut Command, line: &str, out: &Path) -> Output {
    command.args(line.replace("OUT", &out.display().to_string()).split_whitespace());
    command.output().unwrap()
}

fn names(folder: &Folder) -> Vec<String> {
    let entries = std::fs::read_dir(&folder.0).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Whether a test may have a file system of its own.
fn may_mount() -> bool {
    let mut unshare = Command::new("unshare");
    unshare.args(["-rm", "mount", "-t", "tmpfs", "none", "/tmp"]);
    unshare.status().is_ok_and(|status| status.success())
}

/// A command for whose files there is no room at all.
fn without_room() -> Command {
    let mut command = bounded("sh");
    command.args(["-c", r#"trap '' XFSZ; ulimit -f 0; exec "$0" "$@""#]).arg(brigade());
    command
}

#[test]
fn what_finds_no_room_leaves_the_file_that_was_there_and_says_which() {
    for line in LINES {
        let folder = Folder::new("no-room");
        let (old, new) = (folder.0.join("old"), folder.0.join("new"));
        std::fs::write(&old, "kept").unwrap();
        for out in [&old, &new] {
            let output = told(&mut without_room(), line, out);
            let wanted = format!("cannot write {}: File too large", out.display());
            assert!(!output.status.success(), "{line}: {}", words(&output));
            assert!(text(&output.stderr).contains(&wanted), "{line}: {}", words(&output));
            assert_eq!(names(&folder), ["old"], "{line}");
            assert_eq!(std::fs::read_to_string(&old).unwrap(), "kept", "{line}");
        }
    }
}

#[test]
fn a_limit_for_files_is_an_error_too_where_it_would_be_a_signal() {
    let folder = Folder::new("limited");
    for line in [SHOW, "train --checkpoint OUT --steps 1 --sample 0 --layers 1 --context 8"] {
        let mut command = bounded("sh");
        command.args(["-c", r#"ulimit -f 0; exec "$0" "$@""#]).arg(brigade());
        sys::without_unnamed_files(&mut command);
        let output = told(&mut command, line, &folder.0.join("new"));
        let said = text(&output.stderr);
        assert!(said.contains("File too large"), "{line}: {}", words(&output));
        assert!(output.status.code().is_some_and(|code| code < 3), "{line}: {}", words(&output));
        assert_eq!(names(&folder), [""; 0], "{line}");
    }
    // What `brigade run` starts gets what it was started with.
    let mut command = bounded(brigade());
    let output = command.args(["run", "-n", "1", "--", "sh", "-c", "kill -s XFSZ $$"]).output();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(128 + libc::SIGXFSZ), "{}", words(&output));
    assert!(text(&output.stderr).contains("(SIGXFSZ)"), "{}", words(&output));
}

#[test]
fn a_file_system_that_is_full_keeps_what_is_there() {
    if !may_mount() {
        return println!("skipped: nothing can be mounted here");
    }
    let folder = Folder::new("full");
    let script = r#"mount -t tmpfs -o size=4k full "$0"; printf kept > "$0/old"
        "$@" && exit 1; set "$0"/*; echo "left $*: $(cat "$1")""#;
    let old = folder.0.join("old");
    let mut command = bounded("unshare");
    command.args(["-rm", "sh", "-c", script]).arg(&folder.0).arg(brigade());
    // A picture that were cut without what is there, too.
    let output = told(&mut command, &SHOW.replace("-n 2", "-n 8"), &old);
    let wanted = format!("cannot write {}: No space left", old.display());
    assert!(text(&output.stderr).contains(&wanted), "{}", words(&output));
    let left = format!("left {}: kept\n", old.display());
    assert!(text(&output.stdout).ends_with(&left), "{}", words(&output));
}

#[test]
fn the_picture_of_a_comparison_takes_the_place_of_the_old_one() {
    let folder = Folder::new("compared");
    let (old, twin) = (folder.0.join("old"), folder.0.join("twin"));
    std::fs::write(&old, "kept").unwrap();
    std::fs::hard_link(&old, &twin).unwrap();
    let line = "compare --plot OUT --only ddp --ranks 2 --steps 2 -- --layers 1 --width 16 \
                --context 8";
    let output = told(&mut bounded(brigade()), line, &old);
    assert!(output.status.success(), "{}", words(&output));
    assert!(std::fs::read_to_string(&old).unwrap().starts_with("<svg"));
    assert_eq!(std::fs::read_to_string(&twin).unwrap(), "kept");
}

#[test]
fn where_files_need_names_nothing_is_left_beside_the_old_one_either() {
    let folder = Folder::new("no-room-by-name");
    let old = folder.0.join("old");
    std::fs::write(&old, "kept").unwrap();
    let mut command = without_room();
    sys::without_unnamed_files(&mut command);
    let output = told(&mut command, SHOW, &old);
    assert!(text(&output.stderr).contains("File too large"), "{}", words(&output));
    assert_eq!(names(&folder), ["old"]);
    assert_eq!(std::fs::read_to_string(&old).unwrap(), "kept");
}

#[test]
fn what_is_no_file_takes_what_is_written() {
    let show = |out: &Path| told(&mut bounded(brigade()), SHOW, out);
    let output = show(Path::new("/dev/stdout"));
    assert!(output.status.success(), "{}", words(&output));
    assert!(text(&output.stdout).contains("</svg>\ndrawn  /dev/stdout"), "{}", words(&output));
    assert!(show(Path::new("/dev/null")).status.success());
    let output = show(Path::new("/dev/full"));
    assert_eq!(output.status.code(), Some(1), "{}", words(&output));
    assert!(
        text(&output.stderr).contains("cannot write /dev/full: No space"),
        "{}",
        words(&output)
    );

    let folder = Folder::new("through-a-pipe");
    let pipe = folder.0.join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let mut reader = Command::new("cat").arg(&pipe).stdout(Stdio::piped()).spawn().unwrap();
    let output = show(&pipe);
    let mut read = String::new();
    reader.stdout.take().unwrap().read_to_string(&mut read).unwrap();
    assert!(reader.wait().unwrap().success() && output.status.success(), "{}", words(&output));
    assert!(read.starts_with("<svg") && read.trim_end().ends_with("</svg>"), "{read}");
    assert_eq!(names(&folder), ["pipe"]);
}

#[test]
fn where_nothing_can_be_printed_that_is_told_and_where_nothing_can_be_told_the_rest_goes_on() {
    let full = || OpenOptions::new().write(true).open("/dev/full").unwrap();
    for line in ["schedule show all-reduce -n 4", "schedule check reduce -n 4", "doctor --settings"]
    {
        let mut command = bounded(brigade());
        let output = command.args(line.split(' ')).stdout(full()).stderr(Stdio::piped());
        let output = output.output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{line}: {}", words(&output));
        let wanted = "brigade: cannot print: No space left";
        assert!(text(&output.stderr).starts_with(wanted), "{line}: {}", words(&output));
    }
    for (line, code) in [
        ("schedule show all-reduce -n 4 --svg /nonexistent/x", 2),
        ("train --report /nonexistent/x", 2),
        ("run -n 1 -- sh -c exit\u{a0}3", 3),
        // That a variable is not known is told by the library.
        ("bench all-reduce -n 2 --transport loopback -e 1K --iters 1", 0),
    ] {
        let mut command = bounded(brigade());
        command.args(line.split(' ').map(|word| word.replace('\u{a0}', " ")));
        command.env("BRIGADE_XYZZY", "1").stderr(full());
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{line}: {}", words(&output));
    }
}

#[test]
fn a_link_stays_and_what_is_mounted_by_itself_is_written_over() {
    let folder = Folder::new("linked");
    let (file, link) = (folder.0.join("file"), folder.0.join("link"));
    symlink("file", &link).unwrap();
    let show = |command: &mut Command| {
        let output = told(command, SHOW, &link);
        assert!(output.status.success(), "{}", words(&output));
        assert!(link.is_symlink() && file.metadata().unwrap().is_file());
        assert!(std::fs::read_to_string(&file).unwrap().starts_with("<svg"));
        assert_eq!(names(&folder), ["file", "link"]);
    };
    show(&mut bounded(brigade()));
    let number = file.metadata().unwrap().ino();
    show(&mut bounded(brigade()));
    assert_ne!(file.metadata().unwrap().ino(), number, "another has taken its place");
    if !may_mount() {
        return println!("skipped: nothing can be mounted here");
    }
    let number = file.metadata().unwrap().ino();
    std::fs::write(&file, "old").unwrap();
    let script = r#"mount --bind "$0" "$0"; exec "$@""#;
    let mut mounted = bounded("unshare");
    show(mounted.args(["-rm", "sh", "-ec", script]).arg(&file).arg(brigade()));
    assert_eq!(file.metadata().unwrap().ino(), number);
}

#[test]
fn a_file_whose_owner_no_other_can_be_given_is_written_over() {
    let folder = Folder::new("theirs");
    let file = folder.0.join("file");
    std::fs::write(&file, "old").unwrap();
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o666)).unwrap();
    if !may_mount() || chown(&file, Some(1), Some(1)).is_err() {
        return println!("skipped: files can be given to nobody here, or nobody be left out");
    }
    // There is nobody but root in there.
    let output = told(bounded("unshare").arg("-r").arg(brigade()), SHOW, &file);
    assert!(output.status.success(), "{}", words(&output));
    assert!(std::fs::read_to_string(&file).unwrap().starts_with("<svg"));
    assert_eq!((names(&folder), file.metadata().unwrap().uid()), (vec!["file".into()], 1));
}
