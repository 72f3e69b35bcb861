//! Application of a flush: one function per kind of Write.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::tables::{MAX_KEY, MIN_KEY, Tables};
use crate::clock::{MAX_STORED_DURATION, Timestamp};
use crate::key::Key;
use crate::payload::{ChunkRef, Payload};
use crate::store::counters::{Counters, Table};
use crate::store::{
    Attempt, Checkpoint, CheckpointKind, Chunk, DeleteChunks, Execution, ExistingExecution, Flush, Outcome,
    Request, RequestKind, RequestResult, Start, State, Status, StoreError, Transition, WorkerId, Write,
    cancel_outcome, continues_in_place,
};

impl Tables {
    /// Applies all Writes, or none if the result is an error. Returns the outcomes other than `Applied`.
    pub(super) fn apply(
        &mut self,
        flush: &Flush,
        now: Timestamp,
        counters: &Counters,
    ) -> Result<Vec<(usize, Outcome)>, StoreError> {
        self.check_inserts(&flush.writes)?;
        // The Writes are grouped by kind. So a ClearRequests takes effect before a Transition, and a cancel reaches
        // children that start in the same flush.
        let mut order: Vec<usize> = (0..flush.writes.len()).collect();
        order.sort_by_key(|i| apply_order(&flush.writes[*i]));
        let mut outcomes = Vec::new();
        for i in order {
            let outcome = match &flush.writes[i] {
                Write::Start(start) => self.apply_start(start, flush.worker, counters),
                Write::Checkpoint(checkpoint) => self.apply_checkpoint(checkpoint, counters),
                Write::Attempt(attempt) => self.apply_attempt(attempt, counters),
                Write::Transition(transition) => self.apply_transition(transition, flush.worker, counters),
                Write::Wake(key) => self.apply_wake(*key, now, counters),
                Write::Request(request) => self.apply_request(request, counters),
                Write::ClearRequests(key) => self.apply_clear_requests(*key, counters),
                Write::Chunk(chunk) => self.apply_chunk(chunk, counters),
                Write::DeleteChunks(deletion) => self.apply_delete_chunks(deletion, counters),
                Write::Pack(pack) => self.apply_pack(pack, counters),
                Write::CloseBatch(close) => self.apply_close_batch(close, counters),
                Write::Forward(forward) => self.apply_forward(*forward, counters),
                Write::Send(message) => self.apply_send(message, counters),
                Write::Append(append) => {
                    self.append_entry(append.execution, &append.stream, &append.entry, counters);
                    Outcome::Applied
                }
            };
            if outcome != Outcome::Applied {
                outcomes.push((i, outcome));
            }
        }
        outcomes.sort_by_key(|(i, _)| *i);
        Ok(outcomes)
    }

    /// Rejects a flush that records a second outcome of a call, or the same attempt again. Fenced lanes never reach
    /// this point, so a duplicate is a bug in the sender.
    fn check_inserts(&self, writes: &[Write]) -> Result<(), StoreError> {
        for write in writes {
            if let Write::Pack(pack) = write
                && self.packs.contains_key(&(pack.bundle, pack.number()))
            {
                let (bundle, number) = (pack.bundle, pack.number());
                return Err(StoreError::Rejected(format!("bundle {bundle} already has pack {number}")));
            }
            let (exists, kind, path) = match write {
                Write::Checkpoint(Checkpoint { execution, path, .. }) => {
                    (self.checkpoints.contains_key(&(*execution, path.clone())), "checkpoint", path)
                }
                Write::Attempt(Attempt { execution, path, attempt, .. }) => {
                    (self.attempts.contains_key(&(*execution, path.clone(), *attempt)), "attempt", path)
                }
                _ => continue,
            };
            if exists {
                let execution = write.execution();
                return Err(StoreError::Rejected(format!(
                    "execution {execution} already has this {kind} at {path}"
                )));
            }
        }
        Ok(())
    }

