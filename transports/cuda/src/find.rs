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
/// tried. Else it is where the linker looks, in toolkits, in the Python environments on `PATH`, and
/// where pip puts packages outside of environments: for a user, and under Debian for all. Costs
/// some system calls for each place.
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
    let pythons = programs.iter().filter(|folder| folder.join("python3").exists());
    let mut libraries: Vec<PathBuf> = pythons.map(|folder| folder.join("../lib")).collect();
    libraries.push(PathBuf::from("/usr/local/lib"));
    let home = std::env::var_os("HOME").filter(|home| !home.is_empty());
    libraries.extend(home.map(|home| PathBuf::from(home).join(".local/lib")));
    for packages in libraries.iter().flat_map(|folder| packages(folder)) {
        for path in below(&packages, plain) {
            // A place may be named twice, by PATH too.
            if !found.contains(&path) {
                found.push(path);
            }
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

/// NVIDIA's packages of the Pythons that have theirs in `folder`. Debian's Python has what pip
/// installs in `dist-packages`, and others in `site-packages`.
fn packages(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let libraries = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let of_python = libraries.filter(|path| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with("python3"))
    });
    let names = ["site-packages/nvidia", "dist-packages/nvidia"];
    let packages = of_python.flat_map(|path| names.map(|name| path.join(name)));
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
    fn packages_of_all_kinds_of_pythons_are_found() {
        let folder = std::env::temp_dir().join(format!("brigade-find-{}", std::process::id()));
        let of = |packages: &str| {
            let name = format!("python3.11/{packages}/nvidia/cuda_nvrtc/lib/libnvrtc.so.12");
            folder.join(name)
        };
        for file in ["site-packages", "dist-packages"].map(of) {
            std::fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
            std::fs::write(&file, "").expect("a file");
        }
        let found = packages(&folder).into_iter().flat_map(|found| below(&found, "libnvrtc.so"));
        let found: Vec<PathBuf> = found.collect();
        std::fs::remove_dir_all(&folder).expect("ours");
        assert_eq!(found, [of("site-packages"), of("dist-packages")]);
    }

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
