//! The plans of collectives, by the shape of the calls that they serve.

use brigade_schedule::Collective;

use super::Engine;
use super::recent::key_of;
use crate::call::{Call, Counts};
use crate::drive::Prepared;
use crate::extent::Extent;
use crate::header::{Header, Window};
use crate::plan::link;
use crate::purpose::Purpose;
use crate::reduction::Reduction;
use crate::{Dtype, Error};

/// A plan and the calls it serves.
pub(super) struct Shape {
    collective: Collective,
    dtype: Dtype,
    /// In place of the operator, which may be the user's and must not be kept.
    op_code: u8,
    counts: Counts,
    pub(super) in_place: bool,
    purpose: Purpose,
    pub(super) extent: Extent,
    /// How these calls fold, except those with a function of the user's.
    pub(super) reduction: Reduction,
    pub(super) prepared: Prepared,
}

impl Shape {
    /// How long it is, about.
    fn bytes(&self) -> usize {
        let counts = match &self.counts {
            Counts::Even(_) => 0,
            Counts::PerRank(counts) => size_of_val(&**counts),
            Counts::PerPair { to, from } => size_of_val(&**to) + size_of_val(&**from),
        };
        size_of::<Self>() + counts + self.prepared.heap_bytes()
    }
}

fn key(purpose: Purpose, call: &Call, in_place: bool) -> u32 {
    let Call { collective, dtype, op, counts } = call;
    key_of((purpose, collective, dtype, op.code(), counts, in_place))
}

impl Engine {
    /// The plan made before for calls of this shape.
    #[inline]
    pub(super) fn find(&mut self, purpose: Purpose, call: &Call, in_place: bool) -> Option<usize> {
        let op_code = call.op.code();
        self.plans.find(
            || key(purpose, call, in_place),
            |shape| {
                shape.in_place == in_place
                    && shape.purpose == purpose
                    && shape.collective == call.collective
                    && shape.dtype == call.dtype
                    && shape.op_code == op_code
                    && shape.counts == call.counts
            },
        )
    }

    /// Make the plan for calls of a new shape, and open the wires that it needs.
    pub(super) fn prepare(
        &mut self,
        purpose: Purpose,
        call: &Call,
        extent: Extent,
        in_place: bool,
    ) -> Result<usize, Box<Error>> {
        let algorithm = self.selector.choose(call, self.ranks, &self.settings)?.algorithm;
        let program = self.selector.program(call, algorithm, (self.rank, self.ranks))?;
        let code = crate::codes::code(algorithm);
        let window = Window::at_most(self.settings.window_bytes);
        let whole = purpose.whole(call);
        let header = Header::of_call(&whole, code, self.group, window).with_purpose(purpose);
        let plan = link(&program, call, header, window.bytes(), in_place)
            .map_err(|error| Error::invalid(format!("{call}: {error}")))?;
        let name = format!("{}{whole} by {algorithm}", purpose.prefix());
        let prepared = Prepared { plan, name };
        self.driver.open_wires(&prepared, self.settings.join_patience())?;
        let shape = Shape {
            collective: call.collective,
            dtype: call.dtype,
            op_code: call.op.code(),
            counts: call.counts.clone(),
            in_place,
            purpose,
            extent,
            reduction: Reduction::built_in(call),
            prepared,
        };
        Ok(self.plans.insert(key(purpose, call, in_place), shape.bytes(), shape))
    }
}

#[cfg(test)]
mod tests {
    use crate::{Communicator, Op, Settings};

    /// Reduce vectors of these lengths among two ranks; the plans that each of them keeps then.
    fn kept(settings: Settings, lengths: &[usize]) -> Vec<(usize, usize)> {
        let settings = Settings { transport: "loopback".into(), ..settings };
        let members = Communicator::local_world(2, &settings).expect("a world");
        let kept = |member: Communicator| {
            let mut data = vec![1_u8; lengths.iter().copied().max().unwrap_or(0)];
            for &length in lengths {
                member.all_reduce(&mut data[..length], Op::Max).expect("an all-reduce");
            }
            member.shared().lock().expect("no call is on its way").plans.kept()
        };
        std::thread::scope(|scope| {
            let ranks = members.into_iter().map(|member| scope.spawn(|| kept(member)));
            let ranks: Vec<_> = ranks.collect();
            ranks.into_iter().map(|rank| rank.join().expect("no panic")).collect()
        })
    }

    #[test]
    fn a_step_of_hundreds_of_calls_makes_each_plan_once() {
        let step: Vec<usize> = (1..=200).collect();
        let once = kept(Settings::default(), &step);
        assert!(once.iter().all(|&(count, _)| count == step.len()), "{once:?}");
        assert_eq!(kept(Settings::default(), &step.repeat(3)), once);
    }

    /// A step has some hundred bytes, which all count.
    #[test]
    fn long_plans_are_known_to_be_long() {
        let short_windows = Settings { window_bytes: 4, ..Settings::default() };
        for (count, bytes) in kept(short_windows, &[400_000]) {
            assert!(count == 1 && bytes > 1 << 20, "{count} of {bytes} bytes");
        }
    }
}
