//! Processor time used, cores, room on drives, and children that die with their parent: what the
//! standard library does not have.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

/// Whose processor time is counted.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cpu {
    /// The whole process with all its threads: right when a rank is a process.
    Process,
    /// The calling thread: right when a rank is a thread.
    Thread,
}

impl Cpu {
    /// Processor time used so far.
    pub(crate) fn used(self) -> Duration {
        let clock = match self {
            Self::Process => libc::CLOCK_PROCESS_CPUTIME_ID,
            Self::Thread => libc::CLOCK_THREAD_CPUTIME_ID,
        };
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the pointer is to a live value of the type that clock_gettime fills.
        let code = unsafe { libc::clock_gettime(clock, &mut time) };
        assert_eq!(code, 0, "both clocks exist on every Linux");
        Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec.try_into().unwrap_or(0))
    }
}

/// Words of 64 bits, with one for each core that the system can number here.
pub(crate) const CORE_WORDS: usize = 16;

/// The cores that this thread may run on, a bit for each; none where the system does not say.
pub(crate) fn cores() -> [u64; CORE_WORDS] {
    let mut words = [0; CORE_WORDS];
    // SAFETY: the system writes at most as many bytes as it is told there are, and any are words.
    let code =
        unsafe { libc::sched_getaffinity(0, size_of_val(&words), words.as_mut_ptr().cast()) };
    if code == 0 { words } else { [0; CORE_WORDS] }
}

/// Bytes that this user may still write to the file system of `folder`.
pub fn free_bytes(folder: &std::path::Path) -> Option<u64> {
    let path = std::ffi::CString::new(folder.as_os_str().as_encoded_bytes()).ok()?;
    // SAFETY: all fields are numbers, for which zeros are values.
    let mut found: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path ends with a zero, and `found` is a live value of the type that is filled.
    let code = unsafe { libc::statvfs(path.as_ptr(), &mut found) };
    (code == 0).then(|| found.f_bavail.saturating_mul(found.f_frsize))
}

/// Have the system kill the child when the calling thread ends, however it ends. It stays in our
/// process group, so that a terminal interrupts and stops it with us.
pub(crate) fn die_with_parent(command: &mut Command) {
    let parent = std::process::id();
    let prepare = move || {
        // SAFETY: this runs in the forked child, where only async-signal-safe calls are allowed:
        // both are plain system calls that touch no memory.
        let (code, now) = unsafe {
            (libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL), libc::getppid().cast_unsigned())
        };
        match (code, now) {
            (0, now) if now == parent => Ok(()),
            // The parent died before the system knew that the child is to follow it.
            (0, _) => Err(io::Error::from_raw_os_error(libc::ESRCH)),
            _ => Err(io::Error::last_os_error()),
        }
    };
    // SAFETY: `prepare` allocates nothing and takes no lock, as its own note says.
    unsafe {
        command.pre_exec(prepare);
    }
}

/// The name of the processor, as the system gives it.
pub(crate) fn processor() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    name.map_or_else(|| String::from("unknown processor"), |(_, name)| name.trim().to_owned())
}
