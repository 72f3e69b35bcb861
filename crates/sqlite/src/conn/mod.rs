//! Connections: opens the database, verifies the settings of each connection, and prepares statements.

pub(crate) mod row_counts;
pub(crate) mod statements;

use std::path::Path;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, Rows};
use stepfast_core::store::{Durability, StoreError};

use crate::companions::FlushCount;
use crate::error::{DbError, DbResult, detail};

/// Time that SQLite waits for a lock, unless a transaction sets another time.
const BUSY_TIMEOUT: Duration = Duration::from_mins(1);
/// Size of the write connection's page cache, in KiB. SQLite allocates the pages on demand. A larger cache would cost time,
/// because a commit that has split pages walks all cached pages: with 16 MiB, steps were 5 % slower than with 4 MiB. A flush
/// that changes more pages writes some of them to the log before its end.
const WRITER_CACHE_KIB: i64 = 4 * 1024;
/// Size of a read connection's page cache, in KiB.
const READER_CACHE_KIB: i64 = 16 * 1024;
/// Length of the write-ahead log, in pages, at which SQLite begins to write the log into the database.
const AUTOCHECKPOINT_PAGES: i64 = 10_000;

/// Opens a connection that writes. Creates the file if it does not exist.
pub(crate) fn open_writer(path: &Path, vfs: Option<&str>, durability: Durability) -> DbResult<Connection> {
    let conn = open(path, vfs, OpenFlags::SQLITE_OPEN_CREATE)?;
    // this statement is the first one that reads the file, so its error describes any fault of the file
    let mode: String = conn.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?;
    if conn.is_readonly("main")? {
        return Err(open_error(path, "the file is read-only; make it writable, or copy it").into());
    }
    expect_pragma(path, "journal_mode", &mode, "wal")?;
    let synchronous = match durability {
        Durability::Full => 2,
        Durability::Relaxed => 1,
        Durability::None => {
            return Err(open_error(
                path,
                "this store makes acknowledged writes durable: choose full or relaxed",
            )
            .into());
        }
    };
    set_pragma(&conn, path, "synchronous", synchronous)?;
    set_pragma(&conn, path, "cache_size", -WRITER_CACHE_KIB)?;
    set_pragma(&conn, path, "wal_autocheckpoint", AUTOCHECKPOINT_PAGES)?;
    Ok(conn)
}

/// Opens a connection that only reads, and never blocks the writer.
pub(crate) fn open_reader(path: &Path, vfs: Option<&str>) -> DbResult<Connection> {
    let conn = open(path, vfs, OpenFlags::empty())?;
    set_pragma(&conn, path, "query_only", 1)?;
    set_pragma(&conn, path, "cache_size", -READER_CACHE_KIB)?;
    Ok(conn)
}

/// [Empties](empty_log) the log durably: afterwards, no data depends on the old log. Returns false if other connections
/// prevented this for longer than `timeout`.
///
/// When a sync of the log fails, the system treats the pages as written. Such pages can be read, but are not on the
/// disk, and no later sync writes them. An emptied log starts again with the next transaction, which this function
/// commits. Until that transaction is synced, the disk may still contain the beginning of the old log, which is older
/// than the database.
pub(crate) fn renew_log(conn: &Connection, timeout: Duration) -> DbResult<bool> {
    if !empty_log(conn, timeout)? {
        return Ok(false);
    }
    match count_flush(conn) {
        Err(error) if error.is_busy() => Ok(false),
        counted => counted.map(|_| true),
    }
}

/// Writes the content of the log into the database, and empties the log. Returns false if readers or a writer on other
/// connections prevented this for longer than `timeout`.
pub(crate) fn empty_log(conn: &Connection, timeout: Duration) -> DbResult<bool> {
    conn.busy_timeout(timeout)?;
    let is_busy: bool = conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0))?;
    Ok(!is_busy)
}

/// Increments the flush count, and returns the new count.
pub(crate) fn count_flush(conn: &Connection) -> DbResult<FlushCount> {
    let mut statement = conn.prepare_cached("UPDATE flushes SET count = count + 1 RETURNING nonce, count")?;
    flush_count_of(statement.query([])?)
}

/// Reads the flush count.
pub(crate) fn read_flush_count(conn: &Connection) -> DbResult<FlushCount> {
    flush_count_of(conn.prepare_cached("SELECT nonce, count FROM flushes")?.query([])?)
}

/// Reads the only row of `flushes`. Steps the statement to its end: otherwise an UPDATE is not finished.
fn flush_count_of(mut rows: Rows<'_>) -> DbResult<FlushCount> {
    let mut found = None;
    while let Some(row) = rows.next()? {
        found = Some(FlushCount { nonce: row.get(0)?, count: row.get(1)? });
    }
    found.ok_or_else(|| DbError::corrupt("table flushes has no row"))
}

