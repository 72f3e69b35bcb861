//! A flush as statements: one per kind of row change, each over all of its rows.

use std::collections::HashSet;
use std::ops::Range;

use stepfast_core::clock::Timestamp;
use stepfast_core::counters::{Counters, Table};
use stepfast_core::queue::Ticket;
use stepfast_core::record::encode_armed;
use stepfast_core::store::StoreError;
use stepfast_core::write::{
    Attempt, Checkpoint, Chunk, Discard, Flush, Move, Outcome, Request, Start, State, WorkerId, Write,
};
use stepfast_core::{Key, Payload};
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use crate::error::{damaged, store_error};
use crate::pipeline::{Answer, Job, Param};
use crate::rows::Columns;
use crate::statements::Sql;
use crate::types::{Instant, key, some_bytes, uuid};

/// The Writes of a flush by kind, with their indexes.
#[derive(Default)]
pub(crate) struct Sorted<'a> {
    /// Starts, in the order in which they are inserted.
    pub starts: Vec<(usize, &'a Start)>,
    /// Starts with nothing special about them, which cannot lose: those that run, by key, and those that have ended.
    running: Vec<(usize, &'a Start)>,
    ended: Vec<&'a Start>,
    /// Those that are queued, as they came.
    queued: Vec<&'a Start>,
    /// Those that run if their queue lets them, as they came; and whether they may for all that is known here.
    yielding: Vec<(usize, &'a Start, bool)>,
    /// The same with an id of their caller, which may be taken: by id, and none if `starts` have ids.
    named: Vec<(usize, &'a Start)>,
    /// Moves to an end, by key.
    ends: Vec<(usize, &'a Move)>,
    /// Other Moves, by key.
    moves: Vec<(usize, &'a Move)>,
    /// Wakes.
    pub wakes: Vec<(usize, Key)>,
    /// Requests, as they came.
    pub requests: Vec<(usize, &'a Request)>,
    checkpoints: Vec<&'a Checkpoint>,
    attempts: Vec<&'a Attempt>,
    chunks: Vec<&'a Chunk>,
    discards: Vec<&'a Discard>,
    answers: Vec<Key>,
}

/// One column of `items`.
pub(crate) fn column<'a, T, V>(items: &[T], value: impl Fn(&T) -> V) -> Param<'a>
where
    V: ToSql + Send + Sync + 'a,
{
    Box::new(items.iter().map(value).collect::<Vec<V>>())
}

/// One value.
pub(crate) fn one<'a>(value: impl ToSql + Send + Sync + 'a) -> Param<'a> {
    Box::new(value)
}

impl<'a> Sorted<'a> {
    /// Sorts a flush.
    pub(crate) fn new(flush: &'a Flush) -> Self {
        let mut sorted = Self::default();
        for (i, write) in flush.writes.iter().enumerate() {
            match write {
                Write::Start(start) => match kind(start) {
                    Kind::Plain if matches!(start.state, State::Ended { .. }) => sorted.ended.push(start),
                    Kind::Plain => sorted.running.push((i, start)),
                    Kind::Queued => sorted.queued.push(start),
                    Kind::Yielding => sorted.yielding.push((i, start, true)),
                    Kind::Named => sorted.named.push((i, start)),
                    Kind::Special => sorted.starts.push((i, start)),
                },
                Write::Checkpoint(checkpoint) => sorted.checkpoints.push(checkpoint),
                Write::Attempt(attempt) => sorted.attempts.push(attempt),
                Write::Move(change) if matches!(change.state, State::Ended { .. }) => {
                    sorted.ends.push((i, change));
                }
                Write::Move(change) => sorted.moves.push((i, change)),
                Write::Wake(key) => sorted.wakes.push((i, *key)),
                Write::Request(request) => sorted.requests.push((i, request)),
                Write::Answer(key) => sorted.answers.push(*key),
                Write::Chunk(chunk) => sorted.chunks.push(chunk),
                Write::Discard(discard) => sorted.discards.push(discard),
            }
        }
        // Rows are locked in key order, and inserts that may have to wait for each other come in one order
        // for all flushes: by the caller's id, or by key where there is none. So flushes cannot deadlock.
        sorted.ends.sort_by_key(|(_, change)| change.key);
        sorted.moves.sort_by_key(|(_, change)| change.key);
        sorted.running.sort_by_key(|(_, start)| start.key);
        sorted.ended.sort_by_key(|start| start.key);
        if sorted.starts.iter().any(|(_, start)| matches!(start.state, State::Queued { .. })) {
            // they become ready in one order
            for (i, write) in flush.writes.iter().enumerate() {
                if let Write::Start(start) = write
                    && is_queued(start)
                {
                    sorted.starts.push((i, start));
                }
            }
            sorted.queued.clear();
        }
        sorted.sort_starts();
        sorted
    }

    fn sort_starts(&mut self) {
        // one order over both
        if self.starts.iter().any(|(_, start)| start.workflow_id.is_some()) {
            self.starts.append(&mut self.named);
        }
        for starts in [&mut self.named, &mut self.starts] {
            let place = |start: &&'a Start| {
                (dedup_id(start).map(|id| (queue(start), id)), &start.workflow_id, start.key)
            };
            starts.sort_by(|(_, a), (_, b)| place(a).cmp(&place(b)));
        }
    }

    /// Starts outside of this window get an entry in the index of owners, as those have that are special; see
    /// [`Windows`](crate::window::Windows).
    pub(crate) fn start_within(&mut self, window: &Range<Key>) {
        let before = self.starts.len();
        for starts in [&mut self.running, &mut self.named] {
            let outside = |(_, start): &mut (usize, &Start)| {
                matches!(start.state, State::Running { .. }) && !window.contains(&start.key)
            };
            self.starts.extend(starts.extract_if(.., outside));
        }
        if self.starts.len() > before {
            self.sort_starts();
        }
        for (_, start, may_begin) in &mut self.yielding {
            *may_begin = window.contains(&start.key);
        }
    }

    /// What is started without an entry in the index of owners.
    pub(crate) fn running_keys(&self) -> impl Iterator<Item = Key> {
        let named = self.named.iter().filter(|(_, start)| matches!(start.state, State::Running { .. }));
        let yielding =
            self.yielding.iter().filter(|(_, _, may_begin)| *may_begin).map(|(_, start, _)| start.key);
        self.running.iter().chain(named).map(|(_, start)| start.key).chain(yielding)
    }

    /// What its worker runs no more.
    pub(crate) fn released_keys(&self) -> impl Iterator<Item = Key> {
        let moves = self.moves.iter().filter(|(_, change)| !matches!(change.state, State::Running { .. }));
        self.ends.iter().chain(moves).map(|(_, change)| change.key)
    }

    /// The statements that apply it behind the fence, requests excepted.
    pub(crate) fn jobs(&self, flush: &Flush, now: Option<Timestamp>) -> Vec<Job<'a>> {
        let mut jobs = Vec::new();
        if !self.wakes.is_empty() || !self.requests.is_empty() {
            jobs.push(self.lock());
        }
        self.executions(flush.worker, now, &mut jobs);
        self.records(&mut jobs);
        self.roles(flush, &mut jobs);
        jobs
    }

    /// Locks the rows that somebody else may want too, in key order.
    pub(crate) fn lock(&self) -> Job<'a> {
        let cancelled: Vec<Uuid> = self.requests.iter().map(|(_, request)| uuid(request.execution)).collect();
        let others = self.wakes.iter().map(|(_, key)| *key);
        let others = others.chain(self.ends.iter().chain(&self.moves).map(|(_, change)| change.key));
        let others = others.chain(self.requests.iter().map(|(_, request)| request.execution));
        let others: Vec<Uuid> = others.map(uuid).collect();
        Job { sql: Sql::Lock, what: "locking executions", params: vec![one(cancelled), one(others)] }
    }

    fn executions(&self, worker: WorkerId, now: Option<Timestamp>, jobs: &mut Vec<Job<'a>>) {
        // before the Moves: what is answered in this flush no longer counts as asked
        if !self.answers.is_empty() {
            let params = vec![column(&self.answers, |key| uuid(*key))];
            jobs.push(Job { sql: Sql::Answer, what: "deleting requests", params });
        }
        if !self.ends.is_empty() {
            let ends = &self.ends;
            let params = vec![
                one(worker.0),
                column(ends, |(_, m)| uuid(m.key)),
                column(ends, |(_, m)| m.state.status() as i16),
                column(ends, |(_, m)| outcome(&m.state)),
                column(ends, |(_, m)| ended_at(&m.state)),
            ];
            jobs.push(Job { sql: Sql::MoveEnded, what: "ending executions", params });
            let params = vec![column(ends, |(_, m)| uuid(m.key))];
            jobs.push(Job { sql: Sql::Forget, what: "deleting requests", params });
        }
        if !self.moves.is_empty() {
            let moves = &self.moves;
            let params = vec![
                one(worker.0),
                column(moves, |(_, m)| uuid(m.key)),
                column(moves, |(_, m)| m.state.status() as i16),
                column(moves, |(_, m)| is_paused(&m.state)),
                column(moves, |(_, m)| outcome(&m.state)),
                column(moves, |(_, m)| ended_at(&m.state)),
                column(moves, |(_, m)| armed(&m.state)),
            ];
            jobs.push(Job { sql: Sql::Move, what: "moving executions", params });
            let resting: Vec<Uuid> = self.resting().collect();
            if !resting.is_empty() {
                jobs.push(Job { sql: Sql::Heed, what: "heeding requests", params: vec![one(resting)] });
            }
        }
        let freed: Vec<(Key, &Ticket)> = self.freed().collect();
        if !freed.is_empty() {
            let params = vec![
                one(worker.0),
                column(&freed, |(key, _)| uuid(*key)),
                column(&freed, |(_, ticket)| ticket.queue.to_string()),
                column(&freed, |(_, ticket)| ticket.key.to_string()),
            ];
            jobs.push(Job { sql: Sql::Unslot, what: "freeing slots", params });
        }
        if !self.wakes.is_empty() {
            let params = vec![column(&self.wakes, |(_, key)| uuid(*key)), one(now.map(Instant))];
            jobs.push(Job { sql: Sql::Wake, what: "waking executions", params });
        }
        if !self.running.is_empty() {
            let starts = &self.running;
            let params = vec![
                one(worker.0),
                column(starts, |(_, s)| Instant(s.created_at)),
                column(starts, |(_, s)| s.root.shard().cast_signed()),
                column(starts, |(_, s)| uuid(s.key)),
                column(starts, |(_, s)| s.workflow.as_ref()),
                column(starts, |(_, s)| s.input.as_bytes()),
            ];
            jobs.push(Job { sql: Sql::StartRunning, what: "inserting executions", params });
        }
        if !self.ended.is_empty() {
            let starts = &self.ended;
            let params = vec![
                column(starts, |s| Instant(s.created_at)),
                column(starts, |s| ended_at(&s.state)),
                column(starts, |s| s.root.shard().cast_signed()),
                column(starts, |s| s.state.status() as i16),
                column(starts, |s| uuid(s.key)),
                column(starts, |s| s.workflow.as_ref()),
                column(starts, |s| s.input.as_bytes()),
                column(starts, |s| outcome(&s.state)),
            ];
            jobs.push(Job { sql: Sql::StartEnded, what: "inserting executions", params });
        }
        if !self.queued.is_empty() {
            let starts = &self.queued;
            let params = vec![
                column(starts, |s| Instant(s.created_at)),
                column(starts, |s| s.root.shard().cast_signed()),
                column(starts, |s| uuid(s.key)),
                column(starts, |s| s.workflow.as_ref()),
                column(starts, |s| s.app_version.as_deref()),
                column(starts, |s| s.input.as_bytes()),
                column(starts, |s| queue(s)),
                column(starts, |s| queue_key(s)),
                column(starts, |s| priority(s)),
            ];
            jobs.push(Job { sql: Sql::StartQueued, what: "queueing executions", params });
        }
        if !self.yielding.is_empty() {
            let starts = &self.yielding;
            let mut queues: Vec<&str> = starts.iter().filter_map(|(_, s, _)| queue(s)).collect();
            queues.sort_unstable();
            queues.dedup();
            let params = vec![
                one(worker.0),
                column(starts, |(_, s, _)| Instant(s.created_at)),
                column(starts, |(_, s, _)| s.root.shard().cast_signed()),
                column(starts, |(_, s, _)| uuid(s.key)),
                column(starts, |(_, s, _)| s.workflow.as_ref()),
                column(starts, |(_, s, _)| s.app_version.as_deref()),
                column(starts, |(_, s, _)| s.input.as_bytes()),
                column(starts, |(_, s, _)| queue(s)),
                column(starts, |(_, s, _)| queue_key(s)),
                column(starts, |(_, s, _)| priority(s)),
                column(starts, |(_, _, may_begin)| *may_begin),
                one(queues),
            ];
            jobs.push(Job { sql: Sql::StartYielding, what: "beginning executions of queues", params });
        }
        if !self.named.is_empty() {
            let starts = &self.named;
            let params = vec![
                one(worker.0),
                column(starts, |(_, s)| Instant(s.created_at)),
                column(starts, |(_, s)| ended_at(&s.state)),
                column(starts, |(_, s)| s.fingerprint.map(u64::cast_signed)),
                column(starts, |(_, s)| s.root.shard().cast_signed()),
                column(starts, |(_, s)| s.state.status() as i16),
                column(starts, |(_, s)| uuid(s.key)),
                column(starts, |(_, s)| s.workflow.as_ref()),
                column(starts, |(_, s)| s.workflow_id.as_deref()),
                column(starts, |(_, s)| s.input.as_bytes()),
                column(starts, |(_, s)| outcome(&s.state)),
            ];
            jobs.push(Job { sql: Sql::StartNamed, what: "inserting executions", params });
        }
        if !self.starts.is_empty() {
            let starts = &self.starts;
            let params = vec![
                column(starts, |(_, s)| Instant(s.created_at)),
                column(starts, |(_, s)| ended_at(&s.state)),
                column(starts, |(_, s)| s.deadline_at.map(Instant)),
                column(starts, |(_, s)| matches!(s.state, State::Running { .. }).then_some(worker.0)),
                column(starts, |(_, s)| s.fingerprint.map(u64::cast_signed)),
                column(starts, |(_, s)| s.root.shard().cast_signed()),
                column(starts, |(_, s)| s.state.status() as i16),
                column(starts, |(_, s)| is_paused(&s.state)),
                column(starts, |(_, s)| s.parent.as_ref().is_some_and(|parent| parent.is_detached)),
                column(starts, |(_, s)| uuid(s.key)),
                column(starts, |(_, s)| (s.root != s.key).then(|| uuid(s.root))),
                column(starts, |(_, s)| s.parent.as_ref().map(|parent| uuid(parent.key))),
                column(starts, |(_, s)| s.workflow.as_ref()),
                column(starts, |(_, s)| s.workflow_id.as_deref()),
                column(starts, |(_, s)| s.input.as_bytes()),
                column(starts, |(_, s)| outcome(&s.state)),
                column(starts, |(_, s)| armed(&s.state)),
                column(starts, |(_, s)| s.app_version.as_deref()),
                column(starts, |(_, s)| queue(s)),
                column(starts, |(_, s)| queue_key(s)),
                column(starts, |(_, s)| priority(s)),
                column(starts, |(_, s)| dedup_id(s)),
                column(starts, |(_, s)| s.run_timeout.map(|timeout| timeout.as_millis() as i64)),
            ];
            jobs.push(Job { sql: Sql::Start, what: "inserting executions", params });
        }
    }

    /// What stops running, and may have a slot in its queue.
    pub(crate) fn freed(&self) -> impl Iterator<Item = (Key, &'a Ticket)> {
        let moves = self.moves.iter().filter(|(_, change)| !matches!(change.state, State::Running { .. }));
        let all = self.ends.iter().chain(moves);
        all.filter_map(|(_, change)| Some((change.key, &**change.ticket.as_ref()?)))
    }

    /// What is moved to where only a wake or a resume would find it.
    fn resting(&self) -> impl Iterator<Item = Uuid> {
        let rests = |state: &State| matches!(state, State::Waiting { .. } | State::Parked { .. });
        self.moves.iter().filter(move |(_, change)| rests(&change.state)).map(|(_, change)| uuid(change.key))
    }

    fn records(&self, jobs: &mut Vec<Job<'a>>) {
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
            jobs.push(Job { sql: Sql::Checkpoint, what: "inserting checkpoints", params });
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
            jobs.push(Job { sql: Sql::Attempt, what: "inserting attempts", params });
        }
        if !self.chunks.is_empty() {
            let rows = &self.chunks;
            let params = vec![
                column(rows, |c| c.value.cast_signed()),
                column(rows, |c| i64::from(c.n)),
                column(rows, |c| uuid(c.execution)),
                column(rows, |c| c.bytes.as_ref()),
            ];
            jobs.push(Job { sql: Sql::Chunk, what: "inserting chunks", params });
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
            jobs.push(Job { sql: Sql::Discard, what: "deleting chunks", params });
        }
    }

    /// Rows of the role tables that states bring with them.
    fn roles(&self, flush: &Flush, jobs: &mut Vec<Job<'a>>) {
        let (mut queued, mut again) = (Vec::new(), Vec::new());
        let (mut timers, mut waits) = (Vec::new(), Vec::new());
        // in the order of the flush: executions become ready in the order in which they were accepted
        for write in &flush.writes {
            let (key, state, queued) = match write {
                Write::Start(start) if start.has_begun => (start.key, &start.state, &mut again),
                Write::Start(start) => (start.key, &start.state, &mut queued),
                Write::Move(change) => (change.key, &change.state, &mut again),
                _ => continue,
            };
            match state {
                State::Queued { .. } if !self.queued.is_empty() && is_first(write) => {}
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
                jobs.push(Job { sql, what: "making executions ready", params: vec![one(queued)] });
            }
        }
        if !timers.is_empty() {
            let params = vec![column(&timers, |(key, _)| *key), column(&timers, |(_, due_at)| *due_at)];
            jobs.push(Job { sql: Sql::Timer, what: "inserting timers", params });
        }
        if !waits.is_empty() {
            let params = vec![column(&waits, |(key, _)| *key), column(&waits, |(_, child)| *child)];
            jobs.push(Job { sql: Sql::Wait, what: "inserting waits", params });
        }
    }
}

