//! Every launcher's environment, as a table: who we are, where the root is, or what is missing.

use std::collections::BTreeMap;

use brigade_comm::bootstrap::UniqueId;
use brigade_comm::launch::{JobSecret, Launch, LaunchError, RootAddress, RootSpec};

/// What `A=1 B=2` says.
fn variables(environment: &str) -> BTreeMap<&str, &str> {
    environment.split_whitespace().map(|pair| pair.split_once('=').unwrap()).collect()
}

fn discover(environment: &str) -> Result<Launch, LaunchError> {
    let variables = variables(environment);
    Launch::discover_in(&|name| variables.get(name).map(|value| (*value).to_owned()))
}

fn address(launch: &Launch) -> &RootAddress {
    match &launch.root {
        RootSpec::Address(address) => address,
        other => panic!("not an address: {other:?}"),
    }
}

fn secret(launch: &Launch) -> Option<&JobSecret> {
    match &launch.root {
        RootSpec::Store(store) => store.secret.as_ref(),
        other => panic!("not a store: {other:?}"),
    }
}

/// `environment` says rank, number of ranks, rank on this host, and a root that prints like this.
fn check(environment: &str, want: (usize, usize, Option<usize>), root: &str) -> Launch {
    let launch = discover(environment).unwrap_or_else(|error| panic!("{environment}: {error}"));
    assert_eq!((launch.rank, launch.ranks, launch.local_rank), want, "{environment}");
    let said = match &launch.root {
        RootSpec::Alone => "alone".to_owned(),
        RootSpec::Id(_) => "id".to_owned(),
        RootSpec::IdFile(path) => path.display().to_string(),
        RootSpec::Address(address) => address.to_string(),
        RootSpec::Store(store) => format!("{store}, {}", store.key),
    };
    // A derived port is a number that nobody has to know.
    let matches = match root.strip_suffix(":*") {
        Some(host) => said.starts_with(&format!("{host}:")),
        None => said == root,
    };
    assert!(matches, "{environment}: {said}, not {root}");
    launch
}

/// `environment` is an error that says all of `words`.
fn check_error(environment: &str, words: &[&str]) {
    let error = discover(environment).expect_err(environment).to_string();
    for word in words {
        assert!(error.contains(word), "{environment}: {error:?} does not say {word:?}");
    }
}

/// Of the launcher that started us, not of one around it; torchrun's name means the same anywhere.
#[test]
fn the_number_on_a_host_is_of_the_launcher_at_work() {
    let slurm = "SLURM_STEP_ID=0 SLURM_PROCID=6 SLURM_LOCALID=3";
    for (environment, want) in [
        ("", None),
        ("LOCAL_RANK=2", Some(2)),
        ("SLURM_LOCALID=3", None),
        (slurm, Some(3)),
        ("BRIGADE_RANK=5 SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_LOCALID=0", None),
        ("BRIGADE_RANK=5 LOCAL_RANK=1 SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_LOCALID=0", Some(1)),
        ("BRIGADE_RANK=5 BRIGADE_LOCAL_RANK=2 LOCAL_RANK=1", Some(2)),
        ("OMPI_COMM_WORLD_RANK=4 OMPI_COMM_WORLD_LOCAL_RANK=1", Some(1)),
        ("PMI_RANK=4 MPI_LOCALRANKID=1", Some(1)),
        ("PMI_RANK=4 MPI_LOCALRANKID=", None),
    ] {
        let variables = variables(environment);
        let lookup = |name: &str| variables.get(name).map(|value| (*value).to_owned());
        assert_eq!(Launch::local_rank_in(&lookup), want, "{environment}");
    }
}

#[test]
fn nothing_set_is_one_process() {
    check("", (0, 1, None), "alone");
    check("PATH=/bin WORLD_SIZE=1 RANK=", (0, 1, None), "alone");
    check("SLURM_JOB_ID=7 SLURM_PROCID=3 SLURM_NTASKS=8", (0, 1, None), "alone");
}

