//! The one format of everything that a rank and the root say to each other.
//!
//! A frame is a length (u32), a kind (u8) and the fields of that kind; numbers are little-endian,
//! texts and cards carry their length. Everything is bounded: a frame by the limit of its
//! [`super::decoder::Decoder`], a text by [`TEXT_BYTES_MAX`], a table by the bytes it really has. A
//! frame that is too long, too short, of an unknown kind or with anything left over ends the
//! connection.

use brigade_transports::seal::SHARE_BYTES;

pub(crate) use super::codec::TEXT_BYTES_MAX;
use super::codec::{Fields, Malformed, Parts};
use super::verdict::{Refusal, Verdict, WaitingReport};

/// The version of this format; both ends must speak the same.
pub(crate) const VERSION: u16 = 12;
/// The most bytes a rank may hand to all others when it joins.
pub const CARD_BYTES_MAX: usize = 16 << 10;
/// How many calls a rank remembers, to be told which of them did not fit.
pub(crate) const PAST_CALLS_MAX: usize = 32;
/// The most ranks that one root brings together.
pub const RANKS_MAX: usize = 1 << 14;
/// The longest frame before the sender has proved the secret.
pub(crate) const STRANGER_BYTES_MAX: usize = 128;
/// The longest frame that a rank sends.
pub(crate) const RANK_BYTES_MAX: usize = CARD_BYTES_MAX + 4 * TEXT_BYTES_MAX;
/// The time of what shall not happen, in milliseconds.
pub(crate) const NEVER: u32 = u32::MAX;
/// The bytes in front of each frame's fields.
pub(super) const LENGTH_BYTES: usize = 4;

const MAGIC: [u8; 8] = *b"brigroot";

/// The longest frame that the root sends in a world of `ranks`: the table of all cards.
pub(crate) fn root_bytes_max(ranks: usize) -> usize {
    ranks * (CARD_BYTES_MAX + 2 * TEXT_BYTES_MAX) + 1024
}

/// One process among those that joined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The name its host gives itself.
    pub host: String,
    /// Its process number on that host.
    pub pid: u32,
}

/// Who wants which seat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Join {
    pub(crate) rank: u32,
    pub(crate) ranks: u32,
    /// How long the rank is ready to wait for the others.
    pub(crate) patience_ms: u32,
    /// After how long the root shall tell who is missing, or [`NEVER`].
    pub(crate) report_ms: u32,
    /// How long its machine may be silent.
    pub(crate) silence_ms: u32,
    /// The same for all ranks of one process, different everywhere else.
    pub(crate) process: [u8; 16],
    pub(crate) member: Member,
    pub(crate) card: Vec<u8>,
}

/// Who cannot take its seat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unable {
    pub(crate) rank: u32,
    pub(crate) ranks: u32,
    pub(crate) process: [u8; 16],
    pub(crate) member: Member,
    pub(crate) why: String,
}

/// A rank stands still in a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Waiting {
    pub(crate) group: u64,
    /// The number of the call in its group.
    pub(crate) seq: u64,
    pub(crate) signature: [u8; 32],
    /// The signatures of the calls before it, the latest first: at most [`PAST_CALLS_MAX`].
    pub(crate) past: Vec<[u8; 32]>,
    pub(crate) description: String,
}

/// What everybody learns when all have come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Table {
    /// The lowest rank in the root's own process, if there is one.
    pub(crate) hub_rank: Option<u32>,
    /// Drawn for this world alone.
    pub(crate) nonce: [u8; 32],
    pub(crate) seats: Vec<(Member, Vec<u8>)>,
}

/// Everything that is ever said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    /// First words of whoever connects.
    Hello { version: u16, nonce: [u8; 32] },
    /// The root's answer: prove it.
    Challenge { nonce: [u8; 32] },
    /// The connecting end knows the secret, and whether it encrypts what it says from now on.
    Proof { mac: [u8; 32], encrypt: bool },
    /// So does the root.
    Proven { mac: [u8; 32] },
    /// One end's share of a key: all that it says behind this is sealed. The rank begins, if it
    /// has said that it encrypts.
    Share { share: [u8; SHARE_BYTES] },
    /// A rank asks for its seat.
    Join(Join),
    /// A rank has no card, so it cannot ask for one.
    Unable(Unable),
    /// All seats are taken.
    Table(Table),
    /// There will be no seat.
    Refused { kind: Refusal, why: String },
    /// A rank ends as it should.
    Leave,
    /// The root tells that one did.
    Left { rank: u32 },
    /// A rank holds what it will not let go of before it has heard others leave this communicator.
    Hold { group: u64 },
    /// It has let go of it.
    LetGo { group: u64 },
    /// A rank leaves one communicator, not the world: because it is done with it, if `why` is
    /// empty, or because it could not join. It has so many `members`, or 0 if that is not said.
    LeaveGroup { group: u64, members: u32, why: String },
    /// The root tells that one did, to those who wait there.
    LeftGroup { rank: u32, group: u64, why: String },
    /// The root itself ends as it should.
    RootEnds,
    /// A rank noticed that another is gone.
    ReportLost { rank: u32, how: String },
    /// A rank noticed two calls that do not fit; the verdict to be.
    ReportMismatch(Verdict),
    /// A rank gives up for everybody.
    Abort { why: String },
    /// A call has been waiting for a while.
    Waiting(Waiting),
    /// It waits no more.
    GoesOn { group: u64 },
    /// The root has read one of those that wait.
    Noted,
    /// What do you know of this group?
    Ask { token: u32, group: u64 },
    /// This.
    Answer { token: u32, reports: Vec<WaitingReport> },
    /// What the root has decided for everybody.
    Verdict(Verdict),
    /// One more rank is gone, after the verdict.
    Lost { rank: u32, how: String },
}

