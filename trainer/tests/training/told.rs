//! What is told of a run before its first step.

use brigade_trainer::Args;

use crate::world::{args, spread};

/// What rank 0 of so many prints.
fn printed(ranks: usize, flags: &str) -> String {
    let args = Args { quiet: false, ..args(&format!("--steps 1 {flags}")) };
    let told = spread(ranks, |comm| {
        let mut out = Vec::new();
        brigade_trainer::train(&args, Some(comm), &mut out).unwrap();
        out
    });
    String::from_utf8(told.into_iter().next().unwrap()).unwrap()
}

#[test]
fn the_table_has_what_makes_less_travel_and_not_what_is_usual() {
    for (flags, row) in [
        ("--compress powersgd:2", "ddp --compress powersgd:2 over loopback"),
        ("--strategy zero2 --reduce bf16", "zero2 --reduce bf16 over loopback"),
        ("--strategy fsdp --reduce int4 --gather int8", "fsdp --reduce int4 --gather int8 over"),
        ("--strategy fsdp", "fsdp over loopback"),
    ] {
        let table = printed(2, flags);
        let is_told = |line: &str| line.starts_with("strategy") && line.contains(row);
        assert!(table.lines().any(is_told), "{flags}: {table}");
    }
}
