//! What a child made by `fork` must not have of its parent.
//!
//! A connection whose process is killed ends when the last descriptor of it is closed. A child that
//! goes on would keep its parent's open, and nobody would hear that the parent is gone.

use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Once;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize};

/// Descriptors have smaller numbers than this, where nobody has raised the kernel's default.
const FDS_MAX: usize = 1 << 20;
const WORD_BITS: usize = u64::BITS as usize;

/// A bit for each descriptor that children shall not have.
static OURS: [AtomicU64; FDS_MAX / WORD_BITS] = [const { AtomicU64::new(0) }; FDS_MAX / WORD_BITS];
/// How many words of these have ever been used.
static WORDS: AtomicUsize = AtomicUsize::new(0);
/// How often this process was made by a fork since there was anything to keep from children.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Something open that belongs to this process alone. In a child made by `fork` its descriptor
/// names something harmless, so that who closes it there closes nothing else. A thread that forks
/// while another one makes this may still hand it down.
#[derive(Debug)]
pub struct OursAlone<T: AsFd>(T);

impl<T: AsFd> OursAlone<T> {
    /// Keep it from children.
    pub fn new(it: T) -> Self {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            // SAFETY: a function that does what is allowed in a child, and no other ones. Where it
            // cannot be named children keep what they would have had without it.
            let _code = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        });
        if let Some((word, bit)) = place(it.as_fd()) {
            WORDS.fetch_max(word + 1, Relaxed);
            OURS[word].fetch_or(bit, Relaxed);
        }
        Self(it)
    }
}

impl<T: AsFd> Drop for OursAlone<T> {
    fn drop(&mut self) {
        if let Some((word, bit)) = place(self.0.as_fd()) {
            OURS[word].fetch_and(!bit, Relaxed);
        }
    }
}

impl<T: AsFd> Deref for OursAlone<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: AsFd> DerefMut for OursAlone<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

/// Changes whenever this process turns out to be another one than that which made the first
/// [`OursAlone`].
pub(crate) fn forks() -> u32 {
    FORKS.load(Relaxed)
}

fn place(fd: BorrowedFd<'_>) -> Option<(usize, u64)> {
    let fd = fd.as_raw_fd() as usize;
    (fd < FDS_MAX).then_some((fd / WORD_BITS, 1 << (fd % WORD_BITS)))
}

/// What runs in a child before its fork returns.
extern "C" fn in_child() {
    FORKS.fetch_add(1, Relaxed);
    // SAFETY: no pointers, and a call that is allowed here.
    let harmless = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    for (index, word) in OURS.iter().enumerate().take(WORDS.load(Relaxed)) {
        let mut bits = word.swap(0, Relaxed);
        while bits != 0 {
            let fd = (index * WORD_BITS) as i32 + bits.trailing_zeros() as i32;
            // SAFETY: no pointers, and a call that is allowed here. The number goes on to name
            // something. Without a free descriptor the child keeps what it has.
            unsafe { libc::dup3(harmless, fd, libc::O_CLOEXEC) };
            bits &= bits - 1;
        }
    }
    // SAFETY: as above; nobody else knows it.
    unsafe { libc::close(harmless) };
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_child_keeps_no_connection_open() {
        let (ours, mut other) = UnixStream::pair().unwrap();
        let (kept, _open) = UnixStream::pair().unwrap();
        let ours = OursAlone::new(ours);
        // SAFETY: the child makes only calls that are allowed after a fork in a program with
        // threads.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: as above.
            unsafe {
                libc::pause();
                libc::_exit(0);
            }
        }
        assert!(child > 0);
        drop((ours, kept));
        other.set_read_timeout(Some(std::time::Duration::from_secs(20))).unwrap();
        let ended = other.read(&mut [0]);
        // SAFETY: a child of ours that has not been waited for.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, std::ptr::null_mut(), 0);
        }
        assert_eq!(ended.unwrap(), 0, "the child has it open");
    }

    #[test]
    fn what_is_closed_is_forgotten() {
        let (one, _other) = UnixStream::pair().unwrap();
        let (word, bit) = place(one.as_fd()).unwrap();
        let one = OursAlone::new(one);
        assert_ne!(OURS[word].load(Relaxed) & bit, 0);
        drop(one);
        assert_eq!(OURS[word].load(Relaxed) & bit, 0);
    }
}
