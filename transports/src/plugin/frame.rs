//! What two ranks tell each other beside the plugin's connections.
//!
//! ```text
//! 1 want                  connect me to you     2 handle 128            here you find me
//! 3 refuse  bytes 2 text  you will not          4 left     bytes 8      I sent you so many
//! 5 had                   I have had them all
//! ```

use super::sys::HANDLE_BYTES;

const TEXT_BYTES_MAX: usize = 500;

/// Something said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    Want,
    Handle(Box<[u8; HANDLE_BYTES]>),
    Refuse(String),
    Left(u64),
    Had,
}

impl Frame {
    pub(super) fn serialise(&self, target: &mut Vec<u8>) {
        match self {
            Frame::Want => target.push(1),
            Frame::Handle(handle) => {
                target.push(2);
                target.extend(&handle[..]);
            }
            Frame::Refuse(text) => {
                let text = &text.as_bytes()[..text.len().min(TEXT_BYTES_MAX)];
                target.push(3);
                target.extend((text.len() as u16).to_le_bytes());
                target.extend(text);
            }
            Frame::Left(bytes) => {
                target.push(4);
                target.extend(bytes.to_le_bytes());
            }
            Frame::Had => target.push(5),
        }
    }

    /// Take the first frame out of what has arrived, if it is whole. Errors: it is none of ours.
    pub(super) fn take(inbox: &mut Vec<u8>) -> Result<Option<Frame>, &'static str> {
        let Some((&kind, rest)) = inbox.split_first() else { return Ok(None) };
        let (frame, bytes) = match kind {
            1 => (Frame::Want, 0),
            2 => match rest.first_chunk() {
                Some(handle) => (Frame::Handle(Box::new(*handle)), HANDLE_BYTES),
                None => return Ok(None),
            },
            3 => {
                let Some(length) = rest.first_chunk() else { return Ok(None) };
                let length = usize::from(u16::from_le_bytes(*length));
                if length > TEXT_BYTES_MAX {
                    return Err("a refusal that is too long");
                }
                let Some(text) = rest.get(2..2 + length) else { return Ok(None) };
                let text = String::from_utf8_lossy(text);
                let text = text.chars().map(|it| if it.is_control() { ' ' } else { it }).collect();
                (Frame::Refuse(text), 2 + length)
            }
            4 => match rest.first_chunk() {
                Some(bytes) => (Frame::Left(u64::from_le_bytes(*bytes)), 8),
                None => return Ok(None),
            },
            5 => (Frame::Had, 0),
            _ => return Err("a frame of no kind that there is"),
        };
        inbox.drain(..1 + bytes);
        Ok(Some(frame))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_heard_however_it_is_cut() {
        let said = [
            Frame::Want,
            Frame::Handle(Box::new([7; HANDLE_BYTES])),
            Frame::Refuse("no device".into()),
            Frame::Left(1 << 40),
            Frame::Had,
        ];
        let mut bytes = Vec::new();
        said.iter().for_each(|frame| frame.serialise(&mut bytes));
        let (mut inbox, mut heard) = (Vec::new(), Vec::new());
        for byte in bytes {
            inbox.push(byte);
            heard.extend(Frame::take(&mut inbox).unwrap());
        }
        assert_eq!(heard, said);
        assert!(inbox.is_empty());
    }

    #[test]
    fn noise_is_refused_or_waits_for_more_but_never_panics() {
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        for _ in 0..20_000 {
            let mut noise: Vec<u8> =
                (0..random.usize(..300)).map(|_| random.u8(..) >> random.u8(..8)).collect();
            let mut left = noise.len();
            while let Ok(Some(_)) = Frame::take(&mut noise) {
                assert!(noise.len() < left, "seed {seed}");
                left = noise.len();
            }
        }
    }
}
