//! One function per Write variant, in the enum's order. Each Write's guard is in its own statement: a row
//! that is not changed is a guard that did not hold, so a loser never rolls back its neighbours.

use std::collections::HashSet;

use rusqlite::{OptionalExtension, Params, params};
use stepfast_core::clock::{Timestamp, stored_millis};
use stepfast_core::key::Key;
use stepfast_core::payload::Payload;
use stepfast_core::queue::DEFAULT_QUEUE;
use stepfast_core::store::counters::Table;
use stepfast_core::store::{
    PendingSleep, Attempt, Checkpoint, Chunk, DeleteChunks, ExistingExecution, Flush, Move, Outcome, Start, State, Status, Write,
    cancel_outcome, encode_pending_sleeps,
};

use crate::conn::statements::ROWS;
use crate::conn::statements::{Sql, Statements};
use crate::error::{DbResult, DbError};
use crate::file_share::FileShare;
use crate::flush::bulk_insert::{Rows, Shape};
use crate::flush::depth::Gate;
use crate::flush::resend::is_first_try;
use crate::rows::payloads::{Aside, Column, fetch};
use crate::rows::{blob, key, key_of, maybe_text, payload_of, status_of, text};

/// One flush being applied, inside a transaction that holds the write lock.
pub(crate) struct Apply<'c, 'f> {
    pub(crate) sql: Statements<'c>,
    pub(crate) flush: &'f Flush,
    pub(crate) now: Timestamp,
    shared: &'f FileShare,
    /// Whether `requests` has any row; looked up when first needed.
    has_requests: Option<bool>,
    /// True once a Start was inserted that proves the flush.
    pub(crate) has_started: bool,
    /// Executions of its checkpoints and attempts that were asked for something before the flush.
    asked: HashSet<Key>,
    /// Rows gathered for statements that insert many.
    pub(crate) rows: Rows<'f>,
    /// Payloads that are put aside.
    pub(crate) aside: Aside,
    /// Queues that something of the flush is put into.
    gates: Vec<(&'f str, Gate)>,
    /// True to apply one row at a time.
    is_single: bool,
}

impl<'c, 'f> Apply<'c, 'f> {
    pub(crate) fn new(
        sql: Statements<'c>,
        flush: &'f Flush,
        now: Timestamp,
        shared: &'f FileShare,
        is_single: bool,
    ) -> Self {
        // too few for company
        let is_single = is_single || flush.writes.len() < ROWS;
        Self {
            sql,
            flush,
            now,
            shared,
            has_requests: None,
            has_started: false,
            asked: HashSet::new(),
            rows: Rows::new(),
            aside: Aside::default(),
            gates: Vec::new(),
            is_single,
        }
    }

    /// Applies all Writes; the outcomes that are not `Applied`, by index.
    pub(crate) fn all(&mut self) -> DbResult<Vec<(usize, Outcome)>> {
        let mut outcomes = Vec::new();
        let flush = self.flush;
        self.look_for_requests()?;
        for (i, write) in flush.writes.iter().enumerate() {
            let outcome = match write {
                Write::Start(start) => match Shape::of(start) {
                    Some(shape) if !self.is_single => {
                        self.gather_start(i, start, shape)?;
                        continue;
                    }
                    _ => self.start(start)?,
                },
                Write::Checkpoint(checkpoint) if !self.is_single => {
                    self.gather_checkpoint(i, checkpoint)?;
                    if self.asked.contains(&checkpoint.execution) {
                        outcomes.push((i, Outcome::CancelRequested));
                    }
                    continue;
                }
                Write::Checkpoint(checkpoint) => self.checkpoint(checkpoint)?,
                Write::Attempt(attempt) => self.attempt(attempt)?,
                Write::Transition(change) => self.change(change)?,
                Write::Wake(key) => self.wake(*key)?,
                Write::Request(request) => self.request(request)?,
                Write::ClearRequests(key) => self.answer(*key)?,
                Write::Chunk(chunk) => self.chunk(chunk)?,
                Write::DeleteChunks(discard) => self.discard(discard)?,
            };
            if !matches!(outcome, Outcome::Applied) {
                outcomes.push((i, outcome));
            }
        }
        self.insert_rest(&mut outcomes)?;
        self.keep_bounds()?;
        self.leave_proof()?;
        outcomes.retain(|(_, outcome)| !matches!(outcome, Outcome::Applied));
        outcomes.sort_unstable_by_key(|(i, _)| *i);
        Ok(outcomes)
    }