#[test]
fn brigade_itself() {
    let own = "BRIGADE_RANK=2 BRIGADE_WORLD_SIZE=4 BRIGADE_LOCAL_RANK=1";
    check(&format!("{own} BRIGADE_ROOT=node7:4000"), (2, 4, Some(1)), "node7:4000");
    check(&format!("{own} BRIGADE_ROOT=[fd00::1]:4000"), (2, 4, Some(1)), "[fd00::1]:4000");
    check(&format!("{own} BRIGADE_ID_FILE=/s/id BRIGADE_ROOT=a:1"), (2, 4, Some(1)), "/s/id");
    let (id, _root) = UniqueId::create(None).unwrap();
    let launch = check(&format!("{own} BRIGADE_ID={id}"), (2, 4, Some(1)), "id");
    assert_eq!(launch.root, RootSpec::Id(id));
    check("BRIGADE_RANK=0 BRIGADE_WORLD_SIZE=1 BRIGADE_ROOT=a:1", (0, 1, None), "alone");
}

#[test]
fn a_store_that_is_there_is_used() {
    let torchrun = "RANK=1 WORLD_SIZE=2 MASTER_ADDR=node1 MASTER_PORT=29500 TORCHELASTIC_RUN_ID=7";
    let agent = format!("{torchrun} TORCHELASTIC_RESTART_COUNT=3 TORCHELASTIC_USE_AGENT_STORE");
    check(&format!("{agent}=True"), (1, 2, None), "the store at node1:29500, brigade/7");
    check(&format!("{agent}=False"), (1, 2, None), "node1:29501-29508");
    check(&format!("{agent}=True BRIGADE_ROOT=a:1"), (1, 2, None), "a:1");
    let own = "BRIGADE_RANK=0 BRIGADE_WORLD_SIZE=2 BRIGADE_STORE=[::1]:9";
    let launch = check(own, (0, 2, None), "the store at ::1:9, brigade/");
    // Who has a secret proves it there, too.
    assert_eq!(secret(&launch), None);
    for store in [own.to_owned(), format!("{agent}=True")] {
        let launch = discover(&format!("{store} BRIGADE_SECRET=word")).unwrap();
        assert_eq!(secret(&launch), Some(&JobSecret::from_text("word")), "{store}");
    }
    check_error("RANK=1 WORLD_SIZE=2 BRIGADE_STORE=9", &["BRIGADE_STORE", "host:port"]);
}

#[test]
fn torchrun_keeps_master_port_for_itself() {
    let torchrun = "RANK=3 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 MASTER_ADDR=node1";
    check(&format!("{torchrun} MASTER_PORT=29500"), (3, 8, Some(1)), "node1:29501-29508");
    check(&format!("{torchrun} MASTER_PORT=65535"), (3, 8, Some(1)), "node1:65527-65534");
    check(&format!("{torchrun} MASTER_PORT=1 BRIGADE_ROOT=x:9"), (3, 8, Some(1)), "x:9");
    check(
        &format!("BRIGADE_RANK=0 BRIGADE_WORLD_SIZE=2 {torchrun} MASTER_PORT=9"),
        (0, 2, None),
        "node1:10-17",
    );
}

#[test]
fn open_mpi_on_one_host_derives_a_root_and_on_several_asks_for_one() {
    let mpi = "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 \
               PMIX_RANK=1 PMIX_NAMESPACE=3214123009";
    let one_host = format!("{mpi} OMPI_COMM_WORLD_LOCAL_SIZE=4");
    let launch = check(&one_host, (1, 4, Some(1)), "127.0.0.1:*");
    assert_eq!(launch.root, discover(&one_host).unwrap().root, "all ranks derive the same");
    let other = discover(&one_host.replace("3214123009", "3214123010")).unwrap();
    assert_ne!(address(&launch).port, address(&other).port);
    let several = format!("{mpi} OMPI_COMM_WORLD_LOCAL_SIZE=2");
    check_error(&several, &["Open MPI", "OMPI_COMM_WORLD_RANK=1", "set BRIGADE_ROOT=host:port"]);
    check(&format!("{several} BRIGADE_ROOT=a:1"), (1, 4, Some(1)), "a:1");
}

