//! [`FlushApplier`]: applies Writes, with one function per variant, in the order of the enum. The functions for Starts
//! and requests are in files of their own. The statement of each Write contains its guard: an unchanged row means that
//! the guard did not hold. So a duplicate never rolls back its neighbours.

use std::collections::HashSet;

use rusqlite::{OptionalExtension, Params};
use stepfast_core::clock::Timestamp;
use stepfast_core::key::Key;
use stepfast_core::payload::Payload;
use stepfast_core::store::counters::Table;
use stepfast_core::store::{
    AssignmentId, Attempt, Checkpoint, Chunk, DeleteChunks, Flush, Outcome, State, Status, Transition, Write,
    cancel_outcome, started_keys,
};

use crate::conn::statements::BATCH_ROWS;
use crate::conn::statements::{Sql, Statements};
use crate::error::DbResult;
use crate::file_share::FileShare;
use crate::flush::batches::is_of_batch;
use crate::flush::depth::DepthChecks;
use crate::flush::row_batches::{RowBatches, RowShape};
use crate::rows::assignments::insert_assignment;
use crate::rows::payloads::{ColumnValue, PayloadPieces, fetch_payload};
use crate::rows::stripes::stripe_of;
use crate::rows::{key_bytes, payload_of};

/// A flush that is being applied, inside a transaction that holds the write lock.
pub(crate) struct FlushApplier<'c, 'f> {
    pub(crate) sql: Statements<'c>,
    pub(crate) flush: &'f Flush,
    pub(crate) now: Timestamp,
    pub(super) share: &'f FileShare,
    /// Whether the table `requests` has any row; `None` until this is first needed.
    has_requests: Option<bool>,
    /// Executions whose requests the flush clears; `None` until this is first needed.
    cleared: Option<HashSet<Key>>,
    /// Executions of the flush's checkpoints and attempts that had a cancel request before the flush.
    cancel_requested: HashSet<Key>,
    /// Rows collected for batch statements.
    pub(crate) batches: RowBatches<'f>,
    /// Payloads that are stored in pieces.
    pub(crate) pieces: PayloadPieces,
    /// Depth checks of the queues that the flush adds executions to.
    pub(super) depth_checks: DepthChecks<'f>,
    /// Whether rows are inserted one at a time, without batch statements.
    is_row_by_row: bool,
}

impl<'c, 'f> FlushApplier<'c, 'f> {
    pub(crate) fn new(
        sql: Statements<'c>,
        flush: &'f Flush,
        now: Timestamp,
        share: &'f FileShare,
        is_row_by_row: bool,
    ) -> Self {
        // a smaller flush cannot fill a batch
        let is_row_by_row = is_row_by_row || flush.writes.len() < BATCH_ROWS;
        Self {
            sql,
            flush,
            now,
            share,
            has_requests: None,
            cleared: None,
            cancel_requested: HashSet::new(),
            batches: RowBatches::new(),
            pieces: PayloadPieces::default(),
            depth_checks: DepthChecks::default(),
            is_row_by_row,
        }
    }

    /// Applies all Writes. Returns the outcomes other than `Applied`, by index.
    pub(crate) fn apply_all(&mut self) -> DbResult<Vec<(usize, Outcome)>> {
        let mut outcomes = Vec::new();
        let flush = self.flush;
        self.find_cancel_requests()?;
        self.apply_batch_starts(&mut outcomes)?;
        for (i, write) in flush.writes.iter().enumerate() {
            if let Write::Checkpoint(checkpoint @ Checkpoint { number: Some(_), .. }) = write {
                if let Some(number) = checkpoint.received() {
                    self.delete_message(number)?;
                }
                if let Some(entry) = checkpoint.entry() {
                    let appended = self.append_entry(checkpoint.execution, &checkpoint.name, &entry)?;
                    if appended != Outcome::Applied {
                        outcomes.push((i, appended));
                        continue;
                    }
                }
            }
            let outcome = match write {
                Write::Start(start) if is_of_batch(start) => continue,
                Write::Start(start) => match RowShape::of(start) {
                    Some(shape) if !self.is_row_by_row => {
                        self.collect_start(i, start, shape)?;
                        continue;
                    }
                    _ => self.apply_start(start)?,
                },
                Write::Checkpoint(checkpoint) if !self.is_row_by_row => {
                    self.collect_checkpoint(i, checkpoint)?;
                    if self.cancel_requested.contains(&checkpoint.execution) {
                        outcomes.push((i, Outcome::CancelRequested));
                    }
                    continue;
                }
                Write::Checkpoint(checkpoint) => self.apply_checkpoint(checkpoint)?,
                Write::Attempt(attempt) => self.apply_attempt(attempt)?,
                Write::Transition(transition) => self.apply_transition(transition)?,
                Write::Wake(key) if key.is_batch() => self.wake_batch(*key)?,
                Write::Wake(key) => self.apply_wake(*key)?,
                Write::Request(request) => self.apply_request(request)?,
                Write::ClearRequests(key) => self.clear_requests(*key)?,
                Write::Chunk(chunk) => self.apply_chunk(chunk)?,
                Write::DeleteChunks(deletion) => self.delete_chunks(deletion)?,
                Write::Pack(pack) => self.apply_pack(pack)?,
                Write::CloseBatch(close) => self.close_batch(close)?,
                Write::Append(append) => {
                    self.append_entry(append.execution, &append.stream, &append.entry)?
                }
                // moved and sent after all other Writes
                Write::Forward(_) | Write::Send(_) => continue,
            };
            if !matches!(outcome, Outcome::Applied) {
                outcomes.push((i, outcome));
            }
        }
        self.insert_remaining(&mut outcomes)?;
        self.send_messages(&mut outcomes)?;
        self.depth_checks.store_bounds(&mut self.sql)?;
        outcomes.retain(|(_, outcome)| !matches!(outcome, Outcome::Applied));
        outcomes.sort_unstable_by_key(|(i, _)| *i);
        let started = started_keys(flush, &outcomes);
        if !started.is_empty() {
            let id = AssignmentId { lane: flush.lane, number: flush.number };
            insert_assignment(&mut self.sql, flush.worker.0, id, &started)?;
        }
        Ok(outcomes)
    }

