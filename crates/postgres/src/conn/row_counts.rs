//! Counts the rows that the statements of a transaction changed, for the store's counters.

use stepfast_core::store::StoreError;
use stepfast_core::store::counters::{Counters, Table};
use stepfast_core::text::escape_controls;

use crate::conn::pipeline::{Query, QueryResult};
use crate::conn::statements::Sql;
use crate::error::{corrupt, store_error};
use crate::rows::Columns;

/// Returns the row of a statement that always returns exactly one row.
pub(crate) fn single_row(result: &QueryResult) -> Result<&tokio_postgres::Row, StoreError> {
    result.rows.first().ok_or_else(|| corrupt("a query result"))
}

/// Reads a count from a column of the single row of a result.
fn count(result: &QueryResult, column: usize) -> Result<u64, StoreError> {
    let count = single_row(result)?.try_get::<_, i64>(column);
    count.map(i64::unsigned_abs).map_err(|error| store_error("reading a count", &error))
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
            Sql::Finish | Sql::Transition => counters.add_updated(Table::Executions, count(result, 0)?),
            Sql::RequeueRequested | Sql::Cancel | Sql::Resume => {
                counters.add_updated(Table::Executions, rows);
            }
            Sql::StartRunning | Sql::StartEnded => counters.add_inserted(Table::Executions, rows),
            Sql::StartNamed | Sql::Start => counters.add_inserted(Table::Executions, count(result, 0)?),
            Sql::InsertBatches => counters.add_inserted(Table::Batches, rows),
            Sql::InsertRetriedItems => counters.add_inserted(Table::Bundles, rows),
            Sql::StartBundles => {
                counters.add_inserted(Table::Executions, count(result, 0)?);
                counters.add_inserted(Table::Bundles, count(result, 0)?);
            }
            Sql::CloseBatches => counters.add_updated(Table::Batches, count(result, 0)?),
            Sql::EndBatches => {
                counters.add_updated(Table::Executions, count(result, 0)?);
                counters.add_deleted(Table::Batches, count(result, 0)?);
            }
            Sql::DeleteBatches => counters.add_deleted(Table::Batches, rows),
            Sql::InsertPacks => counters.add_inserted(Table::Packs, rows),
            Sql::InsertCheckpoints => counters.add_inserted(Table::Checkpoints, count(result, 0)?),
            Sql::RetractFailures => counters.add_deleted(Table::Checkpoints, rows),
            Sql::InsertAttributes => counters.add_inserted(Table::Attributes, rows),
            Sql::InsertAttempts => counters.add_inserted(Table::Attempts, count(result, 0)?),
            Sql::InsertChunks => counters.add_inserted(Table::Chunks, rows),
            Sql::DeleteChunks | Sql::WithdrawValues => counters.add_deleted(Table::Chunks, rows),
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
                let (new, all) = (count(result, 0)?, count(result, 1)?);
                counters.add_inserted(Table::Executions, new);
                counters.add_inserted(Table::Timers, new);
                counters.add_updated(Table::Executions, all - new);
            }
            Sql::StartSelfClaiming => {
                counters.add_inserted(Table::Executions, count(result, 0)?);
                counters.add_inserted(Table::Ready, count(result, 1)?);
            }
            Sql::Ready | Sql::ReadyResumed => counters.add_inserted(Table::Ready, rows),
            Sql::TakeSlots => counters.add_inserted(Table::Slots, rows),
            Sql::FreeSlots => counters.add_deleted(Table::Slots, rows),
            Sql::InsertTimers => counters.add_inserted(Table::Timers, rows),
            Sql::InsertWaits => counters.add_inserted(Table::Waits, rows),
            Sql::InsertRequests => counters.add_inserted(Table::Requests, rows),
            Sql::ClearRequests | Sql::DeletePauses => counters.add_deleted(Table::Requests, rows),
            Sql::SettlePauses => {
                counters.add_deleted(Table::Requests, count(result, 0)?);
            }
            Sql::DeleteRequests => {
                counters.add_deleted(Table::Requests, count(result, 0)?);
                counters.add_updated(Table::Executions, count(result, 1)?);
            }
            Sql::DeleteReady => counters.add_deleted(Table::Ready, rows),
            Sql::DeleteTimers => counters.add_deleted(Table::Timers, rows),
            Sql::SendMessages => {
                counters.add_inserted(Table::Messages, count(result, 0)?);
                counters.add_inserted(Table::MessageIds, count(result, 1)?);
            }
            Sql::ForwardMessages => {
                counters.add_updated(Table::Messages, count(result, 0)?);
                counters.add_inserted(Table::MessageIds, count(result, 1)?);
            }
            Sql::DeleteMessages => counters.add_deleted(Table::Messages, rows),
            Sql::DeleteWaits => counters.add_deleted(Table::Waits, rows),
            Sql::Wake => {
                counters.add_updated(Table::Executions, count(result, 0)?);
                counters.add_inserted(Table::Ready, count(result, 0)?);
                counters.add_deleted(Table::Timers, count(result, 1)?);
                counters.add_deleted(Table::Waits, count(result, 2)?);
            }
            Sql::QueueDue | Sql::Claim | Sql::ClaimQuarantined => {
                count_moved_rows(counters, query.sql, result)?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// Counts the changes of a claim's statement. Such a statement changes several tables, and the last columns of
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
    if sql == Sql::QueueDue {
        counters.add_inserted(Table::Ready, rows);
    } else {
        counters.add_deleted(Table::Ready, total(3)?);
    }
    counters.add_deleted(Table::Timers, total(2)?);
    counters.add_deleted(Table::Waits, total(1)?);
    Ok(())
}
