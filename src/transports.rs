//! Whether the transports that a command is asked to use can be had, told before any rank starts.

use brigade_comm::{Error, Settings, transports::transports};

/// Refuse settings that name no transport, or of whose transports not one can be used here.
pub(crate) fn probe(settings: &Settings) -> Result<(), String> {
    let asked = transports(settings).map_err(|error: Error| error.to_string())?;
    let mut refused = Vec::new();
    for transport in asked {
        match transport.probe() {
            Ok(_) => return Ok(()),
            Err(missing) => refused.push(missing.to_string()),
        }
    }
    Err(format!("no transport can be used: {}", refused.join("; ")))
}
