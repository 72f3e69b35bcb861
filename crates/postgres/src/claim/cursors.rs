//! [`Heads`]: where queues begin, as claims remember it.
//!
//! What was claimed leaves dead entries in the index of what is ready, and until the server cleans them away whoever
//! looks for the first row of a queue walks through them all. So a claim does not look for a queue that the one before
//! has taken of, and does not walk through what was taken more than a moment ago. What comes behind that place comes by
//! another way: what has begun before and what is more urgent stand in front of it. Only what was committed long after
//! it had got its place could be there: so every now and then a claim walks all the way.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use stepfast_core::clock::Timestamp;
use stepfast_core::sync::Mutex;

/// What was taken so long ago is passed over: what is committed so late is found at once.
const LATE_COMMIT_SLACK: Duration = Duration::from_millis(250);
/// What is committed later than that is found within this time, while there are claims.
const FULL_SCAN_INTERVAL: Duration = Duration::from_secs(1);
/// Of so many keys the heads are kept, and of so many priorities of one.
const MAX_KEYS: usize = 10_000;
const MAX_PRIORITIES_PER_KEY: usize = 16;

/// Where a row of `ready` stands within its key: its priority and its `seq`.
pub(crate) type Place = (i32, i64);

/// A queue, and a key of it.
pub(crate) type Name = (Arc<str>, Arc<str>);

/// The heads of all queues, as far as they are known.
#[derive(Debug, Default)]
pub(crate) struct Heads(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// Queues that the last claim has taken of.
    queues: Vec<Arc<str>>,
    heads: HashMap<Name, Head>,
}

#[derive(Debug)]
struct Head {
    /// When somebody last walked all the way.
    walked_at: Timestamp,
    /// By priority.
    taken: BTreeMap<i32, Taken>,
}

/// How far was taken of a priority, by `seq`.
#[derive(Debug)]
struct Taken {
    /// So far longer ago than [`SLACK`].
    settled: Option<i64>,
    /// So far at this moment: settled once the slack is over.
    at: (Timestamp, i64),
    newest: i64,
}

/// What a claim has to look through of a key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Walk {
    /// In their order.
    pub(crate) steps: Vec<Step>,
    /// It is everything.
    pub(crate) is_whole: bool,
}

/// A part of it, from the first to the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) priorities: (i32, i32),
    /// Of a single priority.
    pub(crate) seqs: Option<(i64, i64)>,
}

const FULL_RANGE: Step = Step { priorities: (i32::MIN, i32::MAX), seqs: None };

impl Heads {
    /// Queues that need not be looked for, in the order of their names.
    pub(crate) fn recent_queues(&self) -> Vec<Arc<str>> {
        self.0.lock().queues.clone()
    }

    /// What is to be looked through of a key.
    pub(crate) fn plan_scan(&self, queue: &Arc<str>, key: &Arc<str>, now: Timestamp) -> Walk {
        let known = self.0.lock();
        let head = known.heads.get(&(queue.clone(), key.clone()));
        match head.filter(|head| is_within(head.walked_at, now, FULL_SCAN_INTERVAL)) {
            Some(head) => Walk { steps: head.steps(), is_whole: false },
            None => Walk { steps: vec![FULL_RANGE], is_whole: true },
        }
    }

    /// A claim is over: it has walked so, and taken what stood there. Of a queue that is `is_serial` it has to be seen
    /// that something is ready, before its limits are asked for more.
    pub(crate) fn record_scan(
        &self,
        walks: Vec<(Name, Walk)>,
        taken: Vec<(Name, Place)>,
        is_serial: impl Fn(&Arc<str>) -> bool,
        now: Timestamp,
    ) {
        let mut known = self.0.lock();
        let Known { queues, heads } = &mut *known;
        if heads.len() > MAX_KEYS {
            heads.clear();
        }
        for (name, _) in walks.into_iter().filter(|(_, walk)| walk.is_whole) {
            let head = heads.entry(name).or_insert_with(|| Head { walked_at: now, taken: BTreeMap::new() });
            head.walked_at = now;
        }
        queues.clear();
        for (name, place) in taken {
            if queues.last() != Some(&name.0) && !is_serial(&name.0) {
                queues.push(name.0.clone());
            }
            if let Some(head) = heads.get_mut(&name) {
                head.take(place, now);
            }
        }
        queues.sort_unstable();
        queues.dedup();
    }

    /// A claim failed, or brought nothing: nothing is known.
    pub(crate) fn forget(&self) {
        self.0.lock().queues.clear();
    }
}

