//! `stepfast ask`: asks executions questions.

use std::time::Duration;

use anyhow::{anyhow, bail};
use clap::Args;
use serde_json::{Value, json};
use stepfast::Error;
use stepfast::text::quote;

use super::parse_value;
use crate::arguments::parse_seconds;
use crate::client::with_client;
use crate::output::{self, Exit};
use crate::value::payload_json;
use crate::workflow::StoreArgs;

#[derive(Args)]
pub(crate) struct AskArgs {
    #[command(flatten)]
    target: StoreArgs,
    /// The workflow_id of the execution.
    workflow_id: String,
    /// The value, as JSON.
    value: String,
    /// The topic of the question.
    #[arg(long)]
    topic: Option<String>,
    /// The longest time to wait for the answer, in seconds.
    #[arg(long, value_parser = parse_seconds)]
    timeout: Option<Duration>,
    /// An id of the question. A second question with the same id is not asked; its answer is that of the first one.
    #[arg(long)]
    id: Option<String>,
}

impl AskArgs {
    pub(crate) async fn run(self) -> anyhow::Result<Exit> {
        let value: Value = parse_value("the value of the question", &self.value)?;
        let store = stepfast::connect_existing(&self.target.store).await?;
        let answer = with_client(store, async |client| {
            let mut question = client.ask::<Value>(&*self.workflow_id, &value);
            if let Some(topic) = &self.topic {
                question = question.topic(&**topic);
            }
            if let Some(id) = &self.id {
                question = question.message_id(&**id);
            }
            let answer = match self.timeout {
                Some(timeout) => question.timeout(timeout).payload().await,
                None => question.payload().await,
            };
            match answer {
                // the execution itself has not failed
                Err(Error::Failed(refusal)) => Err(anyhow!("the question was refused: {refusal}")),
                answer => Ok(answer?),
            }
        })
        .await?;
        let Some(answer) = answer else {
            bail!("execution {} has not answered the question in time", quote(&self.workflow_id));
        };
        let answer = payload_json(&answer);
        if self.target.json {
            output::print_json(&json!({ "workflow_id": self.workflow_id, "answer": answer }))?;
        } else {
            output::print(&answer.to_string());
        }
        Ok(Exit::Done)
    }
}
