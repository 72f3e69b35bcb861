//! [`FlushApplier`]: one function per variant of Write, in the order of the enum. Each Write has its guard in its own
//! statement: an unchanged row means that the guard did not hold, so a duplicate never rolls back its neighbours.

use std::collections::HashSet;

use rusqlite::{OptionalExtension, Params, params};
use stepfast_core::clock::{Timestamp, stored_millis};
use stepfast_core::key::Key;
use stepfast_core::payload::Payload;
use stepfast_core::queue::DEFAULT_QUEUE;
use stepfast_core::store::counters::Table;
use stepfast_core::store::{
    Attempt, Checkpoint, Chunk, DeleteChunks, ExistingExecution, Flush, Outcome, PendingSleep, Start, State,
    Status, Transition, Write, cancel_outcome, encode_pending_sleeps,
};

use crate::conn::statements::BATCH_ROWS;
use crate::conn::statements::{Sql, Statements};
use crate::error::{DbError, DbResult};
use crate::file_share::FileShare;
use crate::flush::bulk_insert::{RowBatches, RowShape};
use crate::flush::depth::DepthCheck;
use crate::flush::resend::is_staged_once;
use crate::rows::payloads::{ColumnValue, PayloadPieces, fetch_payload};
use crate::rows::{blob, key_bytes, key_of, optional_text, payload_of, status_of, text};

/// A flush that is being applied, inside a transaction that holds the write lock.
pub(crate) struct FlushApplier<'c, 'f> {
    pub(crate) sql: Statements<'c>,
    pub(crate) flush: &'f Flush,
    pub(crate) now: Timestamp,
    share: &'f FileShare,
    /// Whether `requests` has any row; `None` until first needed.
    has_requests: Option<bool>,
    /// Whether a Start was inserted that proves the flush.
    pub(crate) has_proving_start: bool,
    /// Executions of the flush's checkpoints and attempts that had a cancel request before the flush.
    cancel_requested: HashSet<Key>,
    /// Rows collected for batch statements.
    pub(crate) batches: RowBatches<'f>,
    /// Payloads that are stored in pieces.
    pub(crate) pieces: PayloadPieces,
    /// Depth checks of the queues that the flush adds executions to.
    depth_checks: Vec<(&'f str, DepthCheck)>,
    /// Whether rows are applied one at a time.
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
        // too few Writes for a batch
        let is_row_by_row = is_row_by_row || flush.writes.len() < BATCH_ROWS;
        Self {
            sql,
            flush,
            now,
            share,
            has_requests: None,
            has_proving_start: false,
            cancel_requested: HashSet::new(),
            batches: RowBatches::new(),
            pieces: PayloadPieces::default(),
            depth_checks: Vec::new(),
            is_row_by_row,
        }
    }

    /// Applies all Writes. Returns the outcomes other than `Applied`, by index.
    pub(crate) fn apply_all(&mut self) -> DbResult<Vec<(usize, Outcome)>> {
        let mut outcomes = Vec::new();
        let flush = self.flush;
        self.find_cancel_requests()?;
        for (i, write) in flush.writes.iter().enumerate() {
            let outcome = match write {
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
                Write::Wake(key) => self.apply_wake(*key)?,
                Write::Request(request) => self.apply_request(request)?,
                Write::ClearRequests(key) => self.clear_requests(*key)?,
                Write::Chunk(chunk) => self.apply_chunk(chunk)?,
                Write::DeleteChunks(deletion) => self.delete_chunks(deletion)?,
            };
            if !matches!(outcome, Outcome::Applied) {
                outcomes.push((i, outcome));
            }
        }
        self.insert_remaining(&mut outcomes)?;
        self.store_depth_bounds()?;
        self.record_flush_number()?;
        outcomes.retain(|(_, outcome)| !matches!(outcome, Outcome::Applied));
        outcomes.sort_unstable_by_key(|(i, _)| *i);
        Ok(outcomes)
    }