impl Frame {
    /// The bytes of the frame, its length in front.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut parts = Parts(vec![0; LENGTH_BYTES]);
        parts.u8(self.kind());
        self.encode_fields(&mut parts);
        let mut bytes = parts.0;
        let length = u32::try_from(bytes.len() - LENGTH_BYTES).expect("a frame fits its length");
        bytes[..LENGTH_BYTES].copy_from_slice(&length.to_le_bytes());
        bytes
    }

    fn kind(&self) -> u8 {
        match self {
            Frame::Hello { .. } => 1,
            Frame::Challenge { .. } => 2,
            Frame::Proof { .. } => 3,
            Frame::Proven { .. } => 4,
            Frame::Join(_) => 5,
            Frame::Table(_) => 6,
            Frame::Refused { .. } => 7,
            Frame::Leave => 8,
            Frame::Left { .. } => 9,
            Frame::RootEnds => 10,
            Frame::ReportLost { .. } => 11,
            Frame::ReportMismatch(_) => 12,
            Frame::Abort { .. } => 13,
            Frame::Waiting(_) => 14,
            Frame::Ask { .. } => 15,
            Frame::Answer { .. } => 16,
            Frame::Verdict(_) => 17,
            Frame::LeaveGroup { .. } => 18,
            Frame::LeftGroup { .. } => 19,
            Frame::Noted => 20,
            Frame::Unable(_) => 21,
            Frame::Hold { .. } => 22,
            Frame::LetGo { .. } => 23,
            Frame::Lost { .. } => 24,
            Frame::Share { .. } => 25,
            Frame::GoesOn { .. } => 26,
        }
    }

    fn encode_fields(&self, parts: &mut Parts) {
        match self {
            Frame::Hello { version, nonce } => {
                parts.bytes(&MAGIC);
                parts.u16(*version);
                parts.bytes(nonce);
            }
            Frame::Challenge { nonce } => parts.bytes(nonce),
            Frame::Proof { mac, encrypt } => {
                parts.bytes(mac);
                parts.u8((*encrypt).into());
            }
            Frame::Proven { mac } => parts.bytes(mac),
            Frame::Share { share } => parts.bytes(share),
            Frame::Join(join) => encode_join(join, parts),
            Frame::Unable(unable) => encode_unable(unable, parts),
            Frame::Table(table) => encode_table(table, parts),
            Frame::Refused { kind, why } => {
                parts.u8(*kind as u8);
                parts.text(why);
            }
            Frame::Leave | Frame::RootEnds | Frame::Noted => {}
            Frame::Left { rank } => parts.u32(*rank),
            Frame::Hold { group } | Frame::LetGo { group } | Frame::GoesOn { group } => {
                parts.u64(*group);
            }
            Frame::LeaveGroup { group, members, why } => {
                parts.u64(*group);
                parts.u32(*members);
                parts.text(why);
            }
            Frame::LeftGroup { rank, group, why } => {
                parts.u32(*rank);
                parts.u64(*group);
                parts.text(why);
            }
            Frame::ReportLost { rank, how } | Frame::Lost { rank, how } => {
                parts.u32(*rank);
                parts.text(how);
            }
            Frame::ReportMismatch(verdict) | Frame::Verdict(verdict) => verdict.encode(parts),
            Frame::Abort { why } => parts.text(why),
            Frame::Waiting(waiting) => encode_waiting(waiting, parts),
            Frame::Ask { token, group } => {
                parts.u32(*token);
                parts.u64(*group);
            }
            Frame::Answer { token, reports } => {
                parts.u32(*token);
                parts.count(reports.len());
                for report in reports {
                    report.encode(parts);
                }
            }
        }
    }

    /// Read what stands behind a frame's length.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut fields = Fields(bytes);
        let frame = match fields.u8()? {
            1 => {
                if fields.array()? != MAGIC {
                    return Err(Malformed { what: "the first bytes are not ours" });
                }
                Frame::Hello { version: fields.u16()?, nonce: fields.array()? }
            }
            2 => Frame::Challenge { nonce: fields.array()? },
            3 => Frame::Proof { mac: fields.array()?, encrypt: fields.bool()? },
            4 => Frame::Proven { mac: fields.array()? },
            5 => Frame::Join(decode_join(&mut fields)?),
            6 => Frame::Table(decode_table(&mut fields)?),
            7 => Frame::Refused { kind: Refusal::decode(fields.u8()?)?, why: fields.text()? },
            8 => Frame::Leave,
            9 => Frame::Left { rank: fields.u32()? },
            10 => Frame::RootEnds,
            11 => Frame::ReportLost { rank: fields.u32()?, how: fields.text()? },
            12 => Frame::ReportMismatch(Verdict::decode(&mut fields)?),
            13 => Frame::Abort { why: fields.text()? },
            14 => Frame::Waiting(decode_waiting(&mut fields)?),
            15 => Frame::Ask { token: fields.u32()?, group: fields.u64()? },
            16 => {
                let token = fields.u32()?;
                let count = fields.count()?;
                let reports = (0..count).map(|_| WaitingReport::decode(&mut fields));
                Frame::Answer { token, reports: reports.collect::<Result<_, _>>()? }
            }
            17 => Frame::Verdict(Verdict::decode(&mut fields)?),
            18 => {
                let (group, members) = (fields.u64()?, fields.u32()?);
                Frame::LeaveGroup { group, members, why: fields.text()? }
            }
            19 => {
                Frame::LeftGroup { rank: fields.u32()?, group: fields.u64()?, why: fields.text()? }
            }
            20 => Frame::Noted,
            21 => Frame::Unable(decode_unable(&mut fields)?),
            22 => Frame::Hold { group: fields.u64()? },
            23 => Frame::LetGo { group: fields.u64()? },
            24 => Frame::Lost { rank: fields.u32()?, how: fields.text()? },
            25 => Frame::Share { share: fields.array()? },
            26 => Frame::GoesOn { group: fields.u64()? },
            _ => return Err(Malformed { what: "a frame of an unknown kind" }),
        };
        fields.end()?;
        Ok(frame)
    }
}

