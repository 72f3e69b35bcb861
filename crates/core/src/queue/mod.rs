//! [`Queue`]: where executions wait, and under which limits they leave it.

pub mod debounce;
pub mod depth;
pub mod fairness;
pub mod rate;
pub mod weights;

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Timestamp;
use crate::error::Error;
use crate::queue::rate::Rate;
use crate::queue::weights::Weights;
use crate::text::check_text;

/// The queue of every execution that was given no other: what is started without one and cannot run at once, and what
/// is continued. It has no limits, and nobody can give it any.
pub const DEFAULT_QUEUE: &str = "default";

/// Longest name of a queue, in bytes.
const MAX_QUEUE_NAME_BYTES: usize = 255;
/// The largest limit, on every store.
const MAX_LIMIT: u32 = i32::MAX as u32;
/// The shortest and the longest period of a rate.
const MIN_RATE_PERIOD: Duration = Duration::from_millis(1);
const MAX_RATE_PERIOD: Duration = Duration::from_hours(366 * 24);
/// Longest key within a queue, in bytes.
const MAX_KEY_BYTES: usize = 1024;

/// What a start comes to whose dedup_id another execution of the queue has that has not ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnDuplicate {
    /// To an error, [`Error::Deduplicated`].
    #[default]
    Reject,
    /// To a handle to that execution, if it is of the same workflow.
    ReturnExisting,
}

/// What a start comes to whose queue is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFull {
    /// To an error, [`Error::QueueFull`].
    #[default]
    Reject,
    /// It waits until there is room.
    Wait,
}

/// Where an execution stands whenever it is queued.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Placement {
    /// Name of the queue.
    pub queue: Arc<str>,
    /// Its key within the queue: keys take turns, and may have limits of their own. Empty for none.
    pub key: Arc<str>,
    /// Smaller comes first among those of its key.
    pub priority: i32,
}

/// A queue's name and limits, as code declares them.
///
/// ```
/// # use stepfast_core::queue::Queue;
/// let emails = Queue::new("emails").concurrency(100).key_concurrency(1);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queue {
    /// Its name.
    pub name: Arc<str>,
    /// Its limits.
    pub limits: Limits,
}

/// How executions leave a queue: what limits it, `None` for no limit, and how its keys share it. A waiting execution
/// counts for no limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Most executions that run at a time, in all processes together.
    pub concurrency: Option<u32>,
    /// Most executions that run at a time in any one worker.
    pub worker_concurrency: Option<u32>,
    /// Most executions of any one key that run at a time, in all processes together.
    pub key_concurrency: Option<u32>,
    /// How often they begin.
    pub rate: Option<Rate>,
    /// How often those of any one key begin.
    pub key_rate: Option<Rate>,
    /// Most executions that wait for their beginning; what more is started is refused, or waits outside.
    pub max_depth: Option<u32>,
    /// How many turns keys have.
    pub key_weights: Weights,
}

/// A queue as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueRow {
    /// Its name and limits.
    pub queue: Queue,
    /// True while nothing leaves it.
    pub is_paused: bool,
    /// How often it was changed, its creation included.
    pub version: i64,
    /// When it was changed last.
    pub changed_at: Timestamp,
}

/// How a queue is to be stored: applied if it is still as whoever asks for it has seen it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueChange {
    /// Its name and limits.
    pub queue: Queue,
    /// True if nothing is to leave it.
    pub is_paused: bool,
    /// The version that was seen; 0 if there was no such queue.
    pub expected_version: i64,
}

/// What to do where a queue that code declares is stored with other limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnConflict {
    /// The code is right: its limits are stored, and hold for all processes at once.
    #[default]
    Update,
    /// The database is right: what was changed at run time stays as it is.
    Keep,
    /// The engine does not open.
    Refuse,
}

impl Queue {
    /// A queue without limits.
    pub fn new(name: impl AsRef<str>) -> Self {
        Self { name: name.as_ref().into(), limits: Limits::default() }
    }

