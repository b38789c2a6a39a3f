//! Somebody between a rank and its root, who may say what he likes and knows no secret.

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use brigade_transports::seal::Offer;

use super::*;
use crate::bootstrap::Root;
use crate::control::Member;
use crate::control::decoder::Decoder;
use crate::control::frame::STRANGER_BYTES_MAX;

const SECRET: [u8; 32] = [7; 32];

fn hear(stream: &mut TcpStream, decoder: &mut Decoder) -> Option<Frame> {
    loop {
        if let Some(frame) = decoder.next().expect("frames of ours") {
            return Some(frame);
        }
        if decoder.read(stream).expect("it answers in time") == 0 {
            return None;
        }
    }
}

/// What the root says to one who has proved the secret and goes on with `frame`, in the open.
fn answer_to(frame: &Frame, encrypt: bool) -> Option<Frame> {
    let (mut stream, mut decoder, _, _root) = proven(encrypt);
    stream.write_all(&frame.encode()).unwrap();
    hear(&mut stream, &mut decoder)
}

/// One who has proved the secret.
fn proven(encrypt: bool) -> (TcpStream, Decoder, Nonces, Root) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let served = Root::serve(listener, SECRET, None).unwrap();
    let mut decoder = Decoder::new(RANK_BYTES_MAX + STRANGER_BYTES_MAX);
    let joining = [1; 32];
    let hello = Frame::Hello { version: VERSION, nonce: joining };
    stream.write_all(&hello.encode()).unwrap();
    let Some(Frame::Challenge { nonce: root }) = hear(&mut stream, &mut decoder) else {
        panic!("no challenge");
    };
    let nonces = Nonces { joining, root };
    let mac = proof::show(&SECRET, Side::Joining { encrypt }, &nonces);
    stream.write_all(&Frame::Proof { mac, encrypt }.encode()).unwrap();
    let proven = hear(&mut stream, &mut decoder);
    assert!(matches!(proven, Some(Frame::Proven { .. })), "{proven:?}");
    (stream, decoder, nonces, served)
}

/// A rank that is alone asks for its seat.
fn join() -> Join {
    Join {
        rank: 0,
        ranks: 1,
        patience_ms: 20_000,
        report_ms: u32::MAX,
        silence_ms: 10_000,
        process: [3; 16],
        member: Member { host: "h".into(), pid: 1 },
        card: vec![1, 2, 3],
    }
}

#[test]
fn behind_an_honest_key_nothing_is_heard_in_the_open_either() {
    for at_once in [true, false] {
        let (mut stream, mut decoder, nonces, _root) = proven(true);
        let (offer, share) = Offer::new(&SECRET, &nonces.context()).unwrap();
        let (share, open) = (Frame::Share { share }.encode(), Frame::Join(join()).encode());
        if at_once {
            stream.write_all(&[share, open].concat()).unwrap();
        } else {
            stream.write_all(&share).unwrap();
            let Some(Frame::Share { share }) = hear(&mut stream, &mut decoder) else {
                panic!("no key");
            };
            decoder.open_with(offer.conclude(&share).unwrap().opener).unwrap();
            stream.write_all(&open).unwrap();
        }
        // It hangs up, and may leave what it has not read unread.
        let end = std::iter::from_fn(|| match decoder.next() {
            Ok(Some(frame)) => Some(matches!(frame, Frame::Table(_))),
            _ => decoder.read(&mut stream).ok().filter(|count| *count > 0).map(|_| false),
        });
        assert!(end.into_iter().all(|is_seated| !is_seated), "at once: {at_once}");
    }
}

#[test]
fn who_encrypts_gets_no_seat_and_no_hearing_in_the_open() {
    let member = Member { host: "h".into(), pid: 1 };
    let (process, why, join) = ([3; 16], "none".to_owned(), Frame::Join(join()));
    let unable = Frame::Unable(Unable { rank: 0, ranks: 2, process, member, why });
    assert!(matches!(answer_to(&join, false), Some(Frame::Table(_))));
    assert_eq!(answer_to(&unable, false), Some(Frame::Noted));
    assert_eq!(answer_to(&join, true), None);
    assert_eq!(answer_to(&unable, true), None);
    // Nor does one who does not encrypt get keys.
    assert_eq!(answer_to(&Frame::Share { share: [0; SHARE_BYTES] }, false), None);
}
