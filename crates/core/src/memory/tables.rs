//! The tables, and the small moves on them that several operations share.

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
    Attempt, Checkpoint, Detail, Execution, Outcome, QUARANTINE_STRIKES, Record, RequestKind, State, Status,
    StoreError, WorkerId, WorkerInfo, next_strikes, quarantine_delay,
};

#[derive(Debug, Default)]
pub(super) struct Tables {
    pub(super) last_worker: i64,
    pub(super) workers: BTreeMap<WorkerId, WorkerRow>,
    pub(super) lanes: BTreeMap<(WorkerId, u16), LaneRow>,
    /// `wake_at` is kept in `timers` only.
    pub(super) executions: BTreeMap<Key, Execution>,
    /// Index of `executions`: the callers' ids.
    pub(super) keys: BTreeMap<Arc<str>, Key>,
    /// Index of `executions`: who runs what.
    pub(super) owned: BTreeSet<(WorkerId, Key)>,
    /// Index of `executions`: (parent, child).
    pub(super) children: BTreeSet<(Key, Key)>,
    pub(super) checkpoints: BTreeMap<(Key, Path), Checkpoint>,
    pub(super) attempts: BTreeMap<(Key, Path, u32), Attempt>,
    pub(super) chunks: BTreeMap<(Key, u64, u32), Bytes>,
    last_seq: i64,
    /// In the order in which they are claimed.
    pub(super) ready: BTreeMap<ReadyPosition, Key>,
    ready_positions: BTreeMap<Key, ReadyPosition>,
    pub(super) queues: BTreeMap<Arc<str>, QueueRow>,
    /// Running executions of queues that limit how many run.
    pub(super) slots: BTreeMap<Key, (Arc<Placement>, WorkerId)>,
    pub(super) fair_share: FairShare,
    /// Starts that count for rates, by time: of a queue, or of one of its keys.
    pub(super) rates: BTreeMap<(Arc<str>, Option<Arc<str>>), StartsByTime>,
    /// What is ready because it has waited.
    pub(super) woken: BTreeSet<Key>,
    timers: BTreeMap<Key, Timestamp>,
    /// Index of `timers`.
    pub(super) due: BTreeSet<(Timestamp, Key)>,
    /// Index of `executions`: deadlines of what has not ended and does not run.
    pub(super) deadlines: BTreeSet<(Timestamp, Key)>,
    /// Queued, but not in `ready`: when each may be tried.
    pub(super) quarantine: BTreeMap<Key, Timestamp>,
    /// Of executions that were recovered: how much was recorded of each at the last time.
    progress: BTreeMap<Key, usize>,
    /// Executions of the quarantine that were claimed alone.
    pub(super) tried_alone: BTreeSet<Key>,
    /// (execution, child).
    waits: BTreeSet<(Key, Key)>,
    /// (execution, number of the request).
    pub(super) requests: BTreeMap<(Key, Key), RequestKind>,
    /// What has not ended and has a dedup_id, by queue and that.
    pub(super) dedups: BTreeMap<(Arc<str>, Arc<str>), Key>,
}

/// Starts by time.
pub(super) type StartsByTime = BTreeMap<Timestamp, u64>;

/// The place of an execution that is ready.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ReadyPosition {
    pub(super) placement: Arc<Placement>,
    /// What has begun before is in front of what has not.
    pub(super) is_new: bool,
    /// Order of arrival; of what has begun before, of its start.
    seq: i64,
    key: Key,
}

#[derive(Debug)]
pub(super) struct WorkerRow {
    pub(super) epoch: i64,
    pub(super) is_dead: bool,
    pub(super) info: WorkerInfo,
    pub(super) registered_at: Timestamp,
}

#[derive(Debug)]
pub(super) struct LaneRow {
    pub(super) epoch: i64,
    pub(super) last_number: i64,
    /// Outcomes of the flush with the last number, in case it is sent again.
    pub(super) last_outcomes: Vec<(usize, Outcome)>,
}

impl LaneRow {
    pub(super) fn new(epoch: i64) -> Self {
        Self { epoch, last_number: 0, last_outcomes: Vec::new() }
    }
}

const FIRST: Key = Key::from_bytes([0; 16]);
const LAST: Key = Key::from_bytes([0xff; 16]);

impl Tables {
    /// The fence: the lane's row, if its epoch is still `epoch`.
    pub(super) fn lane(
        &mut self,
        worker: WorkerId,
        lane: u16,
        epoch: i64,
    ) -> Result<&mut LaneRow, StoreError> {
        self.lanes.get_mut(&(worker, lane)).filter(|row| row.epoch == epoch).ok_or(StoreError::Fenced)
    }

    /// Ends the epoch of all lanes of a worker: nothing that it sends lands any more.
    pub(super) fn end_lanes(&mut self, worker: WorkerId) {
        for (_, lane) in self.lanes.range_mut((worker, 0)..=(worker, u16::MAX)) {
            lane.epoch += 1;
        }
    }

