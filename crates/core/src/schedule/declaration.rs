//! [`Schedule`]: which workflow starts with which input, at which instants, and by which policies.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::clock::{MAX_STORED_DURATION, Timestamp};
use crate::error::Error;
use crate::name_checks::{check_name, check_text};
use crate::payload::Payload;
use crate::runtime::start::options::StartOptions;
use crate::schedule::policy::{CatchUp, Overlap};
use crate::schedule::timing::Instants;
use crate::workflow::Workflow;
use crate::workflow::context::Context;

/// The registered name of the built-in workflow whose executions are schedules.
pub(crate) const SCHEDULE_WORKFLOW: &str = "stepfast.schedule";
/// The attribute whose value is the name of a schedule: of the executions that it has started.
pub const SCHEDULE_ATTRIBUTE: &str = "schedule";

/// Maximum length of a schedule's name, in bytes.
const MAX_NAME_BYTES: usize = 128;
/// Maximum size of the input of a schedule, in encoded bytes. A schedule is changed by messages, which have this limit.
const MAX_INPUT_BYTES: usize = 32 * 1024;
/// Minimum time between two instants of an interval.
const MIN_INTERVAL: Duration = Duration::from_secs(1);

/// A schedule: the workflow that starts at each of its instants, with its input, timing and policies.
///
/// A schedule has a cron expression, or an interval, or a single instant.
///
/// ```
/// # use stepfast_core::{Context, Failure, Workflow};
/// # use stepfast_core::schedule::{Overlap, Schedule};
/// # async fn report(_: Context, _: String) -> Result<(), Failure> { Ok(()) }
/// let report = Workflow::new("report", report);
/// let nightly = Schedule::new("nightly", &report, &"all".to_owned())?
///     .cron("0 2 * * *")
///     .timezone("Europe/Berlin")
///     .overlap(Overlap::BufferOne);
/// # Ok::<_, stepfast_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Schedule {
    /// The name of the schedule.
    pub name: Arc<str>,
    /// The registered name of the workflow.
    pub workflow: Arc<str>,
    /// The input, encoded.
    input: Bytes,
    /// The cron expression; `None` if another timing is given.
    pub cron: Option<String>,
    /// The interval; `None` if another timing is given.
    pub every: Option<Duration>,
    /// The single instant; `None` if another timing is given.
    pub at: Option<Timestamp>,
    /// The IANA name of the time zone of the cron expression; `None` for UTC.
    pub timezone: Option<String>,
    /// The reaction to an instant at which an earlier execution still runs.
    pub overlap: Overlap,
    /// The reaction to instants that have passed while no worker could run the schedule.
    pub catch_up: CatchUp,
    /// Maximum delay of an execution after its instant.
    pub jitter: Duration,
    /// The time before which there are no instants; `None` for no bound.
    pub starts_at: Option<Timestamp>,
    /// The time after which there are no instants; `None` for no bound.
    pub ends_at: Option<Timestamp>,
    /// Number of executions that fail one after the other before the schedule pauses itself; `None` for no limit.
    pub pause_after: Option<u32>,
    /// The queue in which the executions wait; `None` for the default queue.
    pub queue: Option<Arc<str>>,
    /// The queue key of the executions; `None` for none.
    pub key: Option<Arc<str>>,
    /// The priority of the executions within their queue key; `None` for 0.
    pub priority: Option<i32>,
    /// The time after which an execution is cancelled, counted from its start; `None` for no limit.
    pub execution_timeout: Option<Duration>,
    /// The time after which an execution is cancelled, counted from the beginning of its first run; `None` for no limit.
    pub run_timeout: Option<Duration>,
    /// The attributes of the executions, besides `schedule`.
    pub attributes: Vec<(Arc<str>, Arc<str>)>,
    /// Whether the workflow's code is known to be in another program.
    #[serde(skip)]
    is_elsewhere: bool,
}

impl Schedule {
    /// Returns a schedule of this name without instants: give it a [`cron`](Self::cron) expression, an interval
    /// ([`every`](Self::every)), or a single instant ([`at`](Self::at)). Its executions get this input.
    ///
    /// # Errors
    ///
    /// [`Error::Encode`] if serde cannot represent the input.
    pub fn new<I: Serialize, O>(
        name: impl Into<Arc<str>>,
        workflow: &Workflow<I, O>,
        input: &I,
    ) -> Result<Self, Error> {
        let is_elsewhere = workflow.definition.is_elsewhere();
        let workflow = workflow.definition.name.clone();
        Ok(Self { is_elsewhere, ..Self::of_payload(name.into(), workflow, &Payload::encode(input)?) })
    }

