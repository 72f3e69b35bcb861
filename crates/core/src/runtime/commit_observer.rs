//! [`EngineObserver`]: the engine's reactions to its lanes. The lanes report durable Writes, outcomes other
//! than `Applied`, fences, and fatal errors of the store.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use smallvec::SmallVec;

use crate::clock::Timestamp;
use crate::commit::{CommitObserver, FoldTarget, Lane, Lsn, RejectedExecutions, SettledWrite, Staged};
use crate::failure::{Failure, OUTCOME_REJECTED};
use crate::key::Key;
use crate::payload::Payload;
use crate::runtime::inner::EngineInner;
use crate::runtime::run::{Interrupt, Run};
use crate::store::{
    Checkpoint, CheckpointKind, DeleteChunks, Detail, ExecutionId, Outcome, RequestKind, RequestResult,
    Start, State, Status, StoreError, Transition, WorkerId, Write,
};

/// The engine as the observer of its lanes.
pub(crate) struct EngineObserver(pub(crate) std::sync::Weak<EngineInner>);

impl CommitObserver for EngineObserver {
    fn on_settled(&self, lane: u16, settled: SettledWrite<'_>) {
        let Some(engine) = self.0.upgrade() else { return };
        let SettledWrite { execution, tree, lsn, write, outcome } = settled;
        match outcome {
            Outcome::Rejected(_) if !write.is_owned() => {
                if let Write::Start(start) = write {
                    engine.discard_start(start);
                }
            }
            Outcome::Rejected(reason) => {
                engine.replace_rejected_write(lane, execution, tree, lsn, write, reason);
            }
            // an earlier run of the same parent started this child, which may be running here: the child's
            // run continues. In the cases below the Start was not applied, or the row has another owner: the
            // run must stop
            Outcome::Duplicate(existing) if existing.key == execution => {}
            // the run is interrupted before its barrier is settled, so no further body begins
            Outcome::CancelRequested => {
                if let Some(run) = engine.runs.get(execution) {
                    run.interrupt(Interrupt::Cancel(Failure::cancelled().into()));
                }
            }
            Outcome::RequestHandled(RequestResult::Done, parent) => {
                engine.completion_watch.notify(execution);
                engine.known_queues.notify_capacity();
                if let Some(parent) = parent {
                    engine.stage_unowned(*parent, Write::Wake(*parent));
                }
            }
            Outcome::Duplicate(_) | Outcome::Deduplicated(_) | Outcome::Full | Outcome::NotFound => {
                match write {
                    Write::Start(start) => engine.discard_start(start),
                    Write::Transition(_) => engine.disown(execution),
                    _ => {}
                }
            }
            _ => {}
        }
    }

