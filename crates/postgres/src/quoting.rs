//! Identifiers and literals in the text of statements.

/// `identifier` as the server reads it back unchanged.
pub(crate) fn quoted(identifier: &str) -> String {
    format!("\"{}\"", identifier.replace('"', "\"\""))
}

/// Where tables are looked for. Temporary ones, which another client may have left in a session that a proxy has lent to
/// both, come last: unless they are named, they come first.
pub(crate) fn search_path(schema: &str) -> String {
    format!("{}, pg_temp", quoted(schema))
}

/// Text as the server reads it back unchanged.
pub(crate) fn literal(text: &str) -> String {
    // the doubled backslash is read alike whatever standard_conforming_strings is
    format!(" E'{}'", text.replace('\\', "\\\\").replace('\'', "''"))
}
