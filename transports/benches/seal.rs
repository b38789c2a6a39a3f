//! What sealing costs a core: records sealed, and opened, of a few lengths.
//!
//! `cargo bench -p brigade-transports --bench seal`. The least of many batches is printed, because
//! other work on the machine only adds.

use std::hint::black_box;
use std::time::{Duration, Instant};

use brigade_transports::seal::{BODY_BYTES, Offer, accept};

const BATCHES: usize = 2000;
/// Together they fit the buffer of who opens them.
const RECORDS: usize = 7;

fn main() {
    println!("{:>8} {:>20} {:>20}", "bytes", "seal", "open");
    for bytes in [8, 1 << 10, BODY_BYTES] {
        let [seal, open] = least(bytes).map(|batch| {
            let record = batch.as_secs_f64() / RECORDS as f64;
            format!("{:.0} ns, {:.2} GB/s", record * 1e9, bytes as f64 / record / 1e9)
        });
        println!("{bytes:>8} {seal:>20} {open:>20}");
    }
}

/// The least times in which so many records are sealed and opened.
fn least(bytes: usize) -> [Duration; 2] {
    let (offer, share) = Offer::new(&[7; 32], b"").expect("random bytes");
    let (share, mut accepting) = accept(&[7; 32], b"", &share).expect("the same secret");
    let mut sealer = offer.conclude(&share).expect("the same secret").sealer;
    let (plain, mut records) = (vec![1; bytes], Vec::new());
    let mut least = [Duration::MAX; 2];
    for _ in 0..BATCHES {
        records.clear();
        let start = Instant::now();
        for _ in 0..RECORDS {
            sealer.seal(&[], &plain, &mut records);
        }
        least[0] = least[0].min(start.elapsed());
        accepting.opener.room()[..records.len()].copy_from_slice(&records);
        accepting.opener.fill(records.len());
        let start = Instant::now();
        for _ in 0..RECORDS {
            let opened = black_box(accepting.opener.opened().expect("as it was sealed")).len();
            accepting.opener.take(opened);
        }
        least[1] = least[1].min(start.elapsed());
    }
    least
}
