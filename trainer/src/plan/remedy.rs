//! What would fit where a run does not: what changes least of it first, and nothing is named that
//! was not planned and found to fit.

use super::{RANKS_MAX, make};
use crate::args::Args;
use crate::parallel::Way;
use crate::report::size;

/// Something else to ask for: the flags that say it, the settings with them, and among how many.
type Ask = (String, Args, usize);

/// The end of a sentence that refuses `args`: with which flags a rank needs no more than `budget`.
/// The same model and batch on as many ranks come first, then more ranks, then a smaller batch; and
/// if nothing of these does it, what there is no way around, and a smaller model.
pub(super) fn told(args: &Args, ranks: usize, budget: u64) -> String {
    let mut least = u64::MAX;
    let same = found(String::new(), args, ranks, budget, &mut least);
    let other = same.or_else(|| {
        let asks = on_more_ranks(args, ranks).chain(of_smaller_batches(args, ranks));
        asks.into_iter().find_map(|ask| within(ask, budget, &mut least))
    });
    if let Some(fitting) = other {
        return fitting;
    }
    let mut thinner = u64::MAX;
    let thin = of_smaller_widths(args, ranks).find_map(|ask| within(ask, budget, &mut thinner));
    let least = match least {
        u64::MAX => String::new(),
        least => format!(
            "; neither more ranks (up to {RANKS_MAX}) nor a smaller --batch come below {}",
            size(least)
        ),
    };
    let thin =
        thin.unwrap_or_else(|| String::from("; fewer --layers or a shorter --context need less"));
    least + &thin
}

/// The first of all ways to ask for this that fits. Whatever the thriftiest need, with the strategy
/// that was asked for and with another, counts as the least that it can do with; where neither
/// fits, nothing else is tried.
fn within(ask: Ask, budget: u64, least: &mut u64) -> Option<String> {
    let (flags, args, ranks) = ask;
    let asks = possible(flags.clone(), &args, ranks);
    let own = asks.iter().rfind(|(flags, ..)| !flags.contains("--strategy"));
    let mut thriftiest = own.into_iter().chain(asks.last());
    thriftiest.find(|ask| need(ask, least).is_some_and(|need| need <= budget))?;
    found(flags, &args, ranks, budget, least)
}

fn found(flags: String, args: &Args, ranks: usize, budget: u64, least: &mut u64) -> Option<String> {
    possible(flags, args, ranks).into_iter().find_map(|ask| {
        let need = need(&ask, least)?;
        (need <= budget).then(|| format!("; with {} it would be {}", ask.0, size(need)))
    })
}

fn need((_, args, ranks): &Ask, least: &mut u64) -> Option<u64> {
    let need = make(args, *ranks).ok()?.memory.total();
    *least = need.min(*least);
    Some(need)
}

/// These settings, as they are if `flags` name them, and with what makes them thriftier, as far as
/// there is such a run.
fn possible(flags: String, args: &Args, ranks: usize) -> Vec<Ask> {
    let own = (!flags.is_empty()).then(|| (String::new(), Args { budget: None, ..args.clone() }));
    let all = own.into_iter().chain(alternatives(args, ranks));
    let all = all.filter(|(_, args)| args.validate(ranks).is_ok());
    all.map(|(more, args)| (format!("{flags} {more}").trim().to_string(), args, ranks)).collect()
}

fn on_more_ranks(args: &Args, ranks: usize) -> impl Iterator<Item = Ask> {
    let counts = (2..=RANKS_MAX / ranks).map(move |times| times * ranks);
    counts.map(|ranks| (format!("-n {ranks}"), Args { ranks, ..args.clone() }, ranks))
}

fn of_smaller_batches(args: &Args, ranks: usize) -> impl Iterator<Item = Ask> {
    halves(args.batch / ranks).map(move |each| {
        let batch = each * ranks;
        (format!("--batch {batch}"), Args { batch, ..args.clone() }, ranks)
    })
}

fn of_smaller_widths(args: &Args, ranks: usize) -> impl Iterator<Item = Ask> {
    halves(args.width / args.heads).map(move |each| {
        let width = each * args.heads;
        (format!("--width {width}"), Args { width, ..args.clone() }, ranks)
    })
}

/// Half of it, and so on down to one.
fn halves(number: usize) -> impl Iterator<Item = usize> {
    std::iter::successors(Some(number / 2), |number| Some(number / 2)).take_while(|it| *it > 0)
}

