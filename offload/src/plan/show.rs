//! Plans and refusals as text: tables whose columns line up.

use std::fmt::{self, Display, Formatter};

use super::budget::{Rate, Source};
use super::model::Model;
use super::place::{Part, Tier, What};
use super::predict::Phase;
use super::refuse::{Refusal, Shortage};
use super::{Plan, bandwidth_for, efficiency};

/// Bytes of memory as people read them, in powers of 1024.
pub fn bytes(bytes: u64) -> String {
    let units = [(1_u64 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    for (unit, name) in units {
        if bytes >= unit {
            return format!("{:.2} {name}", bytes as f64 / unit as f64);
        }
    }
    format!("{bytes} B")
}

impl Display for Plan {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.model)?;
        let again = if self.recomputed { "each layer computed again" } else { "activations kept" };
        let (batches, micro) = (self.micro_batches(), self.micro_tokens);
        writeln!(f, "  {batches} x {micro} tokens, {again} in the backward pass\n")?;
        places(self).fmt(f)?;
        writeln!(f)?;
        if self.chunks_in_flight > 0 {
            writeln!(
                f,
                "chunks of {} parameters, {} in flight; files hold two generations of the state\n",
                self.chunk_params, self.chunks_in_flight
            )?;
        }
        // With neither a device nor drives nothing moves.
        if self.budgets.has_device() || !self.budgets.drives.is_empty() {
            moves(self).fmt(f)?;
            writeln!(f)?;
        }
        times(self, f)?;
        bounds(self, f)?;
        wear(self, f)
    }
}

impl Display for Model {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let params = match self.params {
            few @ 0..1_000_000 => format!("{few}"),
            some @ 1_000_000..1_000_000_000 => format!("{:.1} million", some as f64 / 1e6),
            many => format!("{:.2} billion", many as f64 / 1e9),
        };
        let ending = |count: u64| if count == 1 { "" } else { "s" };
        writeln!(
            f,
            "{params} parameter{} in {} layer{} of width {}, vocabulary {}, context {}",
            ending(self.params),
            self.layers,
            ending(self.layers),
            self.width,
            self.vocab,
            self.context
        )?;
        let master = self.master.map_or("no", |master| master.name());
        writeln!(
            f,
            "  {}: {} weights, {} gradients, {master} master, {} moments, {} bytes a parameter",
            self.optimizer.name(),
            self.weights.name(),
            self.gradients.name(),
            self.moments.name(),
            self.weights.bytes() + self.gradients.bytes() + self.state_bytes()
        )?;
        let shards = match self.shards {
            1 => String::from("in one shard"),
            many => format!("one of {many} shards"),
        };
        write!(f, "  {shards}, {} tokens a step", self.tokens)
    }
}

impl Display for Refusal {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Input(problem) => f.write_str(problem),
            Self::DoesNotFit(shortage) => shortage.fmt(f),
        }
    }
}

impl Display for Shortage {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "it does not fit:\n{}\n", self.model)?;
        let mut table = Table::new(["budget", "wants", "has", "missing"]);
        for row in &self.rows {
            let missing = bytes(row.wants - row.has);
            table.row([row.tier.name().to_owned(), bytes(row.wants), bytes(row.has), missing]);
            for part in &row.holds {
                table.row([format!("  {}", part.what.name()), bytes(part.bytes)]);
            }
        }
        table.fmt(f)?;
        let flags: Vec<String> = self
            .rows
            .iter()
            .map(|row| {
                let wants = row.wants.div_ceil(1 << 20);
                match row.tier {
                    Tier::Device => format!("--device {wants}M"),
                    Tier::Pinned | Tier::Host => format!("--host {wants}M"),
                    Tier::File => format!("--path with {wants}M free"),
                }
            })
            .collect();
        let mut ways = match (self.together, flags.is_empty()) {
            (_, true) => Vec::new(),
            (true, _) => vec![flags.join(" and ")],
            (false, _) => flags,
        };
        ways.extend(self.shards.map(|shards| format!("--ranks {shards}")));
        match ways.len() {
            0 => write!(f, "\nno budget makes it fit"),
            1 => write!(f, "\nthis makes it fit: {}", ways[0]),
            _ => write!(f, "\neach of these makes it fit: {}", ways.join("; ")),
        }
    }
}

