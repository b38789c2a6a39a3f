//! What a run takes at the very least, so that one that cannot fit is refused with a sentence: an
//! allocation that the system refuses ends the process instead.
//!
//! Not here: what it takes in full. `plan` says that, from strategies that have been built.

use super::Args;
use crate::error::Error;
use crate::layout::Layout;
use crate::offload::Tier;
use crate::parallel::{Axis, Stage, Ways};
use crate::report::{size, two_sizes};
use brigade_offload::memory::available_bytes;

/// Parts of what a rank takes: always less than it does. \[bytes\]
struct Least {
    params: u64,
    grads: u64,
    logits: u64,
    stream: u64,
}

impl Args {
    /// Refuse what cannot fit into this machine's memory, even with nothing else in it.
    pub(crate) fn check_room(&self, ranks: usize) -> Result<(), Error> {
        let Some(available) = available_bytes().map(|bytes| bytes as u64) else { return Ok(()) };
        let least = self.least(ranks)?;
        let is_in_files = matches!(self.offload, Some(Tier::Nvme(_)));
        let state = if is_in_files { least.grads } else { least.params + least.grads };
        let on_host = self.device.usage(0, self.precision).is_none();
        let pass = if on_host { least.logits + least.stream } else { 0 };
        let too_much = |bytes: u64| {
            let [bytes, available] = two_sizes([bytes, available]);
            format!("takes {bytes} a rank or more, and {available} are available")
        };
        if state > available {
            let problem = format!(
                "such a model {}: a smaller --width, fewer --layers, or --strategy fsdp on more \
                 ranks",
                too_much(state)
            );
            return Err(Error::setting("width", problem));
        }
        if pass > available {
            let problem = format!(
                "a pass over so many samples {}: a smaller --batch, more --ranks or --accumulate",
                too_much(pass)
            );
            return Err(Error::setting("batch", problem));
        }
        Ok(())
    }

    /// Refuse to plan what the system would not even promise memory for.
    pub(crate) fn check_promise(&self, name: &'static str, ranks: usize) -> Result<(), Error> {
        let Least { params, logits, .. } = self.least(ranks)?;
        let bytes = params.max(logits);
        let is_promised = usize::try_from(bytes)
            .is_ok_and(|bytes| Vec::<u8>::new().try_reserve_exact(bytes).is_ok());
        if is_promised {
            return Ok(());
        }
        let problem = format!(
            "the run is built in memory that is asked for and never touched, and this system \
             refuses to promise {} at once: allow that (sysctl vm.overcommit_memory=1, or a higher \
             ulimit -v); or `brigade offload plan` counts without any",
            size(bytes)
        );
        Err(Error::setting(name, problem))
    }

    fn least(&self, ranks: usize) -> Result<Least, Error> {
        let (config, mesh) = (self.config(), self.mesh(ranks));
        let divided = (mesh.length(Axis::Tp) * mesh.length(Axis::Pp)) as u64;
        let is_in_parts = Ways::of(&self.strategy)?.data == Stage::Fsdp;
        let parts = if is_in_parts { ranks as u64 } else { divided };
        let state = 4 * Layout::new(config).len() as u64;
        let tokens = self.share_of(0, ranks)?.samples() * self.context / mesh.length(Axis::Tp);
        let rows = 4 * tokens as u64;
        Ok(Least {
            params: state / parts,
            grads: state / ranks as u64,
            logits: rows * config.vocab as u64,
            stream: rows * config.width as u64,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_memory_holds_is_refused_and_what_any_holds_is_not() {
        Args::of("").check_room(1).unwrap();
        Args::of("").check_promise("plan", 1).unwrap();
        for (flags, name) in [
            ("--layers 4096 --width 65536", "--width"),
            ("--layers 4096 --width 65536 --experts 4096", "--width"),
            ("--batch 16777216 --context 65536 --layers 1", "--batch"),
        ] {
            let args = Args::of(flags);
            args.validate(1).unwrap();
            let problem = args.check_room(1).unwrap_err().to_string();
            assert!(problem.starts_with(name) && problem.contains("available"), "{problem}");
            let problem = args.check_promise("plan", 1).unwrap_err().to_string();
            assert!(problem.starts_with("--plan"), "{problem}");
        }
    }
}