    pub(crate) fn apply_start(&mut self, start: &'f Start) -> DbResult<Outcome> {
        if let Some(merged) = self.merge_debounced(start)? {
            return Ok(merged);
        }
        let index =
            start.waiting_placement().map(|placement| self.depth_check(&placement.queue)).transpose()?;
        let begins_now =
            start.is_self_claiming() && index.is_some_and(|i| self.depth_checks[i].1.allows_immediate_start);
        if let Some(i) = index.filter(|_| !begins_now) {
            let (queue, check) = &mut self.depth_checks[i];
            if !check.try_admit(&mut self.sql, start, queue)? {
                return self.outcome_if_full(start);
            }
        }
        if start.is_self_claiming() && !begins_now {
            let queued = Start { state: State::Queued { pending_sleeps: Vec::new() }, ..start.clone() };
            if self.insert_start(&queued)? == 0 {
                return self.duplicate_outcome(start);
            }
            self.has_proving_start = true;
            self.insert_attributes(start)?;
            self.insert_ready(start)?;
            return Ok(Outcome::Queued);
        }
        let inserted = match RowShape::of(start) {
            Some(shape) => self.insert_starts(shape, &[(0, start)])?,
            None => self.insert_start(start)?,
        };
        if inserted == 0 {
            return self.duplicate_outcome(start);
        }
        self.has_proving_start |= is_staged_once(start);
        self.insert_attributes(start)?;
        match &start.state {
            State::Queued { .. } if !start.has_begun => self.insert_ready(start)?,
            state => self.insert_role_rows(start.key, state)?,
        }
        Ok(Outcome::Applied)
    }

    /// Merges a debounced Start into the scheduled execution with the same `dedup_id`, if it exists.
    fn merge_debounced(&mut self, start: &Start) -> DbResult<Option<Outcome>> {
        let (Some(debounce_window), State::Scheduled { due_at }) = (start.debounce_window, &start.state)
        else {
            return Ok(None);
        };
        // sent again under another number, the Start itself may exist already
        if self.find_existing(start)?.is_some() {
            return Ok(None);
        }
        let placement = start.placement.as_deref();
        let (queue, dedup_id) = (placement.map(|placement| &*placement.queue), start.dedup_id.as_deref());
        self.pieces.delete_referenced(&mut self.sql, Sql::DebouncedInput, (queue, dedup_id))?;
        let pending_count = self.pieces.pending_count();
        let input = self.pieces.column_value(&mut self.sql, &start.input)?;
        let params = params![
            queue,
            dedup_id,
            input.bytes(),
            placement.map(|placement| &*placement.key).filter(|key| !key.is_empty()),
            placement.map(|placement| placement.priority).filter(|priority| *priority != 0),
            start.app_version.as_deref(),
            start.run_timeout.map(stored_millis),
        ];
        let found = self
            .sql
            .get(Sql::UpdateDebounced)?
            .query_row(params, |row| Ok(existing_of_row(row)))
            .optional()?;
        let Some((other, created_at)) = found.transpose()? else {
            self.pieces.discard_pending(pending_count);
            return Ok(None);
        };
        self.sql.counts.updated[Table::Executions as usize] += 1;
        let due_at = (*due_at).min(Timestamp::from_micros(created_at).plus(debounce_window));
        self.sql.run(Sql::PostponeTimer, (key_bytes(&other.key), due_at.as_micros()))?;
        Ok(Some(Outcome::Duplicate(Box::new(other))))
    }

    /// Returns the index of a queue's check in `depth_checks`.
    fn depth_check(&mut self, queue: &'f str) -> DbResult<usize> {
        if let Some(i) = self.depth_checks.iter().position(|(known, _)| *known == queue) {
            return Ok(i);
        }
        let check = DepthCheck::read(&mut self.sql, queue)?;
        self.depth_checks.push((queue, check));
        Ok(self.depth_checks.len() - 1)
    }

    /// Returns the outcome of a Start whose queue is full.
    fn outcome_if_full(&mut self, start: &Start) -> DbResult<Outcome> {
        if let Some((existing, _)) = self.find_existing(start)? {
            return Ok(Outcome::Duplicate(Box::new(existing)));
        }
        let other = if start.dedup_id.is_some() { self.find_deduplicated(start)? } else { None };
        Ok(other.map_or(Outcome::Full, |other| Outcome::Deduplicated(Some(other))))
    }