    pub(crate) fn apply_checkpoint(&mut self, checkpoint: &'f Checkpoint) -> DbResult<Outcome> {
        let rows = self.insert_checkpoints(&[(0, checkpoint)])?;
        if rows == 1 || self.compare_checkpoint(checkpoint)? == Some(true) {
            return Ok(self.recorded_outcome(checkpoint.execution));
        }
        let (execution, path) = (checkpoint.execution, &checkpoint.path);
        Ok(Outcome::Rejected(format!("execution {execution} has another checkpoint at path {path}").into()))
    }

    /// Whether the recorded checkpoint at this path is equal to `checkpoint`; `None` if no checkpoint is recorded
    /// there.
    fn compare_checkpoint(&mut self, checkpoint: &Checkpoint) -> DbResult<Option<bool>> {
        let params = (
            key_bytes(&checkpoint.execution),
            checkpoint.path.as_bytes(),
            checkpoint.run_no,
            checkpoint.order,
            checkpoint.at.as_micros(),
            stripe_of(&checkpoint.path),
        );
        self.compare_row(Sql::CompareCheckpoint, params, checkpoint.stored_outcome())
    }

    fn apply_attempt(&mut self, attempt: &Attempt) -> DbResult<Outcome> {
        let pending_count = self.pieces.pending_count();
        let failure = self.pieces.column_value(&mut self.sql, &attempt.failure)?;
        let params = (
            key_bytes(&attempt.execution),
            attempt.path.as_bytes(),
            attempt.attempt,
            attempt.at.as_micros(),
            failure.bytes(),
        );
        let rows = self.sql.insert(Table::Attempts, Sql::InsertAttempt, params)?;
        if rows == 0 {
            self.pieces.discard_pending(pending_count);
        }
        if rows == 1 || self.compare_attempt(attempt)? == Some(true) {
            return Ok(self.recorded_outcome(attempt.execution));
        }
        let Attempt { execution, path, attempt, .. } = attempt;
        Ok(Outcome::Rejected(
            format!("execution {execution} has another attempt {attempt} at path {path}").into(),
        ))
    }

    /// Whether the recorded attempt of this path and number is equal to `attempt`; `None` if no such attempt is
    /// recorded.
    fn compare_attempt(&mut self, attempt: &Attempt) -> DbResult<Option<bool>> {
        let params =
            (key_bytes(&attempt.execution), attempt.path.as_bytes(), attempt.attempt, attempt.at.as_micros());
        self.compare_row(Sql::CompareAttempt, params, &attempt.failure)
    }

    /// Whether a recorded row is equal to the row of a Write; `None` if no row is recorded. The statement `comparison`
    /// compares the short columns and selects the payload.
    pub(super) fn compare_row(
        &mut self,
        comparison: Sql,
        params: impl Params,
        payload: &Payload,
    ) -> DbResult<Option<bool>> {
        let statement = self.sql.get(comparison)?;
        let found = statement.query_row(params, |row| Ok((row.get(0)?, payload_of(row, 1)))).optional()?;
        let Some((has_equal_columns, found)): Option<(bool, _)> = found else { return Ok(None) };
        let mut found = found?;
        // the pieces of the recorded payload may be pending in this transaction
        self.pieces.insert_pending(&mut self.sql)?;
        let is_whole = fetch_payload(&mut self.sql, &mut found)?;
        Ok(Some(has_equal_columns && is_whole && found.as_bytes() == payload.as_bytes()))
    }

