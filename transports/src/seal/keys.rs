//! How two ends agree on keys.

use snow::{Builder, HandshakeState};

use super::Seals;
use super::records::{Opener, Sealer};
use crate::TransportError;

const PROTOCOL: &str = "Noise_NNpsk0_25519_AESGCM_SHA256";
/// What each end shows the other: a public key and a tag.
pub const SHARE_BYTES: usize = 48;

/// The end that begins, once it has drawn its share.
pub struct Offer(Box<HandshakeState>);

impl Offer {
    /// Draw a share, to be sent to the other end. Both must know `secret` and believe the same of
    /// the stream, which is in `context`.
    ///
    /// # Errors
    ///
    /// [`TransportError::System`] without random bytes from the system.
    pub fn new(
        secret: &[u8; 32],
        context: &[u8],
    ) -> Result<(Offer, [u8; SHARE_BYTES]), TransportError> {
        let mut state = built(secret, context, true)?;
        let share = share(&mut state)?;
        Ok((Offer(state), share))
    }

    /// Take the other end's share.
    ///
    /// # Errors
    ///
    /// [`TransportError::Refused`] where the other end knows another secret or means another
    /// stream, or somebody has changed what it said.
    pub fn conclude(mut self, theirs: &[u8; SHARE_BYTES]) -> Result<Seals, TransportError> {
        take(&mut self.0, theirs)?;
        let (ours, theirs) = self.0.dangerously_get_raw_split();
        Ok(Seals { sealer: Sealer::new(&ours), opener: Opener::new(&theirs) })
    }
}

/// The end that was called: take the share of the other, and draw the one to be sent back.
///
/// # Errors
///
/// As for [`Offer::new`] and [`Offer::conclude`].
pub fn accept(
    secret: &[u8; 32],
    context: &[u8],
    theirs: &[u8; SHARE_BYTES],
) -> Result<([u8; SHARE_BYTES], Seals), TransportError> {
    let mut state = built(secret, context, false)?;
    take(&mut state, theirs)?;
    let share = share(&mut state)?;
    let (theirs, ours) = state.dangerously_get_raw_split();
    Ok((share, Seals { sealer: Sealer::new(&ours), opener: Opener::new(&theirs) }))
}

fn built(
    secret: &[u8; 32],
    context: &[u8],
    begins: bool,
) -> Result<Box<HandshakeState>, TransportError> {
    let protocol = PROTOCOL.parse().expect("a protocol that snow knows");
    let builder = Builder::new(protocol).psk(0, secret).and_then(|it| it.prologue(context));
    let builder = builder.expect("one secret and one context are given");
    let state = if begins { builder.build_initiator() } else { builder.build_responder() };
    state.map(Box::new).map_err(|error| no_random(&error))
}

fn share(state: &mut HandshakeState) -> Result<[u8; SHARE_BYTES], TransportError> {
    let mut share = [0; SHARE_BYTES];
    let length = state.write_message(&[], &mut share).map_err(|error| no_random(&error))?;
    debug_assert_eq!(length, SHARE_BYTES);
    Ok(share)
}

fn take(state: &mut HandshakeState, theirs: &[u8; SHARE_BYTES]) -> Result<(), TransportError> {
    let refused = |_| TransportError::Refused {
        why: "the other end knows another secret, or what it said about keys was changed".into(),
    };
    state.read_message(theirs, &mut [0; SHARE_BYTES]).map(drop).map_err(refused)
}

/// The one thing that can go wrong with what we say ourselves.
fn no_random(error: &snow::Error) -> TransportError {
    let what = format!("drawing keys ({error})");
    TransportError::System { call: "getrandom", errno: 0, what }
}