    pub(crate) fn start(&mut self, start: &'f Start) -> DbResult<Outcome> {
        if let Some(merged) = self.merge(start)? {
            return Ok(merged);
        }
        let gate = start.waiting_placement().map(|ticket| self.gate(&ticket.queue)).transpose()?;
        let begins = start.is_self_claiming() && gate.is_some_and(|i| self.gates[i].1.lets_begin);
        if let Some(i) = gate.filter(|_| !begins) {
            let (queue, gate) = &mut self.gates[i];
            if !gate.enter(&mut self.sql, start, queue)? {
                return self.refused(start);
            }
        }
        if start.is_self_claiming() && !begins {
            let queued = Start { state: State::Queued { armed: Vec::new() }, ..start.clone() };
            if self.start_any(&queued)? == 0 {
                return self.existing(start);
            }
            self.has_started = true;
            self.enter_attributes(start)?;
            self.enter_ready(start)?;
            return Ok(Outcome::Queued);
        }
        let inserted = match Shape::of(start) {
            Some(shape) => self.insert_starts(shape, &[(0, start)])?,
            None => self.start_any(start)?,
        };
        if inserted == 0 {
            return self.existing(start);
        }
        self.has_started |= is_first_try(start);
        self.enter_attributes(start)?;
        match &start.state {
            State::Queued { .. } if !start.has_begun => self.enter_ready(start)?,
            state => self.enter_roles(start.key, state)?,
        }
        Ok(Outcome::Applied)
    }

    /// Puts what is debounced into the one that is there, if there is one.
    fn merge(&mut self, start: &Start) -> DbResult<Option<Outcome>> {
        let (Some(most), State::Scheduled { due_at }) = (start.debounce_window, &start.state) else {
            return Ok(None);
        };
        // sent again under another number, it may be there itself
        if self.find_existing(start)?.is_some() {
            return Ok(None);
        }
        let ticket = start.placement.as_deref();
        let (queue, dedup_id) = (ticket.map(|ticket| &*ticket.queue), start.dedup_id.as_deref());
        self.aside.delete(&mut self.sql, Sql::InputToMerge, (queue, dedup_id))?;
        let waiting = self.aside.waiting();
        let input = self.aside.column(&mut self.sql, &start.input)?;
        let params = params![
            queue,
            dedup_id,
            input.bytes(),
            ticket.map(|ticket| &*ticket.key).filter(|key| !key.is_empty()),
            ticket.map(|ticket| ticket.priority).filter(|priority| *priority != 0),
            start.app_version.as_deref(),
            start.run_timeout.map(stored_millis),
        ];
        let found = self.sql.get(Sql::Merge)?.query_row(params, |row| Ok(existing(row))).optional()?;
        let Some((other, created_at)) = found.transpose()? else {
            self.aside.take_back(waiting);
            return Ok(None);
        };
        self.sql.tally.updated[Table::Executions as usize] += 1;
        let due_at = (*due_at).min(Timestamp::from_micros(created_at).plus(most));
        self.sql.run(Sql::PutOff, (key(&other.key), due_at.as_micros()))?;
        Ok(Some(Outcome::Duplicate(Box::new(other))))
    }

    /// Where it stands in `gates` what is known of a queue.
    fn gate(&mut self, queue: &'f str) -> DbResult<usize> {
        if let Some(i) = self.gates.iter().position(|(known, _)| *known == queue) {
            return Ok(i);
        }
        let gate = Gate::of(&mut self.sql, queue)?;
        self.gates.push((queue, gate));
        Ok(self.gates.len() - 1)
    }

