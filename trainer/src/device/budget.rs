//! How much of a device a rank may use where nobody says.

use super::args::DeviceUse;
use crate::error::Error;
use crate::kernels::cuda::open_context;
use brigade_comm::Communicator;
use brigade_cuda::Context;

/// What a rank's part must leave free beside a tenth of it: cuBLAS works in some 32 MiB, and ranks
/// lend each other some for calls.
const BESIDE: u64 = 64 << 20;

impl DeviceUse {
    /// This use with a budget, which is the same on all ranks, as it decides who has the state; and
    /// the device, which stays open while that is kept. What no flag says is this rank's part of
    /// what is free on its device. A rank that uses no device gives nothing. Collective.
    ///
    /// Errors: those of `Device::open`, and of calls.
    pub(crate) fn with_budget(
        self,
        world: Option<&Communicator>,
        computes: bool,
    ) -> Result<(DeviceUse, Option<Context>), Error> {
        if self.budget.is_some() {
            return Ok((self, None));
        }
        let context = computes.then(|| open_context(self.index)).transpose()?;
        // A context takes some of its device, so all are open before anybody looks.
        world.map_or(Ok(()), Communicator::barrier)?;
        let mine = context.as_ref().map(on_its_device).transpose()?.unwrap_or([0; 3]);
        let mut all = mine.to_vec();
        if let Some(world) = world {
            all = vec![0; mine.len() * world.size()];
            world.all_gather(&mine, &mut all)?;
        }
        let budget = part(all.as_chunks::<3>().0);
        Ok((DeviceUse { budget: Some(budget), ..self }, context))
    }
}

/// Who a device is, and how many bytes of it are free.
fn on_its_device(context: &Context) -> Result<[u64; 3], Error> {
    let (low, high) = context.device().uuid.split_at(8);
    let number = |half: &[u8]| u64::from_le_bytes(half.try_into().expect("eight of sixteen bytes"));
    let (free, _) = context.memory()?;
    Ok([number(low), number(high), free as u64])
}

/// The least part of a device that a rank has, of those that these ranks have.
fn part(ranks: &[[u64; 3]]) -> usize {
    // Who uses none says that its device has no name.
    let shares = ranks.iter().filter(|rank| rank[..2] != [0; 2]).map(|rank| {
        let sharing = ranks.iter().filter(|other| other[..2] == rank[..2]).count() as u64;
        rank[2] / sharing
    });
    let least = shares.min().unwrap_or(0);
    (least - least / 10).saturating_sub(BESIDE) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_of_a_device_share_what_is_free_and_all_have_the_least_part() {
        let gib = 1 << 30;
        let of = |free: u64| (free - free / 10 - BESIDE) as usize;
        assert_eq!(part(&[[1, 2, gib]]), of(gib));
        assert_eq!(part(&[[1, 2, gib], [1, 3, gib]]), of(gib));
        assert_eq!(part(&[[1, 2, gib], [1, 2, gib]]), of(gib / 2));
        // Who serves has no device, and is no device's.
        assert_eq!(part(&[[1, 2, gib], [3, 2, gib / 2], [0; 3], [0; 3]]), of(gib / 2));
        assert_eq!(part(&[[1, 2, 1 << 20]]), 0);
        // A device that is full leaves nothing to anybody.
        assert_eq!(part(&[[1, 2, gib], [1, 3, 0]]), 0);
    }
}
