//! The names that launchers give to a rank, their number and the like.

/// A launcher, by the names it gives things.
pub(super) struct Launcher {
    pub(super) name: &'static str,
    /// Must be set as well, where the rank alone does not mean that the launcher is at work.
    pub(super) gate: Option<&'static str>,
    pub(super) rank: &'static str,
    pub(super) ranks: &'static [&'static str],
    pub(super) local_rank: Option<&'static str>,
    /// The number of ranks on this host.
    pub(super) local_ranks: Option<&'static str>,
}

/// In the order in which they are asked.
pub(super) const LAUNCHERS: [Launcher; 6] = [
    Launcher {
        name: "brigade",
        gate: None,
        rank: "BRIGADE_RANK",
        ranks: &["BRIGADE_WORLD_SIZE"],
        local_rank: Some("BRIGADE_LOCAL_RANK"),
        local_ranks: None,
    },
    Launcher {
        name: "torchrun",
        gate: None,
        rank: "RANK",
        ranks: &["WORLD_SIZE"],
        local_rank: Some("LOCAL_RANK"),
        local_ranks: Some("LOCAL_WORLD_SIZE"),
    },
    Launcher {
        name: "Open MPI",
        gate: None,
        rank: "OMPI_COMM_WORLD_RANK",
        ranks: &["OMPI_COMM_WORLD_SIZE"],
        local_rank: Some("OMPI_COMM_WORLD_LOCAL_RANK"),
        local_ranks: Some("OMPI_COMM_WORLD_LOCAL_SIZE"),
    },
    Launcher {
        name: "PMI",
        gate: None,
        rank: "PMI_RANK",
        ranks: &["PMI_SIZE"],
        local_rank: Some("MPI_LOCALRANKID"),
        local_ranks: Some("MPI_LOCALNRANKS"),
    },
    Launcher {
        name: "Slurm",
        gate: Some("SLURM_STEP_ID"),
        rank: "SLURM_PROCID",
        ranks: &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"],
        local_rank: Some("SLURM_LOCALID"),
        local_ranks: None,
    },
    Launcher {
        name: "Kubernetes",
        gate: None,
        rank: "JOB_COMPLETION_INDEX",
        ranks: &["BRIGADE_WORLD_SIZE", "WORLD_SIZE"],
        local_rank: None,
        local_ranks: None,
    },
];

/// Further variables that error messages repeat when they are set. Secrets are not among them.
pub(super) const OTHERS: [&str; 8] = [
    "BRIGADE_ROOT",
    "BRIGADE_ID_FILE",
    "BRIGADE_STORE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "SLURM_STEP_NODELIST",
];

impl Launcher {
    /// Whether it has started this process, by the variables that are there.
    pub(super) fn speaks(&self, has: impl Fn(&str) -> bool) -> bool {
        has(self.rank) && self.gate.is_none_or(has)
    }

    /// All that it sets and that is read.
    pub(super) fn variables(&self) -> Vec<&'static str> {
        let meeting: &[&str] = match self.name {
            "torchrun" => &[
                "MASTER_ADDR",
                "MASTER_PORT",
                "TORCHELASTIC_USE_AGENT_STORE",
                "TORCHELASTIC_RUN_ID",
                "TORCHELASTIC_RESTART_COUNT",
            ],
            "Open MPI" => &["PMIX_NAMESPACE"],
            "Slurm" => &["SLURM_JOB_ID", "SLURM_STEP_NODELIST"],
            _ => &[],
        };
        let ours = |name: &&&str| !name.starts_with("BRIGADE_");
        let ranks = self.ranks.iter().filter(ours).copied();
        let names = [self.rank].into_iter().chain(ranks).chain(self.local_rank);
        let names = names.chain(self.local_ranks).chain(self.gate);
        names.chain(meeting.iter().copied()).collect()
    }
}

/// Whoever says what the variables of a launcher do; ours people set as well.
pub(super) fn speaker(launcher: &str) -> &str {
    if launcher == "brigade" { "the environment" } else { launcher }
}

/// Where variables come from that were found.
pub(super) fn has_set(launcher: &str) -> String {
    let speaker = speaker(launcher);
    format!("{speaker} {}", if speaker == launcher { "set" } else { "has" })
}