fn places(plan: &Plan) -> Table {
    let columns = Tier::ALL.map(|tier| tier.name());
    let mut table = Table::new(["what lives where"].into_iter().chain(columns));
    let cell = |bytes_there| if bytes_there > 0 { bytes(bytes_there) } else { String::from("-") };
    for what in What::ALL {
        let there = Tier::ALL.map(|tier| plan.bytes(what, tier));
        if there.iter().any(|bytes| *bytes > 0) {
            let row = [what.name().to_owned()].into_iter();
            table.row(row.chain(there.map(cell)));
        }
    }
    let sums = Tier::ALL.map(|tier| plan.tier_bytes(tier));
    table.row([String::from("sum")].into_iter().chain(sums.map(cell)));
    let room = plan.budgets.drives.iter().map(|drive| drive.capacity_bytes);
    let room = room.fold(0_u64, u64::saturating_add);
    let limits = [
        cell(plan.budgets.device_bytes),
        String::from("of the host"),
        cell(plan.budgets.host_bytes),
        if room == u64::MAX { String::from("no limit") } else { cell(room) },
    ];
    table.row([String::from("budget")].into_iter().chain(limits));
    let used = |used: u64, of: u64| match of {
        0 | u64::MAX => String::from("-"),
        _ => format!("{:.0} %", 100.0 * used as f64 / of as f64),
    };
    let largest = |tiers: &[Tier]| {
        let parts = plan.parts.iter().filter(|part| tiers.contains(&part.tier));
        parts.max_by_key(|part| part.bytes).map_or("", |part: &Part| part.what.name())
    };
    let peaks = [
        used(sums[0], plan.budgets.device_bytes),
        String::new(),
        used(plan.host_bytes(), plan.budgets.host_bytes),
        used(sums[3], room),
    ];
    table.row([String::from("peak of budget")].into_iter().chain(peaks));
    let host = largest(&[Tier::Pinned, Tier::Host]);
    let most = [largest(&[Tier::Device]), "", host, largest(&[Tier::File])];
    table.row([String::from("most of it")].into_iter().chain(most.map(String::from)));
    table
}

fn moves(plan: &Plan) -> Table {
    let mut table =
        Table::new(["a step moves", "GB in the passes", "GB in the update", "at GB/s", "takes"]);
    let link = plan.rates.link;
    let (passes, update) = (plan.step.passes.traffic, plan.step.update.traffic);
    let mut add = |name: String, passes: u64, update: u64, rate: Rate| {
        let seconds = passes.saturating_add(update) as f64 / (rate.value * 1e9);
        let cells = [name, gb(passes), gb(update), said(rate), time(seconds)];
        table.row(cells);
    };
    if plan.budgets.has_device() {
        add(String::from("to the device"), passes.to_device, update.to_device, link);
        add(String::from("from the device"), passes.from_device, update.from_device, link);
    }
    for (drive, share) in plan.budgets.drives.iter().zip(&plan.shares) {
        // Only weights are read in the passes; each drive has its share of every kind.
        let of_passes = |whole: u64, part: u64, passes: u64| match whole {
            0 => 0,
            _ => (u128::from(part) * u128::from(passes) / u128::from(whole)) as u64,
        };
        let in_passes = of_passes(plan.step.traffic.read, share.read, passes.read);
        add(format!("{} read", drive.path), in_passes, share.read - in_passes, drive.read);
        add(format!("{} written", drive.path), 0, share.written, drive.write);
    }
    table
}

fn times(plan: &Plan, f: &mut Formatter<'_>) -> fmt::Result {
    let step = &plan.step;
    let rates = &plan.rates;
    writeln!(f, "computing  {:>9} at {} TFLOP/s", time(step.compute_s), said(rates.peak))?;
    if step.update_s > 0.0 {
        writeln!(
            f,
            "updating   {:>9} at {} GB/s of memory",
            time(step.update_s),
            said(rates.update)
        )?;
    }
    let phase = |phase: &Phase| match phase.seconds {
        0.0 => format!("{:>9}", time(0.0)),
        seconds => format!("{:>9}, waiting for {}", time(seconds), phase.limit),
    };
    writeln!(f, "passes     {}", phase(&step.passes))?;
    writeln!(f, "update     {}", phase(&step.update))?;
    writeln!(
        f,
        "step       {:>9}, {:.0} tokens/s for this shard",
        time(step.seconds()),
        plan.model.tokens as f64 / step.seconds()
    )
}

