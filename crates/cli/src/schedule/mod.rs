//! `stepfast schedule`: lists, shows and changes schedules, starts their executions, and lists those.

mod history;
mod set;
mod view;

use std::time::Duration;

use anyhow::anyhow;
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use stepfast::clock::Timestamp;
use stepfast::text::abbreviate;
use stepfast::{Client, Error, Payload, ScheduleView};

use self::view::{describe, schedule_json, schedule_table, schedule_text, shown_json};
use crate::arguments::parse_seconds;
use crate::client::with_client;
use crate::output::{self, Exit};
use crate::workflow::{StoreArgs, parse_instant_or_age};

/// Show schedules, change them, and start their executions.
#[derive(Subcommand)]
pub(crate) enum ScheduleCommand {
    /// List schedules, ordered by name.
    List(ListSchedulesArgs),
    /// Show a schedule, its state, and its next instants.
    Show(ScheduleArgs),
    /// Create a schedule, or change it: values that are not given stay as they are.
    Set(Box<set::SetScheduleArgs>),
    /// Pause a schedule: it starts no further executions until it is resumed, and executions that run continue.
    Pause(PauseScheduleArgs),
    /// Resume a paused schedule, from its next instant on.
    Resume(ScheduleArgs),
    /// Delete a schedule. Executions that it has started continue.
    Delete(ScheduleArgs),
    /// Start an execution of a schedule now, even if it is paused, and print the workflow_id.
    Trigger(TriggerScheduleArgs),
    /// Start the executions of past instants that have none.
    Backfill(BackfillScheduleArgs),
    /// List the executions that a schedule has started, newest first.
    History(history::ScheduleHistoryArgs),
}

#[derive(Args)]
pub(crate) struct ListSchedulesArgs {
    #[command(flatten)]
    target: StoreArgs,
}

#[derive(Args)]
pub(crate) struct ScheduleArgs {
    #[command(flatten)]
    target: StoreArgs,
    /// The schedule's name.
    name: String,
}

#[derive(Args)]
pub(crate) struct PauseScheduleArgs {
    #[command(flatten)]
    named: ScheduleArgs,
    /// The reason, for people.
    #[arg(long, value_name = "TEXT", default_value = "")]
    reason: String,
}

#[derive(Args)]
pub(crate) struct TriggerScheduleArgs {
    #[command(flatten)]
    named: ScheduleArgs,
    /// The longest time to wait until a worker has started the execution, in seconds.
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    timeout: Option<Duration>,
}

#[derive(Args)]
pub(crate) struct BackfillScheduleArgs {
    #[command(flatten)]
    named: ScheduleArgs,
    /// The first instant, at or after this: an instant (2026-11-21T10:00:00Z) or an age (90s, 15m, 2h, 7d).
    #[arg(long, value_name = "WHEN", value_parser = parse_instant_or_age)]
    from: Timestamp,
    /// The last instant, at or before this, and in the past: an instant or an age.
    #[arg(long, value_name = "WHEN", value_parser = parse_instant_or_age)]
    to: Timestamp,
}

impl ScheduleCommand {
    pub(crate) async fn run(self) -> anyhow::Result<Exit> {
        match self {
            ScheduleCommand::List(list) => list.run().await,
            ScheduleCommand::Show(named) => named.show().await,
            ScheduleCommand::Set(set) => set.run().await,
            ScheduleCommand::Pause(pause) => pause.run().await,
            ScheduleCommand::Resume(named) => {
                let resume = async |client: &Client, name: &str| client.resume_schedule(name).await;
                named.change(["resumed", "already resumed"], resume).await
            }
            ScheduleCommand::Delete(named) => named.delete().await,
            ScheduleCommand::Trigger(trigger) => trigger.run().await,
            ScheduleCommand::Backfill(backfill) => backfill.run().await,
            ScheduleCommand::History(history) => history.run().await,
        }
    }
}

impl ListSchedulesArgs {
    async fn run(self) -> anyhow::Result<Exit> {
        let store = stepfast::connect_existing(&self.target.store).await?;
        let views = with_client(store, async |client| Ok(client.schedules().await?)).await?;
        if self.target.json {
            let schedules: Vec<Value> = views.iter().map(schedule_json).collect();
            output::print_json(&json!({ "schedules": schedules }))?;
        } else {
            output::print(&schedule_table(&views));
        }
        Ok(Exit::Done)
    }
}

