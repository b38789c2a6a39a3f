//! Which settings are refused: numbers that no run has, and flags that do not go with each other.

use super::Args;
use crate::error::Error;
use crate::offload::Tier;
use crate::optim::Rule;
use crate::parallel::tensor::Split;
use crate::parallel::{Axis, Mesh, Ways};
use crate::precision::Precision;

/// The most ranks that one command starts, as `brigade run` has it.
const RANKS_MAX: usize = 4096;
/// The most threads of a rank: starting more takes longer than what they would compute.
const THREADS_MAX: usize = 512;
/// The most samples, parts of a batch, windows and bytes of a text. Far beyond what anybody waits
/// for, so that what is counted from these stays a number.
const COUNT_MAX: usize = 1 << 24;

impl Args {
    /// Refuse what cannot work at this number of ranks, naming the flag.
    pub fn validate(&self, ranks: usize) -> Result<(), Error> {
        self.config().validate()?;
        self.check_numbers(ranks)?;
        if self.ranks > 1 && self.ranks != ranks {
            let problem = format!("{} were asked for, but {ranks} were started", self.ranks);
            return Err(Error::setting("ranks", problem));
        }
        if self.prompt.is_empty() {
            return Err(Error::setting("prompt", "must have at least one byte".to_string()));
        }
        let ways = Ways::of(&self.strategy)?;
        let mesh = self.mesh(ranks);
        ways.suit(&mesh, self.experts)?;
        self.check_travel(&ways, &mesh, ranks)?;
        if mesh.ranks() != ranks {
            let problem = format!("{mesh} has {} ranks, but there are {ranks}", mesh.ranks());
            return Err(Error::setting("mesh", problem));
        }
        if self.optimizer.has_norms() && mesh.length(Axis::Tp) > 1 {
            let problem = "has no norms of tensors that ranks divide".to_string();
            return Err(Error::setting("optimizer", problem));
        }
        if self.precision == Precision::F16 && mesh.length(Axis::Tp) > 1 {
            let problem = "f16 has overflows that ranks who divide tensors would not hear of; \
                           bf16 works";
            return Err(Error::setting("precision", problem.to_string()));
        }
        if self.draw.is_some() && !self.is_pipeline() {
            let problem = "there is nothing to draw without a pipeline: --strategy 1f1b is one";
            return Err(Error::setting("draw", problem.to_string()));
        }
        self.check_memory(&mesh)?;
        self.check_keep(ranks)?;
        self.device.check(self.plan)?;
        if self.ordered && ways.inside == Some(Split::Experts) && self.device.is_cuda() {
            let problem = "experts of several ranks on devices add up in the order of rows";
            return Err(Error::setting("ordered", problem.to_string()));
        }
        self.share_of(0, ranks)?;
        self.check_inside(&mesh, &ways)?;
        self.pipeline(ranks).map(drop)
    }

