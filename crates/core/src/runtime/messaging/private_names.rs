//! The names of the topics and events that the engine itself uses. Names of callers contain no control characters.

/// The first character of a private name.
const MARK: char = '\u{1}';

/// Returns the private name that consists of this text.
pub(crate) fn private_name(text: &str) -> String {
    format!("{MARK}{text}")
}

/// Whether the engine itself uses the name.
pub(crate) fn is_private(name: &str) -> bool {
    name.starts_with(MARK)
}

/// Returns the text of a private name; `None` for a name of callers.
pub(crate) fn without_mark(name: &str) -> Option<&str> {
    name.strip_prefix(MARK)
}
