//! A program that forks: what its child drops is its own still.

use brigade_comm::{Op, WindowSize};

use crate::world::{each_rank, over};

#[test]
fn a_child_that_drops_what_its_parent_has_takes_nothing_away() {
    for transport in ["shm", "tcp"] {
        each_rank(2, &over(transport), move |member| {
            let window = member.window(WindowSize { bytes: 64, signals: 1 }).expect("a window");
            member.barrier().expect("all have one");
            // SAFETY: the child drops what only this thread uses, and ends without more ado. The
            // system's allocator is ready for that where other threads hold it.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: as above; it must not wait for ever for a thread that it has not.
                unsafe { libc::alarm(20) };
                drop(window);
                drop(member);
                // SAFETY: as above.
                unsafe { libc::_exit(7) };
            }
            let mut status = 0;
            // SAFETY: a child of ours that nobody else waits for.
            let ended = unsafe { libc::waitpid(child, &mut status, 0) };
            assert_eq!((ended, libc::WIFEXITED(status)), (child, true), "{transport}: {status:#x}");
            assert_eq!(libc::WEXITSTATUS(status), 7, "{transport}");
            // Longer than a ring, into a window, and in a group that is joined anew.
            let mut data = vec![1.5_f32; 1 << 20];
            member.all_reduce(&mut data, Op::Sum).expect("all are there");
            assert!(data.iter().all(|sum| *sum == 3.0), "{transport}");
            window.signal(1 - member.rank(), 0, 1).expect("it is there");
            window.wait(0, 1).expect("the other has signalled");
            let group = member.split(Some(0), 0).expect("a split").expect("a group");
            group.barrier().expect("all are there");
        });
    }
}
