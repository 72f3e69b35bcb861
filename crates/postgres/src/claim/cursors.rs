//! [`ClaimCursors`]: the positions in `ready` from which claims continue to scan.
//!
//! Claimed rows leave dead entries in the index of `ready`. Until vacuum removes them, every scan from the start of a
//! queue steps over all of them. So a claim assumes that the routes from which the previous claim has taken
//! executions still have ready ones, and does not look these routes up in the index. The claim also skips the part of a
//! queue key that was claimed more than a moment ago. New rows of that queue key come after the cursor. Rows of executions that
//! have begun before, and rows with a more urgent priority, come before the cursor and have scan ranges of their own. A
//! scan can only miss a row that was committed long after the row received its `seq`. Therefore a claim scans the whole
//! queue key from time to time.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use stepfast_core::clock::Timestamp;
use stepfast_core::queue::QueueKey;
use stepfast_core::store::Route;
use stepfast_core::sync::Mutex;

/// The age from which scans skip a claimed position. A row that is committed at most this long after it received its
/// `seq` is found at once.
const LATE_COMMIT_SLACK: Duration = Duration::from_millis(250);
/// The interval between full scans of a queue key. While claims run, a row that is committed even later is found within
/// this time.
const FULL_SCAN_INTERVAL: Duration = Duration::from_secs(1);
/// The maximum number of queue keys with cursors. When a further key needs one, all cursors are dropped.
const MAX_KEYS: usize = 10_000;
/// The maximum number of priorities with a cursor in one queue key. Further priorities have no cursor.
const MAX_PRIORITIES_PER_KEY: usize = 16;

/// The position of a row of `ready` within its queue key: its priority and its `seq`.
pub(crate) type ReadyPosition = (i32, i64);

/// The scan cursors of all queues, shared by the claims of a store.
#[derive(Debug, Default)]
pub(crate) struct ClaimCursors(Mutex<CursorState>);

#[derive(Debug, Default)]
struct CursorState {
    /// The routes from which the last claim has taken executions, in order.
    recent_routes: Vec<Route>,
    key_cursors: HashMap<QueueKey, KeyCursor>,
}

#[derive(Debug)]
struct KeyCursor {
    /// The time of the last full scan of the key.
    full_scan_at: Timestamp,
    /// The cursors by priority.
    priorities: BTreeMap<i32, Cursor>,
}

/// The progress of claims through one priority of a key, by `seq`.
#[derive(Debug)]
struct Cursor {
    /// The position from which scans begin. Its claim was longer ago than [`LATE_COMMIT_SLACK`].
    scan_from: Option<i64>,
    /// The time of a claim, and a position that was claimed by then. The position becomes `scan_from` after the slack.
    pending: (Timestamp, i64),
    /// The highest claimed position.
    newest: i64,
}

/// The index ranges of a key that a claim scans.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ScanPlan {
    /// The ranges, in index order.
    pub(crate) ranges: Vec<ScanRange>,
    /// Whether the plan covers the whole key.
    pub(crate) is_full: bool,
}

/// One index range of a [`ScanPlan`]; bounds are inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ScanRange {
    /// The first and the last priority.
    pub(crate) priorities: (i32, i32),
    /// The first and the last `seq`, for a range of a single priority. `None` means every `seq`.
    pub(crate) seqs: Option<(i64, i64)>,
}

const FULL_RANGE: ScanRange = ScanRange { priorities: (i32::MIN, i32::MAX), seqs: None };

impl ClaimCursors {
    /// Returns the routes from which the last claim has taken executions, in order.
    pub(crate) fn recent_routes(&self) -> Vec<Route> {
        self.0.lock().recent_routes.clone()
    }

    /// Returns the ranges of a key that a claim has to scan.
    pub(crate) fn plan_scan(&self, queue: &Arc<str>, key: &Arc<str>, now: Timestamp) -> ScanPlan {
        let state = self.0.lock();
        let cursor = state.key_cursors.get(&(queue.clone(), key.clone()));
        match cursor.filter(|cursor| is_recent(cursor.full_scan_at, now, FULL_SCAN_INTERVAL)) {
            Some(cursor) => ScanPlan { ranges: cursor.scan_ranges(), is_full: false },
            None => ScanPlan { ranges: vec![FULL_RANGE], is_full: true },
        }
    }

    /// Records a successful claim: its scans, and the positions that it has claimed. Routes of queues for which
    /// `is_serial` returns true are not recorded as recent. A claim must find a ready execution in such a queue before
    /// it reads the queue's limits.
    pub(crate) fn record_scan(
        &self,
        scans: Vec<(QueueKey, ScanPlan)>,
        claimed: Vec<(Route, QueueKey, ReadyPosition)>,
        is_serial: impl Fn(&str) -> bool,
        now: Timestamp,
    ) {
        let mut state = self.0.lock();
        let CursorState { recent_routes, key_cursors } = &mut *state;
        if key_cursors.len() > MAX_KEYS {
            key_cursors.clear();
        }
        for (queue_key, _) in scans.into_iter().filter(|(_, plan)| plan.is_full) {
            let cursor = key_cursors
                .entry(queue_key)
                .or_insert_with(|| KeyCursor { full_scan_at: now, priorities: BTreeMap::new() });
            cursor.full_scan_at = now;
        }
        recent_routes.clear();
        for (route, queue_key, position) in claimed {
            if recent_routes.last() != Some(&route) && !is_serial(route.queue()) {
                recent_routes.push(route);
            }
            if let Some(cursor) = key_cursors.get_mut(&queue_key) {
                cursor.record_claimed(position, now);
            }
        }
        recent_routes.sort_unstable();
        recent_routes.dedup();
    }

