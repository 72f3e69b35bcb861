//! [`DbError`]: errors inside this crate, and their translation to [`StoreError`] at its boundary.

use std::path::Path;

use rusqlite::ErrorCode;
use stepfast_core::store::StoreError;

/// An error of the driver, or one of the store contract.
#[derive(Debug)]
pub(crate) enum DbError {
    /// An error of SQLite.
    Sqlite(rusqlite::Error),
    /// An error of the contract, returned unchanged.
    Store(StoreError),
    /// Another process held the write lock for too long; no transaction was begun.
    Busy,
    /// A row of a batch statement exists already, so the flush must be applied again row by row. Never leaves this
    /// crate.
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
    /// Returns a description of the error for people.
    pub(crate) fn detail(&self) -> String {
        match self {
            DbError::Sqlite(error) => detail(error),
            DbError::Store(error) => error.to_string(),
            DbError::Busy | DbError::RetryRowByRow => format!("{self:?}"),
        }
    }

    /// Returns the error for data that this program cannot have written. `problem` describes it.
    pub(crate) fn corrupt(problem: &str) -> Self {
        DbError::Store(StoreError::Corrupt(format!("{problem}; restore the database from a backup")))
    }

    /// Returns SQLite's code of the error; `None` for errors of other origin.
    fn code(&self) -> Option<ErrorCode> {
        match self {
            DbError::Sqlite(error) => error.sqlite_error_code(),
            DbError::Store(_) | DbError::Busy | DbError::RetryRowByRow => None,
        }
    }

    /// Whether another process holds the write lock, so that no transaction was begun.
    pub(crate) fn is_busy(&self) -> bool {
        matches!(self, DbError::Busy)
            || matches!(self.code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
    }

    /// Whether the database rejects a value or a row, whatever the other rows of the flush are.
    pub(crate) fn is_rejected_value(&self) -> bool {
        use ErrorCode::{ConstraintViolation, TooBig, TypeMismatch};
        matches!(self.code(), Some(ConstraintViolation | TooBig | TypeMismatch))
    }

    /// Whether a sync has failed: the data that it should have written can be read, but is not on the disk.
    pub(crate) fn is_sync_failure(&self) -> bool {
        use rusqlite::ffi::{SQLITE_IOERR_DIR_FSYNC, SQLITE_IOERR_FSYNC};
        let DbError::Sqlite(error) = self else { return false };
        let code = error.sqlite_error().map(|error| error.extended_code);
        matches!(code, Some(SQLITE_IOERR_FSYNC | SQLITE_IOERR_DIR_FSYNC))
    }

    /// Whether the connection's view of the disk may be wrong, so that only a new connection is trusted.
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

    /// Converts to the contract's error. `action` says what was attempted on the database at `path`.
    pub(crate) fn into_store_error(self, path: &Path, action: &str) -> StoreError {
        let busy = |action: &str| {
            StoreError::Unavailable(format!(
                "{action} in {}: another process keeps its write lock; look for a stopped process or a long transaction \
                 on this file",
                path.display()
            ))
        };
        let error = match self {
            DbError::Store(error) => return error,
            DbError::Busy => return busy(action),
            DbError::RetryRowByRow => {
                return StoreError::Blocked(format!("{action}: the flush was not retried row by row"));
            }
            DbError::Sqlite(error) => error,
        };
        let at = path.display();
        let Some(code) = error.sqlite_error_code() else {
            // the error comes from the driver, not from SQLite: a column has a type that the schema does not use
            return StoreError::Corrupt(format!(
                "{action} in {at}: a column has a value of an unexpected type ({error})"
            ));
        };
        let detail = detail(&error);
        match code {
            ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked | ErrorCode::FileLockingProtocolFailed => {
                busy(action)
            }
            ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase => StoreError::Corrupt(format!(
                "{action} in {at}: the file is damaged ({detail}); restore it from a backup"
            )),
            ErrorCode::ConstraintViolation | ErrorCode::TooBig | ErrorCode::TypeMismatch => {
                StoreError::Rejected(format!("{action} in {at}: {detail}"))
            }
            ErrorCode::DiskFull => {
                StoreError::Unavailable(format!("{action} in {at}: the disk is full; free some space"))
            }
            ErrorCode::SystemIoFailure => {
                StoreError::Unavailable(format!("{action} in {at}: the disk reports an error ({detail})"))
            }
            ErrorCode::ReadOnly | ErrorCode::PermissionDenied | ErrorCode::CannotOpen => {
                StoreError::Unavailable(format!("{action} in {at}: the file cannot be written ({detail})"))
            }
            ErrorCode::Unknown => StoreError::Corrupt(format!(
                "{action} in {at}: the tables do not match this program's schema ({detail})"
            )),
            _ => StoreError::Unavailable(format!("{action} in {at}: {detail}")),
        }
    }
}

/// Returns the driver's message, without the name of its error type.
pub(crate) fn detail(error: &rusqlite::Error) -> String {
    match error {
        rusqlite::Error::SqliteFailure(_, Some(message)) => message.clone(),
        rusqlite::Error::SqliteFailure(code, None) => code.to_string(),
        other => other.to_string(),
    }
}
