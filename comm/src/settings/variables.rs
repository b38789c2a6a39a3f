//! Variables of the environment that are no settings: they say who a rank is, where ranks meet and
//! where libraries are. Read when ranks come together, or when a device is first used.

use crate::launch;

/// A variable, and what it means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variable {
    /// Its name.
    pub name: &'static str,
    /// What it says.
    pub meaning: &'static str,
    /// Whether its value is for nobody else to see.
    pub is_secret: bool,
}

const fn open(name: &'static str, meaning: &'static str) -> Variable {
    Variable { name, meaning, is_secret: false }
}

const fn secret(name: &'static str, meaning: &'static str) -> Variable {
    Variable { name, meaning, is_secret: true }
}

/// Ours.
const OURS: [Variable; 14] = [
    open("BRIGADE_RANK", "this process's rank, from 0"),
    open("BRIGADE_WORLD_SIZE", "how many ranks there are"),
    open("BRIGADE_LOCAL_RANK", "its number on this host"),
    secret("BRIGADE_ID", "where they meet: an id of 128 bytes, in hexadecimal digits"),
    open("BRIGADE_ID_FILE", "or a file with the id, which rank 0 writes"),
    open("BRIGADE_ROOT", "or host:port, where rank 0 listens"),
    open("BRIGADE_STORE", "or host:port of a store of PyTorch's"),
    secret("BRIGADE_SECRET", "keeps strangers out; alike on all ranks, 16 random bytes"),
    open("BRIGADE_SECRET_FILE", "or a file with it"),
    open("BRIGADE_CUDA_LIBRARY", "the file of CUDA's driver, libcuda.so.1"),
    open("BRIGADE_NVRTC", "the file of CUDA's compiler, or a folder above it"),
    open("BRIGADE_CUBLAS_LIBRARY", "the file of cuBLAS, or a folder above it"),
    open("BRIGADE_CUFILE_LIBRARY", "the file of cuFile (GPUDirect Storage), or a folder above it"),
    open("BRIGADE_CACHE", "the folder for compiled kernels"),
];

impl Variable {
    /// All that are ours.
    pub fn ours() -> &'static [Variable] {
        &OURS
    }

    /// Of each launcher that is understood, in the order in which they are asked: its name, and the
    /// variables that say who a rank is and where ranks meet.
    pub fn of_launchers() -> Vec<(&'static str, Vec<&'static str>)> {
        launch::variables()
    }

    /// Its value in this process's environment, as it may be shown: an empty one counts as none.
    pub fn shown(&self) -> Option<String> {
        let value = std::env::var_os(self.name)?.to_string_lossy().into_owned();
        match (value.is_empty(), self.is_secret) {
            (true, _) => None,
            (false, true) => Some("(set, not shown)".into()),
            (false, false) => Some(value),
        }
    }

    pub(super) fn is_known(name: &str) -> bool {
        OURS.iter().any(|variable| variable.name == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launchers_are_told_with_all_that_they_set() {
        let all = Variable::of_launchers();
        let of = |launcher: &str| {
            let found = all.iter().find(|(name, _)| *name == launcher);
            found.map(|(_, variables)| variables.clone()).unwrap_or_default()
        };
        assert!(of("torchrun").contains(&"MASTER_ADDR") && of("torchrun").contains(&"RANK"));
        assert!(of("Slurm").contains(&"SLURM_STEP_NODELIST"));
        assert!(of("Open MPI").contains(&"PMIX_NAMESPACE"));
        assert!(of("brigade").is_empty(), "those are ours");
    }

    #[test]
    fn secrets_are_not_shown() {
        assert!(Variable::ours().iter().any(|it| it.name == "BRIGADE_SECRET" && it.is_secret));
        // Of any process.
        let path = open("PATH", "").shown().unwrap();
        assert!(!path.is_empty());
        assert_eq!(secret("PATH", "").shown().unwrap(), "(set, not shown)");
        assert_eq!(open("BRIGADE_TEST_UNSET", "").shown(), None);
    }
}
