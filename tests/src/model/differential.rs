//! [`DifferentialStores`]: several stores to which the same history is applied. The first is the model for the others.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use smallvec::SmallVec;
use stepfast_core::key::Key;
use stepfast_core::payload::{ChunkRef, Payload};
use stepfast_core::store::{
    Attempt, CloseBatch, DeleteChunks, Detail, Execution, ExecutionId, Filter, Flush, Heartbeat,
    HeartbeatReply, ItemOutcome, Pack, Parent, PendingMessage, Record, Request, RequestKind, Start, State,
    Status, StoreError, Wait, WorkerId, Write,
};

use crate::fixtures::builders::{
    attempt, chunk, outcomes_of_resend, payload, pending_sleeps, start, transition,
};
use crate::model::exchanges::{
    build_exchange, events_and_waiters, pending_messages, receivers, stream_entries,
};
use crate::model::histories::{
    BATCH, BUNDLE_ITEMS, BUNDLES, Draft, DraftState, EXECUTIONS, HistoryOp, ITEM, PARENTS, TOPICS,
    TargetedDraft, WORKERS,
};
use crate::model::recorded_calls::RecordedCalls;
use crate::{StoreFixture, Worker};

const WORKFLOWS: [&str; 2] = ["checkout", "ship"];
const VALUES: [u64; 3] = [0, 7, u64::MAX];

/// Several stores in parallel. The methods panic as soon as two of them differ.
pub struct DifferentialStores {
    stores: Vec<StoreUnderTest>,
    /// The last number given to anything that must be unique: times, reasons, requests.
    count: i64,
    recorded: RecordedCalls,
}

/// One of the stores.
struct StoreUnderTest {
    fixture: Box<dyn StoreFixture>,
    workers: Vec<Worker>,
    /// The last worker that died or closed.
    stale_worker: Option<Worker>,
    /// The sequence number of each registration, because stores assign worker_ids differently.
    registrations: HashMap<WorkerId, i64>,
}

impl StoreUnderTest {
    async fn register(&mut self) -> Worker {
        // every second worker uses another handle
        let nth = self.registrations.len();
        let store =
            if nth.is_multiple_of(2) { self.fixture.store() } else { self.fixture.second_store().await };
        let worker = Worker::register(&store).await;
        self.registrations.insert(worker.id, nth as i64);
        worker
    }

    fn normalize(&self, mut record: Record) -> Record {
        record.execution.owner = record.execution.owner.map(|owner| WorkerId(self.registrations[&owner]));
        record.requests.sort_unstable_by_key(|kind| kind.number());
        record
    }

    fn normalize_all(&self, records: Vec<Record>) -> Vec<Record> {
        let mut records: Vec<Record> = records.into_iter().map(|record| self.normalize(record)).collect();
        records.sort_by_key(|record| record.execution.key);
        records
    }

    /// Returns all records and all values.
    async fn read_all(&self) -> (Vec<Record>, Vec<(Key, ChunkRef, Bytes)>) {
        let store = &self.workers[0].store;
        let rows = store.list(&Filter { limit: 1_000, ..Filter::default() }).await.unwrap().executions;
        let ids: Vec<_> = rows.iter().map(|row| ExecutionId::Key(row.key)).collect();
        let loaded = store.load(&ids, Detail::Full).await.unwrap();
        let mut records: Vec<Record> =
            loaded.into_iter().map(|record| self.normalize(record.unwrap())).collect();
        for (row, record) in rows.iter().zip(&records) {
            let (input, outcome) = (record.execution.input.clone(), record.execution.outcome.clone());
            let owner = row.owner.map(|owner| WorkerId(self.registrations[&owner]));
            let listed = Execution { input, outcome, owner, ..row.clone() };
            assert_eq!(listed, record.execution, "a list and a load return the same");
        }
        // lists omit bundles
        let bundles = BUNDLES.map(|index| ExecutionId::Key(key(index)));
        let loaded = store.load(&bundles, Detail::Full).await.unwrap();
        records.extend(loaded.into_iter().flatten().map(|record| self.normalize(record)));
        let mut values = Vec::new();
        for index in 0..EXECUTIONS {
            for value in VALUES {
                for count in 1..=3 {
                    let chunks = ChunkRef { value, len: u64::from(count) * 8, count };
                    let bytes = store.load_value(key(index), chunks).await;
                    values.extend(bytes.ok().map(|bytes| (key(index), chunks, bytes)));
                }
            }
        }
        (records, values)
    }
}

