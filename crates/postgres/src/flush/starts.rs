//! [`SortedStarts`]: the queries of a flush's Starts. The fewer options a Start has, the fewer columns and checks it needs.

use std::collections::HashSet;

use stepfast_core::Key;
use stepfast_core::clock::{Timestamp, stored_millis};
use stepfast_core::store::{Start, State, WorkerId, Write};
use tokio_postgres::types::ToSql;

use crate::conn::pipeline::{Param, Query, column, param};
use crate::conn::statements::Sql;
use crate::error::DEPTH_LIMIT_CHECK;
use crate::flush::bundles::{BundleChains, stored_count};
use crate::rows::types::{Timestamptz, non_empty_bytes, to_uuid};

/// The kind of a Start, which decides the statement that inserts it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum StartKind {
    /// Starts of running executions, with a minted key and without options. Such Starts cannot be duplicates.
    Running,
    /// Like `Running`, but the executions have ended already.
    Ended,
    /// Starts of queued executions, with a minted key and no options except for placement and attributes.
    Queued,
    /// Self-claiming Starts, whose executions run at once if their queue has no limits.
    SelfClaiming,
    /// Debounced Starts. Each is merged into the scheduled execution with the same queue and debounce id, if one
    /// exists.
    Debounced,
    /// Like `Running` or `Ended`, but with a workflow_id from the caller.
    Named,
    /// All other Starts, whose statement has a parameter for every column.
    Special,
    /// Starts of bundles. Their statement inserts those that fit into their batches.
    Bundle,
}

/// The statement of each kind, with its `action` and its parameters, in the order in which a flush sends them.
#[rustfmt::skip]
const STATEMENTS: [(StartKind, Sql, &str, &[StartColumn]); 8] = [
    (StartKind::Running, Sql::StartRunning, "inserting executions",
        &[WORKER, CREATED_AT, KEY, WORKFLOW, INPUT]),
    (StartKind::Ended, Sql::StartEnded, "inserting executions",
        &[CREATED_AT, ENDED_AT, STATUS, KEY, WORKFLOW, INPUT, OUTCOME]),
    (StartKind::Queued, Sql::StartQueued, "queueing executions",
        &[CREATED_AT, KEY, WORKFLOW, APP_VERSION, INPUT, QUEUE, QUEUE_KEY, PRIORITY]),
    (StartKind::SelfClaiming, Sql::StartSelfClaiming, "starting self-claiming executions",
        &[WORKER, CREATED_AT, KEY, WORKFLOW, APP_VERSION, INPUT, QUEUE, QUEUE_KEY, PRIORITY, QUEUES,
          LANE]),
    (StartKind::Debounced, Sql::StartDebounced, "inserting executions",
        &[CREATED_AT, KEY, WORKFLOW, APP_VERSION, INPUT, QUEUE, QUEUE_KEY, PRIORITY, DUE_AT, DEBOUNCE_WINDOW,
          DEDUP_ID, RUN_TIMEOUT, WORKER, LANE]),
    (StartKind::Named, Sql::StartNamed, "inserting executions",
        &[WORKER, CREATED_AT, ENDED_AT, FINGERPRINT, STATUS, KEY, WORKFLOW, WORKFLOW_ID, INPUT, OUTCOME,
          LANE]),
    (StartKind::Special, Sql::Start, "inserting executions",
        &[CREATED_AT, ENDED_AT, DEADLINE_AT, OWNER, FINGERPRINT, STATUS, IS_PARKED, IS_DETACHED, KEY, ROOT, PARENT,
          WORKFLOW, WORKFLOW_ID, INPUT, OUTCOME, PENDING_SLEEPS, APP_VERSION, QUEUE, QUEUE_KEY, PRIORITY, DEDUP_ID,
          RUN_TIMEOUT, WORKER, LANE]),
    // and the parameters of BundleChains
    (StartKind::Bundle, Sql::StartBundles, "inserting bundles",
        &[CREATED_AT, ENDED_AT, DEADLINE_AT, OWNER, FINGERPRINT, STATUS, IS_PARKED, IS_DETACHED, KEY, ROOT, PARENT,
          WORKFLOW, WORKFLOW_ID, INPUT, OUTCOME, PENDING_SLEEPS, APP_VERSION, QUEUE, QUEUE_KEY, PRIORITY, DEDUP_ID,
          RUN_TIMEOUT, WORKER, LANE]),
];

/// A function that returns a parameter of a statement: one value, or an array with one value of each Start.
type StartColumn = for<'a> fn(&StartBatch<'_, 'a>) -> Param<'a>;

