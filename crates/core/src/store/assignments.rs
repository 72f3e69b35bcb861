//! [`Assignments`]: the rows of a store's table `assignments`, and which of their executions still run.
//!
//! Every flush that starts running executions, and every claim, writes one row that lists these executions: an
//! *assignment*. A takeover finds what a dead worker ran by the assignments of that worker alone. An assignment may list
//! executions that do not run, or no longer run. The row of the execution itself decides.
//!
//! A worker deletes an assignment once none of its executions runs. If few of them still run, the worker moves these
//! few to a new row. So the assignments of a worker list at most a constant multiple of the executions that it runs.

use std::collections::{HashMap, HashSet};

use super::{Flush, Outcome, State, WorkerId, Write};
use crate::key::{Key, KeyMap};
use crate::sync::Mutex;

/// An assignment is sparse if at most one in this number of its executions still runs.
const SPARSE_DIVISOR: u32 = 4;
/// Number of tidyings after which even a small or dense assignment that still has few executions is merged with others.
const TIDYINGS_BEFORE_MERGE: u32 = 8;
/// Number of running executions up to which an old assignment counts as small.
const SMALL_ASSIGNMENT: u32 = 64;
/// Maximum number of executions that one tidying moves.
const MAX_MOVED: usize = 10_000;
/// Number of the lane in the rows that a tidying writes. No lane for flushes or claims has this number.
const MERGED_LANE: u16 = i16::MAX as u16;

/// The identity of an assignment among those of its worker: the lane and number of its flush or claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AssignmentId {
    /// The lane of the flush or claim.
    pub lane: u16,
    /// The number of the flush or claim on that lane.
    pub number: i64,
}

/// Changes of a worker's rows in `assignments`, to be made in one transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tidying {
    /// The row to insert, unless it exists, with the executions that it lists; `None` to insert none.
    pub merged: Option<(AssignmentId, Vec<Key>)>,
    /// The rows to delete.
    pub deleted: Vec<AssignmentId>,
}

/// The assignments of the workers that a store has registered.
#[derive(Debug, Default)]
pub struct Assignments(Mutex<HashMap<WorkerId, WorkerAssignments>>);

#[derive(Debug, Default)]
struct WorkerAssignments {
    /// The running executions, each with its assignment.
    running: KeyMap<AssignmentId>,
    /// The executions that were assigned again before their release was recorded, with the number of these releases: a
    /// claim may get its reply before the flush that made the execution claimable.
    late_releases: KeyMap<u32>,
    rows: HashMap<AssignmentId, Row>,
    /// Assignments of which no execution runs.
    finished: HashSet<AssignmentId>,
    merges: i64,
    /// The tidying that was begun, until its result is known.
    pending: Option<Tidying>,
}

#[derive(Debug)]
struct Row {
    listed: Vec<Key>,
    running: u32,
    age: u32,
}

impl Row {
    fn new(listed: Vec<Key>) -> Self {
        Self { running: listed.len() as u32, listed, age: 0 }
    }

    fn is_sparse(&self) -> bool {
        self.running <= self.listed.len() as u32 / SPARSE_DIVISOR
    }
}

impl Assignments {
    /// Records which executions a durable flush has set running, and which it has released.
    pub fn record_flush(&self, flush: &Flush, outcomes: &[(usize, Outcome)]) {
        if flush.writes.iter().any(|write| started_key(write).is_some()) {
            let id = AssignmentId { lane: flush.lane, number: flush.number };
            self.add(flush.worker, id, started_keys(flush, outcomes));
        }
        let released = flush.writes.iter().filter_map(|write| match write {
            Write::Transition(change) if !matches!(change.state, State::Running { .. }) => Some(change.key),
            _ => None,
        });
        self.release(flush.worker, released);
    }

    /// Records a durable assignment: all of `keys` run.
    pub fn add(&self, worker: WorkerId, id: AssignmentId, keys: impl IntoIterator<Item = Key>) {
        self.0.lock().entry(worker).or_default().add(id, keys);
    }

    /// Records that executions no longer run. Ignores executions without an assignment.
    pub fn release(&self, worker: WorkerId, keys: impl IntoIterator<Item = Key>) {
        let mut workers = self.0.lock();
        let Some(assignments) = workers.get_mut(&worker).filter(|it| !it.running.is_empty()) else { return };
        for key in keys {
            assignments.release(&key);
        }
    }

    /// Records an assignment that was found in the database, with the executions of it that run. A claim without a reply
    /// leaves such an assignment. Does nothing if the assignment is known, or if one of the executions runs by another
    /// assignment: its release is not reported yet, so only the row in the database lists the later run.
    pub fn adopt(&self, worker: WorkerId, id: AssignmentId, running: impl IntoIterator<Item = Key>) {
        let mut workers = self.0.lock();
        let assignments = workers.entry(worker).or_default();
        let is_pending = assignments.pending.as_ref().is_some_and(|pending| pending.deleted.contains(&id));
        let running: Vec<Key> = running.into_iter().collect();
        let runs_elsewhere = |key| assignments.running.get(key).is_some_and(|other| *other != id);
        if !is_pending && !running.iter().any(runs_elsewhere) {
            assignments.add(id, running);
        }
    }

