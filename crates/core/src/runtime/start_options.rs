//! [`StartOptions`]: what is told about an execution when it is started.

use std::sync::Arc;
use std::time::Duration;

use crate::attributes::Attributes;
use crate::clock::{MAX_STORED_DURATION, Timestamp};
use crate::error::Error;
use crate::payload::{INLINE_LIMIT, Payload};
use crate::queue::{OnDuplicate, OnFull, Placement, check_queue_key, check_queue_name};
use crate::store::State;
use crate::text::{MAX_ID_BYTES, check_text};

/// What is told about an execution when it is started.
#[derive(Clone, Debug)]
pub struct StartOptions {
    /// The execution's id, given by the caller.
    pub workflow_id: Option<Arc<str>>,
    /// After this time it is cancelled.
    pub timeout: Option<Duration>,
    /// So long after it has begun it is cancelled, unless it has ended.
    pub run_timeout: Option<Duration>,
    /// Longest wait for the database.
    pub patience: Option<Duration>,
    /// The queue that it waits in.
    pub queue: Option<Arc<str>>,
    /// Its key within the queue.
    pub key: Option<Arc<str>>,
    /// Smaller comes first within its key; 0 unless given.
    pub priority: Option<i32>,
    /// It begins not before this time.
    pub due: Option<Due>,
    /// In its queue there is one at most that has this and has not ended.
    pub dedup_id: Option<Arc<str>>,
    /// What happens if there is one.
    pub on_duplicate: OnDuplicate,
    /// What happens if its queue is full.
    pub on_full: OnFull,
    /// Starts of a workflow in a queue that have this in common are one, until it is due.
    pub debounce: Option<Arc<str>>,
    /// So long after the first of them it is due at the latest.
    pub max_delay: Option<Duration>,
    /// What it is found by.
    pub attributes: Attributes,
}

/// When an execution may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// So long after it was accepted.
    After(Duration),
    /// At this time.
    At(Timestamp),
}

impl Default for StartOptions {
    fn default() -> Self {
        Self::PLAIN.clone()
    }
}

impl StartOptions {
    /// Those of a start of which nothing is told.
    pub(crate) const PLAIN: &Self = &Self {
        workflow_id: None,
        timeout: None,
        run_timeout: None,
        patience: None,
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
    };

    /// Where it stands whenever it is queued.
    pub(crate) fn ticket(&self) -> Result<Option<Arc<Placement>>, Error> {
        let Self { queue, key, priority, dedup_id, debounce, .. } = self;
        let Some(queue) = queue else {
            return match first_of([
                ("key", key.is_some()),
                ("priority", priority.is_some()),
                ("dedup_id", dedup_id.is_some()),
                ("debounce", debounce.is_some()),
            ]) {
                None => Ok(None),
                Some(what) => refused(what, "needs a queue: give `queue` too"),
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

    /// The state in which it is created; `is_local` if it begins here at once.
    pub(crate) fn state(&self, created_at: Timestamp, is_local: bool) -> State {
        match self.due {
            Some(Due::After(delay)) => State::Scheduled { due_at: created_at.plus(delay.min(MAX_STORED_DURATION)) },
            Some(Due::At(due_at)) => State::Scheduled { due_at: due_at.clamp_near(created_at) },
            None if is_local => State::Running { armed: Vec::new() },
            None => State::Queued { armed: Vec::new() },
        }
    }

    /// When it is cancelled, and how long after it has begun: what begins here at once, begins when it is created.
    pub(crate) fn time_limits(
        &self,
        created_at: Timestamp,
        is_local: bool,
    ) -> (Option<Timestamp>, Option<Duration>) {
        let [timeout, run_timeout] =
            [self.timeout, self.run_timeout].map(|limit| limit.map(|limit| limit.min(MAX_STORED_DURATION)));
        let (from_now, run_timeout) = if is_local { (run_timeout, None) } else { (None, run_timeout) };
        let timeout = timeout.into_iter().chain(from_now).min();
        (timeout.map(|timeout| created_at.plus(timeout)), run_timeout)
    }

    /// An error if a child cannot have one of them.
    pub(crate) fn check_child(&self) -> Result<(), Error> {
        match first_of([
            ("workflow_id", self.workflow_id.is_some()),
            ("dedup_id", self.dedup_id.is_some()),
            ("debounce", self.debounce.is_some()),
        ]) {
            None => Ok(()),
            Some(what) => {
                refused(what, "is for what is started from outside of workflows; in one, start it in a step")
            }
        }
    }

    /// An error if what is said about debouncing cannot be.
    pub(crate) fn check_debounce(&self, workflow: &str, input: &Payload) -> Result<(), Error> {
        let Some(id) = &self.debounce else {
            return match self.max_delay {
                Some(_) => {
                    refused("max_delay", "goes with `debounce` only: it caps how often a start is put off")
                }
                None => Ok(()),
            };
        };
        check_text("debounce", id, MAX_ID_BYTES)?;
        let Some(Due::After(delay)) = self.due else {
            return refused("debounce", "needs a delay: so long after the last start it begins");
        };
        if self.max_delay.is_some_and(|most| most < delay) {
            return refused("max_delay", "is shorter than the delay");
        }
        if let Some(what) = first_of([
            ("workflow_id", self.workflow_id.is_some()),
            ("dedup_id", self.dedup_id.is_some()),
            ("a timeout from when it is accepted; a run_timeout does", self.timeout.is_some()),
            ("attributes", !self.attributes.is_empty()),
        ]) {
            return refused("debounce", &format!("does not go with {what}"));
        }
        if input.len() > INLINE_LIMIT {
            // there is one row for all of them, and no place for pieces of another input beside it
            let what = format!("the input of workflow {workflow:?}, debounced,");
            return Err(Error::TooLarge { what, size: input.len(), limit: INLINE_LIMIT });
        }
        Ok(())
    }
}

/// The first of these that is given.
fn first_of<const N: usize>(options: [(&'static str, bool); N]) -> Option<&'static str> {
    options.into_iter().find_map(|(what, is_given)| is_given.then_some(what))
}

fn refused<T>(what: &'static str, reason: &str) -> Result<T, Error> {
    Err(Error::Invalid { what, reason: reason.to_owned() })
}

/// Options for what is made of a [`Start`](crate::engine::start::Start) or a [`Child`](crate::workflow::child::Child).
macro_rules! forward_options {
    ($name:ident of $source:ident { $($option:ident($($argument:ident: $kind:ty),*)),* $(,)? }) => {
        impl<I, O> $name<'_, I, O> {
            $(
                #[doc = concat!("See [`", stringify!($source), "::", stringify!($option), "`].")]
                pub fn $option(self, $($argument: $kind),*) -> Self {
                    Self(self.0.$option($($argument),*))
                }
            )*
        }
    };
}

pub(crate) use forward_options;