const WORKER: StartColumn = |batch| param(batch.worker.0);
const LANE: StartColumn = |batch| param(batch.lane.cast_signed());
const QUEUES: StartColumn = |batch| param(batch.queues());
const CREATED_AT: StartColumn = |batch| batch.column(|start| Timestamptz(start.created_at));
const ENDED_AT: StartColumn = |batch| batch.column(|start| start.state.ended_at().map(Timestamptz));
const DUE_AT: StartColumn = |batch| batch.column(|start| Timestamptz(due_at(start)));
const DEADLINE_AT: StartColumn = |batch| batch.column(|start| start.deadline_at.map(Timestamptz));
const DEBOUNCE_WINDOW: StartColumn =
    |batch| batch.column(|start| start.debounce_window.map(|window| window.as_millis() as i64));
const RUN_TIMEOUT: StartColumn = |batch| batch.column(|start| start.run_timeout.map(stored_millis));
const OWNER: StartColumn = |batch| batch.column(|start| is_running(start).then_some(batch.worker.0));
const FINGERPRINT: StartColumn = |batch| batch.column(|start| start.fingerprint.map(u64::cast_signed));
const STATUS: StartColumn = |batch| batch.column(|start| start.state.status() as i16);
const IS_PARKED: StartColumn = |batch| batch.column(|start| start.state.is_parked());
const IS_DETACHED: StartColumn =
    |batch| batch.column(|start| start.parent.as_ref().is_some_and(|parent| parent.is_detached));
const KEY: StartColumn = |batch| batch.column(|start| to_uuid(start.key));
const ROOT: StartColumn =
    |batch| batch.column(|start| (start.root != start.key).then(|| to_uuid(start.root)));
const PARENT: StartColumn =
    |batch| batch.column(|start| start.parent.as_ref().map(|parent| to_uuid(parent.key)));
const WORKFLOW: StartColumn = |batch| batch.column(|start| start.workflow.as_ref());
const WORKFLOW_ID: StartColumn = |batch| batch.column(|start| start.workflow_id.as_deref());
const INPUT: StartColumn = |batch| batch.column(|start| start.input.as_bytes());
const OUTCOME: StartColumn = |batch| batch.column(|start| start.state.outcome().and_then(non_empty_bytes));
const PENDING_SLEEPS: StartColumn = |batch| batch.column(|start| start.state.encoded_sleeps());
const APP_VERSION: StartColumn = |batch| batch.column(|start| start.app_version.as_deref());
const QUEUE: StartColumn = |batch| batch.column(queue);
const QUEUE_KEY: StartColumn = |batch| batch.column(queue_key);
const PRIORITY: StartColumn = |batch| batch.column(priority);
const DEDUP_ID: StartColumn = |batch| batch.column(|start| start.active_dedup_id().map(|id| &**id));

/// The Starts that one statement inserts.
struct StartBatch<'s, 'a> {
    worker: WorkerId,
    lane: u16,
    starts: &'s [(usize, &'a Start)],
}

impl<'a> StartBatch<'_, 'a> {
    /// Returns an array parameter with one value of each Start.
    fn column<V: ToSql + Send + Sync + 'a>(&self, value: impl Fn(&'a Start) -> V) -> Param<'a> {
        column(self.starts, |(_, start)| value(start))
    }

    /// Returns the queues of the Starts, sorted.
    fn queues(&self) -> Vec<&'a str> {
        let mut queues: Vec<&str> = self.starts.iter().filter_map(|(_, start)| queue(start)).collect();
        queues.sort_unstable();
        queues.dedup();
        queues
    }
}