    /// Queues the running executions whose owner is no longer registered, in key order. It looks at what
    /// is, not at what happened, so an interrupted takeover is finished by the next. `lost_at` if they were lost,
    /// and not handed back.
    pub(super) fn requeue_orphans(&mut self, lost_at: Option<Timestamp>, counters: &Counters) -> u64 {
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
            let tried_at = lost_at.and_then(|at| self.add_strike(*key, at));
            match tried_at {
                None => self.set_state(*key, &state, None, counters),
                Some(tried_at) => {
                    counters.add_updated(Table::Executions, 1);
                    self.free_slot(*key, counters);
                    self.delete_role_rows(*key, counters);
                    self.set_state_columns(*key, &state, None);
                    self.quarantine.insert(*key, tried_at);
                }
            }
        }
        orphans.len() as u64
    }

    /// Counts a recovery; when the execution may be tried, if it belongs into quarantine.
    fn add_strike(&mut self, key: Key, at: Timestamp) -> Option<Timestamp> {
        let recorded = self.checkpoints_of(key).count() + self.attempts_of(key).count();
        let was_alone = self.tried_alone.remove(&key);
        let has_got_on = self.progress.insert(key, recorded).is_some_and(|before| recorded > before);
        let row = self.executions.get_mut(&key)?;
        row.recoveries += 1;
        row.strikes = next_strikes(row.strikes, has_got_on, was_alone);
        (row.strikes >= QUARANTINE_STRIKES).then(|| at.plus(quarantine_delay(row.strikes)))
    }

    /// Forgets what made an execution seem to kill its workers.
    pub(super) fn reset_strikes(&mut self, key: Key) {
        self.progress.remove(&key);
        if let Some(row) = self.executions.get_mut(&key) {
            row.strikes = 0;
        }
    }

    /// What a worker runs.
    pub(super) fn owned_by(&self, worker: WorkerId) -> impl Iterator<Item = Key> + '_ {
        self.owned.range((worker, FIRST)..=(worker, LAST)).map(|(_, key)| *key)
    }

    pub(super) fn checkpoints_of(&self, key: Key) -> impl Iterator<Item = &Checkpoint> {
        let from = self.checkpoints.range((key, Path::root())..);
        from.take_while(move |((execution, _), _)| *execution == key).map(|(_, checkpoint)| checkpoint)
    }

    fn attempts_of(&self, key: Key) -> impl Iterator<Item = &Attempt> {
        let from = self.attempts.range((key, Path::root(), 0)..);
        from.take_while(move |((execution, ..), _)| *execution == key).map(|(_, attempt)| attempt)
    }

    /// Queues an execution if it waits.
    pub(super) fn queue_waiting(&mut self, key: Key, counters: &Counters) -> bool {
        let Some(row) = self.executions.get(&key).filter(|row| row.status == Status::Waiting) else {
            return false;
        };
        let state = State::Queued { pending_sleeps: row.pending_sleeps.clone() };
        self.set_state(key, &state, None, counters);
        self.woken.insert(key);
        true
    }

    /// Queues an execution whose time has come, for the first time.
    pub(super) fn queue_scheduled(&mut self, key: Key, counters: &Counters) {
        let state = State::Queued { pending_sleeps: Vec::new() };
        counters.add_updated(Table::Executions, 1);
        self.delete_role_rows(key, counters);
        self.set_state_columns(key, &state, None);
        self.insert_role_rows(key, &state, true, counters);
    }

    /// Puts an execution that is there into `state`: its row and its rows in the role tables.
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
    }

    fn free_slot(&mut self, key: Key, counters: &Counters) {
        if self.slots.remove(&key).is_some() {
            counters.add_deleted(Table::Slots, 1);
        }
    }

    /// Where an execution stands whenever it is queued.
    pub(super) fn placement(&self, key: Key) -> Arc<Placement> {
        let ticket = self.executions.get(&key).and_then(|row| row.placement.clone());
        let default = || Placement { queue: DEFAULT_QUEUE.into(), key: "".into(), priority: 0 };
        ticket.unwrap_or_else(|| default().into())
    }

    /// The columns of the row that a state decides.
    pub(super) fn set_state_columns(&mut self, key: Key, state: &State, owner: Option<WorkerId>) {
        let Some(row) = self.executions.get_mut(&key) else { return };
        if let Some(deadline_at) = row.deadline_at {
            let waits = state.status() != Status::Running && !state.status().is_terminal();
            if waits {
                self.deadlines.insert((deadline_at, key));
            } else {
                self.deadlines.remove(&(deadline_at, key));
            }
        }
        if let Some(owner) = row.owner.take() {
            self.owned.remove(&(owner, key));
        }
        row.status = state.status();
        if let Some((id, ticket)) =
            row.dedup_id.take_if(|held| is_released(held, state.status())).zip(row.placement.as_ref())
        {
            self.dedups.remove(&(ticket.queue.clone(), id));
        }
        row.pending_sleeps = state.pending_sleeps().to_vec();
        row.is_parked = matches!(state, State::Parked { .. });
        (row.outcome, row.ended_at) = match state {
            State::Parked { reason, .. } => (reason.clone(), None),
            State::Ended { outcome, at, .. } => (outcome.clone(), Some(*at)),
            _ => (Payload::empty(), None),
        };
        if row.status == Status::Running {
            row.owner = owner;
            self.owned.extend(owner.map(|owner| (owner, key)));
        }
    }

    /// The rows in `ready`, `timers` and `waits` that a state has.
    pub(super) fn insert_role_rows(&mut self, key: Key, state: &State, is_new: bool, counters: &Counters) {
        match state {
            State::Queued { .. } => {
                self.last_seq += 1;
                let began_at = self.executions.get(&key).map_or(0, |row| row.created_at.as_micros());
                let seq = if is_new { self.last_seq } else { began_at };
                let spot = ReadyPosition { placement: self.placement(key), is_new, seq, key };
                self.ready.insert(spot.clone(), key);
                self.ready_positions.insert(key, spot);
                counters.add_inserted(Table::Ready, 1);
            }
            State::Scheduled { due_at } => {
                self.timers.insert(key, *due_at);
                self.due.insert((*due_at, key));
                counters.add_inserted(Table::Timers, 1);
            }
            State::Waiting { wake_at, children, .. } => {
                if let Some(due_at) = wake_at {
                    self.timers.insert(key, *due_at);
                    self.due.insert((*due_at, key));
                    counters.add_inserted(Table::Timers, 1);
                }
                let before = self.waits.len();
                self.waits.extend(children.iter().map(|child| (key, *child)));
                counters.add_inserted(Table::Waits, (self.waits.len() - before) as u64);
            }
            State::Running { .. } | State::Parked { .. } | State::Ended { .. } => {}
        }
    }

    fn delete_role_rows(&mut self, key: Key, counters: &Counters) {
        if let Some(spot) = self.ready_positions.remove(&key) {
            self.ready.remove(&spot);
            self.woken.remove(&key);
            counters.add_deleted(Table::Ready, 1);
        }
        self.quarantine.remove(&key);
        if let Some(due_at) = self.timers.remove(&key) {
            self.due.remove(&(due_at, key));
            counters.add_deleted(Table::Timers, 1);
        }
        let waits: Vec<_> = self.waits.range((key, FIRST)..=(key, LAST)).copied().collect();
        for wait in &waits {
            self.waits.remove(wait);
        }
        counters.add_deleted(Table::Waits, waits.len() as u64);
    }

    /// True if a waiting execution's due time has come.
    pub(super) fn is_due(&self, key: Key, now: Timestamp) -> bool {
        self.timers.get(&key).is_some_and(|due_at| *due_at <= now)
    }

    /// True if a child that an execution waits for has ended.
    pub(super) fn has_ended_child(&self, key: Key) -> bool {
        self.waits
            .range((key, FIRST)..=(key, LAST))
            .any(|(_, child)| self.executions.get(child).is_some_and(|row| row.status.is_terminal()))
    }

    /// The children that `parent` waits for or may wait for: not detached, not ended.
    pub(super) fn awaited_children(&self, parent: Key) -> Vec<Key> {
        let is_awaited = |child: &Key| {
            self.executions.get(child).is_some_and(|row| {
                !row.status.is_terminal() && row.parent.as_ref().is_some_and(|parent| !parent.is_detached)
            })
        };
        self.children
            .range((parent, FIRST)..=(parent, LAST))
            .map(|(_, child)| *child)
            .filter(is_awaited)
            .collect()
    }

    /// The kinds of what is asked of an execution, oldest first.
    pub(super) fn requests_of(&self, key: Key) -> impl Iterator<Item = RequestKind> + '_ {
        self.requests.range((key, FIRST)..=(key, LAST)).map(|(_, kind)| *kind)
    }

    /// Deletes what is asked of an execution.
    pub(super) fn clear_requests(&mut self, key: Key, counters: &Counters) {
        let asked: Vec<_> = self.requests.range((key, FIRST)..=(key, LAST)).map(|(id, _)| *id).collect();
        for id in &asked {
            self.requests.remove(id);
        }
        counters.add_deleted(Table::Requests, asked.len() as u64);
    }

    /// The row as readers see it.
    pub(super) fn execution(&self, key: Key) -> Option<Execution> {
        let row = self.executions.get(&key)?;
        Some(Execution { wake_at: self.timers.get(&key).copied(), ..row.clone() })
    }

    pub(super) fn record(&self, key: Key, detail: Detail) -> Option<Record> {
        let mut execution = self.execution(key)?;
        if detail == Detail::Outcome {
            execution.input = Payload::empty();
            return Some(Record {
                execution,
                checkpoints: Vec::new(),
                attempts: Vec::new(),
                requests: Vec::new(),
            });
        }
        let mut checkpoints: Vec<Checkpoint> = self.checkpoints_of(key).cloned().collect();
        checkpoints.sort_by_key(|checkpoint| checkpoint.order);
        let attempts = self.attempts_of(key).cloned().collect();
        Some(Record { execution, checkpoints, attempts, requests: self.requests_of(key).collect() })
    }
}

/// True if an execution of this status has no longer what it alone had in its queue.
fn is_released(held: &str, status: Status) -> bool {
    status.is_terminal() || status != Status::Scheduled && debounce_id(held).is_some()
}