/// Returns the key of an execution. Keys are not in the order of indexes.
pub(super) fn key(index: usize) -> Key {
    if let BATCH | ITEM = index {
        let mut bytes = [1; 16];
        bytes[8] = 0xc0;
        let batch = Key::from_bytes(bytes).batch().unwrap();
        return if index == BATCH { batch } else { batch.item(BUNDLE_ITEMS - 1) };
    }
    if let Some(number) = BUNDLES.iter().position(|bundle| *bundle == index) {
        return key(BATCH).bundle((number as u32 + 1) * BUNDLE_ITEMS - 1);
    }
    let mut bytes = [1; 16];
    bytes[0] = ((index * 7 + 3) % 13) as u8;
    bytes[15] = index as u8;
    Key::from_bytes(bytes)
}

fn root(index: usize) -> usize {
    PARENTS[index].map_or(index, root)
}

fn masked_keys(bits: u16) -> Vec<Key> {
    (0..EXECUTIONS).filter(|index| bits & (1 << index) != 0).map(key).collect()
}

/// The executions on which each kind of Write has an effect.
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
            Draft::Checkpoint { .. }
            | Draft::Attempt { .. }
            | Draft::Transition { .. }
            | Draft::Receive { .. }
            | Draft::SetEvent { .. }
            | Draft::Append { .. }
            | Draft::WriteStream { .. }
            | Draft::Continue { .. }
            | Draft::ClearRequests { .. } => &self.owned,
            Draft::Pack { .. } | Draft::CloseBatch { .. } => &[],
            Draft::Wake { .. } => &self.waiting,
            Draft::Request { .. } | Draft::Send { .. } | Draft::Forward { .. } => &self.present,
            Draft::Chunk { .. } | Draft::DeleteChunks { .. } | Draft::Keep { .. } => &self.any,
        }
    }
}

/// The rows that a flush has changed so far.
#[derive(Default)]
pub(super) struct ChangedRows {
    pub(super) rows: BTreeSet<(usize, u32, u32)>,
    /// Families in which the row of an execution is changed.
    changed_families: BTreeSet<usize>,
    /// Families that one Write reads or changes as a whole.
    whole_families: BTreeSet<usize>,
}

impl ChangedRows {
    /// Reserves a row of the execution for a Write, and returns whether it was free. A Write whose guard or effect
    /// exceeds that row (a cancel affects children, a wake reads them, a workflow_id concerns the family) reserves the
    /// whole family.
    pub(super) fn try_change(&mut self, index: usize, is_whole: bool) -> bool {
        let family = root(index);
        if self.whole_families.contains(&family) || (is_whole && self.changed_families.contains(&family)) {
            return false;
        }
        self.changed_families.insert(family);
        if is_whole {
            self.whole_families.insert(family);
        }
        self.rows.insert((index, 0, 0))
    }
}

impl DifferentialStores {
    /// Registers the workers with each store.
    pub async fn new(fixtures: Vec<Box<dyn StoreFixture>>) -> Self {
        let mut sides = Vec::new();
        for fixture in fixtures {
            let (workers, registrations) = (Vec::new(), HashMap::new());
            let mut store = StoreUnderTest { fixture, workers, stale_worker: None, registrations };
            for _ in 0..WORKERS {
                let worker = store.register().await;
                store.workers.push(worker);
            }
            sides.push(store);
        }
        Self { stores: sides, count: 0, recorded: RecordedCalls::default() }
    }

