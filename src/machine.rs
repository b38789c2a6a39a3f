//! What this machine is, as far as moving and folding bytes goes. Read from the system, never
//! measured: `doctor` must answer at once.

use std::fs;
use std::path::Path;

use crate::sys;

/// The facts, as pairs of a name and a sentence.
pub(crate) fn facts() -> Vec<(&'static str, String)> {
    vec![
        ("processor", processor()),
        ("vectors", vectors()),
        ("memory", memory()),
        ("NUMA nodes", numa_nodes()),
        ("locked memory", locked_memory()),
        ("system", system()),
    ]
}

fn processor() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let name = name.map_or("unknown", |(_, name)| name.trim());
    match std::thread::available_parallelism() {
        Ok(cores) => format!("{name}, {cores} cores for this process"),
        Err(error) => format!("{name}, number of cores unknown ({error})"),
    }
}

/// The instruction sets that the fold kernels choose from.
fn vectors() -> String {
    #[cfg(target_arch = "x86_64")]
    let known = [
        ("sse4.2", std::arch::is_x86_feature_detected!("sse4.2")),
        ("avx2", std::arch::is_x86_feature_detected!("avx2")),
        ("fma", std::arch::is_x86_feature_detected!("fma")),
        ("f16c", std::arch::is_x86_feature_detected!("f16c")),
        ("avx512f", std::arch::is_x86_feature_detected!("avx512f")),
        ("avx512bw", std::arch::is_x86_feature_detected!("avx512bw")),
    ];
    #[cfg(not(target_arch = "x86_64"))]
    let known: [(&str, bool); 0] = [];
    let have: Vec<_> = known.iter().filter(|(_, have)| *have).map(|(name, _)| *name).collect();
    match have.is_empty() {
        true => String::from("none that the kernels use: they run in plain code"),
        false => have.join(" "),
    }
}

fn memory() -> String {
    let info = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = |name: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line?.trim().strip_suffix(" kB")?.parse::<u64>().ok()
    };
    match (kib("MemTotal"), kib("MemAvailable")) {
        (Some(total), Some(free)) => format!("{} of {} available", size(free), size(total)),
        _ => String::from("unknown: /proc/meminfo cannot be read"),
    }
}

fn size(kib: u64) -> String {
    match kib {
        _ if kib >= 1 << 20 => format!("{:.1} GiB", kib as f64 / f64::from(1 << 20)),
        _ if kib >= 1 << 10 => format!("{:.1} MiB", kib as f64 / f64::from(1 << 10)),
        _ => format!("{kib} KiB"),
    }
}

fn numa_nodes() -> String {
    let root = Path::new("/sys/devices/system/node");
    let entries = match fs::read_dir(root) {
        Ok(entries) => entries,
        Err(_) => return String::from("unknown: the system does not show them"),
    };
    let mut nodes: Vec<(u32, String)> = entries
        .filter_map(|entry| {
            let name = entry.ok()?.file_name().into_string().ok()?;
            let number = name.strip_prefix("node")?.parse().ok()?;
            let cores = fs::read_to_string(root.join(&name).join("cpulist")).ok()?;
            Some((number, format!("{number} (cores {})", cores.trim())))
        })
        .collect();
    nodes.sort_unstable();
    let names: Vec<_> = nodes.into_iter().map(|(_, name)| name).collect();
    names.join(", ")
}

fn locked_memory() -> String {
    match sys::memory_lock_limit() {
        Ok(None) => String::from("no limit"),
        Ok(Some(bytes)) => format!(
            "at most {}; transports that register memory want more (ulimit -l unlimited)",
            size(bytes >> 10)
        ),
        Err(error) => format!("unknown: {error}"),
    }
}

fn system() -> String {
    let read =
        |path| fs::read_to_string(path).map_or_else(|_| String::new(), |s| s.trim().to_owned());
    let release = read("/proc/sys/kernel/osrelease");
    format!("{} {release}, {}", read("/proc/sys/kernel/ostype"), std::env::consts::ARCH)
}