/// Makes new plans.
pub(crate) fn replan() -> Job<'static> {
    Job { sql: Sql::Replan, what: "making new plans", params: Vec::new() }
}

/// What there is to a Start.
enum Kind {
    /// A minted key and nothing special, running or ended: nobody can have been there first.
    Plain,
    /// The same, queued.
    Queued,
    /// The same, which runs if its queue lets it.
    Yielding,
    /// The same, with an id of its caller.
    Named,
    /// Anything else.
    Special,
}

fn kind(start: &Start) -> Kind {
    let is_root = start.parent.is_none() && start.root == start.key;
    let is_common = match &start.state {
        State::Running { armed } => armed.is_empty(),
        state => matches!(state, State::Ended { .. }),
    };
    if is_queued(start) {
        return Kind::Queued;
    }
    if start.yields && matches!(start.state, State::Running { .. }) {
        return Kind::Yielding;
    }
    if !is_root || !is_common || start.deadline_at.is_some() {
        return Kind::Special;
    }
    if start.app_version.is_some() || start.ticket.is_some() {
        return Kind::Special;
    }
    match &start.workflow_id {
        None if start.fingerprint.is_none() && !start.is_guarded => Kind::Plain,
        Some(_) => Kind::Named,
        _ => Kind::Special,
    }
}

