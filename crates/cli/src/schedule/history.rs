//! `stepfast schedule history`: lists the executions that a schedule has started.

use clap::Args;
use comfy_table::Table;
use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use serde_json::{Value, json};
use stepfast::schedule::{SCHEDULE_ATTRIBUTE, instant_of};
use stepfast::store::{Execution, Filter};
use stepfast::text::format_duration;
use stepfast::{Attributes, Error};

use super::ScheduleArgs;
use crate::client::with_client;
use crate::output::{self, Exit, cell_text};
use crate::workflow::parse_list_limit;

#[derive(Args)]
pub(crate) struct ScheduleHistoryArgs {
    #[command(flatten)]
    named: ScheduleArgs,
    /// Maximum number of executions.
    #[arg(long, default_value_t = stepfast::store::DEFAULT_LIMIT, value_parser = parse_list_limit)]
    limit: usize,
}

impl ScheduleHistoryArgs {
    pub(super) async fn run(self) -> anyhow::Result<Exit> {
        let ScheduleArgs { target, name } = self.named;
        let store = stepfast::connect_existing(&target.store).await?;
        let mut attributes = Attributes::NONE;
        attributes.set(SCHEDULE_ATTRIBUTE, name.as_str());
        let filter = Filter { attributes, limit: self.limit, ..Filter::default() };
        filter.check()?;
        let executions = store.list(&filter).await.map_err(Error::from)?.executions;
        if executions.is_empty() {
            // the executions of a deleted schedule are listed, too
            with_client(store, async |client| Ok(client.schedule(&name).await?)).await?;
        }
        if target.json {
            let executions: Vec<Value> = executions.iter().map(|it| history_json(it, &name)).collect();
            output::print_json(&json!({ "executions": executions }))?;
        } else if executions.is_empty() {
            output::print("no executions");
        } else {
            let mut table = Table::new();
            let header = ["instant", "workflow_id", "status", "duration"];
            table.load_style(UTF8_HORIZONTAL_ONLY).set_header(header);
            for execution in &executions {
                let cause = if is_triggered(execution, &name) { "triggered" } else { "" };
                table.add_row([
                    instant(execution).unwrap_or_else(|| cause.to_owned()),
                    cell_text(&execution.workflow_id()),
                    output::format_status(execution),
                    duration_ms(execution).map_or_else(String::new, format_duration),
                ]);
            }
            output::print(&table.to_string());
        }
        Ok(Exit::Done)
    }
}

/// Returns the instant for which an execution was started; `None` for a triggered one.
fn instant(execution: &Execution) -> Option<String> {
    execution.given_id.as_deref().and_then(instant_of).map(|instant| instant.to_string())
}

fn is_triggered(execution: &Execution, schedule: &str) -> bool {
    let id = execution.given_id.as_deref().and_then(|id| id.strip_prefix(schedule));
    id.is_some_and(|id| id.starts_with("@trigger-"))
}

/// Returns the time from the start of an execution to its end; `None` if it has not ended.
fn duration_ms(execution: &Execution) -> Option<i64> {
    let duration = execution.ended_at?.since(execution.created_at);
    Some(i64::try_from(duration.as_millis()).unwrap_or(i64::MAX))
}

fn history_json(execution: &Execution, schedule: &str) -> Value {
    json!({
        "instant": instant(execution),
        "is_triggered": is_triggered(execution, schedule),
        "workflow_id": execution.workflow_id(),
        "status": execution.status.as_str(),
        "created_at": output::format_instant(execution.created_at),
        "ended_at": execution.ended_at.map(output::format_instant),
        "duration_ms": duration_ms(execution),
    })
}
