//! Inserting many rows with one statement. A flush of thousands is mostly rows of three shapes, and opening
//! the tables once for [`ROWS`] of them saves a third of the time that a row takes.

use rusqlite::CachedStatement;
use stepfast_core::store::counters::Table;
use stepfast_core::store::{Checkpoint, Outcome, Start, State};

use crate::conn::statements::{ROWS, Sql};
use crate::error::{DbResult, DbError};
use crate::flush::apply::Apply;
use crate::rows::key;
use crate::rows::payloads::Column;

/// The shapes of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    Running,
    Ended,
    Checkpoint,
}

impl Shape {
    /// The shape of a Start's row, unless it is a rare one.
    pub(crate) fn of(start: &Start) -> Option<Self> {
        let is_plain = start.parent.is_none()
            && start.workflow_id.is_none()
            && start.fingerprint.is_none()
            && start.deadline_at.is_none()
            && start.app_version.is_none()
            && start.placement.is_none()
            && start.dedup_id.is_none()
            && start.attributes.is_empty()
            && start.root == start.key;
        match &start.state {
            State::Running { armed } if is_plain && armed.is_empty() => Some(Shape::Running),
            State::Ended { .. } if is_plain => Some(Shape::Ended),
            _ => None,
        }
    }

    fn sql(self, rows: usize) -> Sql {
        match (self, rows) {
            (Shape::Running, 1) => Sql::StartRunning,
            (Shape::Ended, 1) => Sql::StartEnded,
            (Shape::Checkpoint, 1) => Sql::Checkpoint,
            (Shape::Running, _) => Sql::StartsRunning,
            (Shape::Ended, _) => Sql::StartsEnded,
            (Shape::Checkpoint, _) => Sql::CheckpointMany,
        }
    }

    /// Parameters of a row.
    fn width(self) -> usize {
        match self {
            Shape::Running => 5,
            Shape::Ended => 7,
            Shape::Checkpoint => 10,
        }
    }
}

