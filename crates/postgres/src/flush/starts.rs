//! [`SortedStarts`]: the queries of a flush's Starts. The fewer options a Start has, the fewer columns and checks it needs.

use std::collections::HashSet;
use std::ops::Range;

use stepfast_core::Key;
use stepfast_core::clock::{Timestamp, stored_millis};
use stepfast_core::store::{Start, State, WorkerId, Write};

use crate::conn::pipeline::{Query, column, param};
use crate::conn::statements::Sql;
use crate::rows::types::{Timestamptz, to_uuid};
use crate::rows::types::{ended_at, is_parked, outcome_bytes, pending_sleep_bytes};

/// The Starts of a flush, sorted by kind, with their indexes in the flush.
#[derive(Default)]
pub(crate) struct SortedStarts<'a> {
    /// Starts that need all columns, in the order of insertion.
    pub special: Vec<(usize, &'a Start)>,
    /// Running Starts without options, in key order. They cannot be duplicates.
    running: Vec<(usize, &'a Start)>,
    /// Starts without options that have ended, in key order. They cannot be duplicates.
    ended: Vec<&'a Start>,
    /// Plain queued Starts, in the order of the flush.
    queued: Vec<(usize, &'a Start)>,
    /// Self-claiming Starts, in the order of the flush, and whether the worker's window allows each to begin at once.
    pub self_claiming: Vec<(usize, &'a Start, bool)>,
    /// Debounced Starts: the last one of each dedup key, ordered by that key.
    pub debounced: Vec<(usize, &'a Start)>,
    /// Debounced Starts that a later one of the same flush supersedes.
    pub superseded: Vec<(usize, &'a Start)>,
    /// Starts with an id of their caller and no other options, ordered by id. Empty if `special` contains Starts with ids.
    pub named: Vec<(usize, &'a Start)>,
    /// Attributes: key, name, value.
    attributes: Vec<(Key, &'a str, &'a str)>,
    /// The indexes of Starts whose queue is full.
    pub rejected: HashSet<usize>,
    /// Whether plain queued Starts have their own query.
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
            if start.debounce_window.is_some() {
                starts.debounced.push((i, start));
                continue;
            }
            match classify(start) {
                StartKind::Plain if matches!(start.state, State::Ended { .. }) => starts.ended.push(start),
                StartKind::Plain => starts.running.push((i, start)),
                StartKind::Queued => starts.queued.push((i, start)),
                StartKind::SelfClaiming => starts.self_claiming.push((i, start, true)),
                StartKind::Named => starts.named.push((i, start)),
                StartKind::Special => starts.special.push((i, start)),
            }
        }
        starts.running.sort_by_key(|(_, start)| start.key);
        starts.ended.sort_by_key(|start| start.key);
        let mut later = HashSet::new();
        let all = std::mem::take(&mut starts.debounced).into_iter().rev();
        (starts.debounced, starts.superseded) = all.partition(|(_, start)| later.insert(dedup_key(start)));
        starts.debounced.sort_by(|(_, a), (_, b)| dedup_key(a).cmp(&dedup_key(b)));
        if starts.special.iter().any(|(_, start)| matches!(start.state, State::Queued { .. })) {
            // all queued Starts go into `special`, so that they become ready in the order of the flush
            for (i, write) in writes.iter().enumerate() {
                if let Write::Start(start) = write
                    && is_plain_queued(start)
                {
                    starts.special.push((i, start));
                }
            }
            starts.queued.clear();
        }
        starts.has_queued = !starts.queued.is_empty();
        starts.sort();
        starts
    }

    /// Removes Starts whose queue is full.
    pub(crate) fn reject(&mut self, rejected: HashSet<usize>) {
        self.queued.retain(|(i, _)| !rejected.contains(i));
        self.special.retain(|(i, _)| !rejected.contains(i));
        self.self_claiming.retain(|(i, _, _)| !rejected.contains(i));
        self.rejected = rejected;
    }

    /// Whether a Start needs no rows in `ready`, `timers` or `waits`, or gets them from the query that inserts it.
    pub(crate) fn needs_no_state_rows(&self, i: usize, start: &Start) -> bool {
        self.rejected.contains(&i)
            || start.debounce_window.is_some()
            || self.has_queued && is_plain_queued(start)
    }

    /// Sorts inserts that may wait for each other by their unique columns and by key. With one order in all flushes they
    /// cannot deadlock. Claims insert the rows of the inbox in another order; `lock_timeout` resolves deadlocks with them.
    fn sort(&mut self) {
        // named and special Starts need one common order
        if self.special.iter().any(|(_, start)| start.workflow_id.is_some()) {
            self.special.append(&mut self.named);
        }
        for starts in [&mut self.named, &mut self.special] {
            let unique = |start: &&'a Start| (dedup_key(start), &start.workflow_id, start.key);
            starts.sort_by(|(_, a), (_, b)| unique(a).cmp(&unique(b)));
        }
    }

    /// Moves running Starts with keys outside of `window` to `special`, whose query adds them to the index of owners; see
    /// [`Ownership`](crate::ownership::Ownership).
    pub(crate) fn restrict_to_window(&mut self, window: &Range<Key>) {
        let before = self.special.len();
        for starts in [&mut self.running, &mut self.named] {
            let outside = |(_, start): &mut (usize, &Start)| {
                matches!(start.state, State::Running { .. }) && !window.contains(&start.key)
            };
            self.special.extend(starts.extract_if(.., outside));
        }
        if self.special.len() > before {
            self.sort();
        }
        for (_, start, may_begin) in &mut self.self_claiming {
            *may_begin = window.contains(&start.key);
        }
    }

    /// Returns the keys of executions that start running without an entry in the index of owners.
    pub(crate) fn unindexed_keys(&self) -> impl Iterator<Item = Key> {
        let named = self.named.iter().filter(|(_, start)| matches!(start.state, State::Running { .. }));
        let self_claiming =
            self.self_claiming.iter().filter(|(_, _, may_begin)| *may_begin).map(|(_, start, _)| start.key);
        self.running.iter().chain(named).map(|(_, start)| start.key).chain(self_claiming)
    }

    /// Adds the queries that insert the Starts.
    pub(crate) fn push_queries(&self, worker: WorkerId, queries: &mut Vec<Query<'a>>) {
        if !self.running.is_empty() {
            let starts = &self.running;
            let params = vec![
                param(worker.0),
                column(starts, |(_, start)| Timestamptz(start.created_at)),
                column(starts, |(_, start)| to_uuid(start.key)),
                column(starts, |(_, start)| start.workflow.as_ref()),
                column(starts, |(_, start)| start.input.as_bytes()),
            ];
            queries.push(Query { sql: Sql::StartRunning, action: "inserting executions", params });
        }
        if !self.ended.is_empty() {
            let starts = &self.ended;
            let params = vec![
                column(starts, |start| Timestamptz(start.created_at)),
                column(starts, |start| ended_at(&start.state)),
                column(starts, |start| start.state.status() as i16),
                column(starts, |start| to_uuid(start.key)),
                column(starts, |start| start.workflow.as_ref()),
                column(starts, |start| start.input.as_bytes()),
                column(starts, |start| outcome_bytes(&start.state)),
            ];
            queries.push(Query { sql: Sql::StartEnded, action: "inserting executions", params });
        }
        if !self.queued.is_empty() {
            let starts = &self.queued;
            let params = vec![
                column(starts, |(_, start)| Timestamptz(start.created_at)),
                column(starts, |(_, start)| to_uuid(start.key)),
                column(starts, |(_, start)| start.workflow.as_ref()),
                column(starts, |(_, start)| start.app_version.as_deref()),
                column(starts, |(_, start)| start.input.as_bytes()),
                column(starts, |(_, start)| queue(start)),
                column(starts, |(_, start)| queue_key(start)),
                column(starts, |(_, start)| priority(start)),
            ];
            queries.push(Query { sql: Sql::StartQueued, action: "queueing executions", params });
        }
        if !self.self_claiming.is_empty() {
            let starts = &self.self_claiming;
            let mut queues: Vec<&str> = starts.iter().filter_map(|(_, start, _)| queue(start)).collect();
            queues.sort_unstable();
            queues.dedup();
            let params = vec![
                param(worker.0),
                column(starts, |(_, start, _)| Timestamptz(start.created_at)),
                column(starts, |(_, start, _)| to_uuid(start.key)),
                column(starts, |(_, start, _)| start.workflow.as_ref()),
                column(starts, |(_, start, _)| start.app_version.as_deref()),
                column(starts, |(_, start, _)| start.input.as_bytes()),
                column(starts, |(_, start, _)| queue(start)),
                column(starts, |(_, start, _)| queue_key(start)),
                column(starts, |(_, start, _)| priority(start)),
                column(starts, |(_, _, may_begin)| *may_begin),
                param(queues),
            ];
            queries.push(Query {
                sql: Sql::StartSelfClaiming,
                action: "starting self-claiming executions",
                params,
            });
        }
        if !self.debounced.is_empty() {
            let starts = &self.debounced;
            let params = vec![
                column(starts, |(_, start)| Timestamptz(start.created_at)),
                column(starts, |(_, start)| to_uuid(start.key)),
                column(starts, |(_, start)| start.workflow.as_ref()),
                column(starts, |(_, start)| start.app_version.as_deref()),
                column(starts, |(_, start)| start.input.as_bytes()),
                column(starts, |(_, start)| queue(start)),
                column(starts, |(_, start)| queue_key(start)),
                column(starts, |(_, start)| priority(start)),
                column(starts, |(_, start)| Timestamptz(due_at(start))),
                column(starts, |(_, start)| start.debounce_window.map(|most| most.as_millis() as i64)),
                column(starts, |(_, start)| start.active_dedup_id().map(|id| &**id)),
                column(starts, |(_, start)| start.run_timeout.map(stored_millis)),
            ];
            queries.push(Query { sql: Sql::StartDebounced, action: "inserting executions", params });
        }
        if !self.named.is_empty() {
            let starts = &self.named;
            let params = vec![
                param(worker.0),
                column(starts, |(_, start)| Timestamptz(start.created_at)),
                column(starts, |(_, start)| ended_at(&start.state)),
                column(starts, |(_, start)| start.fingerprint.map(u64::cast_signed)),
                column(starts, |(_, start)| start.state.status() as i16),
                column(starts, |(_, start)| to_uuid(start.key)),
                column(starts, |(_, start)| start.workflow.as_ref()),
                column(starts, |(_, start)| start.workflow_id.as_deref()),
                column(starts, |(_, start)| start.input.as_bytes()),
                column(starts, |(_, start)| outcome_bytes(&start.state)),
            ];
            queries.push(Query { sql: Sql::StartNamed, action: "inserting executions", params });
        }
        if !self.special.is_empty() {
            let starts = &self.special;
            let params = vec![
                column(starts, |(_, start)| Timestamptz(start.created_at)),
                column(starts, |(_, start)| ended_at(&start.state)),
                column(starts, |(_, start)| start.deadline_at.map(Timestamptz)),
                column(starts, |(_, start)| matches!(start.state, State::Running { .. }).then_some(worker.0)),
                column(starts, |(_, start)| start.fingerprint.map(u64::cast_signed)),
                column(starts, |(_, start)| start.state.status() as i16),
                column(starts, |(_, start)| is_parked(&start.state)),
                column(starts, |(_, start)| start.parent.as_ref().is_some_and(|parent| parent.is_detached)),
                column(starts, |(_, start)| to_uuid(start.key)),
                column(starts, |(_, start)| (start.root != start.key).then(|| to_uuid(start.root))),
                column(starts, |(_, start)| start.parent.as_ref().map(|parent| to_uuid(parent.key))),
                column(starts, |(_, start)| start.workflow.as_ref()),
                column(starts, |(_, start)| start.workflow_id.as_deref()),
                column(starts, |(_, start)| start.input.as_bytes()),
                column(starts, |(_, start)| outcome_bytes(&start.state)),
                column(starts, |(_, start)| pending_sleep_bytes(&start.state)),
                column(starts, |(_, start)| start.app_version.as_deref()),
                column(starts, |(_, start)| queue(start)),
                column(starts, |(_, start)| queue_key(start)),
                column(starts, |(_, start)| priority(start)),
                column(starts, |(_, start)| start.active_dedup_id().map(|id| &**id)),
                column(starts, |(_, start)| start.run_timeout.map(stored_millis)),
            ];
            queries.push(Query { sql: Sql::Start, action: "inserting executions", params });
        }
        if !self.attributes.is_empty() {
            let params = vec![
                column(&self.attributes, |(key, _, _)| to_uuid(*key)),
                column(&self.attributes, |(_, name, _)| *name),
                column(&self.attributes, |(_, _, value)| *value),
            ];
            queries.push(Query { sql: Sql::InsertAttributes, action: "inserting attributes", params });
        }
    }
}

/// The kind of a Start, which decides the query that inserts it.
enum StartKind {
    /// Running or ended, with a minted key and without options. It cannot be a duplicate.
    Plain,
    /// Queued, with a minted key and no options except for its placement and attributes.
    Queued,
    /// Self-claiming: runs at once if its queue has no limits.
    SelfClaiming,
    /// Like `Plain`, with an id of its caller.
    Named,
    /// Anything else.
    Special,
}

fn classify(start: &Start) -> StartKind {
    let is_root = start.parent.is_none() && start.root == start.key;
    let is_common_state = match &start.state {
        State::Running { pending_sleeps } => pending_sleeps.is_empty(),
        state => matches!(state, State::Ended { .. }),
    };
    if is_plain_queued(start) {
        return StartKind::Queued;
    }
    if start.is_self_claiming() {
        return StartKind::SelfClaiming;
    }
    if !is_root || !is_common_state || start.deadline_at.is_some() {
        return StartKind::Special;
    }
    if start.app_version.is_some() || start.placement.is_some() {
        return StartKind::Special;
    }
    match &start.workflow_id {
        None if start.fingerprint.is_none() && !start.is_guarded => StartKind::Plain,
        Some(_) => StartKind::Named,
        _ => StartKind::Special,
    }
}

/// Whether a Start is queued, has no other options, and cannot be a duplicate.
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

/// Returns the queue and active dedup_id of a Start, which are unique together. `None` if it has no dedup_id.
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
