//! Quotes identifiers and literals in the text of statements.

/// Returns an identifier in double quotes, so that any name is valid.
pub(crate) fn quote_identifier(identifier: &str) -> String {
    format!("\"{}\"", identifier.replace('"', "\"\""))
}

/// Returns the `search_path` of the store. Temporary tables come last in it. By default they come first, and a proxy
/// may assign a server session in which another client has left temporary tables.
pub(crate) fn search_path(schema: &str) -> String {
    format!("{}, pg_temp", quote_identifier(schema))
}

/// Returns a text as a literal, after a blank that separates it from the preceding word or operator.
pub(crate) fn quote_literal(text: &str) -> String {
    // an E string is parsed in the same way whatever standard_conforming_strings is
    format!(" E'{}'", text.replace('\\', "\\\\").replace('\'', "''"))
}
