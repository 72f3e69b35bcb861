//! `stepfast token`: answers the tokens that executions have created.

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use stepfast::{Engine, Error, Failure};

use super::parse_value;
use crate::client::with_client;
use crate::output::{self, Exit};
use crate::workflow::StoreArgs;

/// Answer the tokens that executions have created.
#[derive(Subcommand)]
pub(crate) enum TokenCommand {
    /// Complete a token: its execution gets the value.
    Complete(CompleteTokenArgs),
    /// Fail a token: its execution gets an error.
    Fail(FailTokenArgs),
}

#[derive(Args)]
pub(crate) struct CompleteTokenArgs {
    #[command(flatten)]
    target: StoreArgs,
    /// The id of the token.
    token: String,
    /// The value, as JSON.
    value: String,
}

#[derive(Args)]
pub(crate) struct FailTokenArgs {
    #[command(flatten)]
    target: StoreArgs,
    /// The id of the token.
    token: String,
    /// The message of the error.
    message: String,
}

impl TokenCommand {
    pub(crate) async fn run(self) -> anyhow::Result<Exit> {
        match self {
            TokenCommand::Complete(complete) => complete.run().await,
            TokenCommand::Fail(fail) => fail.run().await,
        }
    }
}

impl CompleteTokenArgs {
    async fn run(self) -> anyhow::Result<Exit> {
        let value: Value = parse_value("the value of the token", &self.value)?;
        let complete = async |client: &Engine| client.complete_token(&self.token, &value).await;
        answer(&self.target, &self.token, "completed", complete).await
    }
}

impl FailTokenArgs {
    async fn run(self) -> anyhow::Result<Exit> {
        let fail = async |client: &Engine| client.fail_token(&self.token, Failure::new(&*self.message)).await;
        answer(&self.target, &self.token, "failed", fail).await
    }
}

/// Answers a token, and prints the result.
async fn answer(
    target: &StoreArgs,
    token: &str,
    result: &str,
    answer: impl AsyncFnOnce(&Engine) -> Result<(), Error>,
) -> anyhow::Result<Exit> {
    let store = stepfast::connect_existing(&target.store).await?;
    with_client(store, async |client| Ok(answer(client).await?)).await?;
    if target.json {
        output::print_json(&json!({ "token": token, "result": result }))?;
    } else {
        output::print(result);
    }
    Ok(Exit::Done)
}
