//! The command line. Its errors are short, and harmless to a terminal.

use std::ffi::OsString;
use std::time::Duration;

use anyhow::anyhow;
use clap::error::{ContextValue, ErrorKind};
use clap::{Error, Parser};
use stepfast::text::{abbreviate, quote};

/// Parses the command line; ends the program if it is wrong.
pub(crate) fn parse<P: Parser>() -> P {
    P::try_parse().unwrap_or_else(|error| {
        let error = if error.kind() == ErrorKind::InvalidUtf8 {
            not_utf8_error()
        } else {
            without_hostile_values(error)
        };
        error.exit()
    })
}

/// Returns the error with long values cut short, and without control characters.
fn without_hostile_values(mut error: Error) -> Error {
    let values: Vec<_> = error
        .context()
        .filter_map(|(kind, value)| {
            let shown = match value {
                ContextValue::String(text) => ContextValue::String(abbreviate(text)),
                ContextValue::Strings(all) => {
                    ContextValue::Strings(all.iter().map(|it| abbreviate(it)).collect())
                }
                _ => return None,
            };
            Some((kind, shown))
        })
        .collect();
    for (kind, value) in values {
        error.insert(kind, value);
    }
    error
}

/// Returns the error for an argument that is not UTF-8, with its position.
fn not_utf8_error() -> Error {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let Some(at) = arguments.iter().position(|argument| argument.to_str().is_none()) else {
        return Error::raw(ErrorKind::InvalidUtf8, "an environment variable is not UTF-8\n");
    };
    let shown = quote(&arguments[at].to_string_lossy());
    let before = arguments[..at].last().and_then(|before| before.to_str());
    let option =
        before.filter(|before| before.starts_with("--")).map(|name| format!(" of {}", abbreviate(name)));
    Error::raw(
        ErrorKind::InvalidUtf8,
        format!("the argument {shown}{} is not UTF-8\n", option.unwrap_or_default()),
    )
}

/// Parses a number of seconds, which may have a fraction.
pub(crate) fn parse_seconds(text: &str) -> anyhow::Result<Duration> {
    let seconds: f64 = text.parse().map_err(|_| anyhow!("{} is not a number of seconds", quote(text)))?;
    Duration::try_from_secs_f64(seconds).map_err(|error| anyhow!("{} seconds: {error}", quote(text)))
}
