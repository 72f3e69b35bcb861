//! [`Windows`]: which executions workers run that only their keys tell.
//!
//! An entry in the index of owners costs about as much as the row itself, and again when the execution ends; most end
//! within moments. So a plain Start has none: its row says in `started_by` who started it, and whoever takes over
//! finds it by its key. Every worker has a window, a range of keys that its registration tells; a row that is running
//! under its `started_by` has a key in that worker's window, always. Three rules keep that true:
//!
//! - What is started with a key outside the window is entered in the index at once.
//! - The window's start goes up with the renewals, but never beyond what runs under `started_by`, or is on its way.
//! - What still runs after a few renewals is entered in the index, which lets the window go on.
//!
//! What is claimed is not entered in the index either, and may be of any age: one row in `claims` says what a claim took,
//! and goes away once all of that has ended or, after as many renewals, is entered.
//!
//! The registration's window may lag behind the one in memory in its start, and never in its end. That holds across
//! crashes of the server too, also where it does not wait for its log: the log keeps the order of commits.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use stepfast_core::key::{Key, KeyMap};
use stepfast_core::store::{Flush, Outcome, WorkerId, Write};

/// How far the window reaches ahead of the clock, in milliseconds: for so long workers whose renewals fail have one.
const WINDOW_LEAD_MS: i64 = 3_000;

/// How far its start stays behind the clock, in milliseconds: keys are minted a little before they are sent.
const WINDOW_LAG_MS: i64 = 1_000;

/// After how many renewals what was started is entered in the index of owners: what sleeps is suspended before, after
/// 5 s.
const RENEWALS_BEFORE_INDEXING: u64 = 6;

/// How many are entered at once, so that the next renewal is not late.
const MAX_INDEXED_PER_RENEWAL: usize = 10_000;

/// The windows of this store's workers.
#[derive(Debug, Default)]
pub(crate) struct Ownership(Mutex<HashMap<WorkerId, WorkerOwnership>>);

#[derive(Debug)]
struct WorkerOwnership {
    window: Range<Key>,
    renewals: u64,
    /// What the last flush of a lane starts, unless it is known to have landed or to have failed.
    in_flight: HashMap<u16, Vec<Key>>,
    /// What runs, and after how many renewals it was started.
    running: KeyMap<u64>,
    /// The same of what claims have taken.
    claimed: KeyMap<u64>,
    /// Claims whose rows are there, with their number and after how many renewals they were.
    claim_rows: VecDeque<(i64, u64)>,
    /// Claims that may have happened.
    uncertain_claims: Vec<i64>,
}

/// What a renewal does about a window.
#[derive(Debug, Default)]
pub(crate) struct WindowRenewal {
    /// What the registration is to say; `None` of a worker that registered with another store.
    pub window: Option<Range<Key>>,
    /// What is to be entered in the index of owners.
    pub to_index: Vec<Key>,
    /// Claims of which only the database knows by now whether they have happened, and what they took.
    pub uncertain_claims: Vec<i64>,
}

/// The window that a worker registers with.
pub(crate) fn current_window() -> Range<Key> {
    let now = Key::mint(0);
    shift_key(now, -WINDOW_LAG_MS)..shift_key(now, WINDOW_LEAD_MS)
}

/// The lowest key of a moment so many milliseconds after that of `key`.
fn shift_key(key: Key, by_ms: i64) -> Key {
    let ms = (key.as_u128() >> 80) as u64;
    Key::from_bytes((u128::from(ms.saturating_add_signed(by_ms)) << 80).to_be_bytes())
}

/// Windows that overlap as one, with the workers that have them.
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
    /// It is known of these claims now whether they have happened.
    fn resolve_claims(&mut self, numbers: &[i64]) {
        self.uncertain_claims.retain(|unsure| !numbers.contains(unsure));
    }
}

