//! [`FilterConditions`]: the conditions of a filter in SQL.

use rusqlite::types::Value;
use stepfast_core::store::Filter;

/// The condition that a key is not that of a bundle: by the variant bits of byte 8, and the number in bytes 10 to 13; see
/// [`Key::last_index`](stepfast_core::Key::last_index).
pub(super) const IS_NO_BUNDLE: &str =
    "(substr(key, 9, 1) < x'c0' OR substr(key, 11, 4) < x'80000000' OR substr(key, 11, 4) = x'ffffffff')";

/// The SQL conditions of a filter, and the values of their parameters.
pub(super) struct FilterConditions {
    texts: Vec<String>,
    pub(super) values: Vec<Value>,
}

impl FilterConditions {
    pub(super) fn of(filter: &Filter) -> Self {
        let mut all = FilterConditions { texts: Vec::new(), values: Vec::new() };
        for (n, (name, value)) in filter.attributes.iter().enumerate() {
            let [name, value] = [name, value].map(|text| Value::Text(text.to_owned()));
            // the first attribute is found through its index, see `list`
            let text = match n {
                0 => "a.name = ? AND a.value = ?",
                _ => {
                    "EXISTS (SELECT 1 FROM attributes WHERE execution = executions.key AND name = ? AND value = ?)"
                }
            };
            all.add(text, [name, value]);
        }
        if !filter.statuses.is_empty() {
            let numbers: Vec<String> =
                filter.statuses.iter().map(|status| (*status as u8).to_string()).collect();
            all.add(&format!("status IN ({})", numbers.join(", ")), []);
        }
        if let Some(workflow) = &filter.workflow {
            all.add("workflow = ?", [Value::Text(workflow.to_string())]);
        }
        if let Some(is_paused) = filter.is_parked {
            all.add("is_paused = ?", [Value::Integer(i64::from(is_paused))]);
        }
        if let Some(parent) = filter.parent {
            all.add("parent = ?", [Value::Blob(parent.as_bytes().to_vec())]);
        }
        if let Some(version) = &filter.app_version {
            all.add("app_version = ?", [Value::Text(version.to_string())]);
        }
        if let Some(queue) = &filter.queue {
            all.add("ifnull(queue, 'default') = ?", [Value::Text(queue.to_string())]);
        }
        if let Some(from) = filter.created_from {
            all.add("created_at >= ?", [Value::Integer(from.as_micros())]);
        }
        if let Some(before) = filter.created_before {
            all.add("created_at < ?", [Value::Integer(before.as_micros())]);
        }
        if let Some(prefix) = filter.id_prefix.as_deref().filter(|prefix| !prefix.is_empty()) {
            all.add_prefix(prefix);
        }
        all
    }

    /// Whether the filter matches every execution.
    pub(super) fn is_empty(&self) -> bool {
        self.texts.is_empty()
    }

    /// Excludes bundles.
    pub(super) fn exclude_bundles(&mut self) {
        self.add(IS_NO_BUNDLE, []);
    }

    pub(super) fn add<const N: usize>(&mut self, text: &str, values: [Value; N]) {
        self.texts.push(text.to_owned());
        self.values.extend(values);
    }

    /// Adds the condition for ids that begin with `prefix`: a range of texts for given ids, a range of keys for minted
    /// ones.
    fn add_prefix(&mut self, prefix: &str) {
        let mut given = "workflow_id >= ?".to_owned();
        let mut values = vec![Value::Text(prefix.to_owned())];
        if let Some(end) = end_of_prefix(prefix) {
            given.push_str(" AND workflow_id < ?");
            values.push(Value::Text(end));
        }
        if let Some((first, last)) = keys_with_prefix(prefix) {
            given = format!("({given} OR workflow_id IS NULL AND key BETWEEN ? AND ?)");
            values.extend([Value::Blob(first.to_vec()), Value::Blob(last.to_vec())]);
        }
        self.texts.push(given);
        self.values.extend(values);
    }

    pub(super) fn text(&self) -> String {
        if self.texts.is_empty() { String::new() } else { format!(" WHERE {}", self.texts.join(" AND ")) }
    }
}

/// Returns the first text that sorts after all texts that begin with `prefix`; `None` if there is no such text.
fn end_of_prefix(prefix: &str) -> Option<String> {
    let mut chars: Vec<char> = prefix.chars().collect();
    while let Some(last) = chars.pop() {
        // skips the surrogates, which are not chars
        if let Some(next) = (last..=char::MAX).nth(1) {
            chars.push(next);
            return Some(chars.into_iter().collect());
        }
    }
    None
}

/// Returns the first and the last key whose text begins with `prefix`; `None` if no key's text can begin with it.
fn keys_with_prefix(prefix: &str) -> Option<([u8; 16], [u8; 16])> {
    const FORM: &[u8; 36] = b"xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx";
    let (mut first, mut last) = ([0u8; 16], [0xff_u8; 16]);
    let mut digits = 0;
    if prefix.len() > FORM.len() {
        return None;
    }
    for (byte, form) in prefix.bytes().zip(FORM) {
        if *form == b'-' {
            if byte != b'-' {
                return None;
            }
            continue;
        }
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            _ => return None,
        };
        let shift = if digits % 2 == 0 { 4 } else { 0 };
        for bytes in [&mut first, &mut last] {
            bytes[digits / 2] = bytes[digits / 2] & !(0x0f << shift) | digit << shift;
        }
        digits += 1;
    }
    Some((first, last))
}

#[cfg(test)]
mod tests {
    use stepfast_core::key::Key;

    use super::*;

    #[test]
    fn key_prefix_selects_range_of_keys() {
        let key = Key::mint(0);
        let text = key.to_string();
        for len in 1..=36 {
            let (first, last) = keys_with_prefix(&text[..len]).unwrap();
            assert!(first <= *key.as_bytes() && *key.as_bytes() <= last, "{len}");
            let begins = |bytes: [u8; 16]| Key::from_bytes(bytes).to_string().starts_with(&text[..len]);
            assert!(begins(first) && begins(last), "{len}");
        }
        for wrong in ["0190A", "order", "0190a1b2c", "0190a1b2--"] {
            assert_eq!(keys_with_prefix(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn end_of_prefix_sorts_after_all_texts_with_that_prefix() {
        assert_eq!(end_of_prefix("order-").as_deref(), Some("order."));
        assert_eq!(end_of_prefix("a\u{10ffff}").as_deref(), Some("b"));
        assert_eq!(end_of_prefix("\u{d7ff}").as_deref(), Some("\u{e000}"));
        assert_eq!(end_of_prefix("\u{10ffff}"), None);
    }
}