    /// Forgets a worker whose registration has ended.
    pub fn remove_worker(&self, worker: WorkerId) {
        self.0.lock().remove(&worker);
    }

    /// Begins a tidying, and returns its changes; `None` if there is nothing to change. Returns the same changes until
    /// [`end_tidying`](Self::end_tidying), because their result may be unknown.
    pub fn begin_tidying(&self, worker: WorkerId) -> Option<Tidying> {
        self.0.lock().get_mut(&worker)?.begin_tidying()
    }

    /// Records that the changes of the tidying are durable.
    pub fn end_tidying(&self, worker: WorkerId) {
        if let Some(assignments) = self.0.lock().get_mut(&worker) {
            assignments.pending = None;
        }
    }
}

/// Returns the executions that a flush with these outcomes has set running.
pub fn started_keys(flush: &Flush, outcomes: &[(usize, Outcome)]) -> Vec<Key> {
    // an execution that existed already is listed by the transaction that set it running
    let losers: HashSet<usize> =
        outcomes.iter().filter(|(_, outcome)| *outcome != Outcome::Applied).map(|(i, _)| *i).collect();
    let writes = flush.writes.iter().enumerate().filter(|(i, _)| !losers.contains(i));
    writes.filter_map(|(_, write)| started_key(write)).collect()
}

/// Returns the executions that a flush sets running unless their Starts lose or are queued.
pub fn starting_keys(flush: &Flush) -> Vec<Key> {
    flush.writes.iter().filter_map(started_key).collect()
}

fn started_key(write: &Write) -> Option<Key> {
    match write {
        Write::Start(start) if matches!(start.state, State::Running { .. }) => Some(start.key),
        _ => None,
    }
}

impl WorkerAssignments {
    fn add(&mut self, id: AssignmentId, keys: impl IntoIterator<Item = Key>) {
        if self.rows.contains_key(&id) || self.finished.contains(&id) {
            // it was adopted
            return;
        }
        let listed: Vec<Key> = keys.into_iter().collect();
        if listed.is_empty() {
            self.finished.insert(id);
            return;
        }
        for key in &listed {
            if let Some(former) = self.running.insert(*key, id) {
                *self.late_releases.entry(*key).or_default() += 1;
                self.count_release(former);
            }
        }
        self.rows.insert(id, Row::new(listed));
    }

    fn release(&mut self, key: &Key) {
        if !self.late_releases.is_empty()
            && let Some(count) = self.late_releases.get_mut(key)
        {
            *count -= 1;
            if *count == 0 {
                self.late_releases.remove(key);
            }
            return;
        }
        if let Some(id) = self.running.remove(key) {
            self.count_release(id);
        }
    }

    fn count_release(&mut self, id: AssignmentId) {
        if let Some(row) = self.rows.get_mut(&id) {
            row.running -= 1;
            if row.running == 0 {
                self.rows.remove(&id);
                self.finished.insert(id);
            }
        }
    }

    fn begin_tidying(&mut self) -> Option<Tidying> {
        if self.pending.is_none() {
            let mut deleted: Vec<AssignmentId> = self.finished.drain().collect();
            let mut sparse = Vec::new();
            let mut moved = 0;
            for (id, row) in &mut self.rows {
                row.age = row.age.saturating_add(1);
                let is_small = row.age > TIDYINGS_BEFORE_MERGE && row.running <= SMALL_ASSIGNMENT;
                if (row.is_sparse() || is_small) && moved + row.running as usize <= MAX_MOVED {
                    moved += row.running as usize;
                    sparse.push(*id);
                }
            }
            // a single small row would only be written again
            if let [only] = sparse[..]
                && self.rows.get(&only).is_some_and(|row| !row.is_sparse())
            {
                sparse.clear();
            }
            let merged = (!sparse.is_empty()).then(|| self.merge(&sparse));
            deleted.extend(sparse);
            deleted.sort_unstable();
            if deleted.is_empty() {
                return None;
            }
            self.pending = Some(Tidying { merged, deleted });
        }
        self.pending.clone()
    }

