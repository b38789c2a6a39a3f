//! The numbers of a rule.

use crate::error::Error;
use clap::Args;
use serde::Serialize;

/// The numbers of a rule, with AdamW's names.
#[derive(Clone, Copy, Debug, PartialEq, Args, Serialize)]
pub struct Hyper {
    /// Memory of the mean gradient; the momentum of lars and sgd
    #[arg(long, default_value_t = Hyper::default().beta1)]
    pub beta1: f32,
    /// Memory of the mean squared gradient; of lion's momentum
    #[arg(long, default_value_t = Hyper::default().beta2)]
    pub beta2: f32,
    /// What adamw and lamb add to roots that they divide by
    #[arg(long, default_value = "1e-8")]
    pub eps: f32,
    /// The part of a matrix, times the learning rate, that each step takes away from it
    #[arg(long = "weight-decay", default_value_t = Hyper::default().decay)]
    #[serde(rename = "weight_decay")]
    pub decay: f32,
}

impl Default for Hyper {
    fn default() -> Hyper {
        Hyper { beta1: 0.9, beta2: 0.95, eps: 1e-8, decay: 0.1 }
    }
}

impl Hyper {
    /// Refuse what no rule can work with, naming the flag.
    pub(crate) fn validate(self) -> Result<(), Error> {
        // Not-a-number fails these comparisons too.
        for (name, beta) in [("beta1", self.beta1), ("beta2", self.beta2)] {
            if !(0.0..1.0).contains(&beta) {
                return Err(Error::setting(name, format!("{beta} is not in 0 to 1, without 1")));
            }
        }
        if !(self.eps > 0.0 && self.eps.is_finite()) {
            return Err(Error::setting("eps", "must be a number above 0".to_string()));
        }
        if !(self.decay >= 0.0 && self.decay.is_finite()) {
            let problem = "must be a number, 0 for none, and not below";
            return Err(Error::setting("weight-decay", problem.to_string()));
        }
        Ok(())
    }

    /// Each number by its flag, as short as it can be told.
    pub(crate) fn by_flag(self) -> [(&'static str, String); 4] {
        let Hyper { beta1, beta2, eps, decay } = self;
        let numbers = [("beta1", beta1), ("beta2", beta2), ("eps", eps), ("weight-decay", decay)];
        numbers.map(|(flag, number)| (flag, format!("{number:?}")))
    }
}

#[cfg(test)]
mod tests {
    use crate::args::Args;

    #[test]
    fn what_is_not_told_is_usual() {
        assert_eq!(Args::of("").hyper, super::Hyper::default());
        assert_eq!(Args::of("").optimizer(), "adamw");
        let told = Args::of("--eps 1e-6 --weight-decay 0 --clip 2").optimizer();
        assert_eq!(told, "adamw --eps 1e-6 --weight-decay 0.0, of gradients no longer than 2");
    }
}
