//! Numbers that all ranks tell each other.

use brigade_comm::{Buffers, Call, Communicator, Dtype, Error};
use brigade_schedule::Collective;

/// How many at a time.
const NEWS: usize = 256;

/// Everybody's numbers, by rank. All ranks bring as many.
pub(crate) fn news(comm: &Communicator, mine: &[u64]) -> Result<Vec<Vec<u64>>, Error> {
    let mut all = vec![Vec::with_capacity(mine.len()); comm.size()];
    let mut input = vec![0; NEWS * 8];
    let mut output = vec![0; comm.size() * NEWS * 8];
    let call = Call::moving(Collective::AllGather, Dtype::U64, NEWS);
    for part in mine.chunks(NEWS) {
        for (target, number) in input.chunks_exact_mut(8).zip(part) {
            target.copy_from_slice(&number.to_ne_bytes());
        }
        comm.run(&call, Buffers::OutOfPlace { input: &input, output: &mut output })?;
        for (told, bytes) in all.iter_mut().zip(output.chunks_exact(NEWS * 8)) {
            let numbers = bytes.as_chunks::<8>().0.iter().map(|bytes| u64::from_ne_bytes(*bytes));
            told.extend(numbers.take(part.len()));
        }
    }
    Ok(all)
}
