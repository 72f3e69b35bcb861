//! `stepfast message`: sends messages to executions.

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use stepfast::text::abbreviate;

use super::parse_value;
use crate::client::with_client;
use crate::output::{self, Exit};
use crate::workflow::StoreArgs;

/// Send messages to executions.
#[derive(Subcommand)]
pub(crate) enum MessageCommand {
    /// Send a message to an execution. The code of its workflow receives the message.
    Send(SendMessageArgs),
}

#[derive(Args)]
pub(crate) struct SendMessageArgs {
    #[command(flatten)]
    target: StoreArgs,
    /// The workflow_id of the receiver.
    workflow_id: String,
    /// The value, as JSON.
    value: String,
    /// The topic of the message.
    #[arg(long)]
    topic: Option<String>,
    /// An id of the message. A second message with the same id is not sent.
    #[arg(long)]
    id: Option<String>,
    /// Keep the message if no execution has the workflow_id yet. An execution that is started later receives it.
    #[arg(long)]
    keep: bool,
}

impl MessageCommand {
    pub(crate) async fn run(self) -> anyhow::Result<Exit> {
        match self {
            MessageCommand::Send(send) => send.run().await,
        }
    }
}

impl SendMessageArgs {
    async fn run(self) -> anyhow::Result<Exit> {
        let value: Value = parse_value("the value of the message", &self.value)?;
        let store = stepfast::connect_existing(&self.target.store).await?;
        let sent = with_client(store, async |client| {
            let mut message = client.send(&self.workflow_id, &value);
            if let Some(topic) = &self.topic {
                message = message.topic(&**topic);
            }
            if let Some(id) = &self.id {
                message = message.message_id(&**id);
            }
            if self.keep {
                message = message.keep();
            }
            Ok(message.await?)
        })
        .await?;
        if self.target.json {
            output::print_json(&json!({ "workflow_id": self.workflow_id, "result": sent.as_str() }))?;
        } else {
            output::print(&format!("{}: {}", abbreviate(&self.workflow_id), sent.as_str()));
        }
        Ok(Exit::Done)
    }
}
