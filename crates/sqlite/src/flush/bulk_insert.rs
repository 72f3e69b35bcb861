//! Batch inserts: many rows with one statement. A flush of thousands of Writes consists mostly of rows of three shapes.
//! Opening the tables once per [`BATCH_ROWS`] rows saves a third of the time per row.

use rusqlite::{CachedStatement, ToSql};
use stepfast_core::store::counters::Table;
use stepfast_core::store::{Checkpoint, Outcome, Start, State};

use crate::conn::statements::BATCH_ROWS;
use crate::error::{DbError, DbResult};
use crate::flush::apply::FlushApplier;
use crate::flush::row_batches::RowShape;
use crate::rows::key_bytes;
use crate::rows::payloads::ColumnValue;
use crate::rows::stripes::stripe_of;

impl<'f> FlushApplier<'_, 'f> {
    /// Collects a Start's row, and inserts the batch once it is full. Fails with `RetryRowByRow` if any of the rows
    /// exists already: the flush is then applied row by row.
    pub(crate) fn collect_start(&mut self, i: usize, start: &'f Start, shape: RowShape) -> DbResult<()> {
        let batch = &mut self.batches.starts[shape as usize];
        batch.push((i, start));
        if batch.len() == BATCH_ROWS {
            let starts = std::mem::take(batch);
            if self.insert_starts(shape, &starts)? < BATCH_ROWS as u64 {
                return Err(DbError::RetryRowByRow);
            }
            self.batches.starts[shape as usize] = clear(starts);
        }
        Ok(())
    }

    /// Collects a checkpoint's row, and inserts the batch once it is full.
    pub(crate) fn collect_checkpoint(&mut self, i: usize, checkpoint: &'f Checkpoint) -> DbResult<()> {
        self.batches.checkpoints.push((i, checkpoint));
        if self.batches.checkpoints.len() == BATCH_ROWS {
            let checkpoints = std::mem::take(&mut self.batches.checkpoints);
            if self.insert_checkpoints(&checkpoints)? < BATCH_ROWS as u64 {
                return Err(DbError::RetryRowByRow);
            }
            self.batches.checkpoints = clear(checkpoints);
        }
        Ok(())
    }

    /// Inserts the rows of incomplete batches one by one, and adds their outcomes. Then inserts the pending pieces of
    /// payloads.
    pub(crate) fn insert_remaining(&mut self, outcomes: &mut Vec<(usize, Outcome)>) -> DbResult<()> {
        for shape in [RowShape::Running, RowShape::Ended] {
            for (i, start) in std::mem::take(&mut self.batches.starts[shape as usize]) {
                outcomes.push((i, self.apply_start(start)?));
            }
        }
        for (i, checkpoint) in std::mem::take(&mut self.batches.checkpoints) {
            outcomes.push((i, self.apply_checkpoint(checkpoint)?));
        }
        self.pieces.insert_pending(&mut self.sql)
    }

    /// Inserts one row or [`BATCH_ROWS`] rows of Starts. Returns the number of inserted rows.
    pub(crate) fn insert_starts(&mut self, shape: RowShape, starts: &[(usize, &'f Start)]) -> DbResult<u64> {
        let owner = self.flush.worker.0;
        let pending_count = self.pieces.pending_count();
        for (row, (_, start)) in starts.iter().enumerate() {
            let input = self.pieces.column_value(&mut self.sql, &start.input)?;
            let outcome = match &start.state {
                State::Ended { outcome, .. } => self.pieces.column_value(&mut self.sql, outcome)?,
                _ => ColumnValue::Inline(None),
            };
            let statement = self.sql.get_uncounted(shape.sql(starts.len()))?;
            let at = row * shape.parameter_count();
            statement.raw_bind_parameter(at + 1, key_bytes(&start.key))?;
            statement.raw_bind_parameter(at + 2, start.created_at.as_micros())?;
            statement.raw_bind_parameter(at + 3, input.bytes())?;
            let is_first = bind_name(
                statement,
                at + 4,
                &mut self.batches.bound_names[shape as usize][row_index(row, starts.len())],
                &start.workflow,
            )?;
            if let State::Ended { status, at: ended_at, .. } = &start.state {
                statement.raw_bind_parameter(at + 5, *status as i64)?;
                statement.raw_bind_parameter(at + 6, ended_at.as_micros())?;
                statement.raw_bind_parameter(at + 7, outcome.bytes())?;
            } else if is_first {
                statement.raw_bind_parameter(at + 5, owner)?;
            }
        }
        let rows = self.sql.get(shape.sql(starts.len()))?.raw_execute()? as u64;
        self.sql.counts.inserted[Table::Executions as usize] += rows;
        if rows == 0 {
            self.pieces.discard_pending(pending_count);
        }
        Ok(rows)
    }

    /// Inserts one row or [`BATCH_ROWS`] rows of checkpoints. Returns the number of inserted rows.
    pub(crate) fn insert_checkpoints(&mut self, checkpoints: &[(usize, &'f Checkpoint)]) -> DbResult<u64> {
        let shape = RowShape::Checkpoint;
        let pending_count = self.pieces.pending_count();
        for (row, (_, checkpoint)) in checkpoints.iter().enumerate() {
            let outcome = self.pieces.column_value(&mut self.sql, checkpoint.stored_outcome())?;
            let statement = self.sql.get_uncounted(shape.sql(checkpoints.len()))?;
            let at = row * shape.parameter_count();
            statement.raw_bind_parameter(at + 2, key_bytes(&checkpoint.execution))?;
            statement.raw_bind_parameter(at + 3, checkpoint.path.as_bytes())?;
            let bound = &mut self.batches.bound_checkpoints[row_index(row, checkpoints.len())];
            bind_changed(statement, at + 1, &mut bound.stripe, stripe_of(&checkpoint.path))?;
            bind_changed(statement, at + 4, &mut bound.run_no, checkpoint.run_no)?;
            bind_changed(statement, at + 5, &mut bound.order, checkpoint.order)?;
            bind_changed(statement, at + 6, &mut bound.kind, checkpoint.kind as u8)?;
            bind_name(statement, at + 7, &mut bound.name, &checkpoint.name)?;
            let fingerprint = checkpoint.fingerprint.map(|fingerprint| fingerprint as i64);
            if bound.fingerprint != fingerprint {
                statement.raw_bind_parameter(at + 8, fingerprint)?;
                bound.fingerprint = fingerprint;
            }
            statement.raw_bind_parameter(at + 9, checkpoint.at.as_micros())?;
            bind_changed(statement, at + 10, &mut bound.duration_ms, checkpoint.duration_ms)?;
            statement.raw_bind_parameter(at + 11, outcome.bytes())?;
        }
        let rows = self.sql.get(shape.sql(checkpoints.len()))?.raw_execute()? as u64;
        self.sql.counts.inserted[Table::Checkpoints as usize] += rows;
        if rows == 0 {
            self.pieces.discard_pending(pending_count);
        }
        Ok(rows)
    }
}

/// Returns the index of a row among the bound values. The statement for a single row has an index of its own.
fn row_index(row: usize, rows: usize) -> usize {
    if rows == 1 { BATCH_ROWS } else { row }
}

/// Binds a value to a parameter, unless it is bound already.
fn bind_changed<T: ToSql + PartialEq + Copy>(
    statement: &mut CachedStatement<'_>,
    parameter: usize,
    bound: &mut Option<T>,
    value: T,
) -> DbResult<()> {
    if bound.replace(value) != Some(value) {
        statement.raw_bind_parameter(parameter, value)?;
    }
    Ok(())
}

/// Binds a name to a parameter, unless it is bound already. Returns true if no name was bound to the parameter before.
fn bind_name<'f>(
    statement: &mut CachedStatement<'_>,
    parameter: usize,
    bound: &mut Option<&'f str>,
    name: &'f str,
) -> DbResult<bool> {
    let former_name = bound.replace(name);
    if !former_name.is_some_and(|former_name| std::ptr::eq(former_name, name)) {
        statement.raw_bind_parameter(parameter, name)?;
    }
    Ok(former_name.is_none())
}

/// Empties a vector, and returns it for reuse.
fn clear<T>(mut rows: Vec<T>) -> Vec<T> {
    rows.clear();
    rows
}
