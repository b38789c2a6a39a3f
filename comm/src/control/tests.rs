//! A rank whose root does not read.

use std::net::TcpListener;

use super::frame::{PAST_CALLS_MAX, RANK_BYTES_MAX};
use super::*;

/// Rank 1 of a world, and the root's end of its connection.
fn rank_one() -> (Control, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let root = listener.accept().unwrap().0;
    (Control::start(1, 2, vec![0], stream, Decoder::new(RANK_BYTES_MAX), None).unwrap(), root)
}

fn stand(control: &Control, group: u64) -> bool {
    let past = vec![[7; 32]; PAST_CALLS_MAX - 1];
    control.report_waiting(group, 9, [8; 32], past, "#9 all-reduce(f32 x 1000, sum) by ring(2)")
}

#[test]
fn a_root_that_reads_nothing_is_not_gone_however_many_groups_stand_still() {
    let (control, mut root) = rank_one();
    let start = Instant::now();
    let told = (0..5000).filter(|group| stand(&control, *group)).count();
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    assert_eq!(told, UNREAD_MAX as usize);
    control.leave_group(3, 2);
    assert_eq!(control.await_verdict(Duration::from_millis(200)), None);

    // It goes on where it was: what was told is there, and so is room for more.
    let (mut decoder, mut heard) = (Decoder::new(RANK_BYTES_MAX), Vec::new());
    while heard.len() < told + 1 {
        decoder.read(&mut root).unwrap();
        heard.extend(std::iter::from_fn(|| decoder.next().unwrap()));
    }
    let groups = heard.iter().map_while(|frame| match frame {
        Frame::Waiting(said) => Some(said.group),
        _ => None,
    });
    assert!(groups.eq(0..told as u64));
    assert_eq!(heard[told], Frame::LeaveGroup { group: 3, members: 2, why: String::new() });
    root.write_all(&Frame::Noted.encode()).unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while !stand(&control, 5000) {
        assert!(Instant::now() < deadline, "there is room for one more");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(!stand(&control, 5001), "and for no more than that");
}
