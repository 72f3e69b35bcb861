//! [`Twins`]: several stores to which the same history happens; the first is the model of the others.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use smallvec::SmallVec;
use stepfast_core::key::Key;
use stepfast_core::payload::{ChunkRef, Payload};
use stepfast_core::store::{
    DeleteChunks, Detail, Execution, ExecutionId, Filter, Flush, Heartbeat, HeartbeatReply, Outcome, Parent,
    Record, Request, RequestKind, Start, State, Status, StoreError, WorkerId, Write,
};

use crate::fixtures::builders::{pending_sleeps, attempt, checkpoint, chunk, transition, payload, start};
use crate::model::histories::{TargetedDraft, Draft, DraftState, HistoryOp, PARENTS, EXECUTIONS, WORKERS};
use crate::{StoreFixture, Worker};

const WORKFLOWS: [&str; 2] = ["checkout", "ship"];
const VALUES: [u64; 3] = [0, 7, u64::MAX];

/// Several stores in step. Its methods panic as soon as two of them differ.
pub struct DifferentialStores {
    stores: Vec<StoreUnderTest>,
    /// Numbers everything that shall be told apart: times, reasons, requests.
    count: i64,
    /// What was recorded once and must not be again.
    recorded: BTreeSet<(Key, u32, u32)>,
}

/// One of the stores.
struct StoreUnderTest {
    fixture: Box<dyn StoreFixture>,
    workers: Vec<Worker>,
    /// The last worker that was lost or closed.
    stale_worker: Option<Worker>,
    /// Which registration each worker was, for stores number them as they like.
    registrations: HashMap<WorkerId, i64>,
}

impl StoreUnderTest {
    async fn register(&mut self) -> Worker {
        // every other worker comes by another handle
        let nth = self.registrations.len();
        let store = if nth.is_multiple_of(2) { self.fixture.store() } else { self.fixture.second_store().await };
        let worker = Worker::register(&store).await;
        self.registrations.insert(worker.id, nth as i64);
        worker
    }

    fn normalize(&self, mut record: Record) -> Record {
        record.execution.owner = record.execution.owner.map(|owner| WorkerId(self.registrations[&owner]));
        record.requests.sort_unstable_by_key(|kind| *kind as u8);
        record
    }

    fn normalize_all(&self, records: Vec<Record>) -> Vec<Record> {
        let mut records: Vec<Record> = records.into_iter().map(|record| self.normalize(record)).collect();
        records.sort_by_key(|record| record.execution.key);
        records
    }

    /// Everything that can be read.
    async fn read_all(&self) -> (Vec<Record>, Vec<(Key, ChunkRef, Bytes)>) {
        let store = &self.workers[0].store;
        let rows = store.list(&Filter { limit: 1_000, ..Filter::default() }).await.unwrap().executions;
        let ids: Vec<_> = rows.iter().map(|row| ExecutionId::Key(row.key)).collect();
        let loaded = store.load(&ids, Detail::Full).await.unwrap();
        let records: Vec<Record> = loaded.into_iter().map(|record| self.normalize(record.unwrap())).collect();
        for (row, record) in rows.iter().zip(&records) {
            let (input, outcome) = (record.execution.input.clone(), record.execution.outcome.clone());
            let owner = row.owner.map(|owner| WorkerId(self.registrations[&owner]));
            let listed = Execution { input, outcome, owner, ..row.clone() };
            assert_eq!(listed, record.execution, "a list shows what a load shows");
        }
        let mut values = Vec::new();
        for slot in 0..EXECUTIONS {
            for value in VALUES {
                for count in 1..=3 {
                    let chunks = ChunkRef { value, len: u64::from(count) * 8, count };
                    let bytes = store.load_value(key(slot), chunks).await;
                    values.extend(bytes.ok().map(|bytes| (key(slot), chunks, bytes)));
                }
            }
        }
        (records, values)
    }
}

/// The key of an execution. Keys do not follow the order of slots.
fn key(slot: usize) -> Key {
    let mut bytes = [1; 16];
    bytes[0] = ((slot * 7 + 3) % 13) as u8;
    bytes[15] = slot as u8;
    Key::from_bytes(bytes)
}

fn root(slot: usize) -> usize {
    PARENTS[slot].map_or(slot, root)
}

fn masked_keys(bits: u16) -> Vec<Key> {
    (0..EXECUTIONS).filter(|slot| bits & (1 << slot) != 0).map(key).collect()
}

