//! Where libraries of CUDA's toolkit lie when nobody says: it is put in many places, and Python's
//! packages of it are in none that the linker knows.

use std::path::{Path, PathBuf};

/// Where toolkits are put.
const FOLDERS: [&str; 3] =
    ["/usr/local/cuda/lib64", "/opt/cuda/lib64", "/usr/lib/x86_64-linux-gnu"];
/// Folders within folders that are looked through; packages of Python lie eight deep.
const DEPTH_MAX: u32 = 9;

/// What to try for a library of the toolkit, in order. `names` are file names, newest first, such
/// as `libcublas.so.13`; `variable` names the file, or a folder above it, and then nothing else is
/// tried. Else it is where the linker looks, in toolkits, and in the Python environments on `PATH`.
/// Costs some system calls for each place.
///
/// The last name is the one without a version; a folder that `variable` names may hold any version
/// of it.
pub fn candidates(names: &[&str], variable: &str) -> Vec<PathBuf> {
    let plain = names.last().copied().unwrap_or_default();
    if let Some(named) = std::env::var_os(variable).filter(|named| !named.is_empty()) {
        let path = PathBuf::from(named);
        return if path.is_dir() { below(&path, plain) } else { vec![path] };
    }
    let mut found: Vec<PathBuf> = names.iter().map(PathBuf::from).collect();
    let homes = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(std::env::var_os);
    let mut folders: Vec<PathBuf> = homes.map(|home| PathBuf::from(home).join("lib64")).collect();
    folders.extend(FOLDERS.iter().map(PathBuf::from));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let programs: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let compilers = programs.iter().filter(|folder| folder.join("nvcc").exists());
    folders.extend(compilers.map(|folder| folder.join("../lib64")));
    for folder in folders {
        found.extend(names.iter().map(|name| folder.join(name)).filter(|path| path.exists()));
    }
    for folder in programs.iter().filter(|folder| folder.join("python3").exists()) {
        for packages in packages(folder) {
            found.extend(below(&packages, plain));
        }
    }
    found
}

/// The same, those of this generation of CUDA first: a driver may refuse what is of a later one.
/// Else they stay in their order.
pub fn of_generation(mut candidates: Vec<PathBuf>, major: u32) -> Vec<PathBuf> {
    let ours = format!(".so.{major}");
    candidates.sort_by_key(|path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let after = name.split_once(&ours).map(|(_, after)| after);
        !after.is_some_and(|after| after.is_empty() || after.starts_with('.'))
    });
    candidates
}

/// NVIDIA's packages of the Python whose program lies in `folder`.
fn packages(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder.join("../lib")) else { return Vec::new() };
    let libraries = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let of_python = libraries.filter(|path| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with("python3"))
    });
    let packages = of_python.map(|path| path.join("site-packages/nvidia"));
    packages.filter(|path| path.is_dir()).collect()
}

/// All files of that name below a folder, with whatever version, newest first.
fn below(folder: &Path, plain: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    look_through(folder, plain, DEPTH_MAX, &mut found);
    found.sort_by(|a, b| b.file_name().cmp(&a.file_name()));
    found
}

fn look_through(folder: &Path, plain: &str, depth: u32, found: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name.starts_with(plain) {
            found.push(path);
        } else if depth > 0 && path.is_dir() && !path.is_symlink() {
            look_through(&path, plain, depth - 1, found);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_of_the_drivers_generation_comes_first() {
        let found =
            ["libx.so.13", "libx.so.12", "libx.so", "/a.so.12/libx.so.1", "/b/libx.so.12.4"];
        let sorted = |major| {
            let sorted = of_generation(found.map(PathBuf::from).to_vec(), major);
            sorted.iter().map(|path| path.display().to_string()).collect::<Vec<_>>()
        };
        let [newer, older, plain, odd, long] = found;
        assert_eq!(sorted(12), [older, long, newer, plain, odd]);
        assert_eq!(sorted(13), found);
        assert_eq!(sorted(11), found);
    }
}
