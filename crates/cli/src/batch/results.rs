//! `stepfast batch results`: the results of a batch's items.

use std::pin::pin;

use clap::Args;
use futures_util::StreamExt;
use serde_json::{Value, json};
use stepfast::{BatchHandle, Error, Failure, ItemResult, Payload};

use crate::client::with_batch;
use crate::output::{self, Exit};
use crate::value::payload_json;
use crate::workflow::StoreArgs;

#[derive(Args)]
pub(crate) struct BatchResultsArgs {
    #[command(flatten)]
    target: StoreArgs,
    /// The batch's id.
    batch_id: String,
    /// Only the items that failed.
    #[arg(long)]
    failed: bool,
}

impl BatchResultsArgs {
    pub(super) async fn run(self) -> anyhow::Result<Exit> {
        with_batch(&self.target.store, &self.batch_id, async |batch: BatchHandle<Payload>| {
            let mut results = pin!(batch.payloads());
            while let Some(item) = results.next().await {
                let item = item?;
                if !self.failed || matches!(item.result, Err(Error::Failed(_))) {
                    output::print_json_line(&item_json(&item)?);
                }
            }
            Ok(Exit::Done)
        })
        .await
    }
}

fn item_json(item: &ItemResult<Payload>) -> anyhow::Result<Value> {
    let index = item.index;
    let failed = |status: &str, failure: &Failure| -> anyhow::Result<Value> {
        let error = payload_json(&Payload::encode(failure)?);
        Ok(json!({ "index": index, "status": status, "error": error }))
    };
    match &item.result {
        Ok(output) => Ok(json!({ "index": index, "status": "completed", "output": payload_json(output) })),
        Err(Error::Failed(failure)) => failed("failed", failure),
        Err(Error::Cancelled(failure)) => failed("cancelled", failure),
        Err(Error::Parked { failure, .. }) => failed("parked", failure),
        Err(error) => Err(error.clone().into()),
    }
}
