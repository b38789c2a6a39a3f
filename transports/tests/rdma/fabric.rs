//! The cables of the virtual machine: the one that it comes with (eth0 to eth1, devices rxe0 and
//! rxe1), and a second one made here (eth2 to eth3, rxe2 and rxe3), so that there is another path.
//!
//! The kernel takes a device away only after whoever has it open has closed it; its cable is gone
//! at once. So what removes one runs beside the test, and is waited for when the cables are mended.

use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// One test at a time has the cables.
static CABLES: Mutex<()> = Mutex::new(());

/// The cables, whole again when this is dropped.
pub(crate) struct Fabric {
    _alone: MutexGuard<'static, ()>,
    /// What is being removed.
    removals: Mutex<Vec<Child>>,
}

/// A cable, by its lower end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cable {
    First,
    Second,
}

impl Cable {
    /// The devices at its ends, as the transport's setting lists them.
    pub(crate) fn devices(self) -> &'static str {
        match self {
            Cable::First => "rxe0,rxe1",
            Cable::Second => "rxe2,rxe3",
        }
    }

    fn end(self) -> &'static str {
        match self {
            Cable::First => "eth1",
            Cable::Second => "eth3",
        }
    }
}

impl Fabric {
    /// Both cables, or `None`, with a sentence, where this is not the virtual machine: cutting the
    /// cables of other machines is nobody's wish.
    pub(crate) fn take() -> Option<Fabric> {
        if std::env::var_os("RDMA_VM").is_none() {
            eprintln!("nothing was tested: this is not the virtual machine of tests/rdma-vm");
            return None;
        }
        let alone = CABLES.lock().unwrap_or_else(PoisonError::into_inner);
        let fabric = Fabric { _alone: alone, removals: Mutex::default() };
        fabric.mend();
        Some(fabric)
    }

    pub(crate) fn cut(&self, cable: Cable) {
        run(&format!("ip link set {} down", cable.end()));
    }

    /// Let only packets of this length through.
    pub(crate) fn narrow(&self, cable: Cable, mtu: u32) {
        run(&format!("ip link set {} mtu {mtu}", cable.end()));
    }

    /// Join a cable again that was cut.
    pub(crate) fn join(&self, cable: Cable) {
        run(&format!("ip link set {} up", cable.end()));
    }

    /// Take the device at the lower end of a cable away, as if its card were pulled.
    pub(crate) fn remove(&self, cable: Cable) {
        self.cut(cable);
        let line = match cable {
            Cable::First => "rdma link delete rxe1",
            // With it go the cable and the device at the other end.
            Cable::Second => "ip link delete eth3",
        };
        let child = command(line).spawn().expect("the guest can start its tools");
        self.removals.lock().unwrap_or_else(PoisonError::into_inner).push(child);
    }

    /// Make both cables whole, and wait until the devices have noticed. Nobody may have a device
    /// open that was removed.
    pub(crate) fn mend(&self) {
        let deadline = Instant::now() + Duration::from_secs(10);
        for mut child in self.removals.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            while child.try_wait().expect("a child of ours").is_none() {
                assert!(Instant::now() < deadline, "a device is still open");
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        if !exists("net/eth2") {
            for line in [
                "ip link add eth2 mtu 4200 type veth peer name eth3 mtu 4200",
                "ip address add 10.78.0.1/24 dev eth2",
                "ip address add 10.78.0.2/24 dev eth3",
                "ip link set eth2 up",
            ] {
                run(line);
            }
        }
        for end in ["eth1", "eth3"] {
            // Starting a tool takes the emulated machine longer than all the rest.
            if of_interface(end, "mtu") != "4200" {
                run(&format!("ip link set {end} mtu 4200"));
            }
            if of_interface(end, "carrier") != "1" {
                run(&format!("ip link set {end} up"));
            }
        }
        for number in 0..4 {
            if !exists(&format!("infiniband/rxe{number}")) {
                run(&format!("rdma link add rxe{number} type rxe netdev eth{number}"));
            }
        }
        let is_active = |device: &str| {
            let file = format!("/sys/class/infiniband/{device}/ports/1/state");
            std::fs::read_to_string(file).is_ok_and(|state| state.contains("ACTIVE"))
        };
        while !["rxe0", "rxe1", "rxe2", "rxe3"].into_iter().all(is_active) {
            assert!(Instant::now() < deadline, "the devices do not come back");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.mend();
        }
    }
}

/// Bytes that have left an end of a cable so far.
pub(crate) fn sent_bytes(end: &str) -> u64 {
    of_interface(end, "statistics/tx_bytes").parse().expect("a number")
}

/// What the kernel says of an interface; nothing of one that is down.
fn of_interface(end: &str, what: &str) -> String {
    let text = std::fs::read_to_string(format!("/sys/class/net/{end}/{what}"));
    text.map(|text| text.trim().to_owned()).unwrap_or_default()
}

fn exists(what: &str) -> bool {
    std::path::Path::new("/sys/class").join(what).exists()
}

fn run(line: &str) {
    let status = command(line).status();
    assert!(status.is_ok_and(|status| status.success()), "{line}");
}

/// A line of the tools that the guest has under their usual names; busybox has lesser ones.
fn command(line: &str) -> Command {
    let mut words = line.split(' ');
    let tool = words.next().expect("a line has a first word");
    let folders = ["/usr/bin", "/bin", "/usr/sbin", "/sbin"];
    let found = folders.iter().map(|folder| format!("{folder}/{tool}"));
    let program = found.into_iter().find(|path| std::path::Path::new(path).exists());
    let mut command = Command::new(program.unwrap_or_else(|| panic!("the guest has no {tool}")));
    command.args(words).stdin(Stdio::null());
    command
}