    /// Forgets the recent routes, after a claim that failed or returned nothing.
    pub(crate) fn forget_recent_routes(&self) {
        self.0.lock().recent_routes.clear();
    }
}

impl KeyCursor {
    fn scan_ranges(&self) -> Vec<ScanRange> {
        let mut next = Some(i32::MIN);
        let mut ranges = Vec::with_capacity(self.priorities.len() * 3 + 1);
        for (&priority, cursor) in &self.priorities {
            let (Some(scan_from), Some(first)) = (cursor.scan_from, next) else { continue };
            if let Some(last) = priority.checked_sub(1).filter(|last| *last >= first) {
                ranges.push(ScanRange { priorities: (first, last), seqs: None });
            }
            // executions that have begun before have a seq below 0
            for seqs in [(i64::MIN, -1), (scan_from, i64::MAX)] {
                ranges.push(ScanRange { priorities: (priority, priority), seqs: Some(seqs) });
            }
            next = priority.checked_add(1);
        }
        ranges.extend(next.map(|first| ScanRange { priorities: (first, i32::MAX), seqs: None }));
        ranges
    }

    fn record_claimed(&mut self, (priority, seq): ReadyPosition, now: Timestamp) {
        if seq < 0
            || self.priorities.len() >= MAX_PRIORITIES_PER_KEY && !self.priorities.contains_key(&priority)
        {
            return;
        }
        let cursor = self.priorities.entry(priority).or_insert(Cursor {
            scan_from: None,
            pending: (now, seq),
            newest: seq,
        });
        if !is_recent(cursor.pending.0, now, LATE_COMMIT_SLACK) {
            cursor.scan_from = Some(cursor.pending.1);
            cursor.pending = (now, cursor.newest);
        }
        cursor.newest = cursor.newest.max(seq);
    }
}

/// Whether `since` is less than `duration` ago; false if the clock was set back.
fn is_recent(since: Timestamp, now: Timestamp, duration: Duration) -> bool {
    since <= now && now.since(since) < duration
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue_key() -> QueueKey {
        ("mail".into(), "".into())
    }

    fn claim(cursors: &ClaimCursors, positions: &[ReadyPosition], now: Timestamp) -> ScanPlan {
        let (queue, key) = queue_key();
        let plan = cursors.plan_scan(&queue, &key, now);
        let route = || Route::from_text("order\u{1}\u{1}mail");
        let positions = positions.iter().map(|position| (route(), queue_key(), *position)).collect();
        cursors.record_scan(vec![(queue_key(), plan.clone())], positions, |_| false, now);
        plan
    }

    fn priorities(first: i32, last: i32) -> ScanRange {
        ScanRange { priorities: (first, last), seqs: None }
    }

    fn seqs(priority: i32, first: i64, last: i64) -> ScanRange {
        ScanRange { priorities: (priority, priority), seqs: Some((first, last)) }
    }

    #[test]
    fn scan_skips_rows_claimed_before_the_slack() {
        let (cursors, mut now) = (ClaimCursors::default(), Timestamp::from_micros(0));
        let full = ScanPlan { ranges: vec![FULL_RANGE], is_full: true };
        assert_eq!(claim(&cursors, &[(0, 1), (0, 9)], now), full);
        assert_eq!(cursors.recent_routes().iter().map(Route::queue).collect::<Vec<_>>(), ["mail"]);
        now = now.plus(LATE_COMMIT_SLACK);
        assert_eq!(claim(&cursors, &[(0, 12), (1, 3)], now).ranges, [FULL_RANGE]);
        let (start, end) = (i64::MIN, i64::MAX);
        // more urgent rows, and rows of executions that have begun before, come before the cursor
        let (before, after) = (priorities(i32::MIN, -1), priorities(1, i32::MAX));
        assert_eq!(
            claim(&cursors, &[(0, -7)], now).ranges,
            [before, seqs(0, start, -1), seqs(0, 1, end), after]
        );
        now = now.plus(LATE_COMMIT_SLACK);
        claim(&cursors, &[(0, 13), (1, 4), (i32::MAX, 2)], now);
        let (zero, one) = ([seqs(0, start, -1), seqs(0, 9, end)], [seqs(1, start, -1), seqs(1, 3, end)]);
        let two = [&[before], &zero[..], &one, &[priorities(2, i32::MAX)]].concat();
        assert_eq!(claim(&cursors, &[], now), ScanPlan { ranges: two.clone(), is_full: false });
        assert!(cursors.recent_routes().is_empty());
        now = now.plus(LATE_COMMIT_SLACK);
        claim(&cursors, &[(i32::MAX, 5)], now);
        let last = [priorities(2, i32::MAX - 1), seqs(i32::MAX, start, -1), seqs(i32::MAX, 2, end)];
        assert_eq!(
            cursors.plan_scan(&queue_key().0, &queue_key().1, now).ranges,
            [&two[..5], &last].concat()
        );
    }

    #[test]
    fn full_scan_runs_once_per_interval() {
        let (cursors, mut now) = (ClaimCursors::default(), Timestamp::from_micros(0));
        let mut full_scans = 0;
        for seq in 0..1_000 {
            full_scans += u32::from(claim(&cursors, &[(0, seq)], now).is_full);
            now = now.plus(Duration::from_millis(10));
        }
        assert_eq!(full_scans, 10);
    }
}