    /// What a Start comes to whose queue is full.
    fn refused(&mut self, start: &Start) -> DbResult<Outcome> {
        if let Some((existing, _)) = self.find_existing(start)? {
            return Ok(Outcome::Duplicate(Box::new(existing)));
        }
        let other = if start.dedup_id.is_some() { self.find_deduplicated(start)? } else { None };
        Ok(other.map_or(Outcome::Full, |other| Outcome::Deduplicated(Some(other))))
    }

    fn keep_bounds(&mut self) -> DbResult<()> {
        for (queue, gate) in &self.gates {
            if let Some(bound) = gate.bound() {
                self.sql.run(Sql::SetDepthBound, (queue, bound))?;
            }
        }
        Ok(())
    }

    fn start_any(&mut self, start: &Start) -> DbResult<u64> {
        let state = &start.state;
        let waiting = self.aside.waiting();
        let (ended_at, outcome) = match state {
            State::Ended { outcome, at, .. } => {
                (Some(at.as_micros()), self.aside.column(&mut self.sql, outcome)?)
            }
            State::Parked { reason, .. } => (None, self.aside.column(&mut self.sql, reason)?),
            _ => (None, Column::Here(None)),
        };
        let input = self.aside.column(&mut self.sql, &start.input)?;
        let armed = armed(state.armed());
        let owner = matches!(state, State::Running { .. }).then_some(self.flush.worker.0);
        let ticket = start.placement.as_deref();
        let params = params![
            key(&start.key),
            (start.root != start.key).then(|| key(&start.root)),
            start.parent.as_ref().map(|parent| key(&parent.key)),
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
            armed,
            input.bytes(),
            outcome.bytes(),
            start.app_version.as_deref(),
            ticket.map(|ticket| &*ticket.queue),
            ticket.map(|ticket| &*ticket.key).filter(|key| !key.is_empty()),
            ticket.map(|ticket| ticket.priority).filter(|priority| *priority != 0),
            start.active_dedup_id().map(|dedup_id| &**dedup_id),
            start.run_timeout.map(stored_millis),
            // it begins without a claim
            start.is_self_claiming().then_some(false),
        ];
        let rows = self.sql.insert(Table::Executions, Sql::Start, params)?;
        if rows == 0 {
            self.aside.take_back(waiting);
        }
        Ok(rows)
    }

    fn enter_attributes(&mut self, start: &Start) -> DbResult<()> {
        for (name, value) in start.attributes.iter() {
            self.sql.insert(Table::Attributes, Sql::Attribute, (key(&start.key), name, value))?;
        }
        Ok(())
    }

    /// Whoever was there before a Start.
    pub(crate) fn existing(&mut self, start: &Start) -> DbResult<Outcome> {
        match self.find_existing(start)? {
            Some((existing, _)) => Ok(Outcome::Duplicate(Box::new(existing))),
            None if start.dedup_id.is_some() => Ok(Outcome::Deduplicated(self.find_deduplicated(start)?)),
            None => Err(DbError::corrupt("executions refuses a key that it does not have")),
        }
    }

    /// The row that has a Start's key or workflow_id, and when it was created.
    pub(crate) fn find_existing(&mut self, start: &Start) -> DbResult<Option<(ExistingExecution, i64)>> {
        let statement = self.sql.get(Sql::Existing)?;
        if let Some(found) = statement.query_row([key(&start.key)], |row| Ok(existing(row))).optional()? {
            return found.map(Some);
        }
        let Some(workflow_id) = start.workflow_id.as_deref() else { return Ok(None) };
        let statement = self.sql.get(Sql::ExistingById)?;
        statement.query_row([workflow_id], |row| Ok(existing(row))).optional()?.transpose()
    }