    /// At most so many of its executions run at a time, in all processes together.
    #[must_use]
    pub fn concurrency(mut self, executions: u32) -> Self {
        self.limits.concurrency = Some(executions);
        self
    }

    /// At most so many of its executions run at a time in any one worker.
    #[must_use]
    pub fn worker_concurrency(mut self, executions: u32) -> Self {
        self.limits.worker_concurrency = Some(executions);
        self
    }

    /// At most so many executions of any one of its keys run at a time, in all processes together.
    #[must_use]
    pub fn key_concurrency(mut self, executions: u32) -> Self {
        self.limits.key_concurrency = Some(executions);
        self
    }

    /// So often its executions begin.
    #[must_use]
    pub fn rate(mut self, rate: Rate) -> Self {
        self.limits.rate = Some(rate);
        self
    }

    /// So often executions of any one of its keys begin.
    #[must_use]
    pub fn key_rate(mut self, rate: Rate) -> Self {
        self.limits.key_rate = Some(rate);
        self
    }

    /// At most so many executions wait in it for their beginning, delayed ones included. What more is started is refused
    /// or waits, as its caller [says](OnFull); what a workflow starts in it is never refused. Nothing begins without
    /// having been in it.
    #[must_use]
    pub fn max_depth(mut self, executions: u32) -> Self {
        self.limits.max_depth = Some(executions);
        self
    }

    /// This key has so many turns where others have one, 1 to 1,000: where places are short, so many times their share.
    #[must_use]
    pub fn key_weight(mut self, key: impl AsRef<str>, weight: u32) -> Self {
        self.limits.key_weights.set(key.as_ref(), weight);
        self
    }

    /// An error if it cannot be stored.
    pub(crate) fn check(&self) -> Result<(), Error> {
        check_queue_name(&self.name)?;
        if *self.name == *DEFAULT_QUEUE {
            let reason =
                format!("{DEFAULT_QUEUE:?} is what has no queue; it has no limits: choose another name");
            return Err(Error::Invalid { what: "queue name", reason });
        }
        let Limits {
            concurrency,
            worker_concurrency,
            key_concurrency,
            rate,
            key_rate,
            max_depth,
            key_weights,
        } = &self.limits;
        for (what, limit) in [
            ("concurrency", concurrency),
            ("worker_concurrency", worker_concurrency),
            ("key_concurrency", key_concurrency),
            ("max_depth", max_depth),
        ] {
            let reason = match limit {
                Some(0) => "must be at least 1; to stop a queue, pause it".to_owned(),
                Some(limit) if *limit > MAX_LIMIT => format!("is {limit}; it must be at most {MAX_LIMIT}"),
                _ => continue,
            };
            return Err(Error::Invalid { what, reason: format!("queue {:?}: {reason}", &*self.name) });
        }
        for (what, rate) in [("rate", rate), ("key_rate", key_rate)] {
            if let Some(reason) = rate.as_ref().and_then(invalid_rate_reason) {
                let reason = format!("queue {:?}: {reason}", &*self.name);
                return Err(Error::Invalid { what, reason });
            }
        }
        if let Some(reason) = key_weights.invalid_reason() {
            let reason = format!("queue {:?}: {reason}", &*self.name);
            return Err(Error::Invalid { what: "key_weights", reason });
        }
        key_weights.iter().filter(|(key, _)| !key.is_empty()).try_for_each(|(key, _)| check_queue_key(key))
    }
}

/// Why a rate cannot be.
fn invalid_rate_reason(rate: &Rate) -> Option<String> {
    if rate.starts == 0 || rate.burst == Some(0) {
        Some("must allow for at least 1; to stop a queue, pause it".to_owned())
    } else if rate.starts > MAX_LIMIT || rate.burst.is_some_and(|burst| burst > MAX_LIMIT) {
        Some(format!("its starts and its burst must be at most {MAX_LIMIT}"))
    } else if !(MIN_RATE_PERIOD..=MAX_RATE_PERIOD).contains(&rate.period) {
        Some(format!("its period is {:?}; it must be between 1 ms and 366 days", rate.period))
    } else if !rate.period.subsec_nanos().is_multiple_of(1_000_000) {
        Some(format!("its period is {:?}; it must be whole milliseconds", rate.period))
    } else {
        None
    }
}

