//! Texts of values in messages: bounded in length, and without control characters that change a terminal.

use std::fmt::Write;

/// Maximum length of a value in a message, in characters.
const MAX_SHOWN_CHARS: usize = 200;
/// Approximate maximum length of a list of names in a message, in bytes.
const MAX_LIST_BYTES: usize = 1_000;

/// Returns a text for a message: in quotes, escaped like a literal, and cut if it is long.
pub fn quote(text: &str) -> String {
    abbreviate_with(text, |text| format!("{text:?}"))
}

/// Returns a text for a message, without quotes: control characters are escaped, and a long text is cut.
pub fn abbreviate(text: &str) -> String {
    abbreviate_with(text, escape_controls)
}

/// Returns a text in which control characters are escaped as in a literal.
pub fn escape_controls(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for char in text.chars() {
        if char.is_control() {
            shown.extend(char.escape_debug());
        } else {
            shown.push(char);
        }
    }
    shown
}

fn abbreviate_with(text: &str, show: impl Fn(&str) -> String) -> String {
    match text.char_indices().nth(MAX_SHOWN_CHARS) {
        None => show(text),
        Some((end, _)) => format!("{}… ({} bytes)", show(&text[..end]), text.len()),
    }
}

/// Returns a list of names for a message: as many names as fit, and the number of the others.
pub fn list_names<'n>(names: impl IntoIterator<Item = &'n str>) -> String {
    let mut shown = String::new();
    let mut names = names.into_iter();
    while let Some(name) = names.next() {
        let name = abbreviate(name);
        if shown.is_empty() {
            shown = name;
        } else if shown.len() + name.len() <= MAX_LIST_BYTES {
            let _ = write!(shown, ", {name}");
        } else {
            let _ = write!(shown, " and {} more", 1 + names.count());
            break;
        }
    }
    shown
}

/// Returns a duration, given in milliseconds, in the largest fitting unit.
pub fn format_duration(millis: i64) -> String {
    match millis {
        ..1_000 => format!("{millis} ms"),
        1_000..60_000 => format!("{:.1} s", millis as f64 / 1e3),
        60_000..3_600_000 => format!("{} min {} s", millis / 60_000, millis / 1_000 % 60),
        _ => format!("{} h {} min", millis / 3_600_000, millis / 60_000 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_texts_are_not_cut() {
        assert_eq!(
            (quote("order-7"), abbreviate("order-7")),
            ("\"order-7\"".to_owned(), "order-7".to_owned())
        );
        assert_eq!(quote("a\"b\n"), "\"a\\\"b\\n\"");
        assert_eq!(abbreviate("a\"b\n\0\u{9b}é🦄"), "a\"b\\n\\0\\u{9b}é🦄");
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        let shown = quote(&"é".repeat(100_000));
        assert_eq!(shown, format!("\"{}\"… (200000 bytes)", "é".repeat(MAX_SHOWN_CHARS)));
        assert!(abbreviate(&"\0".repeat(100_000)).len() < 500);
    }

    #[test]
    fn long_lists_end_with_the_number_of_omitted_names() {
        assert_eq!(list_names([]), "");
        assert_eq!(list_names(["a", "b"]), "a, b");
        let names: Vec<String> = (0..1_000).map(|n| format!("queue-{n}")).collect();
        let shown = list_names(names.iter().map(String::as_str));
        assert!(shown.len() < MAX_LIST_BYTES + 50 && shown.starts_with("queue-0, queue-1, "), "{shown}");
        let commas = shown.matches(", ").count();
        assert!(shown.ends_with(&format!(" and {} more", 999 - commas)), "{shown}");
    }
}
