//! `stepfast queue dead-letters`: rows of the inbox that could not become executions.

use clap::Args;
use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use comfy_table::{ContentArrangement, Table};
use serde_json::{Value, json};
use stepfast::Error;
use stepfast::store::DeadLetter;

use crate::output::{self, Exit, cell_text};
use crate::workflow::{StoreArgs, parse_list_limit};

#[derive(Args)]
pub(crate) struct DeadLettersArgs {
    #[command(flatten)]
    target: StoreArgs,
    /// Maximum number of dead letters.
    #[arg(long, default_value_t = stepfast::store::DEFAULT_LIMIT, value_parser = parse_list_limit)]
    limit: usize,
}

impl DeadLettersArgs {
    pub(crate) async fn run(self) -> anyhow::Result<Exit> {
        let store = stepfast::connect_existing(&self.target.store).await?;
        let letters = store.dead_letters(self.limit as u64).await.map_err(Error::from)?;
        if self.target.json {
            let letters: Vec<Value> = letters.iter().map(dead_letter_json).collect();
            output::print_json(&json!({ "dead_letters": letters }))?;
        } else {
            output::print(&dead_letter_table(&letters));
        }
        Ok(Exit::Done)
    }
}

fn dead_letter_table(letters: &[DeadLetter]) -> String {
    if letters.is_empty() {
        return "no dead letters".to_owned();
    }
    let mut table = Table::new();
    table
        .load_style(UTF8_HORIZONTAL_ONLY)
        // the cells contain sentences, so the table is as wide as the terminal, if there is one
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_header(["letter", "rejected at", "workflow", "workflow_id", "queue", "reason"]);
    for letter in letters {
        table.add_row([
            letter.id.to_string(),
            output::format_instant(letter.rejected_at),
            cell_text(&letter.workflow),
            cell_text(&letter.requested_id()),
            cell_text(letter.queue.as_deref().unwrap_or_default()),
            cell_text(&letter.reason),
        ]);
    }
    table.to_string()
}

fn dead_letter_json(letter: &DeadLetter) -> Value {
    json!({
        "id": letter.id,
        "put_at": output::format_instant(letter.created_at),
        "rejected_at": output::format_instant(letter.rejected_at),
        "workflow": letter.workflow,
        "workflow_id": letter.requested_id(),
        "key": letter.key.to_string(),
        "queue": letter.queue,
        "reason": letter.reason,
    })
}
