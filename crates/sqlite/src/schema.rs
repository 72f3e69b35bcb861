//! The schema that this program knows, and the version that a file has.

use std::sync::{LazyLock, OnceLock};

use refinery::Migration;
use rusqlite::Connection;
use stepfast_core::store::StoreError;

use crate::error::{DbResult, detail};

mod embedded {
    refinery::embed_migrations!("migrations");
}

/// The table that says which migrations were applied.
pub(crate) const HISTORY_TABLE: &str = "schema_version";

/// The migration that makes this process one of a later version.
static ADDED_MIGRATION: OnceLock<Migration> = OnceLock::new();

/// Adds a migration to those of this process, which becomes one of a later version of the program: for tests, before any
/// store is opened.
///
/// # Panics
///
/// If the name is none of a migration (`V99__later`), or if there is such a migration already.
pub fn add_migration(name: &str, sql: &str) {
    let later = Migration::unapplied(name, sql);
    let later = later.unwrap_or_else(|error| panic!("{name:?} is no migration: {error}"));
    assert!(ADDED_MIGRATION.set(later).is_ok(), "there is such a migration already");
}

/// All migrations, in their order.
pub(crate) fn migrations() -> Vec<Migration> {
    let mut all = embedded::migrations::runner().get_migrations().clone();
    all.extend(ADDED_MIGRATION.get().cloned());
    all.sort_by_key(Migration::version);
    all
}

/// All migrations: version, name, and text.
pub(crate) fn migration_texts() -> Vec<(i64, String, String)> {
    let text = |it: Migration| (it.version().into(), it.to_string(), it.sql().unwrap_or_default().to_owned());
    migrations().into_iter().map(text).collect()
}

/// The schema's version; 0 for an empty database.
pub(crate) fn schema_version(conn: &Connection) -> DbResult<i64> {
    let exists: bool = conn.query_row(
        "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?1)",
        [HISTORY_TABLE],
        |row| row.get(0),
    )?;
    if !exists {
        return Ok(0);
    }
    let version: rusqlite::Result<Option<i64>> =
        conn.query_row("SELECT max(version) FROM schema_version", [], |row| row.get(0));
    version.map(|version| version.unwrap_or(0)).map_err(|error| match error.sqlite_error_code() {
        Some(rusqlite::ErrorCode::Unknown) => StoreError::Open {
            store: String::new(),
            reason: format!("its table {HISTORY_TABLE} is not ours ({}); use another file", detail(&error)),
        }
        .into(),
        _ => error.into(),
    })
}

/// Which store it is, and the number of its shard.
pub(crate) fn store_identity(conn: &Connection) -> DbResult<(String, u16)> {
    Ok(conn.query_row("SELECT store_id, number FROM shard", [], |row| Ok((row.get(0)?, row.get(1)?)))?)
}

/// The newest schema that this program knows.
pub(crate) fn newest_version() -> i64 {
    static NEWEST: LazyLock<i64> = LazyLock::new(|| migrations().last().map_or(0, |it| it.version().into()));
    *NEWEST
}

/// Where the schema is, or is about to be, one that this program does not know: its version, and the newest that the program
/// knows.
pub(crate) fn find_newer_version(conn: &Connection) -> DbResult<Option<(i64, i64)>> {
    let ask = "SELECT max(oldest_engine, (SELECT max(version) FROM schema_version)) FROM shard";
    let oldest: i64 = conn.prepare_cached(ask)?.query_row([], |row| row.get(0))?;
    Ok((oldest > newest_version()).then(|| (oldest, newest_version())))
}
