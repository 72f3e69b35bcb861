//! The schema versions that this program supports, and the version of a database.

use std::sync::{LazyLock, OnceLock};

use refinery::Migration;
use rusqlite::Connection;
use stepfast_core::store::StoreError;

use crate::error::{DbResult, detail};

mod embedded {
    refinery::embed_migrations!("migrations");
}

/// The table of applied migrations.
pub(crate) const HISTORY_TABLE: &str = "schema_version";

/// A migration that a test has added, as if this process ran a later version of the program.
static ADDED_MIGRATION: OnceLock<Migration> = OnceLock::new();

/// Adds a migration to this process, as if the process ran a later version of the program. For tests, before any store
/// is opened.
///
/// # Panics
///
/// If `name` is not the name of a migration (as `V99__later` is), or if a migration was added before.
pub fn add_migration(name: &str, sql: &str) {
    let migration = Migration::unapplied(name, sql);
    let migration = migration.unwrap_or_else(|error| panic!("{name:?} is not a migration: {error}"));
    assert!(ADDED_MIGRATION.set(migration).is_ok(), "a migration was added already");
}

/// Returns all migrations, ordered by version.
pub(crate) fn migrations() -> Vec<Migration> {
    let mut all = embedded::migrations::runner().get_migrations().clone();
    all.extend(ADDED_MIGRATION.get().cloned());
    all.sort_by_key(Migration::version);
    all
}

/// Returns version, name and text of all migrations.
pub(crate) fn migration_texts() -> Vec<(i64, String, String)> {
    let text = |migration: Migration| {
        (migration.version().into(), migration.to_string(), migration.sql().unwrap_or_default().to_owned())
    };
    migrations().into_iter().map(text).collect()
}

/// Reads the version of the schema; 0 for a database without a schema of Stepfast.
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
            reason: format!(
                "its table {HISTORY_TABLE} belongs to another program ({}); use another file",
                detail(&error)
            ),
        }
        .into(),
        _ => error.into(),
    })
}

/// Reads the store's id and the number of its shard.
pub(crate) fn store_identity(conn: &Connection) -> DbResult<(String, u16)> {
    Ok(conn.query_row("SELECT store_id, number FROM shard", [], |row| Ok((row.get(0)?, row.get(1)?)))?)
}

/// Returns the newest schema version that this program supports.
pub(crate) fn newest_version() -> i64 {
    static NEWEST: LazyLock<i64> =
        LazyLock::new(|| migrations().last().map_or(0, |migration| migration.version().into()));
    *NEWEST
}

/// Returns the schema's version and the newest version that this program supports. `None` unless the schema is too new,
/// or a migration to a version that is too new was announced.
pub(crate) fn find_newer_version(conn: &Connection) -> DbResult<Option<(i64, i64)>> {
    let query = "SELECT max(oldest_engine, (SELECT max(version) FROM schema_version)) FROM shard";
    let version: i64 = conn.prepare_cached(query)?.query_row([], |row| row.get(0))?;
    Ok((version > newest_version()).then(|| (version, newest_version())))
}
