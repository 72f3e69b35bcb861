//! `stepfast schedule set`: creates or changes a schedule.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{anyhow, bail};
use clap::Args;
use serde_json::Value;
use stepfast::clock::Timestamp;
use stepfast::text::quote;
use stepfast::{CatchUp, Error, Overlap, Payload, Schedule, Store};

use super::ScheduleArgs;
use crate::arguments::{Change, change, parse_duration, parse_instant, parse_plain};
use crate::client::with_client;
use crate::graph::parse_json;
use crate::input::InputForm;
use crate::output::{Exit, NotFound};
use crate::workflow::parse_attribute;

#[derive(Args)]
pub(crate) struct SetScheduleArgs {
    #[command(flatten)]
    named: ScheduleArgs,
    #[command(flatten)]
    start: ScheduledStartArgs,
    #[command(flatten)]
    timing: TimingArgs,
    /// The reaction to an instant at which an execution still runs: skip, buffer_one, buffer_all, cancel_running or
    /// allow. A new schedule has skip.
    #[arg(long, value_name = "POLICY", value_parser = parse_overlap)]
    overlap: Option<Overlap>,
    /// The missed instants that get their executions after a time without a worker: none, last or all. A new schedule has last.
    #[arg(long, value_name = "POLICY", value_parser = parse_catch_up)]
    catch_up: Option<CatchUp>,
    /// Pause the schedule when this many executions have failed one after the other; "none" for no limit.
    #[arg(long, value_name = "N|none", value_parser = change(parse_plain::<u32>))]
    pause_after: Option<Change<u32>>,
}

/// The executions that a schedule starts.
#[derive(Args)]
struct ScheduledStartArgs {
    /// The registered name of the workflow; needed for a new schedule.
    #[arg(long, value_name = "NAME")]
    workflow: Option<String>,
    /// The input of the executions, as JSON. A graph of a Python program takes an object with its inputs by name.
    #[arg(long, value_name = "JSON", value_parser = parse_json, allow_negative_numbers = true)]
    input: Option<Value>,
    /// The arguments of a Python function, as JSON: an array of the arguments by position, or an object of the
    /// arguments by name. Needed for workflows of Python programs, except graphs.
    #[arg(long, value_name = "JSON", value_parser = parse_json, conflicts_with = "input")]
    arguments: Option<Value>,
    /// The queue of the executions; "none" for the default queue.
    #[arg(long, value_name = "NAME|none", value_parser = change(parse_plain::<String>))]
    queue: Option<Change<String>>,
    /// The queue key of the executions; "none" for none.
    #[arg(long, value_name = "KEY|none", value_parser = change(parse_plain::<String>))]
    key: Option<Change<String>>,
    /// The priority among executions of the same queue and queue key: smaller numbers come first; "none" for 0.
    #[arg(long, value_name = "N|none", value_parser = change(parse_plain::<i32>), allow_negative_numbers = true)]
    priority: Option<Change<i32>>,
    /// Cancel an execution this long after its start, as in 90s or 2h; "none" for no limit.
    #[arg(long, value_name = "DURATION|none", value_parser = change(parse_duration))]
    execution_timeout: Option<Change<Duration>>,
    /// Cancel an execution this long after it has begun; "none" for no limit.
    #[arg(long, value_name = "DURATION|none", value_parser = change(parse_duration))]
    run_timeout: Option<Change<Duration>>,
    /// An attribute of the executions, besides `schedule`. May be given several times; "none" removes all others.
    #[arg(long, value_name = "NAME=VALUE|none", value_parser = change(parse_attribute))]
    attribute: Vec<Change<(String, String)>>,
}

/// The instants of a schedule.
#[derive(Args)]
struct TimingArgs {
    /// A cron expression: minute, hour, day of the month, month and day of the week, or six fields with the seconds
    /// first. Replaces another timing.
    #[arg(long, value_name = "EXPRESSION", group = "timing")]
    cron: Option<String>,
    /// An interval of at least a second, as in 90s, 15m, 2h or 7d. Replaces another timing.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, group = "timing")]
    every: Option<Duration>,
    /// A single instant, as in 2026-11-21T10:00:00Z. Replaces another timing.
    #[arg(long, value_name = "INSTANT", value_parser = parse_instant, group = "timing")]
    at: Option<Timestamp>,
    /// The time zone of the cron expression, as in Europe/Berlin; "none" for UTC.
    #[arg(long, value_name = "ZONE|none", value_parser = change(parse_plain::<String>))]
    timezone: Option<Change<String>>,
    /// The longest delay of an execution after its instant, as in 30s or 5m; "none" for no delay.
    #[arg(long, value_name = "DURATION|none", value_parser = change(parse_duration))]
    jitter: Option<Change<Duration>>,
    /// The time before which there are no instants, as in 2026-11-21T10:00:00Z; "none" for no bound.
    #[arg(long, value_name = "INSTANT|none", value_parser = change(parse_instant))]
    starts_at: Option<Change<Timestamp>>,
    /// The time after which there are no instants; "none" for no bound.
    #[arg(long, value_name = "INSTANT|none", value_parser = change(parse_instant))]
    ends_at: Option<Change<Timestamp>>,
}