impl Ownership {
    fn with_worker<R>(&self, worker: WorkerId, f: impl FnOnce(&mut WorkerOwnership) -> R) -> Option<R> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_mut(&worker).map(f)
    }

    /// A worker has registered with this window.
    pub(crate) fn add_worker(&self, worker: WorkerId, keys: Range<Key>) {
        let window = WorkerOwnership {
            window: keys,
            renewals: 0,
            in_flight: HashMap::new(),
            running: KeyMap::default(),
            claimed: KeyMap::default(),
            claim_rows: VecDeque::new(),
            uncertain_claims: Vec::new(),
        };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(worker, window);
    }

    /// A worker is gone.
    pub(crate) fn remove_worker(&self, worker: WorkerId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&worker);
    }

    /// Before every try of a flush: only what the window covers is started without an entry in the index. The window
    /// stays on it until [`landed`](Self::landed) or [`failed`](Self::failed), for good if neither is ever known.
    /// `restrict` is called once, with the window, and returns what is started without an entry in the index.
    pub(crate) fn begin_flush(&self, flush: &Flush, restrict: &mut dyn FnMut(&Range<Key>) -> Vec<Key>) {
        // under the lock: a renewal in between would move the window
        let entered = self.with_worker(flush.worker, |window| {
            let sent = restrict(&window.window);
            window.in_flight.insert(flush.lane, sent);
        });
        if entered.is_none() {
            restrict(&(Key::default()..Key::default()));
        }
    }

    /// The last flush of a lane is durable.
    ///
    /// `released` are the executions that do not run any more since the flush.
    pub(crate) fn record_flush(
        &self,
        flush: &Flush,
        released: impl Iterator<Item = Key>,
        outcomes: &[(usize, Outcome)],
    ) {
        // a Start whose id is another execution's has started nothing, and what is queued does not run
        let lost = outcomes.iter().filter_map(|(i, outcome)| match (flush.writes.get(*i), outcome) {
            (Some(Write::Start(start)), Outcome::Duplicate(existing)) if existing.key != start.key => {
                Some(start.key)
            }
            (Some(Write::Start(start)), Outcome::Queued | Outcome::Full) => Some(start.key),
            _ => None,
        });
        self.with_worker(flush.worker, |window| {
            let (sent, renewals) = (window.in_flight.remove(&flush.lane).unwrap_or_default(), window.renewals);
            window.running.extend(sent.into_iter().map(|key| (key, renewals)));
            if !window.running.is_empty() || !window.claimed.is_empty() {
                for key in released.chain(lost) {
                    if window.running.remove(&key).is_none() {
                        window.claimed.remove(&key);
                    }
                }
            }
        });
    }

    /// Before a claim is committed: until [`claimed`](Self::claimed) or [`unclaimed`](Self::unclaimed) it may have
    /// happened.
    pub(crate) fn begin_claim(&self, worker: WorkerId, number: i64) {
        self.with_worker(worker, |window| window.uncertain_claims.push(number));
    }

    /// A claim is durable.
    pub(crate) fn record_claim(&self, worker: WorkerId, number: i64, keys: impl Iterator<Item = Key>) {
        self.with_worker(worker, |window| {
            window.resolve_claims(&[number]);
            window.claim_rows.push_back((number, window.renewals));
            window.claimed.extend(keys.map(|key| (key, window.renewals)));
        });
    }

    /// A claim has changed nothing and will not.
    pub(crate) fn cancel_claim(&self, worker: WorkerId, number: i64) {
        self.with_worker(worker, |window| window.resolve_claims(&[number]));
    }

    /// Claims that were unsure are known now, with all that they have taken.
    pub(crate) fn record_found_claims(&self, worker: WorkerId, numbers: &[i64], keys: impl Iterator<Item = Key>) {
        self.with_worker(worker, |window| {
            window.resolve_claims(numbers);
            // since when does not matter: it may have ended long since
            window.claimed.extend(keys.map(|key| (key, 0)));
            window.claim_rows.extend(numbers.iter().map(|number| (*number, 0)));
            window.claim_rows.make_contiguous().sort_unstable();
        });
    }

    /// The last of the claims, in their order, whose rows are of no use any more.
    pub(crate) fn take_finished_claims(&self, worker: WorkerId) -> Option<i64> {
        self.with_worker(worker, |window| {
            let first = window.claimed.values().min().copied().unwrap_or(u64::MAX);
            let unsure = window.uncertain_claims.iter().min().copied().unwrap_or(i64::MAX);
            let is_over = |(number, since): &(i64, u64)| {
                *since < first && since + RENEWALS_BEFORE_INDEXING <= window.renewals && *number < unsure
            };
            let over = window.claim_rows.iter().take_while(|claim| is_over(claim)).count();
            window.claim_rows.drain(..over).next_back().map(|(number, _)| number)
        })
        .flatten()
    }

    /// The last flush of a lane has changed nothing and will not.
    pub(crate) fn record_failed_flush(&self, flush: &Flush) {
        self.with_worker(flush.worker, |window| window.in_flight.remove(&flush.lane));
    }

    /// A renewal begins.
    pub(crate) fn begin_renewal(&self, worker: WorkerId) -> WindowRenewal {
        let now = current_window();
        let sight = self.with_worker(worker, |window| {
            window.renewals += 1;
            let lowest = window.in_flight.values().flatten().chain(window.running.keys()).min().copied();
            let start = lowest.map_or(now.start, |lowest| lowest.min(now.start));
            // never back, as the clock may be
            window.window.start = window.window.start.max(start);
            let keys = window.window.start..window.window.end.max(now.end);
            let all = window.running.iter().chain(&window.claimed);
            let old = all.filter(|(_, since)| **since + RENEWALS_BEFORE_INDEXING <= window.renewals);
            let mut old: Vec<Key> = old.map(|(key, _)| *key).take(MAX_INDEXED_PER_RENEWAL).collect();
            old.sort_unstable();
            // a claim after it has waited for its end
            let last = window.claim_rows.back().map_or(0, |(number, _)| *number);
            let unsure = window.uncertain_claims.iter().copied().filter(|number| *number < last).collect();
            WindowRenewal { window: Some(keys), to_index: old, uncertain_claims: unsure }
        });
        sight.unwrap_or_default()
    }

    /// The registration says so now.
    pub(crate) fn set_window_end(&self, worker: WorkerId, end: Key) {
        self.with_worker(worker, |window| window.window.end = end);
    }

    /// All of these but `left` are in the index of owners by now, or have ended.
    pub(crate) fn record_indexed(&self, worker: WorkerId, old: &[Key], left: &HashSet<Key>) {
        self.with_worker(worker, |window| {
            for key in old.iter().filter(|key| !left.contains(key)) {
                window.running.remove(key);
                window.claimed.remove(key);
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
        let merged = merge_windows(&[window(4, 30, 40), window(1, 0, 20), window(2, 5, 7), window(3, 19, 25)]);
        assert_eq!(merged, [(vec![1, 2, 3], key(0)..key(25)), (vec![4], key(30)..key(40))]);
    }

    #[test]
    fn window_start_never_moves_back() {
        let (windows, worker) = (Ownership::default(), WorkerId(1));
        let ahead = shift_key(Key::mint(0), 3_600_000)..shift_key(Key::mint(0), 3_700_000);
        windows.add_worker(worker, ahead.clone());
        assert_eq!(windows.begin_renewal(worker).window, Some(ahead));
    }

    #[test]
    fn shifted_key_follows_the_order_of_time() {
        let key = Key::mint(0);
        assert!(shift_key(key, -1) < key && key < shift_key(key, 1));
        assert_eq!(shift_key(shift_key(key, 5), -5), shift_key(key, 0));
    }
}
