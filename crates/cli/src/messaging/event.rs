//! `stepfast event`: reads the events that executions set.

use std::time::Duration;

use anyhow::bail;
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use stepfast::text::quote;

use crate::arguments::parse_seconds;
use crate::client::with_client;
use crate::output::{self, Exit, cell_text, format_instant};
use crate::value::payload_json;
use crate::workflow::StoreArgs;

/// Read the events that executions set.
#[derive(Subcommand)]
pub(crate) enum EventCommand {
    /// Wait for an event of an execution, and print its value.
    Get(GetEventArgs),
    /// List all events that an execution has set, in their order.
    List(ListEventsArgs),
}

#[derive(Args)]
pub(crate) struct GetEventArgs {
    #[command(flatten)]
    target: StoreArgs,
    /// The workflow_id of the execution.
    workflow_id: String,
    /// The name of the event.
    name: String,
    /// The longest time to wait until the event is set, in seconds; 0 to print a value only if it is set.
    #[arg(long, value_parser = parse_seconds)]
    timeout: Option<Duration>,
}

#[derive(Args)]
pub(crate) struct ListEventsArgs {
    #[command(flatten)]
    target: StoreArgs,
    /// The workflow_id of the execution.
    workflow_id: String,
}

impl EventCommand {
    pub(crate) async fn run(self) -> anyhow::Result<Exit> {
        match self {
            EventCommand::Get(get) => get.run().await,
            EventCommand::List(list) => list.run().await,
        }
    }
}

impl GetEventArgs {
    async fn run(self) -> anyhow::Result<Exit> {
        let store = stepfast::connect_existing(&self.target.store).await?;
        let value = with_client(store, async |client| {
            let event = client.get_event::<Value>(&*self.workflow_id, &*self.name);
            Ok(match self.timeout {
                Some(timeout) => event.timeout(timeout).payload().await?,
                None => event.payload().await?,
            })
        })
        .await?;
        let Some(value) = value else {
            bail!("execution {} has not set the event {}", quote(&self.workflow_id), quote(&self.name));
        };
        let value = payload_json(&value);
        if self.target.json {
            let (workflow_id, name) = (&self.workflow_id, &self.name);
            output::print_json(&json!({ "workflow_id": workflow_id, "name": name, "value": value }))?;
        } else {
            output::print(&value.to_string());
        }
        Ok(Exit::Done)
    }
}

impl ListEventsArgs {
    async fn run(self) -> anyhow::Result<Exit> {
        let store = stepfast::connect_existing(&self.target.store).await?;
        let events = with_client(store, async |client| Ok(client.events(&self.workflow_id).await?)).await?;
        for event in events {
            let (name, value, set_at) =
                (&*event.name, payload_json(&event.value), format_instant(event.set_at));
            if self.target.json {
                output::print_json_line(&json!({ "name": name, "value": value, "set_at": set_at }));
            } else {
                output::print(&format!("{set_at}  {}  {value}", cell_text(name)));
            }
        }
        Ok(Exit::Done)
    }
}
