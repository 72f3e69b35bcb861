//! Quotes identifiers and literals in the text of statements.

/// Quotes an identifier.
pub(crate) fn quote_identifier(identifier: &str) -> String {
    format!("\"{}\"", identifier.replace('"', "\"\""))
}

/// Returns the `search_path` of the store. Temporary tables come last in it. By default they come first, and a proxy
/// may assign a server session in which another client has left temporary tables.
pub(crate) fn search_path(schema: &str) -> String {
    format!("{}, pg_temp", quote_identifier(schema))
}

/// Quotes a text literal.
pub(crate) fn quote_literal(text: &str) -> String {
    // an E string is parsed in the same way whatever standard_conforming_strings is
    format!(" E'{}'", text.replace('\\', "\\\\").replace('\'', "''"))
}