    fn apply_transition(&mut self, transition: &Transition) -> DbResult<Outcome> {
        let (id, owner) = (key_bytes(&transition.key), self.flush.worker.0);
        let replacement; // the state that replaces the Transition's, because of requests
        let mut outcome = Outcome::Applied;
        let state = match &transition.state {
            // the next owner handles the requests
            State::Waiting { pending_sleeps, .. } if self.has_request(Sql::HasRequest, transition.key)? => {
                replacement = State::Queued { pending_sleeps: pending_sleeps.clone() };
                &replacement
            }
            State::Parked { pending_sleeps, is_pause, .. }
                if self.has_cancel_request(transition.key)?
                    || *is_pause && !self.has_request(Sql::HasPauseRequest, transition.key)? =>
            {
                replacement = State::Queued { pending_sleeps: pending_sleeps.clone() };
                &replacement
            }
            State::Ended { status, at, .. }
                if *status != Status::Cancelled && self.has_cancel_request(transition.key)? =>
            {
                replacement = State::Ended { status: Status::Cancelled, outcome: cancel_outcome(), at: *at };
                outcome = Outcome::Cancelled;
                &replacement
            }
            state => state,
        };
        let pending_count = self.pieces.pending_count();
        let rows = match state {
            State::Ended { status, outcome, at } => {
                let outcome = self.pieces.column_value(&mut self.sql, outcome)?;
                let params = (id, owner, *status as i64, outcome.bytes(), at.as_micros());
                // an execution without a queue rarely has a dedup_id
                let rows = match &transition.placement {
                    None => self.sql.update(Table::Executions, Sql::FinishWithoutDedupId, params)?,
                    Some(_) => 0,
                };
                if rows > 0 { rows } else { self.sql.update(Table::Executions, Sql::Finish, params)? }
            }
            State::Running { .. } => {
                let params = (id, owner, state.encoded_sleeps());
                self.sql.update(Table::Executions, Sql::SetPendingSleeps, params)?
            }
            state => {
                let reason = match state {
                    State::Parked { reason, .. } => self.pieces.column_value(&mut self.sql, reason)?,
                    _ => ColumnValue::Inline(None),
                };
                let (status, is_parked) = (state.status() as i64, state.is_parked());
                let params = (id, owner, status, is_parked, reason.bytes(), state.encoded_sleeps());
                self.sql.update(Table::Executions, Sql::Transition, params)?
            }
        };
        if rows == 0 {
            self.pieces.discard_pending(pending_count);
            return Ok(Outcome::NotFound);
        }
        if matches!(state, State::Ended { .. }) && self.has_request(Sql::HasRequest, transition.key)? {
            self.sql.delete(Table::Requests, Sql::ClearRequests, [id])?;
        } else if matches!(state, State::Parked { .. }) && self.has_requests()? {
            self.sql.delete(Table::Requests, Sql::DeletePauses, [id])?;
        }
        if let (Some(placement), false) = (&transition.placement, matches!(state, State::Running { .. })) {
            self.sql.delete(Table::Slots, Sql::FreeSlot, (&*placement.queue, &*placement.key, id))?;
        }
        self.insert_role_rows(transition.key, state)?;
        Ok(outcome)
    }

    /// Inserts the rows of `ready`, `timers` and `waits` that belong to an execution's new state.
    pub(super) fn insert_role_rows(&mut self, id: Key, state: &State) -> DbResult<()> {
        match state {
            State::Queued { .. } => self.insert_ready_resumed(id, false)?,
            State::Scheduled { due_at } => {
                self.sql.insert(Table::Timers, Sql::InsertTimer, (key_bytes(&id), due_at.as_micros()))?;
            }
            State::Waiting { wake_at, waits, .. } => {
                if let Some(wake_at) = wake_at {
                    self.sql.insert(
                        Table::Timers,
                        Sql::InsertTimer,
                        (key_bytes(&id), wake_at.as_micros()),
                    )?;
                }
                for wait in waits {
                    let (kind, subject, name) = wait.columns(id);
                    let params = (key_bytes(&id), kind, key_bytes(&subject), name);
                    self.sql.insert(Table::Waits, Sql::InsertWait, params)?;
                }
            }
            State::Running { .. } | State::Parked { .. } | State::Ended { .. } => {}
        }
        Ok(())
    }

