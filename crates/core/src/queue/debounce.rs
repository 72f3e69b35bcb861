//! Debouncing: merging starts of one workflow with the same debounce id into one execution with the last input.
//!
//! While a debounced execution is `scheduled`, its `dedup_id` contains a debounce key: a text made of its workflow and
//! the debounce id. Like a dedup_id, the key is unique in the queue. The key never equals a caller's dedup_id, because
//! a dedup_id contains no control characters.

use std::sync::Arc;

/// The first character of a debounce key, and the separator between the workflow's name and the debounce id.
const SEPARATOR: char = '\u{1}';

/// Returns the debounce key, which a debounced execution has instead of a dedup_id.
pub(crate) fn debounce_key(workflow: &str, id: &str) -> Arc<str> {
    format!("{SEPARATOR}{workflow}{SEPARATOR}{id}").into()
}

/// Returns the debounce id if `dedup_id` is a debounce key.
pub fn debounce_id(dedup_id: &str) -> Option<&str> {
    dedup_id.strip_prefix(SEPARATOR)?.split_once(SEPARATOR).map(|(_, id)| id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debounce_id_is_read_from_its_key() {
        assert_eq!(debounce_id(&debounce_key("index", "doc 7")), Some("doc 7"));
        assert_eq!(debounce_id("doc 7"), None);
    }
}