    /// The row that has a Start's dedup_id.
    fn find_deduplicated(&mut self, start: &Start) -> DbResult<Option<Box<ExistingExecution>>> {
        let queue = start.placement.as_deref().map(|ticket| &*ticket.queue);
        let statement = self.sql.get(Sql::ExistingByDedupId)?;
        let params = (queue, start.dedup_id.as_deref());
        let found = statement.query_row(params, |row| Ok(existing(row))).optional()?.transpose()?;
        Ok(found.map(|(existing, _)| Box::new(existing)))
    }

    pub(crate) fn checkpoint(&mut self, checkpoint: &'f Checkpoint) -> DbResult<Outcome> {
        let rows = self.insert_checkpoints(&[(0, checkpoint)])?;
        if rows == 1 || self.has_checkpoint(checkpoint)? == Some(true) {
            return Ok(self.heard(checkpoint.execution));
        }
        let (execution, path) = (checkpoint.execution, &checkpoint.path);
        Ok(Outcome::Rejected(format!("execution {execution} has another checkpoint at path {path}").into()))
    }

    /// Whether there is a checkpoint at this path, and whether it is this one.
    pub(crate) fn has_checkpoint(&mut self, checkpoint: &Checkpoint) -> DbResult<Option<bool>> {
        let params = (
            key(&checkpoint.execution),
            checkpoint.path.as_bytes(),
            checkpoint.run_no,
            checkpoint.order,
            checkpoint.at.as_micros(),
        );
        self.is_recorded(Sql::SameCheckpoint, params, &checkpoint.outcome)
    }

    fn attempt(&mut self, attempt: &Attempt) -> DbResult<Outcome> {
        let waiting = self.aside.waiting();
        let failure = self.aside.column(&mut self.sql, &attempt.failure)?;
        let params = (
            key(&attempt.execution),
            attempt.path.as_bytes(),
            attempt.attempt,
            attempt.at.as_micros(),
            failure.bytes(),
        );
        let rows = self.sql.insert(Table::Attempts, Sql::Attempt, params)?;
        if rows == 0 {
            self.aside.take_back(waiting);
        }
        if rows == 1 || self.has_attempt(attempt)? == Some(true) {
            return Ok(self.heard(attempt.execution));
        }
        let Attempt { execution, path, attempt, .. } = attempt;
        Ok(Outcome::Rejected(
            format!("execution {execution} has another attempt {attempt} at path {path}").into(),
        ))
    }

    /// Whether there is an attempt of this number, and whether it is this one.
    pub(crate) fn has_attempt(&mut self, attempt: &Attempt) -> DbResult<Option<bool>> {
        let params =
            (key(&attempt.execution), attempt.path.as_bytes(), attempt.attempt, attempt.at.as_micros());
        self.is_recorded(Sql::SameAttempt, params, &attempt.failure)
    }

    /// Whether a row is there, and whether it is this one: `same` compares its short columns, and selects its payload.
    fn is_recorded(&mut self, same: Sql, params: impl Params, payload: &Payload) -> DbResult<Option<bool>> {
        let statement = self.sql.get(same)?;
        let found = statement.query_row(params, |row| Ok((row.get(0)?, payload_of(row, 1)))).optional()?;
        let Some((is_same, found)): Option<(bool, _)> = found else { return Ok(None) };
        let mut found = found?;
        // its pieces may be of this transaction
        self.aside.insert(&mut self.sql)?;
        let is_whole = fetch(&mut self.sql, &mut found)?;
        Ok(Some(is_same && is_whole && found.as_bytes() == payload.as_bytes()))
    }

