//! [`Ownership`]: the running executions that have no entry in the index of owners.
//!
//! Inserting an entry into the index of owners costs about as much as inserting the row itself. Deleting the entry when
//! the execution ends costs the same again. Most executions end within moments, so a plain Start adds no entry. The row
//! of such a Start names the worker in `started_by`, and a takeover finds the row by its key. Every worker has a
//! *window*: a range of keys, stored with its registration. An execution that runs under `started_by` always has a key
//! in the window of that worker. Three rules ensure this:
//!
//! - A Start with a key outside the window adds an entry to the index at once.
//! - Renewals move the start of the window up, but never beyond an execution that runs under `started_by` or whose
//!   Start is in flight.
//! - Executions that still run after a few renewals are added to the index, so that the window can move on.
//!
//! Claimed executions are not in the index either, and may be of any age. One row of the table `claims` lists the
//! executions of a claim. Executions that still run after the same number of renewals are added to the index. The row
//! is deleted once each of its executions has ended or is in the index.
//!
//! The start of the stored window may lag behind the start of the window in memory, but the end never does. Both rules
//! also hold after a crash of a server whose commits do not wait for the log, because the log keeps their order.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use stepfast_core::key::{Key, KeyMap};
use stepfast_core::store::{Flush, Outcome, WorkerId, Write};

/// Distance from the clock to the window's end, in milliseconds. While a worker's renewals fail, its window stays
/// usable for that time.
const WINDOW_LEAD_MS: i64 = 3_000;

/// Distance from the window's start to the clock, in milliseconds. Keys are minted shortly before their Starts are
/// sent.
const WINDOW_LAG_MS: i64 = 1_000;

/// The number of renewals (one a second) after which an execution that still runs is added to the index of owners.
/// This time is longer than the default of `suspend_after`, 5 s, so executions that only wait are usually suspended
/// before.
const RENEWALS_BEFORE_INDEXING: u64 = 6;

/// The maximum number of executions added to the index at once, so that the next renewal is not late.
const MAX_INDEXED_PER_RENEWAL: usize = 10_000;

/// The windows of this store's workers, and their running executions that are not in the index of owners.
#[derive(Debug, Default)]
pub(crate) struct Ownership(Mutex<HashMap<WorkerId, WorkerOwnership>>);

#[derive(Debug)]
struct WorkerOwnership {
    window: Range<Key>,
    renewals: u64,
    /// The executions that the last flush of each lane starts, while the outcome of that flush is unknown.
    in_flight: HashMap<u16, Vec<Key>>,
    /// Started executions that run. Each has the value of `renewals` at the time of its start.
    running: KeyMap<u64>,
    /// Claimed executions that run. Each has the value of `renewals` at the time of its claim.
    claimed: KeyMap<u64>,
    /// The claims with a row in the table `claims`: the number of each, and the value of `renewals` at the claim.
    claim_rows: VecDeque<(i64, u64)>,
    /// The numbers of claims whose outcome is unknown.
    uncertain_claims: Vec<i64>,
}

/// The changes that a renewal makes to a worker's window and index entries.
#[derive(Debug, Default)]
pub(crate) struct WindowRenewal {
    /// The window to store with the registration; `None` for a worker that another store object has registered.
    pub window: Option<Range<Key>>,
    /// The executions to add to the index of owners, in key order.
    pub to_index: Vec<Key>,
    /// The numbers of claims to look up in the database. The outcome of each claim is settled by now.
    pub uncertain_claims: Vec<i64>,
}

/// Returns the window around the present time, with which a worker registers.
pub(crate) fn current_window() -> Range<Key> {
    let now = Key::mint(0);
    shift_key(now, -WINDOW_LAG_MS)..shift_key(now, WINDOW_LEAD_MS)
}

/// Returns the lowest key of the time `by_ms` milliseconds after the time of `key`.
fn shift_key(key: Key, by_ms: i64) -> Key {
    let ms = (key.as_u128() >> 80) as u64;
    Key::from_bytes((u128::from(ms.saturating_add_signed(by_ms)) << 80).to_be_bytes())
}

/// Merges windows that overlap, and returns each merged window with the ids of its workers.
pub(crate) fn merge_windows(windows: &[(WorkerId, Range<Key>)]) -> Vec<(Vec<i64>, Range<Key>)> {
    let mut windows = windows.to_vec();
    windows.sort_by_key(|(_, window)| window.start);
    let mut merged: Vec<(Vec<i64>, Range<Key>)> = Vec::new();
    for (worker, window) in windows {
        match merged.last_mut() {
            Some((workers, last)) if window.start < last.end => {
                workers.push(worker.0);
                last.end = last.end.max(window.end);
            }
            _ => merged.push((vec![worker.0], window)),
        }
    }
    merged
}

