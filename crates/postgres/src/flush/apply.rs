//! A flush as statements: one per kind of row change, each over all of its rows.

use stepfast_core::Key;
use stepfast_core::clock::Timestamp;
use stepfast_core::queue::Placement;
use stepfast_core::store::{
    Attempt, Checkpoint, Chunk, DeleteChunks, Flush, Move, Request, State, WorkerId, Write, cancel_outcome,
};
use uuid::Uuid;

use crate::conn::pipeline::{Query, column, param};
use crate::conn::statements::Sql;
use crate::flush::starts::Starts;
use crate::rows::types::{Instant, armed, ended_at, is_paused, outcome, uuid};

/// The Writes of a flush by kind, with their indexes.
#[derive(Default)]
pub(crate) struct Sorted<'a> {
    pub starts: Starts<'a>,
    /// Moves to an end, by key.
    pub ends: Vec<(usize, &'a Move)>,
    /// Other Moves, by key.
    pub moves: Vec<(usize, &'a Move)>,
    /// Wakes.
    pub wakes: Vec<(usize, Key)>,
    /// Requests, as they came.
    pub requests: Vec<(usize, &'a Request)>,
    checkpoints: Vec<&'a Checkpoint>,
    attempts: Vec<&'a Attempt>,
    chunks: Vec<&'a Chunk>,
    discards: Vec<&'a DeleteChunks>,
    answers: Vec<Key>,
}

impl<'a> Sorted<'a> {
    /// Sorts a flush.
    pub(crate) fn new(flush: &'a Flush) -> Self {
        let mut sorted = Self { starts: Starts::of(&flush.writes), ..Self::default() };
        for (i, write) in flush.writes.iter().enumerate() {
            match write {
                Write::Start(_) => {}
                Write::Checkpoint(checkpoint) => sorted.checkpoints.push(checkpoint),
                Write::Attempt(attempt) => sorted.attempts.push(attempt),
                Write::Transition(change) if matches!(change.state, State::Ended { .. }) => {
                    sorted.ends.push((i, change));
                }
                Write::Transition(change) => sorted.moves.push((i, change)),
                Write::Wake(key) => sorted.wakes.push((i, *key)),
                Write::Request(request) => sorted.requests.push((i, request)),
                Write::ClearRequests(key) => sorted.answers.push(*key),
                Write::Chunk(chunk) => sorted.chunks.push(chunk),
                Write::DeleteChunks(discard) => sorted.discards.push(discard),
            }
        }
        // so two flushes lock in one order; a cancel from elsewhere may lock in another, which `lock_timeout` ends
        sorted.ends.sort_by_key(|(_, change)| change.key);
        sorted.moves.sort_by_key(|(_, change)| change.key);
        sorted
    }

    /// What its worker runs no more.
    pub(crate) fn released_keys(&self) -> impl Iterator<Item = Key> {
        let moves = self.moves.iter().filter(|(_, change)| !matches!(change.state, State::Running { .. }));
        self.ends.iter().chain(moves).map(|(_, change)| change.key)
    }

    /// The statements that apply it behind the fence, requests excepted.
    pub(crate) fn jobs(&self, flush: &Flush, now: Option<Timestamp>) -> Vec<Query<'a>> {
        let mut jobs = Vec::new();
        if !self.wakes.is_empty() || !self.requests.is_empty() {
            jobs.push(self.lock());
        }
        // what is answered in this flush no longer counts as asked; what its Moves answer still does
        self.answers(&mut jobs);
        self.records(&mut jobs);
        self.executions(flush.worker, now, &mut jobs);
        self.roles(flush, &mut jobs);
        jobs
    }

    /// Locks the rows that somebody else may want too, in key order.
    pub(crate) fn lock(&self) -> Query<'a> {
        let cancelled: Vec<Uuid> = self.requests.iter().map(|(_, request)| uuid(request.execution)).collect();
        let others = self.wakes.iter().map(|(_, key)| *key);
        let others = others.chain(self.ends.iter().chain(&self.moves).map(|(_, change)| change.key));
        let others = others.chain(self.requests.iter().map(|(_, request)| request.execution));
        let others: Vec<Uuid> = others.map(uuid).collect();
        Query { sql: Sql::Lock, action: "locking executions", params: vec![param(cancelled), param(others)] }
    }

    fn answers(&self, jobs: &mut Vec<Query<'a>>) {
        if !self.answers.is_empty() {
            let params = vec![column(&self.answers, |key| uuid(*key))];
            jobs.push(Query { sql: Sql::Answer, action: "deleting requests", params });
        }
    }

    fn executions(&self, worker: WorkerId, now: Option<Timestamp>, jobs: &mut Vec<Query<'a>>) {
        if !self.ends.is_empty() {
            let ends = &self.ends;
            let params = vec![
                param(worker.0),
                column(ends, |(_, m)| uuid(m.key)),
                column(ends, |(_, m)| m.state.status() as i16),
                column(ends, |(_, m)| outcome(&m.state)),
                column(ends, |(_, m)| ended_at(&m.state)),
            ];
            jobs.push(Query { sql: Sql::MoveEnded, action: "ending executions", params });
            let cancelled = cancel_outcome().as_bytes().to_vec();
            let params = vec![column(ends, |(_, m)| uuid(m.key)), param(cancelled)];
            jobs.push(Query { sql: Sql::Forget, action: "deleting requests", params });
        }
        if !self.moves.is_empty() {
            let moves = &self.moves;
            let params = vec![
                param(worker.0),
                column(moves, |(_, m)| uuid(m.key)),
                column(moves, |(_, m)| m.state.status() as i16),
                column(moves, |(_, m)| is_paused(&m.state)),
                column(moves, |(_, m)| outcome(&m.state)),
                column(moves, |(_, m)| ended_at(&m.state)),
                column(moves, |(_, m)| armed(&m.state)),
            ];
            jobs.push(Query { sql: Sql::Move, action: "moving executions", params });
            let resting: Vec<Uuid> = self.resting().collect();
            if !resting.is_empty() {
                jobs.push(Query { sql: Sql::RequeueRequested, action: "heeding requests", params: vec![param(resting)] });
            }
        }
        let freed: Vec<(Key, &Placement)> = self.freed().collect();
        if !freed.is_empty() {
            let params = vec![
                param(worker.0),
                column(&freed, |(key, _)| uuid(*key)),
                column(&freed, |(_, ticket)| ticket.queue.to_string()),
                column(&freed, |(_, ticket)| ticket.key.to_string()),
            ];
            jobs.push(Query { sql: Sql::Unslot, action: "freeing slots", params });
        }
        if !self.wakes.is_empty() {
            let params = vec![column(&self.wakes, |(_, key)| uuid(*key)), param(now.map(Instant))];
            jobs.push(Query { sql: Sql::Wake, action: "waking executions", params });
        }
        self.starts.jobs(worker, jobs);
    }

    /// What stops running, and may have a slot in its queue.
    pub(crate) fn freed(&self) -> impl Iterator<Item = (Key, &'a Placement)> {
        let moves = self.moves.iter().filter(|(_, change)| !matches!(change.state, State::Running { .. }));
        let all = self.ends.iter().chain(moves);
        all.filter_map(|(_, change)| Some((change.key, &**change.ticket.as_ref()?)))
    }

    /// What is moved to where only a wake or a resume would find it.
    fn resting(&self) -> impl Iterator<Item = Uuid> {
        let rests = |state: &State| matches!(state, State::Waiting { .. } | State::Parked { .. });
        self.moves.iter().filter(move |(_, change)| rests(&change.state)).map(|(_, change)| uuid(change.key))
    }

    fn records(&self, jobs: &mut Vec<Query<'a>>) {
        if !self.checkpoints.is_empty() {
            let rows = &self.checkpoints;
            let params = vec![
                column(rows, |c| Instant(c.at)),
                column(rows, |c| c.took_ms),
                column(rows, |c| i64::from(c.order)),
                column(rows, |c| c.fingerprint.map(u64::cast_signed)),
                column(rows, |c| c.run_no.cast_signed()),
                column(rows, |c| c.kind as i16),
                column(rows, |c| uuid(c.execution)),
                column(rows, |c| c.path.as_bytes()),
                column(rows, |c| &*c.name),
                column(rows, |c| c.outcome.as_bytes()),
            ];
            jobs.push(Query { sql: Sql::Checkpoint, action: "inserting checkpoints", params });
        }
        if !self.attempts.is_empty() {
            let rows = &self.attempts;
            let params = vec![
                column(rows, |a| Instant(a.at)),
                column(rows, |a| i64::from(a.attempt)),
                column(rows, |a| uuid(a.execution)),
                column(rows, |a| a.path.as_bytes()),
                column(rows, |a| a.failure.as_bytes()),
            ];
            jobs.push(Query { sql: Sql::Attempt, action: "inserting attempts", params });
        }
        if !self.chunks.is_empty() {
            let rows = &self.chunks;
            let params = vec![
                column(rows, |c| c.value.cast_signed()),
                column(rows, |c| i64::from(c.index)),
                column(rows, |c| uuid(c.execution)),
                column(rows, |c| c.bytes.as_ref()),
            ];
            jobs.push(Query { sql: Sql::Chunk, action: "inserting chunks", params });
        }
        if !self.discards.is_empty() {
            let kept: Vec<(Key, u64)> = (self.discards.iter())
                .flat_map(|discard| discard.keep.iter().map(|value| (discard.execution, *value)))
                .collect();
            let params = vec![
                column(&self.discards, |discard| uuid(discard.execution)),
                column(&kept, |(execution, _)| uuid(*execution)),
                column(&kept, |(_, value)| value.cast_signed()),
            ];
            jobs.push(Query { sql: Sql::Discard, action: "deleting chunks", params });
        }
    }

    /// Rows of the role tables that states bring with them.
    fn roles(&self, flush: &Flush, jobs: &mut Vec<Query<'a>>) {
        let (mut queued, mut again) = (Vec::new(), Vec::new());
        let (mut timers, mut waits) = (Vec::new(), Vec::new());
        // in the order of the flush: executions become ready in the order in which they were accepted
        for (i, write) in flush.writes.iter().enumerate() {
            let (key, state, queued) = match write {
                Write::Start(start) if self.starts.is_done_with(i, start) => continue,
                Write::Start(start) if start.has_begun => (start.key, &start.state, &mut again),
                Write::Start(start) => (start.key, &start.state, &mut queued),
                Write::Transition(change) => (change.key, &change.state, &mut again),
                _ => continue,
            };
            match state {
                State::Queued { .. } => queued.push(uuid(key)),
                State::Scheduled { due_at } => timers.push((uuid(key), Instant(*due_at))),
                State::Waiting { wake_at, children, .. } => {
                    timers.extend(wake_at.map(|at| (uuid(key), Instant(at))));
                    waits.extend(children.iter().map(|child| (uuid(key), uuid(*child))));
                }
                State::Running { .. } | State::Parked { .. } | State::Ended { .. } => {}
            }
        }
        // they are queued if they are asked for something
        again.extend(self.resting());
        for (sql, queued) in [(Sql::Ready, queued), (Sql::ReadyAgain, again)] {
            if !queued.is_empty() {
                jobs.push(Query { sql, action: "making executions ready", params: vec![param(queued)] });
            }
        }
        if !timers.is_empty() {
            let params = vec![column(&timers, |(key, _)| *key), column(&timers, |(_, due_at)| *due_at)];
            jobs.push(Query { sql: Sql::Timer, action: "inserting timers", params });
        }
        if !waits.is_empty() {
            let params = vec![column(&waits, |(key, _)| *key), column(&waits, |(_, child)| *child)];
            jobs.push(Query { sql: Sql::Wait, action: "inserting waits", params });
        }
    }
}