    fn on_committed(&self, writes: &[Write], outcomes: &[(usize, Outcome)]) {
        let Some(engine) = self.0.upgrade() else { return };
        let has_watchers = engine.completion_watch.has_watchers();
        // the outcomes are in the order of their Writes
        let is_applied = |index: usize| outcomes.binary_search_by_key(&index, |(other, _)| *other).is_err();
        let (mut has_ready, mut is_slot_free) = (false, false);
        let (mut due_at, mut deadline_at) = (i64::MAX, i64::MAX);
        let mut written = Vec::new();
        for (index, write) in writes.iter().enumerate() {
            let (key, state) = match write {
                Write::Start(start) => (start.key, &start.state),
                Write::Transition(change) => {
                    is_slot_free |=
                        change.placement.is_some() && !matches!(change.state, State::Running { .. });
                    (change.key, &change.state)
                }
                Write::Request(request) => {
                    has_ready |= request.kind == RequestKind::Resume;
                    continue;
                }
                Write::Pack(pack) => {
                    if has_watchers {
                        engine.completion_watch.notify(pack.bundle);
                    }
                    continue;
                }
                Write::Wake(key) => {
                    has_ready = true;
                    if key.is_batch() && is_applied(index) {
                        if has_watchers {
                            engine.completion_watch.notify(*key);
                        }
                        engine.wake_parent_of_batch(*key);
                    }
                    continue;
                }
                Write::Checkpoint(checkpoint) => {
                    match checkpoint.kind {
                        CheckpointKind::Event if is_applied(index) => {
                            engine.announce_event(checkpoint.execution, checkpoint.name.to_string().into());
                        }
                        CheckpointKind::StreamWrite => written.push(checkpoint.execution),
                        _ => {}
                    }
                    continue;
                }
                Write::Append(append) => {
                    written.push(append.execution);
                    continue;
                }
                Write::Send(_) | Write::Forward(_) => {
                    if is_applied(index) {
                        engine.announce_message(write.execution());
                    }
                    continue;
                }
                _ => continue,
            };
            if let Write::Start(start) = write
                && let Some(at) = start.deadline_at
                && !matches!(state, State::Running { .. } | State::Ended { .. })
            {
                deadline_at = deadline_at.min(at.as_micros());
            }
            match state {
                State::Queued { .. } => has_ready = true,
                State::Scheduled { due_at: at } | State::Waiting { wake_at: Some(at), .. } => {
                    due_at = due_at.min(at.as_micros());
                }
                State::Ended { .. } | State::Parked { .. } if has_watchers => {
                    engine.completion_watch.notify(key);
                }
                _ => {}
            }
        }
        engine.announce_stream_entries(written);
        if due_at < engine.wakeups.next_due_at.fetch_min(due_at, SeqCst) {
            engine.wakeups.wake_claimer(false);
        }
        if deadline_at < engine.wakeups.next_deadline_at.fetch_min(deadline_at, SeqCst) {
            engine.wakeups.heartbeat.notify_one();
        }
        if has_ready {
            engine.wakeups.wake_claimer(true);
        }
        if is_slot_free {
            engine.wakeups.note_queue_slots_freed();
        }
    }

    fn on_fenced(&self, worker: WorkerId) {
        let Some(engine) = self.0.upgrade() else { return };
        if engine.registration().worker != worker {
            return;
        }
        engine.wakeups.mark_fenced();
    }

    fn on_poisoned(&self, error: StoreError) {
        let Some(engine) = self.0.upgrade() else { return };
        if let Some(error) = engine.stop_if_fatal(error) {
            engine.poison(&error.to_string());
        }
    }
}

impl EngineInner {
    /// Wakes the workflow that has submitted a batch, which has ended, and that may wait for the batch.
    fn wake_parent_of_batch(self: &Arc<Self>, batch: Key) {
        let engine = self.clone();
        self.runtime.spawn(async move {
            let batch = engine.query_with_retry(|| engine.load(ExecutionId::Key(batch), Detail::Outcome));
            if let Ok(Some(batch)) = batch.await
                && let Some(parent) = batch.execution.parent
            {
                crate::crash_point!("batch ended and parent not woken");
                engine.stage_unowned(parent.key, Write::Wake(parent.key));
            }
        });
    }

    /// Notifies the receiver of a message, which is durable.
    fn announce_message(&self, receiver: Key) {
        crate::crash_point!("message durable");
        if receiver.is_address() {
            return;
        }
        match self.runs.get(receiver) {
            // if the run is suspended before it looks again, it wakes itself after its suspension is durable
            Some(run) if run.is_open() && !run.is_disowned() => self.change_watch.notify(receiver),
            _ => {
                self.stage_unowned(receiver, Write::Wake(receiver));
            }
        }
    }

    /// Notifies the readers of the streams of these executions, whose new entries are durable.
    fn announce_stream_entries(&self, mut executions: Vec<Key>) {
        if executions.is_empty() || !self.stream_watch.has_watchers() {
            return;
        }
        executions.sort_unstable();
        executions.dedup();
        for execution in executions {
            self.stream_watch.notify(execution);
        }
    }

