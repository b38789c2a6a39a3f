//! One-sided access, where the transport has it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use brigade_transports::{LocalWindow, RecvWire, RemoteWindow, SendWire, TransportError};

use crate::flow::contents;
use crate::harness::{Make, Member, members};

/// One side of a window, and wires to agree on what is done with it.
struct Side<W> {
    member: Member,
    window: W,
    sender: Box<dyn SendWire>,
    receiver: Box<dyn RecvWire>,
}

impl<W> Side<W> {
    fn tell(&mut self) {
        self.member.send(&mut *self.sender, &[1]);
    }

    fn hear(&mut self) {
        self.member.receive(&mut *self.receiver, &mut [0]);
    }
}

/// Member 1 exposes a window, member 0 imports it. Does nothing where there are no windows.
fn window(
    make: Make,
    bytes: usize,
    signals: usize,
    owner: impl Fn(Side<LocalWindow>) + Sync,
    writer: impl Fn(Side<Box<dyn RemoteWindow>>) + Sync,
) {
    members(make, 2, |mut member| {
        if member.endpoint.windows().is_none() {
            return;
        }
        let other = 1 - member.me;
        let (mut sender, mut receiver) = (member.sender(other), member.receiver(other));
        if member.me == 1 {
            let windows = member.endpoint.windows().expect("asked before");
            let window = windows.expose(bytes, signals).expect("expose");
            let length = u64::try_from(window.descriptor.len()).expect("short");
            member.send(&mut *sender, &length.to_le_bytes());
            member.send(&mut *sender, &window.descriptor);
            owner(Side { window, sender, receiver, member });
        } else {
            let mut length = [0; 8];
            member.receive(&mut *receiver, &mut length);
            let mut descriptor = vec![0; u64::from_le_bytes(length) as usize];
            member.receive(&mut *receiver, &mut descriptor);
            let window = loop {
                let windows = member.endpoint.windows().expect("asked before");
                if let Some(window) = windows.import(1, &descriptor).expect("import") {
                    break window;
                }
                assert!(Instant::now() < member.deadline, "the window does not come");
                std::thread::sleep(Duration::from_millis(1));
            };
            assert_eq!(window.size(), (bytes, signals), "it is as large as it was exposed");
            writer(Side { window, sender, receiver, member });
        }
    });
}

/// Where and what round `round` writes.
fn written(round: u64, window_bytes: usize) -> (usize, Vec<u8>) {
    let mut rng = fastrand::Rng::with_seed(round);
    let bytes = rng.usize(0..=window_bytes);
    (rng.usize(0..=window_bytes - bytes), contents(round, 0, bytes))
}

pub(crate) fn puts_land_before_their_signal(make: Make) {
    const ROUNDS: u64 = 300;
    const BYTES: usize = 10_000;
    window(
        make,
        BYTES,
        3,
        |mut side| {
            let mut seen = vec![1; BYTES];
            side.window.memory.read(0, &mut seen);
            assert!(seen.iter().all(|&value| value == 0), "a window starts as zeroes");
            side.tell();
            for round in 1..=ROUNDS {
                let memory = &side.window.memory;
                let arrived = || Ok((memory.signal(2) == 3 * round).then_some(()));
                side.member.until("a signal", arrived).expect("no error");
                let (offset, bytes) = written(round, BYTES);
                side.window.memory.read(offset, &mut seen[..bytes.len()]);
                assert_eq!(seen[..bytes.len()], bytes, "round {round}");
                assert_eq!(side.window.memory.signal(0), 0, "another counter");
                side.tell();
            }
        },
        |mut side| {
            side.hear();
            for round in 1..=ROUNDS {
                let (offset, bytes) = written(round, BYTES);
                let (front, back) = bytes.split_at(bytes.len() / 2);
                side.window.put(offset, front).expect("put");
                side.window.put(offset + front.len(), back).expect("put");
                side.window.signal(2, 3).expect("signal");
                side.hear();
            }
        },
    );
}