    /// Returns a schedule of a workflow with this registered name and this encoded input, like [`new`](Self::new).
    #[doc(hidden)]
    pub fn of_payload(name: Arc<str>, workflow: Arc<str>, input: &Payload) -> Self {
        Self {
            name,
            workflow,
            input: input.to_bytes(),
            cron: None,
            every: None,
            at: None,
            timezone: None,
            overlap: Overlap::default(),
            catch_up: CatchUp::default(),
            jitter: Duration::ZERO,
            starts_at: None,
            ends_at: None,
            pause_after: None,
            queue: None,
            key: None,
            priority: None,
            execution_timeout: None,
            run_timeout: None,
            attributes: Vec::new(),
            is_elsewhere: false,
        }
    }

    /// Lets the workflow's code be in another program.
    #[doc(hidden)]
    #[must_use]
    pub fn elsewhere(self) -> Self {
        Self { is_elsewhere: true, ..self }
    }

    /// Sets the input, encoded.
    #[doc(hidden)]
    #[must_use]
    pub fn with_input(self, input: &Payload) -> Self {
        Self { input: input.to_bytes(), ..self }
    }

    /// Removes the timing, so that another one can be set.
    #[doc(hidden)]
    #[must_use]
    pub fn without_timing(self) -> Self {
        Self { cron: None, every: None, at: None, timezone: None, ..self }
    }

    /// Sets the instants by a cron expression of five fields (minute, hour, day of the month, month, day of the week), or of
    /// six with the seconds first. See the guide for what a field may contain.
    #[must_use]
    pub fn cron(self, expression: impl Into<String>) -> Self {
        Self { cron: Some(expression.into()), ..self }
    }

    /// Sets an instant at each multiple of this interval since 1970-01-01T00:00:00Z, or since [`starts_at`](Self::starts_at).
    /// At least one second.
    #[must_use]
    pub fn every(self, interval: Duration) -> Self {
        Self { every: Some(interval), ..self }
    }

    /// Sets a single instant.
    #[must_use]
    pub fn at(self, instant: Timestamp) -> Self {
        Self { at: Some(instant), ..self }
    }

    /// Sets the time zone of the cron expression, by its IANA name, as in `Europe/Berlin`. Default: `UTC`.
    #[must_use]
    pub fn timezone(self, name: impl Into<String>) -> Self {
        Self { timezone: Some(name.into()), ..self }
    }

    /// Sets the reaction to an instant at which an earlier execution still runs. Default: the instant is skipped.
    #[must_use]
    pub fn overlap(self, overlap: Overlap) -> Self {
        Self { overlap, ..self }
    }

    /// Sets the reaction to instants that have passed while no worker could run the schedule. Default: only the last one
    /// gets its execution.
    #[must_use]
    pub fn catch_up(self, catch_up: CatchUp) -> Self {
        Self { catch_up, ..self }
    }

    /// Delays each execution by a time of at most `jitter`, which is derived from the schedule's name and the instant.
    #[must_use]
    pub fn jitter(self, jitter: Duration) -> Self {
        Self { jitter, ..self }
    }

    /// Sets the time before which there are no instants.
    #[must_use]
    pub fn starts_at(self, time: Timestamp) -> Self {
        Self { starts_at: Some(time), ..self }
    }

    /// Sets the time after which there are no instants.
    #[must_use]
    pub fn ends_at(self, time: Timestamp) -> Self {
        Self { ends_at: Some(time), ..self }
    }

    /// Pauses the schedule when this many of its executions have failed one after the other.
    #[must_use]
    pub fn pause_after(self, failures: u32) -> Self {
        Self { pause_after: Some(failures), ..self }
    }

    /// Sets the queue in which the executions wait.
    #[must_use]
    pub fn queue(self, name: impl Into<Arc<str>>) -> Self {
        Self { queue: Some(name.into()), ..self }
    }