impl WorkerOwnership {
    /// Removes these claims from the uncertain ones, because their outcome is known now.
    fn resolve_claims(&mut self, numbers: &[i64]) {
        self.uncertain_claims.retain(|number| !numbers.contains(number));
    }
}

impl Ownership {
    fn with_worker<R>(&self, worker: WorkerId, f: impl FnOnce(&mut WorkerOwnership) -> R) -> Option<R> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_mut(&worker).map(f)
    }

    /// Adds a worker that has registered with this window.
    pub(crate) fn add_worker(&self, worker: WorkerId, window: Range<Key>) {
        let owned = WorkerOwnership {
            window,
            renewals: 0,
            in_flight: HashMap::new(),
            running: KeyMap::default(),
            claimed: KeyMap::default(),
            claim_rows: VecDeque::new(),
            uncertain_claims: Vec::new(),
        };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(worker, owned);
    }

    /// Removes a worker whose registration has ended.
    pub(crate) fn remove_worker(&self, worker: WorkerId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&worker);
    }

    /// Prepares a try of a flush. Only executions whose keys are in the worker's window may start without an entry in
    /// the index. `restrict` is called once, with the window, and returns the keys of these executions. The window does
    /// not move past them before [`record_flush`](Self::record_flush) or
    /// [`record_failed_flush`](Self::record_failed_flush). For a worker that this store has not registered, the window
    /// is empty.
    pub(crate) fn begin_flush(&self, flush: &Flush, restrict: &mut dyn FnMut(&Range<Key>) -> Vec<Key>) {
        // under the lock: otherwise a renewal could move the window in between
        let prepared = self.with_worker(flush.worker, |owned| {
            let in_flight = restrict(&owned.window);
            owned.in_flight.insert(flush.lane, in_flight);
        });
        if prepared.is_none() {
            restrict(&(Key::default()..Key::default()));
        }
    }

    /// Records that the last flush of a lane is durable. `released`: the keys of executions that no longer run after
    /// the flush.
    pub(crate) fn record_flush(
        &self,
        flush: &Flush,
        released: impl Iterator<Item = Key>,
        outcomes: &[(usize, Outcome)],
    ) {
        // a duplicate Start has started nothing, and the execution of a queued or rejected Start does not run
        let not_started = outcomes.iter().filter_map(|(i, outcome)| match (flush.writes.get(*i), outcome) {
            (Some(Write::Start(start)), Outcome::Duplicate(existing)) if existing.key != start.key => {
                Some(start.key)
            }
            (Some(Write::Start(start)), Outcome::Queued | Outcome::Full) => Some(start.key),
            _ => None,
        });
        self.with_worker(flush.worker, |owned| {
            let (started, renewals) =
                (owned.in_flight.remove(&flush.lane).unwrap_or_default(), owned.renewals);
            owned.running.extend(started.into_iter().map(|key| (key, renewals)));
            if !owned.running.is_empty() || !owned.claimed.is_empty() {
                for key in released.chain(not_started) {
                    if owned.running.remove(&key).is_none() {
                        owned.claimed.remove(&key);
                    }
                }
            }
        });
    }

    /// Notes a claim before the claim is committed. Its outcome counts as unknown until
    /// [`record_claim`](Self::record_claim) or [`cancel_claim`](Self::cancel_claim).
    pub(crate) fn begin_claim(&self, worker: WorkerId, number: i64) {
        self.with_worker(worker, |owned| owned.uncertain_claims.push(number));
    }

    /// Records a durable claim with its executions.
    pub(crate) fn record_claim(&self, worker: WorkerId, number: i64, keys: impl Iterator<Item = Key>) {
        self.with_worker(worker, |owned| {
            owned.resolve_claims(&[number]);
            owned.claim_rows.push_back((number, owned.renewals));
            owned.claimed.extend(keys.map(|key| (key, owned.renewals)));
        });
    }

    /// Records that a claim has changed nothing, and will change nothing.
    pub(crate) fn cancel_claim(&self, worker: WorkerId, number: i64) {
        self.with_worker(worker, |owned| owned.resolve_claims(&[number]));
    }

    /// Records that the outcomes of these uncertain claims were looked up. `keys`: the executions of the claims that
    /// turned out to be committed.
    pub(crate) fn record_found_claims(
        &self,
        worker: WorkerId,
        numbers: &[i64],
        keys: impl Iterator<Item = Key>,
    ) {
        self.with_worker(worker, |owned| {
            owned.resolve_claims(numbers);
            // the time of the claim does not matter: the executions may have ended long ago
            owned.claimed.extend(keys.map(|key| (key, 0)));
            owned.claim_rows.extend(numbers.iter().map(|number| (*number, 0)));
            owned.claim_rows.make_contiguous().sort_unstable();
        });
    }

    /// Removes the oldest claims whose rows in `claims` are no longer needed. Returns the number of the last removed
    /// claim.
    pub(crate) fn take_finished_claims(&self, worker: WorkerId) -> Option<i64> {
        self.with_worker(worker, |owned| {
            let first_unindexed = owned.claimed.values().min().copied().unwrap_or(u64::MAX);
            let first_uncertain = owned.uncertain_claims.iter().min().copied().unwrap_or(i64::MAX);
            let is_finished = |(number, since): &(i64, u64)| {
                *since < first_unindexed
                    && since + RENEWALS_BEFORE_INDEXING <= owned.renewals
                    && *number < first_uncertain
            };
            let finished = owned.claim_rows.iter().take_while(|claim| is_finished(claim)).count();
            owned.claim_rows.drain(..finished).next_back().map(|(number, _)| number)
        })
        .flatten()
    }

    /// Records that the last flush of a lane has changed nothing, and will change nothing.
    pub(crate) fn record_failed_flush(&self, flush: &Flush) {
        self.with_worker(flush.worker, |owned| owned.in_flight.remove(&flush.lane));
    }

    /// Begins a renewal, and returns the changes that the renewal makes.
    pub(crate) fn begin_renewal(&self, worker: WorkerId) -> WindowRenewal {
        let now = current_window();
        let renewal = self.with_worker(worker, |owned| {
            owned.renewals += 1;
            let lowest = owned.in_flight.values().flatten().chain(owned.running.keys()).min().copied();
            let start = lowest.map_or(now.start, |lowest| lowest.min(now.start));
            // the window's start never moves back, although the clock may
            owned.window.start = owned.window.start.max(start);
            let window = owned.window.start..owned.window.end.max(now.end);
            let all = owned.running.iter().chain(&owned.claimed);
            let due = all.filter(|(_, since)| **since + RENEWALS_BEFORE_INDEXING <= owned.renewals);
            let mut to_index: Vec<Key> = due.map(|(key, _)| *key).take(MAX_INDEXED_PER_RENEWAL).collect();
            to_index.sort_unstable();
            // a claim begins only after the claim before it has ended, so the outcomes of all earlier claims are
            // settled
            let last = owned.claim_rows.back().map_or(0, |(number, _)| *number);
            let uncertain = owned.uncertain_claims.iter().copied().filter(|number| *number < last).collect();
            WindowRenewal { window: Some(window), to_index, uncertain_claims: uncertain }
        });
        renewal.unwrap_or_default()
    }

    /// Sets the window's end to the end that the registration in the database has now.
    pub(crate) fn set_window_end(&self, worker: WorkerId, end: Key) {
        self.with_worker(worker, |owned| owned.window.end = end);
    }

    /// Records that the executions of `to_index` are in the index of owners now or have ended, except for those of
    /// `unindexed`.
    pub(crate) fn record_indexed(&self, worker: WorkerId, to_index: &[Key], unindexed: &HashSet<Key>) {
        self.with_worker(worker, |owned| {
            for key in to_index.iter().filter(|key| !unindexed.contains(key)) {
                owned.running.remove(key);
                owned.claimed.remove(key);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_windows_are_merged() {
        let key = |n: u128| Key::from_bytes(n.to_be_bytes());
        let window = |worker, from, to| (WorkerId(worker), key(from)..key(to));
        let merged =
            merge_windows(&[window(4, 30, 40), window(1, 0, 20), window(2, 5, 7), window(3, 19, 25)]);
        assert_eq!(merged, [(vec![1, 2, 3], key(0)..key(25)), (vec![4], key(30)..key(40))]);
    }

    #[test]
    fn window_start_never_moves_back() {
        let (ownership, worker) = (Ownership::default(), WorkerId(1));
        let ahead = shift_key(Key::mint(0), 3_600_000)..shift_key(Key::mint(0), 3_700_000);
        ownership.add_worker(worker, ahead.clone());
        assert_eq!(ownership.begin_renewal(worker).window, Some(ahead));
    }

    #[test]
    fn shifted_key_follows_the_order_of_time() {
        let key = Key::mint(0);
        assert!(shift_key(key, -1) < key && key < shift_key(key, 1));
        assert_eq!(shift_key(shift_key(key, 5), -5), shift_key(key, 0));
    }
}
