//! Functions that fail because a test wants it.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

struct Fault {
    function: String,
    /// The call that fails; every one where it is 0.
    call: u32,
    code: u32,
    calls: AtomicU32,
}

/// An error of a device, which every later call returns too.
static STICKY: AtomicU32 = AtomicU32::new(0);

/// What this call of `function` is to fail with.
pub(crate) fn of(function: &str) -> Option<u32> {
    for fault in faults().iter().filter(|fault| fault.function == function) {
        let call = fault.calls.fetch_add(1, Ordering::Relaxed) + 1;
        if fault.call == 0 || fault.call == call {
            if (700..=719).contains(&fault.code) && fault.code != 704 && fault.code != 712 {
                STICKY.store(fault.code, Ordering::Relaxed);
            }
            return Some(fault.code);
        }
    }
    match STICKY.load(Ordering::Relaxed) {
        0 => None,
        code => Some(code),
    }
}

fn faults() -> &'static [Fault] {
    static FAULTS: OnceLock<Vec<Fault>> = OnceLock::new();
    FAULTS.get_or_init(|| {
        let text = std::env::var("BRIGADE_FAKE_CUDA_FAULTS").unwrap_or_default();
        let words = text.split(',').filter(|word| !word.trim().is_empty());
        words.map(|word| parse(word.trim()).unwrap_or_else(|| panic!("no fault: {word}"))).collect()
    })
}

fn parse(word: &str) -> Option<Fault> {
    let (function, code) = word.split_once('=')?;
    let (function, call) = function.split_once('@').unwrap_or((function, "0"));
    Some(Fault {
        function: function.to_owned(),
        call: call.parse().ok()?,
        code: code.parse().ok()?,
        calls: AtomicU32::new(0),
    })
}

/// A number of a variable that tests set.
pub(crate) fn number(name: &str, default: usize) -> usize {
    let text = std::env::var(name).unwrap_or_default();
    if text.is_empty() { default } else { text.parse().unwrap_or_else(|_| panic!("{name}={text}")) }
}
