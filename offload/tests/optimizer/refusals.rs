//! Shards that make no sense are refused, and left as they were.

use super::numbers::{ADAMW, LION, Numbers, PLAIN, Rule, SGD};
use brigade_offload::optimizer::{Crew, Gradients, Moment, Narrowed, Shard, ShardError};

fn refused(rule: Rule, spoil: impl FnOnce(&mut Shard<'_>)) -> ShardError {
    let mut crew = Crew::new(1).expect("there are threads");
    let mut numbers = Numbers::new(1, 50, rule.formats()[0], false);
    let before = numbers.bits();
    let mut shard = numbers.shard(0..50);
    spoil(&mut shard);
    let error = rule.at(1, 1.0, None).apply(&mut crew, shard).expect_err("it makes no sense");
    assert_eq!(before, numbers.bits(), "{error}: something was written");
    error
}

#[test]
fn arrays_of_other_lengths_are_refused() {
    let error = refused(Rule::AdamW(ADAMW), |shard| shard.gradients = Gradients::F32(&[0.0; 49]));
    assert_eq!(error.to_string(), "gradients has 49 elements, the weights have 50");
    let narrow = vec![half::bf16::ZERO; 51].leak();
    let error = refused(Rule::AdamW(ADAMW), |shard| shard.narrowed = Narrowed::Bf16(narrow));
    assert_eq!(error, ShardError::Length { array: "narrowed", got: 51, want: 50 });
}

#[test]
fn moments_that_a_rule_lacks_or_needs_are_refused() {
    let error = refused(Rule::AdamW(ADAMW), |shard| shard.square = Moment::None);
    assert_eq!(error.to_string(), "AdamW needs the moment square");
    let one_more = || vec![0.0; 50].leak();
    let error = refused(Rule::Lion(LION), |shard| shard.square = Moment::F32(one_more()));
    assert_eq!(error.to_string(), "Lion has no moment square");
    let error = refused(Rule::Sgd(SGD), |shard| shard.mean = Moment::None);
    assert_eq!(error, ShardError::Missing { rule: "Sgd", array: "mean" });
    let error = refused(Rule::Sgd(PLAIN), |shard| shard.mean = Moment::F32(one_more()));
    assert_eq!(error, ShardError::Unused { rule: "Sgd", array: "mean" });
}

#[test]
fn a_mean_square_in_full_beside_a_narrow_mean_is_welcome_but_not_the_reverse() {
    let narrow = vec![half::bf16::ZERO; 50].leak();
    let error = refused(Rule::AdamW(ADAMW), |shard| shard.square = Moment::Bf16(narrow));
    assert_eq!(error, ShardError::NarrowSquare);
}
