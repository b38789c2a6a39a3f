//! `brigade doctor`: what this machine has, which transports and GPUs work, and why others do not.

use std::process::ExitCode;

use brigade_comm::launch::Launch;
use brigade_comm::transports::{NAMES, details, transports};
use brigade_comm::{Settings, Variable};

use crate::{gpu, machine, offload, sys};

/// Say what this machine has, which transports work, and why the others do not.
#[derive(clap::Args)]
#[command(after_help = "\
The exit code is 1 when none of the transports that BRIGADE_TRANSPORT asks for works, a setting
cannot be read, or variables contradict each other about who this rank is.

Examples:
  brigade doctor
  brigade doctor --settings
  BRIGADE_TRANSPORT=tcp BRIGADE_INTERFACE=eth0 brigade doctor")]
pub(crate) struct Args {
    /// Print only the table of settings
    #[arg(long)]
    settings: bool,
}

/// How wide a table of words may be.
const COLUMNS: usize = 100;
/// The least that names of transports take.
const NAME_COLUMNS: usize = 9;

/// Print it all; problems come with the next step.
pub(crate) fn doctor(args: &Args) -> ExitCode {
    let mut healthy = true;
    if !args.settings {
        print_machine();
        healthy &= print_transports();
        print_interfaces();
        gpu::print_gpus();
        offload::print_memory_and_storage();
    }
    healthy &= print_settings();
    if args.settings {
        // The whole list has said it of each transport.
        healthy &= print_asked_transports();
    }
    if healthy { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn print_machine() {
    println!("machine");
    for (name, fact) in machine::facts() {
        println!("  {name:<14} {fact}");
    }
}

/// Whether at least one of the transports that the environment asks for can be used.
fn print_transports() -> bool {
    // What is wrong with a setting that cannot be read stands under the table of settings.
    let settings = Settings::from_env().unwrap_or_default();
    let in_process = settings.transport == "loopback";
    let (chosen, problem) = match transports(&settings) {
        Ok(chosen) => (chosen.iter().map(|transport| transport.name()).collect(), None),
        Err(error) if !in_process => (Vec::new(), Some(error)),
        Err(_) => (Vec::new(), None),
    };
    println!("\ntransports (* may be used now: BRIGADE_TRANSPORT={})", settings.transport);
    // Plugins have no list; those that are asked for are told of.
    let asked = settings.transport.split(',').map(str::trim);
    let plugins: Vec<&str> = asked.filter(|name| name.starts_with("plugin:")).collect();
    let width = plugins.iter().map(|name| name.len()).fold(NAME_COLUMNS, usize::max);
    println!("    {:<width$} {:<4} {:>9} {:>10}", "", "", "latency", "bandwidth");
    let mut usable = in_process;
    for name in NAMES {
        let is_chosen = chosen.contains(&name);
        let works = print_transport(if is_chosen { '*' } else { ' ' }, name, width, &settings);
        usable |= is_chosen && works;
    }
    for name in plugins {
        usable |= print_transport('*', name, width, &settings);
    }
    let mark = if in_process { '*' } else { ' ' };
    let (name, what) = ("loopback", "threads of one process, for tests and measurements");
    println!("  {mark} {name:<width$} yes  {what}");
    if let Some(error) = &problem {
        println!("\nerror: {error}");
    } else if !usable {
        println!(
            "\nerror: ranks of different processes cannot reach each other over what \
             BRIGADE_TRANSPORT={} allows: see the next steps above",
            settings.transport
        );
    }
    usable
}

/// A transport's lines, its name in `width` columns; whether it can be used with these settings.
fn print_transport(mark: char, name: &str, width: usize, settings: &Settings) -> bool {
    let settings = Settings { transport: name.to_owned(), ..settings.clone() };
    let found = match transports(&settings) {
        Ok(found) => found,
        Err(error) => {
            println!("  {mark} {name:<width$} no   {error}");
            return false;
        }
    };
    let mut works = false;
    for transport in found {
        match transport.probe() {
            Ok(caps) => {
                works = true;
                println!(
                    "  {mark} {name:<width$} yes  {:>6.1} us {:>5.1} GB/s  \
                     (assumed, until measured)",
                    caps.latency_s * 1e6,
                    1e-9 / caps.byte_s
                );
                for detail in details(name, &settings) {
                    println!("    {:<width$}      {detail}", "");
                }
            }
            Err(missing) => {
                println!("  {mark} {name:<width$} no   {}", missing.why);
                println!("    {:<width$}      next: {}", "", missing.next_step);
            }
        }
    }
    works
}

fn print_interfaces() {
    println!("\ninterfaces (BRIGADE_INTERFACE chooses among them)");
    let found = match sys::interfaces() {
        Ok(found) => found,
        Err(error) => return println!("  unknown: {error}"),
    };
    for (name, address) in found {
        let speed = match speed_mbit(&name) {
            Some(speed) => format!("  {speed} Mbit/s"),
            None => String::new(),
        };
        println!("  {name:<14} {address}{speed}");
    }
}

/// What the system says that the interface can do; it says nothing of virtual ones.
fn speed_mbit(interface: &str) -> Option<u32> {
    let speed = std::fs::read_to_string(format!("/sys/class/net/{interface}/speed")).ok()?;
    speed.trim().parse().ok()
}

/// Whether all settings could be read, and who this rank is.
fn print_settings() -> bool {
    for name in Settings::unknown_variables() {
        println!("\nwarning: {name} is set but is not a setting of Brigade; see the table below");
    }
    let (settings, problem) = match Settings::from_env() {
        Ok(settings) => (settings, None),
        Err(error) => (Settings::default(), Some(error)),
    };
    let rows = settings.table();
    let width = |column: fn(&brigade_comm::SettingRow) -> usize, least: usize| {
        rows.iter().map(column).max().unwrap_or(0).max(least)
    };
    let name = width(|row| row.name.len(), 4);
    let now = width(|row| row.current.len(), 3);
    let default = width(|row| row.default.len(), 7);
    println!("\nsettings, of communicators");
    println!("  {:<name$}  {:<now$}  {:<default$}  meaning", "name", "now", "default");
    for row in &rows {
        println!(
            "  {:<name$}  {:<now$}  {:<default$}  {}",
            row.name, row.current, row.default, row.meaning
        );
    }
    print_variables();
    let launch = Launch::discover();
    if let Err(error) = &launch {
        println!("\nerror: {error}");
        println!("       correct or unset the variables: no program can join a world before");
    }
    if let Some(error) = problem {
        println!("\nerror: {error}");
        println!("       the table shows the defaults; correct or unset the variable");
        return false;
    }
    launch.is_ok()
}

/// Whether the transports that are asked for have names that are known, without a look at any.
fn print_asked_transports() -> bool {
    let settings = Settings::from_env().unwrap_or_default();
    if settings.transport == "loopback" {
        return true;
    }
    let refused = transports(&settings).err();
    refused.iter().for_each(|error| println!("\nerror: {error}"));
    refused.is_none()
}

/// Who a rank is and where things are, from the environment of this process.
fn print_variables() {
    let ours = Variable::ours();
    let name = ours.iter().map(|variable| variable.name.len()).max().unwrap_or(0);
    println!("\nvariables, of ranks and of places");
    for variable in ours {
        let now = variable.shown().map_or(String::new(), |value| format!(" = {value}"));
        println!("  {:<name$}  {}{now}", variable.name, variable.meaning);
    }
    println!("\nvariables of launchers, which say the same (those that are set have their values)");
    for (launcher, names) in Variable::of_launchers() {
        let mut line = format!("  {launcher:<10}");
        for name in names {
            let word = match std::env::var_os(name).filter(|value| !value.is_empty()) {
                Some(value) => format!("{name}={}", value.to_string_lossy()),
                None => name.to_owned(),
            };
            if line.len() + 1 + word.len() > COLUMNS {
                println!("{line}");
                line = format!("  {:<10}", "");
            }
            line += &format!(" {word}");
        }
        println!("{line}");
    }
    println!(
        "\nalso read: CUDA_HOME, CUDA_PATH, PATH (where CUDA's libraries are), XDG_CACHE_HOME and"
    );
    println!("HOME (where compiled kernels are kept without BRIGADE_CACHE)");
}