    /// Sets the queue key of the executions.
    #[must_use]
    pub fn key(self, key: impl Into<Arc<str>>) -> Self {
        Self { key: Some(key.into()), ..self }
    }

    /// Sets the priority of the executions within their queue key: smaller numbers come first.
    #[must_use]
    pub fn priority(self, priority: i32) -> Self {
        Self { priority: Some(priority), ..self }
    }

    /// Cancels an execution this long after its start.
    #[must_use]
    pub fn execution_timeout(self, timeout: Duration) -> Self {
        Self { execution_timeout: Some(timeout), ..self }
    }

    /// Cancels an execution this long after the beginning of its first run.
    #[must_use]
    pub fn run_timeout(self, timeout: Duration) -> Self {
        Self { run_timeout: Some(timeout), ..self }
    }

    /// Adds an attribute to the executions, which also have the attribute `schedule` with the schedule's name.
    #[must_use]
    pub fn attribute(mut self, name: impl Into<Arc<str>>, value: impl Into<Arc<str>>) -> Self {
        let attribute = (name.into(), value.into());
        // in the order of the names, so that schedules with the same attributes are equal
        match self.attributes.binary_search_by(|other| other.0.cmp(&attribute.0)) {
            Ok(place) => self.attributes[place] = attribute,
            Err(place) => self.attributes.insert(place, attribute),
        }
        self
    }

    /// Returns the encoded input of the executions.
    pub fn input(&self) -> Payload {
        Payload::from_bytes(self.input.clone())
    }

    /// Returns the time zone of the cron expression.
    pub fn timezone_name(&self) -> &str {
        self.timezone.as_deref().unwrap_or("UTC")
    }

    /// Returns the timing for people, as in `0 2 * * * Europe/Berlin` or `every 5m`.
    pub fn timing(&self) -> String {
        match (&self.cron, self.every, self.at) {
            (Some(cron), ..) => format!("{cron} {}", self.timezone_name()),
            (None, Some(every), _) => format!("every {}", format_interval(every)),
            (None, None, Some(at)) => format!("at {at}"),
            (None, None, None) => "no timing".to_owned(),
        }
    }

    /// Returns the first instants after a time, at most `limit`. Starts of executions follow their instants by the jitter.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the cron expression or the time zone cannot be read.
    pub fn instants_after(&self, time: Timestamp, limit: usize) -> Result<Vec<Timestamp>, Error> {
        let instants = Instants::new(self)?;
        Ok(std::iter::successors(instants.next_after(time), |last| instants.next_after(*last))
            .take(limit)
            .collect())
    }

    pub(crate) fn is_elsewhere(&self) -> bool {
        self.is_elsewhere
    }

    /// Whether another schedule has the same instants.
    pub(crate) fn has_same_instants(&self, other: &Self) -> bool {
        let instants = |it: &Self| {
            (it.cron.clone(), it.every, it.at, it.timezone.clone(), it.starts_at, it.ends_at, it.jitter)
        };
        instants(self) == instants(other)
    }

    /// Whether another schedule is stored as the same.
    pub(crate) fn is_stored_as(&self, other: &Self) -> bool {
        *self == Self { is_elsewhere: self.is_elsewhere, ..other.clone() }
    }

    /// Returns the options with which the execution of an instant starts.
    pub(crate) fn start_options(&self, workflow_id: String) -> StartOptions {
        let mut options = StartOptions {
            workflow_id: Some(workflow_id.into()),
            queue: self.queue.clone(),
            key: self.key.clone(),
            priority: self.priority,
            execution_timeout: self.execution_timeout,
            run_timeout: self.run_timeout,
            is_unversioned: true,
            ..StartOptions::default()
        };
        for (name, value) in &self.attributes {
            options.attributes.set(name.clone(), value.clone());
        }
        options.attributes.set(SCHEDULE_ATTRIBUTE, self.name.clone());
        options
    }

