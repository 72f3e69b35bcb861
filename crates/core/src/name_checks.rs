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

/// Returns an error for the id of a new execution or batch that is empty, too long, contains control characters, or has the
/// form of an item's id, as in `batch#7`.
pub(crate) fn check_new_id(input: &'static str, id: &str) -> Result<(), Error> {
    check_text(input, id, MAX_ID_BYTES)?;
    if split_item_id(id).is_none() {
        return Ok(());
    }
    let reason = format!("{} has the form of an item of a batch; use another character than `#`", quote(id));
    Err(Error::Invalid { input, reason })
}

/// Splits the id of a batch's item into the id of the batch and the index; `None` for other ids.
pub(crate) fn split_item_id(id: &str) -> Option<(&str, u32)> {
    let (batch, digits) = id.rsplit_once('#')?;
    // no other spelling of the number
    if batch.is_empty() || digits.starts_with('+') || (digits.starts_with('0') && digits.len() > 1) {
        return None;
    }
    Some((batch, digits.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn item_ids_have_one_spelling() {
        assert_eq!(split_item_id("b#7"), Some(("b", 7)));
        assert_eq!(split_item_id("b#1#4294967295"), Some(("b#1", u32::MAX)));
        for other in ["b", "b#", "#7", "b#07", "b#+7", "b#-1", "b# 7", "b#7 ", "b#4294967296", "b#x"] {
            assert_eq!(split_item_id(other), None, "{other:?}");
        }
    }

    #[test]
    fn ids_of_items_are_reserved() {
        assert!(check_new_id("workflow_id", "order#7").is_err());
        for free in ["order#x7", "order 7", "#7", "order#07"] {
            assert!(check_new_id("workflow_id", free).is_ok(), "{free:?}");
        }
    }
}
