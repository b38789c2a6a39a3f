//! What the two ends of a connection tell each other.
//!
//! ```text
//! receiver to sender   posted:   sequence 4   count 4   count x ( tag 4   0 4   room 8 )
//! sender to receiver   message:  sequence 4   place 4   bytes 8   and the bytes
//! ```
//!
//! All integers are little-endian. A message names the receive that it is for, by the number of its
//! group and its place in there: no message is sent that has no place to go to.

/// The most receives of a group.
pub(crate) const GROUP_MAX: usize = 8;
/// Bytes in front of a message.
pub(crate) const HEADER_BYTES: usize = 16;
/// Bytes in front of the receives of a group.
pub(crate) const NOTE_HEAD_BYTES: usize = 8;
/// Bytes of each of them.
pub(crate) const NOTE_ITEM_BYTES: usize = 16;
/// The most bytes that say what was posted.
pub(crate) const NOTE_BYTES_MAX: usize = NOTE_HEAD_BYTES + GROUP_MAX * NOTE_ITEM_BYTES;

/// A receive that waits for its message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Room {
    pub(crate) tag: i32,
    pub(crate) bytes: u64,
}

/// A group of receives that was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Note {
    pub(crate) sequence: u32,
    pub(crate) count: usize,
    pub(crate) rooms: [Room; GROUP_MAX],
}

impl Note {
    /// Append the note's bytes.
    pub(crate) fn write(&self, target: &mut Vec<u8>) {
        assert!((1..=GROUP_MAX).contains(&self.count));
        target.extend(self.sequence.to_le_bytes());
        target.extend((self.count as u32).to_le_bytes());
        for room in &self.rooms[..self.count] {
            target.extend(room.tag.to_le_bytes());
            target.extend([0; 4]);
            target.extend(room.bytes.to_le_bytes());
        }
    }

    /// How many bytes a note has that begins like this, or why it is none.
    pub(crate) fn length(head: &[u8; NOTE_HEAD_BYTES]) -> Result<usize, &'static str> {
        let count = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
        if !(1..=GROUP_MAX).contains(&count) {
            return Err("a note of an impossible number of receives");
        }
        Ok(NOTE_HEAD_BYTES + count * NOTE_ITEM_BYTES)
    }

    /// Read a note of which [`Note::length`] has said how long it is.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Note, &'static str> {
        let (head, items) = bytes.split_first_chunk().ok_or("a note that ends early")?;
        if Self::length(head)? != bytes.len() {
            return Err("a note of another length");
        }
        let mut rooms = [Room::default(); GROUP_MAX];
        let items = items.chunks_exact(NOTE_ITEM_BYTES);
        let count = items.len();
        for (room, item) in rooms.iter_mut().zip(items) {
            let tag = i32::from_le_bytes(item[..4].try_into().expect("four bytes"));
            let room_bytes = u64::from_le_bytes(item[8..].try_into().expect("eight bytes"));
            *room = Room { tag, bytes: room_bytes };
        }
        let sequence = u32::from_le_bytes(head[..4].try_into().expect("four bytes"));
        Ok(Note { sequence, count, rooms })
    }
}

/// What stands in front of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) sequence: u32,
    pub(crate) place: u32,
    pub(crate) bytes: u64,
}

impl Header {
    pub(crate) fn write(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..4].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.place.to_le_bytes());
        bytes[8..].copy_from_slice(&self.bytes.to_le_bytes());
        bytes
    }

    /// Any bytes are a header; whether it makes sense only the receiver knows.
    pub(crate) fn read(bytes: [u8; HEADER_BYTES]) -> Header {
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("in range"));
        let length = u64::from(word(8)) | u64::from(word(12)) << 32;
        Header { sequence: word(0), place: word(4), bytes: length }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_reads_back() {
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        for _ in 0..1000 {
            let count = random.usize(1..=GROUP_MAX);
            let mut rooms = [Room::default(); GROUP_MAX];
            for room in &mut rooms[..count] {
                *room = Room { tag: random.i32(..), bytes: random.u64(..) };
            }
            let note = Note { sequence: random.u32(..), count, rooms };
            let mut bytes = Vec::new();
            note.write(&mut bytes);
            assert_eq!(Note::length(bytes.first_chunk().unwrap()), Ok(bytes.len()));
            assert_eq!(Note::parse(&bytes), Ok(note), "seed {seed}");
            let header =
                Header { sequence: random.u32(..), place: random.u32(..), bytes: random.u64(..) };
            assert_eq!(Header::read(header.write()), header);
        }
    }

    #[test]
    fn noise_is_refused_or_read_but_never_a_panic() {
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        for _ in 0..20_000 {
            let noise: Vec<u8> = (0..random.usize(..200)).map(|_| random.u8(..12)).collect();
            if let Ok(note) = Note::parse(&noise) {
                assert!((1..=GROUP_MAX).contains(&note.count), "seed {seed}");
                assert!(noise.len() <= NOTE_BYTES_MAX);
            }
        }
    }
}