    fn apply_start(&mut self, start: &Start, worker: WorkerId, counters: &Counters) -> Outcome {
        let key_of_id = start.workflow_id.as_ref().and_then(|id| self.keys.get(id));
        if let Some(existing) = self.executions.get(&start.key).or_else(|| self.executions.get(key_of_id?)) {
            return Outcome::Duplicate(Box::new(ExistingExecution::from(existing)));
        }
        let dedup = start.active_dedup_id().zip(start.placement.as_ref());
        let dedup = dedup.map(|(id, placement)| (placement.queue.clone(), id.clone()));
        if let Some(other) = dedup.as_ref().and_then(|dedup| self.dedups.get(dedup).copied()) {
            if let (Some(window), State::Scheduled { due_at }) = (start.debounce_window, &start.state) {
                return self.merge_debounced(other, start, window, *due_at, counters);
            }
            let existing = self.executions.get(&other);
            return Outcome::Deduplicated(existing.map(|row| Box::new(ExistingExecution::from(row))));
        }
        let is_full = start.waiting_placement().is_some_and(|placement| self.is_full(&placement.queue));
        if is_full && start.can_be_rejected() {
            return Outcome::Full;
        }
        if !self.fits_into_batch(start) {
            return Outcome::NotFound;
        }
        let row = Execution {
            key: start.key,
            root: start.root,
            parent: start.parent.clone(),
            given_id: start.workflow_id.clone(),
            workflow: start.workflow.clone(),
            fingerprint: start.fingerprint,
            input: start.input.clone(),
            run_no: 1,
            recoveries: 0,
            strikes: 0,
            app_version: start.app_version.clone(),
            placement: start.placement.clone(),
            dedup_id: start.active_dedup_id().cloned(),
            created_at: start.created_at,
            deadline_at: start.deadline_at,
            run_timeout: start.run_timeout.map(|timeout| timeout.min(MAX_STORED_DURATION)),
            attributes: start.attributes.clone(),
            wake_at: None,
            unreadable: None,
            // the following fields depend on the state
            status: Status::Queued,
            is_parked: false,
            outcome: crate::Payload::empty(),
            owner: None,
            ended_at: None,
            pending_sleeps: Vec::new(),
        };
        self.executions.insert(start.key, row);
        self.dedups.extend(dedup.map(|dedup| (dedup, start.key)));
        self.keys.extend(start.workflow_id.clone().map(|id| (id, start.key)));
        self.children.extend(start.parent.as_ref().map(|parent| (parent.key, start.key)));
        counters.add_inserted(Table::Executions, 1);
        self.insert_batch_rows(start, counters);
        let queued = State::Queued { pending_sleeps: Vec::new() };
        let waits = start.is_self_claiming()
            && !start
                .placement
                .as_ref()
                .is_some_and(|placement| self.allows_immediate_start(&placement.queue));
        let state = if waits { &queued } else { &start.state };
        self.set_state_columns(start.key, state, Some(worker));
        self.insert_role_rows(start.key, state, !start.has_begun, counters);
        if waits { Outcome::Queued } else { Outcome::Applied }
    }

    /// Merges a debounced Start into the execution `key`, which is still scheduled.
    fn merge_debounced(
        &mut self,
        key: Key,
        start: &Start,
        window: Duration,
        due_at: Timestamp,
        counters: &Counters,
    ) -> Outcome {
        let Some(row) = self.executions.get_mut(&key) else { return Outcome::Deduplicated(None) };
        row.input = start.input.clone();
        row.placement = start.placement.clone();
        row.app_version = start.app_version.clone();
        row.run_timeout = start.run_timeout.map(|timeout| timeout.min(MAX_STORED_DURATION));
        let existing = ExistingExecution::from(&*row);
        let due_at = due_at.min(row.created_at.plus(window));
        self.set_state(key, &State::Scheduled { due_at }, None, counters);
        Outcome::Duplicate(Box::new(existing))
    }

    fn apply_checkpoint(&mut self, checkpoint: &Checkpoint, counters: &Counters) -> Outcome {
        let row =
            Checkpoint { number: None, outcome: checkpoint.stored_outcome().clone(), ..checkpoint.clone() };
        self.checkpoints.insert((checkpoint.execution, checkpoint.path.clone()), row);
        counters.add_inserted(Table::Checkpoints, 1);
        self.delete_received(checkpoint, counters);
        if let Some(entry) = checkpoint.entry() {
            let stream = checkpoint.name.to_string().into();
            self.append_entry(checkpoint.execution, &stream, &entry, counters);
        }
        self.outcome_of_record(checkpoint.execution)
    }

    /// Returns the outcome of a Checkpoint or an Attempt. If a cancel is pending, the outcome reports it.
    fn outcome_of_record(&self, execution: Key) -> Outcome {
        if self.has_cancel(execution) { Outcome::CancelRequested } else { Outcome::Applied }
    }

    fn apply_attempt(&mut self, attempt: &Attempt, counters: &Counters) -> Outcome {
        self.attempts.insert((attempt.execution, attempt.path.clone(), attempt.attempt), attempt.clone());
        counters.add_inserted(Table::Attempts, 1);
        self.outcome_of_record(attempt.execution)
    }

