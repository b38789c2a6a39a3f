//! Handing over a stream that arrives in pieces, which are read where they lie.
//!
//! Pieces are cut wherever the sender saw fit, elements are not: one that lies across two pieces is
//! put together first. That only happens when the two ends disagree about elements.

use crate::TransportError;
use crate::caches::copy_past_caches;

/// The longest element.
const GRANULE_BYTES_MAX: usize = 64;

/// Where pieces arrive.
pub(crate) trait Pieces {
    /// A place within the current piece.
    type Rest;

    /// What has arrived and was not handed over of the current piece, and its length, which is not
    /// zero; `None` if nothing has arrived.
    fn rest(&mut self) -> Result<Option<(Self::Rest, usize)>, TransportError>;

    /// Hand the first `count` bytes of `rest` to `sink`; a piece that is used up goes back to its
    /// sender.
    fn hand_over(&mut self, rest: &Self::Rest, count: usize, sink: &mut dyn FnMut(&[u8]));
}

/// The receiving end of a stream of pieces.
pub(crate) struct Stream {
    /// The start of an element that lies across two pieces.
    carry: [u8; GRANULE_BYTES_MAX],
    carried: usize,
    failed: Option<TransportError>,
}

impl Stream {
    pub(crate) fn new() -> Self {
        Self { carry: [0; GRANULE_BYTES_MAX], carried: 0, failed: None }
    }

    /// [`crate::RecvWire::pull`], from these pieces. A stream that has failed keeps failing.
    #[inline]
    pub(crate) fn pull<P: Pieces>(
        &mut self,
        pieces: &mut P,
        (limit, granule): (usize, usize),
        sink: &mut dyn FnMut(&[u8]),
    ) -> Result<usize, TransportError> {
        assert!(granule > 0 && limit.is_multiple_of(granule));
        if let Some(failed) = &self.failed {
            return Err(failed.clone());
        }
        let mut taken = 0;
        while taken < limit {
            match self.pull_some(pieces, limit - taken, granule, sink) {
                Ok(0) => break,
                Ok(count) => taken += count,
                Err(failed) => {
                    self.failed = Some(failed.clone());
                    // After these bytes; the next call says so.
                    if taken == 0 {
                        return Err(failed);
                    }
                    break;
                }
            }
        }
        Ok(taken)
    }

    /// [`crate::RecvWire::pull_into`], from these pieces.
    #[inline]
    pub(crate) fn pull_into<P: Pieces>(
        &mut self,
        pieces: &mut P,
        target: &mut [u8],
    ) -> Result<usize, TransportError> {
        self.fill(pieces, target, |bytes, place| place.copy_from_slice(bytes))
    }

    /// [`crate::RecvWire::pull_past_caches`], from these pieces.
    #[inline]
    pub(crate) fn pull_past_caches<P: Pieces>(
        &mut self,
        pieces: &mut P,
        target: &mut [u8],
    ) -> Result<usize, TransportError> {
        self.fill(pieces, target, copy_past_caches)
    }

    #[inline]
    fn fill<P: Pieces>(
        &mut self,
        pieces: &mut P,
        target: &mut [u8],
        copy: impl Fn(&[u8], &mut [u8]),
    ) -> Result<usize, TransportError> {
        let mut filled = 0;
        self.pull(pieces, (target.len(), 1), &mut |bytes| {
            copy(bytes, &mut target[filled..filled + bytes.len()]);
            filled += bytes.len();
        })
    }

    #[inline]
    fn pull_some<P: Pieces>(
        &mut self,
        pieces: &mut P,
        limit: usize,
        granule: usize,
        sink: &mut dyn FnMut(&[u8]),
    ) -> Result<usize, TransportError> {
        if self.carried > 0 {
            return self.straddle(pieces, limit, granule, sink);
        }
        let Some((rest, bytes)) = pieces.rest()? else { return Ok(0) };
        let count = if bytes >= limit { limit } else { bytes - bytes % granule };
        if count == 0 {
            return self.straddle(pieces, limit, granule, sink);
        }
        pieces.hand_over(&rest, count, sink);
        Ok(count)
    }

    /// Put an element together that lies across pieces, and return how many bytes were handed over.
    #[cold]
    fn straddle<P: Pieces>(
        &mut self,
        pieces: &mut P,
        limit: usize,
        granule: usize,
        sink: &mut dyn FnMut(&[u8]),
    ) -> Result<usize, TransportError> {
        assert!(granule <= GRANULE_BYTES_MAX && limit >= granule);
        while self.carried < granule {
            let Some((rest, bytes)) = pieces.rest()? else { return Ok(0) };
            let (carry, from) = (&mut self.carry, self.carried);
            let count = bytes.min(granule - from);
            pieces.hand_over(&rest, count, &mut |bytes| {
                carry[from..from + count].copy_from_slice(bytes);
            });
            self.carried += count;
        }
        let whole = self.carried.min(limit) / granule * granule;
        sink(&self.carry[..whole]);
        self.carry.copy_within(whole..self.carried, 0);
        self.carried -= whole;
        Ok(whole)
    }
}
