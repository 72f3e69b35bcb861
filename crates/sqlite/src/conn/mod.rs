//! Connections: how they are set up, and proof that the settings took.

pub(crate) mod statements;

use std::path::Path;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, Rows};
use stepfast_core::store::{Durability, StoreError};

use crate::companions::FlushCount;
use crate::error::{DbResult, DbError, detail};

/// How long SQLite itself tries for a lock, unless a transaction says otherwise: the net below the turnstile.
const BUSY: Duration = Duration::from_mins(1);
/// Page cache of the write connection, in KiB; pages are taken as they are needed. Enough for the largest flush
/// with every page at random; not more, as a commit that has split pages walks all that are cached (with 256 MiB
/// of them, steps were 4 % slower than with 32).
const WRITER_CACHE: i64 = 64 * 1024;
/// Page cache of a connection that reads, in KiB.
const READER_CACHE: i64 = 16 * 1024;
/// The write-ahead log is folded into the database when it has this many pages.
const CHECKPOINT_PAGES: i64 = 10_000;

/// A connection that writes. Creates the file if there is none.
pub(crate) fn writer(path: &Path, vfs: Option<&str>, durability: Durability) -> DbResult<Connection> {
    let conn = open(path, vfs, OpenFlags::SQLITE_OPEN_CREATE)?;
    // comes first: the first statement that reads the file, so whatever is wrong with it shows here
    let mode: String = conn.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?;
    if conn.is_readonly("main")? {
        return Err(refused(path, "the file is read-only; make it writable, or copy it").into());
    }
    expect(path, "journal_mode", &mode, "wal")?;
    let synchronous = match durability {
        Durability::Full => 2,
        Durability::Relaxed => 1,
        Durability::None => {
            return Err(
                refused(path, "this store keeps what it acknowledges: ask for full or relaxed").into()
            );
        }
    };
    set(&conn, path, "synchronous", synchronous)?;
    set(&conn, path, "cache_size", -WRITER_CACHE)?;
    set(&conn, path, "wal_autocheckpoint", CHECKPOINT_PAGES)?;
    Ok(conn)
}

/// A connection that only reads, and is never in the writer's way.
pub(crate) fn reader(path: &Path, vfs: Option<&str>) -> DbResult<Connection> {
    let conn = open(path, vfs, OpenFlags::empty())?;
    set(&conn, path, "query_only", 1)?;
    set(&conn, path, "cache_size", -READER_CACHE)?;
    Ok(conn)
}

/// [Empties](empty_log) the log, and makes that durable, so that nothing depends on the old log any more. Returns false if
/// other connections kept it from that for longer than `patience`.
///
/// When a sync of the log fails, the system takes its pages for written. They can be read, but are not on the disk, and no
/// later sync writes them. A log that is emptied begins anew with the next transaction: until that is synced, the disk may
/// still have the beginning of the old one, which is older than the database.
pub(crate) fn renew_log(conn: &Connection, patience: Duration) -> DbResult<bool> {
    if !empty_log(conn, patience)? {
        return Ok(false);
    }
    match count(conn) {
        Err(trouble) if trouble.is_busy() => Ok(false),
        counted => counted.map(|_| true),
    }
}

/// Writes all that the log has into the database, and empties it. False if readers or a writer of other connections kept it
/// from that for longer than `patience`.
pub(crate) fn empty_log(conn: &Connection, patience: Duration) -> DbResult<bool> {
    conn.busy_timeout(patience)?;
    let is_busy: bool = conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0))?;
    Ok(!is_busy)
}

/// Counts a flush, and returns the count.
pub(crate) fn count(conn: &Connection) -> DbResult<FlushCount> {
    let mut statement = conn.prepare_cached("UPDATE flushes SET count = count + 1 RETURNING nonce, count")?;
    one(statement.query([])?)
}

/// Returns the count of flushes.
pub(crate) fn counted(conn: &Connection) -> DbResult<FlushCount> {
    one(conn.prepare_cached("SELECT nonce, count FROM flushes")?.query([])?)
}

