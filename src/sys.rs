//! What a launcher needs of the system and the standard library does not offer: children that die
//! with their parent and keep to some cores, signals to process groups, and waiting for
//! signals with a timeout; the size of a terminal; and what drivers read from the environment,
//! before they do.
//!
//! Nothing here knows what a rank is.

use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use brigade_transports::Cores;

/// Whether whoever started us has left it to the system to end us at a file that gets too long.
static ENDS_AT_LONG_FILES: AtomicBool = AtomicBool::new(false);

/// Have a write beyond the limit for files (`ulimit -f`) be an error like any other, in place of a
/// signal that would end this process without a word and leave what it has begun to write. For the
/// start of a program; children that [`die_with_parent`] get what this one was started with.
pub(crate) fn outlive_long_files() {
    // SAFETY: signal takes two integers, and neither action runs code of ours.
    let before = unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    ENDS_AT_LONG_FILES.store(before == libc::SIG_DFL, Ordering::Relaxed);
}

/// Have the system tell of children that have ended, and keep them until they are asked how:
/// whoever started us may have it do neither. For the start of a program.
pub(crate) fn hear_of_children() {
    // SAFETY: signal takes two integers, and the default action runs no code of ours.
    unsafe {
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
    }
}

/// Have the system kill the child when the calling thread ends, however it ends. The child gets a
/// process group of its own and starts with no signal blocked.
pub(crate) fn die_with_parent(command: &mut Command) {
    let parent = std::process::id();
    let ends_at_long_files = ENDS_AT_LONG_FILES.load(Ordering::Relaxed);
    let prepare = move || {
        // SAFETY: this runs in the forked child, where only async-signal-safe calls are allowed:
        // signal, prctl, getppid, sigemptyset and sigprocmask are plain system calls, and the set
        // lives on this stack.
        unsafe {
            if ends_at_long_files {
                libc::signal(libc::SIGXFSZ, libc::SIG_DFL);
            }
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                return Err(io::Error::last_os_error());
            }
            // The parent may have died before the line above took effect.
            if libc::getppid().cast_unsigned() != parent {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
            let mut none: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut none);
            if libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut()) != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    };
    command.process_group(0);
    // SAFETY: `prepare` allocates nothing and takes no lock, as its own note says.
    unsafe {
        command.pre_exec(prepare);
    }
}

/// Have the child run on these cores only.
pub(crate) fn bind(command: &mut Command, cores: Cores) {
    // SAFETY: this runs in the forked child, and allocates nothing and takes no lock.
    unsafe {
        command.pre_exec(move || cores.bind_this_thread());
    }
}

/// Send `signal` to the process group that `leader` leads. A group that is gone already is fine.
pub(crate) fn signal_group(leader: u32, signal: i32) -> io::Result<()> {
    let group = i32::try_from(leader).map_err(io::Error::other)?;
    assert!(group > 1, "a group of {group} would mean every process of this user");
    // SAFETY: kill takes two integers and touches no memory of ours.
    let code = unsafe { libc::kill(-group, signal) };
    match code {
        0 => Ok(()),
        _ => match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
            error => Err(error),
        },
    }
}

/// Ask CUDA for as many queues as it has, unless somebody has asked for a number: streams of ranks
/// that share a queue may stand still, each waiting for a call behind another one's. For the start
/// of a program: where there are threads already, nothing is asked.
pub(crate) fn ask_for_queues() {
    const NAME: &str = "CUDA_DEVICE_MAX_CONNECTIONS";
    let is_alone = std::fs::read_dir("/proc/self/task").is_ok_and(|threads| threads.count() == 1);
    if is_alone && std::env::var_os(NAME).is_none() {
        // SAFETY: this is the only thread, so nobody reads the environment meanwhile.
        unsafe { std::env::set_var(NAME, "32") };
    }
}

/// Have the system end this process, without a word, when it writes to a pipe that nobody reads any
/// more. The standard library has turned that into an error, at which `println!` panics.
pub(crate) fn end_with_reader() {
    // SAFETY: signal takes two integers, and the default action runs no code of ours.
    unsafe {
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
    }
}