/// True for a Start of an execution that is queued with nothing else special about it.
fn is_first(write: &Write) -> bool {
    matches!(write, Write::Start(start) if is_queued(start))
}

/// True if it is queued, nothing else is special about it, and nobody can have been there first.
fn is_queued(start: &Start) -> bool {
    matches!(&start.state, State::Queued { armed } if armed.is_empty())
        && start.parent.is_none()
        && start.root == start.key
        && start.deadline_at.is_none()
        && start.run_timeout.is_none()
        && start.workflow_id.is_none()
        && start.fingerprint.is_none()
        && !start.is_guarded
        && !start.has_begun
}

/// The queue that it stands in, if that is not the default one.
fn queue(start: &Start) -> Option<&str> {
    start.ticket.as_ref().map(|ticket| &*ticket.queue)
}

/// What it alone is to have there; nothing any more if it has ended.
fn dedup_id(start: &Start) -> Option<&str> {
    start.dedup_id.as_deref().filter(|_| !matches!(start.state, State::Ended { .. }))
}

fn queue_key(start: &Start) -> Option<&str> {
    start.ticket.as_ref().map(|ticket| &*ticket.key).filter(|key| !key.is_empty())
}

fn priority(start: &Start) -> Option<i32> {
    start.ticket.as_ref().map(|ticket| ticket.priority).filter(|priority| *priority != 0)
}