    /// Refuse numbers that no run has, each by itself.
    fn check_numbers(&self, ranks: usize) -> Result<(), Error> {
        let counts = [
            ("batch", Some(self.batch), COUNT_MAX),
            ("lanes", Some(self.lanes), COUNT_MAX),
            ("accumulate", self.accumulate, COUNT_MAX),
            ("chunks", self.chunks, COUNT_MAX),
            ("ranks", Some(self.ranks), RANKS_MAX),
            ("ranks", Some(ranks), usize::MAX),
            ("steps", Some(self.steps), usize::MAX),
            ("stop-at", self.stop_at, usize::MAX),
            ("top", Some(self.top), usize::MAX),
            ("tile", self.tile, usize::MAX),
            ("checkpoint-every", self.checkpoint_every, usize::MAX),
            ("print-every", Some(self.print_every), usize::MAX),
        ];
        for (name, value, most) in counts {
            match value {
                Some(0) => return Err(Error::setting(name, "must be at least 1".to_string())),
                Some(value) if value > most => {
                    return Err(Error::setting(name, format!("{value} is more than {most}")));
                }
                _ => {}
            }
        }
        for (name, count) in [("sample", self.sample), ("held-out", self.held_out)] {
            if count > COUNT_MAX {
                return Err(Error::setting(name, format!("{count} is more than {COUNT_MAX}")));
            }
        }
        if let Some(threads) = self.threads.filter(|it| !(1..=THREADS_MAX).contains(it)) {
            let problem = format!(
                "{threads} is not in 1 to {THREADS_MAX}; more than a rank has cores do not help, \
                 and without the flag ranks share them"
            );
            return Err(Error::setting("threads", problem));
        }
        if let Some(stop_at) = self.stop_at.filter(|stop_at| *stop_at > self.steps) {
            let problem = format!(
                "{stop_at} comes after the last of --steps {}: a longer run has more --steps",
                self.steps
            );
            return Err(Error::setting("stop-at", problem));
        }
        // Not-a-number fails these comparisons too.
        if !(self.lr > 0.0 && self.lr.is_finite()) {
            let problem = format!("must be a number above 0, up to {:e}", f32::MAX);
            return Err(Error::setting("lr", problem));
        }
        self.hyper.validate()?;
        if self.optimizer == Rule::Sgd && self.hyper.beta1 == 0.0 {
            let problem = "sgd keeps a momentum, so this must be above 0, such as 1e-9 for next to \
                           none";
            return Err(Error::setting("beta1", problem.to_string()));
        }
        if self.clip.is_some_and(|norm| !(norm > 0.0 && norm.is_finite())) {
            let problem = "must be a number above 0; gradients stay as they are without the flag";
            return Err(Error::setting("clip", problem.to_string()));
        }
        let rates = [("rate", self.rate.unwrap_or(1.0)), ("link", self.link)];
        for (name, rate) in rates {
            if !(1e-6..=1e12).contains(&rate) {
                return Err(Error::setting(name, "must be between 1e-6 and 1e12".to_string()));
            }
        }
        Ok(())
    }

