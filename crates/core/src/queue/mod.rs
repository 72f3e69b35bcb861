//! Queues: their limits, and the policy by which a claim divides its capacity among queues and queue keys.

pub mod debounce;
pub mod depth;
pub mod fairness;
pub mod rate;
pub mod weights;

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Timestamp;
use crate::error::Error;
use crate::name_checks::check_text;
use crate::queue::rate::Rate;
use crate::queue::weights::Weights;

/// The queue of executions without a placement. An execution waits in it before it begins, unless it can begin at once,
/// and before it continues. This queue never has limits.
pub const DEFAULT_QUEUE: &str = "default";

/// Maximum length of a queue's name, in bytes.
const MAX_QUEUE_NAME_BYTES: usize = 255;
/// Maximum value of every limit, on every store.
const MAX_LIMIT: u32 = i32::MAX as u32;
/// Minimum period of a rate.
const MIN_RATE_PERIOD: Duration = Duration::from_millis(1);
/// Maximum period of a rate.
const MAX_RATE_PERIOD: Duration = Duration::from_hours(366 * 24);
/// Maximum length of a queue key, in bytes.
const MAX_KEY_BYTES: usize = 1024;

/// The reaction to a start whose dedup_id belongs to an unfinished execution of the queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnDuplicate {
    /// The start fails with [`Error::Deduplicated`].
    #[default]
    Reject,
    /// The start returns a handle to the unfinished execution, if it has the same workflow.
    ReturnExisting,
}

/// The reaction to a start whose queue is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFull {
    /// The start fails with [`Error::QueueFull`].
    #[default]
    Reject,
    /// The start waits until the queue has capacity.
    Wait,
}

/// The position of an execution whenever it is queued.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Placement {
    /// The name of the queue.
    pub queue: Arc<str>,
    /// The queue key; empty for none. The keys of a queue share it fairly, and may have limits of their own.
    pub key: Arc<str>,
    /// The priority within the queue key: smaller priorities come first.
    pub priority: i32,
}

/// A queue and one of its keys.
pub type QueueKey = (Arc<str>, Arc<str>);

/// Returns the queue and the queue key of a placement. Without a placement, returns those of the default queue.
pub fn queue_key(placement: Option<&Placement>) -> QueueKey {
    placement.map_or_else(
        || (DEFAULT_QUEUE.into(), "".into()),
        |Placement { queue, key, .. }| (queue.clone(), key.clone()),
    )
}

/// A queue's name and limits, as declared in code.
///
/// ```
/// # use stepfast_core::queue::Queue;
/// let emails = Queue::new("emails").concurrency(100).key_concurrency(1);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queue {
    /// The name of the queue, at most 255 bytes.
    pub name: Arc<str>,
    /// The limits of the queue.
    pub limits: Limits,
}

/// The limits of a queue, `None` for no limit, and the weights by which its keys share it.
///
/// A `waiting` execution counts towards no limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of executions that run at a time, in all processes together.
    pub concurrency: Option<u32>,
    /// Maximum number of executions that run at a time in any one worker.
    pub worker_concurrency: Option<u32>,
    /// Maximum number of executions of any one queue key that run at a time, in all processes together.
    pub key_concurrency: Option<u32>,
    /// The rate at which executions begin.
    pub rate: Option<Rate>,
    /// The rate at which executions of any one queue key begin.
    pub key_rate: Option<Rate>,
    /// Maximum number of executions that wait to begin. Further starts fail, or wait outside the queue.
    pub max_depth: Option<u32>,
    /// The weights of the queue keys.
    pub key_weights: Weights,
}

/// A stored queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueRow {
    /// The queue's name and limits.
    pub queue: Queue,
    /// Whether the queue is paused: claims take nothing from it.
    pub is_paused: bool,
    /// The number of changes of the queue, its creation included.
    pub version: i64,
    /// The time of the last change.
    pub changed_at: Timestamp,
}

/// A change of a queue. The store applies it only if the queue still has the expected version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueChange {
    /// The queue's name and new limits.
    pub queue: Queue,
    /// Whether the queue is paused after the change.
    pub is_paused: bool,
    /// The stored version on which the change is based; 0 to create the queue.
    pub expected_version: i64,
}

/// The reaction to a declared queue that is stored with other limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnConflict {
    /// The declared limits win: the engine stores them, and they apply to all processes at once.
    #[default]
    Update,
    /// The stored limits win: changes that were made at run time stay.
    Keep,
    /// The engine does not open: it fails with [`Error::QueueConflict`].
    Reject,
}

impl Queue {
    /// Creates a queue without limits.
    pub fn new(name: impl AsRef<str>) -> Self {
        Self { name: name.as_ref().into(), limits: Limits::default() }
    }

    /// Limits the executions of the queue that run at a time, in all processes together.
    #[must_use]
    pub fn concurrency(mut self, executions: u32) -> Self {
        self.limits.concurrency = Some(executions);
        self
    }

    /// Limits the executions of the queue that run at a time in any one worker.
    #[must_use]
    pub fn worker_concurrency(mut self, executions: u32) -> Self {
        self.limits.worker_concurrency = Some(executions);
        self
    }