#[test]
fn pmi_needs_a_root_unless_slurm_stands_behind_it() {
    let pmi = "PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=2";
    check(&format!("{pmi} BRIGADE_ROOT=a:1"), (1, 2, Some(0)), "a:1");
    check_error(pmi, &["PMI set PMI_RANK=1, PMI_SIZE=2", "BRIGADE_ROOT is not set"]);
    let slurm = "SLURM_STEP_ID=0 SLURM_JOB_ID=77 SLURM_PROCID=1 SLURM_STEP_NODELIST=n[4-5]";
    check(&format!("{pmi} {slurm}"), (1, 2, Some(0)), "n4:*");
}

#[test]
fn slurm_meets_on_the_first_host_of_the_step() {
    let step = "SLURM_JOB_ID=77 SLURM_PROCID=5 SLURM_STEP_NUM_TASKS=6 SLURM_NTASKS=8 \
                SLURM_LOCALID=2 SLURM_NODEID=1 SLURM_STEP_NODELIST=node[3-4,9],x";
    let launch = check(&format!("{step} SLURM_STEP_ID=1"), (5, 6, Some(2)), "node3:*");
    let port = address(&launch).port;
    assert!((15_000..30_000).contains(&port));
    let next = discover(&format!("{step} SLURM_STEP_ID=2")).unwrap();
    assert_ne!(address(&next).port, port);
    assert_ne!(address(&next).secret, address(&launch).secret);
    let bad = step.replace("node[3-4,9],x", "node[3-4") + " SLURM_STEP_ID=1";
    check_error(&bad, &["SLURM_STEP_NODELIST", "node[3-4", "a list of hosts"]);
    let nodes = " SLURM_STEP_NODELIST=node[3-4,9],x";
    check_error(
        &(step.replace(nodes, "") + " SLURM_STEP_ID=1"),
        &["Slurm set", "SLURM_PROCID=5", "SLURM_STEP_ID=1", "set BRIGADE_ROOT"],
    );
}

#[test]
fn kubernetes_gives_an_index_and_the_rest_is_ours() {
    let pod = "JOB_COMPLETION_INDEX=2 BRIGADE_WORLD_SIZE=3";
    check(&format!("{pod} BRIGADE_ROOT=job-0.svc:4000"), (2, 3, None), "job-0.svc:4000");
    check_error(pod, &["Kubernetes", "JOB_COMPLETION_INDEX=2", "BRIGADE_ROOT is not set"]);
    check_error("JOB_COMPLETION_INDEX=2", &["BRIGADE_WORLD_SIZE is not set"]);
    check("JOB_COMPLETION_INDEX=0 WORLD_SIZE=1", (0, 1, None), "alone");
}

#[test]
fn the_first_launcher_in_the_order_counts() {
    let all = [
        "BRIGADE_RANK=1 BRIGADE_WORLD_SIZE=11",
        "RANK=2 WORLD_SIZE=12",
        "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=13",
        "PMI_RANK=4 PMI_SIZE=14",
        "SLURM_STEP_ID=0 SLURM_PROCID=5 SLURM_NTASKS=15",
        "JOB_COMPLETION_INDEX=6 BRIGADE_WORLD_SIZE=16",
    ];
    for first in 0..all.len() {
        let rest = if first == 0 { &all[..5] } else { &all[first..] };
        // The later ones stand first: the place in the environment must not matter.
        let environment: Vec<_> = rest.iter().rev().copied().collect();
        let environment = format!("{} BRIGADE_ROOT=a:1", environment.join(" "));
        check(&environment, (first + 1, first + 11, None), "a:1");
    }
}