    /// Makes an execution ready again. If `is_woken`, the execution was suspended.
    pub(crate) fn insert_ready_resumed(&mut self, id: Key, is_woken: bool) -> DbResult<()> {
        self.sql.insert(Table::Ready, Sql::ReadyResumed, (key_bytes(&id), is_woken))?;
        Ok(())
    }

    fn apply_wake(&mut self, id: Key) -> DbResult<Outcome> {
        let params = (key_bytes(&id), self.now.as_micros());
        if self.sql.update(Table::Executions, Sql::Wake, params)? == 0 {
            return Ok(Outcome::NotFound);
        }
        self.sql.delete(Table::Timers, Sql::DeleteTimer, [key_bytes(&id)])?;
        self.sql.delete(Table::Waits, Sql::DeleteWaits, [key_bytes(&id)])?;
        self.insert_ready_resumed(id, true)?;
        Ok(Outcome::Applied)
    }

    fn clear_requests(&mut self, id: Key) -> DbResult<Outcome> {
        self.sql.delete(Table::Requests, Sql::ClearRequests, [key_bytes(&id)])?;
        Ok(Outcome::Applied)
    }

    fn apply_chunk(&mut self, chunk: &Chunk) -> DbResult<Outcome> {
        let (id, value) = (key_bytes(&chunk.execution), chunk.value as i64);
        if chunk.is_withdrawal() {
            self.sql.delete(Table::Chunks, Sql::DeleteChunks, (id, value))?;
            return Ok(Outcome::Applied);
        }
        let params = (id, value, chunk.index, &*chunk.bytes);
        self.sql.insert(Table::Chunks, Sql::InsertChunk, params)?;
        Ok(Outcome::Applied)
    }

    fn delete_chunks(&mut self, deletion: &DeleteChunks) -> DbResult<Outcome> {
        let id = key_bytes(&deletion.execution);
        // values are deleted one at a time: each has few, but large chunks
        let mut first_value = i64::MIN;
        loop {
            let statement = self.sql.get(Sql::NextChunkedValue)?;
            let next = statement.query_row((id, first_value), |row| row.get::<_, i64>(0)).optional()?;
            let Some(value) = next else { break };
            if !deletion.keep.contains(&(value as u64)) {
                self.sql.delete(Table::Chunks, Sql::DeleteChunks, (id, value))?;
            }
            let Some(after) = value.checked_add(1) else { break };
            first_value = after;
        }
        Ok(Outcome::Applied)
    }

    /// Finds the executions of the flush's checkpoints and attempts that have a cancel request, before any of its
    /// Writes is applied.
    fn find_cancel_requests(&mut self) -> DbResult<()> {
        for write in &self.flush.writes {
            let (Write::Checkpoint(Checkpoint { execution, .. }) | Write::Attempt(Attempt { execution, .. })) =
                write
            else {
                continue;
            };
            if !self.has_requests()? {
                break;
            }
            if self.has_cancel_request(*execution)? {
                self.cancel_requested.insert(*execution);
            }
        }
        Ok(())
    }

    /// Returns the outcome of a recorded checkpoint or attempt: `CancelRequested` if its execution has a cancel
    /// request.
    fn recorded_outcome(&self, execution: Key) -> Outcome {
        if self.cancel_requested.contains(&execution) { Outcome::CancelRequested } else { Outcome::Applied }
    }

    /// Whether the execution has a cancel request that this flush does not clear.
    fn has_cancel_request(&mut self, id: Key) -> DbResult<bool> {
        self.has_request(Sql::HasCancelRequest, id)
    }

    /// Whether the execution has a request, by this query, that the flush does not clear.
    fn has_request(&mut self, query: Sql, id: Key) -> DbResult<bool> {
        if !self.has_requests()? {
            return Ok(false);
        }
        let cleared = self.cleared.get_or_insert_with(|| {
            let cleared = self.flush.writes.iter().filter_map(|write| match write {
                Write::ClearRequests(key) => Some(*key),
                _ => None,
            });
            cleared.collect()
        });
        Ok(!cleared.contains(&id) && self.sql.exists(query, [key_bytes(&id)])?)
    }

    /// Whether any execution has a request. Usually no execution has one, so one query per flush saves all others.
    fn has_requests(&mut self) -> DbResult<bool> {
        if let Some(has_requests) = self.has_requests {
            return Ok(has_requests);
        }
        let has_requests = self.sql.exists(Sql::HasAnyRequest, [])?;
        self.has_requests = Some(has_requests);
        Ok(has_requests)
    }

    /// Notes that `requests` has a row now.
    pub(crate) fn note_request(&mut self) {
        self.has_requests = Some(true);
    }
}
