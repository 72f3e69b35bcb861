//! The tables, and the small operations on them that several methods of the store share.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;

use crate::clock::Timestamp;
use crate::key::Key;
use crate::path::Path;
use crate::payload::Payload;
use crate::queue::debounce::debounce_id;
use crate::queue::fairness::FairShare;
use crate::queue::{DEFAULT_QUEUE, Placement, QueueRow};
use crate::store::counters::{Counters, Table};
use crate::store::{
    Attempt, Checkpoint, CheckpointKind, Detail, Execution, GraphRow, Outcome, Pack, PendingMessage,
    QUARANTINE_STRIKES, Record, RequestKind, State, Status, StoreError, StreamEntry, Wait, WorkerId,
    WorkerInfo, next_strikes, quarantine_delay,
};

/// All tables of a [`MemoryStore`](super::MemoryStore), with their indexes.
#[derive(Debug, Default)]
pub(super) struct Tables {
    pub(super) last_worker: i64,
    pub(super) workers: BTreeMap<WorkerId, WorkerRow>,
    pub(super) lanes: BTreeMap<(WorkerId, u16), LaneRow>,
    /// All executions. Their field `wake_at` is not set: `timers` contains the due times.
    pub(super) executions: BTreeMap<Key, Execution>,
    /// Index of `executions`: by the workflow_ids that callers gave.
    pub(super) keys: BTreeMap<Arc<str>, Key>,
    /// Index of `executions`: (owner, execution) of running ones.
    pub(super) owned: BTreeSet<(WorkerId, Key)>,
    /// Index of `executions`: (parent, child).
    pub(super) children: BTreeSet<(Key, Key)>,
    pub(super) checkpoints: BTreeMap<(Key, Path), Checkpoint>,
    pub(super) attempts: BTreeMap<(Key, Path, u32), Attempt>,
    pub(super) chunks: BTreeMap<(Key, u64, u32), Bytes>,
    last_seq: i64,
    /// Ready executions in the order in which they are claimed.
    pub(super) ready: BTreeMap<ReadyPosition, Key>,
    /// Index of `ready`: by execution.
    ready_positions: BTreeMap<Key, ReadyPosition>,
    pub(super) queues: BTreeMap<Arc<str>, QueueRow>,
    pub(super) graphs: BTreeMap<Arc<str>, GraphRow>,
    /// Running executions of queues that limit how many run, with their owners.
    pub(super) slots: BTreeMap<Key, (Arc<Placement>, WorkerId)>,
    pub(super) fair_share: FairShare,
    /// The starts that count for the rate of a queue, or of one of its keys.
    pub(super) rates: BTreeMap<(Arc<str>, Option<Arc<str>>), StartsByTime>,
    /// Number of entries of `rates` that counted when the others were deleted last.
    pub(super) counting_rates: usize,
    /// Ready executions that continue after they were `waiting`.
    pub(super) woken: BTreeSet<Key>,
    /// Due times of `waiting` and `scheduled` executions.
    timers: BTreeMap<Key, Timestamp>,
    /// Index of `timers`: by due time.
    pub(super) due: BTreeSet<(Timestamp, Key)>,
    /// Index of `executions`: deadlines of executions that neither run nor have ended.
    pub(super) deadlines: BTreeSet<(Timestamp, Key)>,
    /// Executions in quarantine, which are `queued` but not in `ready`, with the time from which on each may be tried.
    pub(super) quarantine: BTreeMap<Key, Timestamp>,
    /// The number of checkpoints and attempts that each recovered execution had at its last recovery.
    progress: BTreeMap<Key, usize>,
    /// Running executions that were claimed from quarantine alone.
    pub(super) tried_alone: BTreeSet<Key>,
    /// The waits of suspended executions.
    pub(super) waits: BTreeMap<Key, BTreeSet<Wait>>,
    pub(super) last_message: i64,
    /// Messages that were not received yet, by (execution, topic, number).
    pub(super) messages: BTreeMap<(Key, Arc<str>, i64), PendingMessage>,
    /// The ids of the messages that were sent to an execution.
    pub(super) message_ids: BTreeSet<(Key, Arc<str>)>,
    /// The entries of streams, by (execution, stream, offset).
    pub(super) stream_entries: BTreeMap<(Key, Arc<str>, i64), StreamEntry>,
    /// Pending requests to running executions, by (execution, id of the request).
    pub(super) requests: BTreeMap<(Key, Key), RequestKind>,
    /// Unfinished batches, with the number of items of closed ones.
    pub(super) batches: BTreeMap<Key, Option<u64>>,
    /// Bundles, with the number of their items; and retried items.
    pub(super) bundles: BTreeMap<Key, u64>,
    /// Packed outcomes, by bundle and number.
    pub(super) packs: BTreeMap<(Key, u32), Pack>,
    /// Index of `executions`: unfinished executions with a dedup_id, by (queue, dedup_id).
    pub(super) dedups: BTreeMap<(Arc<str>, Arc<str>), Key>,
}