/// The executions with which each kind of Write does something.
#[derive(Default)]
struct Targets {
    any: Vec<usize>,
    absent: Vec<usize>,
    present: Vec<usize>,
    owned: Vec<usize>,
    waiting: Vec<usize>,
}

impl Targets {
    fn for_draft(&self, draft: &Draft) -> &[usize] {
        match draft {
            Draft::Start { .. } => &self.absent,
            Draft::Checkpoint { .. } | Draft::Attempt { .. } | Draft::Transition { .. } | Draft::ClearRequests { .. } => {
                &self.owned
            }
            Draft::Wake { .. } => &self.waiting,
            Draft::Request { .. } => &self.present,
            Draft::Chunk { .. } | Draft::DeleteChunks { .. } => &self.any,
        }
    }
}

/// What a flush has changed so far.
#[derive(Default)]
struct ChangedRows {
    rows: BTreeSet<(usize, u32, u32)>,
    /// Families of which some execution's row is changed.
    changed_families: BTreeSet<usize>,
    /// Families that a Write reads or changes as a whole.
    whole_families: BTreeSet<usize>,
}

impl ChangedRows {
    /// Takes a row of the execution, if it is free. A Write whose guard or effect goes beyond that row (a
    /// cancel goes down, a wake looks at children, an id belongs to the family) takes the whole family.
    fn try_change(&mut self, slot: usize, is_whole: bool) -> bool {
        let family = root(slot);
        if self.whole_families.contains(&family) || (is_whole && self.changed_families.contains(&family)) {
            return false;
        }
        self.changed_families.insert(family);
        if is_whole {
            self.whole_families.insert(family);
        }
        self.rows.insert((slot, 0, 0))
    }
}

impl DifferentialStores {
    /// Registers the workers with each store.
    pub async fn new(fixtures: Vec<Box<dyn StoreFixture>>) -> Self {
        let mut sides = Vec::new();
        for fixture in fixtures {
            let (workers, registrations) = (Vec::new(), HashMap::new());
            let mut side = StoreUnderTest { fixture, workers, stale_worker: None, registrations };
            for _ in 0..WORKERS {
                let worker = side.register().await;
                side.workers.push(worker);
            }
            sides.push(side);
        }
        Self { stores: sides, count: 0, recorded: BTreeSet::new() }
    }

    /// Lets one thing happen to all stores, and compares.
    pub async fn apply(&mut self, op: &HistoryOp) {
        match op {
            HistoryOp::Flush { worker, drafts, is_resent, is_sent_again } => {
                let writes = self.build_writes(*worker, drafts, true).await;
                self.flush(*worker, writes, *is_resent, *is_sent_again).await;
                self.wake_all(*worker).await;
            }
            HistoryOp::Claim { worker, workflows } => self.claim(*worker, *workflows).await,
            HistoryOp::Heartbeat { worker, watch, holds } => self.heartbeat(*worker, *watch, *holds).await,
            HistoryOp::Advance { micros } => {
                for side in &self.stores {
                    side.fixture.clock().advance(Duration::from_micros(u64::from(*micros)));
                }
                for worker in 0..WORKERS {
                    self.heartbeat(worker, 0, None).await;
                }
            }
            HistoryOp::KillWorker { worker } => self.kill_worker(*worker).await,
            HistoryOp::Close { worker } => self.close(*worker).await,
            HistoryOp::StaleFlush { drafts } => {
                let writes = self.build_writes(0, drafts, false).await;
                self.flush_from_stale_worker(writes).await;
            }
        }
        self.compare().await;
    }

    async fn compare(&self) {
        let (records, values) = self.stores[0].read_all().await;
        for side in &self.stores[1..] {
            let (others, other_values) = side.read_all().await;
            // one by one, so that a failure shows what differs and no more
            for (other, record) in others.iter().zip(&records) {
                assert_eq!(other, record, "an execution differs");
            }
            assert_eq!(others.len(), records.len(), "there are others");
            assert_eq!(other_values, values, "large values differ");
        }
    }

