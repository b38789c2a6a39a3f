//! What settings may be, and how they are shown.

use super::*;

#[test]
fn every_setting_of_the_table_can_be_set_and_is_shown() {
    let rules = std::env::temp_dir().join(format!("brigade-no-rules-{}", std::process::id()));
    std::fs::write(&rules, "").unwrap();
    let values = [
        "tcp",
        "ring",
        rules.to_str().expect("a path of text"),
        "1",
        "5",
        "6",
        "7",
        "65536",
        "lo",
        "100-200",
        "3",
        "1",
        "4000",
        "mlx5_0",
        "8",
        "255",
        "15",
        "104",
        "31",
        "5",
        "0",
        "4096",
    ];
    let value = |name: &str| rows().position(|row| row.0 == name).map(|row| values[row].to_owned());
    let settings = Settings::from_lookup(value).unwrap();
    std::fs::remove_file(&rules).unwrap();
    let shown: Vec<String> = settings.table().into_iter().map(|row| row.current).collect();
    assert_eq!(shown, values);
}

#[test]
fn an_empty_variable_counts_as_none() {
    let settings = Settings::from_lookup(|_| Some(" ".to_owned())).unwrap();
    let rows = settings.table();
    assert_eq!(rows.len(), super::rows().count());
    assert!(rows.iter().all(|row| row.current == row.default), "{rows:?}");
}

#[test]
fn windows_are_shown_as_they_are_used() {
    let mut settings = Settings::default();
    assert_eq!(settings.window(), settings.window_bytes);
    settings.set("BRIGADE_WINDOW_BYTES", "100000").unwrap();
    assert_eq!((settings.window_bytes, settings.window()), (98304, 98304));
    let shown = settings.table().into_iter().find(|row| row.name == "BRIGADE_WINDOW_BYTES");
    assert_eq!(shown.unwrap().current, "98304");
    // Settings made in code are rounded where they are used.
    assert_eq!(Settings { window_bytes: 100_000, ..settings }.window(), 98304);
}

#[test]
fn nonsense_is_refused_with_the_variable_named() {
    let mut settings = Settings::default();
    for (name, value) in [
        ("BRIGADE_PORTS", "9-1"),
        ("BRIGADE_TIMEOUT_MS", "soon"),
        ("BRIGADE_WINDOW_BYTES", "4095"),
        ("BRIGADE_RDMA_QUEUE_PAIRS", "9"),
        ("BRIGADE_RDMA_GID_INDEX", "256"),
        ("BRIGADE_RDMA_SERVICE_LEVEL", "16"),
        ("BRIGADE_RDMA_TRAFFIC_CLASS", "-1"),
        ("BRIGADE_RDMA_TIMEOUT", "0"),
        ("BRIGADE_RDMA_RETRIES", "7"),
        ("BRIGADE_RDMA_RECONNECT_MS", "soon"),
        ("BRIGADE_WINDOW_BYTES", "1X"),
        ("BRIGADE_WINDOW_BYTES", "17179869184G"),
        ("BRIGADE_RDMA_CACHE_BYTES", "1.5"),
    ] {
        let error = settings.set(name, value).unwrap_err().to_string();
        assert!(error.contains(name) && error.contains(value), "{error}");
    }
    assert_eq!(settings.rdma, RdmaSettings::default(), "what was refused changes nothing");
    assert!(settings.set("BRIGADE_TIMEOUTS", "1").is_err());
}

#[test]
fn numbers_that_mean_nothing_are_refused_with_those_that_do() {
    let mut settings = Settings::default();
    for (name, within, beyond, range) in [
        ("BRIGADE_JOIN_TIMEOUT_MS", ["1", "86400000"], ["0", "86400001"], "from 1 to 86400000"),
        ("BRIGADE_SILENCE_MS", ["2000", "86400000"], ["1999", "86400001"], "from 2000 to 86400000"),
        ("BRIGADE_SOCKETS", ["0", "64"], ["-1", "65"], "from 0 to 64"),
        ("BRIGADE_WINDOW_BYTES", ["4096", "1T"], ["4095", "1025G"], "from 4096 to 1099511627776"),
        ("BRIGADE_PORTS", ["1-1", "1-65535"], ["0", "0-9"], "FIRST from 1 on"),
    ] {
        for value in within {
            settings.set(name, value).unwrap_or_else(|error| panic!("{error}"));
        }
        for value in beyond {
            let error = settings.set(name, value).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains(range), "{error}");
        }
    }
}