#[test]
fn half_an_environment_is_never_taken_for_one_process() {
    check_error(
        "BRIGADE_RANK=1",
        &["the environment has BRIGADE_RANK=1", "BRIGADE_WORLD_SIZE is not"],
    );
    check_error("RANK=1 MASTER_ADDR=a", &["RANK=1, MASTER_ADDR=a", "WORLD_SIZE is not set"]);
    check_error("RANK=1 WORLD_SIZE=2 MASTER_ADDR=a", &["MASTER_PORT is not set", "set both"]);
    check_error("RANK=1 WORLD_SIZE=2", &["torchrun", "BRIGADE_ROOT is not set"]);
    check_error("BRIGADE_WORLD_SIZE=2", &["BRIGADE_RANK is not set"]);
    check_error("WORLD_SIZE=2", &["torchrun", "RANK is not set"]);
    for place in ["BRIGADE_ROOT=a:1", "BRIGADE_STORE=a:1", "BRIGADE_ID_FILE=a"] {
        check_error(
            place,
            &[&format!("the environment has {place}, but"), "BRIGADE_RANK is not set"],
        );
    }
}

#[test]
fn values_without_meaning_are_named() {
    check_error("RANK=two WORLD_SIZE=4", &["RANK=\"two\"", "a whole number"]);
    check_error("RANK=-1 WORLD_SIZE=4", &["RANK=\"-1\"", "a whole number from 0 on"]);
    check_error("RANK=4 WORLD_SIZE=4", &["rank 4 of 4", "from 0"]);
    for root in ["host", "host:", ":1", "host:0", "host:70000", "fd00::1:4000"] {
        let environment = format!("BRIGADE_RANK=0 BRIGADE_WORLD_SIZE=2 BRIGADE_ROOT={root}");
        check_error(&environment, &["BRIGADE_ROOT", "host:port"]);
    }
    for port in ["0", "65536"] {
        let environment = format!("RANK=0 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT={port}");
        check_error(&environment, &["MASTER_PORT", "from 1 to 65535"]);
    }
    check_error("RANK=0 WORLD_SIZE=2 BRIGADE_ID=00ff", &["BRIGADE_ID", "256 hexadecimal"]);
}

#[test]
fn secrets_come_from_text_or_file_or_are_a_guard_against_mix_ups() {
    let job = "BRIGADE_RANK=0 BRIGADE_WORLD_SIZE=2 BRIGADE_ROOT=a:1";
    let secret = |environment: &str| {
        address(&discover(&format!("{job} {environment}")).unwrap()).secret.clone()
    };
    assert_eq!(secret("BRIGADE_SECRET=xyzzy"), JobSecret::from_text("xyzzy"));
    let name = format!("brigade-secret-{}", std::process::id());
    let path = std::env::temp_dir().join(name);
    std::fs::write(&path, "xyzzy\n").unwrap();
    let from_file = format!("BRIGADE_SECRET_FILE={}", path.display());
    assert_eq!(secret(&from_file), JobSecret::from_text("xyzzy"));
    std::fs::write(&path, " \n").unwrap();
    check_error(&format!("{job} {from_file}"), &["BRIGADE_SECRET_FILE", "empty"]);
    std::fs::remove_file(&path).unwrap();
    check_error(&format!("{job} {from_file}"), &["BRIGADE_SECRET_FILE", "No such file"]);
    let endless = format!("{job} BRIGADE_SECRET_FILE=/dev/zero");
    check_error(&endless, &["BRIGADE_SECRET_FILE=/dev/zero: more than 65536 bytes"]);
    assert_eq!(secret(""), secret(""));
    assert_ne!(secret(""), secret("TORCHELASTIC_RUN_ID=9"));
    assert_ne!(secret("SLURM_JOB_ID=1"), secret("SLURM_JOB_ID=2"));
    let error = discover(&format!("{job} BRIGADE_SECRET=xyzzy BRIGADE_RANK=x")).unwrap_err();
    assert!(!error.to_string().contains("xyzzy"), "{error}");
    assert_eq!(format!("{:?}", JobSecret::from_text("xyzzy")), "JobSecret(..)");
}
