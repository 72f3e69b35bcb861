//! Debouncing: starts that come soon after one another are one, with the input of the last.
//!
//! Until it may begin, such an execution has in its queue what no other has, as one with a dedup_id does: a text made of its
//! workflow and the id that its starts have in common. What other starts have given nobody takes for it, for no dedup_id has
//! control characters.

use std::sync::Arc;

/// Begins the text, and stands between the name of the workflow and the id.
const SEPARATOR: char = '\u{1}';

/// What an execution that is debounced has in the place of a dedup_id.
pub(crate) fn debounce_key(workflow: &str, id: &str) -> Arc<str> {
    format!("{SEPARATOR}{workflow}{SEPARATOR}{id}").into()
}

/// The id by which an execution is debounced that has this in the place of a dedup_id, if it is.
pub fn debounce_id(held: &str) -> Option<&str> {
    held.strip_prefix(SEPARATOR)?.split_once(SEPARATOR).map(|(_, id)| id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_comes_back() {
        assert_eq!(debounce_id(&debounce_key("index", "doc 7")), Some("doc 7"));
        assert_eq!(debounce_id("doc 7"), None);
    }
}
