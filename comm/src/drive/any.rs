//! Waiting for a message from whichever member sends one first.

use brigade_transports::TransportError;

use super::{Driver, NAP};
use crate::Error;
use crate::header::Header;
use crate::run::Stop;
use crate::wait::{At, Standstill};

/// The name of it in errors.
const NAME: &str = "receive from any rank";

impl Driver {
    /// Wait until a message stands at the front of a wire; its sender and its header. Of several,
    /// the one whose sender comes first behind `last`, so that no sender is passed over for ever.
    /// Members that are in a collective have sent no message yet.
    pub(crate) fn await_any(
        &mut self,
        last: u32,
        ours: &Header,
    ) -> Result<(u32, Header), Box<Error>> {
        self.open_all()?;
        self.waiting.moved();
        loop {
            if let Some(found) = self.front(last)? {
                self.waiting.moved();
                return Ok(found);
            }
            if self.waiting.is_brief() {
                continue;
            }
            self.bells.arm(&mut self.endpoints);
            if self.front(last)?.is_some() {
                self.bells.disarm(&mut self.endpoints);
                continue;
            }
            // A bell that fails shows in the wires too, and there it has a name.
            let _ = self.bells.wait(&mut self.endpoints, NAP);
            if self.front(last)?.is_none() {
                let still = Standstill { at: At::Anyone, name: NAME, header: ours };
                self.watch.look_around(self.waiting.stall.as_mut(), &mut self.endpoints, &still)?;
            }
        }
    }

    /// Open the wires from all other members.
    fn open_all(&mut self) -> Result<(), Box<Error>> {
        let members = self.routes.len();
        if self.wires.peeked.len() == members {
            return Ok(());
        }
        let me = self.watch.me;
        for peer in (0..members as u32).filter(|&peer| peer != me) {
            self.open_from(peer, NAME)?;
        }
        self.wires.peeked.resize_with(members, Default::default);
        Ok(())
    }

    /// The first message that stands at the front of a wire, if there is one.
    fn front(&mut self, last: u32) -> Result<Option<(u32, Header)>, Box<Error>> {
        let members = self.routes.len() as u32;
        let (mut gone, mut reached) = (None, 0);
        for peer in (1..=members).map(|step| (last + step) % members) {
            let index = peer as usize;
            let Some(wire) = self.wires.from[index].as_deref_mut() else { continue };
            reached += 1;
            match self.wires.peeked[index].look(wire) {
                Ok(Some(header)) if !header.is_of_collective() => return Ok(Some((peer, header))),
                Ok(_) => {}
                // One that left, or has died, which others tell better, sends nothing more.
                Err(error @ TransportError::PeerGone { .. }) => {
                    gone = Some(error);
                    reached -= 1;
                }
                Err(error) => return Err(self.watch.judge(Stop::Wire(error), NAME).into()),
            }
        }
        match gone {
            Some(error) if reached == 0 => Err(self.watch.judge(Stop::Wire(error), NAME).into()),
            _ => Ok(None),
        }
    }
}
