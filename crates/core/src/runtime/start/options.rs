//! [`StartOptions`]: the options of starting an execution.

use std::sync::Arc;
use std::time::Duration;

use crate::attributes::Attributes;
use crate::clock::{MAX_STORED_DURATION, Timestamp};
use crate::error::Error;
use crate::name_checks::{MAX_ID_BYTES, check_new_id, check_text};
use crate::payload::{INLINE_LIMIT, Payload};
use crate::queue::{OnDuplicate, OnFull, Placement, check_queue_key, check_queue_name};
use crate::store::State;

/// The options of starting an execution.
#[derive(Clone, Debug)]
pub struct StartOptions {
    /// The execution's id, given by the caller; `None` to generate one.
    pub workflow_id: Option<Arc<str>>,
    /// The time after which the execution is cancelled, counted from the acceptance of its start; `None` for
    /// no limit.
    pub execution_timeout: Option<Duration>,
    /// The time after which the execution is cancelled, counted from the beginning of its first run; `None`
    /// for no limit.
    pub run_timeout: Option<Duration>,
    /// The longest time for which the start waits for the database; `None` for no limit.
    pub wait_timeout: Option<Duration>,
    /// The queue in which the execution waits; `None` for the default queue.
    pub queue: Option<Arc<str>>,
    /// The execution's queue key.
    pub key: Option<Arc<str>>,
    /// The execution's priority within its queue key: smaller numbers come first. `None` means 0.
    pub priority: Option<i32>,
    /// The earliest time at which the execution may begin; `None` for now.
    pub due: Option<Due>,
    /// Id that at most one unfinished execution per queue has.
    pub dedup_id: Option<Arc<str>>,
    /// Behavior of the start if an unfinished execution already has the `dedup_id`.
    pub on_duplicate: OnDuplicate,
    /// Behavior of the start if its queue is full.
    pub on_full: OnFull,
    /// Debounce id: starts of a workflow with the same id in a queue merge into one execution until the
    /// execution is due.
    pub debounce: Option<Arc<str>>,
    /// Maximum delay of a debounced execution after the first of its starts.
    pub max_delay: Option<Duration>,
    /// Attributes by which the execution can be found.
    pub attributes: Attributes,
    /// Whether workers with any version of the code may run the execution.
    pub is_unversioned: bool,
}

/// The earliest time at which an execution may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// A duration after the start was accepted.
    After(Duration),
    /// A time by the database's clock.
    At(Timestamp),
}

impl Default for StartOptions {
    fn default() -> Self {
        Self::DEFAULTS.clone()
    }
}

impl StartOptions {
    /// The options of a plain start.
    pub(crate) const DEFAULTS: &Self = &Self {
        workflow_id: None,
        execution_timeout: None,
        run_timeout: None,
        wait_timeout: None,
        queue: None,
        key: None,
        priority: None,
        due: None,
        dedup_id: None,
        on_duplicate: OnDuplicate::Reject,
        on_full: OnFull::Reject,
        debounce: None,
        max_delay: None,
        attributes: Attributes::NONE,
        is_unversioned: false,
    };

    /// Returns the execution's placement in its queue; `None` for the default queue.
    pub(crate) fn placement(&self) -> Result<Option<Arc<Placement>>, Error> {
        let Self { queue, key, priority, dedup_id, debounce, .. } = self;
        let Some(queue) = queue else {
            return match first_given([
                ("key", key.is_some()),
                ("priority", priority.is_some()),
                ("dedup_id", dedup_id.is_some()),
                ("debounce", debounce.is_some()),
            ]) {
                None => Ok(None),
                Some(option) => invalid(option, "needs a queue: give `queue` too"),
            };
        };
        check_queue_name(queue)?;
        if let Some(key) = key {
            check_queue_key(key)?;
        }
        if let Some(id) = dedup_id {
            check_text("dedup_id", id, MAX_ID_BYTES)?;
        }
        let key = key.clone().unwrap_or_default();
        Ok(Some(Arc::new(Placement { queue: queue.clone(), key, priority: priority.unwrap_or_default() })))
    }

