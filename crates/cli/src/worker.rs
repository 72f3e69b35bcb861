//! `stepfast worker`: the registered workers, and the executions that none of them can run.

use clap::{Args, Subcommand};
use comfy_table::Table;
use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use serde_json::{Value, json};
use stepfast::Error;
use stepfast::store::{RegisteredWorker, UnclaimableWork, WorkerOverview};

use crate::output::{self, Exit};
use crate::unclaimable::unclaimable_reason;
use crate::workflow::StoreArgs;

/// Show workers.
#[derive(Subcommand)]
pub(crate) enum WorkerCommand {
    /// List workers and clients, and the executions that no live worker can run.
    List(ListWorkersArgs),
}

#[derive(Args)]
pub(crate) struct ListWorkersArgs {
    #[command(flatten)]
    target: StoreArgs,
}

impl WorkerCommand {
    pub(crate) async fn run(self) -> anyhow::Result<Exit> {
        match self {
            WorkerCommand::List(list) => list.run().await,
        }
    }
}

impl ListWorkersArgs {
    async fn run(self) -> anyhow::Result<Exit> {
        let store = stepfast::connect_existing(&self.target.store).await?;
        let overview = store.workers(u64::MAX, true).await.map_err(Error::from)?.without_built_in();
        if self.target.json {
            output::print_json(&workers_json(&overview))?;
        } else {
            output::print(&worker_table(&overview.workers));
            for line in overview.unclaimable().iter().map(describe_unclaimable) {
                output::print(&line);
            }
        }
        Ok(Exit::Done)
    }
}

fn worker_table(rows: &[RegisteredWorker]) -> String {
    if rows.is_empty() {
        return "no workers are registered".to_owned();
    }
    let mut table = Table::new();
    table.load_style(UTF8_HORIZONTAL_ONLY).set_header([
        "worker",
        "host",
        "pid",
        "state",
        "version",
        "running",
        "registered at",
        "workflows",
    ]);
    for row in rows {
        table.add_row([
            row.worker.0.to_string(),
            row.info.host.clone(),
            row.info.pid.to_string(),
            state(row).to_owned(),
            row.info.app_version.as_deref().unwrap_or("any").to_owned(),
            row.running.to_string(),
            output::format_instant(row.registered_at),
            row.info.workflows.join(", "),
        ]);
    }
    table.to_string()
}

fn state(row: &RegisteredWorker) -> &'static str {
    match (row.is_alive, row.info.is_client) {
        (true, true) => "client",
        (true, false) => "alive",
        (false, _) => "dead",
    }
}

/// Describes executions that no live worker can run: their number, the reason, and the remedy.
fn describe_unclaimable(it: &UnclaimableWork) -> String {
    let UnclaimableWork { workflow, executions, .. } = it;
    let (many, verb) = if *executions == 1 { ("execution", "waits") } else { ("executions", "wait") };
    format!("{executions} {many} of workflow {workflow:?} {verb}: {}", unclaimable_reason(it))
}

fn workers_json(overview: &WorkerOverview) -> Value {
    let workers: Vec<Value> = overview
        .workers
        .iter()
        .map(|row| {
            json!({
                "worker": row.worker.0,
                "host": row.info.host,
                "pid": row.info.pid,
                "state": state(row),
                "is_alive": row.is_alive,
                "is_client": row.info.is_client,
                "app_version": row.info.app_version.as_deref(),
                "engine": row.info.engine,
                "workflows": row.info.workflows.iter().map(|name| &**name).collect::<Vec<_>>(),
                "running": row.running,
                "registered_at": output::format_instant(row.registered_at),
                "lease_expires_at": row.lease_expires_at.map(output::format_instant),
            })
        })
        .collect();
    let unclaimable: Vec<Value> = overview
        .unclaimable()
        .iter()
        .map(|it| {
            json!({
                "workflow": &*it.workflow,
                "app_version": it.app_version.as_deref(),
                "executions": it.executions,
                "reason": if it.is_version_missing { "version" } else { "workflow" },
                "detail": describe_unclaimable(it),
            })
        })
        .collect();
    json!({ "workers": workers, "unclaimable": unclaimable })
}
