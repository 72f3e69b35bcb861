//! Brings the schema up to date, or refuses a newer one. The caller holds the lock that lets in one opener
//! at a time, of all processes.

use rusqlite::Connection;
use stepfast_core::store::StoreError;

use crate::error::{Tried, detail};

mod embedded {
    refinery::embed_migrations!("migrations");
}

/// The table that says which migrations were applied.
const HISTORY: &str = "schema_version";

/// All migrations: version, name, and text.
pub(crate) fn all() -> Vec<(i64, String, String)> {
    let runner = embedded::migrations::runner();
    let mut all: Vec<_> = (runner.get_migrations().iter())
        .map(|it| (i64::from(it.version()), it.to_string(), it.sql().unwrap_or_default().to_owned()))
        .collect();
    all.sort_unstable();
    all
}

/// Applies what is missing, in one transaction.
pub(crate) fn migrate(conn: &mut Connection) -> Tried<()> {
    let mut runner = embedded::migrations::runner().set_grouped(true);
    runner.set_migration_table_name(HISTORY);
    let supported =
        runner.get_migrations().iter().map(|migration| i64::from(migration.version())).max().unwrap_or(0);
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
    Ok(())
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
