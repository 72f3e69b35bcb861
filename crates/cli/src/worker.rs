//! `stepfast worker`: the registered workers, and the executions that none of them can run.

use clap::{Args, Subcommand};
use comfy_table::Table;
use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use serde_json::{Value, json};
use stepfast::Error;
use stepfast::store::{WorkerOverview, UnclaimableWork, RegisteredWorker};

use crate::output::{self, Exit};
use crate::unclaimable::why;
use crate::workflow::At;

/// Show workers.
#[derive(Subcommand)]
pub(crate) enum Worker {
    /// List workers and clients, and the executions that no live worker can run.
    List(List),
}

#[derive(Args)]
pub(crate) struct List {
    #[command(flatten)]
    at: At,
}

impl Worker {
    pub(crate) async fn run(self) -> anyhow::Result<Exit> {
        match self {
            Worker::List(list) => list.run().await,
        }
    }
}

impl List {
    async fn run(self) -> anyhow::Result<Exit> {
        let store = stepfast::connect_existing(&self.at.store).await?;
        let survey = store.workers(u64::MAX).await.map_err(Error::from)?;
        if self.at.json {
            output::print_json(&json(&survey))?;
        } else {
            output::print(&workers(&survey.workers));
            for line in survey.unclaimable().iter().map(complaint) {
                output::print(&line);
            }
        }
        Ok(Exit::Done)
    }
}

fn workers(rows: &[RegisteredWorker]) -> String {
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
            output::at(row.registered_at),
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

/// Describes executions that no live worker can run: how many, why, and what to do.
fn complaint(it: &UnclaimableWork) -> String {
    let UnclaimableWork { workflow, executions, .. } = it;
    let (many, verb) = if *executions == 1 { ("execution", "waits") } else { ("executions", "wait") };
    format!("{executions} {many} of workflow {workflow:?} {verb}: {}", why(it))
}

fn json(survey: &WorkerOverview) -> Value {
    let workers: Vec<Value> = survey
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
                "registered_at": output::at(row.registered_at),
                "lease_expires_at": row.lease_expires_at.map(output::at),
            })
        })
        .collect();
    let unclaimable: Vec<Value> = survey
        .unclaimable()
        .iter()
        .map(|it| {
            json!({
                "workflow": &*it.workflow,
                "app_version": it.app_version.as_deref(),
                "executions": it.executions,
                "reason": if it.is_version_missing { "version" } else { "workflow" },
                "detail": complaint(it),
            })
        })
        .collect();
    json!({ "workers": workers, "unclaimable": unclaimable })
}