impl QueueRow {
    /// True if what is put into it may begin at once, without a claim.
    pub fn allows_immediate_start(&self) -> bool {
        let limits = &self.queue.limits;
        !self.is_paused && !limits.serializes_claims() && limits.max_depth.is_none()
    }
}

impl Limits {
    /// True if a claim has to count what runs: each execution that is claimed then has a slot.
    pub fn has_slots(&self) -> bool {
        let Self { concurrency, worker_concurrency, key_concurrency, .. } = self;
        concurrency.is_some() || worker_concurrency.is_some() || key_concurrency.is_some()
    }

    /// True if starts count.
    pub fn has_rate(&self) -> bool {
        self.rate.is_some() || self.key_rate.is_some()
    }

    /// True if two claims at a time could exceed it: one claims after the other.
    pub fn serializes_claims(&self) -> bool {
        self.has_slots() || self.has_rate()
    }
}

/// How many more a limit leaves room for, of which so many are there.
pub fn remaining(limit: Option<u32>, used: u64) -> usize {
    limit.map_or(usize::MAX, |limit| u64::from(limit).saturating_sub(used) as usize)
}

/// An error if it cannot be the name of a queue.
pub(crate) fn check_queue_name(name: &str) -> Result<(), Error> {
    check_text("queue name", name, MAX_QUEUE_NAME_BYTES)
}

/// An error if it cannot be a key within a queue.
pub(crate) fn check_queue_key(key: &str) -> Result<(), Error> {
    check_text("queue key", key, MAX_KEY_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_that_cannot_be_are_refused() {
        assert!(Queue::new("emails").concurrency(1).check().is_ok());
        for (queue, says) in [
            (Queue::new(""), "must not be empty"),
            (Queue::new("a\nb"), "control character"),
            (Queue::new(DEFAULT_QUEUE), "choose another name"),
            (Queue::new("x".repeat(256)), "at most 255"),
            (Queue::new("emails").concurrency(0), "pause it"),
            (Queue::new("emails").key_concurrency(0), "pause it"),
            (Queue::new("emails").max_depth(0), "must be at least 1"),
            (Queue::new("emails").concurrency(MAX_LIMIT + 1), "is 2147483648; it must be at most 2147483647"),
            (Queue::new("emails").max_depth(u32::MAX), "at most 2147483647"),
            (Queue::new("emails").rate(Rate::new(MAX_LIMIT + 1, MIN_RATE_PERIOD)), "at most 2147483647"),
            (Queue::new("emails").key_rate(Rate::new(1, MIN_RATE_PERIOD).burst(u32::MAX)), "at most 2147483647"),
            (Queue::new("emails").rate(Rate::new(1, Duration::from_micros(1_500))), "whole milliseconds"),
            (Queue::new("emails").key_weight("ann", 0), "must be between 1 and 1000"),
            (Queue::new("emails").key_weight("ann", 1001), "that of key \"ann\" is 1001"),
            (Queue::new("emails").key_weight("a\nn", 2), "control character"),
            (
                (0..1001).fold(Queue::new("emails"), |it, n| it.key_weight(format!("{n}"), 2)),
                "there are 1001",
            ),
            (Queue::new("emails").rate(Rate::new(0, MIN_RATE_PERIOD)), "pause it"),
            (Queue::new("emails").key_rate(Rate::new(1, MIN_RATE_PERIOD).burst(0)), "pause it"),
            (Queue::new("emails").rate(Rate::new(1, Duration::ZERO)), "between 1 ms and 366 days"),
        ] {
            let error = queue.check().unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }
}
