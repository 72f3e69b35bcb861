//! The command line. Its errors are short, and harmless to a terminal.

use std::ffi::OsString;
use std::time::Duration;

use anyhow::anyhow;
use clap::error::{ContextValue, ErrorKind};
use clap::{Error, Parser};
use stepfast::clock::Timestamp;
use stepfast::text::{abbreviate, quote};

/// The units of a duration, in milliseconds, the longest first.
const UNITS: [(&str, u32); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// The argument of an option that changes a stored value: the new value, or `None` for "none".
#[derive(Clone, Debug)]
pub(crate) struct Change<T>(pub(crate) Option<T>);

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

/// Parses a duration: a number with a unit, as in `90s`, `15m`, `2h` or `7d`, or a number of seconds.
pub(crate) fn parse_duration(text: &str) -> anyhow::Result<Duration> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = if unit.is_empty() { "s" } else { unit };
    let size = UNITS.iter().find(|(name, _)| *name == unit).map(|(_, size)| f64::from(*size) / 1e3);
    let seconds = size.and_then(|size| Some(number.parse::<f64>().ok()? * size));
    let seconds = seconds
        .ok_or_else(|| anyhow!("{} is not a duration; give one such as 90s, 15m, 2h or 7d", quote(text)))?;
    Duration::try_from_secs_f64(seconds).map_err(|error| anyhow!("{}: {error}", quote(text)))
}

/// Parses an instant in the format of RFC 3339.
pub(crate) fn parse_instant(text: &str) -> anyhow::Result<Timestamp> {
    let instant: jiff::Timestamp =
        text.parse().map_err(|_| anyhow!("{} is not an instant like 2026-11-21T10:00:00Z", quote(text)))?;
    Ok(Timestamp::from_micros(instant.as_microsecond()))
}

/// Returns a parser for an option that changes a stored value; "none" removes the value.
pub(crate) fn change<T>(
    parse: impl Fn(&str) -> anyhow::Result<T> + Clone,
) -> impl Fn(&str) -> anyhow::Result<Change<T>> + Clone {
    move |text| if text == "none" { Ok(Change(None)) } else { parse(text).map(|value| Change(Some(value))) }
}

/// Parses a number, or a name.
pub(crate) fn parse_plain<T: std::str::FromStr<Err: std::fmt::Display>>(text: &str) -> anyhow::Result<T> {
    text.parse().map_err(|error| anyhow!("{error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units() {
        let parsed =
            ["90", "1.5", "90s", "15m", "2h", "7d", "250ms", "0s"].map(|text| parse_duration(text).ok());
        let expected = [90_000, 1_500, 90_000, 900_000, 7_200_000, 604_800_000, 250, 0];
        assert_eq!(parsed, expected.map(|millis| Some(Duration::from_millis(millis))));
        for bad in ["", "m", "5 m", "-5m", "1.2.3s", "5w", "five", "1e400", "99999999999999999999d"] {
            assert!(parse_duration(bad).is_err(), "{bad:?}");
        }
    }
}