    fn change(&mut self, change: &Move) -> DbResult<Outcome> {
        let (id, owner) = (key(&change.key), self.flush.worker.0);
        let instead; // the state of an execution with a request that is not answered
        let mut outcome = Outcome::Applied;
        let state = match &change.state {
            State::Waiting { armed, .. } | State::Parked { armed, .. } if self.is_asked(change.key)? => {
                instead = State::Queued { armed: armed.clone() };
                &instead
            }
            State::Ended { status, at, .. }
                if *status != Status::Cancelled && self.is_asked(change.key)? =>
            {
                instead = State::Ended { status: Status::Cancelled, outcome: cancel_outcome(), at: *at };
                outcome = Outcome::Cancelled;
                &instead
            }
            state => state,
        };
        let waiting = self.aside.waiting();
        let rows = match state {
            State::Ended { status, outcome, at } => {
                let outcome = self.aside.column(&mut self.sql, outcome)?;
                let params = (id, owner, *status as i64, outcome.bytes(), at.as_micros());
                // without a queue it most often has no dedup_id
                let rows = match &change.ticket {
                    None => self.sql.update(Table::Executions, Sql::MoveEndedPlain, params)?,
                    Some(_) => 0,
                };
                if rows > 0 { rows } else { self.sql.update(Table::Executions, Sql::MoveEnded, params)? }
            }
            State::Running { armed: sleeps } => {
                let params = (id, owner, armed(sleeps));
                self.sql.update(Table::Executions, Sql::MoveRunning, params)?
            }
            state => {
                let reason = match state {
                    State::Parked { reason, .. } => self.aside.column(&mut self.sql, reason)?,
                    _ => Column::Here(None),
                };
                let is_paused = matches!(state, State::Parked { .. });
                let armed = armed(state.armed());
                let params = (id, owner, state.status() as i64, is_paused, reason.bytes(), armed);
                self.sql.update(Table::Executions, Sql::Move, params)?
            }
        };
        if rows == 0 {
            self.aside.take_back(waiting);
            return Ok(Outcome::NotFound);
        }
        if matches!(state, State::Ended { .. }) && self.is_asked(change.key)? {
            self.sql.delete(Table::Requests, Sql::Answer, [id])?;
        }
        if let (Some(ticket), false) = (&change.ticket, matches!(state, State::Running { .. })) {
            self.sql.delete(Table::Slots, Sql::Unslot, (&*ticket.queue, &*ticket.key, id))?;
        }
        self.enter_roles(change.key, state)?;
        Ok(outcome)
    }

    /// Inserts what the role tables hold of a state that was just entered.
    fn enter_roles(&mut self, id: Key, state: &State) -> DbResult<()> {
        match state {
            State::Queued { .. } => self.ready(id, false)?,
            State::Scheduled { due_at } => {
                self.sql.insert(Table::Timers, Sql::Timer, (key(&id), due_at.as_micros()))?;
            }
            State::Waiting { wake_at, children, .. } => {
                if let Some(wake_at) = wake_at {
                    self.sql.insert(Table::Timers, Sql::Timer, (key(&id), wake_at.as_micros()))?;
                }
                for child in children {
                    self.sql.insert(Table::Waits, Sql::Wait, (key(&id), key(child)))?;
                }
            }
            State::Running { .. } | State::Parked { .. } | State::Ended { .. } => {}
        }
        Ok(())
    }

    /// Makes a new execution claimable.
    fn enter_ready(&mut self, start: &Start) -> DbResult<()> {
        let seq = self.shared.next_seq(self.now);
        let ticket = start.placement.as_deref();
        let params = (
            key(&start.key),
            seq,
            &*start.workflow,
            start.app_version.as_deref(),
            ticket.map_or(DEFAULT_QUEUE, |ticket| &*ticket.queue),
            ticket.map_or("", |ticket| &*ticket.key),
            ticket.map_or(0, |ticket| ticket.priority),
        );
        self.sql.insert(Table::Ready, Sql::Ready, params)?;
        Ok(())
    }

    /// Makes an execution claimable again; `is_woken` if it goes on after it has waited.
    pub(crate) fn ready(&mut self, id: Key, is_woken: bool) -> DbResult<()> {
        self.sql.insert(Table::Ready, Sql::ReadyAs, (key(&id), is_woken))?;
        Ok(())
    }

    fn wake(&mut self, id: Key) -> DbResult<Outcome> {
        let params = (key(&id), self.now.as_micros());
        if self.sql.update(Table::Executions, Sql::Wake, params)? == 0 {
            return Ok(Outcome::NotFound);
        }
        self.sql.delete(Table::Timers, Sql::Untimer, [key(&id)])?;
        self.sql.delete(Table::Waits, Sql::Unwait, [key(&id)])?;
        self.ready(id, true)?;
        Ok(Outcome::Applied)
    }

