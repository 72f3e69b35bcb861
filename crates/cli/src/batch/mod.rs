//! `stepfast batch`: submits, lists, shows, watches and cancels batches, and prints the results of their items.

mod results;
mod state;
mod submit;
mod watch;

use std::sync::Arc;

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use stepfast::store::{Detail, Execution, ExecutionId, RequestResult};
use stepfast::text::abbreviate;
use stepfast::{BatchHandle, Error, Payload, Store};

use self::state::{BatchState, batches_table};
use crate::client::with_batch;
use crate::output::{self, Exit};
use crate::workflow::{StoreArgs, parse_list_limit};

/// Submit batches, follow them, and print their results.
#[derive(Subcommand)]
pub(crate) enum BatchCommand {
    /// Submit a batch with one item for each line of a file.
    Submit(submit::SubmitBatchArgs),
    /// List batches, newest first.
    List(ListBatchesArgs),
    /// Show a batch, and the numbers of its items by state.
    Show(BatchArgs),
    /// Show the progress of a batch until all its items have ended. The exit code is 1 unless all of them completed.
    Watch(BatchArgs),
    /// Print the results of the items in their order, one JSON object per line, each as soon as it is known.
    Results(results::BatchResultsArgs),
    /// Retry the failed items of a batch: each continues as `workflow resume` continues an execution.
    Retry(BatchArgs),
    /// Cancel a batch: items that have not ended end as cancelled.
    Cancel(BatchArgs),
}

#[derive(Args)]
pub(crate) struct ListBatchesArgs {
    #[command(flatten)]
    target: StoreArgs,
    /// Only batches of this workflow.
    #[arg(long)]
    workflow: Option<String>,
    /// Maximum number of batches.
    #[arg(long, default_value_t = stepfast::store::DEFAULT_LIMIT, value_parser = parse_list_limit)]
    limit: usize,
}

#[derive(Args)]
pub(crate) struct BatchArgs {
    #[command(flatten)]
    target: StoreArgs,
    /// The batch's id.
    batch_id: String,
}

impl BatchCommand {
    pub(crate) async fn run(self) -> anyhow::Result<Exit> {
        match self {
            BatchCommand::Submit(submit) => submit.run().await,
            BatchCommand::List(list) => list.run().await,
            BatchCommand::Show(args) => args.show().await,
            BatchCommand::Watch(args) => args.watch().await,
            BatchCommand::Results(results) => results.run().await,
            BatchCommand::Retry(args) => args.retry().await,
            BatchCommand::Cancel(args) => args.cancel().await,
        }
    }
}

impl ListBatchesArgs {
    async fn run(self) -> anyhow::Result<Exit> {
        let store = stepfast::connect_existing(&self.target.store).await?;
        let batches = list_batches(&store, self.workflow.as_deref(), self.limit).await?;
        if self.target.json {
            let batches: Vec<Value> = batches.iter().map(BatchState::to_json).collect();
            output::print_json(&json!({ "batches": batches }))?;
        } else if batches.is_empty() {
            output::print("no batches");
        } else {
            output::print(&batches_table(&batches));
        }
        Ok(Exit::Done)
    }
}

impl BatchArgs {
    async fn show(self) -> anyhow::Result<Exit> {
        let store = stepfast::connect_existing(&self.target.store).await?;
        let batch = BatchState::find(&store, &self.batch_id).await?;
        if self.target.json {
            output::print_json(&batch.to_json())?;
        } else {
            output::print(&batch.to_text());
        }
        Ok(Exit::Done)
    }

    async fn watch(self) -> anyhow::Result<Exit> {
        let store = stepfast::connect_existing(&self.target.store).await?;
        watch::watch(&store, &self.batch_id, self.target.json).await
    }

    async fn retry(self) -> anyhow::Result<Exit> {
        let retry = async |batch: BatchHandle<Payload>| Ok(batch.retry_failed().await?);
        let retried = with_batch(&self.target.store, &self.batch_id, retry).await?;
        if self.target.json {
            output::print_json(&json!({ "batch_id": self.batch_id, "retried": retried }))?;
        } else {
            let items = if retried == 1 { "item" } else { "items" };
            output::print(&format!("{}: {retried} failed {items} retried", abbreviate(&self.batch_id)));
        }
        Ok(Exit::Done)
    }

    async fn cancel(self) -> anyhow::Result<Exit> {
        let cancel = async |batch: BatchHandle<Payload>| Ok(batch.cancel().await?);
        let result = with_batch(&self.target.store, &self.batch_id, cancel).await?;
        let (word, detail, exit) = match result {
            RequestResult::Done => ("done", None, Exit::Done),
            RequestResult::Pending => ("pending", None, Exit::Done),
            RequestResult::NotApplicable(status) => {
                ("not_applicable", Some(format!("its status is {status}")), Exit::NotApplicable)
            }
        };
        if self.target.json {
            output::print_json(&json!({ "batch_id": self.batch_id, "result": word, "detail": detail }))?;
        } else {
            let detail = detail.map_or(String::new(), |detail| format!(": {detail}"));
            output::print(&format!("{}: {word}{detail}", abbreviate(&self.batch_id)));
        }
        Ok(exit)
    }
}

/// Returns the newest batches with the counts of their items.
async fn list_batches(
    store: &Arc<dyn Store>,
    workflow: Option<&str>,
    limit: usize,
) -> Result<Vec<BatchState>, Error> {
    let mut batches = Vec::new();
    let mut before = None;
    while batches.len() < limit {
        before = store.newest_batch(before).await?;
        let Some(key) = before else { break };
        let record = store.load(&[ExecutionId::Key(key)], Detail::Outcome).await?.pop().flatten();
        let execution = record.map(|record| record.execution);
        let is_listed = |it: &Execution| workflow.is_none_or(|workflow| *it.workflow == *workflow);
        if let Some(execution) = execution.filter(is_listed) {
            batches.push(BatchState::load(store, execution).await?);
        }
    }
    Ok(batches)
}
