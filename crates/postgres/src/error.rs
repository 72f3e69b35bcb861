//! [`DbError`]: the server's errors, classified by what they mean to the engine.

use stepfast_core::store::StoreError;
use tokio_postgres::Error;
use tokio_postgres::error::SqlState;

/// The `action` of the statement that fails if a queue has a depth limit.
pub(crate) const DEPTH_LIMIT_CHECK: &str = "checking that queues have no depth limit";

/// The error of one statement. The caller decides what the error means for the whole operation.
#[derive(Debug)]
pub(crate) enum DbError {
    /// The query of the fence matched no row.
    Fenced,
    /// The transaction conflicts with another one, and may be retried unchanged. Contains the reason.
    Retry(String),
    /// A Start enters a queue with a depth limit that this store did not know.
    DepthLimited,
    /// The role lacks a privilege. A worker keeps trying, because the privilege may be granted later. Contains the
    /// reason.
    PermissionDenied(String),
    /// The statement was cancelled, by its timeout or by an operator. Contains the reason.
    Cancelled(String),
    /// The server reports an error that neither the server's own state nor a known property of a Write explains.
    /// Nothing was changed. The session is not used again. Contains the reason.
    Unexplained(String),
    /// Any other failure.
    Store(StoreError),
}

impl DbError {
    /// Converts the error into the error of the whole operation, when no retry is left.
    pub(crate) fn into_store_error(self) -> StoreError {
        match self {
            DbError::Fenced => StoreError::Fenced,
            DbError::Retry(reason) => StoreError::Blocked(reason),
            DbError::DepthLimited => StoreError::Blocked("a queue has a depth limit now".into()),
            DbError::PermissionDenied(reason) | DbError::Cancelled(reason) | DbError::Unexplained(reason) => {
                StoreError::Unavailable(reason)
            }
            DbError::Store(error) => error,
        }
    }
}

impl From<StoreError> for DbError {
    fn from(error: StoreError) -> Self {
        DbError::Store(error)
    }
}

/// Classifies an error of the server or of the connection. `action` describes the attempt for messages, as in
/// "inserting timers".
pub(crate) fn db_error(action: &str, error: &Error) -> DbError {
    let Some(database) = error.as_db_error() else {
        return DbError::Store(if is_encoding_error(error) {
            StoreError::Rejected(format!("{action}: a value cannot be sent ({error})"))
        } else {
            StoreError::Unavailable(format!("{action}: the connection was lost"))
        });
    };
    let code = database.code();
    let class = code.code().get(..2).unwrap_or_default();
    let reason = format!("{action}: {} (SQLSTATE {}){}", database.message(), code.code(), advice_for(code));
    if *code == SqlState::LOCK_NOT_AVAILABLE {
        return DbError::Store(StoreError::Blocked(reason));
    }
    if *code == SqlState::T_R_DEADLOCK_DETECTED || *code == SqlState::T_R_SERIALIZATION_FAILURE {
        return DbError::Retry(reason);
    }
    if *code == SqlState::INSUFFICIENT_PRIVILEGE {
        return DbError::PermissionDenied(reason);
    }
    if *code == SqlState::DIVISION_BY_ZERO && action == DEPTH_LIMIT_CHECK {
        return DbError::DepthLimited;
    }
    if *code == SqlState::QUERY_CANCELED {
        return DbError::Cancelled(reason);
    }
    // an error without a context comes from the statement itself, which is the same for all Writes
    let is_of_statement = database.where_().is_none();
    DbError::Store(match class {
        // SQLSTATE classes of data exceptions, constraints, program limits, and of checks and triggers that users have
        // added
        "22" | "23" | "44" | "54" | "P0" => StoreError::Rejected(reason),
        "XX" if *code == SqlState::DATA_CORRUPTED || *code == SqlState::INDEX_CORRUPTED => {
            StoreError::Corrupt(reason)
        }
        // SQLSTATE classes of connections, rollbacks, resources, operators, and disks
        "08" | "40" | "53" | "57" | "58" => StoreError::Unavailable(reason),
        _ if *code == SqlState::READ_ONLY_SQL_TRANSACTION => StoreError::Unavailable(reason),
        // SQLSTATE classes of transactions, prepared statements and tables that are not in the state in which the store
        // left them
        "25" | "26" | "42" if is_of_statement => StoreError::Unavailable(reason),
        _ => return DbError::Unexplained(reason),
    })
}

/// Returns advice for the user about an error, as the end of its message, or an empty text.
pub(crate) fn advice_for(code: &SqlState) -> &'static str {
    if *code == SqlState::INVALID_SQL_STATEMENT_NAME || *code == SqlState::DUPLICATE_PSTATEMENT {
        "; a proxy that pools transactions seems to be in front of the server: add pooling=transaction to the URL"
    } else if *code == SqlState::UNDEFINED_TABLE {
        "; inspect the schema with: stepfast db check; if a proxy that pools transactions is in front of the server, \
         add pooling=transaction to the URL"
    } else if *code == SqlState::INSUFFICIENT_PRIVILEGE {
        "; the owner of the schema can grant the missing privileges: stepfast db migrate --role NAME"
    } else if *code == SqlState::READ_ONLY_SQL_TRANSACTION {
        "; this server is a standby: connect to the primary (target_session_attrs=read-write in the URL)"
    } else {
        ""
    }
}

/// Converts the error of a statement outside of flushes into a [`StoreError`].
pub(crate) fn store_error(action: &str, error: &Error) -> StoreError {
    match db_error(action, error) {
        DbError::Retry(reason) => StoreError::Unavailable(reason),
        error => error.into_store_error(),
    }
}

/// Converts an error of a transaction that is no flush. Such a transaction contains no Write that could be the cause,
/// so blocked and rejected transactions count as unavailable and may be retried.
pub(crate) fn unavailable_error(error: DbError) -> StoreError {
    match error.into_store_error() {
        StoreError::Blocked(reason) | StoreError::TableLocked(reason) | StoreError::Rejected(reason) => {
            StoreError::Unavailable(reason)
        }
        error => error,
    }
}

/// Converts an error of a query, as [`unavailable_error`] does, but preserves the error for a missing privilege, where
/// a retry cannot help.
pub(crate) fn query_error(error: DbError) -> StoreError {
    match error {
        DbError::PermissionDenied(reason) => StoreError::PermissionDenied(reason),
        error => unavailable_error(error),
    }
}

/// Returns the error for a value that the schema does not allow. `what` names its place, as in "a row".
pub(crate) fn corrupt(what: &str) -> StoreError {
    StoreError::Corrupt(format!(
        "{what} contains a value that Stepfast never writes: the database is damaged, or another program changed it"
    ))
}

/// Whether the client library could not encode a value. Any other error is an error of the connection.
fn is_encoding_error(error: &Error) -> bool {
    let text = error.to_string();
    text.starts_with("error serializing") || text.starts_with("error encoding")
}