    /// All deadlines of a history have passed, and what a look may leave out is over: each store reports what waits with a
    /// deadline, and nothing else.
    async fn compare_expired(&self) {
        for side in &self.stores {
            side.fixture.clock().advance(Duration::from_secs(60));
            let worker = &side.workers[0];
            let (records, _) = side.read_all().await;
            let waits = |it: &Execution| {
                it.deadline_at.is_some() && it.status != Status::Running && !it.status.is_terminal()
            };
            let mut waiting: Vec<Key> =
                records.iter().map(|it| &it.execution).filter(|it| waits(it)).map(|it| it.key).collect();
            let mut expired = worker.store.heartbeat(&worker.new_heartbeat()).await.unwrap().expired;
            waiting.sort_unstable();
            expired.sort_unstable();
            assert_eq!(
                expired, waiting,
                "a deadline is kept of what runs or has ended, or not of what waits"
            );
        }
    }

    async fn flush(&mut self, worker: usize, writes: Vec<Write>, is_resent: bool, is_sent_again: bool) {
        let mut model = None;
        for side in &mut self.stores {
            let worker = &mut side.workers[worker];
            let flush = Flush { is_resent, ..worker.new_flush(writes.clone()) };
            let outcomes = worker.send(&flush).await.unwrap();
            if is_sent_again {
                let again = worker.send(&Flush { is_resent: true, ..flush }).await.unwrap();
                for (i, write) in writes.iter().enumerate() {
                    if matches!(write, Write::Start(_)) {
                        assert_eq!(existing_key(&again[i]), existing_key(&outcomes[i]), "{write:?}");
                    }
                }
            }
            let told: Vec<_> =
                writes.iter().zip(outcomes).map(|(write, it)| comparable_outcome(write, it, is_resent)).collect();
            let model = model.get_or_insert_with(|| told.clone());
            assert_eq!(&told, model, "the stores answer differently");
        }
    }

    /// What an engine does after every flush: a Wake for each that waits, for what it waits for may be there.
    async fn wake_all(&mut self, worker: usize) {
        let (records, _) = self.stores[0].read_all().await;
        let waiting = records.iter().filter(|record| record.execution.status == Status::Waiting);
        let writes: Vec<Write> = waiting.map(|record| Write::Wake(record.execution.key)).collect();
        if !writes.is_empty() {
            self.flush(worker, writes, false, false).await;
        }
    }

    async fn claim(&mut self, worker: usize, workflows: u8) {
        let mut model = None;
        for side in &mut self.stores {
            let names = WORKFLOWS.iter().enumerate().filter(|(i, _)| workflows & (1 << i) != 0);
            side.workers[worker].workflows = names.map(|(_, name)| Arc::from(*name)).collect();
            let mut claimed = side.workers[worker].claim(100).await;
            claimed.extend(side.workers[worker].claim_from_quarantine(100).await);
            let claimed = side.normalize_all(claimed);
            let model = model.get_or_insert_with(|| claimed.clone());
            assert_eq!(&claimed, model, "the stores claim differently");
        }
    }

    async fn heartbeat(&mut self, worker: usize, watch: u16, holds: Option<u16>) {
        let mut model = None;
        for side in &self.stores {
            let worker = &side.workers[worker];
            let look = Heartbeat { watched: masked_keys(watch), held: holds.map(masked_keys), ..worker.new_heartbeat() };
            let looked = crate::fixtures::registration::heartbeat_and_take_over(&*worker.store, &look).await;
            let recovered = looked.recovered;
            let HeartbeatReply {
                now,
                is_fenced,
                mut requests,
                finished: mut ended,
                unheld: strays,
                has_ready,
                next_due,
                ..
            } = looked.reply;
            let quarantined_until = looked.reply.quarantined_until;
            requests.sort_unstable_by_key(|(key, kind)| (*key, *kind as u8));
            ended.sort_unstable();
            let strays = side.normalize_all(strays);
            let whens = (next_due, quarantined_until);
            let seen = (now, is_fenced, requests, ended, strays, has_ready, whens, recovered);
            let model = model.get_or_insert_with(|| seen.clone());
            assert_eq!(&seen, model, "the stores see differently");
        }
    }

    async fn kill_worker(&mut self, worker: usize) {
        let looker = (worker + 1) % WORKERS;
        let mut model = None;
        for side in &mut self.stores {
            side.fixture.mark_dead(side.workers[worker].id).await;
            let recovered = side.workers[looker].take_over_dead_workers().await;
            let fresh = side.register().await;
            side.stale_worker = Some(std::mem::replace(&mut side.workers[worker], fresh));
            assert_eq!(recovered, *model.get_or_insert(recovered), "the stores recover differently");
        }
    }