    /// Stops the run of a Start that was not applied, and deletes the chunks of its input.
    fn discard_start(&self, start: &Start) {
        self.disown(start.key);
        if (start.parent.is_none() || start.is_bundle()) && start.input.chunk_ref().is_some() {
            self.stage_unowned(
                start.key,
                Write::DeleteChunks(DeleteChunks { execution: start.key, keep: SmallVec::new() }),
            );
        }
    }

    /// Stops the run of an execution that does not exist or has another owner. Stops the runs of its tree
    /// too, if they depend on its Start.
    fn disown(&self, execution: Key) {
        let Some(run) = self.runs.get(execution) else { return };
        run.interrupt(Interrupt::Disowned);
        if run.fate.as_ref().is_some_and(|fate| fate.has_failed() && fate.has_children()) {
            for other in self.runs.all().iter().filter(|other| other.root == execution) {
                other.interrupt(Interrupt::Disowned);
            }
        }
    }

    /// Handles a rejected Write of a run: disowns the run and stages a replacement. The execution continues
    /// from its record.
    fn replace_rejected_write(
        &self,
        lane: u16,
        execution: Key,
        tree: Key,
        lsn: Lsn,
        write: &Write,
        reason: &Arc<str>,
    ) {
        tracing::error!(%execution, %reason, "the database rejected a Write");
        let Some(lane) = self.lanes().get(usize::from(lane)) else { return };
        if let Write::Start(start) = write {
            return self.discard_child(lane, tree, lsn, start);
        }
        let continued = self.close_bundle_of(lane, execution, tree).unwrap_or(execution);
        let run = self.runs.get(continued);
        if let Some(run) = &run {
            run.interrupt(Interrupt::Disowned);
        }
        let placement = match write {
            Write::Transition(change) => change.placement.clone(),
            _ => run.and_then(|run| run.placement.clone()),
        };
        let failure =
            Failure::with_kind(OUTCOME_REJECTED, format!("the outcome could not be recorded: {reason}"));
        let failure = Payload::from_failure(&failure.permanent());
        let replacement = match write {
            Write::Checkpoint(checkpoint) if is_rejection_checkpoint(checkpoint) => None,
            Write::Checkpoint(checkpoint) => {
                let mut checkpoint = checkpoint.clone();
                checkpoint.kind = CheckpointKind::Failed;
                checkpoint.outcome = failure.clone();
                Some(Write::Checkpoint(checkpoint))
            }
            Write::Transition(change) => {
                let state = replacement_state(&change.state, &failure, self.now());
                if state.is_none() {
                    tracing::error!(
                        %execution,
                        "the database also rejected the parking of the execution; a worker continues the execution \
                         within about a minute, or after this worker has ended"
                    );
                }
                state.map(|state| {
                    Write::Transition(Transition { key: change.key, placement: placement.clone(), state })
                })
            }
            _ => None,
        };
        let missing = if continued == execution { Vec::new() } else { vec![execution] };
        let executions = RejectedExecutions { continued: Some(continued), missing };
        let placement = lane.replace_rejected(tree, lsn, &executions, replacement).or(placement);
        // queue the execution, so that a replay receives the error in place of the outcome. But park the
        // execution if the replay's Write would be rejected again, whatever its contents
        let pending_sleeps = Vec::new();
        let state = match write {
            // a Transition is replaced above; the parent receives the rejection of a child's Start
            Write::Transition(_) | Write::Start(_) => return,
            Write::Checkpoint(checkpoint) if is_rejection_checkpoint(checkpoint) => {
                State::Parked { reason: checkpoint.outcome.clone(), pending_sleeps, is_pause: false }
            }
            Write::Checkpoint(_) => State::Queued { pending_sleeps },
            _ => State::Parked { reason: failure, pending_sleeps, is_pause: false },
        };
        stage_transition(lane, tree, Transition { key: continued, placement, state });
    }