/// The number of starts by time.
pub(super) type StartsByTime = BTreeMap<Timestamp, u64>;

/// The position of a ready execution in the order of claims.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ReadyPosition {
    pub(super) placement: Arc<Placement>,
    /// Whether the execution has not begun yet. Executions that have begun come first.
    pub(super) is_new: bool,
    /// The order of arrival; for an execution that has begun, its creation time.
    seq: i64,
    key: Key,
}

/// A registration.
#[derive(Debug)]
pub(super) struct WorkerRow {
    pub(super) epoch: i64,
    /// Whether the worker counts as dead; see [`MemoryStore::mark_dead`](super::MemoryStore::mark_dead).
    pub(super) is_dead: bool,
    pub(super) info: WorkerInfo,
    pub(super) registered_at: Timestamp,
}

/// A lane of a registration.
#[derive(Debug)]
pub(super) struct LaneRow {
    pub(super) epoch: i64,
    /// The number of the last flush or claim.
    pub(super) last_number: i64,
    /// The outcomes of the flush with the last number, in case it is resent.
    pub(super) last_outcomes: Vec<(usize, Outcome)>,
}

impl LaneRow {
    pub(super) fn new(epoch: i64) -> Self {
        Self { epoch, last_number: 0, last_outcomes: Vec::new() }
    }
}

pub(super) const MIN_KEY: Key = Key::from_bytes([0; 16]);
pub(super) const MAX_KEY: Key = Key::from_bytes([0xff; 16]);

impl Tables {
    /// Returns the lane's row if its epoch is still `epoch`: the fence.
    pub(super) fn lane(
        &mut self,
        worker: WorkerId,
        lane: u16,
        epoch: i64,
    ) -> Result<&mut LaneRow, StoreError> {
        self.lanes.get_mut(&(worker, lane)).filter(|row| row.epoch == epoch).ok_or(StoreError::Fenced)
    }

    /// Changes the epoch of all lanes of a worker, so that the lanes record nothing any more.
    pub(super) fn end_lanes(&mut self, worker: WorkerId) {
        for (_, lane) in self.lanes.range_mut((worker, 0)..=(worker, u16::MAX)) {
            lane.epoch += 1;
        }
    }

    /// Requeues the running executions whose owner is not registered, in the order of their keys.
    ///
    /// The method depends only on the present state, so the next takeover completes an interrupted one. `died_at` is
    /// the time of the takeover; it is `None` when a worker closes its registration, which counts no recovery.
    pub(super) fn requeue_orphans(&mut self, died_at: Option<Timestamp>, counters: &Counters) -> u64 {
        let mut orphans: Vec<Key> = self
            .owned
            .iter()
            .filter(|(owner, _)| !self.workers.contains_key(owner))
            .map(|(_, key)| *key)
            .collect();
        orphans.sort_unstable();
        for key in &orphans {
            let Some(row) = self.executions.get(key) else { continue };
            let state = State::Queued { pending_sleeps: row.pending_sleeps.clone() };
            let trial_at = died_at.and_then(|at| self.add_strike(*key, at));
            match trial_at {
                None => self.set_state(*key, &state, None, counters),
                Some(trial_at) => {
                    counters.add_updated(Table::Executions, 1);
                    self.free_slot(*key, counters);
                    self.delete_role_rows(*key, counters);
                    self.set_state_columns(*key, &state, None);
                    self.quarantine.insert(*key, trial_at);
                }
            }
        }
        orphans.len() as u64
    }

