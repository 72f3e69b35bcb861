//! [`StoreError`]: how a store fails.

use crate::error::Error;

/// What went wrong in a store.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// No answer, or none that can be trusted; what was asked may have happened.
    #[error("the database is unavailable: {0}")]
    Unavailable(String),
    /// The lane's epoch is over.
    #[error("another worker has taken over")]
    Fenced,
    /// Some item's data is not accepted; nothing was written.
    #[error("the database refuses an item: {0}")]
    Rejected(String),
    /// Some item waits for somebody else's transaction; nothing was written.
    #[error("an item is blocked by another transaction: {0}")]
    Blocked(String),
    /// Who asks may not read that. Nothing has happened.
    #[error("the database does not permit it: {0}")]
    PermissionDenied(String),
    /// The database is damaged, or has lost what it acknowledged.
    #[error("the database cannot be trusted: {0}")]
    Corrupt(String),
    /// The schema is newer than this program.
    #[error("the database has schema version {found}, this program knows up to {supported}")]
    NewerSchema {
        /// Version found.
        found: i64,
        /// Newest version known.
        supported: i64,
    },
    /// It cannot be opened.
    #[error("cannot open {store}: {reason}")]
    Open {
        /// Which database.
        store: String,
        /// Why, and what to do.
        reason: String,
    },
    /// It cannot be opened now, and perhaps later: the server is away, or takes no more connections.
    #[error("cannot reach {store}: {reason}")]
    Unreachable {
        /// Which database.
        store: String,
        /// Why, and what to do.
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
            error @ (StoreError::Fenced | StoreError::Rejected(_) | StoreError::Blocked(_)) => {
                Error::Unavailable(error.to_string())
            }
        }
    }
}
