//! [`FlushPlan`]: the queries of a flush. One query makes all changes of one kind.

use stepfast_core::Key;
use stepfast_core::clock::Timestamp;
use stepfast_core::queue::Placement;
use stepfast_core::store::{
    Append, Attempt, Checkpoint, Chunk, DeleteChunks, Flush, Forward, Message, Request, RequestKind, State,
    Transition, Write, cancel_outcome,
};
use uuid::Uuid;

use crate::conn::pipeline::{Query, column, param};
use crate::conn::statements::Sql;
use crate::flush::batches::BatchWrites;
use crate::flush::starts::SortedStarts;
use crate::rows::types::{Timestamptz, non_empty_bytes, to_uuid};

/// The Writes of a flush, sorted by kind, with their indexes in the flush.
#[derive(Default)]
pub(crate) struct FlushPlan<'a> {
    pub starts: SortedStarts<'a>,
    /// Transitions that end executions, in key order.
    pub ends: Vec<(usize, &'a Transition)>,
    /// All other Transitions, in key order.
    pub transitions: Vec<(usize, &'a Transition)>,
    /// The executions to wake, except batches.
    pub wakes: Vec<Key>,
    /// Requests, in the order of the flush.
    pub requests: Vec<(usize, &'a Request)>,
    pub batches: BatchWrites<'a>,
    checkpoints: Vec<&'a Checkpoint>,
    attempts: Vec<&'a Attempt>,
    chunks: Vec<&'a Chunk>,
    withdrawn_values: Vec<&'a Chunk>,
    chunk_deletions: Vec<&'a DeleteChunks>,
    cleared_requests: Vec<Key>,
    messages: Vec<&'a Message>,
    forwards: Vec<Forward>,
    stream_rows: Vec<StreamRow<'a>>,
}

/// A row of `stream_entries`.
struct StreamRow<'a> {
    offset: i64,
    attempt_offset: i64,
    written_at: Timestamp,
    execution: Key,
    stream: &'a str,
    step: &'a [u8],
    value: &'a [u8],
}

impl<'a> StreamRow<'a> {
    fn of_append(append: &'a Append) -> Self {
        let Append { execution, stream, entry } = append;
        Self {
            offset: entry.offset,
            attempt_offset: entry.attempt_offset,
            written_at: entry.written_at,
            execution: *execution,
            stream,
            step: entry.step.as_bytes(),
            value: entry.value.as_bytes(),
        }
    }

    /// Returns the row of a checkpoint that writes to a stream; `None` for other checkpoints.
    fn of_checkpoint(checkpoint: &'a Checkpoint) -> Option<Self> {
        let offset = checkpoint.appended()?;
        Some(Self {
            offset,
            attempt_offset: offset,
            written_at: checkpoint.at,
            execution: checkpoint.execution,
            stream: &checkpoint.name,
            step: &[],
            value: checkpoint.outcome.as_bytes(),
        })
    }
}

impl<'a> FlushPlan<'a> {
    /// Sorts the Writes of a flush.
    pub(crate) fn new(flush: &'a Flush) -> Self {
        let mut plan = Self {
            starts: SortedStarts::from_writes(&flush.writes),
            batches: BatchWrites::from_flush(flush),
            ..Self::default()
        };
        for (i, write) in flush.writes.iter().enumerate() {
            match write {
                Write::Start(_) | Write::Pack(_) | Write::CloseBatch(_) => {}
                Write::Checkpoint(checkpoint) => {
                    plan.checkpoints.push(checkpoint);
                    plan.stream_rows.extend(StreamRow::of_checkpoint(checkpoint));
                }
                Write::Attempt(attempt) => plan.attempts.push(attempt),
                Write::Transition(change) if matches!(change.state, State::Ended { .. }) => {
                    plan.ends.push((i, change));
                }
                Write::Transition(change) => plan.transitions.push((i, change)),
                Write::Wake(key) if key.is_batch() => {}
                Write::Wake(key) => plan.wakes.push(*key),
                Write::Request(request) => plan.requests.push((i, request)),
                Write::ClearRequests(key) => plan.cleared_requests.push(*key),
                Write::Chunk(chunk) if chunk.is_withdrawal() => plan.withdrawn_values.push(chunk),
                Write::Chunk(chunk) => plan.chunks.push(chunk),
                Write::DeleteChunks(deletion) => plan.chunk_deletions.push(deletion),
                Write::Send(message) => plan.messages.push(message),
                Write::Forward(forward) => plan.forwards.push(*forward),
                Write::Append(append) => plan.stream_rows.push(StreamRow::of_append(append)),
            }
        }
        // In key order, all flushes lock rows in the same order. A cancel by another worker may lock in another order;
        // `lock_timeout` resolves such a deadlock.
        plan.ends.sort_by_key(|(_, change)| change.key);
        plan.transitions.sort_by_key(|(_, change)| change.key);
        plan
    }

    /// Returns the queries that apply all Writes of the flush except its requests and messages. The fence comes before them. `now`:
    /// the present time, `None` for the server's.
    pub(crate) fn queries(&self, flush: &'a Flush, now: Option<Timestamp>) -> Vec<Query<'a>> {
        let mut queries = Vec::new();
        queries.extend(self.batches.lock_query());
        if !self.wakes.is_empty() || !self.requests.is_empty() {
            queries.push(self.lock_query());
        }
        // requests that this flush clears are deleted before its Transitions check for pending requests
        self.push_cleared_requests(&mut queries);
        self.push_records(flush, &mut queries);
        self.push_executions(flush, now, &mut queries);
        self.push_state_rows(flush, &mut queries);
        self.batches.push_changes(flush, now, &mut queries);
        queries
    }

    /// Returns the query that locks the rows that other transactions may change too, in key order.
    pub(crate) fn lock_query(&self) -> Query<'a> {
        let cancelled: Vec<Uuid> =
            self.requests.iter().map(|(_, request)| to_uuid(request.execution)).collect();
        let others = self.ends.iter().chain(&self.transitions).map(|(_, change)| change.key);
        let others = others.chain(self.requests.iter().map(|(_, request)| request.execution));
        let others: Vec<Uuid> = others.map(to_uuid).collect();
        Query {
            sql: Sql::LockExecutions,
            action: "locking executions",
            params: vec![param(cancelled), param(others), column(&self.wakes, |key| to_uuid(*key))],
        }
    }

    /// Returns the query for the pending requests to executions to resume; `None` if the flush resumes none.
    pub(crate) fn pauses_query(&self) -> Option<Query<'a>> {
        let resumed = self.requests.iter().filter(|(_, request)| request.kind == RequestKind::Resume);
        let resumed: Vec<Uuid> = resumed.map(|(_, request)| to_uuid(request.execution)).collect();
        let (sql, action) = (Sql::PendingRequests, "reading requests");
        (!resumed.is_empty()).then(|| Query { sql, action, params: vec![param(resumed)] })
    }

    /// Returns the queries that forward and send messages, after all other changes.
    pub(crate) fn send_queries(&self, flush: &Flush) -> impl Iterator<Item = Query<'a>> {
        self.forward_query().into_iter().chain(self.send_query(flush))
    }

    fn forward_query(&self) -> Option<Query<'a>> {
        let forwards = &self.forwards;
        let addresses = column(forwards, |forward| to_uuid(forward.address));
        let params = vec![addresses, column(forwards, |forward| to_uuid(forward.execution))];
        let query = Query { sql: Sql::ForwardMessages, action: "forwarding messages", params };
        (!forwards.is_empty()).then_some(query)
    }

    fn send_query(&self, flush: &Flush) -> Option<Query<'a>> {
        let messages = &self.messages;
        if messages.is_empty() {
            return None;
        }
        let params = vec![
            column(messages, |m| Timestamptz(m.sent_at)),
            column(messages, |m| to_uuid(m.execution)),
            column(messages, |m| m.address.map(to_uuid)),
            column(messages, |m| &*m.topic),
            column(messages, |m| m.id.as_deref()),
            column(messages, |m| m.value.as_bytes()),
            param(flush.worker.0),
            param(flush.lane.cast_signed()),
        ];
        Some(Query { sql: Sql::SendMessages, action: "sending messages", params })
    }

    fn push_cleared_requests(&self, queries: &mut Vec<Query<'a>>) {
        if !self.cleared_requests.is_empty() {
            let params = vec![column(&self.cleared_requests, |key| to_uuid(*key))];
            queries.push(Query { sql: Sql::ClearRequests, action: "deleting requests", params });
        }
    }

    fn push_executions(&self, flush: &Flush, now: Option<Timestamp>, queries: &mut Vec<Query<'a>>) {
        let (worker, lane) = (flush.worker.0, flush.lane.cast_signed());
        if !self.ends.is_empty() {
            let ends = &self.ends;
            let params = vec![
                param(worker),
                column(ends, |(_, t)| to_uuid(t.key)),
                column(ends, |(_, t)| t.state.status() as i16),
                column(ends, |(_, t)| t.state.outcome().and_then(non_empty_bytes)),
                column(ends, |(_, t)| t.state.ended_at().map(Timestamptz)),
                param(lane),
            ];
            queries.push(Query { sql: Sql::Finish, action: "ending executions", params });
            let cancelled = cancel_outcome().as_bytes().to_vec();
            let params =
                vec![column(ends, |(_, t)| to_uuid(t.key)), param(cancelled), param(worker), param(lane)];
            queries.push(Query { sql: Sql::DeleteRequests, action: "deleting requests", params });
        }
        if !self.transitions.is_empty() {
            let transitions = &self.transitions;
            let params = vec![
                param(worker),
                column(transitions, |(_, t)| to_uuid(t.key)),
                column(transitions, |(_, t)| t.state.status() as i16),
                column(transitions, |(_, t)| t.state.is_parked()),
                column(transitions, |(_, t)| t.state.outcome().and_then(non_empty_bytes)),
                column(transitions, |(_, t)| t.state.ended_at().map(Timestamptz)),
                column(transitions, |(_, t)| t.state.encoded_sleeps()),
                param(lane),
            ];
            queries.push(Query { sql: Sql::Transition, action: "updating executions", params });
            let idle: Vec<Uuid> = self.suspended_or_parked().collect();
            if !idle.is_empty() {
                queries.push(Query {
                    sql: Sql::RequeueRequested,
                    action: "requeueing executions with requests",
                    params: vec![param(idle)],
                });
            }
            let parked = |change: &Transition| match &change.state {
                State::Parked { is_pause, .. } => Some((to_uuid(change.key), *is_pause)),
                _ => None,
            };
            let parked: Vec<_> = transitions.iter().filter_map(|(_, change)| parked(change)).collect();
            if !parked.is_empty() {
                let params =
                    vec![column(&parked, |(key, _)| *key), column(&parked, |(_, is_pause)| *is_pause)];
                queries.push(Query { sql: Sql::SettlePauses, action: "deleting pauses", params });
            }
        }
        let freed: Vec<(Key, &Placement)> = self.freed_slots().collect();
        if !freed.is_empty() {
            let params = vec![
                param(worker),
                column(&freed, |(key, _)| to_uuid(*key)),
                column(&freed, |(_, placement)| placement.queue.to_string()),
                column(&freed, |(_, placement)| placement.key.to_string()),
            ];
            queries.push(Query { sql: Sql::FreeSlots, action: "freeing slots", params });
        }
        if !self.wakes.is_empty() {
            let wakes = column(&self.wakes, |key| to_uuid(*key));
            let params = vec![wakes, param(now.map(Timestamptz))];
            queries.push(Query { sql: Sql::Wake, action: "waking executions", params });
        }
        self.starts.push_queries(flush.worker, flush.lane, queries);
    }

    /// Returns the executions that stop running and may have a slot in their queue, with their placements.
    pub(crate) fn freed_slots(&self) -> impl Iterator<Item = (Key, &'a Placement)> {
        let transitions =
            self.transitions.iter().filter(|(_, change)| !matches!(change.state, State::Running { .. }));
        let all = self.ends.iter().chain(transitions);
        all.filter_map(|(_, change)| Some((change.key, &**change.placement.as_ref()?)))
    }

    /// Returns the executions that the flush suspends or parks.
    fn suspended_or_parked(&self) -> impl Iterator<Item = Uuid> {
        let is_idle = |state: &State| matches!(state, State::Waiting { .. } | State::Parked { .. });
        self.transitions
            .iter()
            .filter(move |(_, change)| is_idle(&change.state))
            .map(|(_, change)| to_uuid(change.key))
    }

    fn push_records(&self, flush: &Flush, queries: &mut Vec<Query<'a>>) {
        let (worker, lane) = (flush.worker.0, flush.lane.cast_signed());
        if !self.checkpoints.is_empty() {
            let rows = &self.checkpoints;
            let params = vec![
                column(rows, |c| Timestamptz(c.at)),
                column(rows, |c| c.duration_ms),
                column(rows, |c| i64::from(c.order)),
                column(rows, |c| c.fingerprint.map(u64::cast_signed)),
                column(rows, |c| c.run_no.cast_signed()),
                column(rows, |c| c.kind as i16),
                column(rows, |c| to_uuid(c.execution)),
                column(rows, |c| c.path.as_bytes()),
                column(rows, |c| &*c.name),
                column(rows, |c| c.stored_outcome().as_bytes()),
                param(worker),
                param(lane),
            ];
            queries.push(Query { sql: Sql::InsertCheckpoints, action: "inserting checkpoints", params });
            let received: Vec<_> = rows.iter().filter_map(|c| Some((c, c.received()?))).collect();
            if !received.is_empty() {
                let params = vec![
                    column(&received, |(c, _)| to_uuid(c.execution)),
                    column(&received, |(c, _)| &*c.name),
                    column(&received, |(_, number)| *number),
                ];
                queries.push(Query { sql: Sql::DeleteMessages, action: "deleting messages", params });
            }
        }
        if !self.stream_rows.is_empty() {
            let rows = &self.stream_rows;
            let params = vec![
                column(rows, |row| row.offset),
                column(rows, |row| row.attempt_offset),
                column(rows, |row| Timestamptz(row.written_at)),
                column(rows, |row| to_uuid(row.execution)),
                column(rows, |row| row.stream),
                column(rows, |row| row.step),
                column(rows, |row| row.value),
            ];
            queries.push(Query { sql: Sql::InsertStreamEntries, action: "appending to streams", params });
        }
        if !self.attempts.is_empty() {
            let rows = &self.attempts;
            let params = vec![
                column(rows, |a| Timestamptz(a.at)),
                column(rows, |a| i64::from(a.attempt)),
                column(rows, |a| to_uuid(a.execution)),
                column(rows, |a| a.path.as_bytes()),
                column(rows, |a| a.failure.as_bytes()),
                param(worker),
                param(lane),
            ];
            queries.push(Query { sql: Sql::InsertAttempts, action: "inserting attempts", params });
        }
        self.batches.push_packs(queries);
        if !self.chunks.is_empty() {
            let rows = &self.chunks;
            let params = vec![
                column(rows, |c| c.value.cast_signed()),
                column(rows, |c| i64::from(c.index)),
                column(rows, |c| to_uuid(c.execution)),
                column(rows, |c| c.bytes.as_ref()),
            ];
            queries.push(Query { sql: Sql::InsertChunks, action: "inserting chunks", params });
        }
        if !self.withdrawn_values.is_empty() {
            let params = vec![
                column(&self.withdrawn_values, |c| to_uuid(c.execution)),
                column(&self.withdrawn_values, |c| c.value.cast_signed()),
            ];
            queries.push(Query { sql: Sql::WithdrawValues, action: "withdrawing values", params });
        }
        if !self.chunk_deletions.is_empty() {
            let kept: Vec<(Key, u64)> = (self.chunk_deletions.iter())
                .flat_map(|deletion| deletion.keep.iter().map(|value| (deletion.execution, *value)))
                .collect();
            let params = vec![
                column(&self.chunk_deletions, |deletion| to_uuid(deletion.execution)),
                column(&kept, |(execution, _)| to_uuid(*execution)),
                column(&kept, |(_, value)| value.cast_signed()),
            ];
            queries.push(Query { sql: Sql::DeleteChunks, action: "deleting chunks", params });
        }
    }

    /// Adds the queries for rows of `ready`, `timers` and `waits` that the new states need.
    fn push_state_rows(&self, flush: &'a Flush, queries: &mut Vec<Query<'a>>) {
        let (mut queued, mut resumed) = (Vec::new(), Vec::new());
        let (mut timers, mut waits) = (Vec::new(), Vec::new());
        // in the order of the flush, so that executions become ready in the order in which they were accepted
        for (i, write) in flush.writes.iter().enumerate() {
            let (key, state, queued) = match write {
                Write::Start(start) if self.starts.needs_no_state_rows(i, start) => continue,
                Write::Start(start) if start.has_begun => (start.key, &start.state, &mut resumed),
                Write::Start(start) => (start.key, &start.state, &mut queued),
                Write::Transition(change) => (change.key, &change.state, &mut resumed),
                _ => continue,
            };
            match state {
                State::Queued { .. } => queued.push(to_uuid(key)),
                State::Scheduled { due_at } => timers.push((to_uuid(key), Timestamptz(*due_at))),
                State::Waiting { wake_at, waits: events, .. } => {
                    timers.extend(wake_at.map(|at| (to_uuid(key), Timestamptz(at))));
                    waits.extend(events.iter().map(|event| (to_uuid(key), event.columns(key))));
                }
                State::Running { .. } | State::Parked { .. } | State::Ended { .. } => {}
            }
        }
        // requests may have queued these executions instead; ReadyResumed ignores all others
        resumed.extend(self.suspended_or_parked());
        for (sql, queued) in [(Sql::Ready, queued), (Sql::ReadyResumed, resumed)] {
            if !queued.is_empty() {
                queries.push(Query { sql, action: "making executions ready", params: vec![param(queued)] });
            }
        }
        if !timers.is_empty() {
            let params = vec![column(&timers, |(key, _)| *key), column(&timers, |(_, due_at)| *due_at)];
            queries.push(Query { sql: Sql::InsertTimers, action: "inserting timers", params });
        }
        if !waits.is_empty() {
            let params = vec![
                column(&waits, |(key, ..)| *key),
                column(&waits, |(_, (kind, ..))| *kind),
                column(&waits, |(_, (_, subject, _))| to_uuid(*subject)),
                column(&waits, |(_, (.., name))| *name),
            ];
            queries.push(Query { sql: Sql::InsertWaits, action: "inserting waits", params });
        }
    }
}
