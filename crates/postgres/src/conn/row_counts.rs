//! Counts the rows that the statements of a transaction changed, for the store's counters.

use std::collections::HashSet;

use stepfast_core::Key;
use stepfast_core::store::StoreError;
use stepfast_core::store::counters::{Counters, Table};
use stepfast_core::text::escape_controls;
use uuid::Uuid;

use crate::conn::pipeline::{Query, QueryResult};
use crate::conn::statements::Sql;
use crate::error::{corrupt, store_error};
use crate::rows::Columns;
use crate::rows::types::to_key;

/// Returns the row of a statement that always returns exactly one row.
pub(crate) fn single_row(result: &QueryResult) -> Result<&tokio_postgres::Row, StoreError> {
    result.rows.first().ok_or_else(|| corrupt("a query result"))
}

/// Reads a row with a count and an array of execution keys. Returns `None` for a null array.
pub(crate) fn keys_and_count(result: &QueryResult) -> Result<(Option<HashSet<Key>>, u64), StoreError> {
    let mut row = Columns::new(single_row(result)?);
    let count: i64 = row.next()?;
    let keys: Option<Vec<Uuid>> = row.next()?;
    Ok((keys.map(|keys| keys.into_iter().map(to_key).collect()), count.unsigned_abs()))
}

/// Reads the result of `finish.sql`: the keys of the executions that ended, or `None` if all have ended, and their
/// number.
pub(crate) fn finished_keys_and_count(
    result: &QueryResult,
) -> Result<(Option<HashSet<Key>>, u64), StoreError> {
    let mut row = Columns::new(single_row(result)?);
    let keys: Option<Vec<Uuid>> = row.next()?;
    let count: i64 = row.next()?;
    Ok((keys.map(|keys| keys.into_iter().map(to_key).collect()), count as u64))
}

/// Adds the row changes of a committed transaction to `counters`.
pub(crate) fn count_changes(
    counters: &Counters,
    queries: &[Query<'_>],
    results: &[QueryResult],
) -> Result<(), StoreError> {
    counters.add_statements(queries.len() as u64 + 2);
    for (query, result) in queries.iter().zip(results) {
        let rows = result.affected_rows;
        match query.sql {
            Sql::Finish => counters.add_updated(Table::Executions, finished_keys_and_count(result)?.1),
            Sql::Transition | Sql::RequeueRequested | Sql::Cancel | Sql::Resume => {
                counters.add_updated(Table::Executions, rows);
            }
            Sql::StartRunning | Sql::StartEnded | Sql::StartNamed | Sql::Start => {
                counters.add_inserted(Table::Executions, rows);
            }
            Sql::InsertCheckpoints => counters.add_inserted(Table::Checkpoints, keys_and_count(result)?.1),
            Sql::RetractFailures => counters.add_deleted(Table::Checkpoints, rows),
            Sql::InsertAttributes => counters.add_inserted(Table::Attributes, rows),
            Sql::InsertAttempts => counters.add_inserted(Table::Attempts, keys_and_count(result)?.1),
            Sql::InsertChunks => counters.add_inserted(Table::Chunks, rows),
            Sql::DeleteChunks => counters.add_deleted(Table::Chunks, rows),
            Sql::StartQueued => {
                counters.add_inserted(Table::Executions, rows);
                counters.add_inserted(Table::Ready, rows);
            }
            Sql::DrainInbox => {
                let mut row = Columns::new(single_row(result)?);
                let (picked, started): (i64, i64) = (row.next()?, row.next()?);
                counters.add_inserted(Table::Executions, started.unsigned_abs());
                counters.add_inserted(Table::Ready, row.next::<i64>()?.unsigned_abs());
                counters.add_inserted(Table::Timers, row.next::<i64>()?.unsigned_abs());
                counters.add_inserted(Table::Attributes, row.next::<i64>()?.unsigned_abs());
                let dead: Vec<&str> = row.next()?;
                for letter in &dead {
                    tracing::warn!(
                        letter = escape_controls(letter),
                        "moved an inbox row to the dead letters: see stepfast queue dead-letters"
                    );
                }
                let duplicates = picked - started - dead.len() as i64;
                if duplicates > 0 {
                    tracing::info!(starts = duplicates, "skipped inbox rows whose executions already exist");
                }
            }
            Sql::StartDebounced => {
                let mut new = 0;
                for row in &result.rows {
                    new +=
                        u64::from(row.try_get::<_, bool>("is_new").map_err(|_| corrupt("a query result"))?);
                }
                counters.add_inserted(Table::Executions, new);
                counters.add_inserted(Table::Timers, new);
                counters.add_updated(Table::Executions, result.rows.len() as u64 - new);
            }
            Sql::StartSelfClaiming => {
                let mut row = Columns::new(single_row(result)?);
                let _: Vec<&str> = row.next()?;
                counters.add_inserted(Table::Executions, row.next::<i64>()? as u64);
                counters.add_inserted(Table::Ready, row.next::<i64>()? as u64);
            }
            Sql::Ready | Sql::ReadyResumed => counters.add_inserted(Table::Ready, rows),
            Sql::TakeSlots => counters.add_inserted(Table::Slots, rows),
            Sql::FreeSlots => counters.add_deleted(Table::Slots, rows),
            Sql::InsertTimers => counters.add_inserted(Table::Timers, rows),
            Sql::InsertWaits => counters.add_inserted(Table::Waits, rows),
            Sql::InsertRequests => counters.add_inserted(Table::Requests, rows),
            Sql::ClearRequests | Sql::DeletePauses => counters.add_deleted(Table::Requests, rows),
            Sql::SettlePauses => {
                let deleted: i64 = Columns::new(single_row(result)?).next()?;
                counters.add_deleted(Table::Requests, deleted.unsigned_abs());
            }
            Sql::DeleteRequests => {
                let (cancelled, deleted) = keys_and_count(result)?;
                counters.add_deleted(Table::Requests, deleted);
                counters.add_updated(Table::Executions, cancelled.map_or(0, |keys| keys.len() as u64));
            }
            Sql::DeleteReady => counters.add_deleted(Table::Ready, rows),
            Sql::DeleteTimers => counters.add_deleted(Table::Timers, rows),
            Sql::DeleteWaits => counters.add_deleted(Table::Waits, rows),
            Sql::Wake | Sql::QueueDue | Sql::Claim | Sql::ClaimQuarantined => {
                count_moved_rows(counters, query.sql, result)?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// Counts the changes of a wake or claim statement. Such a statement changes several tables, and the last columns of
/// each row contain the totals.
fn count_moved_rows(counters: &Counters, sql: Sql, result: &QueryResult) -> Result<(), StoreError> {
    let Some(row) = result.rows.first() else { return Ok(()) };
    let total = |from_end: usize| -> Result<u64, StoreError> {
        let column = row.len().checked_sub(from_end).ok_or_else(|| corrupt("a count"))?;
        let count: i64 = row.try_get(column).map_err(|error| store_error("reading a count", &error))?;
        Ok(count as u64)
    };
    let rows = result.rows.len() as u64;
    counters.add_updated(Table::Executions, rows);
    if matches!(sql, Sql::Wake | Sql::QueueDue) {
        counters.add_inserted(Table::Ready, rows);
    } else {
        counters.add_deleted(Table::Ready, total(3)?);
    }
    counters.add_deleted(Table::Timers, total(2)?);
    counters.add_deleted(Table::Waits, total(1)?);
    Ok(())
}
