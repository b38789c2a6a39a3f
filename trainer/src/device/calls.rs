//! Calls of the devices themselves, in a stream of their own beside what computes.

use crate::error::Error;
use crate::kernels::cuda::View;
use brigade_comm::device::{DeviceGroup, DeviceMessage, DeviceShare, Way};
use brigade_comm::{Call, Communicator, Dtype, Op};
use brigade_cuda::{Event, Stream};

/// Calls on memory of devices.
pub(crate) struct Calls<'a> {
    comm: &'a Communicator,
    group: DeviceGroup,
    stream: Stream,
    compute: Stream,
    /// Before the call that is made next, and the one before that.
    computed: [Event; 2],
    /// After all that were made.
    summed: Event,
    /// What is to be made next, from and to where, and which event it waits for.
    next: Option<(Call, [View; 2], usize)>,
    /// Bytes that the hosts of ranks have sent to let their devices meet.
    meeting_bytes: u64,
}

impl<'a> Calls<'a> {
    /// Beside this stream, where so many groups of this rank have some; none where none may, and
    /// where devices do not reach each other, and pinned memory does as well. Nor where ranks share
    /// a process and steps differ in what they compute, as gates decide: code may then be loaded at
    /// any time (see `shares_process`). Collective.
    pub(crate) fn new(
        comm: &'a Communicator,
        groups: u32,
        compute: &Stream,
        has_gates: bool,
    ) -> Result<Option<Calls<'a>>, Error> {
        if groups == 0 {
            return Ok(None);
        }
        let context = compute.context();
        let before = comm.stats().sent_bytes;
        let group = comm.on_device_with(context, DeviceShare::among(groups))?;
        let mut shares = [u64::from(has_gates && group.shares_process())];
        if has_gates {
            comm.all_reduce(&mut shares, Op::Max)?;
        }
        if matches!(group.way(), Way::Staged | Way::ByNodes) || shares != [0] {
            return Ok(None);
        }
        // Calls are in front of the memory that they are on, which goes behind them.
        group.keep_open();
        Ok(Some(Calls {
            stream: Stream::urgent(context)?,
            compute: compute.clone(),
            computed: [Event::new(context)?, Event::new(context)?],
            summed: Event::new(context)?,
            next: None,
            meeting_bytes: comm.stats().sent_bytes - before,
            comm,
            group,
        }))
    }

    /// No other rank uses this one's device any more. Every rank calls it, behind all calls.
    pub(crate) fn close(&self) -> Result<(), Error> {
        Ok(self.group.close()?)
    }

    /// The same of the calls of several groups, of which each is closed whatever others come to:
    /// the first error.
    pub(crate) fn close_all<'c>(all: impl Iterator<Item = &'c Calls<'a>>) -> Result<(), Error>
    where
        'a: 'c,
    {
        let ends: Vec<_> = all.map(Calls::close).collect();
        ends.into_iter().collect()
    }

    /// Who sums, and how devices meet for it.
    pub(crate) fn describe(&self) -> &'static str {
        match self.meets() {
            false => "by the devices",
            true => "by the devices between meetings of their hosts",
        }
    }

    /// Whether the hosts meet for a call.
    pub(crate) fn meets(&self) -> bool {
        !matches!(self.group.way(), Way::Together | Way::Linked)
    }

    /// What the hosts have sent for it.
    pub(crate) fn meeting_bytes(&self) -> u64 {
        self.meeting_bytes
    }

    /// Whether ranks are threads of one process. Then all that a step computes is computed once
    /// before the first call of a run, behind all else that loads code or takes memory, and they
    /// `meet`: whoever loads code, as cuBLAS does at each first product of a kind, waits for
    /// everything on the device and on those that reach it, and holds up the other threads, of
    /// which a call that is there already may wait for one.
    pub(crate) fn shares_process(&self) -> bool {
        self.group.shares_process()
    }

    /// Go on once all ranks have computed what they were given.
    pub(crate) fn meet(&mut self) -> Result<(), Error> {
        self.compute.synchronize()?;
        let before = self.comm.stats().sent_bytes;
        self.comm.barrier()?;
        self.meeting_bytes += self.comm.stats().sent_bytes - before;
        Ok(())
    }

    /// Tell the others that this rank goes no further. It will give memory back, which waits for
    /// the device, on which their calls may wait for this rank.
    pub(crate) fn abort(&self, error: &Error) {
        self.comm.abort(&error.to_string());
    }

    /// Sum a view over all ranks, in place, once all is computed that was asked for so far.
    pub(crate) fn sum(&mut self, call: Call, view: View) -> Result<(), Error> {
        self.later(call, [view, view])
    }

    /// Make a call, once all is computed that was asked for so far, beside what comes next: that
    /// writes neither view, and does not read the second. Where hosts have to meet for it, it is
    /// made with the next one: they shall have given their devices something to compute meanwhile.
    pub(crate) fn later(&mut self, call: Call, views: [View; 2]) -> Result<(), Error> {
        let at = self.next.as_ref().map_or(0, |(_, _, at)| 1 - at);
        self.compute.record(&self.computed[at])?;
        self.flush()?;
        self.next = Some((call, views, at));
        if self.meets() { Ok(()) } else { self.flush() }
    }

    /// What is computed after this sees all that.
    pub(crate) fn deliver(&mut self) -> Result<(), Error> {
        self.flush()?;
        self.stream.record(&self.summed)?;
        Ok(self.compute.wait(&self.summed)?)
    }

    fn flush(&mut self) -> Result<(), Error> {
        let Some((call, [from, to], at)) = self.next.take() else { return Ok(()) };
        self.stream.wait(&self.computed[at])?;
        self.make(&call, from, to)
    }

    /// Sum a view over all ranks, in place, within the order of what computes.
    pub(crate) fn in_order(&mut self, call: &Call, view: View) -> Result<(), Error> {
        let stream = self.compute.clone();
        self.enqueue(call, view, view, &stream)
    }

    /// Calls that are made after this wait for the event.
    pub(crate) fn wait(&self, event: &Event) -> Result<(), Error> {
        Ok(self.stream.wait(event)?)
    }

    /// Record the event behind the calls that were made.
    pub(crate) fn mark(&self, event: &Event) -> Result<(), Error> {
        Ok(self.stream.record(event)?)
    }

    /// Make a call, in the order of all others. Nothing that computes writes `from`, or touches
    /// `to`, before it waits for an event behind the call.
    pub(crate) fn make(&mut self, call: &Call, from: View, to: View) -> Result<(), Error> {
        let stream = self.stream.clone();
        self.enqueue(call, from, to, &stream)
    }

    /// Whether what one rank has for another goes there, however long, without their hosts, and out
    /// of memory that other processes cannot be given.
    pub(crate) fn has_messages(&self) -> bool {
        self.group.way() == Way::Linked
    }

    /// Each view to its rank, and what that has for this one into others, within the order of what
    /// computes. Between two ranks both list what goes one way in the same order.
    pub(crate) fn trade(
        &mut self,
        out: impl Iterator<Item = (usize, View)>,
        into: impl Iterator<Item = (usize, View)>,
    ) -> Result<(), Error> {
        let message = |(rank, view): (usize, View), sends: bool| {
            let (dtype, address, len) = (dtype(view), view.address(), view.len());
            match sends {
                true => DeviceMessage::send(dtype, address, len, rank),
                false => DeviceMessage::recv(dtype, address, len, rank),
            }
        };
        let out = out.map(|one| message(one, true));
        let messages: Vec<_> = out.chain(into.map(|one| message(one, false))).collect();
        // SAFETY: each view's owner keeps it, and what computes comes before this or behind it.
        Ok(unsafe { self.group.messages(&messages, &self.compute) }?)
    }

    fn enqueue(&mut self, call: &Call, from: View, to: View, stream: &Stream) -> Result<(), Error> {
        let (ranks, rank) = (self.comm.size() as u32, self.comm.rank() as u32);
        let (input, output) = call.buffer_elems(ranks, rank);
        assert!(from.len() == input && to.len() == output, "{call}: {from:?} to {to:?}");
        let before = self.comm.stats().sent_bytes;
        // SAFETY: both views are as long as the call says, their owner keeps them, and what
        // computes keeps away from them, by its order or by its events.
        unsafe { self.group.enqueue(call, from.address(), to.address(), stream) }?;
        self.meeting_bytes += self.comm.stats().sent_bytes - before;
        Ok(())
    }
}

/// What numbers inside are.
pub(crate) fn dtype(view: View) -> Dtype {
    if view.size() == 4 { Dtype::F32 } else { Dtype::Bf16 }
}