/// The same run in less memory, what changes least of it first: its own strategy in smaller parts
/// of a batch, then with less kept for backward, then what ranks hold in parts.
fn alternatives(args: &Args, ranks: usize) -> Vec<(String, Args)> {
    let own = (String::new(), args.clone());
    let with = |way: Way| {
        (format!(" --strategy {}", way.name()), Args { strategy: vec![way], ..args.clone() })
    };
    let of_parts = [Way::Zero1, Way::Zero2, Way::Fsdp];
    let is_plain = matches!(args.strategy[..], [way] if way == Way::Ddp || of_parts.contains(&way));
    // One rank has nobody to divide with.
    let others = of_parts.into_iter().filter(|way| ranks > 1 && !args.strategy.contains(way));
    let others = others.filter(|_| is_plain).map(with);
    let mut found = Vec::new();
    for (flags, args) in std::iter::once(own).chain(others) {
        for recompute in [false, true] {
            if recompute && (args.recompute || args.offload_activations.is_some()) {
                continue;
            }
            let flags = if recompute { format!("{flags} --recompute") } else { flags.clone() };
            let args = Args { recompute: args.recompute || recompute, ..args.clone() };
            found.extend(in_parts(&args).into_iter().map(|(parts, args)| {
                let flags = format!("{flags}{parts}");
                (flags.trim_start().to_string(), Args { budget: None, ..args })
            }));
        }
    }
    found.retain(|(flags, _)| !flags.is_empty());
    found
}

/// The run as it is, and with a rank's share of a batch in more and more parts.
fn in_parts(args: &Args) -> Vec<(String, Args)> {
    let (name, usual) = match args.is_pipeline() {
        true => ("micro-batches", 4),
        false => ("accumulate", 1),
    };
    let own = args.accumulate.unwrap_or(usual);
    let more = std::iter::successors(own.checked_mul(2), |parts| parts.checked_mul(2));
    let more = more.take_while(|parts| *parts <= args.batch && !args.ordered);
    let more = more.map(|parts| {
        (format!(" --{name} {parts}"), Args { accumulate: Some(parts), ..args.clone() })
    });
    std::iter::once((String::new(), args.clone())).chain(more).collect()
}

#[cfg(test)]
mod tests {
    use super::super::check;
    use super::super::tests::args;
    use super::*;

    fn refusal(flags: &str, ranks: usize, budget: u64) -> String {
        let refused = check(&Args { budget: Some(budget as usize), ..args(flags) }, ranks);
        refused.unwrap_err().to_string()
    }

    /// What is said to fit does, asked for in just these words.
    fn check_advice(flags: &str, ranks: usize, budget: u64, wanted: &str) {
        let told = refusal(flags, ranks, budget);
        let (_, advice) = told.split_once("; with ").expect(&told);
        let (advice, _) = advice.split_once(" it would be ").expect(&told);
        assert!(advice.contains(wanted), "{told}");
        let ranks = advice
            .strip_prefix("-n ")
            .map_or(ranks, |rest| rest.split(' ').next().unwrap().parse().unwrap());
        let asked = Args { budget: Some(budget as usize), ..args(&format!("{flags} {advice}")) };
        check(&asked, ranks).unwrap();
    }

    #[test]
    fn what_is_named_fits() {
        let of = |flags, ranks| make(&args(flags), ranks).unwrap().memory.total();
        check_advice("", 2, of("--strategy fsdp --recompute --accumulate 2", 2), "--strategy ");
        check_advice("", 2, of("--strategy fsdp --recompute", 12), "-n ");
        check_advice("--ordered", 2, of("--strategy fsdp --recompute --ordered", 12), "-n ");
    }

    #[test]
    fn where_nothing_helps_the_model_is_to_be_smaller() {
        let told = refusal("", 2, 200_000);
        let said =
            told.contains("; neither more ranks (up to 64) nor a smaller --batch come below ");
        assert!(said && told.contains("; with --width "), "{told}");
        let hopeless = refusal("", 2, 1000);
        assert!(
            hopeless.ends_with("; fewer --layers or a shorter --context need less"),
            "{hopeless}"
        );
    }

    #[test]
    fn what_would_fit_is_tried_from_the_least_change_on() {
        let flags = |more: &str, ranks: usize| -> Vec<String> {
            let tried = alternatives(&args(more), ranks).into_iter();
            tried.map(|(flags, _)| flags).collect()
        };
        let alone = flags("", 1);
        assert_eq!(alone[..3], ["--accumulate 2", "--accumulate 4", "--accumulate 8"]);
        assert_eq!(alone[3..5], ["--recompute", "--recompute --accumulate 2"]);
        assert!(alone.iter().all(|flags| !flags.contains("--strategy")), "{alone:?}");
        let two = flags("--strategy zero1 --recompute --accumulate 3", 2);
        assert_eq!(two[..3], ["--accumulate 6", "--accumulate 12", "--strategy zero2"]);
        assert!(two.iter().all(|flags| !flags.contains("zero1")), "{two:?}");
        assert_eq!(flags("--strategy 1f1b", 2)[..2], ["--micro-batches 8", "--recompute"]);
        let ordered = flags("--ordered", 2);
        assert!(ordered.iter().all(|flags| !flags.contains("--accumulate")), "{ordered:?}");
    }
}
