//! A process that is a copy of this one and does nothing but wait for its end.

use std::io::{self, PipeReader};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicI32, Ordering};

/// The files of a guard on a kernel that cannot close all of them at once.
const FILES: i32 = 1024;

/// So many numbers, all zero, that are the same for this process and copies of it, for good.
pub(super) fn shared_numbers(count: usize) -> io::Result<&'static [AtomicI32]> {
    let bytes = count.max(1) * size_of::<AtomicI32>();
    let (access, kind) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    // SAFETY: the mapping is fresh, begins at a page, is zeroed and never goes; zero is a valid
    // number, and whoever shares it changes it as a whole.
    unsafe {
        let start = libc::mmap(std::ptr::null_mut(), bytes, access, kind, -1, 0);
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(std::slice::from_raw_parts(start.cast(), count))
    }
}

/// Make the guard, which waits until `end` says that nobody has its other end any more.
pub(super) fn fork_guard(end: &PipeReader, groups: &[AtomicI32]) -> io::Result<i32> {
    let end = end.as_raw_fd();
    // SAFETY: the copy has one thread, whatever the others were doing, and makes system calls only.
    match unsafe { libc::fork() } {
        0 => stand_guard(end, groups),
        -1 => Err(io::Error::last_os_error()),
        process => Ok(process),
    }
}

/// The guard's life. Nothing here allocates, takes a lock or panics.
fn stand_guard(end: i32, groups: &[AtomicI32]) -> ! {
    // SAFETY: plain system calls; the name ends in a zero, and the byte lives on this stack.
    // Groups are above 1, of which the negative would mean others than a group.
    unsafe {
        // What is sent to the launcher's group, from a terminal say, is not meant for us.
        libc::setpgid(0, 0);
        libc::prctl(libc::PR_SET_NAME, c"brigade-guard".as_ptr());
        // Whoever waits for the end of what the launcher prints does not wait for us.
        libc::dup2(end, 0);
        if libc::syscall(libc::SYS_close_range, 1, u32::MAX, 0) != 0 {
            for file in 1..FILES {
                libc::close(file);
            }
        }
        let mut byte = 0_u8;
        loop {
            match libc::read(0, (&raw mut byte).cast(), 1) {
                -1 if *libc::__errno_location() == libc::EINTR => {}
                0 => break,
                _ => libc::_exit(1),
            }
        }
        for group in groups {
            let group = group.load(Ordering::Acquire);
            if group > 1 {
                libc::kill(-group, libc::SIGKILL);
            }
        }
        libc::_exit(0)
    }
}

/// End the guard without its having done anything.
pub(super) fn end_guard(process: i32) {
    // SAFETY: it is a child that was not waited for, so the number is its own; no result is asked
    // for. A guard that somebody has stopped ends by this, too.
    unsafe {
        libc::kill(process, libc::SIGKILL);
        libc::waitpid(process, std::ptr::null_mut(), 0);
    }
}
