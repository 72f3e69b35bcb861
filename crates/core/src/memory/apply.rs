//! Applying a flush: one function per Write.

use std::time::Duration;

use super::tables::Tables;
use crate::clock::{MAX_STORED_DURATION, Timestamp};
use crate::key::Key;
use crate::store::counters::{Counters, Table};
use crate::store::{
    RequestResult, Attempt, Checkpoint, CheckpointKind, Chunk, DeleteChunks, Execution, ExistingExecution, Flush, Move, Outcome,
    Request, RequestKind, Start, State, Status, StoreError, WorkerId, Write, cancel_outcome,
};

/// What a row is to a Start that lost against it.
fn existing_of(row: &Execution) -> ExistingExecution {
    ExistingExecution {
        key: row.key,
        given_id: row.given_id.clone(),
        workflow: row.workflow.clone(),
        fingerprint: row.fingerprint,
        parent: row.parent.as_ref().map(|parent| parent.key),
        status: row.status,
    }
}

impl Tables {
    /// Applies all Writes or, if it returns an error, none. Returns the outcomes that are not `Applied`.
    pub(super) fn apply(
        &mut self,
        flush: &Flush,
        now: Timestamp,
        counters: &Counters,
    ) -> Result<Vec<(usize, Outcome)>, StoreError> {
        self.check_inserts(&flush.writes)?;
        // Grouped by kind: an Answer counts before a Move, and a cancel goes down to children that start in
        // the same flush.
        let mut order: Vec<usize> = (0..flush.writes.len()).collect();
        order.sort_by_key(|i| kind_number(&flush.writes[*i]));
        let mut outcomes = Vec::new();
        for i in order {
            let outcome = match &flush.writes[i] {
                Write::Start(start) => self.start(start, flush.worker, counters),
                Write::Checkpoint(checkpoint) => self.checkpoint(checkpoint, counters),
                Write::Attempt(attempt) => self.attempt(attempt, counters),
                Write::Transition(change) => self.change(change, flush.worker, counters),
                Write::Wake(key) => self.wake(*key, now, counters),
                Write::Request(request) => self.request(request, counters),
                Write::ClearRequests(key) => self.answer(*key, counters),
                Write::Chunk(chunk) => self.chunk(chunk, counters),
                Write::DeleteChunks(discard) => self.discard(discard, counters),
            };
            if outcome != Outcome::Applied {
                outcomes.push((i, outcome));
            }
        }
        outcomes.sort_by_key(|(i, _)| *i);
        Ok(outcomes)
    }

    /// A second outcome of a step, or record of an attempt, is an error of the flush: a fenced lane cannot
    /// get here, so nobody sends one who has not lost track of what he recorded.
    fn check_inserts(&self, writes: &[Write]) -> Result<(), StoreError> {
        for write in writes {
            let (there, what, path) = match write {
                Write::Checkpoint(Checkpoint { execution, path, .. }) => {
                    (self.checkpoints.contains_key(&(*execution, path.clone())), "checkpoint", path)
                }
                Write::Attempt(Attempt { execution, path, attempt, .. }) => {
                    (self.attempts.contains_key(&(*execution, path.clone(), *attempt)), "attempt", path)
                }
                _ => continue,
            };
            if there {
                let execution = write.execution();
                return Err(StoreError::Rejected(format!(
                    "a {what} of execution {execution} at {path} is there already"
                )));
            }
        }
        Ok(())
    }

