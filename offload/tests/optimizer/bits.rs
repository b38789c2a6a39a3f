//! The bits of a result depend on the numbers alone.

use super::numbers::{Format, Numbers, RULES, Rule};
use brigade_offload::optimizer::{Crew, Gradients, Isa, square_sum};

/// Counts around the widths of vectors, of interleaved sums and of parts.
const COUNTS: [usize; 9] = [0, 1, 7, 16, 31, 33, 1000, 16385, 2 * 16384 + 5];

/// Every crew that this machine can have, the plainest first.
fn crews() -> Vec<Crew> {
    let isas = Isa::ALL.into_iter().filter(|isa| isa.is_available());
    let kinds = isas.flat_map(|isa| [1, 2, 5].map(|threads| (threads, isa)));
    kinds.map(|(threads, isa)| Crew::with_isa(threads, isa).expect("there are threads")).collect()
}

/// Three steps of every rule in all formats give the same bits in every crew.
fn check_crews(rule: Rule, seed: u64, is_wild: bool) {
    let mut crews = crews();
    for formats in rule.formats() {
        for count in COUNTS {
            let mut want = None;
            for crew in &mut crews {
                let mut numbers = Numbers::new(seed, count, formats, is_wild);
                for t in 1..=3 {
                    rule.step(crew, &mut numbers, t, 0.37, 0..count);
                }
                let bits = numbers.bits();
                let want = want.get_or_insert_with(|| bits.clone());
                let differs = want.iter().zip(&bits).position(|(a, b)| a != b);
                let (isa, threads) = (crew.isa(), crew.threads());
                let case = format!("{formats:?}, {count} elements, {isa:?}, {threads} threads");
                assert_eq!(differs, None, "{rule:?}, seed {seed}: {case}");
            }
        }
    }
}

macro_rules! rules {
    ($($name:ident: $number:literal;)*) => {$(
        #[test]
        fn $name() {
            check_crews(RULES[$number], 40 + $number, false);
            check_crews(RULES[$number], 80 + $number, true);
        }
    )*};
}

rules! {
    adamw_has_the_same_bits_in_every_crew: 0;
    adam_has_the_same_bits_in_every_crew: 1;
    sgd_has_the_same_bits_in_every_crew: 2;
    nesterov_has_the_same_bits_in_every_crew: 3;
    plain_descent_has_the_same_bits_in_every_crew: 4;
    lion_has_the_same_bits_in_every_crew: 5;
    lamb_has_the_same_bits_in_every_crew: 6;
    lars_has_the_same_bits_in_every_crew: 7;
}

#[test]
fn a_shard_may_be_cut_and_begin_anywhere() {
    let count = 5000;
    let mut random = fastrand::Rng::with_seed(7);
    let mut crew = Crew::new(2).expect("there are threads");
    for rule in RULES {
        for formats in rule.formats() {
            let mut whole = Numbers::new(3, count, formats, true);
            let mut cut = whole.clone();
            let norms = rule.measure(&mut crew, (2, 0.5), whole.shard(0..count));
            let update = rule.at(2, 0.5, norms);
            update.apply(&mut crew, whole.shard(0..count)).expect("a good shard");
            let mut from = 0;
            while from < count {
                let to = (from + random.usize(1..900)).min(count);
                rule.measure(&mut crew, (2, 0.5), cut.shard(from..to));
                update.apply(&mut crew, cut.shard(from..to)).expect("a good shard");
                from = to;
            }
            assert!(whole.bits() == cut.bits(), "{rule:?} {formats:?}");
        }
    }
}

#[test]
fn nothing_outside_a_shard_is_touched() {
    let mut crew = Crew::new(2).expect("there are threads");
    for rule in RULES {
        for formats in rule.formats() {
            let before = Numbers::new(5, 100, formats, false);
            let mut after = before.clone();
            rule.step(&mut crew, &mut after, 1, 1.0, 33..66);
            let all = before.bits().into_iter().zip(after.bits());
            for (i, (before, after)) in all.enumerate() {
                let is_inside = (33..66).contains(&(i % 100));
                assert!(is_inside || before == after, "{rule:?} {formats:?}: element {i}");
            }
        }
    }
}

#[test]
fn norms_have_the_same_bits_in_every_crew() {
    for (seed, is_wild) in [(1, false), (2, true)] {
        for count in COUNTS.into_iter().chain([64 * 16384 - 1, 64 * 16384 + 1]) {
            for format in [Format::F32, Format::Bf16, Format::F16] {
                let formats = [Format::F32, format, Format::None, Format::None, Format::None];
                let mut numbers = Numbers::new(seed, count, formats, is_wild && count < 20);
                let mut sums = Vec::new();
                for crew in &mut crews() {
                    let shard = numbers.shard(0..count);
                    sums.push(square_sum(crew, shard.gradients).0.to_bits());
                }
                assert!(sums.windows(2).all(|two| two[0] == two[1]), "{count} {format:?} {sums:?}");
                let exact: f64 = numbers.gradients.values().iter().map(|value| value * value).sum();
                let sum = f64::from_bits(sums[0]);
                let is_near = (sum - exact).abs() <= exact * 1e-12;
                assert!(is_near || !exact.is_finite() && !sum.is_finite(), "{sum} {exact}");
            }
        }
    }
}

#[test]
fn one_element_that_is_not_finite_is_seen_wherever_it_is() {
    let mut crew = Crew::new(2).expect("there are threads");
    let mut random = fastrand::Rng::with_seed(11);
    let mut gradients = vec![f32::MAX; 100_003];
    assert!(square_sum(&mut crew, Gradients::F32(&gradients)).is_finite());
    for bad in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
        for _ in 0..20 {
            let at = random.usize(..gradients.len());
            gradients[at] = bad;
            let sum = square_sum(&mut crew, Gradients::F32(&gradients));
            assert!(!sum.is_finite(), "{bad} at {at}");
            gradients[at] = 1.0;
        }
    }
}
