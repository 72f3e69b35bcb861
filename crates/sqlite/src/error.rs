//! [`Trouble`]: what goes wrong inside, and its translation to [`StoreError`] at the edge.

use std::path::Path;

use rusqlite::ErrorCode;
use stepfast_core::store::StoreError;

/// An error on its way out: the driver's, or already the contract's.
#[derive(Debug)]
pub(crate) enum DbError {
    /// From SQLite.
    Sqlite(rusqlite::Error),
    /// Ready to be handed out.
    Store(StoreError),
    /// Another process has the file for too long: nothing was begun.
    Busy,
    /// Some row of many is there already: to be done again one row at a time. Never handed out.
    RetryRowByRow,
}

/// The result of work on a connection.
pub(crate) type DbResult<T> = Result<T, DbError>;

impl From<rusqlite::Error> for DbError {
    fn from(error: rusqlite::Error) -> Self {
        DbError::Sqlite(error)
    }
}

impl From<StoreError> for DbError {
    fn from(error: StoreError) -> Self {
        DbError::Store(error)
    }
}

impl DbError {
    /// What went wrong, for people.
    pub(crate) fn detail(&self) -> String {
        match self {
            DbError::Sqlite(error) => detail(error),
            DbError::Store(error) => error.to_string(),
            DbError::Busy | DbError::RetryRowByRow => format!("{self:?}"),
        }
    }

    /// A row that this program cannot have written.
    pub(crate) fn corrupt(what: &str) -> Self {
        DbError::Store(StoreError::Corrupt(format!("{what}; restore the database from a backup")))
    }

    fn code(&self) -> Option<ErrorCode> {
        match self {
            DbError::Sqlite(error) => error.sqlite_error_code(),
            DbError::Store(_) | DbError::Busy | DbError::RetryRowByRow => None,
        }
    }

    /// True if another process has the file, so that nothing was begun.
    pub(crate) fn is_busy(&self) -> bool {
        matches!(self, DbError::Busy)
            || matches!(self.code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
    }

    /// True if the database refuses a value or a row, whatever else is written.
    pub(crate) fn is_rejected_value(&self) -> bool {
        use ErrorCode::{ConstraintViolation, TooBig, TypeMismatch};
        matches!(self.code(), Some(ConstraintViolation | TooBig | TypeMismatch))
    }

    /// True if a sync has failed: what it should have written can be read, and is not on the disk.
    pub(crate) fn is_sync_failure(&self) -> bool {
        use rusqlite::ffi::{SQLITE_IOERR_DIR_FSYNC, SQLITE_IOERR_FSYNC};
        let DbError::Sqlite(error) = self else { return false };
        let code = error.sqlite_error().map(|error| error.extended_code);
        matches!(code, Some(SQLITE_IOERR_FSYNC | SQLITE_IOERR_DIR_FSYNC))
    }

    /// True if the connection may no longer know what is on disk, so that only a new one is trusted.
    pub(crate) fn needs_new_connection(&self) -> bool {
        use ErrorCode::{
            CannotOpen, DatabaseCorrupt, DiskFull, FileLockingProtocolFailed, NotADatabase, ReadOnly,
        };
        use ErrorCode::{OperationInterrupted, OutOfMemory, SystemIoFailure};
        matches!(
            self.code(),
            Some(
                CannotOpen
                    | DatabaseCorrupt
                    | DiskFull
                    | FileLockingProtocolFailed
                    | NotADatabase
                    | OperationInterrupted
                    | OutOfMemory
                    | ReadOnly
                    | SystemIoFailure
            )
        )
    }

    /// The contract's error: `doing` says what was attempted on the database at `path`.
    pub(crate) fn into_store_error(self, path: &Path, doing: &str) -> StoreError {
        let busy = |doing: &str| {
            StoreError::Unavailable(format!(
                "{doing} in {}: another process keeps its write lock; look for a stopped process or a long transaction \
                 on this file",
                path.display()
            ))
        };
        let error = match self {
            DbError::Store(error) => return error,
            DbError::Busy => return busy(doing),
            DbError::RetryRowByRow => return StoreError::Blocked(format!("{doing}: not done row by row")),
            DbError::Sqlite(error) => error,
        };
        let at = path.display();
        let Some(code) = error.sqlite_error_code() else {
            // a value of a type that no column of ours has
            return StoreError::Corrupt(format!("{doing} in {at}: a row is not as it was written ({error})"));
        };
        let detail = detail(&error);
        match code {
            ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked | ErrorCode::FileLockingProtocolFailed => {
                busy(doing)
            }
            ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase => StoreError::Corrupt(format!(
                "{doing} in {at}: the file is damaged ({detail}); restore it from a backup"
            )),
            ErrorCode::ConstraintViolation | ErrorCode::TooBig | ErrorCode::TypeMismatch => {
                StoreError::Rejected(format!("{doing} in {at}: {detail}"))
            }
            ErrorCode::DiskFull => {
                StoreError::Unavailable(format!("{doing} in {at}: the disk is full; free some space"))
            }
            ErrorCode::SystemIoFailure => {
                StoreError::Unavailable(format!("{doing} in {at}: the disk reports an error ({detail})"))
            }
            ErrorCode::ReadOnly | ErrorCode::PermissionDenied | ErrorCode::CannotOpen => {
                StoreError::Unavailable(format!("{doing} in {at}: the file cannot be written ({detail})"))
            }
            ErrorCode::Unknown => StoreError::Corrupt(format!(
                "{doing} in {at}: the tables are not as this program made them ({detail})"
            )),
            _ => StoreError::Unavailable(format!("{doing} in {at}: {detail}")),
        }
    }
}

/// The driver's words, without its type.
pub(crate) fn detail(error: &rusqlite::Error) -> String {
    match error {
        rusqlite::Error::SqliteFailure(_, Some(message)) => message.clone(),
        rusqlite::Error::SqliteFailure(code, None) => code.to_string(),
        other => other.to_string(),
    }
}
