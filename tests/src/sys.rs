//! What tests ask of the system for the commands that they start.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Have signals end the command that this test's own starter may have it ignore: a shell does so in
/// what it starts in the background, and `nohup` in all.
pub fn with_usual_signals(command: &mut Command) {
    let reset = || {
        for number in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            // SAFETY: this runs in the forked child, and `signal` is async-signal-safe; no handler
            // is set.
            if unsafe { libc::signal(number, libc::SIG_DFL) } == libc::SIG_ERR {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    };
    // SAFETY: `reset` allocates nothing and takes no lock, as its own note says.
    unsafe {
        command.pre_exec(reset);
    }
}

/// Have the command, and whatever it starts, find no file system that has files without names.
/// Starting it fails where the system cannot refuse its own calls.
pub fn without_unnamed_files(command: &mut Command) {
    const TMPFILE: u32 = (libc::O_TMPFILE & !libc::O_DIRECTORY) as u32;
    /// Where a call's number and the low half of its third argument lie in what a filter sees.
    const NUMBER: u32 = 0;
    const FLAGS: u32 = if cfg!(target_endian = "little") { 32 } else { 36 };
    let op = |code: u32, k: u32, jt: u8, jf: u8| libc::sock_filter { code: code as u16, jt, jf, k };
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let (jump, end) = (libc::BPF_JMP | libc::BPF_K, libc::BPF_RET | libc::BPF_K);
    let filter = [
        op(load, NUMBER, 0, 0),
        op(jump | libc::BPF_JEQ, libc::SYS_openat as u32, 0, 3),
        op(load, FLAGS, 0, 0),
        op(jump | libc::BPF_JSET, TMPFILE, 0, 1),
        op(end, libc::SECCOMP_RET_ERRNO | libc::EOPNOTSUPP as u32, 0, 0),
        op(end, libc::SECCOMP_RET_ALLOW, 0, 0),
    ];
    let refuse = move || {
        let program =
            libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
        // SAFETY: this runs in the forked child, where only async-signal-safe calls are allowed:
        // prctl is a plain system call, which reads the program and the filter that live on.
        let is_done = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) == 0
        };
        if is_done { Ok(()) } else { Err(io::Error::last_os_error()) }
    };
    // SAFETY: `refuse` allocates nothing and takes no lock, as its own note says.
    unsafe {
        command.pre_exec(refuse);
    }
}
