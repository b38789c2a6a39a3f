//! Every kind of frame there and back, and every kind of damage.

use brigade_transports::seal::{self, Offer, Seals};

use super::*;
use crate::control::frame::*;
use crate::control::{Refusal, Verdict, WaitingReport};

fn member(pid: u32) -> Member {
    Member { host: "höst".into(), pid }
}

/// One frame of each kind, in the order of their numbers.
fn one_of_each() -> Vec<Frame> {
    let mismatch = Verdict::Mismatch {
        rank_a: 1,
        call_a: "all-reduce".into(),
        rank_b: 2,
        call_b: "barrier".into(),
        group: 3,
        seq: u64::MAX,
    };
    let card = vec![7; CARD_BYTES_MAX];
    vec![
        Frame::Hello { version: VERSION, nonce: [1; 32] },
        Frame::Challenge { nonce: [2; 32] },
        Frame::Proof { mac: [3; 32], encrypt: true },
        Frame::Proven { mac: [4; 32] },
        Frame::Join(Join {
            rank: 1,
            ranks: 2,
            patience_ms: 3,
            report_ms: 4,
            silence_ms: 5,
            process: [5; 16],
            member: member(6),
            card: card.clone(),
        }),
        Frame::Table(Table {
            hub_rank: Some(1),
            nonce: [6; 32],
            seats: vec![(member(8), Vec::new()), (member(9), card)],
        }),
        Frame::Refused { kind: Refusal::RanksMissing, why: "rank 3".into() },
        Frame::Leave,
        Frame::Left { rank: 4 },
        Frame::LeaveGroup { group: 3 << 40, members: 5, why: "no files".into() },
        Frame::Hold { group: 5 << 40 },
        Frame::LetGo { group: 5 << 40 },
        Frame::LeftGroup { rank: 9, group: 3 << 40, why: String::new() },
        Frame::RootEnds,
        Frame::ReportLost { rank: 5, how: "reset".into() },
        Frame::ReportMismatch(mismatch.clone()),
        Frame::Abort { why: String::new() },
        Frame::Waiting(Waiting {
            group: 1,
            seq: 2,
            signature: [9; 32],
            past: vec![[8; 32], [7; 32]],
            description: "barrier".into(),
        }),
        Frame::GoesOn { group: 6 << 40 },
        Frame::Noted,
        Frame::Unable(Unable {
            rank: 1,
            ranks: 2,
            process: [5; 16],
            member: member(7),
            why: "no transport can be used".into(),
        }),
        Frame::Ask { token: 1, group: 2 },
        Frame::Answer {
            token: 1,
            reports: vec![WaitingReport { rank: 2, seq: 3, age_ms: 4, description: "x".into() }],
        },
        Frame::Verdict(mismatch),
        Frame::Verdict(Verdict::Lost { rank: 1, how: "killed".into() }),
        Frame::Verdict(Verdict::RootLost { how: "killed".into() }),
        Frame::Verdict(Verdict::Aborted { rank: 0, why: "nan".into() }),
    ]
}

fn decoder(bytes: &[u8]) -> Decoder {
    let mut decoder = Decoder::new(root_bytes_max(2));
    decoder.push(bytes);
    decoder
}

#[test]
fn every_frame_survives_the_way_whole_or_byte_by_byte() {
    let frames = one_of_each();
    let bytes: Vec<u8> = frames.iter().flat_map(Frame::encode).collect();
    for step in [1, 7, bytes.len()] {
        let mut decoder = decoder(&[]);
        let mut heard = Vec::new();
        for piece in bytes.chunks(step) {
            decoder.push(piece);
            while let Some(frame) = decoder.next().unwrap() {
                heard.push(frame);
            }
        }
        assert_eq!(heard, frames, "in pieces of {step}");
    }
}

#[test]
fn every_shortened_frame_is_incomplete_or_malformed_but_never_another_frame() {
    for frame in one_of_each() {
        let bytes = frame.encode();
        let cuts = (0..bytes.len()).filter(|cut| *cut < 200 || cut % 997 == 0);
        for cut in cuts {
            assert_eq!(decoder(&bytes[..cut]).next(), Ok(None), "{frame:?} at {cut}");
            if cut >= 4 {
                let mut lying = bytes[..cut].to_vec();
                lying[..4].copy_from_slice(&(cut as u32 - 4).to_le_bytes());
                assert!(decoder(&lying).next().is_err(), "{frame:?} claims to end at {cut}");
            }
        }
        let mut longer = bytes.clone();
        longer.push(0);
        longer[..4].copy_from_slice(&(bytes.len() as u32 - 3).to_le_bytes());
        assert!(decoder(&longer).next().is_err(), "{frame:?} with a byte too many");
    }
}