fn encode_member(member: &Member, parts: &mut Parts) {
    parts.u32(member.pid);
    parts.text(&member.host);
}

fn decode_member(fields: &mut Fields<'_>) -> Result<Member, Malformed> {
    Ok(Member { pid: fields.u32()?, host: fields.text()? })
}

fn encode_join(join: &Join, parts: &mut Parts) {
    parts.u32(join.rank);
    parts.u32(join.ranks);
    parts.u32(join.patience_ms);
    parts.u32(join.report_ms);
    parts.u32(join.silence_ms);
    parts.bytes(&join.process);
    encode_member(&join.member, parts);
    parts.long(&join.card);
}

fn decode_join(fields: &mut Fields<'_>) -> Result<Join, Malformed> {
    Ok(Join {
        rank: fields.u32()?,
        ranks: fields.u32()?,
        patience_ms: fields.u32()?,
        report_ms: fields.u32()?,
        silence_ms: fields.u32()?,
        process: fields.array()?,
        member: decode_member(fields)?,
        card: fields.long(CARD_BYTES_MAX)?.to_vec(),
    })
}

fn encode_unable(unable: &Unable, parts: &mut Parts) {
    parts.u32(unable.rank);
    parts.u32(unable.ranks);
    parts.bytes(&unable.process);
    encode_member(&unable.member, parts);
    parts.text(&unable.why);
}

fn decode_unable(fields: &mut Fields<'_>) -> Result<Unable, Malformed> {
    Ok(Unable {
        rank: fields.u32()?,
        ranks: fields.u32()?,
        process: fields.array()?,
        member: decode_member(fields)?,
        why: fields.text()?,
    })
}

fn encode_waiting(waiting: &Waiting, parts: &mut Parts) {
    parts.u64(waiting.group);
    parts.u64(waiting.seq);
    parts.bytes(&waiting.signature);
    parts.count(waiting.past.len());
    waiting.past.iter().for_each(|signature| parts.bytes(signature));
    parts.text(&waiting.description);
}

fn decode_waiting(fields: &mut Fields<'_>) -> Result<Waiting, Malformed> {
    let (group, seq, signature) = (fields.u64()?, fields.u64()?, fields.array()?);
    let count = fields.count()?;
    if count > PAST_CALLS_MAX {
        return Err(Malformed { what: "more calls than a rank remembers" });
    }
    let past = (0..count).map(|_| fields.array()).collect::<Result<_, _>>()?;
    Ok(Waiting { group, seq, signature, past, description: fields.text()? })
}

fn encode_table(table: &Table, parts: &mut Parts) {
    parts.u32(table.hub_rank.unwrap_or(u32::MAX));
    parts.bytes(&table.nonce);
    parts.count(table.seats.len());
    for (member, card) in &table.seats {
        encode_member(member, parts);
        parts.long(card);
    }
}

fn decode_table(fields: &mut Fields<'_>) -> Result<Table, Malformed> {
    let hub_rank = Some(fields.u32()?).filter(|rank| *rank != u32::MAX);
    let nonce = fields.array()?;
    let mut seats = Vec::new();
    for _ in 0..fields.count()? {
        let member = decode_member(fields)?;
        seats.push((member, fields.long(CARD_BYTES_MAX)?.to_vec()));
    }
    if hub_rank.is_some_and(|rank| rank as usize >= seats.len()) {
        return Err(Malformed { what: "the root claims a rank that has no seat" });
    }
    Ok(Table { hub_rank, nonce, seats })
}
