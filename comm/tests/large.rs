//! Calls past 2 GiB, where lengths and offsets no longer fit 32 bits with a sign: two ranks, each
//! transport another collective, every byte looked at.

use std::time::{Duration, Instant};

use brigade_comm::{Buffers, Call, Communicator, Counts, Dtype, Op, Settings};
use brigade_schedule::Collective;

const BYTES: usize = (1 << 31) + 12_345;
/// Two buffers of `BYTES`, and room for everybody else.
const NEEDED_KB: u64 = 7 << 20;
/// What the test may have at its peak.
const PEAK_KB: u64 = 10 << 20;

/// Eight bytes that no other place has, of one of several patterns.
fn word(at: usize, salt: u64) -> u64 {
    (at as u64 + (salt << 40)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn fill(words: &mut [u64], salt: u64) {
    words.iter_mut().enumerate().for_each(|(at, place)| *place = word(at, salt));
}

/// Compare with what `wanted` says of each word, up to the last byte of the buffer.
fn check(words: &[u64], wanted: impl Fn(usize) -> u64, what: &str) {
    let (whole, tail) = words.split_at(BYTES / 8);
    let wrong = whole.iter().enumerate().position(|(at, &got)| got != wanted(at));
    assert_eq!(wrong.map(|at| at * 8), None, "{what}: the first wrong byte");
    let last = wanted(BYTES / 8).to_le_bytes();
    assert_eq!(tail[0].to_le_bytes()[..BYTES % 8], last[..BYTES % 8], "{what}: the last bytes");
}

/// A number of kilobytes from a file of the system.
fn kilobytes(file: &str, name: &str) -> u64 {
    let text = std::fs::read_to_string(file).expect("a file of the system");
    let line = text.lines().find(|line| line.starts_with(name)).expect("a line of that name");
    line.split_ascii_whitespace().nth(1).and_then(|word| word.parse().ok()).expect("a number")
}

/// A sum without carry of the two ranks' patterns, in place.
fn all_reduce(member: &Communicator, words: &mut [u64]) {
    fill(words, member.rank() as u64 + 1);
    let bytes = &mut bytemuck::cast_slice_mut(words)[..BYTES];
    member.all_reduce::<u8>(bytes, Op::Bxor).expect("an all-reduce");
    check(words, |at| word(at, 1) ^ word(at, 2), "all-reduce");
    assert_eq!(member.stats().sent_bytes as usize, BYTES, "half a vector twice, of two ranks");
}

/// The pattern of rank 1 to rank 0.
fn broadcast(member: &Communicator, words: &mut [u64]) {
    fill(words, member.rank() as u64 + 3);
    let bytes = &mut bytemuck::cast_slice_mut(words)[..BYTES];
    member.broadcast::<u8>(bytes, 1).expect("a broadcast");
    check(words, |at| word(at, 4), "broadcast");
    assert_eq!(member.stats().sent_bytes as usize, member.rank() * BYTES);
}

/// One block of more than 2 GiB and a short one behind it, in place.
fn all_gather(member: &Communicator, words: &mut [u64]) {
    let counts = [BYTES - 777, 777];
    fill(words, 5);
    let bytes: &mut [u8] = &mut bytemuck::cast_slice_mut(words)[..BYTES];
    let (first, second) = bytes.split_at_mut(counts[0]);
    // What the other rank will bring is wiped out first.
    if member.rank() == 0 {
        second.fill(0xEE)
    } else {
        first.fill(0xEE)
    }
    let collective = Collective::AllGather;
    let counts = Counts::PerRank(counts.into());
    let call = Call { collective, dtype: Dtype::U8, op: Op::Sum, counts };
    member.run(&call, Buffers::InPlace(bytes)).expect("an all-gather");
    check(words, |at| word(at, 5), "all-gather");
}

/// One message.
fn message(member: &Communicator, words: &mut [u64]) {
    if member.rank() == 0 {
        fill(words, 6);
        member.send::<u8>(&bytemuck::cast_slice(words)[..BYTES], 1).expect("a send");
    } else {
        let bytes = &mut bytemuck::cast_slice_mut(words)[..BYTES];
        member.recv::<u8>(bytes, 0).expect("a receive");
        check(words, |at| word(at, 6), "message");
    }
}

/// The buffers stay the same, because pages cost more than what is done with them.
#[test]
fn calls_past_two_gigabytes_lose_no_byte() {
    let available = kilobytes("/proc/meminfo", "MemAvailable:");
    if available < NEEDED_KB {
        eprintln!("skipped: {available} kB of memory are available, {NEEDED_KB} kB are needed");
        return;
    }
    let begin = Instant::now();
    let world = |transport: &str| {
        let timeout = Duration::from_secs(100);
        let settings = Settings { transport: transport.into(), timeout, ..Settings::default() };
        Communicator::local_world(2, &settings).expect("a world").into_iter()
    };
    let (mut shm, mut tcp, mut loopback) = (world("shm"), world("tcp"), world("loopback"));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let next = |members: &mut std::vec::IntoIter<Communicator>| members.next();
            let members = [next(&mut shm), next(&mut tcp), next(&mut loopback)];
            let [shm, tcp, loopback] = members.map(|member| member.expect("two members"));
            scope.spawn(move || {
                let mut words = vec![0; BYTES.div_ceil(8)];
                all_reduce(&shm, &mut words);
                eprintln!("all-reduce, {:?}", begin.elapsed());
                broadcast(&tcp, &mut words);
                eprintln!("broadcast, {:?}", begin.elapsed());
                all_gather(&loopback, &mut words);
                eprintln!("all-gather, {:?}", begin.elapsed());
                message(&shm, &mut words);
                eprintln!("message, {:?}", begin.elapsed());
            });
        }
    });
    let peak = kilobytes("/proc/self/status", "VmHWM:");
    assert!(peak < PEAK_KB, "{peak} kB at the peak");
}
