//! The Starts of a flush as statements: the plainer they are, the fewer columns and checks they need.

use std::collections::HashSet;
use std::ops::Range;

use stepfast_core::Key;
use stepfast_core::clock::{Timestamp, stored_millis};
use stepfast_core::store::{Start, State, WorkerId, Write};

use crate::conn::pipeline::{Query, column, param};
use crate::conn::statements::Sql;
use crate::rows::types::{Instant, uuid};
use crate::rows::types::{armed, ended_at, is_paused, outcome};

/// The Starts of a flush by what there is to them, with their indexes.
#[derive(Default)]
pub(crate) struct Starts<'a> {
    /// Those with anything special about them, in the order in which they are inserted.
    pub special: Vec<(usize, &'a Start)>,
    /// Those that cannot lose: what runs, by key, and what has ended.
    running: Vec<(usize, &'a Start)>,
    ended: Vec<&'a Start>,
    /// Those that are queued, as they came.
    queued: Vec<(usize, &'a Start)>,
    /// Those that run if their queue lets them, as they came; and whether they may for all that is known here.
    pub yielding: Vec<(usize, &'a Start, bool)>,
    /// Those that are debounced, the last one of each, by what they have in common; and those that came before that one.
    pub merging: Vec<(usize, &'a Start)>,
    pub overtaken: Vec<(usize, &'a Start)>,
    /// Those with an id of their caller, which may be taken: by id, and none if `special` has ids.
    pub named: Vec<(usize, &'a Start)>,
    /// What they are found by: key, name, value.
    attributes: Vec<(Key, &'a str, &'a str)>,
    /// Those whose queue is full.
    pub refused: HashSet<usize>,
    /// True if those that are queued have a statement of their own.
    has_queued: bool,
}

impl<'a> Starts<'a> {
    /// Sorts those of a flush.
    pub(crate) fn of(writes: &'a [Write]) -> Self {
        let mut starts = Self::default();
        for (i, write) in writes.iter().enumerate() {
            let Write::Start(start) = write else { continue };
            let attributes = start.attributes.iter();
            starts.attributes.extend(attributes.map(|(name, value)| (start.key, name, value)));
            if start.debounce_window.is_some() {
                starts.merging.push((i, start));
                continue;
            }
            match kind(start) {
                Kind::Plain if matches!(start.state, State::Ended { .. }) => starts.ended.push(start),
                Kind::Plain => starts.running.push((i, start)),
                Kind::Queued => starts.queued.push((i, start)),
                Kind::Yielding => starts.yielding.push((i, start, true)),
                Kind::Named => starts.named.push((i, start)),
                Kind::Special => starts.special.push((i, start)),
            }
        }
        starts.running.sort_by_key(|(_, start)| start.key);
        starts.ended.sort_by_key(|start| start.key);
        let mut later = HashSet::new();
        let all = std::mem::take(&mut starts.merging).into_iter().rev();
        (starts.merging, starts.overtaken) = all.partition(|(_, start)| later.insert(held(start)));
        starts.merging.sort_by(|(_, a), (_, b)| held(a).cmp(&held(b)));
        if starts.special.iter().any(|(_, start)| matches!(start.state, State::Queued { .. })) {
            // they become ready in one order
            for (i, write) in writes.iter().enumerate() {
                if let Write::Start(start) = write
                    && is_queued(start)
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

    /// Leaves these out: their queue is full.
    pub(crate) fn refuse(&mut self, refused: HashSet<usize>) {
        self.queued.retain(|(i, _)| !refused.contains(i));
        self.special.retain(|(i, _)| !refused.contains(i));
        self.yielding.retain(|(i, _, _)| !refused.contains(i));
        self.refused = refused;
    }

    /// True if there is nothing more to do to make it ready.
    pub(crate) fn is_done_with(&self, i: usize, start: &Start) -> bool {
        self.refused.contains(&i) || start.debounce_window.is_some() || self.has_queued && is_queued(start)
    }

    /// Inserts that may have to wait for each other come in one order for all flushes, which so do not deadlock: by what is
    /// unique, and by key. Claims insert what is in the inbox in an order of its own; `lock_timeout` ends what that leads to.
    fn sort(&mut self) {
        // one order over both
        if self.special.iter().any(|(_, start)| start.workflow_id.is_some()) {
            self.special.append(&mut self.named);
        }
        for starts in [&mut self.named, &mut self.special] {
            let place = |start: &&'a Start| (held(start), &start.workflow_id, start.key);
            starts.sort_by(|(_, a), (_, b)| place(a).cmp(&place(b)));
        }
    }

    /// Starts outside of this window get an entry in the index of owners, as those have that are special; see
    /// [`Windows`](crate::ownership::Windows).
    pub(crate) fn within(&mut self, window: &Range<Key>) {
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

    /// The statements that insert them.
    pub(crate) fn jobs(&self, worker: WorkerId, jobs: &mut Vec<Query<'a>>) {
        if !self.running.is_empty() {
            let starts = &self.running;
            let params = vec![
                param(worker.0),
                column(starts, |(_, s)| Instant(s.created_at)),
                column(starts, |(_, s)| uuid(s.key)),
                column(starts, |(_, s)| s.workflow.as_ref()),
                column(starts, |(_, s)| s.input.as_bytes()),
            ];
            jobs.push(Query { sql: Sql::StartRunning, action: "inserting executions", params });
        }
        if !self.ended.is_empty() {
            let starts = &self.ended;
            let params = vec![
                column(starts, |s| Instant(s.created_at)),
                column(starts, |s| ended_at(&s.state)),
                column(starts, |s| s.state.status() as i16),
                column(starts, |s| uuid(s.key)),
                column(starts, |s| s.workflow.as_ref()),
                column(starts, |s| s.input.as_bytes()),
                column(starts, |s| outcome(&s.state)),
            ];
            jobs.push(Query { sql: Sql::StartEnded, action: "inserting executions", params });
        }
        if !self.queued.is_empty() {
            let starts = &self.queued;
            let params = vec![
                column(starts, |(_, s)| Instant(s.created_at)),
                column(starts, |(_, s)| uuid(s.key)),
                column(starts, |(_, s)| s.workflow.as_ref()),
                column(starts, |(_, s)| s.app_version.as_deref()),
                column(starts, |(_, s)| s.input.as_bytes()),
                column(starts, |(_, s)| queue(s)),
                column(starts, |(_, s)| queue_key(s)),
                column(starts, |(_, s)| priority(s)),
            ];
            jobs.push(Query { sql: Sql::StartQueued, action: "queueing executions", params });
        }
        if !self.yielding.is_empty() {
            let starts = &self.yielding;
            let mut queues: Vec<&str> = starts.iter().filter_map(|(_, s, _)| queue(s)).collect();
            queues.sort_unstable();
            queues.dedup();
            let params = vec![
                param(worker.0),
                column(starts, |(_, s, _)| Instant(s.created_at)),
                column(starts, |(_, s, _)| uuid(s.key)),
                column(starts, |(_, s, _)| s.workflow.as_ref()),
                column(starts, |(_, s, _)| s.app_version.as_deref()),
                column(starts, |(_, s, _)| s.input.as_bytes()),
                column(starts, |(_, s, _)| queue(s)),
                column(starts, |(_, s, _)| queue_key(s)),
                column(starts, |(_, s, _)| priority(s)),
                column(starts, |(_, _, may_begin)| *may_begin),
                param(queues),
            ];
            jobs.push(Query { sql: Sql::StartYielding, action: "beginning executions of queues", params });
        }
        if !self.merging.is_empty() {
            let starts = &self.merging;
            let params = vec![
                column(starts, |(_, s)| Instant(s.created_at)),
                column(starts, |(_, s)| uuid(s.key)),
                column(starts, |(_, s)| s.workflow.as_ref()),
                column(starts, |(_, s)| s.app_version.as_deref()),
                column(starts, |(_, s)| s.input.as_bytes()),
                column(starts, |(_, s)| queue(s)),
                column(starts, |(_, s)| queue_key(s)),
                column(starts, |(_, s)| priority(s)),
                column(starts, |(_, s)| Instant(due_at(s))),
                column(starts, |(_, s)| s.debounce_window.map(|most| most.as_millis() as i64)),
                column(starts, |(_, s)| s.active_dedup_id().map(|id| &**id)),
                column(starts, |(_, s)| s.run_timeout.map(stored_millis)),
            ];
            jobs.push(Query { sql: Sql::Merge, action: "inserting executions", params });
        }
        if !self.named.is_empty() {
            let starts = &self.named;
            let params = vec![
                param(worker.0),
                column(starts, |(_, s)| Instant(s.created_at)),
                column(starts, |(_, s)| ended_at(&s.state)),
                column(starts, |(_, s)| s.fingerprint.map(u64::cast_signed)),
                column(starts, |(_, s)| s.state.status() as i16),
                column(starts, |(_, s)| uuid(s.key)),
                column(starts, |(_, s)| s.workflow.as_ref()),
                column(starts, |(_, s)| s.workflow_id.as_deref()),
                column(starts, |(_, s)| s.input.as_bytes()),
                column(starts, |(_, s)| outcome(&s.state)),
            ];
            jobs.push(Query { sql: Sql::StartNamed, action: "inserting executions", params });
        }
        if !self.special.is_empty() {
            let starts = &self.special;
            let params = vec![
                column(starts, |(_, s)| Instant(s.created_at)),
                column(starts, |(_, s)| ended_at(&s.state)),
                column(starts, |(_, s)| s.deadline_at.map(Instant)),
                column(starts, |(_, s)| matches!(s.state, State::Running { .. }).then_some(worker.0)),
                column(starts, |(_, s)| s.fingerprint.map(u64::cast_signed)),
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
                column(starts, |(_, s)| s.active_dedup_id().map(|id| &**id)),
                column(starts, |(_, s)| s.run_timeout.map(stored_millis)),
            ];
            jobs.push(Query { sql: Sql::Start, action: "inserting executions", params });
        }
        if !self.attributes.is_empty() {
            let params = vec![
                column(&self.attributes, |(key, _, _)| uuid(*key)),
                column(&self.attributes, |(_, name, _)| *name),
                column(&self.attributes, |(_, _, value)| *value),
            ];
            jobs.push(Query { sql: Sql::Attribute, action: "inserting attributes", params });
        }
    }
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
    if start.is_self_claiming() {
        return Kind::Yielding;
    }
    if !is_root || !is_common || start.deadline_at.is_some() {
        return Kind::Special;
    }
    if start.app_version.is_some() || start.placement.is_some() {
        return Kind::Special;
    }
    match &start.workflow_id {
        None if start.fingerprint.is_none() && !start.is_guarded => Kind::Plain,
        Some(_) => Kind::Named,
        _ => Kind::Special,
    }
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

/// What it alone has there, if it has that.
pub(crate) fn held(start: &Start) -> Option<(&str, &str)> {
    Some((queue(start)?, &**start.active_dedup_id()?))
}

/// When it may begin.
fn due_at(start: &Start) -> Timestamp {
    match start.state {
        State::Scheduled { due_at } => due_at,
        _ => start.created_at,
    }
}

/// The queue that it stands in, if that is not the default one.
pub(crate) fn queue(start: &Start) -> Option<&str> {
    start.placement.as_ref().map(|ticket| &*ticket.queue)
}

fn queue_key(start: &Start) -> Option<&str> {
    start.placement.as_ref().map(|ticket| &*ticket.key).filter(|key| !key.is_empty())
}

fn priority(start: &Start) -> Option<i32> {
    start.placement.as_ref().map(|ticket| ticket.priority).filter(|priority| *priority != 0)
}
