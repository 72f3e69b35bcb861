//! [`BatchState`]: a batch with the counts of its items, as tables, text and JSON.

use std::collections::BTreeMap;
use std::sync::Arc;

use comfy_table::Table;
use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use serde_json::{Value, json};
use stepfast::store::{Detail, Execution};
use stepfast::text::quote;
use stepfast::{BatchCounts, Error, Status, Store, find_record};

use crate::output::{cell_text, format_attributes, format_instant, format_queue};

/// A batch with the counts of its items.
pub(super) struct BatchState {
    execution: Execution,
    /// The number of items with which the batch was closed; `None` for an open batch, or one that has ended.
    closed_with: Option<u64>,
    counts: BatchCounts,
}

impl BatchState {
    /// Loads a batch by its id. Fails if the id belongs to another kind of execution.
    pub(super) async fn find(store: &Arc<dyn Store>, batch_id: &str) -> Result<Self, Error> {
        let execution = find_record(&**store, batch_id, Detail::Full).await?.execution;
        if !execution.key.is_batch() {
            let reason = format!("{} is an execution, not a batch; use `stepfast workflow`", quote(batch_id));
            return Err(Error::Invalid { input: "batch_id", reason });
        }
        Self::load(store, execution).await
    }

    /// Loads the counts of a batch whose row was read.
    pub(super) async fn load(store: &Arc<dyn Store>, execution: Execution) -> Result<Self, Error> {
        let items = store.batch_items(execution.key).await?;
        Ok(Self { counts: items.counts(), closed_with: items.closed_with, execution })
    }

    /// Returns the number of items that the batch has now or will have.
    pub(super) fn total(&self) -> u64 {
        self.closed_with.unwrap_or(0).max(self.counts.submitted)
    }

    /// Returns that number as a text, which says whether more items may be submitted.
    fn total_text(&self) -> String {
        let total = self.total();
        if self.is_open() { format!("{total} so far") } else { total.to_string() }
    }

    /// Returns the number of items that have ended.
    pub(super) fn ended(&self) -> u64 {
        self.counts.ended.total()
    }

    /// Whether the batch and all its items have ended. The items of a cancelled batch may end later than the batch.
    pub(super) fn has_ended(&self) -> bool {
        self.execution.status.is_terminal() && self.ended() == self.counts.submitted
    }

    /// Whether all items have completed.
    pub(super) fn is_success(&self) -> bool {
        self.execution.status == Status::Completed && self.counts.ended.completed == self.counts.submitted
    }

    /// Whether further items may be submitted.
    fn is_open(&self) -> bool {
        !self.execution.status.is_terminal() && self.closed_with.is_none()
    }

    /// Returns the counts of items, each with its name.
    fn named_counts(&self) -> [(&'static str, u64); 6] {
        let BatchCounts { queued, running, waiting, ended, .. } = self.counts;
        [
            ("queued", queued),
            ("running", running),
            ("waiting", waiting),
            ("completed", ended.completed),
            ("failed", ended.failed),
            ("cancelled", ended.cancelled),
        ]
    }

    /// Returns the counts that are not 0, in one line.
    pub(super) fn counts_text(&self) -> String {
        let counts = self.named_counts().into_iter().filter(|(_, count)| *count > 0);
        let counts: Vec<String> = counts.map(|(name, count)| format!("{count} {name}")).collect();
        counts.join(", ")
    }

    /// Returns the progress in one line.
    pub(super) fn progress_line(&self) -> String {
        let (id, status) = (self.execution.workflow_id(), self.execution.status);
        let total = self.total_text();
        let counts = self.counts_text();
        let separator = if counts.is_empty() { "" } else { ": " };
        format!("{id}  {status}  {} of {total} ended{separator}{counts}", self.ended())
    }

    pub(super) fn to_text(&self) -> String {
        let execution = &self.execution;
        let mut text = format!("batch {}\n", execution.workflow_id());
        let mut line = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                text += &format!("{name:12}{value}\n");
            }
        };
        line("workflow", Some(execution.workflow.to_string()));
        line("status", Some(execution.status.to_string()));
        line("queue", execution.placement.as_deref().map(|placement| format_queue(placement, execution)));
        line("attributes", (!execution.attributes.is_empty()).then(|| format_attributes(execution)));
        line("created at", Some(format_instant(execution.created_at)));
        line("ended at", execution.ended_at.map(format_instant));
        line("items", Some(self.total_text()));
        let mut table = Table::new();
        let counts = self.named_counts();
        table.load_style(UTF8_HORIZONTAL_ONLY).set_header(counts.map(|(name, _)| name));
        table.add_row(counts.map(|(_, count)| count.to_string()));
        text + &table.to_string()
    }

    pub(super) fn to_json(&self) -> Value {
        let execution = &self.execution;
        let placement = execution.placement.as_deref();
        json!({
            "batch_id": execution.workflow_id(),
            "key": execution.key.to_string(),
            "workflow": &*execution.workflow,
            "status": execution.status.as_str(),
            "is_open": self.is_open(),
            "queue": placement.map(|placement| &*placement.queue),
            "queue_key": placement.map(|placement| &*placement.key).filter(|key| !key.is_empty()),
            "priority": placement.map_or(0, |placement| placement.priority),
            "attributes": execution.attributes.iter().collect::<BTreeMap<_, _>>(),
            "created_at": format_instant(execution.created_at),
            "ended_at": execution.ended_at.map(format_instant),
            "total": self.total(),
            "submitted": self.counts.submitted,
            "items": self.named_counts().into_iter().collect::<BTreeMap<_, _>>(),
        })
    }
}

/// Returns a table of batches with the counts of their items.
pub(super) fn batches_table(batches: &[BatchState]) -> String {
    let mut table = Table::new();
    let mut header = vec!["batch_id", "workflow", "status", "created at", "items"];
    header.extend(batches.first().map(BatchState::named_counts).into_iter().flatten().map(|(name, _)| name));
    table.load_style(UTF8_HORIZONTAL_ONLY).set_header(header);
    for batch in batches {
        let mut row = vec![
            cell_text(&batch.execution.workflow_id()),
            cell_text(&batch.execution.workflow),
            batch.execution.status.to_string(),
            format_instant(batch.execution.created_at),
            batch.total_text(),
        ];
        row.extend(batch.named_counts().map(|(_, count)| count.to_string()));
        table.add_row(row);
    }
    table.to_string()
}
