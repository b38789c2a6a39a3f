//! Which message to receive, where any will do.

use super::Engine;
use crate::header::Header;
use crate::{Dtype, Error};

impl Engine {
    /// Wait for a message of elements of this type, at most `capacity` bytes, from any other
    /// member: who sent it, and how long it is. It is still to be received.
    pub(crate) fn await_any(
        &mut self,
        dtype: Dtype,
        capacity: u64,
    ) -> Result<(u32, u64), Box<Error>> {
        if self.ranks == 1 {
            return Err(Error::invalid("receive from any rank: there is no other rank").into());
        }
        self.admit()?;
        let ours = Header::of_message(self.group).of_type(dtype);
        let found = self.driver.await_any(self.last_source, &ours);
        let (peer, theirs) = match found {
            Ok(found) => found,
            Err(error) => return self.remember(Err(error)).map(|()| unreachable!("it failed")),
        };
        let (bytes, rank) = (theirs.wire_bytes(), self.driver.watch.members[peer as usize]);
        if let Some(sent) = theirs.dtype().filter(|sent| *sent != dtype) {
            return Err(Error::invalid(format!(
                "the next message of rank {rank} has elements of {sent}, not of {dtype}; it is \
                 still there"
            ))
            .into());
        }
        if theirs == ours.for_wire(bytes) && bytes > capacity {
            return Err(Error::invalid(format!(
                "the next message of rank {rank} has {bytes} bytes, but there is room for \
                 {capacity}; it is still there"
            ))
            .into());
        }
        self.last_source = peer;
        // Whatever else is wrong with the header is seen, and worded, when it is received.
        Ok((peer, bytes.min(capacity) / dtype.size() as u64 * dtype.size() as u64))
    }
}
