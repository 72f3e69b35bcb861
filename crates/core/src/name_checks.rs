//! Checks of names and ids that callers give.

use crate::error::Error;
use crate::text::quote;

/// Maximum length of a workflow's or step's name, in bytes.
pub(crate) const MAX_NAME_BYTES: usize = 255;
/// Maximum length of a workflow_id, a dedup_id or a debounce id, in bytes.
pub(crate) const MAX_ID_BYTES: usize = 1024;

/// Returns an error for a name that is empty, longer than [`MAX_NAME_BYTES`], or contains control characters. Names are
/// stored as text and printed to terminals.
pub(crate) fn check_name(input: &'static str, name: &str) -> Result<(), Error> {
    check_text(input, name, MAX_NAME_BYTES)
}

/// Returns an error for a text that is empty, longer than `max_bytes`, or contains control characters.
pub(crate) fn check_text(input: &'static str, text: &str, max_bytes: usize) -> Result<(), Error> {
    let reason = if text.is_empty() {
        "must not be empty".to_owned()
    } else if text.len() > max_bytes {
        format!("has {} bytes, at most {max_bytes} are allowed", text.len())
    } else if let Some(control) = text.chars().find(|c| c.is_control()) {
        format!("{} contains the control character {control:?}; use printable characters only", quote(text))
    } else {
        return Ok(());
    };
    Err(Error::Invalid { input, reason })
}