impl ScheduleArgs {
    async fn show(self) -> anyhow::Result<Exit> {
        let store = stepfast::connect_existing(&self.target.store).await?;
        let view = with_client(store, async |client| Ok(client.schedule(&self.name).await?)).await?;
        if self.target.json {
            output::print_json(&shown_json(&view)?)?;
        } else {
            output::print(&schedule_text(&view)?);
        }
        Ok(Exit::Done)
    }

    async fn delete(self) -> anyhow::Result<Exit> {
        let store = stepfast::connect_existing(&self.target.store).await?;
        with_client(store, async |client| Ok(client.delete_schedule(&self.name).await?)).await?;
        if self.target.json {
            output::print_json(&json!({ "schedule": self.name, "result": "deleted" }))?;
        } else {
            output::print(&format!("{}: deleted", self.name));
        }
        Ok(Exit::Done)
    }

    /// Changes the schedule and prints the result: the text `done` if the schedule has changed, or `already` if the
    /// schedule was in that state before.
    async fn change(
        self,
        [done, already]: [&str; 2],
        change: impl AsyncFnOnce(&Client, &str) -> Result<(), Error>,
    ) -> anyhow::Result<Exit> {
        let store = stepfast::connect_existing(&self.target.store).await?;
        let (before, after) = with_client(store, async |client| {
            let before = client.schedule(&self.name).await?;
            change(client, &self.name).await?;
            Ok((before, client.schedule(&self.name).await?))
        })
        .await?;
        let is_changed = before.pause != after.pause;
        self.print_changed(&after, is_changed, if is_changed { done } else { already })
    }

    /// Prints a schedule that a command has set, paused or resumed.
    fn print_changed(&self, view: &ScheduleView, is_changed: bool, result: &str) -> anyhow::Result<Exit> {
        if self.target.json {
            let mut shown = schedule_json(view);
            shown["is_changed"] = is_changed.into();
            output::print_json(&shown)?;
        } else {
            output::print(&format!("{}: {result} ({})", self.name, describe(view)));
        }
        Ok(Exit::Done)
    }
}

impl PauseScheduleArgs {
    async fn run(self) -> anyhow::Result<Exit> {
        let pause = async |client: &Client, name: &str| client.pause_schedule(name, &self.reason).await;
        self.named.change(["paused", "already paused"], pause).await
    }
}

impl TriggerScheduleArgs {
    async fn run(self) -> anyhow::Result<Exit> {
        let ScheduleArgs { target, name } = self.named;
        let store = stepfast::connect_existing(&target.store).await?;
        let workflow_id = with_client(store, async |client| {
            let trigger = client.trigger_schedule::<Payload>(&name);
            let handle = match self.timeout {
                None => trigger.await,
                Some(timeout) => tokio::time::timeout(timeout, trigger).await.map_err(|_| {
                    anyhow!("no worker has started the execution in time; the next worker starts it")
                })?,
            };
            match handle {
                Ok(handle) => Ok(handle.workflow_id()),
                // no execution has failed
                Err(Error::Failed(refusal)) => Err(anyhow!("{refusal}")),
                Err(error) => Err(error.into()),
            }
        })
        .await?;
        if target.json {
            output::print_json(&json!({ "schedule": name, "workflow_id": workflow_id }))?;
        } else {
            output::print(&workflow_id);
        }
        Ok(Exit::Done)
    }
}

impl BackfillScheduleArgs {
    async fn run(self) -> anyhow::Result<Exit> {
        let Self { named: ScheduleArgs { target, name }, from, to } = self;
        let store = stepfast::connect_existing(&target.store).await?;
        let instants =
            with_client(store, async |client| Ok(client.backfill_schedule(&name, from, to).await?)).await?;
        if target.json {
            output::print_json(&json!({ "schedule": name, "instants": instants }))?;
        } else {
            let noun = if instants == 1 { "instant" } else { "instants" };
            output::print(&format!(
                "{}: {instants} {noun}; executions start for those that have none",
                abbreviate(&name)
            ));
        }
        Ok(Exit::Done)
    }
}