/// Whether standard output is a pipe that nobody reads any more.
pub(crate) fn is_output_unread() -> bool {
    // No event is asked for: what is told of a pipe's writing end unasked is that its reader is
    // gone.
    let mut output = libc::pollfd { fd: libc::STDOUT_FILENO, events: 0, revents: 0 };
    // SAFETY: the pointer is to one live value, as is said, and no time is waited.
    let ready = unsafe { libc::poll(&mut output, 1, 0) };
    ready == 1 && output.revents & libc::POLLERR != 0
}

/// The signals a launcher waits for: a child changed, or the user wants an end.
pub(crate) struct Signals {
    set: libc::sigset_t,
}

impl Signals {
    /// Hold these signals back from now on, in this thread and the threads it starts, so that
    /// [`Signals::wait`] finds them. Call it before anything is started. What whoever started us
    /// has us ignore (`nohup`) stays ignored: held back, it would be found.
    pub(crate) fn hold() -> io::Result<Self> {
        // SAFETY: a signal set is a plain array of bits, for which zero is a valid value, and so is
        // an action, in which a null pointer is the default; the set is initialised by sigemptyset
        // before it is used, and every pointer is to this stack.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            libc::sigaddset(&mut set, libc::SIGCHLD);
            for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
                let mut action: libc::sigaction = std::mem::zeroed();
                if libc::sigaction(signal, std::ptr::null(), &mut action) != 0 {
                    return Err(io::Error::last_os_error());
                }
                if action.sa_sigaction != libc::SIG_IGN {
                    libc::sigaddset(&mut set, signal);
                }
            }
            match libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) {
                0 => Ok(Self { set }),
                errno => Err(io::Error::from_raw_os_error(errno)),
            }
        }
    }

    /// The next signal, or `None` when none came for `timeout`.
    pub(crate) fn wait(&self, timeout: Duration) -> Option<i32> {
        let limit = libc::timespec {
            tv_sec: timeout.as_secs().min(3600).cast_signed(),
            tv_nsec: i64::from(timeout.subsec_nanos()),
        };
        // SAFETY: both pointers are to live values, and a null `info` is allowed.
        let signal = unsafe { libc::sigtimedwait(&self.set, std::ptr::null_mut(), &limit) };
        (signal > 0).then_some(signal)
    }
}

/// End this process as this signal does to those who do not hold it back, so that whoever waits for
/// it sees why.
pub(crate) fn end_by(signal: i32) -> ! {
    // SAFETY: the set is a plain array of bits on this stack, initialised by sigemptyset; the
    // default action of a signal runs no code of ours.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, signal);
        libc::signal(signal, libc::SIG_DFL);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut());
        libc::raise(signal);
    }
    // What shells say of it, should it not have ended us.
    std::process::exit(128 + signal)
}

/// Wait until a child has ended, and leave it there to be asked how: until then its number, and
/// that of its group, are nobody else's.
pub(crate) fn wait_for_end(child: u32) -> io::Result<()> {
    look_for_end(child, 0).map(drop)
}

/// How a child has ended, if it has; it is left there likewise.
pub(crate) fn end_of(child: u32) -> io::Result<Option<ExitStatus>> {
    look_for_end(child, libc::WNOHANG)
}