/// Runs `read` with a connection that is closed afterwards, and does not write the log into the database.
pub(crate) fn read_once<T>(
    path: &Path,
    vfs: Option<&str>,
    read: impl FnOnce(&Connection) -> DbResult<T>,
) -> DbResult<T> {
    let conn = open_reader(path, vfs)?;
    let result = read(&conn);
    close_without_checkpoint(conn);
    result
}

/// Closes a connection without writing the log into the database, which SQLite does by default when the last connection
/// closes.
pub(crate) fn close_without_checkpoint(conn: Connection) {
    let _ = conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true);
    drop(conn);
}

/// Opens a connection with the settings of writers and readers.
fn open(path: &Path, vfs: Option<&str>, extra_flags: OpenFlags) -> DbResult<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | extra_flags;
    let conn = match vfs {
        None => Connection::open_with_flags(path, flags)?,
        Some(vfs) => Connection::open_with_flags_and_vfs(path, flags, vfs)?,
    };
    conn.busy_timeout(BUSY_TIMEOUT)?;
    conn.set_prepared_statement_cache_capacity(64);
    set_pragma(&conn, path, "mmap_size", 0)?;
    set_pragma(&conn, path, "temp_store", 2)?;
    Ok(conn)
}

/// Sets a pragma and reads it back.
fn set_pragma(conn: &Connection, path: &Path, name: &str, value: i64) -> DbResult<()> {
    conn.pragma_update(None, name, value)?;
    let found: i64 = conn.pragma_query_value(None, name, |row| row.get(0))?;
    expect_pragma(path, name, &found.to_string(), &value.to_string())
}

/// Fails if a pragma has another value than the one that was set.
fn expect_pragma(path: &Path, name: &str, found: &str, expected: &str) -> DbResult<()> {
    if found == expected {
        return Ok(());
    }
    let reason = format!(
        "SQLite reports {name} = {found} where {expected} was set; put the file on a local file system that \
         supports locks and shared memory"
    );
    Err(open_error(path, reason).into())
}

fn open_error(path: &Path, reason: impl Into<String>) -> StoreError {
    StoreError::Open { store: path.display().to_string(), reason: reason.into() }
}

/// Converts an error of opening a database to one that names the reason and the remedy.
pub(crate) fn explain_open_error(path: &Path, error: DbError) -> StoreError {
    use rusqlite::ErrorCode;
    let error = match error {
        DbError::Sqlite(error) => error,
        other => match other.into_store_error(path, "opening") {
            StoreError::Open { reason, .. } => return open_error(path, reason),
            error => return error,
        },
    };
    let detail = detail(&error);
    open_error(
        path,
        match error.sqlite_error_code() {
            Some(ErrorCode::NotADatabase) => {
                "it is not a SQLite database; choose another path, or move the file away".to_owned()
            }
            Some(ErrorCode::DatabaseCorrupt) => {
                format!("the file is damaged ({detail}); restore it from a backup")
            }
            Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied | ErrorCode::CannotOpen) => {
                format!("no permission to write ({detail}); make the file and its directory writable")
            }
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
                "another process keeps it locked; look for a stopped process or a long transaction".to_owned()
            }
            Some(ErrorCode::DiskFull) => "the disk is full; free some space".to_owned(),
            _ => detail,
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pragmas_match_promised_durability() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("test.db");
        let of = |conn: &Connection, name: &str| {
            conn.pragma_query_value(None, name, |row| row.get::<_, rusqlite::types::Value>(0)).unwrap()
        };
        let full = open_writer(&path, None, Durability::Full).unwrap();
        assert_eq!(of(&full, "journal_mode"), "wal".to_owned().into());
        for (name, value) in [("synchronous", 2), ("cache_size", -4_096), ("wal_autocheckpoint", 10_000)] {
            assert_eq!(of(&full, name), value.into(), "{name}");
        }
        for (name, value) in [("mmap_size", 0), ("temp_store", 2), ("query_only", 0)] {
            assert_eq!(of(&full, name), value.into(), "{name}");
        }
        let relaxed = open_writer(&path, None, Durability::Relaxed).unwrap();
        assert_eq!(of(&relaxed, "synchronous"), 1.into());
        let reader = open_reader(&path, None).unwrap();
        assert_eq!(of(&reader, "query_only"), 1.into());
        assert!(reader.execute("CREATE TABLE t (a)", []).is_err());
    }

    #[test]
    fn pragma_that_does_not_take_effect_is_rejected() {
        let error = expect_pragma(Path::new("x.db"), "synchronous", "1", "2").unwrap_err();
        let error = explain_open_error(Path::new("x.db"), error).to_string();
        assert!(error.contains("synchronous = 1"), "{error}");
    }
}