    /// Applies one operation to all stores, and compares them.
    pub async fn apply(&mut self, op: &HistoryOp) {
        match op {
            HistoryOp::Flush { worker, drafts, is_resent, is_repeated } => {
                let writes = self.build_writes(*worker, drafts, true).await;
                self.flush(*worker, writes, *is_resent, *is_repeated).await;
                self.wake_all(*worker).await;
            }
            HistoryOp::Claim { worker, workflows } => self.claim(*worker, *workflows).await,
            HistoryOp::Heartbeat { worker, watched, held } => self.heartbeat(*worker, *watched, *held).await,
            HistoryOp::Advance { micros } => {
                for store in &self.stores {
                    store.fixture.clock().advance(Duration::from_micros(u64::from(*micros)));
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
        for store in &self.stores[1..] {
            let (others, other_values) = store.read_all().await;
            // one by one, so that a failure shows only the difference
            for (other, record) in others.iter().zip(&records) {
                assert_eq!(other, record, "an execution differs");
            }
            assert_eq!(others.len(), records.len(), "the numbers of executions differ");
            assert_eq!(other_values, values, "large values differ");
        }
        let messages = pending_messages(&*self.stores[0].workers[0].store).await;
        for store in &self.stores[1..] {
            let others = pending_messages(&*store.workers[0].store).await;
            assert_eq!(others, messages, "pending messages differ");
        }
        let streams = stream_entries(&*self.stores[0].workers[0].store).await;
        for store in &self.stores[1..] {
            assert_eq!(stream_entries(&*store.workers[0].store).await, streams, "streams differ");
        }
        let (events, waiters) = events_and_waiters(&*self.stores[0].workers[0].store).await;
        for store in &self.stores[1..] {
            let (other_events, other_waiters) = events_and_waiters(&*store.workers[0].store).await;
            assert_eq!(other_events, events, "events differ");
            assert_eq!(other_waiters, waiters, "the waiters for events differ");
        }
        self.compare_batch().await;
    }

    /// Compares the numbers and bundles of the batch.
    async fn compare_batch(&self) {
        let (mut model, batch) = (None, key(BATCH));
        for store in &self.stores {
            let store = &store.workers[0].store;
            let items = store.batch_items(batch).await.unwrap();
            let bundles = store.bundles(batch, 0, 10).await.unwrap();
            let model = model.get_or_insert_with(|| (items.clone(), bundles.clone()));
            assert_eq!(&(items, bundles), model, "the items of the batch differ");
        }
    }

    /// Compares expired executions. First advances the clocks past all deadlines of the history, and past the time for
    /// which a store may omit executions. Then each store must report all executions that have a deadline, have not
    /// ended and do not run.
    async fn compare_expired(&self) {
        for store in &self.stores {
            store.fixture.clock().advance(Duration::from_secs(60));
            let worker = &store.workers[0];
            let (records, _) = store.read_all().await;
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
                "a running or ended execution has a deadline, or a waiting one has none"
            );
        }
    }

    async fn flush(&mut self, worker: usize, writes: Vec<Write>, is_resent: bool, is_repeated: bool) {
        let mut model = None;
        for store in &mut self.stores {
            let worker = &mut store.workers[worker];
            let flush = Flush { is_resent, ..worker.new_flush(writes.clone()) };
            let outcomes = worker.send(&flush).await.unwrap();
            if is_repeated {
                let expected = outcomes_of_resend(&flush, &outcomes);
                let resent = worker.send(&Flush { is_resent: true, ..flush }).await.unwrap();
                assert_eq!(resent, expected, "a resend returns different outcomes: {writes:?}");
            }
            let model = model.get_or_insert_with(|| outcomes.clone());
            assert_eq!(&outcomes, model, "the stores return different outcomes");
        }
    }

    /// Sends a Wake for every waiting execution, as an engine does after every flush.
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
        for store in &mut self.stores {
            let names = WORKFLOWS.iter().enumerate().filter(|(i, _)| workflows & (1 << i) != 0);
            store.workers[worker].workflows = names.map(|(_, name)| Arc::from(*name)).collect();
            let mut claimed = store.workers[worker].claim(100).await;
            claimed.extend(store.workers[worker].claim_from_quarantine(100).await);
            let claimed = store.normalize_all(claimed);
            let model = model.get_or_insert_with(|| claimed.clone());
            assert_eq!(&claimed, model, "the stores claim differently");
        }
    }

    async fn heartbeat(&mut self, worker: usize, watched: u16, held: Option<u16>) {
        let mut model = None;
        for store in &self.stores {
            let worker = &store.workers[worker];
            let heartbeat = Heartbeat {
                watched: masked_keys(watched),
                held: held.map(masked_keys),
                ..worker.new_heartbeat()
            };
            let result =
                crate::fixtures::registration::heartbeat_and_take_over(&*worker.store, &heartbeat).await;
            let recovered = result.recovered;
            let HeartbeatReply {
                now,
                is_fenced,
                mut requests,
                mut finished,
                unheld,
                has_ready,
                next_due,
                ..
            } = result.reply;
            let quarantined_until = result.reply.quarantined_until;
            requests.sort_unstable_by_key(|(key, kind)| (*key, kind.number()));
            finished.sort_unstable();
            let unheld = store.normalize_all(unheld);
            let times = (next_due, quarantined_until);
            let reply = (now, is_fenced, requests, finished, unheld, has_ready, times, recovered);
            let model = model.get_or_insert_with(|| reply.clone());
            assert_eq!(&reply, model, "the stores reply differently to a heartbeat");
        }
    }

    async fn kill_worker(&mut self, worker: usize) {
        let survivor = (worker + 1) % WORKERS;
        let mut model = None;
        for store in &mut self.stores {
            store.fixture.mark_dead(store.workers[worker].id).await;
            let recovered = store.workers[survivor].take_over_dead_workers().await;
            let fresh = store.register().await;
            store.stale_worker = Some(std::mem::replace(&mut store.workers[worker], fresh));
            assert_eq!(recovered, *model.get_or_insert(recovered), "the stores recover differently");
        }
    }

    async fn close(&mut self, worker: usize) {
        for store in &mut self.stores {
            let closing = &store.workers[worker];
            closing.store.close(closing.id).await.unwrap();
            let fresh = store.register().await;
            store.stale_worker = Some(std::mem::replace(&mut store.workers[worker], fresh));
        }
    }

    async fn flush_from_stale_worker(&mut self, writes: Vec<Write>) {
        for store in &mut self.stores {
            let Some(ghost) = &mut store.stale_worker else { continue };
            let result = ghost.try_commit(writes.clone()).await;
            assert!(matches!(result, Err(StoreError::Fenced)), "a stale worker committed: {result:?}");
            assert!(ghost.heartbeat().await.is_fenced);
            ghost.store.close(ghost.id).await.unwrap();
        }
    }

    fn next_number(&mut self) -> i64 {
        self.count += 1;
        self.count
    }

    /// Returns the Writes of those drafts that may share a flush.
    async fn build_writes(
        &mut self,
        worker: usize,
        drafts: &[TargetedDraft],
        is_recorded: bool,
    ) -> Vec<Write> {
        let targets = self.targets(worker).await;
        let pending = pending_messages(&*self.stores[0].workers[0].store).await;
        let mut pending: BTreeMap<(Key, Arc<str>), _> =
            receivers().into_iter().zip(pending.into_iter().map(VecDeque::from)).collect();
        let mut changed = ChangedRows::default();
        let mut recorded = self.recorded.clone();
        let mut writes = Vec::new();
        for TargetedDraft { is_literal: is_wild, draft } in drafts {
            let mut draft = draft.clone();
            let targets = targets.for_draft(&draft);
            let is_targeted = !matches!(draft, Draft::Pack { .. } | Draft::CloseBatch { .. });
            let index = draft.index();
            if !is_wild && is_targeted {
                let Some(target) = targets.get(*index % targets.len().max(1)) else { continue };
                *index = *target;
            }
            let message = match &draft {
                Draft::Receive { index, topic, .. } => {
                    pending.get_mut(&(key(*index), TOPICS[*topic].into())).and_then(VecDeque::pop_front)
                }
                _ => None,
            };
            writes.extend(self.build_write(&draft, message, &mut changed, &mut recorded));
        }
        if is_recorded {
            self.recorded = recorded;
        }
        writes
    }

    async fn targets(&self, worker: usize) -> Targets {
        let store = &self.stores[0];
        let worker = &store.workers[worker];
        let ids: Vec<ExecutionId> = (0..EXECUTIONS).map(|index| ExecutionId::Key(key(index))).collect();
        let loaded = worker.store.load(&ids, Detail::Outcome).await.unwrap();
        let mut targets = Targets { any: (0..EXECUTIONS).collect(), ..Targets::default() };
        for (index, record) in loaded.into_iter().enumerate() {
            let Some(Record { execution: row, .. }) = record else {
                targets.absent.push(index);
                continue;
            };
            targets.present.push(index);
            if row.owner == Some(worker.id) {
                targets.owned.push(index);
            }
            if row.status == Status::Waiting {
                targets.waiting.push(index);
            }
        }
        targets
    }

    fn build_write(
        &mut self,
        draft: &Draft,
        message: Option<PendingMessage>,
        changed: &mut ChangedRows,
        recorded: &mut RecordedCalls,
    ) -> Option<Write> {
        let count = self.next_number();
        let now = self.stores[0].fixture.now();
        let at = crate::fixtures::builders::at(count);
        Some(match draft {
            Draft::Start { index, workflow, has_id, is_detached, state } => {
                // the guard of a bundle depends on its batch, and on the bundle before
                let is_whole = *has_id || root(*index) == BATCH;
                if !changed.try_change(*index, is_whole) {
                    return None;
                }
                let state = match state {
                    DraftState::Ended { .. } => state.clone(),
                    _ if *index == BATCH => {
                        DraftState::Waiting { due_in: None, children: 0, topics: 0, sleep_count: 0 }
                    }
                    state => state.clone(),
                };
                let item_count = match *index {
                    BATCH => (count % 2 == 0).then_some(u64::from(BUNDLE_ITEMS) * 2),
                    ITEM => (count % 2 == 0).then_some(1),
                    index if BUNDLES.contains(&index) => Some(u64::from(BUNDLE_ITEMS)),
                    _ => None,
                };
                let parent =
                    PARENTS[*index].map(|parent| Parent { key: key(parent), is_detached: *is_detached });
                let id = || format!("id of {}", root(*index)).into();
                Write::Start(Box::new(Start {
                    root: key(root(*index)),
                    parent,
                    workflow_id: has_id.then(id),
                    workflow: WORKFLOWS[usize::from(*workflow)].into(),
                    fingerprint: has_id.then_some(count as u64),
                    input: value(count),
                    created_at: at,
                    deadline_at: (count % 3 == 0).then_some(at),
                    item_count,
                    is_guarded: true,
                    // a history may record checkpoints of executions that never ran
                    has_begun: true,
                    ..start(key(*index), self.state(*index, &state, now.as_micros()))
                }))
            }
            // only items have checkpoints and attempts
            Draft::Checkpoint { index, .. } | Draft::Attempt { index, .. }
                if *index == BATCH || BUNDLES.contains(index) =>
            {
                return None;
            }
            Draft::Checkpoint { index, n } => {
                Write::Checkpoint(recorded.checkpoint(key(*index), *n, count, &text(count))?)
            }
            Draft::Attempt { index, n, attempt: number } => {
                let path = recorded.record(key(*index), *n, *number)?;
                Write::Attempt(Attempt { path, ..attempt(key(*index), *n, *number) })
            }
            Draft::Transition { index, state } => {
                if !changed.try_change(*index, false) {
                    return None;
                }
                transition(key(*index), self.state(*index, state, now.as_micros()))
            }
            Draft::Wake { index } => {
                if !changed.try_change(*index, true) {
                    return None;
                }
                Write::Wake(key(*index))
            }
            Draft::Request { index, kind } => {
                if !changed.try_change(*index, true) {
                    return None;
                }
                let kind = *kind;
                let reason = if kind == RequestKind::Resume { Payload::empty() } else { value(count) };
                let n = Key::from_bytes(i128::from(count).to_be_bytes());
                // an item of a bundle is cancelled by a request to the bundle; other executions are cancelled themselves
                let item = key(*index).last_index().filter(|_| kind.cancelled_item().is_some());
                let (id, kind) = match (item, key(*index).batch(), kind) {
                    (Some(last), Some(batch), _) => (batch.item(last), RequestKind::CancelItem(last)),
                    (_, _, RequestKind::CancelItem(_)) => (n, RequestKind::Cancel),
                    (_, _, kind) => (n, kind),
                };
                Write::Request(Request { execution: key(*index), id, kind, at, reason })
            }
            Draft::ClearRequests { index } => {
                let family = root(*index);
                if changed.whole_families.contains(&family) || !changed.rows.insert((*index, u32::MAX, 0)) {
                    return None;
                }
                changed.changed_families.insert(family);
                Write::ClearRequests(key(*index))
            }
            Draft::Chunk { index, value, n } => {
                let nth = VALUES.iter().position(|it| it == value)? as u32;
                if changed.rows.contains(&(*index, 1, 0)) || !changed.rows.insert((*index, 2 + nth, *n)) {
                    return None;
                }
                changed.rows.insert((*index, 1, 1));
                chunk(key(*index), *value, *n, &count.to_be_bytes())
            }
            Draft::Pack { index, offset, status } => {
                let number = BUNDLES.iter().position(|bundle| bundle == index)? as u32;
                let first = number * BUNDLE_ITEMS + offset;
                recorded.record(key(*index), u32::MAX, first)?;
                let outcome = |index| ItemOutcome { index, status: *status, outcome: value(count) };
                let outcomes = (first..(number + 1) * BUNDLE_ITEMS).map(outcome).collect();
                Write::Pack(Pack { bundle: key(*index), outcomes })
            }
            Draft::CloseBatch { index, item_count } => {
                if *index != BATCH || !changed.try_change(*index, true) {
                    return None;
                }
                Write::CloseBatch(CloseBatch { batch: key(BATCH), item_count: *item_count })
            }
            Draft::DeleteChunks { index, keep } => {
                if changed.rows.contains(&(*index, 1, 1)) || !changed.rows.insert((*index, 1, 0)) {
                    return None;
                }
                Write::DeleteChunks(DeleteChunks { execution: key(*index), keep: SmallVec::from_iter(*keep) })
            }
            exchange => return build_exchange(exchange, message, count, changed, recorded),
        })
    }

    fn state(&mut self, index: usize, state: &DraftState, now: i64) -> State {
        let count = self.next_number();
        let sleeps = |n: u8| pending_sleeps(&(0..u32::from(n)).map(|n| (n, count)).collect::<Vec<_>>());
        match state {
            DraftState::Running { sleep_count } => State::Running { pending_sleeps: sleeps(*sleep_count) },
            DraftState::Queued { sleep_count } => State::Queued { pending_sleeps: sleeps(*sleep_count) },
            DraftState::Waiting { due_in, children, topics, sleep_count } => {
                let is_mine = |child: &usize| PARENTS[*child] == Some(index) && children & (1 << child) != 0;
                let due = |due_in: i16| stepfast_core::clock::Timestamp::from_micros(now + i64::from(due_in));
                let mut waits = Wait::for_children((0..EXECUTIONS).filter(is_mine).map(key));
                let awaited = TOPICS.iter().enumerate().filter(|(n, _)| topics & (1 << n) != 0);
                // a batch waits for its items only
                waits.extend(
                    awaited.map(|(_, topic)| Wait::Message((*topic).into())).filter(|_| index != BATCH),
                );
                let setter = PARENTS[index].filter(|_| index < BATCH);
                let events = TOPICS.iter().enumerate().filter(|(n, _)| topics & (4 << n) != 0);
                waits.extend(events.filter_map(|(_, name)| Some(Wait::Event(key(setter?), (*name).into()))));
                State::Waiting { wake_at: due_in.map(due), waits, pending_sleeps: sleeps(*sleep_count) }
            }
            DraftState::Parked { sleep_count, is_pause } => {
                let (reason, pending_sleeps) = (value(count), sleeps(*sleep_count));
                State::Parked { reason, pending_sleeps, is_pause: *is_pause }
            }
            DraftState::Ended { status } => State::Ended {
                status: *status,
                outcome: value(count),
                at: crate::fixtures::builders::at(count),
            },
        }
    }
}

/// Returns a text that differs from all others. Some are longer than stores keep in the referring row.
pub(super) fn text(count: i64) -> String {
    let pad = if count % 3 == 0 { 300 + count as usize % 7 * 400 } else { 0 };
    format!("{count:0pad$}")
}

pub(super) fn value(count: i64) -> Payload {
    payload(&text(count))
}

/// Applies a history to all stores. Panics where they differ.
pub async fn replay(fixtures: Vec<Box<dyn StoreFixture>>, history: &[HistoryOp]) {
    let mut stores = DifferentialStores::new(fixtures).await;
    for op in history {
        stores.apply(op).await;
    }
    stores.compare_expired().await;
    for store in &stores.stores {
        assert_eq!(store.fixture.integrity_errors(), Vec::<String>::new());
    }
}
