//! What is wrong with a number or a name on the command line, in words for whoever typed it.

use std::error::Error as _;
use std::ffi::OsString;
use std::num::{IntErrorKind, ParseFloatError, ParseIntError};

use clap::Error;
use clap::error::{ContextKind, ContextValue, ErrorKind};

/// What people call commands that have another name here, which no resemblance tells.
const ELSEWHERE: [(&str, &str); 6] = [
    ("launch", "run"),
    ("exec", "run"),
    ("plan", "offload plan"),
    ("show", "schedule show"),
    ("check", "schedule check"),
    ("info", "doctor"),
];

/// The same refusal, in clearer words where there are any.
pub(crate) fn clearer(error: Error) -> Error {
    clearer_of(error, std::env::args_os())
}

/// The same of a command line of these words.
pub(crate) fn clearer_of(mut error: Error, words: impl Iterator<Item = OsString>) -> Error {
    let told = match error.kind() {
        ErrorKind::InvalidSubcommand => {
            if let Some(name) = elsewhere(&error) {
                let names = ContextValue::Strings(vec![name.to_owned()]);
                error.insert(ContextKind::SuggestedSubcommand, names);
            }
            None
        }
        ErrorKind::ValueValidation => wrong_number(&error),
        ErrorKind::UnknownArgument => negative(&error, words),
        ErrorKind::InvalidUtf8 => Some(no_text(words)),
        _ => None,
    };
    let Some(told) = told else { return error };
    Error::raw(
        ErrorKind::ValueValidation,
        format!("{told}\n\nFor more information, try '--help'.\n"),
    )
}

/// What the standard library says of a number tells whoever wrote the program what is wrong.
fn wrong_number(error: &Error) -> Option<String> {
    let (value, flag) =
        (word(error, ContextKind::InvalidValue)?, word(error, ContextKind::InvalidArg)?);
    let source = error.source()?;
    let why = match source.downcast_ref::<ParseIntError>().map(ParseIntError::kind) {
        Some(IntErrorKind::PosOverflow) => "that is too large",
        Some(IntErrorKind::NegOverflow) => "that is too small",
        Some(_) if value.starts_with('-') => "that is no whole number from 0 on",
        Some(_) => "that is no whole number",
        None if source.is::<ParseFloatError>() => "that is no number",
        None => &bounds(&source.to_string())?,
    };
    Some(format!("invalid value '{value}' for '{flag}': {why}"))
}

/// `0 is not in 1..=4096`, which the parser says as a programmer would: from 1 to 4096.
fn bounds(said: &str) -> Option<String> {
    let (_, range) = said.split_once(" is not in ")?;
    let (first, last) = range.split_once("..")?;
    let first = if first.is_empty() { 0 } else { first.parse::<u64>().ok()? };
    let last = match last.strip_prefix('=') {
        Some(last) => Some(last.parse::<u64>().ok()?),
        None if last.is_empty() => None,
        None => Some(last.parse::<u64>().ok()?.checked_sub(1)?),
    };
    // No more than a number can be is no limit.
    match last.filter(|last| ![u64::from(u32::MAX), u64::MAX].contains(last)) {
        Some(last) => Some(format!("from {first} to {last}")),
        None => Some(format!("{first} or more")),
    }
}

/// `-1G` is taken for flags, of which there is none `-1`.
fn negative(error: &Error, words: impl Iterator<Item = OsString>) -> Option<String> {
    let flag = word(error, ContextKind::InvalidArg)?;
    if !flag.strip_prefix('-')?.starts_with(|first: char| first.is_ascii_digit()) {
        return None;
    }
    let mut words = words.filter_map(|word| word.into_string().ok());
    let word = words.find(|word| word.starts_with(flag))?;
    Some(format!(
        "'{word}' is negative, or no flag; sizes and counts are written as 8, 64K or 1.5G"
    ))
}

/// Which of these it is, as far as that is known: a path may have any bytes.
fn no_text(words: impl Iterator<Item = OsString>) -> String {
    let strange = words.filter(|word| word.to_str().is_none());
    let strange: Vec<String> = strange.map(|word| format!("{word:?}")).collect();
    let one_of = if strange.len() > 1 { "one of " } else { "" };
    let strange = strange.join(", ");
    format!("{one_of}{strange} is no UTF-8; only paths, and what `brigade run` starts, may be so")
}

fn elsewhere(error: &Error) -> Option<&'static str> {
    let asked = word(error, ContextKind::InvalidSubcommand)?;
    ELSEWHERE.iter().find(|(theirs, _)| *theirs == asked).map(|(_, ours)| *ours)
}

fn word(error: &Error, kind: ContextKind) -> Option<&str> {
    match error.get(kind)? {
        ContextValue::String(word) => Some(word),
        _ => None,
    }
}
