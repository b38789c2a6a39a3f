//! `brigade doctor`: what this machine has, which transports and GPUs work, and why others do not.

mod tables;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::process::ExitCode;

use brigade_comm::Settings;
use brigade_comm::launch::{Launch, LaunchError};
use brigade_comm::transports::{NAMES, details, transports};
use brigade_transports::Unavailable;
use brigade_transports::tcp::{self, Tcp};

use crate::findings::{Verdict, line};
use crate::{gpu, machine, offload, sys};

/// Say what this machine has, which transports work, and why the others do not.
#[derive(clap::Args)]
#[command(after_help = "\
The last lines say whether jobs can run here, over what, and what is missing for more, with the
next step.

The exit code is 1 when none of the transports that BRIGADE_TRANSPORT asks for works, a setting
cannot be read, or variables contradict each other about who this rank is.

Examples:
  brigade doctor
  brigade doctor --settings
  BRIGADE_TRANSPORT=tcp BRIGADE_INTERFACE=eth0 brigade doctor")]
pub(crate) struct Args {
    /// Print only the tables of all settings and variables
    #[arg(long, conflicts_with = "all")]
    settings: bool,
    /// Print these tables beside the rest, not only what differs from its default
    #[arg(long)]
    all: bool,
}

/// The least that names of transports take: what is told of them stands below all else.
const NAME_COLUMNS: usize = 12;

/// Print it all; problems come last, with the next step.
pub(crate) fn doctor(args: &Args) -> ExitCode {
    let mut problems = Vec::new();
    let mut verdict = Verdict::default();
    if !args.settings {
        print_machine();
        problems.extend(print_transports(&mut verdict));
        print_interfaces();
        offload::print_memory_and_storage(&mut verdict);
        gpu::print_gpus(&mut verdict);
    }
    problems.extend(print_settings(args.settings || args.all));
    if args.settings {
        // The whole list has said it of each transport.
        problems.extend(refused_transports());
    } else {
        verdict.print(problems.is_empty());
    }
    problems.iter().for_each(|problem| println!("\nerror: {problem}"));
    if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn print_machine() {
    println!("machine");
    for (name, fact) in machine::facts() {
        line(name, fact);
    }
}

/// Why not one of the transports that the environment asks for can be used, if so it is.
fn print_transports(verdict: &mut Verdict) -> Option<String> {
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
    let mut usable = Vec::new();
    let mut lacking = Vec::new();
    for name in NAMES.into_iter().chain(plugins) {
        let is_asked = chosen.contains(&name) || !NAMES.contains(&name);
        match print_transport(is_asked, name, width, &settings) {
            Ok(()) if is_asked => usable.push(name),
            Err(next) if is_asked || settings.transport == "auto" => lacking.push((name, next)),
            _ => {}
        }
    }
    let mark = if in_process { '*' } else { ' ' };
    let (name, what) = ("loopback", "threads of one process, for tests and measurements");
    println!("  {mark} {name:<width$} yes  {what}");
    judge_transports(verdict, &settings, &usable, lacking);
    match problem {
        Some(error) => Some(error.to_string()),
        None if in_process || !usable.is_empty() => None,
        None => Some(format!(
            "ranks of different processes cannot reach each other over what \
             BRIGADE_TRANSPORT={} allows: see the next steps under transports",
            settings.transport
        )),
    }
}

/// What reaches whom, and what each that does not work lacks.
fn judge_transports(
    verdict: &mut Verdict,
    settings: &Settings,
    usable: &[&str],
    lacking: Vec<(&str, String)>,
) {
    let between: Vec<&str> = usable.iter().copied().filter(|name| *name != "shm").collect();
    if !usable.is_empty() {
        verdict.works(format!("ranks on one machine, over {}", usable.join(", ")));
    }
    let interface = settings.interface.clone();
    let addresses = Tcp::new(tcp::Settings { interface, ..Default::default() }).interfaces();
    let leads_out = |found: &tcp::Interface| match found.address {
        IpAddr::V4(address) => !address.is_loopback(),
        IpAddr::V6(address) => !address.is_loopback() && !address.is_unicast_link_local(),
    };
    let is_connected = addresses.is_ok_and(|found| found.iter().any(leads_out));
    match (between.is_empty(), is_connected) {
        (true, _) => {}
        (_, true) => {
            verdict.works(format!("ranks on several machines, over {}", between.join(", ")));
        }
        (_, false) => {
            let next = "let an interface that BRIGADE_INTERFACE admits have an address for others";
            verdict.lacks("ranks on several machines", next);
        }
    }
    for (name, next) in lacking {
        verdict.lacks(name, &next);
    }
}

/// A transport's lines, its name in `width` columns; what to do if it cannot be used with these
/// settings.
fn print_transport(
    is_asked: bool,
    name: &str,
    width: usize,
    settings: &Settings,
) -> Result<(), String> {
    let settings = Settings { transport: name.to_owned(), ..settings.clone() };
    let found = match transports(&settings) {
        Ok(found) => found,
        Err(error) => {
            println!("    {name:<width$} no   {error}");
            return Err(error.to_string());
        }
    };
    let mark = if is_asked { '*' } else { ' ' };
    let mut outcome = Ok(());
    for transport in found {
        match transport.probe() {
            Ok(caps) => {
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
                outcome = Err(missing.next_step);
            }
        }
    }
    outcome
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
    let mut told = BTreeSet::new();
    for (name, _) in &found {
        if !told.insert(name) {
            continue;
        }
        let own = found.iter().filter(|(other, _)| other == name);
        let addresses: Vec<String> = own.map(|(_, address)| address.to_string()).collect();
        let speed = speed_mbit(name).map_or(String::new(), |speed| format!("  {speed} Mbit/s"));
        line(name, format_args!("{}{speed}", addresses.join(", ")));
    }
}

/// What the system says that the interface can do; it says nothing of virtual ones.
fn speed_mbit(interface: &str) -> Option<u32> {
    let speed = std::fs::read_to_string(format!("/sys/class/net/{interface}/speed")).ok()?;
    speed.trim().parse().ok()
}

/// What is wrong with settings, and with what says who this rank is.
fn print_settings(has_all: bool) -> Vec<String> {
    for name in Settings::unknown_variables() {
        println!(
            "\nwarning: {name} is set but is not a setting of Brigade; brigade doctor --settings \
             lists them"
        );
    }
    let (settings, problem) = match Settings::from_env() {
        Ok(settings) => (settings, None),
        Err(error) => (Settings::default(), Some(error)),
    };
    tables::print_settings(&settings, has_all);
    tables::print_variables(has_all);
    let launch = Launch::discover().err().or_else(unreadable_secret);
    let launch = launch.map(|error| {
        format!(
            "{error}\n       correct or unset the variables: no program can join a world before"
        )
    });
    let problem = problem.map(|error| {
        format!(
            "{error}\n       settings are shown as their defaults; correct or unset the variable"
        )
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
