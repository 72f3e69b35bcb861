//! Sends several statements in one round trip, as one transaction.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;

use futures_util::StreamExt;
use stepfast_core::store::StoreError;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Error, Row};

use crate::conn::connector::commits_not_durable;
use crate::conn::parameters::parameter_types;
use crate::conn::session::{Session, TxPart};
use crate::conn::statements::{CHECKED_COMMIT, Sql};
use crate::error::{DbError, db_error};

/// A parameter of a statement.
pub(crate) type Param<'a> = Box<dyn ToSql + Send + Sync + 'a>;

/// Returns an array parameter with one value of each item.
pub(crate) fn column<'a, T, V>(items: &[T], value: impl Fn(&T) -> V) -> Param<'a>
where
    V: ToSql + Send + Sync + 'a,
{
    Box::new(items.iter().map(value).collect::<Vec<V>>())
}

/// Returns a parameter with this value.
pub(crate) fn param<'a>(value: impl ToSql + Send + Sync + 'a) -> Param<'a> {
    Box::new(value)
}

/// Returns an array parameter of names, or null if `names` is `None`.
pub(crate) fn optional_text_array(names: Option<&Arc<[Arc<str>]>>) -> Param<'static> {
    param(names.map(|names| names.iter().map(ToString::to_string).collect::<Vec<_>>()))
}

/// Returns an array parameter of names.
pub(crate) fn text_array(names: &Arc<[Arc<str>]>) -> Param<'static> {
    param(names.iter().map(ToString::to_string).collect::<Vec<_>>())
}

/// A statement with its parameters.
pub(crate) struct Query<'a> {
    /// The statement.
    pub sql: Sql,
    /// A description for error messages, such as "inserting timers".
    pub action: &'static str,
    /// The statement's parameters.
    pub params: Vec<Param<'a>>,
}

/// Returns the query that discards a session's plans, so that the server makes new ones.
pub(crate) fn discard_plans() -> Query<'static> {
    Query { sql: Sql::DiscardPlans, action: "discarding plans", params: Vec::new() }
}

/// The result of a query.
#[derive(Debug, Default)]
pub(crate) struct QueryResult {
    /// The rows that the query returned.
    pub rows: Vec<Row>,
    /// The number of rows that the query changed.
    pub affected_rows: u64,
}

type PendingResult<'a> = Pin<Box<dyn Future<Output = Result<QueryResult, Error>> + Send + 'a>>;

/// The state of a statement that is being sent.
enum SendState<'a> {
    Pending(PendingResult<'a>),
    Done(Result<QueryResult, Error>),
    Unsent,
}