    fn apply_transition(
        &mut self,
        transition: &Transition,
        worker: WorkerId,
        counters: &Counters,
    ) -> Outcome {
        if !self.owned.contains(&(worker, transition.key)) {
            return Outcome::NotFound;
        }
        let has_cancel = self.has_cancel(transition.key);
        let has_request = self.requests_of(transition.key).next().is_some();
        let mut outcome = Outcome::Applied;
        match &transition.state {
            State::Waiting { pending_sleeps, .. } | State::Parked { pending_sleeps, .. }
                if has_cancel || has_request && transition.state.status() == Status::Waiting =>
            {
                self.set_state(
                    transition.key,
                    &State::Queued { pending_sleeps: pending_sleeps.clone() },
                    None,
                    counters,
                );
            }
            State::Parked { pending_sleeps, is_pause, .. } => {
                let is_pending = self.delete_pauses(transition.key, counters);
                let queued = State::Queued { pending_sleeps: pending_sleeps.clone() };
                let state = if *is_pause && !is_pending { &queued } else { &transition.state };
                self.set_state(transition.key, state, Some(worker), counters);
            }
            State::Ended { status, at, .. } if has_cancel && *status != Status::Cancelled => {
                let state = State::Ended { status: Status::Cancelled, outcome: cancel_outcome(), at: *at };
                self.set_state(transition.key, &state, Some(worker), counters);
                outcome = Outcome::Cancelled;
            }
            state => self.set_state(transition.key, state, Some(worker), counters),
        }
        if transition.state.status().is_terminal() {
            self.clear_requests(transition.key, counters);
        }
        outcome
    }

    fn apply_wake(&mut self, key: Key, now: Timestamp, counters: &Counters) -> Outcome {
        let is_woken = if key.is_batch() {
            self.end_batch(key, now, counters)
        } else {
            (self.is_due(key, now) || self.has_satisfied_wait(key)) && self.queue_waiting(key, counters)
        };
        if is_woken { Outcome::Applied } else { Outcome::NotFound }
    }

    fn apply_request(&mut self, request: &Request, counters: &Counters) -> Outcome {
        let Some(row) = self.executions.get(&request.execution) else { return Outcome::NotFound };
        let (status, parent) = (row.status, row.parent.as_ref().map(|parent| parent.key));
        let (is_parked, pending_sleeps) = (row.is_parked, row.pending_sleeps.clone());
        let has_pause = self.requests_of(request.execution).any(|kind| kind == RequestKind::Pause);
        let result = request.decide(status, row.is_parked, row.deadline_at, has_pause);
        match request.kind {
            _ if matches!(result, RequestResult::NotApplicable(_)) => {}
            RequestKind::Cancel | RequestKind::Expire => self.cancel_tree(request, counters),
            RequestKind::Resume if !continues_in_place(status, is_parked) => {
                self.delete_pauses(request.execution, counters);
            }
            RequestKind::Resume => {
                if status == Status::Failed {
                    self.retract_failures(request.execution, counters);
                }
                self.delete_pauses(request.execution, counters);
                let outcome = self.executions.get(&request.execution).map(|row| row.outcome.clone());
                self.delete_value(request.execution, &outcome.unwrap_or_default(), counters);
                if status.is_terminal() {
                    self.resume_in_next_run(request.execution, counters);
                } else {
                    self.set_state(request.execution, &State::Queued { pending_sleeps }, None, counters);
                }
                self.reset_strikes(request.execution);
            }
            RequestKind::CancelItem(_) => self.insert_request(request.execution, request, counters),
            RequestKind::Pause if status == Status::Running => {
                self.insert_request(request.execution, request, counters);
            }
            RequestKind::Pause if is_parked => {}
            RequestKind::Pause => {
                self.delete_pauses(request.execution, counters);
                let reason = request.reason.clone();
                let state = State::Parked { reason, pending_sleeps, is_pause: false };
                self.set_state(request.execution, &state, None, counters);
            }
        }
        request.outcome(result, parent)
    }

    /// Cancels an execution and, recursively, its awaited children that have not ended. A running execution gets a row
    /// in `requests`; the others end.
    fn cancel_tree(&mut self, request: &Request, counters: &Counters) {
        let mut pending = vec![request.execution];
        while let Some(key) = pending.pop() {
            pending.extend(self.awaited_children(key));
            if self.executions.get(&key).is_some_and(|row| row.status == Status::Running) {
                self.insert_request(key, request, counters);
            } else {
                let status = Status::Cancelled;
                let state = State::Ended { status, outcome: request.reason.clone(), at: request.at };
                self.set_state(key, &state, None, counters);
                self.clear_requests(key, counters);
            }
        }
    }

    /// Adds a row to `requests`, unless the request is there already.
    fn insert_request(&mut self, key: Key, request: &Request, counters: &Counters) {
        if self.requests.insert((key, request.id), request.recorded_kind()).is_none() {
            counters.add_inserted(Table::Requests, 1);
        }
    }