fn look_for_end(child: u32, how: i32) -> io::Result<Option<ExitStatus>> {
    loop {
        // SAFETY: the pointer is to a live value of the type that waitid fills, for which zero is
        // valid; what it has filled in then is of a child that has ended, or still zero.
        let (code, pid, kind, status) = unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            let how = how | libc::WEXITED | libc::WNOWAIT;
            let code = libc::waitid(libc::P_PID, child, &mut info, how);
            (code, info.si_pid(), info.si_code, info.si_status())
        };
        if code == 0 {
            let raw = match kind {
                libc::CLD_EXITED => status << 8,
                libc::CLD_DUMPED => status | 0x80,
                _ => status,
            };
            return Ok((pid != 0).then(|| ExitStatus::from_raw(raw)));
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Whether anybody is left in the process group that `leader` led, who has ended and was not asked
/// how.
pub(crate) fn has_left_anybody(leader: u32) -> bool {
    let Ok(processes) = std::fs::read_dir("/proc") else { return false };
    let is_of_group = |stat: &str| {
        // Behind the name, which may hold anything: the state, the parent, the group.
        let (_, rest) = stat.rsplit_once(')')?;
        let mut words = rest.split_whitespace();
        let (state, group) = (words.next()?, words.nth(1)?);
        Some(group.parse() == Ok(leader) && !matches!(state, "Z" | "X"))
    };
    processes.flatten().any(|process| {
        let stat = std::fs::read_to_string(process.path().join("stat"));
        stat.is_ok_and(|stat| is_of_group(&stat).unwrap_or(false))
    })
}

/// The name of a signal, for messages.
pub(crate) fn signal_name(signal: i32) -> &'static str {
    match signal {
        libc::SIGHUP => "SIGHUP",
        libc::SIGINT => "SIGINT",
        libc::SIGQUIT => "SIGQUIT",
        libc::SIGILL => "SIGILL",
        libc::SIGTRAP => "SIGTRAP",
        libc::SIGABRT => "SIGABRT",
        libc::SIGBUS => "SIGBUS",
        libc::SIGFPE => "SIGFPE",
        libc::SIGKILL => "SIGKILL",
        libc::SIGUSR1 => "SIGUSR1",
        libc::SIGSEGV => "SIGSEGV",
        libc::SIGUSR2 => "SIGUSR2",
        libc::SIGPIPE => "SIGPIPE",
        libc::SIGALRM => "SIGALRM",
        libc::SIGTERM => "SIGTERM",
        libc::SIGXCPU => "SIGXCPU",
        libc::SIGXFSZ => "SIGXFSZ",
        libc::SIGSYS => "SIGSYS",
        _ => "a signal of the system",
    }
}

/// Whether standard output, error or input is a terminal that knows its size.
pub(crate) fn is_terminal_with_width() -> bool {
    [libc::STDOUT_FILENO, libc::STDERR_FILENO, libc::STDIN_FILENO].into_iter().any(|file| {
        let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: the pointer is to a live value of the type that this request fills.
        let code = unsafe { libc::ioctl(file, libc::TIOCGWINSZ, &raw mut size) };
        code == 0 && size.ws_row > 0 && size.ws_col > 0
    })
}

/// The limit on memory that may be locked in place, in bytes; `None` when there is no limit.
pub(crate) fn memory_lock_limit() -> io::Result<Option<u64>> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the pointer is to a live value of the type that getrlimit fills.
    if unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur))
}

/// The names and addresses of the network interfaces that are up, a line for each.
pub(crate) fn interfaces() -> io::Result<Vec<(String, std::net::IpAddr)>> {
    let mut list: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: getifaddrs stores a list that is ours until freeifaddrs.
    if unsafe { libc::getifaddrs(&mut list) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut found = Vec::new();
    let mut at = list;
    while !at.is_null() {
        // SAFETY: `at` is an entry of the list, which lives until the call of freeifaddrs below.
        let entry = unsafe { &*at };
        let up = entry.ifa_flags & libc::IFF_UP.cast_unsigned() != 0;
        if up && let Some(address) = ip_address(entry.ifa_addr) {
            // SAFETY: the name is a C string that lives as long as its entry.
            let name = unsafe { std::ffi::CStr::from_ptr(entry.ifa_name) };
            found.push((name.to_string_lossy().into_owned(), address));
        }
        at = entry.ifa_next;
    }
    // SAFETY: `list` came from getifaddrs, and no reference into it is left.
    unsafe { libc::freeifaddrs(list) };
    Ok(found)
}

/// The IP address behind an entry of the interface list, if it is one.
fn ip_address(address: *const libc::sockaddr) -> Option<std::net::IpAddr> {
    if address.is_null() {
        return None;
    }
    // SAFETY: the system hands out an address of the length that its family says, and the family
    // is looked at before more than the family is read; reads are unaligned because the list packs
    // entries as it likes.
    unsafe {
        match i32::from(address.cast::<libc::sa_family_t>().read_unaligned()) {
            libc::AF_INET => {
                let v4 = address.cast::<libc::sockaddr_in>().read_unaligned();
                Some(std::net::Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr)).into())
            }
            libc::AF_INET6 => {
                let v6 = address.cast::<libc::sockaddr_in6>().read_unaligned();
                Some(std::net::Ipv6Addr::from(v6.sin6_addr.s6_addr).into())
            }
            _ => None,
        }
    }
}