pub(crate) fn a_window_is_read_from_afar(make: Make) {
    window(
        make,
        500,
        1,
        |mut side| {
            side.window.memory.write(100, &contents(600, 0, 300));
            side.tell();
            side.hear();
            let mut seen = [0; 10];
            side.window.memory.read(490, &mut seen);
            assert_eq!(seen, [8; 10], "a write whose answer was read is there");
            side.tell();
        },
        |mut side| {
            side.hear();
            let mut seen = [9; 302];
            side.window.get(99, &mut seen).expect("get");
            assert_eq!((seen[0], seen[301]), (0, 0));
            assert_eq!(seen[1..301], contents(600, 0, 300));
            side.window.put(490, &[8; 10]).expect("put");
            let mut seen = [0; 10];
            side.window.get(490, &mut seen).expect("get");
            assert_eq!(seen, [8; 10], "reads follow one's own writes");
            side.tell();
            side.hear();
        },
    );
}

pub(crate) fn a_signal_rings_the_owner(make: Make) {
    const ROUNDS: u64 = 200;
    window(
        make,
        0,
        1,
        |mut side| {
            for round in 1..=ROUNDS {
                while side.window.memory.signal(0) < round {
                    side.member.endpoint.doorbell().arm();
                    if side.window.memory.signal(0) >= round {
                        side.member.endpoint.doorbell().disarm();
                        break;
                    }
                    let start = Instant::now();
                    side.member.endpoint.doorbell().wait(Duration::from_secs(10)).expect("wait");
                    assert!(start.elapsed() < Duration::from_secs(4), "a ring was lost");
                    assert!(Instant::now() < side.member.deadline, "round {round}");
                }
                side.tell();
            }
        },
        |mut side| {
            for _ in 0..ROUNDS {
                side.window.signal(0, 1).expect("signal");
                side.hear();
            }
        },
    );
}

/// What reaches outside is refused, by an error or an assertion, and changes nothing.
pub(crate) fn the_bounds_of_a_window_hold(make: Make) {
    fn refused(attempt: impl FnOnce() -> Result<(), TransportError>) {
        let result = catch_unwind(AssertUnwindSafe(attempt));
        assert!(result.is_err(), "it reached outside of the window, or blames somebody for it");
    }
    window(
        make,
        200,
        2,
        |mut side| {
            side.hear();
            let mut seen = [1; 200];
            side.window.memory.read(0, &mut seen);
            assert_eq!(seen, [0; 200]);
            assert_eq!([0, 1].map(|index| side.window.memory.signal(index)), [0, 0]);
            let memory = &mut side.window.memory;
            refused(|| {
                memory.write(199, &[1; 2]);
                Ok(())
            });
            refused(|| {
                memory.read(201, &mut []);
                Ok(())
            });
            refused(|| {
                memory.signal(2);
                Ok(())
            });
            side.tell();
        },
        |mut side| {
            let window = &mut side.window;
            for offset in [195, 200, 201, usize::MAX - 2, usize::MAX] {
                refused(|| window.put(offset, &[7; 8]));
                refused(|| window.get(offset, &mut [7; 8]));
            }
            refused(|| window.put(0, &[7; 201]));
            refused(|| window.signal(2, 1));
            refused(|| window.signal(usize::MAX, 1));
            side.tell();
            side.hear();
        },
    );
}

pub(crate) fn garbage_is_no_window(make: Make) {
    members(make, 2, |mut member| {
        let other = 1 - member.me;
        let Some(windows) = member.endpoint.windows() else { return };
        let ours = windows.expose(64, 1).expect("expose").descriptor;
        let mut rng = fastrand::Rng::with_seed(601);
        for length in 0..100 {
            let noise: Vec<u8> = (0..length).map(|_| rng.u8(..)).collect();
            assert!(windows.import(other, &noise).is_err(), "seed 601, {length} bytes");
        }
        for length in 0..ours.len() {
            assert!(windows.import(other, &ours[..length]).is_err(), "{length} bytes");
        }
        let (mut sender, mut receiver) = (member.sender(other), member.receiver(other));
        member.send(&mut *sender, &[1]);
        member.receive(&mut *receiver, &mut [0]);
    });
}
