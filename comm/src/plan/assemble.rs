//! The last step of linking: steps become a plan, sorted by the wire they use.

use brigade_transports::outgrows_caches;

use super::{Channel, Kind, Message, Need, Place, Plan, Pump, Space, Step};
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

impl Draft {
    /// Whether it writes what the caller shall have, where nothing in the call was read or written
    /// before: what was is in a cache already.
    fn is_written_anew(&self) -> bool {
        let is_anew = match self.kind {
            Kind::Recv | Kind::Copy => true,
            Kind::Fold => self.source != self.target,
            Kind::Send | Kind::Merge { .. } | Kind::Update { .. } => false,
        };
        is_anew && self.needs.is_empty() && self.target.space != Space::Scratch
    }
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
    let mut is_needed = vec![false; drafts.len()];
    for need in drafts.iter().flat_map(|draft| &draft.needs) {
        is_needed[need.step as usize] = true;
    }
    let written = drafts.iter().filter(|draft| draft.is_written_anew());
    let is_long = outgrows_caches(written.map(|draft| draft.bytes).sum());
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
            is_past_caches: is_long && draft.is_written_anew() && !is_needed[index],
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

#[cfg(test)]
mod tests {
    use brigade_schedule::{Algorithm, Collective, program};

    use crate::call::Call;
    use crate::header::{Header, Window};
    use crate::plan::{Kind, Step, link};
    use crate::{Dtype, Op};

    /// More than any cache holds, and less.
    const LONG: usize = 1 << 40;
    const SHORT: usize = 1 << 10;

    /// The steps of rank 1 by a ring that write, and whether past the caches.
    fn writes(
        collective: Collective,
        (ranks, elems): (u32, usize),
        in_place: bool,
    ) -> Vec<(Kind, bool)> {
        let call = Call::new(collective, Dtype::F32, Op::Sum, elems);
        let program = program(collective, Algorithm::Ring, ranks, 1).expect("a ring");
        let window = Window::at_most(1 << 50);
        let header = Header::of_call(&call, 0, 0, window);
        let plan = link(&program, &call, header, window.bytes(), in_place).expect("a plan");
        let writes = |step: &&Step| step.kind != Kind::Send;
        plan.steps.iter().filter(writes).map(|step| (step.kind, step.is_past_caches)).collect()
    }

    #[test]
    fn what_is_long_and_touched_once_goes_past_the_caches() {
        use Collective::{AllGather, AllReduce, ReduceScatter};
        use Kind::{Copy, Fold, Recv};
        let long = |collective, in_place| writes(collective, (4, LONG), in_place);
        let gather = [(Recv, false), (Recv, false), (Recv, true)];
        assert_eq!(long(AllGather, true), gather, "what is passed on is read again");
        assert_eq!(long(AllGather, false), [&gather[..], &[(Copy, true)]].concat());
        let scatter = |last| [(Fold, false), (Fold, false), (Fold, last)];
        assert_eq!(long(ReduceScatter, false), scatter(true));
        assert_eq!(long(ReduceScatter, true), scatter(false), "what is there was read");
        let reduce = long(AllReduce, false);
        assert!(reduce.iter().all(|(_, is_past)| !is_past), "all was folded before: {reduce:?}");
        let of_two = |in_place| writes(AllReduce, (2, LONG), in_place);
        assert_eq!(of_two(false), [(Fold, false), (Recv, true)]);
        assert_eq!(of_two(true), [(Fold, false), (Recv, false)], "what is there was sent");
        let short = writes(AllGather, (4, SHORT), false);
        assert!(short.iter().all(|(_, is_past)| !is_past), "{short:?}");
    }
}