    /// Deletes the pending pauses of an execution. Returns whether there were any.
    fn delete_pauses(&mut self, key: Key, counters: &Counters) -> bool {
        let pauses: Vec<_> = self
            .requests
            .range((key, MIN_KEY)..=(key, MAX_KEY))
            .filter(|(_, kind)| **kind == RequestKind::Pause)
            .map(|(id, _)| *id)
            .collect();
        for id in &pauses {
            self.requests.remove(id);
        }
        counters.add_deleted(Table::Requests, pauses.len() as u64);
        !pauses.is_empty()
    }

    /// Whether a cancel of the execution is pending.
    fn has_cancel(&self, key: Key) -> bool {
        self.requests_of(key).any(|kind| kind == RequestKind::Cancel)
    }

    /// Deletes the failures of steps at the end of the record, with their attempts and the abandoned calls after them.
    /// These steps are then tried again.
    fn retract_failures(&mut self, key: Key, counters: &Counters) {
        let mut recorded: Vec<Checkpoint> = self.checkpoints_of(key).cloned().collect();
        recorded.sort_by_key(|checkpoint| checkpoint.order);
        let is_kept =
            |it: &Checkpoint| !matches!(it.kind, CheckpointKind::Failed | CheckpointKind::Abandoned);
        let last = recorded.split_off(recorded.iter().rposition(is_kept).map_or(0, |at| at + 1));
        let retracted = last.into_iter().skip_while(|it| it.kind != CheckpointKind::Failed);
        for Checkpoint { path, kind, outcome, .. } in retracted {
            self.delete_value(key, &outcome, counters);
            self.checkpoints.remove(&(key, path.clone()));
            counters.add_deleted(Table::Checkpoints, 1);
            if kind == CheckpointKind::Failed {
                self.attempts.retain(|(execution, step, _), _| (*execution, step) != (key, &path));
            }
        }
    }

    /// Queues an ended execution again, under the next run_no.
    fn resume_in_next_run(&mut self, key: Key, counters: &Counters) {
        self.set_state(key, &State::Queued { pending_sleeps: Vec::new() }, None, counters);
        if let Some(row) = self.executions.get_mut(&key) {
            row.run_no += 1;
            if let Some(deadline_at) = row.deadline_at.take() {
                self.deadlines.remove(&(deadline_at, key));
            }
        }
    }

    fn apply_clear_requests(&mut self, key: Key, counters: &Counters) -> Outcome {
        self.clear_requests(key, counters);
        Outcome::Applied
    }

    fn apply_chunk(&mut self, chunk: &Chunk, counters: &Counters) -> Outcome {
        if chunk.is_withdrawal() {
            let (first, last) = ((chunk.execution, chunk.value, 0), (chunk.execution, chunk.value, u32::MAX));
            self.delete_chunks(first..=last, |_| true, counters);
            return Outcome::Applied;
        }
        self.chunks.entry((chunk.execution, chunk.value, chunk.index)).or_insert_with(|| {
            counters.add_inserted(Table::Chunks, 1);
            chunk.bytes.clone()
        });
        Outcome::Applied
    }

    fn apply_delete_chunks(&mut self, deletion: &DeleteChunks, counters: &Counters) -> Outcome {
        let (first, last) = ((deletion.execution, 0, 0), (deletion.execution, u64::MAX, u32::MAX));
        self.delete_chunks(first..=last, |value| !deletion.keep.contains(&value), counters);
        Outcome::Applied
    }

    /// Deletes the chunks to which a payload of the execution refers.
    fn delete_value(&mut self, key: Key, payload: &Payload, counters: &Counters) {
        if let Some(ChunkRef { value, .. }) = payload.chunk_ref() {
            self.delete_chunks((key, value, 0)..=(key, value, u32::MAX), |_| true, counters);
        }
    }

    /// Deletes the chunks in a range whose values are orphaned.
    fn delete_chunks(
        &mut self,
        range: RangeInclusive<(Key, u64, u32)>,
        is_orphaned: impl Fn(u64) -> bool,
        counters: &Counters,
    ) {
        let orphans: Vec<_> =
            self.chunks.range(range).map(|(id, _)| *id).filter(|(_, value, _)| is_orphaned(*value)).collect();
        for id in &orphans {
            self.chunks.remove(id);
        }
        counters.add_deleted(Table::Chunks, orphans.len() as u64);
    }
}

/// Returns the position of a Write's kind in the order of application.
fn apply_order(write: &Write) -> u8 {
    match write {
        Write::Start(_) => 0,
        Write::ClearRequests(_) => 1,
        Write::Checkpoint(_) => 2,
        Write::Attempt(_) => 3,
        Write::Transition(_) => 4,
        Write::Wake(_) => 5,
        Write::Request(_) => 6,
        Write::Chunk(_) => 7,
        Write::DeleteChunks(_) => 8,
        Write::Pack(_) => 9,
        Write::CloseBatch(_) => 10,
        Write::Append(_) => 11,
        Write::Forward(_) => 12,
        Write::Send(_) => 13,
    }
}