/// The Starts of a flush, sorted by kind, with their indexes in the flush.
#[derive(Default)]
pub(crate) struct SortedStarts<'a> {
    /// The Starts of each kind. Running and ended ones are in key order; queued ones, self-claiming ones and bundles are
    /// in the order of the flush. Debounced ones are ordered by their dedup key, and only the last one of each dedup key is included.
    /// Named and special ones are ordered by their unique columns. If a special Start has a workflow_id, all named
    /// Starts are special, too.
    by_kind: [Vec<(usize, &'a Start)>; STATEMENTS.len()],
    /// Debounced Starts that a later debounced Start of the same flush supersedes.
    pub superseded: Vec<(usize, &'a Start)>,
    /// The Starts of batches that have not ended.
    batches: Vec<&'a Start>,
    /// The Starts of retried items.
    retried: Vec<&'a Start>,
    /// The attributes of all Starts: key of the execution, name, and value.
    attributes: Vec<(Key, &'a str, &'a str)>,
    /// The Starts whose queue is full, in the order of the flush.
    pub rejected: Vec<(usize, &'a Start)>,
    /// Whether plain queued Starts have the kind `Queued`, whose query also makes them ready.
    has_queued: bool,
}

impl<'a> SortedStarts<'a> {
    /// Sorts the Starts of a flush.
    pub(crate) fn from_writes(writes: &'a [Write]) -> Self {
        let mut starts = Self::default();
        for (i, write) in writes.iter().enumerate() {
            let Write::Start(start) = write else { continue };
            let attributes = start.attributes.iter();
            starts.attributes.extend(attributes.map(|(name, value)| (start.key, name, value)));
            if start.key.is_batch() && !start.state.status().is_terminal() {
                starts.batches.push(start);
            }
            if start.is_retried_item() {
                starts.retried.push(start);
            }
            starts.of_mut(StartKind::of(start)).push((i, start));
        }
        starts.of_mut(StartKind::Running).sort_by_key(|(_, start)| start.key);
        starts.of_mut(StartKind::Ended).sort_by_key(|(_, start)| start.key);
        let mut later = HashSet::new();
        let all = starts.take(StartKind::Debounced).into_iter().rev();
        let (mut last, superseded) = all.partition::<Vec<_>, _>(|(_, start)| later.insert(dedup_key(start)));
        last.sort_by(|(_, a), (_, b)| dedup_key(a).cmp(&dedup_key(b)));
        *starts.of_mut(StartKind::Debounced) = last;
        starts.superseded = superseded;
        let mut special = starts.of(StartKind::Special).iter().chain(starts.of(StartKind::Bundle));
        if special.any(|(_, start)| matches!(start.state, State::Queued { .. })) {
            // all queued Starts become special, so that they become ready in the order of the flush
            let queued = starts.take(StartKind::Queued);
            starts.of_mut(StartKind::Special).extend(queued);
        }
        starts.has_queued = !starts.of(StartKind::Queued).is_empty();
        starts.sort();
        starts
    }

    /// Returns the Starts of a kind.
    pub(crate) fn of(&self, kind: StartKind) -> &[(usize, &'a Start)] {
        &self.by_kind[kind as usize]
    }

    fn of_mut(&mut self, kind: StartKind) -> &mut Vec<(usize, &'a Start)> {
        &mut self.by_kind[kind as usize]
    }

    fn take(&mut self, kind: StartKind) -> Vec<(usize, &'a Start)> {
        std::mem::take(self.of_mut(kind))
    }

    /// Removes Starts whose queue is full.
    pub(crate) fn reject(&mut self, rejected: &HashSet<usize>) {
        for starts in &mut self.by_kind {
            self.rejected.extend(starts.extract_if(.., |(i, _)| rejected.contains(i)));
        }
        self.rejected.sort_unstable_by_key(|(i, _)| *i);
    }

    /// Whether a Start needs no rows in `ready`, `timers` or `waits`, or gets them from the query that inserts it.
    pub(crate) fn needs_no_state_rows(&self, i: usize, start: &Start) -> bool {
        self.rejected.binary_search_by_key(&i, |(i, _)| *i).is_ok()
            || start.debounce_window.is_some()
            || self.has_queued && is_plain_queued(start)
    }

    /// Sorts Starts whose inserts may wait for other flushes, by their unique columns and by key. All flushes use this
    /// order, so they cannot deadlock with each other. Claims insert the rows of the inbox in another order;
    /// `lock_timeout` resolves deadlocks with claims.
    fn sort(&mut self) {
        // named and special Starts need one common order
        if self.of(StartKind::Special).iter().any(|(_, start)| start.workflow_id.is_some()) {
            let named = self.take(StartKind::Named);
            self.of_mut(StartKind::Special).extend(named);
        }
        for kind in [StartKind::Named, StartKind::Special] {
            let unique = |start: &&'a Start| (dedup_key(start), &start.workflow_id, start.key);
            self.of_mut(kind).sort_by(|(_, a), (_, b)| unique(a).cmp(&unique(b)));
        }
    }

    /// Returns the query that locks the settings of the queues in which self-claiming Starts may begin; `None` without
    /// such Starts. A statement with a later snapshot inserts the Starts. The query fails if one of the `unlimited`
    /// queues has a depth limit.
    pub(crate) fn lock_queues_query(&self, unlimited: &[&str]) -> Option<Query<'a>> {
        let batch = StartBatch { worker: WorkerId(0), lane: 0, starts: self.of(StartKind::SelfClaiming) };
        let unlimited: Vec<String> = unlimited.iter().map(|queue| (*queue).to_owned()).collect();
        let params = vec![QUEUES(&batch), param(unlimited)];
        let query = Query { sql: Sql::LockQueues, action: DEPTH_LIMIT_CHECK, params };
        (!batch.starts.is_empty()).then_some(query)
    }

    /// Adds the query that inserts the rows of batches. It comes after their executions and before their bundles.
    fn push_batches(&self, queries: &mut Vec<Query<'a>>) {
        if !self.batches.is_empty() {
            let params = vec![
                column(&self.batches, |start| to_uuid(start.key)),
                column(&self.batches, |start| start.item_count.map(stored_count)),
            ];
            queries.push(Query { sql: Sql::InsertBatches, action: "inserting batches", params });
        }
    }

    /// Adds the queries that insert the Starts.
    pub(crate) fn push_queries(&self, worker: WorkerId, lane: u16, queries: &mut Vec<Query<'a>>) {
        for (kind, sql, action, columns) in STATEMENTS {
            let batch = StartBatch { worker, lane, starts: self.of(kind) };
            if kind == StartKind::Bundle {
                self.push_batches(queries);
            }
            if !batch.starts.is_empty() {
                let mut params: Vec<Param<'a>> = columns.iter().map(|column| column(&batch)).collect();
                if kind == StartKind::Bundle {
                    params.extend(BundleChains::params(batch.starts));
                }
                queries.push(Query { sql, action, params });
            }
        }
        if !self.retried.is_empty() {
            let params = vec![column(&self.retried, |start| to_uuid(start.key))];
            queries.push(Query { sql: Sql::InsertRetriedItems, action: "inserting retried items", params });
        }
        if !self.attributes.is_empty() {
            let params = vec![
                column(&self.attributes, |(key, _, _)| to_uuid(*key)),
                column(&self.attributes, |(_, name, _)| *name),
                column(&self.attributes, |(_, _, value)| *value),
            ];
            queries.push(Query { sql: Sql::InsertAttributes, action: "inserting attributes", params });
        }
        if !self.rejected.is_empty() {
            let batch = StartBatch { worker, lane, starts: &self.rejected };
            let params = [WORKER, LANE, KEY, WORKFLOW_ID, QUEUE, DEDUP_ID].map(|column| column(&batch));
            let (sql, action) = (Sql::KeepRejected, "reading executions");
            queries.push(Query { sql, action, params: params.into() });
        }
    }
}

impl StartKind {
    pub(crate) fn of(start: &Start) -> Self {
        if start.is_bundle() {
            return Self::Bundle;
        }
        if start.debounce_window.is_some() {
            return Self::Debounced;
        }
        if is_plain_queued(start) {
            return Self::Queued;
        }
        if start.is_self_claiming() {
            return Self::SelfClaiming;
        }
        let is_common_state = match &start.state {
            State::Running { pending_sleeps } => pending_sleeps.is_empty(),
            state => matches!(state, State::Ended { .. }),
        };
        let is_root = start.parent.is_none() && start.root == start.key;
        if !is_root || !is_common_state || start.deadline_at.is_some() {
            return Self::Special;
        }
        if start.app_version.is_some() || start.placement.is_some() {
            return Self::Special;
        }
        match &start.workflow_id {
            Some(_) => Self::Named,
            None if start.fingerprint.is_some() || start.is_guarded => Self::Special,
            None if is_running(start) => Self::Running,
            None => Self::Ended,
        }
    }
}

fn is_running(start: &Start) -> bool {
    matches!(start.state, State::Running { .. })
}

/// Whether the execution begins queued, and its Start has no options except for placement and attributes and cannot be
/// a duplicate.
fn is_plain_queued(start: &Start) -> bool {
    matches!(&start.state, State::Queued { pending_sleeps } if pending_sleeps.is_empty())
        && start.parent.is_none()
        && start.root == start.key
        && start.deadline_at.is_none()
        && start.run_timeout.is_none()
        && start.workflow_id.is_none()
        && start.fingerprint.is_none()
        && !start.is_guarded
        && !start.has_begun
}

/// Returns the queue and active dedup_id of a Start, which are unique together. Returns `None` if the Start has no
/// queue or no active dedup_id.
pub(crate) fn dedup_key(start: &Start) -> Option<(&str, &str)> {
    Some((queue(start)?, &**start.active_dedup_id()?))
}

/// Returns the time at which a Start becomes due.
fn due_at(start: &Start) -> Timestamp {
    match start.state {
        State::Scheduled { due_at } => due_at,
        _ => start.created_at,
    }
}

/// Returns the queue of a Start. `None` means the default queue.
pub(crate) fn queue(start: &Start) -> Option<&str> {
    start.placement.as_ref().map(|placement| &*placement.queue)
}

fn queue_key(start: &Start) -> Option<&str> {
    start.placement.as_ref().map(|placement| &*placement.key).filter(|key| !key.is_empty())
}

fn priority(start: &Start) -> Option<i32> {
    start.placement.as_ref().map(|placement| placement.priority).filter(|priority| *priority != 0)
}
