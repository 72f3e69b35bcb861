//! [`StoreError`]: an error that a store returns.

use crate::error::Error;

/// An error of a store.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The database is unreachable, or its reply did not arrive or cannot be trusted. The operation may have happened.
    #[error("the database is unavailable: {0}")]
    Unavailable(String),
    /// The lane has another epoch now: the worker was taken over, or its registration ended.
    #[error("another worker has taken over")]
    Fenced,
    /// The database does not accept the data of a Write. Nothing was written.
    #[error("the database rejected a Write: {0}")]
    Rejected(String),
    /// A Write waits for a lock of another transaction. Nothing was written.
    #[error("a Write is blocked by another transaction: {0}")]
    Blocked(String),
    /// A single Write waits for a lock of another transaction on a whole table, as other Writes probably do. Nothing was
    /// written.
    #[error("a Write is blocked by another transaction that has locked a table: {0}")]
    TableLocked(String),
    /// The database's user lacks a privilege. Nothing was changed.
    #[error("permission denied by the database: {0}")]
    PermissionDenied(String),
    /// The database is damaged, or it has lost acknowledged data.
    #[error("the database cannot be trusted: {0}")]
    Corrupt(String),
    /// The schema of the database is newer than this program supports.
    #[error("the database has schema version {found}, this program supports versions up to {supported}")]
    NewerSchema {
        /// The schema version of the database.
        found: i64,
        /// The newest schema version that this program supports.
        supported: i64,
    },
    /// The database cannot be opened.
    #[error("cannot open {store}: {reason}")]
    Open {
        /// A description of the database, for people.
        store: String,
        /// The reason, and what to do.
        reason: String,
    },
    /// The database cannot be opened now: the server is unreachable, or accepts no further connections. A later
    /// attempt may succeed.
    #[error("cannot reach {store}: {reason}")]
    Unreachable {
        /// A description of the database, for people.
        store: String,
        /// The reason, and what to do.
        reason: String,
    },
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Unavailable(reason) => Error::Unavailable(reason),
            StoreError::NewerSchema { found, supported } => Error::NewerSchema { found, supported },
            StoreError::PermissionDenied(reason) => Error::PermissionDenied(reason),
            StoreError::Corrupt(reason) => Error::Corrupt(reason),
            StoreError::Open { store, reason } => Error::Open { store, reason },
            StoreError::Unreachable { store, reason } => Error::Unreachable { store, reason },
            error @ (StoreError::Fenced
            | StoreError::Rejected(_)
            | StoreError::Blocked(_)
            | StoreError::TableLocked(_)) => Error::Unavailable(error.to_string()),
        }
    }
}
