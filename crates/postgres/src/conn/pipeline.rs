//! Several statements in one round trip, as one transaction.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;

use futures_util::StreamExt;
use stepfast_core::store::StoreError;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Error, Row};

use crate::conn::connector::not_flushed;
use crate::conn::parameters::types;
use crate::conn::session::{TxPart, Session};
use crate::conn::statements::{COMMIT, Sql};
use crate::error::{DbError, db_error};

/// A value bound to a statement.
pub(crate) type Param<'a> = Box<dyn ToSql + Send + Sync + 'a>;

/// One column of `items`.
pub(crate) fn column<'a, T, V>(items: &[T], value: impl Fn(&T) -> V) -> Param<'a>
where
    V: ToSql + Send + Sync + 'a,
{
    Box::new(items.iter().map(value).collect::<Vec<V>>())
}

/// One value.
pub(crate) fn param<'a>(value: impl ToSql + Send + Sync + 'a) -> Param<'a> {
    Box::new(value)
}

/// Names as an array, where they are given.
pub(crate) fn optional_text_array(names: Option<&Arc<[Arc<str>]>>) -> Param<'static> {
    param(names.map(|names| names.iter().map(ToString::to_string).collect::<Vec<_>>()))
}

/// Names as an array.
pub(crate) fn text_array(names: &Arc<[Arc<str>]>) -> Param<'static> {
    param(names.iter().map(ToString::to_string).collect::<Vec<_>>())
}

/// A statement to execute.
pub(crate) struct Query<'a> {
    /// Which.
    pub sql: Sql,
    /// What it is for, in words for people.
    pub action: &'static str,
    /// Its values.
    pub params: Vec<Param<'a>>,
}

/// Makes new plans.
pub(crate) fn discard_plans() -> Query<'static> {
    Query { sql: Sql::Replan, action: "making new plans", params: Vec::new() }
}

/// What a statement answered.
#[derive(Debug, Default)]
pub(crate) struct QueryResult {
    /// Its rows.
    pub rows: Vec<Row>,
    /// How many rows it changed.
    pub affected_rows: u64,
}

type PendingResult<'a> = Pin<Box<dyn Future<Output = Result<QueryResult, Error>> + Send + 'a>>;

enum SendState<'a> {
    Pending(PendingResult<'a>),
    Done(Result<QueryResult, Error>),
    Unsent,
}