    fn store_depth_bounds(&mut self) -> DbResult<()> {
        for (queue, check) in &self.depth_checks {
            if let Some(bound) = check.changed_bound() {
                self.sql.run(Sql::SetDepthBound, (queue, bound))?;
            }
        }
        Ok(())
    }

    fn insert_start(&mut self, start: &Start) -> DbResult<u64> {
        let state = &start.state;
        let pending_count = self.pieces.pending_count();
        let (ended_at, outcome) = match state {
            State::Ended { outcome, at, .. } => {
                (Some(at.as_micros()), self.pieces.column_value(&mut self.sql, outcome)?)
            }
            State::Parked { reason, .. } => (None, self.pieces.column_value(&mut self.sql, reason)?),
            _ => (None, ColumnValue::Inline(None)),
        };
        let input = self.pieces.column_value(&mut self.sql, &start.input)?;
        let pending_sleeps = encoded_sleeps(state.pending_sleeps());
        let owner = matches!(state, State::Running { .. }).then_some(self.flush.worker.0);
        let placement = start.placement.as_deref();
        let params = params![
            key_bytes(&start.key),
            (start.root != start.key).then(|| key_bytes(&start.root)),
            start.parent.as_ref().map(|parent| key_bytes(&parent.key)),
            start.parent.as_ref().is_some_and(|parent| parent.is_detached),
            start.workflow_id.as_deref(),
            &*start.workflow,
            start.fingerprint.map(|fingerprint| fingerprint as i64),
            state.status() as i64,
            matches!(state, State::Parked { .. }),
            owner,
            start.created_at.as_micros(),
            ended_at,
            start.deadline_at.map(Timestamp::as_micros),
            pending_sleeps,
            input.bytes(),
            outcome.bytes(),
            start.app_version.as_deref(),
            placement.map(|placement| &*placement.queue),
            placement.map(|placement| &*placement.key).filter(|key| !key.is_empty()),
            placement.map(|placement| placement.priority).filter(|priority| *priority != 0),
            start.active_dedup_id().map(|dedup_id| &**dedup_id),
            start.run_timeout.map(stored_millis),
            // the execution begins without a claim
            start.is_self_claiming().then_some(false),
        ];
        let rows = self.sql.insert(Table::Executions, Sql::Start, params)?;
        if rows == 0 {
            self.pieces.discard_pending(pending_count);
        }
        Ok(rows)
    }

    fn insert_attributes(&mut self, start: &Start) -> DbResult<()> {
        for (name, value) in start.attributes.iter() {
            self.sql.insert(Table::Attributes, Sql::InsertAttribute, (key_bytes(&start.key), name, value))?;
        }
        Ok(())
    }

    /// Returns the outcome of a Start that was not inserted because another execution has its id.
    pub(crate) fn duplicate_outcome(&mut self, start: &Start) -> DbResult<Outcome> {
        match self.find_existing(start)? {
            Some((existing, _)) => Ok(Outcome::Duplicate(Box::new(existing))),
            None if start.dedup_id.is_some() => Ok(Outcome::Deduplicated(self.find_deduplicated(start)?)),
            None => Err(DbError::corrupt("table executions rejects a key that it does not contain")),
        }
    }

    /// Finds the execution that has a Start's key or workflow_id, and its creation time.
    pub(crate) fn find_existing(&mut self, start: &Start) -> DbResult<Option<(ExistingExecution, i64)>> {
        let statement = self.sql.get(Sql::ExistingByKey)?;
        if let Some(found) =
            statement.query_row([key_bytes(&start.key)], |row| Ok(existing_of_row(row))).optional()?
        {
            return found.map(Some);
        }
        let Some(workflow_id) = start.workflow_id.as_deref() else { return Ok(None) };
        let statement = self.sql.get(Sql::ExistingById)?;
        statement.query_row([workflow_id], |row| Ok(existing_of_row(row))).optional()?.transpose()
    }