    async fn close(&mut self, worker: usize) {
        for side in &mut self.stores {
            let closing = &side.workers[worker];
            closing.store.close(closing.id).await.unwrap();
            let fresh = side.register().await;
            side.stale_worker = Some(std::mem::replace(&mut side.workers[worker], fresh));
        }
    }

    async fn flush_from_stale_worker(&mut self, writes: Vec<Write>) {
        for side in &mut self.stores {
            let Some(ghost) = &mut side.stale_worker else { continue };
            let result = ghost.try_commit(writes.clone()).await;
            assert!(matches!(result, Err(StoreError::Fenced)), "a ghost wrote: {result:?}");
            assert!(ghost.heartbeat().await.is_fenced);
            ghost.store.close(ghost.id).await.unwrap();
        }
    }

    fn next_number(&mut self) -> i64 {
        self.count += 1;
        self.count
    }

    /// The Writes of those drafts that may share a flush.
    async fn build_writes(&mut self, worker: usize, drafts: &[TargetedDraft], will_be_recorded: bool) -> Vec<Write> {
        let targets = self.targets(worker).await;
        let mut taken = ChangedRows::default();
        let mut recorded = self.recorded.clone();
        let mut writes = Vec::new();
        for TargetedDraft { is_literal: is_wild, draft } in drafts {
            let mut draft = draft.clone();
            let targets = targets.for_draft(&draft);
            let slot = draft.slot();
            if !is_wild {
                let Some(target) = targets.get(*slot % targets.len().max(1)) else { continue };
                *slot = *target;
            }
            writes.extend(self.build_write(&draft, &mut taken, &mut recorded));
        }
        if will_be_recorded {
            self.recorded = recorded;
        }
        writes
    }

    async fn targets(&self, worker: usize) -> Targets {
        let side = &self.stores[0];
        let worker = &side.workers[worker];
        let ids: Vec<ExecutionId> = (0..EXECUTIONS).map(|slot| ExecutionId::Key(key(slot))).collect();
        let loaded = worker.store.load(&ids, Detail::Outcome).await.unwrap();
        let mut targets = Targets { any: (0..EXECUTIONS).collect(), ..Targets::default() };
        for (slot, record) in loaded.into_iter().enumerate() {
            let Some(Record { execution: row, .. }) = record else {
                targets.absent.push(slot);
                continue;
            };
            targets.present.push(slot);
            if row.owner == Some(worker.id) {
                targets.owned.push(slot);
            }
            if row.status == Status::Waiting {
                targets.waiting.push(slot);
            }
        }
        targets
    }

    fn build_write(
        &mut self,
        draft: &Draft,
        taken: &mut ChangedRows,
        recorded: &mut BTreeSet<(Key, u32, u32)>,
    ) -> Option<Write> {
        let count = self.next_number();
        let now = self.stores[0].fixture.now();
        let at = crate::fixtures::builders::at(count);
        Some(match draft {
            Draft::Start { slot, workflow, has_id, is_detached, state } => {
                if !taken.try_change(*slot, *has_id) {
                    return None;
                }
                let parent =
                    PARENTS[*slot].map(|parent| Parent { key: key(parent), is_detached: *is_detached });
                let id = || format!("id of {}", root(*slot)).into();
                Write::Start(Box::new(Start {
                    root: key(root(*slot)),
                    parent,
                    workflow_id: has_id.then(id),
                    workflow: WORKFLOWS[usize::from(*workflow)].into(),
                    fingerprint: has_id.then_some(count as u64),
                    input: value(count),
                    created_at: at,
                    deadline_at: (count % 3 == 0).then_some(at),
                    is_guarded: true,
                    // a history may record something of what nobody has run
                    has_begun: true,
                    ..start(key(*slot), self.state(*slot, state, now.as_micros()))
                }))
            }
            Draft::Checkpoint { slot, n } => {
                if !recorded.insert((key(*slot), *n, 0)) {
                    return None;
                }
                let mut step = checkpoint(key(*slot), *n, &text(count));
                // not in the order of paths, and unique
                step.order = (*n * 5) % 11;
                Write::Checkpoint(step)
            }
            Draft::Attempt { slot, n, attempt: number } => {
                if !recorded.insert((key(*slot), *n, *number)) {
                    return None;
                }
                Write::Attempt(attempt(key(*slot), *n, *number))
            }
            Draft::Transition { slot, state } => {
                if !taken.try_change(*slot, false) {
                    return None;
                }
                transition(key(*slot), self.state(*slot, state, now.as_micros()))
            }
            Draft::Wake { slot } => {
                if !taken.try_change(*slot, true) {
                    return None;
                }
                Write::Wake(key(*slot))
            }
            Draft::Request { slot, kind } => {
                if !taken.try_change(*slot, true) {
                    return None;
                }
                let kind = *kind;
                let reason = if kind == RequestKind::Resume { Payload::empty() } else { value(count) };
                let n = Key::from_bytes(i128::from(count).to_be_bytes());
                Write::Request(Request { execution: key(*slot), id: n, kind, at, reason })
            }
            Draft::ClearRequests { slot } => {
                let family = root(*slot);
                if taken.whole_families.contains(&family) || !taken.rows.insert((*slot, u32::MAX, 0)) {
                    return None;
                }
                taken.changed_families.insert(family);
                Write::ClearRequests(key(*slot))
            }
            Draft::Chunk { slot, value, n } => {
                let nth = VALUES.iter().position(|it| it == value)? as u32;
                if taken.rows.contains(&(*slot, 1, 0)) || !taken.rows.insert((*slot, 2 + nth, *n)) {
                    return None;
                }
                taken.rows.insert((*slot, 1, 1));
                chunk(key(*slot), *value, *n, &count.to_be_bytes())
            }
            Draft::DeleteChunks { slot, keep } => {
                if taken.rows.contains(&(*slot, 1, 1)) || !taken.rows.insert((*slot, 1, 0)) {
                    return None;
                }
                Write::DeleteChunks(DeleteChunks { execution: key(*slot), keep: SmallVec::from_iter(*keep) })
            }
        })
    }