/// Sends all `queries` at once, in order, and returns their results.
///
/// For a part that commits, `Ok` means that every statement succeeded and that the server committed. After an error
/// the transaction is open and aborted, or the connection is lost: see [`roll_back`].
pub(crate) async fn run(
    session: &Session,
    part: TxPart,
    queries: &[Query<'_>],
) -> Result<Vec<QueryResult>, DbError> {
    let wraps = session.wraps_in_transaction(part);
    let commits = wraps || part.commits();
    let mut result = send(session, part, commits, queries).await;
    if session.take_unreplicated() && commits && result.is_ok() {
        let reason = "committed, but the wait for the synchronous standbys was cancelled";
        result = Err(StoreError::Unavailable(reason.into()).into());
    }
    if let Err(DbError::Unexplained(_) | DbError::Store(StoreError::Unavailable(_))) = &result {
        session.mark_unusable();
    }
    if wraps && result.is_err() {
        // the sender of standalone statements expects no open transaction after them
        roll_back(session).await;
    }
    result
}

async fn send(
    session: &Session,
    part: TxPart,
    commits: bool,
    queries: &[Query<'_>],
) -> Result<Vec<QueryResult>, DbError> {
    let client = &session.client;
    let begin = session.begin_statement(part);
    let mut states = Vec::with_capacity(queries.len() + 2);
    if let Some(begin) = &begin {
        states.push(SendState::Pending(Box::pin(execute_text(client, begin))));
    }
    for query in queries {
        let statement = session.statement(query.sql)?;
        states.push(SendState::Pending(Box::pin(async move {
            let params = query.params.iter().map(|param| param.as_ref() as &(dyn ToSql + Sync));
            let stream = match statement {
                Some(statement) => client.query_raw(statement, params).await?,
                None => {
                    client
                        .query_typed_raw(
                            query.sql.text(),
                            params.zip(parameter_types(query.sql).iter().cloned()),
                        )
                        .await?
                }
            };
            let mut stream = pin!(stream);
            let mut rows = Vec::new();
            while let Some(row) = stream.next().await {
                rows.push(row?);
            }
            let affected_rows = stream.rows_affected().unwrap_or(0);
            Ok(QueryResult { rows, affected_rows })
        })));
    }
    if commits {
        states.push(SendState::Pending(Box::pin(execute_text(client, CHECKED_COMMIT))));
    }
    drive_all(&mut states, commits).await;

    let first = usize::from(begin.is_some());
    let name = |i: usize| match i.checked_sub(first).and_then(|i| queries.get(i)) {
        Some(query) => query.action,
        None if i < first => "beginning a transaction",
        None => "committing",
    };
    // an error at the transaction's begin or end belongs to no query; after an error at the end, the transaction may
    // have been committed
    let error_at = |i: usize, error: &Error| match db_error(name(i), error) {
        DbError::Unexplained(reason) | DbError::Cancelled(reason)
            if !(first..first + queries.len()).contains(&i) =>
        {
            StoreError::Unavailable(reason).into()
        }
        other => other,
    };
    let is_fence = |i: usize| {
        i.checked_sub(first).and_then(|i| queries.get(i)).is_some_and(|query| query.sql == Sql::Fence)
    };
    let mut results = Vec::with_capacity(queries.len());
    let mut aborted = None;
    for (i, state) in states.into_iter().enumerate() {
        match state {
            SendState::Done(Ok(result)) => results.push(result),
            // after the first error, all later statements fail with this code
            SendState::Done(Err(error)) if error.code() == Some(&SqlState::IN_FAILED_SQL_TRANSACTION) => {
                aborted.get_or_insert_with(|| error_at(i, &error));
            }
            SendState::Done(Err(error)) => {
                if is_fence(i) && error.code() == Some(&SqlState::DIVISION_BY_ZERO) {
                    return Err(DbError::Fenced);
                }
                if is_fence(i) && error.code() == Some(&SqlState::INVALID_TEXT_REPRESENTATION) {
                    return Err(commits_not_durable().into());
                }
                return Err(error_at(i, &error));
            }
            SendState::Pending(_) | SendState::Unsent => {
                return Err(StoreError::Unavailable("a transaction was abandoned".into()).into());
            }
        }
    }
    if let Some(error) = aborted {
        return Err(error);
    }
    results.drain(..first);
    results.truncate(queries.len());
    Ok(results)
}

/// Rolls back an aborted transaction, so that the session can be used again. Returns false if the session must be
/// dropped.
pub(crate) async fn roll_back(session: &Session) -> bool {
    !session.is_closed() && session.client.batch_execute("ROLLBACK").await.is_ok()
}

async fn execute_text(client: &Client, sql: &str) -> Result<QueryResult, Error> {
    client.batch_execute(sql).await.map(|()| QueryResult::default())
}

/// Drives all statements to their results. The first round sends them in order. If one of them could not be sent, the
/// COMMIT is not sent either, because it would commit the other statements without that one.
async fn drive_all(states: &mut [SendState<'_>], commits: bool) {
    let last = states.len().saturating_sub(1);
    let mut is_first_round = true;
    poll_fn(|cx| {
        let mut is_pending = false;
        for i in 0..states.len() {
            if is_first_round && commits && i == last {
                let failed = states[..i].iter().any(|state| matches!(state, SendState::Done(Err(_))));
                if failed {
                    states[i] = SendState::Unsent;
                    continue;
                }
            }
            if let SendState::Pending(future) = &mut states[i] {
                match future.as_mut().poll(cx) {
                    Poll::Ready(result) => states[i] = SendState::Done(result),
                    Poll::Pending => is_pending = true,
                }
            }
        }
        is_first_round = false;
        if is_pending { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
}
