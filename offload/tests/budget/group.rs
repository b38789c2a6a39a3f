//! A memory control group: what its processes may take together, and what they have taken.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A group that exists, of the first or the second version of control groups.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    folder: PathBuf,
}

/// A group that goes when this is dropped. Its processes must have ended before.
#[derive(Debug)]
pub(crate) struct OwnGroup(pub(crate) Group);

/// Names of the same things in both versions, the second version's first.
const LIMIT: [&str; 2] = ["memory.max", "memory.limit_in_bytes"];
const USAGE: [&str; 2] = ["memory.current", "memory.usage_in_bytes"];
const PEAK: [&str; 2] = ["memory.peak", "memory.max_usage_in_bytes"];

/// How often a group is asked to go: a process that has ended leaves it a moment later.
const REMOVALS: u32 = 100;

impl OwnGroup {
    /// A new group, as near to the root as there can be one: where this process is may be somebody
    /// else's to divide.
    pub(crate) fn new() -> Result<Self, String> {
        static GROUPS: AtomicU32 = AtomicU32::new(0);
        let number = GROUPS.fetch_add(1, Ordering::Relaxed);
        let name = format!("brigade-budget-{}-{number}", std::process::id());
        let mut why = String::from("no memory control groups are mounted");
        for parent in parents() {
            let folder = parent.join(&name);
            if let Err(error) = fs::create_dir(&folder) {
                why = format!("{}: {error}", folder.display());
                continue;
            }
            let own = Self(Group { folder });
            match own.0.file(LIMIT) {
                Some(_) => return Ok(own),
                None => why = format!("groups in {} have no memory limit", parent.display()),
            }
        }
        Err(why)
    }
}

impl Drop for OwnGroup {
    fn drop(&mut self) {
        for _ in 0..REMOVALS {
            match fs::remove_dir(&self.0.folder) {
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                _ => return,
            }
        }
        eprintln!("{} could not be removed", self.0.folder.display());
    }
}

impl Group {
    pub(crate) fn existing(folder: &Path) -> Self {
        Self { folder: folder.into() }
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Move this process into the group. What it has already taken stays where it was counted.
    pub(crate) fn enter(&self) -> io::Result<()> {
        fs::write(self.folder.join("cgroup.procs"), std::process::id().to_string())
    }

    /// Let the group have so many bytes of memory, and no swap space.
    pub(crate) fn limit(&self, bytes: u64) -> io::Result<()> {
        fs::write(self.file(LIMIT).ok_or(io::ErrorKind::NotFound)?, bytes.to_string())?;
        let without_swap = [
            ("memory.swap.max", 0),
            ("memory.swappiness", 0),
            ("memory.memsw.limit_in_bytes", bytes),
        ];
        for (file, value) in without_swap {
            let path = self.folder.join(file);
            if path.exists() {
                fs::write(path, value.to_string())?;
            }
        }
        Ok(())
    }

    /// Bytes that are taken now, by the kernel for the group's processes too.
    pub(crate) fn usage(&self) -> Option<u64> {
        self.number(USAGE)
    }

    /// The most that ever were.
    pub(crate) fn peak(&self) -> Option<u64> {
        self.number(PEAK)
    }

    fn number(&self, names: [&str; 2]) -> Option<u64> {
        fs::read_to_string(self.file(names)?).ok()?.trim().parse().ok()
    }

    fn file(&self, names: [&str; 2]) -> Option<PathBuf> {
        names.map(|name| self.folder.join(name)).into_iter().find(|path| path.exists())
    }
}

/// Where groups are mounted that limit memory, and from there down to where this process is.
fn parents() -> Vec<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let mut parents = Vec::new();
    for line in mounts.lines() {
        let mut words = line.split_whitespace().skip(1);
        let (Some(root), Some(kind), Some(options)) = (words.next(), words.next(), words.next())
        else {
            continue;
        };
        let is_meant = |controllers: &str| match kind {
            "cgroup" => controllers.split(',').any(|name| name == "memory"),
            _ => controllers.is_empty(),
        };
        let is_mounted = kind == "cgroup2" || options.split(',').any(|name| name == "memory");
        if !kind.starts_with("cgroup") || !is_mounted {
            continue;
        }
        let own = groups.lines().find_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            is_meant(controllers).then_some(path)
        });
        let mut parent = PathBuf::from(root);
        parents.push(parent.clone());
        for part in own.unwrap_or_default().split('/').filter(|part| !part.is_empty()) {
            parent.push(part);
            parents.push(parent.clone());
        }
    }
    parents
}