    /// Returns the state in which the execution is created. `is_local` means that the execution begins here
    /// at once.
    pub(crate) fn initial_state(&self, created_at: Timestamp, is_local: bool) -> State {
        match self.due {
            Some(Due::After(delay)) => {
                State::Scheduled { due_at: created_at.plus(delay.min(MAX_STORED_DURATION)) }
            }
            Some(Due::At(due_at)) => State::Scheduled { due_at: due_at.clamp_near(created_at) },
            None if is_local => State::Running { pending_sleeps: Vec::new() },
            None => State::Queued { pending_sleeps: Vec::new() },
        }
    }

    /// Returns the execution's deadline, and the time limit that counts from the beginning of its first run. An
    /// execution that begins here at once has no such limit: its deadline is the earlier end of both limits.
    pub(crate) fn time_limits(
        &self,
        created_at: Timestamp,
        is_local: bool,
    ) -> (Option<Timestamp>, Option<Duration>) {
        let [timeout, run_timeout] = [self.execution_timeout, self.run_timeout]
            .map(|limit| limit.map(|limit| limit.min(MAX_STORED_DURATION)));
        let (from_now, run_timeout) = if is_local { (run_timeout, None) } else { (None, run_timeout) };
        let timeout = timeout.into_iter().chain(from_now).min();
        (timeout.map(|timeout| created_at.plus(timeout)), run_timeout)
    }

    /// Returns an error if an option is set that a child cannot have. `may_have_id` is false for a child that its call
    /// identifies.
    pub(crate) fn check_child(&self, may_have_id: bool) -> Result<(), Error> {
        if let Some(id) = &self.workflow_id {
            check_new_id("workflow_id", id)?;
        }
        if self.debounce.is_some() {
            return invalid(
                "debounce",
                "is only for starts outside of workflows; in a workflow, start the execution in a step",
            );
        }
        match first_given([
            ("workflow_id", self.workflow_id.is_some()),
            ("dedup_id", self.dedup_id.is_some()),
        ]) {
            Some(option) if !may_have_id => invalid(
                option,
                "is only for detached children; a child that its parent awaits is identified by its call",
            ),
            _ => Ok(()),
        }
    }

    /// Whether another execution may already have an id that the caller has given.
    pub(crate) fn has_id(&self) -> bool {
        self.workflow_id.is_some() || self.dedup_id.is_some()
    }

    /// Returns an error if the options of a debounced start are not valid.
    pub(crate) fn check_debounce(&self, workflow: &str, input: &Payload) -> Result<(), Error> {
        let Some(id) = &self.debounce else {
            return match self.max_delay {
                Some(_) => invalid(
                    "max_delay",
                    "goes with `debounce` only: it limits how long a start can be delayed",
                ),
                None => Ok(()),
            };
        };
        check_text("debounce", id, MAX_ID_BYTES)?;
        let Some(Due::After(delay)) = self.due else {
            return invalid("debounce", "needs a delay: the execution begins that long after the last start");
        };
        if self.max_delay.is_some_and(|max_delay| max_delay < delay) {
            return invalid("max_delay", "is shorter than the delay");
        }
        if let Some(option) = first_given([
            ("workflow_id", self.workflow_id.is_some()),
            ("dedup_id", self.dedup_id.is_some()),
            ("execution_timeout; use run_timeout", self.execution_timeout.is_some()),
            ("attributes", !self.attributes.is_empty()),
        ]) {
            return invalid("debounce", &format!("does not go with {option}"));
        }
        if input.len() > INLINE_LIMIT {
            // all starts share one row, which has no chunks for the inputs of later starts
            let value = format!("the input of the debounced workflow {workflow:?}");
            return Err(Error::TooLarge { value, size: input.len(), limit: INLINE_LIMIT });
        }
        Ok(())
    }
}

/// Returns the first of these options that is given.
fn first_given<const N: usize>(options: [(&'static str, bool); N]) -> Option<&'static str> {
    options.into_iter().find_map(|(option, is_given)| is_given.then_some(option))
}

fn invalid<T>(option: &'static str, reason: &str) -> Result<T, Error> {
    Err(Error::Invalid { input: option, reason: reason.to_owned() })
}