    /// Refuse ways to save memory that do not go with others.
    fn check_memory(&self, mesh: &Mesh) -> Result<(), Error> {
        let is_divided = mesh.length(Axis::Tp) > 1 || self.experts > 0 || self.is_pipeline();
        let is_lean = self.recompute || self.offload_activations.is_some();
        if self.tile.is_some() && (is_divided || is_lean || self.optimizer.has_norms()) {
            let problem = "is for ranks that have whole samples, all they compute, and no norms of \
                           tensors: ddp, zero1, zero2 and fsdp, also with --offload";
            return Err(Error::setting("tile", problem.to_string()));
        }
        if let Some(tiles) = self.tile.filter(|tiles| !self.width.is_multiple_of(*tiles)) {
            let problem = format!("{tiles} tiles do not divide width {}", self.width);
            return Err(Error::setting("tile", problem));
        }
        let is_on_device = self.device.is_cuda();
        let goes = match self.precision {
            Precision::F32 => true,
            Precision::Bf16 => is_on_device,
            Precision::F16 => false,
        };
        if self.is_pipeline() && !goes {
            let problem = "does not go with a pipeline, but for bf16 on devices";
            return Err(Error::setting("precision", problem.to_string()));
        }
        if self.offload_activations == Some(Tier::Cpu) && !is_on_device {
            let problem = "they are in the host's memory already; nvme:FOLDER is elsewhere";
            return Err(Error::setting("offload-activations", problem.to_string()));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_work_is_refused_by_the_name_of_its_flag() {
        for (flags, ranks, name) in [
            ("--ranks 0", 0, "--ranks"),
            ("--ranks 3", 2, "--ranks"),
            ("--batch 16", 3, "--batch"),
            ("--batch 0", 1, "--batch"),
            ("--ordered --lanes 4", 3, "--lanes"),
            ("--heads 3", 1, "--heads"),
            ("--steps 0", 1, "--steps"),
            ("--stop-at 0", 1, "--stop-at"),
            ("--stop-at 1501", 1, "--stop-at"),
            ("--threads 0", 1, "--threads"),
            ("--threads 100000", 1, "--threads"),
            ("--ranks 4097", 4097, "--ranks"),
            ("--batch 18446744073709551615", 1, "--batch"),
            ("--ordered --lanes 18446744073709551615", 1, "--lanes"),
            ("--accumulate 4611686018427387904", 4, "--accumulate"),
            ("--sample 18446744073709551615", 1, "--sample"),
            ("--held-out 16777217", 1, "--held-out"),
            ("--experts 4 --top 0", 1, "--top"),
            ("--lr 1e300", 1, "--lr"),
            ("--lr nan", 1, "--lr"),
            ("--beta1 1", 1, "--beta1"),
            ("--beta1 0 --optimizer sgd", 1, "--beta1"),
            ("--beta2 nan", 1, "--beta2"),
            ("--eps 0", 1, "--eps"),
            ("--weight-decay inf", 1, "--weight-decay"),
            ("--clip 0", 1, "--clip"),
            ("--clip inf", 1, "--clip"),
            ("--clip 1 --strategy ps-async", 2, "--clip"),
            ("--strategy ps,tp --servers 2", 4, "--strategy"),
            ("--strategy ps-async,ep --experts 8", 4, "--strategy"),
            ("--accumulate 0", 1, "--accumulate"),
            ("--accumulate 5", 2, "--batch"),
            ("--strategy tp --precision f16", 2, "--precision"),
            ("--strategy ps --precision f16 --device cuda", 2, "--precision"),
            ("--strategy ps --precision bf16", 2, "--precision"),
            ("--strategy ep --experts 4 --ordered --device cuda", 2, "--ordered"),
            ("--strategy 1f1b --precision bf16", 2, "--precision"),
            ("--strategy 1f1b --precision f16 --device cuda", 2, "--precision"),
            ("--tf32", 1, "--tf32"),
            ("--plan --device cuda", 1, "--plan"),
            ("--device-budget 1G", 1, "--device-budget"),
            ("--draw x.svg", 2, "--draw"),
            ("--strategy interleaved --chunks 1000000", 2, "--layers"),
            ("--checkpoint x --checkpoint-every 0", 1, "--checkpoint-every"),
            ("--print-every 0", 1, "--print-every"),
            ("--prompt=", 1, "--prompt"),
            ("--plan --rate 0", 1, "--rate"),
            ("--plan --rate 1e-300", 1, "--rate"),
            ("--plan --link nan", 1, "--link"),
            ("--chunks 2", 2, "--chunks"),
            ("--strategy 1f1b --chunks 2", 2, "--chunks"),
            ("--strategy interleaved --chunks 2 --schedule x.csv", 2, "--chunks"),
            ("--strategy zero1,fsdp", 2, "--strategy"),
            ("--mesh dp=2", 3, "--mesh"),
            ("--strategy 1f1b --mesh dp=2", 2, "--mesh"),
            ("--strategy tp --mesh dp=2", 2, "--mesh"),
            ("--strategy tp,ring", 2, "--strategy"),
            ("--strategy ep", 2, "--experts"),
            ("--strategy tp --experts 4", 2, "--experts"),
            ("--experts 4 --top 5", 1, "--top"),
        ] {
            let problem = Args::of(flags).validate(ranks).unwrap_err().to_string();
            assert!(problem.starts_with(&format!("{name}: ")), "{flags}: {problem}");
        }
    }

    #[test]
    fn a_pipeline_of_one_stage_is_asked_for_by_name() {
        Args::of("--strategy zero1,1f1b --mesh dp=2,pp=1").validate(2).unwrap();
        let refused = Args::of("--strategy zero1,1f1b --mesh dp=2").validate(2).unwrap_err();
        assert!(refused.to_string().contains("has no pp: a pipeline wants pp=2"), "{refused}");
    }

    #[test]
    fn the_defaults_work_for_the_usual_numbers_of_ranks() {
        for ranks in [1, 2, 3, 4, 6, 8, 12, 16] {
            Args::of("").validate(ranks).unwrap();
        }
    }
}