/// The prediction beside ZeRO-Infinity's model, in which every byte is waited for.
fn bounds(plan: &Plan, f: &mut Formatter<'_>) -> fmt::Result {
    let step = &plan.step;
    let percent = |part: f64| format!("{:.1} %", 100.0 * part);
    write!(f, "efficiency {:>9} of the time computes the model", percent(plan.efficiency()))?;
    match plan.tokens_for(0.9) {
        Some(tokens) if tokens > plan.model.tokens => {
            writeln!(f, "; 90 % from {tokens} tokens a step")?;
        }
        Some(_) => writeln!(f)?,
        None => writeln!(f, "; more tokens do not help, {} decides", step.passes.limit)?,
    }
    let peak = plan.rates.peak.value * 1e12;
    let mut bound = |name: &str, moved: u64, bandwidth: f64| {
        if moved == 0 {
            return Ok(());
        }
        let ait = step.operations / moved as f64;
        writeln!(
            f,
            "  {name}: {ait:.0} operations a byte, {} if every byte were waited for; \
             90 % wants {} GB/s",
            percent(efficiency(ait, bandwidth, peak)),
            digits(bandwidth_for(0.9, ait, peak) / 1e9)
        )
    };
    let link = step.traffic.to_device.saturating_add(step.traffic.from_device);
    bound("link", link, plan.rates.link.value * 1e9)?;
    let moved = step.traffic.read.saturating_add(step.traffic.written);
    let seconds: f64 = plan
        .budgets
        .drives
        .iter()
        .zip(&plan.shares)
        .map(|(drive, share)| {
            share.read as f64 / drive.read.value + share.written as f64 / drive.write.value
        })
        .fold(0.0, f64::max);
    bound("drives", moved, moved as f64 / seconds * 1e9)
}

fn wear(plan: &Plan, f: &mut Formatter<'_>) -> fmt::Result {
    if plan.step.traffic.written == 0 {
        return write!(f, "wear       nothing is written to a drive");
    }
    let day = plan.written_per_day() / 1e12;
    let written = gb(plan.step.traffic.written);
    write!(f, "wear       {written} GB a step, {day:.2} TB a day without a pause")?;
    match plan.years() {
        Some(years) if years < 1.0 => {
            write!(f, "; the endurance given lasts {:.1} days", years * 365.0)
        }
        Some(years) => write!(f, "; the endurance given lasts {years:.1} years"),
        None => write!(f, "; --tbw says how long a drive stands that"),
    }
}

fn gb(bytes: u64) -> String {
    if bytes == 0 { String::from("-") } else { format!("{:.3}", bytes as f64 / 1e9) }
}

/// A rate, marked when nobody measured or gave it.
fn said(rate: Rate) -> String {
    let from = match rate.source {
        Source::Assumed => " (assumed)",
        Source::Measured => " (measured)",
        Source::Given => "",
    };
    format!("{}{from}", digits(rate.value))
}

/// With as many digits as tell it from nothing.
fn digits(rate: f64) -> String {
    match rate {
        _ if rate >= 1.0 => format!("{rate:.1}"),
        _ if rate >= 0.01 => format!("{rate:.3}"),
        _ => format!("{rate:.1e}"),
    }
}

fn time(seconds: f64) -> String {
    match seconds {
        _ if seconds == 0.0 => String::from("-"),
        _ if seconds < 1e-3 => format!("{:.1} us", seconds * 1e6),
        _ if seconds < 1.0 => format!("{:.1} ms", seconds * 1e3),
        _ => format!("{seconds:.2} s"),
    }
}

/// Rows of cells: the first column from the left, the others from the right.
struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    fn new<'a>(head: impl IntoIterator<Item = &'a str>) -> Self {
        Self { rows: vec![head.into_iter().map(String::from).collect()] }
    }

    /// Add a row; cells at its end may be left out.
    fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let mut cells: Vec<String> = cells.into_iter().collect();
        cells.resize(self.rows[0].len(), String::new());
        self.rows.push(cells);
    }
}

impl Display for Table {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let columns = 0..self.rows[0].len();
        let width = |at: usize| self.rows.iter().map(|row| row[at].chars().count()).max();
        let widths: Vec<usize> = columns.map(|at| width(at).unwrap_or(0)).collect();
        for row in &self.rows {
            let mut line = format!("{:<width$}", row[0], width = widths[0]);
            for (cell, width) in row.iter().zip(&widths).skip(1) {
                line.push_str(&format!("  {cell:>width$}"));
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}
