//! How many rows the statements of a transaction have changed, for the counters of the store.

use std::collections::HashSet;

use stepfast_core::Key;
use stepfast_core::store::StoreError;
use stepfast_core::store::counters::{Counters, Table};
use stepfast_core::text::printable;
use uuid::Uuid;

use crate::conn::pipeline::{Answer, Job};
use crate::conn::statements::Sql;
use crate::error::{damaged, store_error};
use crate::rows::Columns;
use crate::rows::types::key;

pub(crate) fn first(answer: &Answer) -> Result<&tokio_postgres::Row, StoreError> {
    answer.rows.first().ok_or_else(|| damaged("an answer"))
}

/// Which executions an answer names, if any, and the count in front of them.
pub(crate) fn counted(answer: &Answer) -> Result<(Option<HashSet<Key>>, u64), StoreError> {
    let mut row = Columns::of(first(answer)?);
    let count: i64 = row.next()?;
    let keys: Option<Vec<Uuid>> = row.next()?;
    Ok((keys.map(|keys| keys.into_iter().map(key).collect()), count.unsigned_abs()))
}

/// Which executions have ended, if those are not all, and how many.
pub(crate) fn ended(answer: &Answer) -> Result<(Option<HashSet<Key>>, u64), StoreError> {
    let mut row = Columns::of(first(answer)?);
    let keys: Option<Vec<Uuid>> = row.next()?;
    let count: i64 = row.next()?;
    Ok((keys.map(|keys| keys.into_iter().map(key).collect()), count as u64))
}

/// Counts what a committed transaction changed.
pub(crate) fn count(counters: &Counters, jobs: &[Job<'_>], answers: &[Answer]) -> Result<(), StoreError> {
    counters.statements(jobs.len() as u64 + 2);
    for (job, answer) in jobs.iter().zip(answers) {
        let rows = answer.affected;
        match job.sql {
            Sql::MoveEnded => counters.updated(Table::Executions, ended(answer)?.1),
            Sql::Move | Sql::Heed | Sql::Cancel | Sql::Resume => {
                counters.updated(Table::Executions, rows);
            }
            Sql::StartRunning | Sql::StartEnded | Sql::StartNamed | Sql::Start => {
                counters.inserted(Table::Executions, rows);
            }
            Sql::Checkpoint => counters.inserted(Table::Checkpoints, counted(answer)?.1),
            Sql::Withdraw => counters.deleted(Table::Checkpoints, rows),
            Sql::Attribute => counters.inserted(Table::Attributes, rows),
            Sql::Attempt => counters.inserted(Table::Attempts, counted(answer)?.1),
            Sql::Chunk => counters.inserted(Table::Chunks, rows),
            Sql::Discard => counters.deleted(Table::Chunks, rows),
            Sql::StartQueued => {
                counters.inserted(Table::Executions, rows);
                counters.inserted(Table::Ready, rows);
            }
            Sql::Receive => {
                let mut row = Columns::of(first(answer)?);
                let (picked, started): (i64, i64) = (row.next()?, row.next()?);
                counters.inserted(Table::Executions, started.unsigned_abs());
                counters.inserted(Table::Ready, row.next::<i64>()?.unsigned_abs());
                counters.inserted(Table::Timers, row.next::<i64>()?.unsigned_abs());
                counters.inserted(Table::Attributes, row.next::<i64>()?.unsigned_abs());
                let dead: Vec<&str> = row.next()?;
                for letter in &dead {
                    tracing::warn!(
                        letter = printable(letter),
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
                    new += u64::from(row.try_get::<_, bool>("is_new").map_err(|_| damaged("an answer"))?);
                }
                counters.inserted(Table::Executions, new);
                counters.inserted(Table::Timers, new);
                counters.updated(Table::Executions, answer.rows.len() as u64 - new);
            }
            Sql::StartYielding => {
                let mut row = Columns::of(first(answer)?);
                let _: Vec<&str> = row.next()?;
                counters.inserted(Table::Executions, row.next::<i64>()? as u64);
                counters.inserted(Table::Ready, row.next::<i64>()? as u64);
            }
            Sql::Ready | Sql::ReadyAgain => counters.inserted(Table::Ready, rows),
            Sql::Slot => counters.inserted(Table::Slots, rows),
            Sql::Unslot => counters.deleted(Table::Slots, rows),
            Sql::Timer => counters.inserted(Table::Timers, rows),
            Sql::Wait => counters.inserted(Table::Waits, rows),
            Sql::Request => counters.inserted(Table::Requests, rows),
            Sql::Answer => counters.deleted(Table::Requests, rows),
            Sql::Forget => {
                let (cancelled, deleted) = counted(answer)?;
                counters.deleted(Table::Requests, deleted);
                counters.updated(Table::Executions, cancelled.map_or(0, |keys| keys.len() as u64));
            }
            Sql::Unready => counters.deleted(Table::Ready, rows),
            Sql::Untimer => counters.deleted(Table::Timers, rows),
            Sql::Unwait => counters.deleted(Table::Waits, rows),
            Sql::Wake | Sql::Admit | Sql::Take | Sql::TakeQuarantined => {
                count_taken(counters, job.sql, answer)?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// Wakes and claims change several tables in one statement; each row carries the totals at its end.
fn count_taken(counters: &Counters, sql: Sql, answer: &Answer) -> Result<(), StoreError> {
    let Some(row) = answer.rows.first() else { return Ok(()) };
    let total = |back: usize| -> Result<u64, StoreError> {
        let column = row.len().checked_sub(back).ok_or_else(|| damaged("a count"))?;
        let count: i64 = row.try_get(column).map_err(|error| store_error("reading a count", &error))?;
        Ok(count as u64)
    };
    let rows = answer.rows.len() as u64;
    counters.updated(Table::Executions, rows);
    if matches!(sql, Sql::Wake | Sql::Admit) {
        counters.inserted(Table::Ready, rows);
    } else {
        counters.deleted(Table::Ready, total(3)?);
    }
    counters.deleted(Table::Timers, total(2)?);
    counters.deleted(Table::Waits, total(1)?);
    Ok(())
}
