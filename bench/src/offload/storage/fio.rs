//! The peer: `fio`, run once for each measurement, with the settings that are its best here.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::offload::Failure;
use crate::offload::rig::Direction;
use crate::sys;

/// An installed fio.
pub(super) struct Fio {
    version: String,
    has_reserved_pages: bool,
}

/// What fio shall do.
pub(super) struct Job<'a> {
    pub(super) direction: Direction,
    pub(super) path: &'a Path,
    pub(super) bytes: u64,
    pub(super) block: usize,
    pub(super) is_direct: bool,
}

/// What it found.
pub(super) struct Run {
    pub(super) gb_s: f64,
    pub(super) cpu_s_per_gb: f64,
}

impl Fio {
    pub(super) fn find() -> Result<Self, Failure> {
        let found = Command::new("fio").arg("--version").output();
        let found = found.map_err(|error| {
            Failure::Usage(format!(
                "--fio: fio cannot be run ({error}); install it, or leave it out"
            ))
        })?;
        let version = String::from_utf8_lossy(&found.stdout).trim().to_owned();
        let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let free = info.lines().find_map(|line| line.strip_prefix("HugePages_Free:"));
        let has_reserved_pages = free.is_some_and(|free| free.trim().parse().unwrap_or(0) >= 64);
        Ok(Self { version, has_reserved_pages })
    }

    pub(super) fn describe(&self) -> String {
        let pages = if self.has_reserved_pages { "reserved" } else { "transparent" };
        format!("{}, io_uring, registered buffers and files, {pages} huge pages", self.version)
    }

    /// Run one job for so long.
    pub(super) fn run(&self, job: &Job<'_>, depth: u32, least: Duration) -> Result<Run, Failure> {
        let mut command = Command::new("fio");
        command
            .args(["--name=peer", "--ioengine=io_uring", "--fixedbufs=1", "--registerfiles=1"])
            .args(["--time_based", "--output-format=json"])
            // Else it starts processes of its own, which would outlive it.
            .arg("--thread=1")
            // Else it changes its buffers before each write, which takes thrice the processor time.
            .arg("--scramble_buffers=0")
            // A colon would begin the name of another file.
            .arg(format!("--filename={}", job.path.display().to_string().replace(':', "\\:")))
            .arg(format!("--rw={}", job.direction.name()))
            .arg(format!("--direct={}", u8::from(job.is_direct)))
            .arg(format!("--bs={}", job.block))
            .arg(format!("--size={}", job.bytes))
            .arg(format!("--iodepth={depth}"))
            .arg(format!("--runtime={}ms", least.as_millis()));
        match self.has_reserved_pages {
            true => command.args(["--iomem=mmaphuge", "--hugepage-size=2M"]),
            // Its buffers come from malloc, which glibc puts on huge pages when it is told to.
            false => command.env("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"),
        };
        // Else it would load the drive long after whoever measures was killed.
        sys::die_with_parent(&mut command);
        let output = command
            .output()
            .map_err(|error| Failure::Usage(format!("fio cannot be run: {error}")))?;
        let text = String::from_utf8_lossy(&output.stdout);
        parse(&text, job.direction).ok_or_else(|| {
            let words = String::from_utf8_lossy(&output.stderr);
            Failure::Usage(format!("fio failed ({}): {}", output.status, words.trim()))
        })
    }
}

/// Bandwidth and processor time from fio's JSON, behind whatever notes it prints first.
fn parse(text: &str, direction: Direction) -> Option<Run> {
    let value: Value = serde_json::from_str(&text[text.find('{')?..]).ok()?;
    let job = value.get("jobs")?.get(0)?;
    if job.get("error")?.as_i64()? != 0 {
        return None;
    }
    let side = job.get(direction.name())?;
    let gb_s = side.get("bw_bytes")?.as_f64()? / 1e9;
    let seconds = job.get("job_runtime")?.as_f64()? / 1e3;
    let busy = (job.get("usr_cpu")?.as_f64()? + job.get("sys_cpu")?.as_f64()?) / 100.0;
    let gb = side.get("io_bytes")?.as_f64()? / 1e9;
    (gb > 0.0).then_some(Run { gb_s, cpu_s_per_gb: busy * seconds / gb })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fio_prints_is_understood() {
        let text = "note: something\n{\"jobs\": [{\"error\": 0, \"job_runtime\": 500, \
                    \"usr_cpu\": 1.0, \"sys_cpu\": 3.0, \
                    \"read\": {\"bw_bytes\": 2000000000, \"io_bytes\": 1000000000}}]}";
        let run = parse(text, Direction::Read).unwrap();
        assert_eq!((run.gb_s, run.cpu_s_per_gb), (2.0, 0.02));
        assert!(parse(&text.replace("\"error\": 0", "\"error\": 5"), Direction::Read).is_none());
        assert!(parse(text, Direction::Write).is_none() && parse("", Direction::Read).is_none());
    }
}
