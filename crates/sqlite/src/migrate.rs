//! Brings the schema up to date, or refuses a newer one. The caller holds the lock that lets in one opener
//! at a time, of all processes.

use std::sync::{LazyLock, OnceLock};

use refinery::{Migration, Runner};
use rusqlite::Connection;
use stepfast_core::store::StoreError;

use crate::error::{Tried, detail};

mod embedded {
    refinery::embed_migrations!("migrations");
}

/// The table that says which migrations were applied.
const HISTORY: &str = "schema_version";

/// Bytes of a database up to which an engine that is opened brings the schema up to date by itself. A migration may rewrite
/// tables, and a supervisor would end the process meanwhile.
const SMALL: i64 = 1 << 30;

/// The migration that makes this process one of a later version.
static LATER: OnceLock<Migration> = OnceLock::new();

/// Adds a migration to those of this process, which becomes one of a later version of the program: for tests, before any
/// store is opened.
///
/// # Panics
///
/// If the name is none of a migration (`V99__later`), or if there is such a migration already.
pub fn add_migration(name: &str, sql: &str) {
    let later = Migration::unapplied(name, sql);
    let later = later.unwrap_or_else(|error| panic!("{name:?} is no migration: {error}"));
    assert!(LATER.set(later).is_ok(), "there is such a migration already");
}

/// All migrations, in their order.
fn migrations() -> Vec<Migration> {
    let mut all = embedded::migrations::runner().get_migrations().clone();
    all.extend(LATER.get().cloned());
    all.sort_by_key(Migration::version);
    all
}

/// All migrations: version, name, and text.
pub(crate) fn all() -> Vec<(i64, String, String)> {
    let text = |it: Migration| (it.version().into(), it.to_string(), it.sql().unwrap_or_default().to_owned());
    migrations().into_iter().map(text).collect()
}

/// Applies what is missing, in one transaction. Returns whether anything was.
pub(crate) fn migrate(conn: &mut Connection) -> Tried<bool> {
    let mut runner = Runner::new(&migrations()).set_grouped(true);
    runner.set_migration_table_name(HISTORY);
    let supported = newest();
    let found = version(conn)?;
    if found > supported {
        return Err(StoreError::NewerSchema { found, supported }.into());
    }
    if found < supported {
        // peers of an older version may be writing: wait for them at the start, not in the middle
        conn.set_transaction_behavior(rusqlite::TransactionBehavior::Immediate);
        runner.run(conn).map_err(|error| {
            // whatever it was, it is told with its causes
            let mut reason = error.to_string();
            let mut source = std::error::Error::source(&error);
            while let Some(cause) = source {
                reason = format!("{reason}: {cause}");
                source = cause.source();
            }
            StoreError::Open {
                store: String::new(),
                reason: format!(
                    "its schema cannot be brought from version {found} to {supported} ({reason}); if the file \
                     belongs to another program, use another file"
                ),
            }
        })?;
    }
    Ok(found < supported)
}

/// The schema's version; 0 for an empty database.
pub(crate) fn version(conn: &Connection) -> Tried<i64> {
    let exists: bool = conn.query_row(
        "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?1)",
        [HISTORY],
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
            reason: format!("its table {HISTORY} is not ours ({}); use another file", detail(&error)),
        }
        .into(),
        _ => error.into(),
    })
}

/// Which store it is, and the number of its shard.
pub(crate) fn identity(conn: &Connection) -> Tried<(String, u16)> {
    Ok(conn.query_row("SELECT store_id, number FROM shard", [], |row| Ok((row.get(0)?, row.get(1)?)))?)
}

/// The newest schema that this program knows.
pub(crate) fn newest() -> i64 {
    static NEWEST: LazyLock<i64> = LazyLock::new(|| migrations().last().map_or(0, |it| it.version().into()));
    *NEWEST
}

/// Where the schema is, or is about to be, one that this program does not know: its version, and the newest that the program
/// knows.
pub(crate) fn newer(conn: &Connection) -> Tried<Option<(i64, i64)>> {
    let ask = "SELECT max(oldest_engine, (SELECT max(version) FROM schema_version)) FROM shard";
    let oldest: i64 = conn.prepare_cached(ask)?.query_row([], |row| row.get(0))?;
    Ok((oldest > newest()).then(|| (oldest, newest())))
}

/// Asks the engines of older programs to end, as the schema is brought to the newest version. False if they do not look at
/// that.
pub(crate) fn announce(conn: &Connection) -> Tried<bool> {
    const FIRST_THAT_LOOK: i64 = 3;
    if version(conn)? < FIRST_THAT_LOOK {
        return Ok(false);
    }
    conn.execute("UPDATE shard SET oldest_engine = max(oldest_engine, ?1)", [newest()])?;
    Ok(true)
}

/// True if it is an older schema than that of this program.
pub(crate) fn is_outdated(conn: &Connection) -> Tried<bool> {
    Ok((1..newest()).contains(&version(conn)?))
}

/// Returns how many bytes the database has, where an engine leaves migrations to `db migrate`.
pub(crate) fn many_bytes(conn: &Connection) -> Tried<Option<i64>> {
    let count = |name: &str| conn.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let bytes = count("page_count")? * count("page_size")?;
    Ok((bytes > SMALL).then_some(bytes))
}