    /// Moves the executions of sparse assignments to a new one.
    fn merge(&mut self, sparse: &[AssignmentId]) -> (AssignmentId, Vec<Key>) {
        self.merges += 1;
        let id = AssignmentId { lane: MERGED_LANE, number: self.merges };
        let mut keys = Vec::new();
        for former in sparse {
            let listed = self.rows.remove(former).map(|row| row.listed).unwrap_or_default();
            keys.extend(listed.into_iter().filter(|key| self.running.get(key) == Some(former)));
        }
        keys.sort_unstable();
        for key in &keys {
            self.running.insert(*key, id);
        }
        self.rows.insert(id, Row::new(keys.clone()));
        (id, keys)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKER: WorkerId = WorkerId(1);

    fn id(number: i64) -> AssignmentId {
        AssignmentId { lane: 0, number }
    }

    fn keys(count: usize) -> Vec<Key> {
        (0..count).map(|_| Key::mint(0)).collect()
    }

    #[test]
    fn assignment_is_deleted_once_nothing_runs() {
        let (assignments, keys) = (Assignments::default(), keys(2));
        assignments.add(WORKER, id(1), keys.clone());
        assignments.release(WORKER, [keys[0]]);
        assert_eq!(assignments.begin_tidying(WORKER), None);
        // an execution is released once, whatever is reported
        assignments.release(WORKER, [keys[0], Key::mint(0), keys[1]]);
        let tidying = Tidying { merged: None, deleted: vec![id(1)] };
        assert_eq!(assignments.begin_tidying(WORKER), Some(tidying.clone()));
        assignments.add(WORKER, id(2), []);
        assert_eq!(assignments.begin_tidying(WORKER), Some(tidying), "until the result is known");
        assignments.end_tidying(WORKER);
        assert_eq!(assignments.begin_tidying(WORKER).unwrap().deleted, [id(2)]);
        assignments.end_tidying(WORKER);
        assert_eq!(assignments.begin_tidying(WORKER), None);
    }

    #[test]
    fn executions_of_sparse_assignments_are_moved() {
        let assignments = Assignments::default();
        let mut remaining = Vec::new();
        for number in 1..=100 {
            let keys = keys(40);
            assignments.add(WORKER, id(number), keys.clone());
            assignments.release(WORKER, keys[1..].to_vec());
            remaining.push(keys[0]);
        }
        remaining.sort_unstable();
        let Tidying { merged, deleted } = assignments.begin_tidying(WORKER).unwrap();
        assignments.end_tidying(WORKER);
        let (merged, moved) = merged.unwrap();
        assert_eq!((moved, deleted.len()), (remaining.clone(), 100));
        assignments.release(WORKER, remaining);
        assert_eq!(assignments.begin_tidying(WORKER).unwrap().deleted, [merged]);
    }

    #[test]
    fn old_small_assignments_are_merged() {
        let assignments = Assignments::default();
        let mut running = keys(3);
        assignments.add(WORKER, id(1), [running[0]]);
        assignments.add(WORKER, id(2), [running[1], running[2]]);
        let tidyings = (0..TIDYINGS_BEFORE_MERGE * 4).filter_map(|_| {
            let tidying = assignments.begin_tidying(WORKER);
            assignments.end_tidying(WORKER);
            tidying
        });
        let tidyings: Vec<Tidying> = tidyings.collect();
        running.sort_unstable();
        assert_eq!(tidyings.len(), 1, "{tidyings:?}");
        assert_eq!(tidyings[0].deleted, [id(1), id(2)]);
        assert_eq!(tidyings[0].merged.as_ref().unwrap().1, running);
    }

    #[test]
    fn late_release_does_not_end_a_later_assignment() {
        let (assignments, keys) = (Assignments::default(), keys(1));
        assignments.add(WORKER, id(1), keys.clone());
        // the claim's reply comes before the reply of the flush that suspended the execution
        assignments.add(WORKER, id(2), keys.clone());
        assert_eq!(assignments.begin_tidying(WORKER).unwrap().deleted, [id(1)]);
        assignments.end_tidying(WORKER);
        assignments.release(WORKER, keys.clone());
        assert_eq!(assignments.begin_tidying(WORKER), None, "the release of the first assignment");
        assignments.release(WORKER, keys);
        assert_eq!(assignments.begin_tidying(WORKER).unwrap().deleted, [id(2)]);
    }

    #[test]
    fn assignment_with_an_unreported_release_is_not_adopted() {
        let (assignments, keys) = (Assignments::default(), keys(2));
        assignments.add(WORKER, id(1), [keys[0]]);
        // a claim without a reply has listed the execution again, beside another one
        assignments.adopt(WORKER, id(2), keys.clone());
        assignments.release(WORKER, [keys[0]]);
        assert_eq!(assignments.begin_tidying(WORKER).unwrap().deleted, [id(1)]);
        assignments.end_tidying(WORKER);
        assignments.adopt(WORKER, id(2), keys.clone());
        assignments.release(WORKER, [keys[1]]);
        assert_eq!(assignments.begin_tidying(WORKER), None, "the first execution runs");
        assignments.release(WORKER, [keys[0]]);
        assert_eq!(assignments.begin_tidying(WORKER).unwrap().deleted, [id(2)]);
    }

    #[test]
    fn known_assignment_is_not_adopted() {
        let (assignments, keys) = (Assignments::default(), keys(1));
        assignments.add(WORKER, id(1), keys.clone());
        assignments.adopt(WORKER, id(1), keys.clone());
        assignments.release(WORKER, keys);
        assert_eq!(assignments.begin_tidying(WORKER).unwrap().deleted, [id(1)]);
        assignments.adopt(WORKER, id(1), []);
        assignments.end_tidying(WORKER);
        assert_eq!(assignments.begin_tidying(WORKER), None, "not adopted while its deletion is pending");
        assignments.adopt(WORKER, id(2), []);
        assert_eq!(assignments.begin_tidying(WORKER).unwrap().deleted, [id(2)]);
    }
}
