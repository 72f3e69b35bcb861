//! Brings the schema up to date, or refuses a newer one. The caller holds the lock that lets in one opener
//! at a time, of all processes.

use refinery::Runner;
use rusqlite::Connection;
use stepfast_core::store::StoreError;

use crate::error::DbResult;
use crate::schema::{HISTORY_TABLE, migrations, newest_version, schema_version};

/// Bytes of a database up to which an engine that is opened brings the schema up to date by itself. A migration may rewrite
/// tables, and a supervisor would end the process meanwhile.
const SMALL: i64 = 1 << 30;

/// Applies what is missing, in one transaction. Returns whether anything was.
pub(crate) fn migrate(conn: &mut Connection) -> DbResult<bool> {
    let mut runner = Runner::new(&migrations()).set_grouped(true);
    runner.set_migration_table_name(HISTORY_TABLE);
    let supported = newest_version();
    let found = schema_version(conn)?;
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

/// Asks the engines of older programs to end, as the schema is brought to the newest version. False if they do not look at
/// that.
pub(crate) fn announce(conn: &Connection) -> DbResult<bool> {
    const FIRST_THAT_LOOK: i64 = 3;
    if schema_version(conn)? < FIRST_THAT_LOOK {
        return Ok(false);
    }
    conn.execute("UPDATE shard SET oldest_engine = max(oldest_engine, ?1)", [newest_version()])?;
    Ok(true)
}

/// True if it is an older schema than that of this program.
pub(crate) fn is_outdated(conn: &Connection) -> DbResult<bool> {
    Ok((1..newest_version()).contains(&schema_version(conn)?))
}

/// Returns how many bytes the database has, where an engine leaves migrations to `db migrate`.
pub(crate) fn many_bytes(conn: &Connection) -> DbResult<Option<i64>> {
    let count = |name: &str| conn.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let bytes = count("page_count")? * count("page_size")?;
    Ok((bytes > SMALL).then_some(bytes))
}