    /// Counts a recovery. If the execution belongs in quarantine, returns the time from which on it may be tried.
    fn add_strike(&mut self, key: Key, at: Timestamp) -> Option<Timestamp> {
        let recorded = self.checkpoints_of(key).count() + self.attempts_of(key).count();
        let was_alone = self.tried_alone.remove(&key);
        let has_progressed = self.progress.insert(key, recorded).is_some_and(|before| recorded > before);
        let row = self.executions.get_mut(&key)?;
        row.recoveries += 1;
        row.strikes = next_strikes(row.strikes, has_progressed, was_alone);
        (row.strikes >= QUARANTINE_STRIKES).then(|| at.plus(quarantine_delay(row.strikes)))
    }

    /// Resets the strikes of an execution.
    pub(super) fn reset_strikes(&mut self, key: Key) {
        self.progress.remove(&key);
        if let Some(row) = self.executions.get_mut(&key) {
            row.strikes = 0;
        }
    }

    /// Returns the executions that a worker runs.
    pub(super) fn owned_by(&self, worker: WorkerId) -> impl Iterator<Item = Key> + '_ {
        self.owned.range((worker, MIN_KEY)..=(worker, MAX_KEY)).map(|(_, key)| *key)
    }

    pub(super) fn checkpoints_of(&self, key: Key) -> impl Iterator<Item = &Checkpoint> {
        let from = self.checkpoints.range((key, Path::root())..);
        from.take_while(move |((execution, _), _)| *execution == key).map(|(_, checkpoint)| checkpoint)
    }

    fn attempts_of(&self, key: Key) -> impl Iterator<Item = &Attempt> {
        let from = self.attempts.range((key, Path::root(), 0)..);
        from.take_while(move |((execution, ..), _)| *execution == key).map(|(_, attempt)| attempt)
    }

    /// Queues an execution if it is `waiting`. Returns whether it was `waiting`.
    pub(super) fn queue_waiting(&mut self, key: Key, counters: &Counters) -> bool {
        let Some(row) = self.executions.get(&key).filter(|row| row.status == Status::Waiting) else {
            return false;
        };
        let state = State::Queued { pending_sleeps: row.pending_sleeps.clone() };
        self.set_state(key, &state, None, counters);
        self.woken.insert(key);
        true
    }

    /// Queues a `scheduled` execution that is due.
    pub(super) fn queue_scheduled(&mut self, key: Key, counters: &Counters) {
        let state = State::Queued { pending_sleeps: Vec::new() };
        counters.add_updated(Table::Executions, 1);
        self.delete_role_rows(key, counters);
        self.set_state_columns(key, &state, None);
        self.insert_role_rows(key, &state, true, counters);
    }

    /// Moves an existing execution to `state`: changes its row, and its rows in `ready`, `timers` and `waits`.
    pub(super) fn set_state(
        &mut self,
        key: Key,
        state: &State,
        owner: Option<WorkerId>,
        counters: &Counters,
    ) {
        counters.add_updated(Table::Executions, 1);
        self.delete_role_rows(key, counters);
        if !matches!(state, State::Running { .. }) {
            self.free_slot(key, counters);
        }
        self.set_state_columns(key, state, owner);
        self.insert_role_rows(key, state, false, counters);
        if state.status().is_terminal() {
            self.forget_batch(key, counters);
        }
    }

    fn free_slot(&mut self, key: Key, counters: &Counters) {
        if self.slots.remove(&key).is_some() {
            counters.add_deleted(Table::Slots, 1);
        }
    }

    /// Returns the placement of an execution; that of the default queue if it has none.
    pub(super) fn placement(&self, key: Key) -> Arc<Placement> {
        let placement = self.executions.get(&key).and_then(|row| row.placement.clone());
        let default = || Placement { queue: DEFAULT_QUEUE.into(), key: "".into(), priority: 0 };
        placement.unwrap_or_else(|| default().into())
    }

    /// Sets the columns of an execution that depend on its state, and updates their indexes.
    pub(super) fn set_state_columns(&mut self, key: Key, state: &State, owner: Option<WorkerId>) {
        let Some(row) = self.executions.get_mut(&key) else { return };
        if let Some(deadline_at) = row.deadline_at {
            let is_idle = state.status() != Status::Running && !state.status().is_terminal();
            if is_idle {
                self.deadlines.insert((deadline_at, key));
            } else {
                self.deadlines.remove(&(deadline_at, key));
            }
        }
        if let Some(owner) = row.owner.take() {
            self.owned.remove(&(owner, key));
        }
        row.status = state.status();
        if let Some((id, placement)) =
            row.dedup_id.take_if(|id| is_released(id, state.status())).zip(row.placement.as_ref())
        {
            self.dedups.remove(&(placement.queue.clone(), id));
        }
        row.pending_sleeps = state.pending_sleeps().to_vec();
        row.is_parked = state.is_parked();
        row.outcome = state.outcome().cloned().unwrap_or_default();
        row.ended_at = state.ended_at();
        if row.status == Status::Running {
            row.owner = owner;
            self.owned.extend(owner.map(|owner| (owner, key)));
        }
    }

    /// Inserts the rows of `ready`, `timers` and `waits` that belong to a state.
    pub(super) fn insert_role_rows(&mut self, key: Key, state: &State, is_new: bool, counters: &Counters) {
        match state {
            State::Queued { .. } => {
                self.last_seq += 1;
                let created_at = self.executions.get(&key).map_or(0, |row| row.created_at.as_micros());
                let seq = if is_new { self.last_seq } else { created_at };
                let position = ReadyPosition { placement: self.placement(key), is_new, seq, key };
                self.ready.insert(position.clone(), key);
                self.ready_positions.insert(key, position);
                counters.add_inserted(Table::Ready, 1);
            }
            State::Scheduled { due_at } => {
                self.timers.insert(key, *due_at);
                self.due.insert((*due_at, key));
                counters.add_inserted(Table::Timers, 1);
            }
            State::Waiting { wake_at, waits, .. } => {
                if let Some(due_at) = wake_at {
                    self.timers.insert(key, *due_at);
                    self.due.insert((*due_at, key));
                    counters.add_inserted(Table::Timers, 1);
                }
                let waits: BTreeSet<Wait> = waits.iter().cloned().collect();
                counters.add_inserted(Table::Waits, waits.len() as u64);
                if !waits.is_empty() {
                    self.waits.insert(key, waits);
                }
            }
            State::Running { .. } | State::Parked { .. } | State::Ended { .. } => {}
        }
    }

    /// Deletes the rows of an execution in `ready`, `quarantine`, `timers` and `waits`.
    fn delete_role_rows(&mut self, key: Key, counters: &Counters) {
        if let Some(position) = self.ready_positions.remove(&key) {
            self.ready.remove(&position);
            self.woken.remove(&key);
            counters.add_deleted(Table::Ready, 1);
        }
        self.quarantine.remove(&key);
        if let Some(due_at) = self.timers.remove(&key) {
            self.due.remove(&(due_at, key));
            counters.add_deleted(Table::Timers, 1);
        }
        let waits = self.waits.remove(&key).map_or(0, |waits| waits.len());
        counters.add_deleted(Table::Waits, waits as u64);
    }

    /// Whether a waiting execution is due.
    pub(super) fn is_due(&self, key: Key, now: Timestamp) -> bool {
        self.timers.get(&key).is_some_and(|due_at| *due_at <= now)
    }

    /// Returns the children that `parent` waits for or may wait for: neither detached nor ended.
    pub(super) fn awaited_children(&self, parent: Key) -> Vec<Key> {
        let is_awaited = |child: &Key| {
            self.executions.get(child).is_some_and(|row| {
                !row.status.is_terminal() && row.parent.as_ref().is_some_and(|parent| !parent.is_detached)
            })
        };
        self.children
            .range((parent, MIN_KEY)..=(parent, MAX_KEY))
            .map(|(_, child)| *child)
            .filter(is_awaited)
            .collect()
    }

    /// Returns the kinds of the pending requests to an execution, oldest first.
    pub(super) fn requests_of(&self, key: Key) -> impl Iterator<Item = RequestKind> + '_ {
        self.requests.range((key, MIN_KEY)..=(key, MAX_KEY)).map(|(_, kind)| *kind)
    }

    /// Deletes the pending requests to an execution.
    pub(super) fn clear_requests(&mut self, key: Key, counters: &Counters) {
        let ids: Vec<_> = self.requests.range((key, MIN_KEY)..=(key, MAX_KEY)).map(|(id, _)| *id).collect();
        for id in &ids {
            self.requests.remove(id);
        }
        counters.add_deleted(Table::Requests, ids.len() as u64);
    }

    /// Returns the row of an execution as a load returns it, with its timer.
    pub(super) fn execution(&self, key: Key) -> Option<Execution> {
        let row = self.executions.get(&key)?;
        Some(Execution { wake_at: self.timers.get(&key).copied(), ..row.clone() })
    }

    /// Returns the record of an execution.
    pub(super) fn record(&self, key: Key, detail: Detail) -> Option<Record> {
        let mut execution = self.execution(key)?;
        if detail == Detail::Outcome {
            execution.input = Payload::empty();
            return Some(Record { bundle: self.bundle_record(key), ..Record::without_details(execution) });
        }
        let recorded = self.recorded_keys(key);
        let (first, last) = (*recorded.start(), *recorded.end());
        let begin = if detail == Detail::LastPart { self.begin_of_last_part(key) } else { Path::root() };
        let checkpoints = self.checkpoints.range((first, begin.clone())..);
        let checkpoints =
            checkpoints.take_while(|((it, _), _)| *it <= last).map(|(_, checkpoint)| checkpoint);
        let mut checkpoints: Vec<Checkpoint> = checkpoints.cloned().collect();
        checkpoints.sort_by_key(|checkpoint| (checkpoint.execution, checkpoint.order));
        let attempts = self.attempts.range((first, begin, 0)..);
        let attempts =
            attempts.take_while(|((it, ..), _)| *it <= last).map(|(_, attempt)| attempt.clone()).collect();
        let requests = self.requests_of(key).collect();
        let waits = self.waits_of(key).cloned().collect();
        let bundle = self.bundle_record(key);
        Some(Record { execution, checkpoints, attempts, requests, waits, bundle })
    }

    /// Returns the path at which the last part of an execution begins; the root path if it has not continued as new.
    fn begin_of_last_part(&self, key: Key) -> Path {
        let parts = Path::later_parts();
        let later = self.checkpoints.range((key, parts.start)..(key, parts.end));
        let mut continued =
            later.rev().filter(|(_, checkpoint)| checkpoint.kind == CheckpointKind::Continued);
        continued.next().map_or_else(Path::root, |((_, path), _)| path.clone())
    }
}

/// Whether an execution with this status no longer has its dedup_id or debounce key.
fn is_released(dedup_id: &str, status: Status) -> bool {
    status.is_terminal() || status != Status::Scheduled && debounce_id(dedup_id).is_some()
}
