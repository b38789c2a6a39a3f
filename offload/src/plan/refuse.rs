//! Refusals: what is missing, to the byte, and what would make it fit.
//!
//! Whether a model fits is monotonic in each budget, so the least budget that is enough is found by
//! halving; what is said to be enough has been planned.

use super::budget::{Budgets, Drive, PLENTY, Rate};
use super::model::Model;
use super::place::{Part, Tier, placements};

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq)]
pub enum Refusal {
    /// A number makes no sense; the sentence says which.
    Input(String),
    /// No placement fits.
    DoesNotFit(Box<Shortage>),
}

/// What is missing.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Shortage {
    /// The model that does not fit.
    pub model: Model,
    /// The budgets, each with the least that is enough.
    pub rows: Vec<Row>,
    /// Whether all rows must be met together, since no single one is enough.
    pub together: bool,
    /// The least power of two of shards that fits the budgets as they are, if any does.
    pub shards: Option<u64>,
}

/// One budget that is too small.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Row {
    /// `Tier::Device`, `Tier::Host` (with what is pinned of it) or `Tier::File`.
    pub tier: Tier,
    /// Bytes it has.
    pub has: u64,
    /// The least bytes that are enough, with the other budgets as they are; where rows must be met
    /// together, with the other rows met.
    pub wants: u64,
    /// What it would hold then, biggest first.
    pub holds: Vec<Part>,
}

/// Shards that are worth suggesting.
const SHARDS_MAX: u64 = 1 << 14;

impl std::error::Error for Refusal {}

/// The account of a model that fits no placement.
pub(super) fn shortage(model: &Model, budgets: &Budgets) -> Shortage {
    let tiers: &[Tier] = match budgets.has_device() {
        true => &[Tier::Device, Tier::Host, Tier::File],
        false => &[Tier::Host, Tier::File],
    };
    let singles: Vec<Row> =
        tiers.iter().filter_map(|&tier| least(model, budgets, budgets, tier)).collect();
    let together = singles.is_empty();
    let rows = if together { all_together(model, budgets, tiers) } else { singles };
    let doubled = std::iter::successors(Some(model.shards), |shards| Some(shards * 2));
    let mut doubled = doubled.skip(1).take_while(|shards| *shards <= SHARDS_MAX);
    let shards = doubled.find(|&shards| fits(&Model { shards, ..model.clone() }, budgets));
    Shortage { model: model.clone(), rows, together, shards }
}

/// Raise one budget after the other to its least while those after it have plenty.
fn all_together(model: &Model, budgets: &Budgets, tiers: &[Tier]) -> Vec<Row> {
    let mut raised = budgets.clone();
    for &tier in tiers {
        set(&mut raised, tier, PLENTY);
    }
    let mut rows = Vec::new();
    for &tier in tiers {
        let mut own = raised.clone();
        set(&mut own, tier, has(budgets, tier));
        if fits(model, &own) {
            raised = own;
        } else if let Some(row) = least(model, budgets, &own, tier) {
            set(&mut raised, tier, row.wants);
            rows.push(row);
        }
    }
    rows
}

/// The least of one budget that fits with the others as in `others`.
fn least(model: &Model, budgets: &Budgets, others: &Budgets, tier: Tier) -> Option<Row> {
    let with = |bytes| {
        let mut budgets = others.clone();
        set(&mut budgets, tier, bytes);
        budgets
    };
    let (mut short, mut enough) = (has(budgets, tier), PLENTY);
    if short >= enough || !fits(model, &with(enough)) {
        return None;
    }
    while enough - short > 1 {
        let middle = short + (enough - short) / 2;
        if fits(model, &with(middle)) { enough = middle } else { short = middle }
    }
    let then = with(enough);
    let placement = placements(model, &then).next().expect("it fits");
    let is_of = |part: &Part| match tier {
        Tier::Pinned | Tier::Host => matches!(part.tier, Tier::Pinned | Tier::Host),
        Tier::Device | Tier::File => part.tier == tier,
    };
    let mut holds: Vec<Part> = placement.parts(model, &then).into_iter().filter(is_of).collect();
    holds.sort_by_key(|part| std::cmp::Reverse(part.bytes));
    Some(Row { tier, has: has(budgets, tier), wants: enough, holds })
}

fn fits(model: &Model, budgets: &Budgets) -> bool {
    placements(model, budgets).next().is_some()
}

fn has(budgets: &Budgets, tier: Tier) -> u64 {
    match tier {
        Tier::Device => budgets.device_bytes,
        Tier::Pinned | Tier::Host => budgets.host_bytes,
        Tier::File => {
            let room = budgets.drives.iter().map(|drive| drive.capacity_bytes);
            room.fold(0, u64::saturating_add)
        }
    }
}

fn set(budgets: &mut Budgets, tier: Tier, bytes: u64) {
    match tier {
        Tier::Device => budgets.device_bytes = bytes,
        Tier::Pinned | Tier::Host => budgets.host_bytes = bytes,
        Tier::File => {
            let any = Drive::new("", Rate::assumed(1.0), Rate::assumed(1.0));
            budgets.drives = vec![Drive { capacity_bytes: bytes, ..any }];
        }
    }
}