    /// Closes the bundle that runs here and to which a rejected Write belongs: the Write is a Pack of the bundle, or
    /// concerns an item without a row of its own. Returns the key of the bundle, which continues from its record.
    fn close_bundle_of(&self, lane: &Lane, execution: Key, tree: Key) -> Option<Key> {
        let is_item = execution.item_index().is_some() && self.runs.get(execution).is_none();
        let bundle = self.runs.bundle(tree).filter(|_| is_item || execution == tree)?;
        if let Some(outcomes) = bundle.close() {
            outcomes.discard(lane);
        }
        Some(tree)
    }

    /// Handles a child's rejected Start. A guarded Start has a waiter in the parent's run, which receives the
    /// rejection. Without a guard, the parent may already have used the child's output: the parent is queued, and its
    /// replay starts the child again, with a guard.
    fn discard_child(&self, lane: &Lane, tree: Key, lsn: Lsn, start: &Start) {
        let parent = start.parent.as_ref().filter(|_| !start.is_guarded).map(|parent| parent.key);
        let parent_run = parent.and_then(|parent| self.runs.get(parent));
        if let Some(run) = &parent_run {
            run.interrupt(Interrupt::Disowned);
        }
        let executions =
            RejectedExecutions { continued: parent, missing: self.disown_descendants(start.key, tree) };
        let placement = lane.replace_rejected(tree, lsn, &executions, None);
        let Some(key) = parent else { return };
        let placement = placement.or(parent_run.and_then(|run| run.placement.clone()));
        let state = State::Queued { pending_sleeps: Vec::new() };
        stage_transition(lane, tree, Transition { key, placement, state });
    }

    /// Stops the runs of an execution that does not exist, and of its descendants. Returns the keys of all of them.
    fn disown_descendants(&self, execution: Key, tree: Key) -> Vec<Key> {
        let mut keys = vec![execution];
        let mut index = 0;
        // a run that has stopped starts no further child, so each parent stops before the search for its children
        while let Some(&key) = keys.get(index) {
            if let Some(run) = self.runs.get(key) {
                run.interrupt(Interrupt::Disowned);
            }
            let is_child =
                |run: &Run| run.root == tree && run.parent.as_ref().is_some_and(|it| it.key == key);
            keys.extend(self.runs.all().iter().filter(|run| is_child(run)).map(|run| run.key));
            index += 1;
        }
        keys
    }
}

/// Stages a Transition that no run of this process stages.
fn stage_transition(lane: &Lane, tree: Key, transition: Transition) {
    let write = Write::Transition(transition);
    let staged = Staged { generation: lane.generation(), tree, write, reserved: 0, fate: None };
    lane.stage(staged, &mut FoldTarget::default());
}

/// Returns the state that replaces a rejected state: the execution fails. If that state was rejected too, the
/// execution is parked. If the parked state was rejected as well, returns `None`.
fn replacement_state(rejected: &State, failure: &Payload, at: Timestamp) -> Option<State> {
    match rejected {
        State::Ended { outcome, .. } if is_rejection_failure(outcome) => {
            Some(State::Parked { reason: outcome.clone(), pending_sleeps: Vec::new(), is_pause: false })
        }
        State::Parked { reason, .. } if is_rejection_failure(reason) => None,
        _ => Some(State::Ended { status: Status::Failed, outcome: failure.clone(), at }),
    }
}

/// Whether the checkpoint is the replacement of a rejected one.
fn is_rejection_checkpoint(checkpoint: &Checkpoint) -> bool {
    checkpoint.kind == CheckpointKind::Failed && is_rejection_failure(&checkpoint.outcome)
}

/// Whether the failure was caused by a rejection.
fn is_rejection_failure(failure: &Payload) -> bool {
    failure.decode::<Failure>().is_ok_and(|failure| failure.kind == OUTCOME_REJECTED)
}