    /// Finds the execution that has a Start's `dedup_id`.
    fn find_deduplicated(&mut self, start: &Start) -> DbResult<Option<Box<ExistingExecution>>> {
        let queue = start.placement.as_deref().map(|placement| &*placement.queue);
        let statement = self.sql.get(Sql::ExistingByDedupId)?;
        let params = (queue, start.dedup_id.as_deref());
        let found = statement.query_row(params, |row| Ok(existing_of_row(row))).optional()?.transpose()?;
        Ok(found.map(|(existing, _)| Box::new(existing)))
    }

    pub(crate) fn apply_checkpoint(&mut self, checkpoint: &'f Checkpoint) -> DbResult<Outcome> {
        let rows = self.insert_checkpoints(&[(0, checkpoint)])?;
        if rows == 1 || self.compare_checkpoint(checkpoint)? == Some(true) {
            return Ok(self.recorded_outcome(checkpoint.execution));
        }
        let (execution, path) = (checkpoint.execution, &checkpoint.path);
        Ok(Outcome::Rejected(format!("execution {execution} has another checkpoint at path {path}").into()))
    }

    /// Whether the checkpoint at this path is equal to this one; `None` if none is recorded.
    pub(crate) fn compare_checkpoint(&mut self, checkpoint: &Checkpoint) -> DbResult<Option<bool>> {
        let params = (
            key_bytes(&checkpoint.execution),
            checkpoint.path.as_bytes(),
            checkpoint.run_no,
            checkpoint.order,
            checkpoint.at.as_micros(),
        );
        self.compare_row(Sql::CompareCheckpoint, params, &checkpoint.outcome)
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

    /// Whether the attempt of this number is equal to this one; `None` if none is recorded.
    pub(crate) fn compare_attempt(&mut self, attempt: &Attempt) -> DbResult<Option<bool>> {
        let params =
            (key_bytes(&attempt.execution), attempt.path.as_bytes(), attempt.attempt, attempt.at.as_micros());
        self.compare_row(Sql::CompareAttempt, params, &attempt.failure)
    }

    /// Whether a recorded row is equal to a Write's; `None` if it does not exist. The statement `comparison` compares
    /// the short columns and selects the payload.
    fn compare_row(
        &mut self,
        comparison: Sql,
        params: impl Params,
        payload: &Payload,
    ) -> DbResult<Option<bool>> {
        let statement = self.sql.get(comparison)?;
        let found = statement.query_row(params, |row| Ok((row.get(0)?, payload_of(row, 1)))).optional()?;
        let Some((has_equal_columns, found)): Option<(bool, _)> = found else { return Ok(None) };
        let mut found = found?;
        // its pieces may belong to this transaction
        self.pieces.insert_pending(&mut self.sql)?;
        let is_whole = fetch_payload(&mut self.sql, &mut found)?;
        Ok(Some(has_equal_columns && is_whole && found.as_bytes() == payload.as_bytes()))
    }

    fn apply_transition(&mut self, transition: &Transition) -> DbResult<Outcome> {
        let (id, owner) = (key_bytes(&transition.key), self.flush.worker.0);
        let replacement; // the state of an execution with a pending cancel request
        let mut outcome = Outcome::Applied;
        let state = match &transition.state {
            State::Waiting { pending_sleeps, .. } | State::Parked { pending_sleeps, .. }
                if self.has_cancel_request(transition.key)? =>
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
            State::Running { pending_sleeps } => {
                let params = (id, owner, encoded_sleeps(pending_sleeps));
                self.sql.update(Table::Executions, Sql::SetPendingSleeps, params)?
            }
            state => {
                let reason = match state {
                    State::Parked { reason, .. } => self.pieces.column_value(&mut self.sql, reason)?,
                    _ => ColumnValue::Inline(None),
                };
                let is_parked = matches!(state, State::Parked { .. });
                let pending_sleeps = encoded_sleeps(state.pending_sleeps());
                let params = (id, owner, state.status() as i64, is_parked, reason.bytes(), pending_sleeps);
                self.sql.update(Table::Executions, Sql::Transition, params)?
            }
        };
        if rows == 0 {
            self.pieces.discard_pending(pending_count);
            return Ok(Outcome::NotFound);
        }
        if matches!(state, State::Ended { .. }) && self.has_cancel_request(transition.key)? {
            self.sql.delete(Table::Requests, Sql::ClearRequests, [id])?;
        }
        if let (Some(placement), false) = (&transition.placement, matches!(state, State::Running { .. })) {
            self.sql.delete(Table::Slots, Sql::FreeSlot, (&*placement.queue, &*placement.key, id))?;
        }
        self.insert_role_rows(transition.key, state)?;
        Ok(outcome)
    }

    /// Inserts the rows of `ready`, `timers` and `waits` that belong to an execution's new state.
    fn insert_role_rows(&mut self, id: Key, state: &State) -> DbResult<()> {
        match state {
            State::Queued { .. } => self.insert_ready_resumed(id, false)?,
            State::Scheduled { due_at } => {
                self.sql.insert(Table::Timers, Sql::InsertTimer, (key_bytes(&id), due_at.as_micros()))?;
            }
            State::Waiting { wake_at, children, .. } => {
                if let Some(wake_at) = wake_at {
                    self.sql.insert(
                        Table::Timers,
                        Sql::InsertTimer,
                        (key_bytes(&id), wake_at.as_micros()),
                    )?;
                }
                for child in children {
                    self.sql.insert(Table::Waits, Sql::InsertWait, (key_bytes(&id), key_bytes(child)))?;
                }
            }
            State::Running { .. } | State::Parked { .. } | State::Ended { .. } => {}
        }
        Ok(())
    }

    /// Makes a new execution claimable.
    fn insert_ready(&mut self, start: &Start) -> DbResult<()> {
        let seq = self.share.next_seq(self.now);
        let placement = start.placement.as_deref();
        let params = (
            key_bytes(&start.key),
            seq,
            &*start.workflow,
            start.app_version.as_deref(),
            placement.map_or(DEFAULT_QUEUE, |placement| &*placement.queue),
            placement.map_or("", |placement| &*placement.key),
            placement.map_or(0, |placement| placement.priority),
        );
        self.sql.insert(Table::Ready, Sql::InsertReady, params)?;
        Ok(())
    }

    /// Makes an execution claimable again. `is_woken`: whether it was suspended.
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
        let params = (key_bytes(&chunk.execution), chunk.value as i64, chunk.index, &*chunk.bytes);
        self.sql.insert(Table::Chunks, Sql::InsertChunk, params)?;
        Ok(Outcome::Applied)
    }