/// Rows that wait for company, with the index of their Write.
pub(crate) struct Rows<'f> {
    starts: [Vec<(usize, &'f Start)>; 2],
    checkpoints: Vec<(usize, &'f Checkpoint)>,
    /// The name that each row of each statement has bound: names repeat, and stay bound.
    bound: [[Option<&'f str>; ROWS + 1]; 3],
}

impl Rows<'_> {
    pub(crate) fn new() -> Self {
        Self { starts: [Vec::new(), Vec::new()], checkpoints: Vec::new(), bound: [[None; ROWS + 1]; 3] }
    }
}

impl<'f> Apply<'_, 'f> {
    /// Inserts a row of a common shape as soon as there are enough of them. An error that says so if any of
    /// them is there already: the flush is then applied one row at a time.
    pub(crate) fn gather_start(&mut self, i: usize, start: &'f Start, shape: Shape) -> DbResult<()> {
        let waiting = &mut self.rows.starts[shape as usize];
        waiting.push((i, start));
        if waiting.len() == ROWS {
            let starts = std::mem::take(waiting);
            if self.insert_starts(shape, &starts)? < ROWS as u64 {
                return Err(DbError::RetryRowByRow);
            }
            // it runs or has ended: nobody has staged it again
            self.has_started = true;
            self.rows.starts[shape as usize] = reused(starts);
        }
        Ok(())
    }

    /// The same for a checkpoint.
    pub(crate) fn gather_checkpoint(&mut self, i: usize, checkpoint: &'f Checkpoint) -> DbResult<()> {
        self.rows.checkpoints.push((i, checkpoint));
        if self.rows.checkpoints.len() == ROWS {
            let checkpoints = std::mem::take(&mut self.rows.checkpoints);
            if self.insert_checkpoints(&checkpoints)? < ROWS as u64 {
                return Err(DbError::RetryRowByRow);
            }
            self.rows.checkpoints = reused(checkpoints);
        }
        Ok(())
    }

    /// Inserts what is left, row by row.
    pub(crate) fn insert_rest(&mut self, outcomes: &mut Vec<(usize, Outcome)>) -> DbResult<()> {
        for shape in [Shape::Running, Shape::Ended] {
            for (i, start) in std::mem::take(&mut self.rows.starts[shape as usize]) {
                outcomes.push((i, self.start(start)?));
            }
        }
        for (i, checkpoint) in std::mem::take(&mut self.rows.checkpoints) {
            outcomes.push((i, self.checkpoint(checkpoint)?));
        }
        self.aside.insert(&mut self.sql)
    }

    /// Inserts one row or [`ROWS`] of them; how many were not there before.
    pub(crate) fn insert_starts(&mut self, shape: Shape, starts: &[(usize, &'f Start)]) -> DbResult<u64> {
        let owner = self.flush.worker.0;
        let waiting = self.aside.waiting();
        for (row, (_, start)) in starts.iter().enumerate() {
            let input = self.aside.column(&mut self.sql, &start.input)?;
            let outcome = match &start.state {
                State::Ended { outcome, .. } => self.aside.column(&mut self.sql, outcome)?,
                _ => Column::Here(None),
            };
            let statement = self.sql.bind(shape.sql(starts.len()))?;
            let at = row * shape.width();
            statement.raw_bind_parameter(at + 1, key(&start.key))?;
            statement.raw_bind_parameter(at + 2, start.created_at.as_micros())?;
            statement.raw_bind_parameter(at + 3, input.bytes())?;
            let is_first = bind_name(
                statement,
                at + 4,
                &mut self.rows.bound[shape as usize][slot(row, starts.len())],
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
        self.sql.tally.inserted[Table::Executions as usize] += rows;
        if rows == 0 {
            self.aside.take_back(waiting);
        }
        Ok(rows)
    }

    /// The same for checkpoints.
    pub(crate) fn insert_checkpoints(&mut self, checkpoints: &[(usize, &'f Checkpoint)]) -> DbResult<u64> {
        let shape = Shape::Checkpoint;
        let waiting = self.aside.waiting();
        for (row, (_, checkpoint)) in checkpoints.iter().enumerate() {
            let outcome = self.aside.column(&mut self.sql, &checkpoint.outcome)?;
            let statement = self.sql.bind(shape.sql(checkpoints.len()))?;
            let at = row * shape.width();
            statement.raw_bind_parameter(at + 1, key(&checkpoint.execution))?;
            statement.raw_bind_parameter(at + 2, checkpoint.path.as_bytes())?;
            statement.raw_bind_parameter(at + 3, checkpoint.run_no)?;
            statement.raw_bind_parameter(at + 4, checkpoint.order)?;
            statement.raw_bind_parameter(at + 5, checkpoint.kind as u8)?;
            statement.raw_bind_parameter(at + 6, checkpoint.at.as_micros())?;
            statement.raw_bind_parameter(at + 7, checkpoint.took_ms)?;
            let fingerprint = checkpoint.fingerprint.map(|fingerprint| fingerprint as i64);
            statement.raw_bind_parameter(at + 8, fingerprint)?;
            statement.raw_bind_parameter(at + 9, outcome.bytes())?;
            bind_name(
                statement,
                at + 10,
                &mut self.rows.bound[shape as usize][slot(row, checkpoints.len())],
                &checkpoint.name,
            )?;
        }
        let rows = self.sql.get(shape.sql(checkpoints.len()))?.raw_execute()? as u64;
        self.sql.tally.inserted[Table::Checkpoints as usize] += rows;
        if rows == 0 {
            self.aside.take_back(waiting);
        }
        Ok(rows)
    }
}

/// Where the name of a row is remembered: the statement for one row is another than that for many.
fn slot(row: usize, rows: usize) -> usize {
    if rows == 1 { ROWS } else { row }
}

/// Binds a name unless it is bound already; true the first time.
fn bind_name<'f>(
    statement: &mut CachedStatement<'_>,
    parameter: usize,
    bound: &mut Option<&'f str>,
    name: &'f str,
) -> DbResult<bool> {
    let known = bound.replace(name);
    if !known.is_some_and(|known| std::ptr::eq(known, name)) {
        statement.raw_bind_parameter(parameter, name)?;
    }
    Ok(known.is_none())
}

fn reused<T>(mut rows: Vec<T>) -> Vec<T> {
    rows.clear();
    rows
}
