//! Somebody between a rank and its root, who may say what he likes and knows no secret.

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use brigade_transports::seal::{Offer, Sealer};

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

/// One who has agreed on keys, and what seals what he says.
fn sealed() -> (TcpStream, Decoder, Sealer, Root) {
    let (mut stream, mut decoder, nonces, root) = proven(true);
    let (offer, share) = Offer::new(&SECRET, &nonces.context()).unwrap();
    stream.write_all(&Frame::Share { share }.encode()).unwrap();
    let Some(Frame::Share { share }) = hear(&mut stream, &mut decoder) else {
        panic!("no key");
    };
    let seals = offer.conclude(&share).unwrap();
    decoder.open_with(seals.opener).unwrap();
    (stream, decoder, seals.sealer, root)
}

#[test]
fn behind_an_honest_key_what_is_sealed_is_heard_and_nothing_else() {
    let join = Frame::Join(join()).encode();
    let (mut stream, mut decoder, mut sealer, _root) = sealed();
    stream.write_all(&sealer.seal_all(&join)).unwrap();
    assert!(matches!(hear(&mut stream, &mut decoder), Some(Frame::Table(_))));

    let (mut stream, mut decoder, _, _root) = sealed();
    stream.write_all(&join).unwrap();
    assert_eq!(hear(&mut stream, &mut decoder), None);

    // In one piece with the key.
    let (mut stream, mut decoder, nonces, _root) = proven(true);
    let (_, share) = Offer::new(&SECRET, &nonces.context()).unwrap();
    stream.write_all(&[Frame::Share { share }.encode(), join].concat()).unwrap();
    assert_eq!(hear(&mut stream, &mut decoder), None);
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
