//! The doctor's tables: of settings, and of the variables that say who a rank is.

use brigade_comm::{SettingRow, Settings, Variable};

/// How wide a table of words may be.
const COLUMNS: usize = 100;

/// Every setting, or only those that differ from their defaults.
pub(super) fn print_settings(settings: &Settings, has_all: bool) {
    let mut rows = settings.table();
    let all = rows.len();
    rows.retain(|row| has_all || row.current != row.default);
    if rows.is_empty() {
        println!(
            "\nsettings: all {all} have their defaults (brigade doctor --settings lists them)"
        );
        return;
    }
    let width = |column: fn(&SettingRow) -> usize, least: usize| {
        rows.iter().map(column).max().unwrap_or(0).max(least)
    };
    let name = width(|row| row.name.len(), 4);
    let now = width(|row| row.current.len(), 3);
    let default = width(|row| row.default.len(), 7);
    let others = if has_all { "" } else { " (brigade doctor --settings lists the others)" };
    println!("\nsettings, of communicators{others}");
    println!("  {:<name$}  {:<now$}  {:<default$}  meaning", "name", "now", "default");
    for row in &rows {
        println!(
            "  {:<name$}  {:<now$}  {:<default$}  {}",
            row.name, row.current, row.default, row.meaning
        );
    }
}

/// Who a rank is and where things are, from the environment of this process: all variables that
/// are read, or only those that are set.
pub(super) fn print_variables(has_all: bool) {
    let is_told = |variable: &&Variable| has_all || variable.shown().is_some();
    let ours: Vec<&Variable> = Variable::ours().iter().filter(is_told).collect();
    let name = ours.iter().map(|variable| variable.name.len()).max().unwrap_or(0);
    if !ours.is_empty() {
        println!("\nvariables, of ranks and of places");
    }
    for variable in ours {
        let now = variable.shown().map_or(String::new(), |value| format!(" (now: {value})"));
        println!("  {:<name$}  {}{now}", variable.name, variable.meaning);
    }
    let launchers = Variable::of_launchers();
    let has_any = launchers.iter().flat_map(|(_, names)| names).any(|name| value(name).is_some());
    if has_all || has_any {
        println!(
            "\nvariables of launchers, which say the same (those that are set have their values)"
        );
    }
    for (launcher, names) in launchers {
        print_launcher(launcher, names.into_iter().filter(|name| has_all || value(name).is_some()));
    }
    if has_all {
        println!(
            "\nalso read: CUDA_HOME, CUDA_PATH, PATH (where CUDA's libraries are), XDG_CACHE_HOME \
             and"
        );
        println!("HOME (where compiled kernels are kept without BRIGADE_CACHE)");
    }
}

/// A launcher's variables, as many in a line as it has room for.
fn print_launcher(launcher: &str, names: impl Iterator<Item = &'static str>) {
    let mut line = format!("  {launcher:<10}");
    let mut is_empty = true;
    for name in names {
        let word = match value(name) {
            Some(value) => format!("{name}={value}"),
            None => name.to_owned(),
        };
        if line.len() + 1 + word.len() > COLUMNS && !is_empty {
            println!("{line}");
            line = format!("  {:<10}", "");
        }
        line += &format!(" {word}");
        is_empty = false;
    }
    if !is_empty {
        println!("{line}");
    }
}

/// What a variable of a launcher says in this process, if it is set.
fn value(name: &str) -> Option<String> {
    let value = std::env::var_os(name).filter(|value| !value.is_empty())?;
    Some(value.to_string_lossy().into_owned())
}
