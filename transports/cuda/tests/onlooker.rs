//! That ThreadSanitizer looks on at whatever places memory has: threads' own memory of a library
//! that was loaded later, as all kernels are, may lie sixteen bytes into a page. Without a word it
//! takes what stands in front of that for the lengths that glibc 2.19 had there.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use brigade_cuda_fake::{Folder, watched};

const LIBRARY: &str = "
__thread long own[6] = {1};

extern \"C\" void *place() { return own; }
";

/// Memory of the same length is let go of where it lies so, and has such lengths in front of it.
const PROGRAM: &str = "
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

typedef unsigned long Word;

int main(int, char **arguments) {
    void *library = dlopen(arguments[1], RTLD_NOW);
    void *(*place)() = library ? (void *(*)())dlsym(library, \"place\") : nullptr;
    if (!place) return 2;
    static Word *all[1024];
    for (Word *&one : all) {
        one = (Word *)malloc(48);
        one[4] = 0x7b0c00002800ul;
        one[5] = 0x2000;
    }
    for (Word *one : all)
        if ((Word)one % 4096 == 16) free(one);
    puts((Word)place() % 4096 == 16 ? \"there\" : \"elsewhere\");
}
";

#[test]
fn threads_own_memory_may_lie_anywhere() {
    let folder = Folder::new().expect("a folder");
    let library = made(&folder.path().join("library.so"), LIBRARY, &["-shared", "-fPIC"]);
    let program = made(&folder.path().join("program"), PROGRAM, &[]);
    let (Some(library), Some(program)) = (library, program) else {
        eprintln!("skipped: there is no g++ that makes programs");
        return;
    };
    let Some((output, said)) = watched(Command::new(program).arg(library)) else { return };
    assert!(output.status.success(), "{said}");
    if said.contains("elsewhere") {
        eprintln!("skipped: this system puts threads' own memory elsewhere");
    }
}

fn made(path: &Path, source: &str, options: &[&str]) -> Option<PathBuf> {
    let text = path.with_extension("cpp");
    fs::write(&text, source).expect("a file");
    let made = Command::new("g++").args(options).arg(&text).args(["-ldl", "-o"]).arg(path).status();
    made.is_ok_and(|status| status.success()).then(|| path.to_owned())
}