    /// Limits the executions of any one queue key that run at a time, in all processes together.
    #[must_use]
    pub fn key_concurrency(mut self, executions: u32) -> Self {
        self.limits.key_concurrency = Some(executions);
        self
    }

    /// Limits the rate at which executions of the queue begin.
    #[must_use]
    pub fn rate(mut self, rate: Rate) -> Self {
        self.limits.rate = Some(rate);
        self
    }

    /// Limits the rate at which executions of any one queue key begin.
    #[must_use]
    pub fn key_rate(mut self, rate: Rate) -> Self {
        self.limits.key_rate = Some(rate);
        self
    }

    /// Limits the number of executions that wait in the queue to begin, delayed ones included.
    ///
    /// Further starts of callers fail or wait, as [`OnFull`] says. Children and debounced executions always enter.
    /// Every execution of a queue with this limit enters the queue before it begins.
    #[must_use]
    pub fn max_depth(mut self, executions: u32) -> Self {
        self.limits.max_depth = Some(executions);
        self
    }

    /// Sets the weight of a queue key, 1 to 1,000; other keys have weight 1. Under load, a key gets capacity in
    /// proportion to its weight.
    #[must_use]
    pub fn key_weight(mut self, key: impl AsRef<str>, weight: u32) -> Self {
        self.limits.key_weights.set(key.as_ref(), weight);
        self
    }

    /// Returns an error if the queue cannot be stored.
    pub(crate) fn check(&self) -> Result<(), Error> {
        check_queue_name(&self.name)?;
        if *self.name == *DEFAULT_QUEUE {
            let reason = format!(
                "{DEFAULT_QUEUE:?} holds the executions without a queue, and has no limits: choose another name"
            );
            return Err(Error::Invalid { input: "queue name", reason });
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
        for (input, limit) in [
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
            return Err(Error::Invalid { input, reason: format!("queue {:?}: {reason}", &*self.name) });
        }
        for (input, rate) in [("rate", rate), ("key_rate", key_rate)] {
            if let Some(reason) = rate.as_ref().and_then(invalid_rate_reason) {
                let reason = format!("queue {:?}: {reason}", &*self.name);
                return Err(Error::Invalid { input, reason });
            }
        }
        if let Some(reason) = key_weights.invalid_reason() {
            let reason = format!("queue {:?}: {reason}", &*self.name);
            return Err(Error::Invalid { input: "key_weights", reason });
        }
        key_weights.iter().filter(|(key, _)| !key.is_empty()).try_for_each(|(key, _)| check_queue_key(key))
    }
}

/// Returns the reason why a queue cannot have this rate.
fn invalid_rate_reason(rate: &Rate) -> Option<String> {
    if rate.starts == 0 || rate.burst == Some(0) {
        Some("must allow at least 1 start; to stop a queue, pause it".to_owned())
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
    /// Whether a start may begin at once, without a claim: the queue has no limits and is not paused.
    pub fn allows_immediate_start(&self) -> bool {
        let limits = &self.queue.limits;
        !self.is_paused && !limits.serializes_claims() && limits.max_depth.is_none()
    }
}

impl Limits {
    /// Whether the limits count running executions, so that each claimed execution has a row in `slots`.
    pub fn has_slots(&self) -> bool {
        let Self { concurrency, worker_concurrency, key_concurrency, .. } = self;
        concurrency.is_some() || worker_concurrency.is_some() || key_concurrency.is_some()
    }

    /// Whether the limits contain a rate, for which starts are counted.
    pub fn has_rate(&self) -> bool {
        self.rate.is_some() || self.key_rate.is_some()
    }

    /// Whether two concurrent claims could together exceed the limits, so that claims must follow one another.
    pub fn serializes_claims(&self) -> bool {
        self.has_slots() || self.has_rate()
    }
}

/// Returns the remaining capacity of a limit of which `used` is in use; `usize::MAX` without a limit.
pub fn remaining(limit: Option<u32>, used: u64) -> usize {
    limit.map_or(usize::MAX, |limit| u64::from(limit).saturating_sub(used) as usize)
}

/// Returns an error for a text that cannot be the name of a queue.
pub(crate) fn check_queue_name(name: &str) -> Result<(), Error> {
    check_text("queue name", name, MAX_QUEUE_NAME_BYTES)
}

/// Returns an error for a text that cannot be a queue key.
pub(crate) fn check_queue_key(key: &str) -> Result<(), Error> {
    check_text("queue key", key, MAX_KEY_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_queues_are_rejected() {
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
            (
                Queue::new("emails").key_rate(Rate::new(1, MIN_RATE_PERIOD).burst(u32::MAX)),
                "at most 2147483647",
            ),
            (Queue::new("emails").rate(Rate::new(1, Duration::from_micros(1_500))), "whole milliseconds"),
            (Queue::new("emails").key_weight("ann", 0), "must be between 1 and 1000"),
            (Queue::new("emails").key_weight("ann", 1001), "the weight of key \"ann\" is 1001"),
            (Queue::new("emails").key_weight("a\nn", 2), "control character"),
            (
                (0..1001).fold(Queue::new("emails"), |it, n| it.key_weight(format!("{n}"), 2)),
                "1001 keys have a weight",
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