    /// Returns an error for a schedule that cannot be kept, or that has no instant after `now`.
    pub(crate) fn check(&self, now: Timestamp) -> Result<(), Error> {
        check_schedule_name(&self.name)?;
        check_name("workflow name", &self.workflow)?;
        let size = self.input.len();
        if size > MAX_INPUT_BYTES {
            let reason = format!(
                "has {size} bytes, and the limit for schedules is {MAX_INPUT_BYTES}; store the value elsewhere, and let the \
                 workflow load it"
            );
            return invalid("input", reason);
        }
        let timings = usize::from(self.cron.is_some())
            + usize::from(self.every.is_some())
            + usize::from(self.at.is_some());
        if timings != 1 {
            let reason = format!("has {timings} timings; give one of `cron`, `every` and `at`");
            return invalid("schedule", reason);
        }
        if self.timezone.is_some() && self.cron.is_none() {
            return invalid("timezone", "goes with `cron` only".to_owned());
        }
        if let Some(every) = self.every
            && !(MIN_INTERVAL..=MAX_STORED_DURATION).contains(&every)
        {
            return invalid("every", format!("is {every:?}; give one second to a hundred years"));
        }
        if self.jitter > MAX_STORED_DURATION {
            return invalid("jitter", "is longer than a hundred years".to_owned());
        }
        if self.pause_after == Some(0) {
            return invalid("pause_after", "is 0; give the number of failures, at least 1".to_owned());
        }
        for (input, time) in [("at", self.at), ("starts_at", self.starts_at), ("ends_at", self.ends_at)] {
            if time.is_some_and(|time| time != time.clamp_near(now)) {
                return invalid(input, "is more than a hundred years away".to_owned());
            }
        }
        if let (Some(start), Some(end)) = (self.starts_at, self.ends_at)
            && end < start
        {
            return invalid("ends_at", "is before starts_at".to_owned());
        }
        let options = self.start_options(instant_id(&self.name, now));
        options.placement()?;
        options.attributes.check()?;
        if self.attributes.iter().any(|(name, _)| **name == *SCHEDULE_ATTRIBUTE) {
            let reason = format!("{SCHEDULE_ATTRIBUTE:?} is the name of the schedule; use another attribute");
            return invalid("attributes", reason);
        }
        if Instants::new(self)?.next_after(now).is_none() {
            let end = if self.ends_at.is_some() { " before ends_at" } else { "" };
            let reason = format!("{:?} has no instant after now{end}: {}", &*self.name, self.timing());
            return invalid("schedule", reason);
        }
        Ok(())
    }
}

fn invalid<T>(input: &'static str, reason: String) -> Result<T, Error> {
    Err(Error::Invalid { input, reason })
}

impl Context {
    /// Returns the instant for which a schedule has started this execution; `None` if no schedule has, or if it was triggered.
    pub fn scheduled_at(&self) -> Option<Timestamp> {
        instant_of(self.run.given_id.as_deref()?)
    }
}

/// Returns an error for a name that no schedule can have.
pub(crate) fn check_schedule_name(name: &str) -> Result<(), Error> {
    check_text("schedule", name, MAX_NAME_BYTES)?;
    if name.contains(['#', '@']) {
        let reason = format!("{name:?} contains `#` or `@`, which separate the parts of ids; leave it out");
        return invalid("schedule", reason);
    }
    Ok(())
}

/// Returns the workflow_id of the execution that is the schedule with this name.
pub(crate) fn schedule_id(name: &str) -> String {
    format!("schedule:{name}")
}

/// Returns the workflow_id of the execution that a schedule starts for an instant.
pub(crate) fn instant_id(schedule: &str, instant: Timestamp) -> String {
    format!("{schedule}@{instant}")
}

/// Returns the instant in the workflow_id of an execution that a schedule has started; `None` for other ids.
pub fn instant_of(workflow_id: &str) -> Option<Timestamp> {
    let (_, instant) = workflow_id.rsplit_once('@')?;
    let instant = instant.parse::<jiff::Timestamp>().ok()?;
    Some(Timestamp::from_micros(instant.as_microsecond()))
}

/// Returns an interval in the largest unit of which it is a multiple, as in `5m`.
fn format_interval(interval: Duration) -> String {
    const UNITS: [(&str, u128); 5] =
        [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];
    if !interval.as_micros().is_multiple_of(1_000) {
        return format!("{interval:?}");
    }
    let millis = interval.as_millis();
    let (unit, size) = UNITS.iter().find(|(_, size)| millis.is_multiple_of(*size)).unwrap_or(&("ms", 1));
    format!("{}{unit}", millis / size)
}
