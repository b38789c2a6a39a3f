//! `brigade doctor`: what this machine has, which transports and GPUs work, and why others do not.

use std::process::ExitCode;

use brigade_comm::launch::{Launch, LaunchError};
use brigade_comm::transports::{NAMES, details, transports};
use brigade_comm::{Settings, Variable};
use brigade_transports::Unavailable;

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

/// Print it all; problems come last, with the next step.
pub(crate) fn doctor(args: &Args) -> ExitCode {
    let mut problems = Vec::new();
    if !args.settings {
        print_machine();
        problems.extend(print_transports());
        print_interfaces();
        gpu::print_gpus();
        offload::print_memory_and_storage();
    }
    problems.extend(print_settings());
    if args.settings {
        // The whole list has said it of each transport.
        problems.extend(refused_transports());
    }
    problems.iter().for_each(|problem| println!("\nerror: {problem}"));
    if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn print_machine() {
    println!("machine");
    for (name, fact) in machine::facts() {
        println!("  {name:<14} {fact}");
    }
}

/// Why not one of the transports that the environment asks for can be used, if so it is.
fn print_transports() -> Option<String> {
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
        let is_asked = chosen.contains(&name);
        usable |= print_transport(is_asked, name, width, &settings) && is_asked;
    }
    for name in plugins {
        usable |= print_transport(true, name, width, &settings);
    }
    let mark = if in_process { '*' } else { ' ' };
    let (name, what) = ("loopback", "threads of one process, for tests and measurements");
    println!("  {mark} {name:<width$} yes  {what}");
    match problem {
        Some(error) => Some(error.to_string()),
        None if usable => None,
        None => Some(format!(
            "ranks of different processes cannot reach each other over what \
             BRIGADE_TRANSPORT={} allows: see the next steps under transports",
            settings.transport
        )),
    }
}

/// A transport's lines, its name in `width` columns; whether it can be used with these settings.
fn print_transport(is_asked: bool, name: &str, width: usize, settings: &Settings) -> bool {
    let settings = Settings { transport: name.to_owned(), ..settings.clone() };
    let found = match transports(&settings) {
        Ok(found) => found,
        Err(error) => {
            println!("    {name:<width$} no   {error}");
            return false;
        }
    };
    let mark = if is_asked { '*' } else { ' ' };
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
                // What is missing on any interface is no matter of which one is chosen.
                let missing = missing_anywhere(name, &settings).unwrap_or(missing);
                println!("    {name:<width$} no   {}", missing.why);
                println!("    {:<width$}      next: {}", "", missing.next_step);
            }
        }
    }
    works
}

/// What a transport lacks whatever BRIGADE_INTERFACE is.
fn missing_anywhere(name: &str, settings: &Settings) -> Option<Unavailable> {
    let anywhere = Settings { interface: None, ..settings.clone() };
    let found = transports(&anywhere).ok()?;
    found.iter().find(|transport| transport.name() == name)?.probe().err()
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

/// What is wrong with settings, and with what says who this rank is.
fn print_settings() -> Vec<String> {
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
    let launch = Launch::discover().err().or_else(unreadable_secret);
    let launch = launch.map(|error| {
        format!(
            "{error}\n       correct or unset the variables: no program can join a world before"
        )
    });
    let problem = problem.map(|error| {
        format!("{error}\n       the table shows the defaults; correct or unset the variable")
    });
    launch.into_iter().chain(problem).collect()
}

/// What is wrong with the file of the secret, also where nothing says yet who this rank is, and so
/// nobody has read it.
fn unreadable_secret() -> Option<LaunchError> {
    let lookup = |name: &str| match name {
        "BRIGADE_RANK" => Some(String::from("0")),
        "BRIGADE_WORLD_SIZE" => Some(String::from("2")),
        "BRIGADE_ROOT" => Some(String::from("localhost:1")),
        "BRIGADE_SECRET" | "BRIGADE_SECRET_FILE" => std::env::var(name).ok(),
        _ => None,
    };
    lookup("BRIGADE_SECRET_FILE").filter(|path| !path.is_empty())?;
    Launch::discover_in(&lookup).err()
}

/// Why the transports that are asked for have no names that are known, without a look at any.
fn refused_transports() -> Option<String> {
    let settings = Settings::from_env().unwrap_or_default();
    let refused = || transports(&settings).err().map(|error| error.to_string());
    if settings.transport == "loopback" { None } else { refused() }
}

/// Who a rank is and where things are, from the environment of this process.
fn print_variables() {
    let ours = Variable::ours();
    let name = ours.iter().map(|variable| variable.name.len()).max().unwrap_or(0);
    println!("\nvariables, of ranks and of places");
    for variable in ours {
        let now = variable.shown().map_or(String::new(), |value| format!(" (now: {value})"));
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