    fn state(&mut self, slot: usize, state: &DraftState, now: i64) -> State {
        let count = self.next_number();
        let sleeps = |n: u8| pending_sleeps(&(0..u32::from(n)).map(|n| (n, count)).collect::<Vec<_>>());
        match state {
            DraftState::Running { armed } => State::Running { pending_sleeps: sleeps(*armed) },
            DraftState::Queued { armed } => State::Queued { pending_sleeps: sleeps(*armed) },
            DraftState::Waiting { due_in, children, armed } => {
                let is_mine = |child: &usize| PARENTS[*child] == Some(slot) && children & (1 << child) != 0;
                let due = |due_in: i16| stepfast_core::clock::Timestamp::from_micros(now + i64::from(due_in));
                State::Waiting {
                    wake_at: due_in.map(due),
                    children: (0..EXECUTIONS).filter(is_mine).map(key).collect(),
                    pending_sleeps: sleeps(*armed),
                }
            }
            DraftState::Parked { armed } => {
                State::Parked { reason: value(count), pending_sleeps: sleeps(*armed) }
            }
            DraftState::Ended { status } => State::Ended {
                status: *status,
                outcome: value(count),
                at: crate::fixtures::builders::at(count),
            },
        }
    }
}

/// A text that differs from all others; some are longer than stores keep in the row that refers to them.
fn text(count: i64) -> String {
    let pad = if count % 3 == 0 { 300 + count as usize % 7 * 400 } else { 0 };
    format!("{count:0pad$}")
}

fn value(count: i64) -> Payload {
    payload(&text(count))
}

/// What a store must tell of a Write. Of a resent flush only who won each Start: the rest is read again from
/// rows, which have forgotten some of it.
fn comparable_outcome(write: &Write, outcome: Outcome, is_resent: bool) -> (Option<Outcome>, Option<Key>) {
    match write {
        Write::Start(_) if is_resent => (None, existing_key(&outcome)),
        _ if is_resent => (None, None),
        _ => (Some(outcome), None),
    }
}

/// Who won a Start, if it was lost.
fn existing_key(outcome: &Outcome) -> Option<Key> {
    match outcome {
        Outcome::Applied => None,
        Outcome::Duplicate(existing) => Some(existing.key),
        other => panic!("not an outcome of a Start: {other:?}"),
    }
}

/// Lets a history happen to all stores; panics where they differ.
pub async fn replay(fixtures: Vec<Box<dyn StoreFixture>>, history: &[HistoryOp]) {
    let mut twins = DifferentialStores::new(fixtures).await;
    for op in history {
        twins.apply(op).await;
    }
    twins.compare_expired().await;
    for side in &twins.stores {
        assert_eq!(side.fixture.integrity_errors(), Vec::<String>::new());
    }
}