fn is_paused(state: &State) -> bool {
    matches!(state, State::Parked { .. })
}

fn outcome(state: &State) -> Option<&[u8]> {
    match state {
        State::Parked { reason: outcome, .. } | State::Ended { outcome, .. } => some_bytes(outcome),
        _ => None,
    }
}

fn ended_at(state: &State) -> Option<Instant> {
    match state {
        State::Ended { at, .. } => Some(Instant(*at)),
        _ => None,
    }
}

fn armed(state: &State) -> Option<Vec<u8>> {
    let armed = state.armed();
    (!armed.is_empty()).then(|| encode_armed(armed))
}

/// What the statements of a flush did.
#[derive(Default)]
pub(crate) struct Applied {
    /// Outcomes other than `Applied`, Duplicates excepted, in no order.
    pub outcomes: Vec<(usize, Outcome)>,
    /// Starts that lost.
    pub losers: Vec<usize>,
}

impl Applied {
    /// Reads the answers to [`Sorted::jobs`].
    pub(crate) fn read(
        sorted: &Sorted<'_>,
        jobs: &[Job<'_>],
        answers: &[Answer],
    ) -> Result<Self, StoreError> {
        let mut applied = Self::default();
        for (job, answer) in jobs.iter().zip(answers) {
            match job.sql {
                Sql::MoveEnded => {
                    let Some(ended) = ended(answer)?.0 else { continue };
                    let missing = sorted.ends.iter().filter(|(_, change)| !ended.contains(&change.key));
                    applied.outcomes.extend(missing.map(|(i, _)| (*i, Outcome::NotFound)));
                }
                Sql::Move => {
                    let missing = missing(sorted.moves.iter().map(|(i, change)| (*i, change.key)), answer)?;
                    applied.outcomes.extend(missing.into_iter().map(|i| (i, Outcome::NotFound)));
                }
                Sql::Wake => {
                    let missing = missing(sorted.wakes.iter().copied(), answer)?;
                    applied.outcomes.extend(missing.into_iter().map(|i| (i, Outcome::NotFound)));
                }
                Sql::StartYielding => {
                    let free: Vec<&str> = Columns::of(first(answer)?).next()?;
                    let begins = |start: &Start| queue(start).is_some_and(|queue| free.contains(&queue));
                    let waits =
                        sorted.yielding.iter().filter(|(_, start, may_begin)| !*may_begin || !begins(start));
                    applied.outcomes.extend(waits.map(|(i, _, _)| (*i, Outcome::Queued)));
                }
                Sql::StartNamed | Sql::Start => {
                    let starts = if job.sql == Sql::Start { &sorted.starts } else { &sorted.named };
                    let lost = missing(starts.iter().map(|(i, start)| (*i, start.key)), answer)?;
                    applied.losers.extend(lost);
                }
                _ => {}
            }
        }
        Ok(applied)
    }
}

fn first(answer: &Answer) -> Result<&tokio_postgres::Row, StoreError> {
    answer.rows.first().ok_or_else(|| damaged("an answer"))
}

/// Which executions have ended, if those are not all, and how many.
fn ended(answer: &Answer) -> Result<(Option<HashSet<Key>>, u64), StoreError> {
    let mut row = Columns::of(first(answer)?);
    let keys: Option<Vec<Uuid>> = row.next()?;
    let count: i64 = row.next()?;
    Ok((keys.map(|keys| keys.into_iter().map(key).collect()), count as u64))
}

/// Those of `expected` whose keys the answer does not have.
fn missing(
    expected: impl ExactSizeIterator<Item = (usize, Key)>,
    answer: &Answer,
) -> Result<Vec<usize>, StoreError> {
    if answer.rows.len() == expected.len() {
        return Ok(Vec::new());
    }
    let mut found = HashSet::with_capacity(answer.rows.len());
    for row in &answer.rows {
        found.insert(key(row.try_get(0).map_err(|error| store_error("reading a key", &error))?));
    }
    Ok(expected.filter(|(_, key)| !found.contains(key)).map(|(i, _)| i).collect())
}

/// Counts what a committed transaction changed.
pub(crate) fn count(counters: &Counters, jobs: &[Job<'_>], answers: &[Answer]) -> Result<(), StoreError> {
    counters.statements(jobs.len() as u64 + 2);
    for (job, answer) in jobs.iter().zip(answers) {
        let rows = answer.affected;
        match job.sql {
            Sql::MoveEnded => counters.updated(Table::Executions, ended(answer)?.1),
            Sql::Move | Sql::Heed | Sql::Cancel | Sql::Resume => {
                counters.updated(Table::Executions, rows);
            }
            Sql::StartRunning | Sql::StartEnded | Sql::StartNamed | Sql::Start => {
                counters.inserted(Table::Executions, rows);
            }
            Sql::Checkpoint => counters.inserted(Table::Checkpoints, rows),
            Sql::Attempt => counters.inserted(Table::Attempts, rows),
            Sql::Chunk => counters.inserted(Table::Chunks, rows),
            Sql::Discard => counters.deleted(Table::Chunks, rows),
            Sql::StartQueued => {
                counters.inserted(Table::Executions, rows);
                counters.inserted(Table::Ready, rows);
            }
            Sql::StartYielding => {
                let mut row = Columns::of(first(answer)?);
                let _: Vec<&str> = row.next()?;
                counters.inserted(Table::Executions, row.next::<i64>()? as u64);
                counters.inserted(Table::Ready, row.next::<i64>()? as u64);
            }
            Sql::Ready | Sql::ReadyAgain => counters.inserted(Table::Ready, rows),
            Sql::Slot => counters.inserted(Table::Slots, rows),
            Sql::Unslot => counters.deleted(Table::Slots, rows),
            Sql::Timer => counters.inserted(Table::Timers, rows),
            Sql::Wait => counters.inserted(Table::Waits, rows),
            Sql::Request => counters.inserted(Table::Requests, rows),
            Sql::Answer | Sql::Forget => counters.deleted(Table::Requests, rows),
            Sql::Unready => counters.deleted(Table::Ready, rows),
            Sql::Untimer => counters.deleted(Table::Timers, rows),
            Sql::Unwait => counters.deleted(Table::Waits, rows),
            Sql::Wake | Sql::Admit | Sql::Take | Sql::TakeQuarantined => {
                count_taken(counters, job.sql, answer)?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// Wakes and claims change several tables in one statement; each row carries the totals at its end.
fn count_taken(counters: &Counters, sql: Sql, answer: &Answer) -> Result<(), StoreError> {
    let Some(row) = answer.rows.first() else { return Ok(()) };
    let total = |back: usize| -> Result<u64, StoreError> {
        let column = row.len().checked_sub(back).ok_or_else(|| damaged("a count"))?;
        let count: i64 = row.try_get(column).map_err(|error| store_error("reading a count", &error))?;
        Ok(count as u64)
    };
    let rows = answer.rows.len() as u64;
    counters.updated(Table::Executions, rows);
    if matches!(sql, Sql::Wake | Sql::Admit) {
        counters.inserted(Table::Ready, rows);
    } else {
        counters.deleted(Table::Ready, total(3)?);
    }
    counters.deleted(Table::Timers, total(2)?);
    counters.deleted(Table::Waits, total(1)?);
    Ok(())
}

/// A payload as the column of what a cancel ends.
pub(crate) fn reason(payload: &Payload) -> Option<&[u8]> {
    some_bytes(payload)
}