    fn start(&mut self, start: &Start, worker: WorkerId, counters: &Counters) -> Outcome {
        let taken = start.workflow_id.as_ref().and_then(|id| self.keys.get(id));
        if let Some(existing) = self.executions.get(&start.key).or_else(|| self.executions.get(taken?)) {
            return Outcome::Duplicate(Box::new(existing_of(existing)));
        }
        let dedup = start.active_dedup_id().zip(start.placement.as_ref());
        let dedup = dedup.map(|(id, ticket)| (ticket.queue.clone(), id.clone()));
        if let Some(other) = dedup.as_ref().and_then(|dedup| self.dedups.get(dedup).copied()) {
            if let (Some(most), State::Scheduled { due_at }) = (start.debounce_window, &start.state) {
                return self.merge(other, start, most, *due_at, counters);
            }
            let existing = self.executions.get(&other);
            return Outcome::Deduplicated(existing.map(|row| Box::new(existing_of(row))));
        }
        let is_full = start.waiting_placement().is_some_and(|ticket| self.is_full(&ticket.queue));
        if is_full && start.can_be_rejected() {
            return Outcome::Full;
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
            // what follows is the state's
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
        let queued = State::Queued { armed: Vec::new() };
        let waits =
            start.is_self_claiming() && !start.placement.as_ref().is_some_and(|ticket| self.lets_begin(&ticket.queue));
        let state = if waits { &queued } else { &start.state };
        self.write_state(start.key, state, Some(worker));
        self.enter_roles(start.key, state, !start.has_begun, counters);
        if waits { Outcome::Queued } else { Outcome::Applied }
    }

    /// Puts what is debounced into the one that is there.
    fn merge(
        &mut self,
        key: Key,
        start: &Start,
        most: Duration,
        due_at: Timestamp,
        counters: &Counters,
    ) -> Outcome {
        let Some(row) = self.executions.get_mut(&key) else { return Outcome::Deduplicated(None) };
        row.input = start.input.clone();
        row.placement = start.placement.clone();
        row.app_version = start.app_version.clone();
        row.run_timeout = start.run_timeout.map(|timeout| timeout.min(MAX_STORED_DURATION));
        let existing = existing_of(row);
        let due_at = due_at.min(row.created_at.plus(most));
        self.enter(key, &State::Scheduled { due_at }, None, counters);
        Outcome::Duplicate(Box::new(existing))
    }

    fn checkpoint(&mut self, checkpoint: &Checkpoint, counters: &Counters) -> Outcome {
        self.checkpoints.insert((checkpoint.execution, checkpoint.path.clone()), checkpoint.clone());
        counters.add_inserted(Table::Checkpoints, 1);
        self.heard(checkpoint.execution)
    }

    /// Returns the outcome of a record of an execution that may be asked to cancel.
    fn heard(&self, execution: Key) -> Outcome {
        let is_asked = self.requests_of(execution).next().is_some();
        if is_asked { Outcome::CancelRequested } else { Outcome::Applied }
    }

    fn attempt(&mut self, attempt: &Attempt, counters: &Counters) -> Outcome {
        self.attempts.insert((attempt.execution, attempt.path.clone(), attempt.attempt), attempt.clone());
        counters.add_inserted(Table::Attempts, 1);
        self.heard(attempt.execution)
    }

    fn change(&mut self, change: &Move, worker: WorkerId, counters: &Counters) -> Outcome {
        if !self.owned.contains(&(worker, change.key)) {
            return Outcome::NotFound;
        }
        let is_asked = self.requests_of(change.key).next().is_some();
        let mut outcome = Outcome::Applied;
        match &change.state {
            State::Waiting { armed, .. } | State::Parked { armed, .. } if is_asked => {
                self.enter(change.key, &State::Queued { armed: armed.clone() }, None, counters);
            }
            State::Ended { status, at, .. } if is_asked && *status != Status::Cancelled => {
                let state = State::Ended { status: Status::Cancelled, outcome: cancel_outcome(), at: *at };
                self.enter(change.key, &state, Some(worker), counters);
                outcome = Outcome::Cancelled;
            }
            state => self.enter(change.key, state, Some(worker), counters),
        }
        if change.state.status().is_terminal() {
            self.clear_requests(change.key, counters);
        }
        outcome
    }

    fn wake(&mut self, key: Key, now: Timestamp, counters: &Counters) -> Outcome {
        if (self.is_due(key, now) || self.is_called(key)) && self.queue_waiting(key, counters) {
            Outcome::Applied
        } else {
            Outcome::NotFound
        }
    }

    fn request(&mut self, request: &Request, counters: &Counters) -> Outcome {
        let Some(row) = self.executions.get(&request.execution) else { return Outcome::NotFound };
        match request.kind {
            RequestKind::Cancel => {
                let parent = row.parent.as_ref().map(|parent| parent.key);
                match row.status {
                    status if status.is_terminal() => Outcome::RequestHandled(RequestResult::NotApplicable(status), None),
                    Status::Running => {
                        self.cancel_tree(request, counters);
                        Outcome::RequestHandled(RequestResult::Pending, None)
                    }
                    _ => {
                        self.cancel_tree(request, counters);
                        Outcome::RequestHandled(RequestResult::Done, parent)
                    }
                }
            }
            RequestKind::Expire => {
                let has_expired = row.deadline_at.is_some_and(|at| at <= request.at);
                if !has_expired || row.status == Status::Running || row.status.is_terminal() {
                    return Outcome::RequestHandled(RequestResult::NotApplicable(row.status), None);
                }
                let parent = row.parent.as_ref().map(|parent| parent.key);
                self.cancel_tree(request, counters);
                Outcome::RequestHandled(RequestResult::Done, parent)
            }
            RequestKind::Resume => match row.status {
                status @ (Status::Failed | Status::Cancelled) => {
                    if status == Status::Failed {
                        self.withdraw_failures(request.execution, counters);
                    }
                    self.continue_in_next_run(request.execution, counters);
                    self.forget_strikes(request.execution);
                    Outcome::RequestHandled(RequestResult::Done, None)
                }
                Status::Queued if row.is_parked => {
                    let state = State::Queued { armed: row.pending_sleeps.clone() };
                    self.enter(request.execution, &state, None, counters);
                    self.forget_strikes(request.execution);
                    Outcome::RequestHandled(RequestResult::Done, None)
                }
                status => Outcome::RequestHandled(RequestResult::NotApplicable(status), None),
            },
        }
    }

    /// Cancels an execution and, through all that have not ended, its awaited children: what runs gets a
    /// row in `requests`, the rest ends.
    fn cancel_tree(&mut self, request: &Request, counters: &Counters) {
        let mut todo = vec![request.execution];
        while let Some(key) = todo.pop() {
            todo.extend(self.awaited_children(key));
            if self.executions.get(&key).is_some_and(|row| row.status == Status::Running) {
                if self.requests.insert((key, request.id), RequestKind::Cancel).is_none() {
                    counters.add_inserted(Table::Requests, 1);
                }
            } else {
                let status = Status::Cancelled;
                let state = State::Ended { status, outcome: request.reason.clone(), at: request.at };
                self.enter(key, &state, None, counters);
                self.clear_requests(key, counters);
            }
        }
    }

    /// Takes back the failures of steps that come last in the record, with their attempts and what was abandoned since:
    /// those steps are tried again.
    fn withdraw_failures(&mut self, key: Key, counters: &Counters) {
        let mut recorded: Vec<Checkpoint> = self.checkpoints_of(key).cloned().collect();
        recorded.sort_by_key(|checkpoint| checkpoint.order);
        let is_over =
            |it: &Checkpoint| !matches!(it.kind, CheckpointKind::Failed | CheckpointKind::Abandoned);
        let last = recorded.split_off(recorded.iter().rposition(is_over).map_or(0, |at| at + 1));
        let withdrawn = last.into_iter().skip_while(|it| it.kind != CheckpointKind::Failed);
        for Checkpoint { path, kind, .. } in withdrawn {
            self.checkpoints.remove(&(key, path.clone()));
            counters.add_deleted(Table::Checkpoints, 1);
            if kind == CheckpointKind::Failed {
                self.attempts.retain(|(execution, of, _), _| (*execution, of) != (key, &path));
            }
        }
    }

    fn continue_in_next_run(&mut self, key: Key, counters: &Counters) {
        self.clear_requests(key, counters);
        self.enter(key, &State::Queued { armed: Vec::new() }, None, counters);
        if let Some(row) = self.executions.get_mut(&key) {
            row.run_no += 1;
            if let Some(deadline_at) = row.deadline_at.take() {
                self.deadlines.remove(&(deadline_at, key));
            }
        }
    }

    fn answer(&mut self, key: Key, counters: &Counters) -> Outcome {
        self.clear_requests(key, counters);
        Outcome::Applied
    }

    fn chunk(&mut self, chunk: &Chunk, counters: &Counters) -> Outcome {
        self.chunks.entry((chunk.execution, chunk.value, chunk.index)).or_insert_with(|| {
            counters.add_inserted(Table::Chunks, 1);
            chunk.bytes.clone()
        });
        Outcome::Applied
    }

    fn discard(&mut self, discard: &DeleteChunks, counters: &Counters) -> Outcome {
        let (first, last) = ((discard.execution, 0, 0), (discard.execution, u64::MAX, u32::MAX));
        let orphans: Vec<_> = self
            .chunks
            .range(first..=last)
            .map(|(id, _)| *id)
            .filter(|(_, value, _)| !discard.keep.contains(value))
            .collect();
        for id in &orphans {
            self.chunks.remove(id);
        }
        counters.add_deleted(Table::Chunks, orphans.len() as u64);
        Outcome::Applied
    }
}

fn kind_number(write: &Write) -> u8 {
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
    }
}