impl SetScheduleArgs {
    pub(super) async fn run(self) -> anyhow::Result<Exit> {
        let Self { named, start, timing, overlap, catch_up, pause_after } = self;
        let store = stepfast::connect_existing(&named.target.store).await?;
        let (before, after) = with_client(store.clone(), async |client| {
            let before = match client.schedule(&named.name).await {
                Ok(view) => Some(view.schedule),
                Err(Error::UnknownSchedule { .. }) => None,
                Err(error) => return Err(error.into()),
            };
            let mut schedule = start.apply(&store, &named.name, before.clone()).await?;
            schedule = timing.apply(schedule);
            schedule.overlap = overlap.unwrap_or(schedule.overlap);
            schedule.catch_up = catch_up.unwrap_or(schedule.catch_up);
            replace(&mut schedule.pause_after, pause_after);
            client.set_schedule(&schedule.elsewhere()).await?;
            Ok((before, client.schedule(&named.name).await?))
        })
        .await?;
        let is_changed = before.as_ref() != Some(&after.schedule);
        let result = match before {
            None => "created",
            Some(_) if is_changed => "changed",
            Some(_) => "unchanged",
        };
        named.print_changed(&after, is_changed, result)
    }
}

impl ScheduledStartArgs {
    /// Returns the stored schedule with these values, or a new one.
    async fn apply(
        self,
        store: &Arc<dyn Store>,
        name: &str,
        stored: Option<Schedule>,
    ) -> anyhow::Result<Schedule> {
        let Some(workflow) = self.workflow.or_else(|| stored.as_ref().map(|it| it.workflow.to_string()))
        else {
            bail!(NotFound(format!("schedule {} does not exist: give --workflow to create it", quote(name))));
        };
        let has_arguments = self.arguments.is_some();
        let value = self.input.or(self.arguments);
        let input = match (&value, &stored) {
            (None, Some(_)) => None,
            _ => {
                let form = InputForm::find(store, &workflow, has_arguments).await?;
                Some(Payload::encode(&form.encode(value)?)?)
            }
        };
        let mut schedule = match (stored, input) {
            (Some(stored), None) => stored,
            (Some(stored), Some(input)) => stored.with_input(&input),
            (None, input) => {
                Schedule::of_payload(name.into(), workflow.as_str().into(), &input.unwrap_or_default())
            }
        };
        schedule.workflow = workflow.into();
        replace(&mut schedule.queue, self.queue);
        replace(&mut schedule.key, self.key);
        replace(&mut schedule.priority, self.priority);
        replace(&mut schedule.execution_timeout, self.execution_timeout);
        replace(&mut schedule.run_timeout, self.run_timeout);
        if self.attribute.iter().any(|change| change.0.is_none()) {
            schedule.attributes.clear();
        }
        for (name, value) in self.attribute.into_iter().filter_map(|change| change.0) {
            schedule = schedule.attribute(name, value);
        }
        Ok(schedule)
    }
}

impl TimingArgs {
    /// Returns the schedule with these values.
    fn apply(self, mut schedule: Schedule) -> Schedule {
        if let Some(cron) = self.cron {
            // the time zone of an earlier expression stays
            (schedule.every, schedule.at) = (None, None);
            schedule = schedule.cron(cron);
        } else if let Some(every) = self.every {
            schedule = schedule.without_timing().every(every);
        } else if let Some(at) = self.at {
            schedule = schedule.without_timing().at(at);
        }
        replace(&mut schedule.timezone, self.timezone);
        replace(&mut schedule.starts_at, self.starts_at);
        replace(&mut schedule.ends_at, self.ends_at);
        if let Some(Change(jitter)) = self.jitter {
            schedule.jitter = jitter.unwrap_or_default();
        }
        schedule
    }
}

/// Replaces a value by that of an option, if the option was given.
fn replace<T>(stored: &mut Option<T>, given: Option<Change<impl Into<T>>>) {
    if let Some(Change(value)) = given {
        *stored = value.map(Into::into);
    }
}

fn parse_overlap(text: &str) -> anyhow::Result<Overlap> {
    let names = Overlap::ALL.map(Overlap::as_str).join(", ");
    let found = Overlap::ALL.into_iter().find(|it| it.as_str() == text);
    found.ok_or_else(|| anyhow!("the policies are {names}"))
}

fn parse_catch_up(text: &str) -> anyhow::Result<CatchUp> {
    let names = CatchUp::ALL.map(CatchUp::as_str).join(", ");
    let found = CatchUp::ALL.into_iter().find(|it| it.as_str() == text);
    found.ok_or_else(|| anyhow!("the policies are {names}"))
}
