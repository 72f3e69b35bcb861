//! Brings the schema up to date, or rejects a newer one.

use std::path::Path;

use refinery::Runner;
use rusqlite::Connection;
use stepfast_core::store::{MigrationReport, StoreError};

use crate::conn::{explain_open_error, read_once};
use crate::error::DbResult;
use crate::fork::SqliteUse;
use crate::schema::{self, HISTORY_TABLE, migrations, newest_version, schema_version};
use crate::{SqliteOptions, SqliteStore, resolve_path};

/// Size of a database, in bytes, up to which opening a store migrates the schema by itself. A migration may rewrite
/// tables, and a supervisor could end the process before the migration is finished.
const MAX_AUTOMATIC_MIGRATION_BYTES: i64 = 1 << 30;

impl SqliteStore {
    /// Creates the database at `path`, or brings its schema up to date, even if the database is large. If `is_dry`,
    /// only returns the SQL that would be executed.
    pub fn migrate(path: impl AsRef<Path>, is_dry: bool) -> Result<MigrationReport, StoreError> {
        let path = resolve_path(path.as_ref())?;
        let found = found_version(&path)?;
        let all = schema::migration_texts();
        let newest = all.last().map_or(0, |(version, ..)| *version);
        if let Some(found) = found.filter(|found| *found > newest) {
            return Err(StoreError::NewerSchema { found, supported: newest });
        }
        let pending: Vec<_> = all.into_iter().filter(|(version, ..)| *version > found.unwrap_or(0)).collect();
        let mut report = MigrationReport {
            database: path.display().to_string(),
            found_version: found,
            required_version: newest,
            migrations: pending.iter().map(|(_, name, _)| name.clone()).collect(),
            ..MigrationReport::default()
        };
        if is_dry {
            let texts = pending.iter().map(|(.., sql)| format!("{}\n", sql.trim_end()));
            report.sql = if pending.is_empty() {
                String::new()
            } else {
                format!("BEGIN IMMEDIATE;\n{}COMMIT;", texts.collect::<String>())
            };
        } else if !pending.is_empty() {
            drop(Self::open_and_migrate(&path, SqliteOptions::default(), true)?);
        }
        Ok(report)
    }
}

/// Reads the version of the file's schema; `None` if the file does not exist or is empty.
fn found_version(path: &Path) -> Result<Option<i64>, StoreError> {
    if !path.exists() {
        return Ok(None);
    }
    let _in_sqlite = SqliteUse::enter();
    let found =
        read_once(path, None, schema::schema_version).map_err(|error| explain_open_error(path, error))?;
    Ok((found > 0).then_some(found))
}

/// Applies the missing migrations in one transaction. Returns whether any was missing. The caller holds the [opener's
/// lock](crate::file_share::FileShare::lock_opening), so no other process migrates.
pub(crate) fn migrate(conn: &mut Connection) -> DbResult<bool> {
    let mut runner = Runner::new(&migrations()).set_grouped(true);
    runner.set_migration_table_name(HISTORY_TABLE);
    let supported = newest_version();
    let found = schema_version(conn)?;
    if found > supported {
        return Err(StoreError::NewerSchema { found, supported }.into());
    }
    if found < supported {
        // processes of an older version may be writing: wait for them at the beginning of the transaction, not in the
        // middle
        conn.set_transaction_behavior(rusqlite::TransactionBehavior::Immediate);
        runner.run(conn).map_err(|error| {
            // refinery's message alone does not contain the causes
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

/// Asks the engines of older programs to end, before the schema is brought to the newest version. Returns false if
/// those engines are too old to read the announcement.
pub(crate) fn announce_migration(conn: &Connection) -> DbResult<bool> {
    const FIRST_CHECKING_VERSION: i64 = 3;
    if schema_version(conn)? < FIRST_CHECKING_VERSION {
        return Ok(false);
    }
    conn.execute("UPDATE shard SET oldest_engine = max(oldest_engine, ?1)", [newest_version()])?;
    Ok(true)
}

/// Whether the schema is older than that of this program.
pub(crate) fn is_outdated(conn: &Connection) -> DbResult<bool> {
    Ok((1..newest_version()).contains(&schema_version(conn)?))
}

/// Returns the size of the database in bytes; `None` if the database is small enough to be migrated automatically.
pub(crate) fn bytes_above_limit(conn: &Connection) -> DbResult<Option<i64>> {
    let count = |name: &str| conn.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let bytes = count("page_count")? * count("page_size")?;
    Ok((bytes > MAX_AUTOMATIC_MIGRATION_BYTES).then_some(bytes))
}
