//! The command line. Its errors are short, and harmless to a terminal.

use std::ffi::OsString;

use clap::error::{ContextValue, ErrorKind};
use clap::{Error, Parser};
use stepfast::text::{plain, quoted};

/// Returns the command line as it is parsed; ends the program if that is wrong.
pub(crate) fn parsed<P: Parser>() -> P {
    P::try_parse().unwrap_or_else(|error| {
        let error = if error.kind() == ErrorKind::InvalidUtf8 { not_utf8() } else { bounded(error) };
        error.exit()
    })
}

/// Returns the error with the beginnings of long values, and without control characters.
fn bounded(mut error: Error) -> Error {
    let values: Vec<_> = error
        .context()
        .filter_map(|(kind, value)| {
            let shown = match value {
                ContextValue::String(text) => ContextValue::String(plain(text)),
                ContextValue::Strings(all) => ContextValue::Strings(all.iter().map(|it| plain(it)).collect()),
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

/// Returns the error for bytes that are no text, with their place.
fn not_utf8() -> Error {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let Some(at) = arguments.iter().position(|argument| argument.to_str().is_none()) else {
        return Error::raw(ErrorKind::InvalidUtf8, "a variable of the environment is not UTF-8\n");
    };
    let shown = quoted(&arguments[at].to_string_lossy());
    let before = arguments[..at].last().and_then(|before| before.to_str());
    let of = before.filter(|before| before.starts_with("--")).map(|option| format!(" of {}", plain(option)));
    Error::raw(
        ErrorKind::InvalidUtf8,
        format!("the argument {shown}{} is not UTF-8\n", of.unwrap_or_default()),
    )
}
