//! What is refused before any rank is started.

use crate::args::Args;
use crate::begin::text;
use crate::error::Error;
use crate::plan;

/// Refuse what cannot work before any rank is started: settings, memory, folders and text.
///
/// Errors: `Setting` for what cannot work, `File` for a text that cannot be read, `Offload` for a
/// folder that is not there.
pub fn check(args: &Args, ranks: usize) -> Result<(), Error> {
    args.validate(ranks)?;
    args.check_room(ranks)?;
    args.check_folders()?;
    args.check_kept()?;
    plan::check(args, ranks)?;
    text(args).map(drop)
}
