//! Finding a plugin's library, and the newest table in it that we know. Libraries are loaded once
//! and never unloaded.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use super::PREFIX;
use super::net::Net;
use crate::Unavailable;

/// The longest name that goes on a card.
const NAME_BYTES_MAX: usize = 48;

type Loaded = BTreeMap<String, Result<&'static Net, Unavailable>>;

static LOADED: Mutex<Loaded> = Mutex::new(BTreeMap::new());
static NAMES: Mutex<Vec<&'static str>> = Mutex::new(Vec::new());

/// The plugin that a user asks for, loaded and initialised; each time the same answer.
pub(super) fn load(wanted: &str, name: &'static str) -> Result<&'static Net, Unavailable> {
    let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    loaded.entry(wanted.to_owned()).or_insert_with(|| open(wanted, name)).clone()
}

fn open(wanted: &str, name: &'static str) -> Result<&'static Net, Unavailable> {
    let unavailable = |why: String, next_step: &str| {
        Err(Unavailable { transport: name, why, next_step: next_step.into() })
    };
    let mut tried = Vec::new();
    for file in files(wanted) {
        match Net::open(&file, name) {
            Ok(Ok(net)) => return Ok(Box::leak(Box::new(net))),
            Ok(Err(why)) => {
                let why = format!("{}: {why}", Path::new(&file).display());
                return unavailable(why, "use another device or transport, or set it up");
            }
            Err(why) => tried.push(why.to_string()),
        }
    }
    let next = "give the plugin's path, or put its folder into LD_LIBRARY_PATH";
    unavailable(format!("no plugin could be loaded: {}", tried.join("; ")), next)
}

/// Where a plugin may be: at its path, or anywhere where the loader looks.
fn files(wanted: &str) -> Vec<OsString> {
    if wanted.contains('/') {
        return vec![PathBuf::from(wanted).into()];
    }
    vec![format!("libnccl-net-{wanted}.so").into(), wanted.into()]
}

/// What the transport is called: the same on all ranks, wherever each has its file. Names are kept
/// for ever; there are as many as a user asks for.
pub(super) fn short_name(wanted: &str) -> &'static str {
    let file = wanted.rsplit('/').next().unwrap_or_default();
    let stem = file.strip_prefix("lib").unwrap_or(file);
    let stem = stem.split(".so").next().unwrap_or_default().replace('_', "-");
    let stem = stem.strip_prefix("nccl-net-").unwrap_or(&stem);
    let kept = stem.chars().filter(|letter| letter.is_ascii_graphic()).take(NAME_BYTES_MAX);
    let name: String = PREFIX.chars().chain(kept).collect();
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = names.iter().find(|known| **known == name) {
        return known;
    }
    let name: &'static str = Box::leak(name.into_boxed_str());
    names.push(name);
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_plugin_has_the_same_name_everywhere() {
        for wanted in [
            "brigade",
            "/opt/a/libnccl-net-brigade.so",
            "./target/libnccl_net_brigade.so",
            "libnccl-net-brigade.so.1",
        ] {
            assert_eq!(short_name(wanted), "plugin:brigade", "{wanted}");
        }
        assert!(std::ptr::eq(short_name("ofi"), short_name("/usr/lib/libnccl-net-ofi.so")));
        assert!(short_name(&"x".repeat(900)).len() <= PREFIX.len() + NAME_BYTES_MAX);
    }

    #[test]
    fn what_is_no_plugin_says_why() {
        let missing = load("/nowhere/libnccl-net-x.so", "plugin:x").err().unwrap().to_string();
        assert!(missing.contains("/nowhere/"), "{missing}");
        let other = load("libc.so.6", "plugin:c").err().unwrap().to_string();
        assert!(other.contains("ncclNetPlugin"), "{other}");
    }
}