/// The only row of `flushes`. A statement that is not stepped to its end is not done.
fn one(mut rows: Rows<'_>) -> DbResult<FlushCount> {
    let mut found = None;
    while let Some(row) = rows.next()? {
        found = Some(FlushCount { nonce: row.get(0)?, count: row.get(1)? });
    }
    found.ok_or_else(|| DbError::corrupt("flushes has no row"))
}

/// Closes a connection that another one will follow: even if no other is open, the log is not folded into the
/// database now.
pub(crate) fn close_for_now(conn: Connection) {
    let _ = conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true);
    drop(conn);
}

fn open(path: &Path, vfs: Option<&str>, create: OpenFlags) -> DbResult<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | create;
    let conn = match vfs {
        None => Connection::open_with_flags(path, flags)?,
        Some(vfs) => Connection::open_with_flags_and_vfs(path, flags, vfs)?,
    };
    conn.busy_timeout(BUSY)?;
    conn.set_prepared_statement_cache_capacity(64);
    set(&conn, path, "mmap_size", 0)?;
    set(&conn, path, "temp_store", 2)?;
    Ok(conn)
}

/// Sets a pragma and reads it back.
fn set(conn: &Connection, path: &Path, name: &str, value: i64) -> DbResult<()> {
    conn.pragma_update(None, name, value)?;
    let found: i64 = conn.pragma_query_value(None, name, |row| row.get(0))?;
    expect(path, name, &found.to_string(), &value.to_string())
}

fn expect(path: &Path, name: &str, found: &str, wanted: &str) -> DbResult<()> {
    if found == wanted {
        return Ok(());
    }
    let reason = format!(
        "SQLite answers {name} = {found} where {wanted} was set; put the file on a local file system that \
         supports locks and shared memory"
    );
    Err(refused(path, reason).into())
}

fn refused(path: &Path, reason: impl Into<String>) -> StoreError {
    StoreError::Open { store: path.display().to_string(), reason: reason.into() }
}

/// Why a database could not be opened, and what to do.
pub(crate) fn explain(path: &Path, trouble: crate::error::DbError) -> StoreError {
    use crate::error::DbError::Sqlite;
    use rusqlite::ErrorCode;
    let error = match trouble {
        Sqlite(error) => error,
        other => match other.into_store_error(path, "opening") {
            StoreError::Open { reason, .. } => return refused(path, reason),
            error => return error,
        },
    };
    let detail = detail(&error);
    refused(
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
    fn settings_are_what_the_promises_need() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("test.db");
        let of = |conn: &Connection, name: &str| {
            conn.pragma_query_value(None, name, |row| row.get::<_, rusqlite::types::Value>(0)).unwrap()
        };
        let full = writer(&path, None, Durability::Full).unwrap();
        assert_eq!(of(&full, "journal_mode"), "wal".to_owned().into());
        for (name, value) in [("synchronous", 2), ("cache_size", -65_536), ("wal_autocheckpoint", 10_000)] {
            assert_eq!(of(&full, name), value.into(), "{name}");
        }
        for (name, value) in [("mmap_size", 0), ("temp_store", 2), ("query_only", 0)] {
            assert_eq!(of(&full, name), value.into(), "{name}");
        }
        let relaxed = writer(&path, None, Durability::Relaxed).unwrap();
        assert_eq!(of(&relaxed, "synchronous"), 1.into());
        let reader = reader(&path, None).unwrap();
        assert_eq!(of(&reader, "query_only"), 1.into());
        assert!(reader.execute("CREATE TABLE t (a)", []).is_err());
    }

    #[test]
    fn a_setting_that_does_not_take_is_refused() {
        let error = expect(Path::new("x.db"), "synchronous", "1", "2").unwrap_err();
        let error = explain(Path::new("x.db"), error).to_string();
        assert!(error.contains("synchronous = 1"), "{error}");
    }
}