    fn delete_chunks(&mut self, deletion: &DeleteChunks) -> DbResult<Outcome> {
        let id = key_bytes(&deletion.execution);
        // one value after the other: their chunks are large, and few
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
        if !self.has_requests()? {
            return Ok(false);
        }
        let is_cleared = self
            .flush
            .writes
            .iter()
            .any(|write| matches!(write, Write::ClearRequests(cleared) if *cleared == id));
        Ok(!is_cleared && self.sql.exists(Sql::HasCancelRequest, [key_bytes(&id)])?)
    }

    /// Whether any execution has a request. Almost always none has, so one query per flush is enough.
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

/// Returns the column value of pending sleeps; `None` for NULL if there are none.
fn encoded_sleeps(sleeps: &[PendingSleep]) -> Option<Vec<u8>> {
    (!sleeps.is_empty()).then(|| encode_pending_sleeps(sleeps))
}

/// Reads an existing execution from a row, with its creation time.
fn existing_of_row(row: &rusqlite::Row<'_>) -> DbResult<(ExistingExecution, i64)> {
    let existing = ExistingExecution {
        key: key_of(row, 0)?,
        given_id: optional_text(row, 6)?,
        workflow: text(row, 1)?,
        fingerprint: row.get::<_, Option<i64>>(2)?.map(|fingerprint| fingerprint as u64),
        parent: blob(row, 3)?.is_some().then(|| key_of(row, 3)).transpose()?,
        // as an unknown status is shown: see `Execution::note_unknown_status`
        status: status_of(row, 4)?.unwrap_or(Status::Queued),
    };
    Ok((existing, row.get(5)?))
}
