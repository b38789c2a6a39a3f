//! Bytes from those who do not belong.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use brigade_comm::bootstrap::UniqueId;
use brigade_comm::launch::RootSpec;

use super::check;

#[test]
fn strangers_do_not_keep_a_world_from_joining() {
    let seed = 0x5eed_0001_u64;
    println!("seed {seed:#x}");
    let mut random = seed;
    let (id, _root) = UniqueId::create(Some(IpAddr::from([127, 0, 0, 1]))).unwrap();
    let address = id.addresses()[0];
    // Silent, talkative and hasty ones.
    let mut strangers: Vec<TcpStream> = Vec::new();
    for index in 0..1500_u64 {
        let Ok(mut stream) = TcpStream::connect(address) else { break };
        let mut bytes = vec![0; (index % 97) as usize];
        for byte in &mut bytes {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(index | 1);
            *byte = (random >> 56) as u8;
        }
        if index % 5 == 0 {
            // A length that would be honest about a flood.
            bytes.splice(..0, [0xff, 0xff, 0xff, 0x7f]);
        }
        // The root may have hung up on this one already, which is its right.
        let _sent = stream.write_all(&bytes);
        if index % 3 != 0 {
            strangers.push(stream);
        }
        if strangers.len() > 200 {
            strangers.drain(..100);
        }
    }
    let start = Instant::now();
    check(4, &RootSpec::Id(id));
    println!("joined in {:?} beside {} strangers", start.elapsed(), strangers.len());
    assert!(start.elapsed() < Duration::from_secs(2));
}

#[test]
fn another_version_is_told_which_one_we_speak() {
    let (id, _root) = UniqueId::create(Some(IpAddr::from([127, 0, 0, 1]))).unwrap();
    let mut stream = TcpStream::connect(id.addresses()[0]).unwrap();
    // Length 43, kind 1, magic, version 99, a nonce.
    stream.write_all(b"\x2b\0\0\0\x01brigroot\x63\0").unwrap();
    stream.write_all(&[5; 32]).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    // A refusal (kind 7) because of the version (5).
    assert_eq!(&answer[4..6], &[7, 5]);
    let said = String::from_utf8_lossy(&answer);
    assert!(said.contains("the root speaks version ") && said.ends_with(", not 99"), "{said}");
}

#[test]
fn hostile_ids_are_refused() {
    let (id, _root) = UniqueId::create(None).unwrap();
    let good = id.to_bytes();
    assert_eq!(UniqueId::from_bytes(good).unwrap(), id);
    assert!(!format!("{id:?}").contains(&id.to_string()[18..82]), "the secret is not printed");
    for (at, byte) in [(0, b'b'), (7, 2), (8, 0), (8, 13), (8, 255), (41, 5), (127, 1)] {
        let mut bad = good;
        bad[at] = byte;
        assert!(UniqueId::from_bytes(bad).is_err(), "byte {at} = {byte}");
    }
    for text in ["", "00", &id.to_string()[1..], &id.to_string().replace('4', "g")] {
        assert!(text.parse::<UniqueId>().is_err(), "{text:?}");
    }
    let addresses = id.addresses();
    assert!(addresses.contains(&SocketAddr::from(([127, 0, 0, 1], addresses[0].port()))));
}