impl Head {
    fn steps(&self) -> Vec<Step> {
        let mut from = Some(i32::MIN);
        let mut steps = Vec::with_capacity(self.taken.len() * 3 + 1);
        for (&priority, taken) in &self.taken {
            let (Some(settled), Some(first)) = (taken.settled, from) else { continue };
            if let Some(last) = priority.checked_sub(1).filter(|last| *last >= first) {
                steps.push(Step { priorities: (first, last), seqs: None });
            }
            // what has begun before has a number below 0
            for seqs in [(i64::MIN, -1), (settled, i64::MAX)] {
                steps.push(Step { priorities: (priority, priority), seqs: Some(seqs) });
            }
            from = priority.checked_add(1);
        }
        steps.extend(from.map(|first| Step { priorities: (first, i32::MAX), seqs: None }));
        steps
    }

    fn take(&mut self, (priority, seq): Place, now: Timestamp) {
        if seq < 0 || self.taken.len() >= MAX_PRIORITIES_PER_KEY && !self.taken.contains_key(&priority) {
            return;
        }
        let taken =
            self.taken.entry(priority).or_insert(Taken { settled: None, at: (now, seq), newest: seq });
        if !is_within(taken.at.0, now, LATE_COMMIT_SLACK) {
            taken.settled = Some(taken.at.1);
            taken.at = (now, taken.newest);
        }
        taken.newest = taken.newest.max(seq);
    }
}

/// True if less than so much has gone by since then. A clock that was set back has gone by.
fn is_within(since: Timestamp, now: Timestamp, duration: Duration) -> bool {
    since <= now && now.since(since) < duration
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name() -> Name {
        ("mail".into(), "".into())
    }

    fn take(heads: &Heads, places: &[Place], now: Timestamp) -> Walk {
        let (queue, key) = name();
        let walk = heads.plan_scan(&queue, &key, now);
        let places = places.iter().map(|place| (name(), *place)).collect();
        heads.record_scan(vec![(name(), walk.clone())], places, |_| false, now);
        walk
    }

    fn between(first: i32, last: i32) -> Step {
        Step { priorities: (first, last), seqs: None }
    }

    fn of(priority: i32, first: i64, last: i64) -> Step {
        Step { priorities: (priority, priority), seqs: Some((first, last)) }
    }

    #[test]
    fn what_was_taken_a_moment_ago_is_passed_over() {
        let (heads, mut now) = (Heads::default(), Timestamp::from_micros(0));
        let whole = Walk { steps: vec![FULL_RANGE], is_whole: true };
        assert_eq!(take(&heads, &[(0, 1), (0, 9)], now), whole);
        assert_eq!(heads.recent_queues(), [name().0]);
        now = now.plus(LATE_COMMIT_SLACK);
        assert_eq!(take(&heads, &[(0, 12), (1, 3)], now).steps, [FULL_RANGE]);
        let (start, end) = (i64::MIN, i64::MAX);
        // what is more urgent, or has begun, stands in front
        let (before, after) = (between(i32::MIN, -1), between(1, i32::MAX));
        assert_eq!(take(&heads, &[(0, -7)], now).steps, [before, of(0, start, -1), of(0, 1, end), after]);
        now = now.plus(LATE_COMMIT_SLACK);
        take(&heads, &[(0, 13), (1, 4), (i32::MAX, 2)], now);
        let (zero, one) = ([of(0, start, -1), of(0, 9, end)], [of(1, start, -1), of(1, 3, end)]);
        let two = [&[before], &zero[..], &one, &[between(2, i32::MAX)]].concat();
        assert_eq!(take(&heads, &[], now), Walk { steps: two.clone(), is_whole: false });
        assert!(heads.recent_queues().is_empty());
        now = now.plus(LATE_COMMIT_SLACK);
        take(&heads, &[(i32::MAX, 5)], now);
        let last = [between(2, i32::MAX - 1), of(i32::MAX, start, -1), of(i32::MAX, 2, end)];
        assert_eq!(heads.plan_scan(&name().0, &name().1, now).steps, [&two[..5], &last].concat());
    }

    #[test]
    fn every_now_and_then_a_claim_walks_all_the_way() {
        let (heads, mut now) = (Heads::default(), Timestamp::from_micros(0));
        let mut whole = 0;
        for seq in 0..1_000 {
            whole += u32::from(take(&heads, &[(0, seq)], now).is_whole);
            now = now.plus(Duration::from_millis(10));
        }
        assert_eq!(whole, 10);
    }
}
