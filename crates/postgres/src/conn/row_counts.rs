//! How many rows the statements of a transaction have changed, for the counters of the store.

use std::collections::HashSet;

use stepfast_core::Key;
use stepfast_core::store::StoreError;
use stepfast_core::store::counters::{Counters, Table};
use stepfast_core::text::escape_controls;
use uuid::Uuid;

use crate::conn::pipeline::{QueryResult, Query};
use crate::conn::statements::Sql;
use crate::error::{corrupt, store_error};
use crate::rows::Columns;
use crate::rows::types::key;

pub(crate) fn single_row(answer: &QueryResult) -> Result<&tokio_postgres::Row, StoreError> {
    answer.rows.first().ok_or_else(|| corrupt("an answer"))
}

/// Which executions an answer names, if any, and the count in front of them.
pub(crate) fn keys_and_count(answer: &QueryResult) -> Result<(Option<HashSet<Key>>, u64), StoreError> {
    let mut row = Columns::of(single_row(answer)?);
    let count: i64 = row.next()?;
    let keys: Option<Vec<Uuid>> = row.next()?;
    Ok((keys.map(|keys| keys.into_iter().map(key).collect()), count.unsigned_abs()))
}

/// Which executions have ended, if those are not all, and how many.
pub(crate) fn finished_keys_and_count(answer: &QueryResult) -> Result<(Option<HashSet<Key>>, u64), StoreError> {
    let mut row = Columns::of(single_row(answer)?);
    let keys: Option<Vec<Uuid>> = row.next()?;
    let count: i64 = row.next()?;
    Ok((keys.map(|keys| keys.into_iter().map(key).collect()), count as u64))
}

/// Counts what a committed transaction changed.
pub(crate) fn count_changes(counters: &Counters, jobs: &[Query<'_>], answers: &[QueryResult]) -> Result<(), StoreError> {
    counters.add_statements(jobs.len() as u64 + 2);
    for (job, answer) in jobs.iter().zip(answers) {
        let rows = answer.affected_rows;
        match job.sql {
            Sql::MoveEnded => counters.add_updated(Table::Executions, finished_keys_and_count(answer)?.1),
            Sql::Move | Sql::RequeueRequested | Sql::Cancel | Sql::Resume => {
                counters.add_updated(Table::Executions, rows);
            }
            Sql::StartRunning | Sql::StartEnded | Sql::StartNamed | Sql::Start => {
                counters.add_inserted(Table::Executions, rows);
            }
            Sql::Checkpoint => counters.add_inserted(Table::Checkpoints, keys_and_count(answer)?.1),
            Sql::Withdraw => counters.add_deleted(Table::Checkpoints, rows),
            Sql::Attribute => counters.add_inserted(Table::Attributes, rows),
            Sql::Attempt => counters.add_inserted(Table::Attempts, keys_and_count(answer)?.1),
            Sql::Chunk => counters.add_inserted(Table::Chunks, rows),
            Sql::Discard => counters.add_deleted(Table::Chunks, rows),
            Sql::StartQueued => {
                counters.add_inserted(Table::Executions, rows);
                counters.add_inserted(Table::Ready, rows);
            }
            Sql::Receive => {
                let mut row = Columns::of(single_row(answer)?);
                let (picked, started): (i64, i64) = (row.next()?, row.next()?);
                counters.add_inserted(Table::Executions, started.unsigned_abs());
                counters.add_inserted(Table::Ready, row.next::<i64>()?.unsigned_abs());
                counters.add_inserted(Table::Timers, row.next::<i64>()?.unsigned_abs());
                counters.add_inserted(Table::Attributes, row.next::<i64>()?.unsigned_abs());
                let dead: Vec<&str> = row.next()?;
                for letter in &dead {
                    tracing::warn!(
                        letter = escape_controls(letter),
                        "a row of the inbox becomes a dead letter: see stepfast queue dead-letters"
                    );
                }
                let there = picked - started - dead.len() as i64;
                if there > 0 {
                    tracing::info!(starts = there, "what was in the inbox was there already");
                }
            }
            Sql::Merge => {
                let mut new = 0;
                for row in &answer.rows {
                    new += u64::from(row.try_get::<_, bool>("is_new").map_err(|_| corrupt("an answer"))?);
                }
                counters.add_inserted(Table::Executions, new);
                counters.add_inserted(Table::Timers, new);
                counters.add_updated(Table::Executions, answer.rows.len() as u64 - new);
            }
            Sql::StartYielding => {
                let mut row = Columns::of(single_row(answer)?);
                let _: Vec<&str> = row.next()?;
                counters.add_inserted(Table::Executions, row.next::<i64>()? as u64);
                counters.add_inserted(Table::Ready, row.next::<i64>()? as u64);
            }
            Sql::Ready | Sql::ReadyAgain => counters.add_inserted(Table::Ready, rows),
            Sql::Slot => counters.add_inserted(Table::Slots, rows),
            Sql::Unslot => counters.add_deleted(Table::Slots, rows),
            Sql::Timer => counters.add_inserted(Table::Timers, rows),
            Sql::Wait => counters.add_inserted(Table::Waits, rows),
            Sql::Request => counters.add_inserted(Table::Requests, rows),
            Sql::Answer => counters.add_deleted(Table::Requests, rows),
            Sql::Forget => {
                let (cancelled, deleted) = keys_and_count(answer)?;
                counters.add_deleted(Table::Requests, deleted);
                counters.add_updated(Table::Executions, cancelled.map_or(0, |keys| keys.len() as u64));
            }
            Sql::Unready => counters.add_deleted(Table::Ready, rows),
            Sql::Untimer => counters.add_deleted(Table::Timers, rows),
            Sql::Unwait => counters.add_deleted(Table::Waits, rows),
            Sql::Wake | Sql::Admit | Sql::Take | Sql::TakeQuarantined => {
                count_moved_rows(counters, job.sql, answer)?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// Wakes and claims change several tables in one statement; each row carries the totals at its end.
fn count_moved_rows(counters: &Counters, sql: Sql, answer: &QueryResult) -> Result<(), StoreError> {
    let Some(row) = answer.rows.first() else { return Ok(()) };
    let total = |back: usize| -> Result<u64, StoreError> {
        let column = row.len().checked_sub(back).ok_or_else(|| corrupt("a count"))?;
        let count: i64 = row.try_get(column).map_err(|error| store_error("reading a count", &error))?;
        Ok(count as u64)
    };
    let rows = answer.rows.len() as u64;
    counters.add_updated(Table::Executions, rows);
    if matches!(sql, Sql::Wake | Sql::Admit) {
        counters.add_inserted(Table::Ready, rows);
    } else {
        counters.add_deleted(Table::Ready, total(3)?);
    }
    counters.add_deleted(Table::Timers, total(2)?);
    counters.add_deleted(Table::Waits, total(1)?);
    Ok(())
}
