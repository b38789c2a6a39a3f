//! The last step of linking: steps become a plan, sorted by the wire they use.

use super::{Channel, Kind, Message, Need, Place, Plan, Pump, Step};
use crate::header::Header;

/// A plan for messages between pairs, which keep their order on each wire.
pub(crate) fn link_messages(messages: &[Message], header: Header) -> Plan {
    let steps = messages.iter().enumerate().map(|(number, message)| {
        let Message { channel, place, bytes, .. } = *message;
        let kind = if matches!(channel, Channel::To(_)) { Kind::Send } else { Kind::Recv };
        Draft {
            channel,
            kind,
            source: place,
            target: place,
            bytes,
            needs: Vec::new(),
            number,
            chunk: 0,
        }
    });
    // Nothing is folded, so elements need not stay whole.
    let plan = assemble(steps.collect(), header, 1, 0, messages.len() as u32);
    let types = plan.steps.iter().map(|step| messages[step.number as usize].dtype);
    Plan { message_types: types.collect(), ..plan }
}

impl Plan {
    /// Use this plan of messages for others between the same peers, of the same types and lengths,
    /// which lie elsewhere. If they are not such messages, say so and change nothing.
    pub(crate) fn rebind(&mut self, messages: &[Message], header: Header) -> bool {
        let shared = self.header == header && self.steps.len() == messages.len();
        let fits = |pump: &Pump| {
            (pump.first as usize..pump.last as usize).all(|at| {
                let step = &self.steps[at];
                let message = &messages[step.number as usize];
                message.channel == pump.channel
                    && message.bytes == step.bytes
                    && message.dtype == self.message_types[at]
            })
        };
        if !shared || !self.pumps.iter().all(fits) {
            return false;
        }
        for step in &mut self.steps {
            let place = messages[step.number as usize].place;
            (step.source, step.target) = (place, place);
        }
        true
    }
}

/// A step before its pump is known.
pub(super) struct Draft {
    pub(super) channel: Channel,
    pub(super) kind: Kind,
    pub(super) source: Place,
    pub(super) target: Place,
    pub(super) bytes: u64,
    pub(super) needs: Vec<Need>,
    pub(super) number: usize,
    pub(super) chunk: u32,
}

/// Sort steps into pumps and renumber what they wait for.
pub(super) fn assemble(
    drafts: Vec<Draft>,
    header: Header,
    elem_bytes: usize,
    scratch_bytes: u64,
    moves: u32,
) -> Plan {
    let mut channels: Vec<Channel> = Vec::new();
    let mut pump_of = Vec::with_capacity(drafts.len());
    for draft in &drafts {
        let known = channels.iter().position(|channel| *channel == draft.channel);
        pump_of.push(known.unwrap_or(channels.len()));
        if known.is_none() {
            channels.push(draft.channel);
        }
    }
    let mut order: Vec<usize> = (0..drafts.len()).collect();
    order.sort_by_key(|&draft| pump_of[draft]);
    let mut number_of = vec![0u32; drafts.len()];
    for (number, &draft) in order.iter().enumerate() {
        number_of[draft] = number as u32;
    }
    let (mut steps, mut needs) = (Vec::with_capacity(drafts.len()), Vec::new());
    let mut pumps: Vec<Pump> = channels
        .iter()
        .map(|&channel| Pump { channel, first: u32::MAX, last: 0, bytes: 0 })
        .collect();
    for &index in &order {
        let draft = &drafts[index];
        let pump = &mut pumps[pump_of[index]];
        pump.first = pump.first.min(steps.len() as u32);
        pump.last = steps.len() as u32 + 1;
        pump.bytes += draft.bytes;
        let first = needs.len() as u32;
        // Earlier steps of the same pump are complete anyway.
        let foreign =
            draft.needs.iter().filter(|need| pump_of[need.step as usize] != pump_of[index]);
        needs.extend(foreign.map(|need| Need { step: number_of[need.step as usize], ..*need }));
        steps.push(Step {
            kind: draft.kind,
            source: draft.source,
            target: draft.target,
            bytes: draft.bytes,
            needs: (first, needs.len() as u32),
            number: draft.number as u32,
            chunk: draft.chunk,
        });
    }
    let sent = pumps.iter().filter(|pump| matches!(pump.channel, Channel::To(_)));
    let sent_bytes = sent.map(|pump| pump.bytes).sum();
    Plan {
        steps: steps.into(),
        needs: needs.into(),
        pumps: pumps.into(),
        header,
        message_types: Box::default(),
        elem_bytes,
        scratch_bytes,
        sent_bytes,
        moves,
    }
}
