//! Brings the schema up to date, or rejects a newer one. The caller holds the lock that admits one opener at a time, of
//! all processes.

use refinery::Runner;
use rusqlite::Connection;
use stepfast_core::store::StoreError;

use crate::error::DbResult;
use crate::schema::{HISTORY_TABLE, migrations, newest_version, schema_version};

/// Size of a database, in bytes, up to which opening an engine migrates the schema by itself. A migration may rewrite
/// tables, and a supervisor could end the process before it is finished.
const MAX_AUTOMATIC_MIGRATION_BYTES: i64 = 1 << 30;

/// Applies the missing migrations in one transaction. Returns whether any was missing.
pub(crate) fn migrate(conn: &mut Connection) -> DbResult<bool> {
    let mut runner = Runner::new(&migrations()).set_grouped(true);
    runner.set_migration_table_name(HISTORY_TABLE);
    let supported = newest_version();
    let found = schema_version(conn)?;
    if found > supported {
        return Err(StoreError::NewerSchema { found, supported }.into());
    }
    if found < supported {
        // peers of an older version may be writing: wait for them at the beginning, not in the middle
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
/// those engines do not check for that.
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

/// Returns the size of the database in bytes, if it is so large that an engine leaves migrations to `db migrate`.
pub(crate) fn bytes_above_limit(conn: &Connection) -> DbResult<Option<i64>> {
    let count = |name: &str| conn.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let bytes = count("page_count")? * count("page_size")?;
    Ok((bytes > MAX_AUTOMATIC_MIGRATION_BYTES).then_some(bytes))
}