#[test]
fn damaged_frames_never_panic_and_never_hold_more_than_they_brought() {
    let seed = 0xB21_6ADE_u64;
    println!("seed {seed:#x}");
    let mut state = seed;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let frames: Vec<_> = one_of_each().iter().map(Frame::encode).collect();
    let mut refused = 0;
    for _ in 0..20_000 {
        let mut bytes = frames[random() as usize % frames.len()].clone();
        for _ in 0..1 + random() % 3 {
            let at = random() as usize % bytes.len().min(120);
            bytes[at] = random() as u8;
        }
        let mut decoder = decoder(&bytes);
        refused += u32::from(decoder.next().is_err());
        assert!(decoder.bytes.capacity() <= 2 * bytes.len() + 64);
    }
    assert!(refused > 5_000, "most damage is found: {refused}");
}

#[test]
fn lengths_and_counts_are_judged_before_anything_is_reserved() {
    let mut stranger = Decoder::new(STRANGER_BYTES_MAX);
    stranger.push(&u32::MAX.to_le_bytes());
    assert!(stranger.next().is_err());
    let mut table = Frame::Table(Table { hub_rank: None, nonce: [0; 32], seats: vec![] }).encode();
    let at = table.len() - 4;
    table[at..].copy_from_slice(&u32::MAX.to_le_bytes());
    assert_eq!(
        decoder(&table).next(),
        Err(Malformed { what: "a count beyond the end of its frame" })
    );
}

#[test]
fn long_texts_are_cut_between_characters() {
    let why = "ä".repeat(TEXT_BYTES_MAX);
    let heard = decoder(&Frame::Abort { why }.encode()).next().unwrap().unwrap();
    assert_eq!(heard, Frame::Abort { why: "ä".repeat(TEXT_BYTES_MAX / 2) });
}

/// Both ends of a connection that has just been sealed, and the share that says so.
fn sealed() -> (Frame, Seals, Seals) {
    let (offer, share) = Offer::new(&[7; 32], b"").unwrap();
    let (answer, root) = seal::accept(&[7; 32], b"", &share).unwrap();
    (Frame::Share { share }, offer.conclude(&answer).unwrap(), root)
}

#[test]
fn behind_a_share_only_what_is_sealed_is_heard() {
    let (share, mut rank, root) = sealed();
    let said = Frame::Abort { why: "sealed".into() };
    let mut decoder = decoder(&share.encode());
    assert_eq!(decoder.next().unwrap(), Some(share));
    decoder.open_with(root.opener).unwrap();
    let sealed = rank.sealer.seal_all(&said.encode());
    for mut byte in sealed.chunks(1) {
        assert_eq!(decoder.next(), Ok(None));
        decoder.read(&mut byte).unwrap();
    }
    assert_eq!(decoder.next(), Ok(Some(said.clone())));
    for _ in 0..2 {
        let outcome = decoder.read(&mut &said.encode()[..]).map_err(|error| error.kind());
        assert_eq!(outcome, Err(io::ErrorKind::InvalidData), "in the open");
    }
}

#[test]
fn what_has_come_behind_a_share_already_must_be_sealed_too() {
    let said = Frame::Abort { why: "sealed".into() };
    for honest in [true, false] {
        let (share, mut rank, root) = sealed();
        let behind = if honest { rank.sealer.seal_all(&said.encode()) } else { said.encode() };
        let mut decoder = decoder(&[share.encode(), behind].concat());
        assert_eq!(decoder.next().unwrap(), Some(share));
        assert_eq!(decoder.next(), Ok(None), "not before it can be opened");
        let opened = decoder.open_with(root.opener).map_err(|error| error.kind());
        let heard = decoder.next().unwrap();
        match honest {
            true => assert_eq!((opened, heard), (Ok(()), Some(said.clone()))),
            false => assert_eq!((opened, heard), (Err(io::ErrorKind::InvalidData), None)),
        }
    }
}

#[test]
fn frames_in_front_of_a_broken_record_are_heard() {
    let (share, mut rank, root) = sealed();
    let mut decoder = decoder(&share.encode());
    decoder.next().unwrap();
    decoder.open_with(root.opener).unwrap();
    let mut bytes = rank.sealer.seal_all(&Frame::Leave.encode());
    bytes.extend(rank.sealer.seal_all(&Frame::RootEnds.encode()));
    *bytes.last_mut().unwrap() ^= 1;
    assert_eq!(decoder.read(&mut &bytes[..]).unwrap(), bytes.len());
    assert_eq!(decoder.next(), Ok(Some(Frame::Leave)));
    assert_eq!(decoder.next(), Ok(None));
    assert!(decoder.read(&mut &[0; 8][..]).is_err());
}
