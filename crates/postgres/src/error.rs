//! What the server's errors mean to the engine.

use stepfast_core::store::StoreError;
use tokio_postgres::Error;
use tokio_postgres::error::SqlState;

/// What the statement is for that fails if a queue has a maximal depth.
pub(crate) const DEPTH_LIMIT_CHECK: &str = "seeing that queues have no maximal depth";

/// What went wrong with a statement, before it is known what it means for the whole.
#[derive(Debug)]
pub(crate) enum DbError {
    /// The fence's compare-and-set matched nothing.
    Fenced,
    /// The transaction lost against another one and may be tried again as it is.
    Retry(String),
    /// It puts something into a queue whose maximal depth was not known of.
    DepthLimited,
    /// The role may not do that. A worker tries on: it may be granted.
    PermissionDenied(String),
    /// A statement was cancelled: by its limit in time, or by somebody.
    Cancelled(String),
    /// The server reports an error that neither its state nor a known property of an item explains. Nothing has
    /// happened. The session is not used again.
    Unexplained(String),
    /// Anything else.
    Store(StoreError),
}

impl DbError {
    /// The error for the engine, where no retry is left.
    pub(crate) fn into_store_error(self) -> StoreError {
        match self {
            DbError::Fenced => StoreError::Fenced,
            DbError::Retry(reason) => StoreError::Blocked(reason),
            DbError::DepthLimited => StoreError::Blocked("a queue has a maximal depth now".into()),
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

/// What an error of the server or the connection means; `what` says what was attempted.
pub(crate) fn db_error(what: &str, error: &Error) -> DbError {
    let Some(database) = error.as_db_error() else {
        return DbError::Store(if is_encoding_error(error) {
            StoreError::Rejected(format!("{what}: a value cannot be sent ({error})"))
        } else {
            StoreError::Unavailable(format!("{what}: the connection was lost"))
        });
    };
    let code = database.code();
    let class = code.code().get(..2).unwrap_or_default();
    let reason = format!("{what}: {} (SQLSTATE {}){}", database.message(), code.code(), advice_for(code));
    if *code == SqlState::LOCK_NOT_AVAILABLE {
        return DbError::Store(StoreError::Blocked(reason));
    }
    if *code == SqlState::T_R_DEADLOCK_DETECTED || *code == SqlState::T_R_SERIALIZATION_FAILURE {
        return DbError::Retry(reason);
    }
    if *code == SqlState::INSUFFICIENT_PRIVILEGE {
        return DbError::PermissionDenied(reason);
    }
    if *code == SqlState::DIVISION_BY_ZERO && what == DEPTH_LIMIT_CHECK {
        return DbError::DepthLimited;
    }
    if *code == SqlState::QUERY_CANCELED {
        return DbError::Cancelled(reason);
    }
    // an error without a context comes from the statement itself, which is the same for all items
    let is_of_statement = database.where_().is_none();
    DbError::Store(match class {
        // data exceptions, constraints, program limits, checks and triggers that somebody added
        "22" | "23" | "44" | "54" | "P0" => StoreError::Rejected(reason),
        "XX" if *code == SqlState::DATA_CORRUPTED || *code == SqlState::INDEX_CORRUPTED => {
            StoreError::Corrupt(reason)
        }
        // connections, resources, operators, disks
        "08" | "40" | "53" | "57" | "58" => StoreError::Unavailable(reason),
        _ if *code == SqlState::READ_ONLY_SQL_TRANSACTION => StoreError::Unavailable(reason),
        // transactions, prepared statements and tables that are not as the store has left them
        "25" | "26" | "42" if is_of_statement => StoreError::Unavailable(reason),
        _ => return DbError::Unexplained(reason),
    })
}

/// What to do about errors that come from how the store is connected.
pub(crate) fn advice_for(code: &SqlState) -> &'static str {
    if *code == SqlState::INVALID_SQL_STATEMENT_NAME || *code == SqlState::DUPLICATE_PSTATEMENT {
        "; a proxy that pools transactions seems to stand before the server: add pooling=transaction to the URL"
    } else if *code == SqlState::UNDEFINED_TABLE {
        "; see what is there with: stepfast db check; if a proxy that pools transactions stands before the server, \
         add pooling=transaction to the URL"
    } else if *code == SqlState::INSUFFICIENT_PRIVILEGE {
        "; the owner of the schema can grant what is missing: stepfast db migrate --role NAME"
    } else if *code == SqlState::READ_ONLY_SQL_TRANSACTION {
        "; this server is a standby: connect to the primary (target_session_attrs=read-write in the URL)"
    } else {
        ""
    }
}

/// What an error of a statement outside any flush means.
pub(crate) fn store_error(what: &str, error: &Error) -> StoreError {
    match db_error(what, error) {
        DbError::Retry(reason) => StoreError::Unavailable(reason),
        trouble => trouble.into_store_error(),
    }
}

/// Outside of flushes there is no item to blame: what is blocked or refused may be tried again.
pub(crate) fn unavailable_error(trouble: DbError) -> StoreError {
    match trouble.into_store_error() {
        StoreError::Blocked(reason) | StoreError::Rejected(reason) => StoreError::Unavailable(reason),
        error => error,
    }
}

/// The same for a question: what is not permitted has not happened, nor does it when tried again.
pub(crate) fn query_error(trouble: DbError) -> StoreError {
    match trouble {
        DbError::PermissionDenied(reason) => StoreError::PermissionDenied(reason),
        trouble => unavailable_error(trouble),
    }
}

/// A column that does not hold what the schema says.
pub(crate) fn corrupt(what: &str) -> StoreError {
    StoreError::Corrupt(format!("{what} holds what no version of the program writes"))
}

/// True for a value that the client cannot encode, as opposed to errors of the connection.
fn is_encoding_error(error: &Error) -> bool {
    let text = error.to_string();
    text.starts_with("error serializing") || text.starts_with("error encoding")
}