/// Sends all of `jobs` at once, in order, and returns their answers.
///
/// `Ok` of a part that commits means that every statement succeeded and that the server committed. After
/// an error the transaction is open and aborted, or the connection is lost: see [`roll_back`].
pub(crate) async fn run(session: &Session, part: TxPart, jobs: &[Query<'_>]) -> Result<Vec<QueryResult>, DbError> {
    let wraps = session.wraps_in_transaction(part);
    let commits = wraps || part.commits();
    let mut result = send(session, part, commits, jobs).await;
    if session.take_unreplicated() && commits && result.is_ok() {
        let reason = "committed, but somebody cancelled the wait for the synchronous standbys";
        result = Err(StoreError::Unavailable(reason.into()).into());
    }
    if let Err(DbError::Unexplained(_) | DbError::Store(StoreError::Unavailable(_))) = &result {
        session.mark_unusable();
    }
    if wraps && result.is_err() {
        // whoever sent statements on their own expects no transaction behind them
        roll_back(session).await;
    }
    result
}

async fn send(
    session: &Session,
    part: TxPart,
    commits: bool,
    jobs: &[Query<'_>],
) -> Result<Vec<QueryResult>, DbError> {
    let client = &session.client;
    let begin = session.begin_statement(part);
    let mut slots = Vec::with_capacity(jobs.len() + 2);
    if let Some(begin) = &begin {
        slots.push(SendState::Pending(Box::pin(execute_text(client, begin))));
    }
    for job in jobs {
        let statement = session.statement(job.sql)?;
        slots.push(SendState::Pending(Box::pin(async move {
            let params = job.params.iter().map(|param| param.as_ref() as &(dyn ToSql + Sync));
            let stream = match statement {
                Some(statement) => client.query_raw(statement, params).await?,
                None => {
                    client.query_typed_raw(job.sql.text(), params.zip(types(job.sql).iter().cloned())).await?
                }
            };
            let mut stream = pin!(stream);
            let mut rows = Vec::new();
            while let Some(row) = stream.next().await {
                rows.push(row?);
            }
            let affected = stream.rows_affected().unwrap_or(0);
            Ok(QueryResult { rows, affected_rows: affected })
        })));
    }
    if commits {
        slots.push(SendState::Pending(Box::pin(execute_text(client, COMMIT))));
    }
    drive_all(&mut slots, commits).await;

    let first = usize::from(begin.is_some());
    let name = |i: usize| match i.checked_sub(first).and_then(|i| jobs.get(i)) {
        Some(job) => job.action,
        None if i < first => "beginning a transaction",
        None => "committing",
    };
    // what the transaction's begin and end report is no item's, and behind a COMMIT it may have happened
    let trouble_at = |i: usize, error: &Error| match db_error(name(i), error) {
        DbError::Unexplained(reason) | DbError::Cancelled(reason) if !(first..first + jobs.len()).contains(&i) => {
            StoreError::Unavailable(reason).into()
        }
        trouble => trouble,
    };
    let is_fence =
        |i: usize| i.checked_sub(first).and_then(|i| jobs.get(i)).is_some_and(|job| job.sql == Sql::Fence);
    let mut answers = Vec::with_capacity(jobs.len());
    let mut aborted = None;
    for (i, slot) in slots.into_iter().enumerate() {
        match slot {
            SendState::Done(Ok(answer)) => answers.push(answer),
            // whatever follows the first error fails with this one
            SendState::Done(Err(error)) if error.code() == Some(&SqlState::IN_FAILED_SQL_TRANSACTION) => {
                aborted.get_or_insert_with(|| trouble_at(i, &error));
            }
            SendState::Done(Err(error)) => {
                if is_fence(i) && error.code() == Some(&SqlState::DIVISION_BY_ZERO) {
                    return Err(DbError::Fenced);
                }
                if is_fence(i) && error.code() == Some(&SqlState::INVALID_TEXT_REPRESENTATION) {
                    return Err(not_flushed().into());
                }
                return Err(trouble_at(i, &error));
            }
            SendState::Pending(_) | SendState::Unsent => {
                return Err(StoreError::Unavailable("a transaction was given up".into()).into());
            }
        }
    }
    if let Some(trouble) = aborted {
        return Err(trouble);
    }
    answers.drain(..first);
    answers.truncate(jobs.len());
    Ok(answers)
}

/// Ends an aborted transaction, so that the session can be used again. False: drop the session.
pub(crate) async fn roll_back(session: &Session) -> bool {
    !session.is_closed() && session.client.batch_execute("ROLLBACK").await.is_ok()
}

async fn execute_text(client: &Client, sql: &str) -> Result<QueryResult, Error> {
    client.batch_execute(sql).await.map(|()| QueryResult::default())
}

/// Drives all slots to their end. The first round sends them in order; a statement that could not be sent
/// keeps the COMMIT behind it from being sent, which would commit without it.
async fn drive_all(slots: &mut [SendState<'_>], commits: bool) {
    let last = slots.len().saturating_sub(1);
    let mut is_first_round = true;
    poll_fn(|cx| {
        let mut is_pending = false;
        for i in 0..slots.len() {
            if is_first_round && commits && i == last {
                let failed = slots[..i].iter().any(|slot| matches!(slot, SendState::Done(Err(_))));
                if failed {
                    slots[i] = SendState::Unsent;
                    continue;
                }
            }
            if let SendState::Pending(future) = &mut slots[i] {
                match future.as_mut().poll(cx) {
                    Poll::Ready(result) => slots[i] = SendState::Done(result),
                    Poll::Pending => is_pending = true,
                }
            }
        }
        is_first_round = false;
        if is_pending { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
}