    fn answer(&mut self, id: Key) -> DbResult<Outcome> {
        self.sql.delete(Table::Requests, Sql::Answer, [key(&id)])?;
        Ok(Outcome::Applied)
    }

    fn chunk(&mut self, chunk: &Chunk) -> DbResult<Outcome> {
        let params = (key(&chunk.execution), chunk.value as i64, chunk.index, &*chunk.bytes);
        self.sql.insert(Table::Chunks, Sql::Chunk, params)?;
        Ok(Outcome::Applied)
    }

    fn discard(&mut self, discard: &DeleteChunks) -> DbResult<Outcome> {
        let id = key(&discard.execution);
        // one value after the other: their pieces are large, and few
        let mut from = i64::MIN;
        loop {
            let statement = self.sql.get(Sql::NextValue)?;
            let next = statement.query_row((id, from), |row| row.get::<_, i64>(0)).optional()?;
            let Some(value) = next else { break };
            if !discard.keep.contains(&(value as u64)) {
                self.sql.delete(Table::Chunks, Sql::DeleteValue, (id, value))?;
            }
            let Some(after) = value.checked_add(1) else { break };
            from = after;
        }
        Ok(Outcome::Applied)
    }

    /// Finds the executions of the flush's checkpoints and attempts that are asked for something, before any of its
    /// Writes is applied.
    fn look_for_requests(&mut self) -> DbResult<()> {
        for write in &self.flush.writes {
            let (Write::Checkpoint(Checkpoint { execution, .. }) | Write::Attempt(Attempt { execution, .. })) =
                write
            else {
                continue;
            };
            if !self.has_requests()? {
                break;
            }
            if self.is_asked(*execution)? {
                self.asked.insert(*execution);
            }
        }
        Ok(())
    }

    /// Returns the outcome of a checkpoint or an attempt of an execution that may be asked to cancel.
    fn heard(&self, execution: Key) -> Outcome {
        if self.asked.contains(&execution) { Outcome::CancelRequested } else { Outcome::Applied }
    }

    /// True if something is asked for with the execution, which this flush does not answer.
    fn is_asked(&mut self, id: Key) -> DbResult<bool> {
        if !self.has_requests()? {
            return Ok(false);
        }
        let is_answered =
            self.flush.writes.iter().any(|write| matches!(write, Write::ClearRequests(answered) if *answered == id));
        Ok(!is_answered && self.sql.exists(Sql::HasAsked, [key(&id)])?)
    }

    /// True if something is asked for with any execution: almost always nothing is, which one look per flush tells.
    fn has_requests(&mut self) -> DbResult<bool> {
        if let Some(has_requests) = self.has_requests {
            return Ok(has_requests);
        }
        let has_requests = self.sql.exists(Sql::AnyAsked, [])?;
        self.has_requests = Some(has_requests);
        Ok(has_requests)
    }

    /// Remembers that `requests` has a row now.
    pub(crate) fn asked(&mut self) {
        self.has_requests = Some(true);
    }
}

fn armed(armed: &[PendingSleep]) -> Option<Vec<u8>> {
    (!armed.is_empty()).then(|| encode_pending_sleeps(armed))
}

/// A row that a Start met, and when it was created.
fn existing(row: &rusqlite::Row<'_>) -> DbResult<(ExistingExecution, i64)> {
    let existing = ExistingExecution {
        key: key_of(row, 0)?,
        given_id: maybe_text(row, 6)?,
        workflow: text(row, 1)?,
        fingerprint: row.get::<_, Option<i64>>(2)?.map(|fingerprint| fingerprint as u64),
        parent: blob(row, 3)?.is_some().then(|| key_of(row, 3)).transpose()?,
        // as it is shown: see `Execution::note_unknown_status`
        status: status_of(row, 4)?.unwrap_or(Status::Queued),
    };
    Ok((existing, row.get(5)?))
}
