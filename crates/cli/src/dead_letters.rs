//! `stepfast queue dead-letters`: rows of the inbox that could not become executions.

use clap::Args;
use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use comfy_table::{ContentArrangement, Table};
use serde_json::{Value, json};
use stepfast::Error;
use stepfast::store::DeadLetter;

use crate::output::{self, Exit, plain};
use crate::workflow::{At, at_least_one};

#[derive(Args)]
pub(crate) struct DeadLetters {
    #[command(flatten)]
    at: At,
    /// Maximum number of dead letters.
    #[arg(long, default_value_t = stepfast::store::DEFAULT_LIMIT, value_parser = at_least_one)]
    limit: usize,
}

impl DeadLetters {
    pub(crate) async fn run(self) -> anyhow::Result<Exit> {
        let store = stepfast::connect_existing(&self.at.store).await?;
        let letters = store.dead_letters(self.limit as u64).await.map_err(Error::from)?;
        if self.at.json {
            let letters: Vec<Value> = letters.iter().map(json).collect();
            output::print_json(&json!({ "dead_letters": letters }))?;
        } else {
            output::print(&table(&letters));
        }
        Ok(Exit::Done)
    }
}

fn table(letters: &[DeadLetter]) -> String {
    if letters.is_empty() {
        return "no dead letters".to_owned();
    }
    let mut table = Table::new();
    table
        .load_style(UTF8_HORIZONTAL_ONLY)
        // sentences: as wide as the terminal, if there is one
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_header(["letter", "rejected at", "workflow", "workflow_id", "queue", "reason"]);
    for letter in letters {
        table.add_row([
            letter.id.to_string(),
            output::at(letter.rejected_at),
            plain(&letter.workflow),
            plain(&letter.requested_id()),
            plain(letter.queue.as_deref().unwrap_or_default()),
            plain(&letter.reason),
        ]);
    }
    table.to_string()
}

fn json(letter: &DeadLetter) -> Value {
    json!({
        "id": letter.id,
        "put_at": output::at(letter.created_at),
        "refused_at": output::at(letter.rejected_at),
        "workflow": letter.workflow,
        "workflow_id": letter.requested_id(),
        "key": letter.key.to_string(),
        "queue": letter.queue,
        "reason": letter.reason,
    })
}
