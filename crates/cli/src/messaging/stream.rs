//! `stepfast stream`: reads the streams that executions write.

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use stepfast::Path;

use crate::client::with_client;
use crate::output::{self, Exit, format_instant};
use crate::value::payload_json;
use crate::workflow::StoreArgs;

/// Read the streams that executions write.
#[derive(Subcommand)]
pub(crate) enum StreamCommand {
    /// Print the values of a stream, one a line, as JSON.
    Read(ReadStreamArgs),
}

#[derive(Args)]
pub(crate) struct ReadStreamArgs {
    #[command(flatten)]
    target: StoreArgs,
    /// The workflow_id of the execution.
    workflow_id: String,
    /// The name of the stream.
    stream: String,
    /// The offset of the first value to print.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(i64).range(0..))]
    offset: i64,
    /// Wait for further values, until the stream ends.
    #[arg(long)]
    follow: bool,
}

impl StreamCommand {
    pub(crate) async fn run(self) -> anyhow::Result<Exit> {
        match self {
            StreamCommand::Read(read) => read.run().await,
        }
    }
}

impl ReadStreamArgs {
    async fn run(self) -> anyhow::Result<Exit> {
        let store = stepfast::connect_existing(&self.target.store).await?;
        with_client(store, async |client| {
            let stream = client.read_stream::<Value>(&*self.workflow_id, &*self.stream).from(self.offset);
            let mut reader = if self.follow { stream.await? } else { stream.present_only().await? };
            loop {
                let entries = reader.next_entries().await?;
                if entries.is_empty() {
                    return Ok(Exit::Done);
                }
                for entry in entries {
                    let value = payload_json(&entry.value);
                    if !self.target.json {
                        output::print_json_line(&value);
                        continue;
                    }
                    let step = (entry.step != Path::root()).then(|| entry.step.to_string());
                    output::print_json_line(&json!({
                        "offset": entry.offset,
                        "value": value,
                        "written_at": format_instant(entry.written_at),
                        "step": step,
                        "attempt_offset": entry.attempt_offset,
                    }));
                }
            }
        })
        .await
    }
}
