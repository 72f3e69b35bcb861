//! `stepfast queue`: the queues, their limits, whether they are paused; and dead letters.

use std::collections::BTreeMap;

use clap::{Args, Subcommand};
use comfy_table::Table;
use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use serde_json::{Value, json};
use stepfast::queue::rate::Rate;
use stepfast::queue::{DEFAULT_QUEUE, Limits, QueueRow};
use stepfast::text::list_names;
use stepfast::{Client, Error};

use crate::client::with_client;
use crate::dead_letters::DeadLettersArgs;
use crate::output::{self, Exit};
use crate::workflow::StoreArgs;

/// Show queues, and change them.
#[derive(Subcommand)]
pub(crate) enum QueueCommand {
    /// List queues and their limits.
    List(ListQueuesArgs),
    /// Show one queue.
    Show(QueueArgs),
    /// Pause a queue: waiting executions stay in it, and running executions continue.
    Pause(QueueArgs),
    /// Resume a paused queue.
    Resume(QueueArgs),
    /// Create a queue, or change its limits: limits that are not given stay as they are.
    Set(SetQueueArgs),
    /// List dead letters, the latest first: starts from outboxes that could not become executions, with the reasons.
    DeadLetters(DeadLettersArgs),
}

#[derive(Args)]
pub(crate) struct ListQueuesArgs {
    #[command(flatten)]
    target: StoreArgs,
}

#[derive(Args)]
pub(crate) struct QueueArgs {
    #[command(flatten)]
    target: StoreArgs,
    /// The queue's name.
    name: String,
}

#[derive(Args)]
pub(crate) struct SetQueueArgs {
    #[command(flatten)]
    named: QueueArgs,
    /// Maximum number of executions that run at a time, in all processes together; "none" for no limit.
    #[arg(long, value_name = "N|none", value_parser = parse_limit)]
    concurrency: Option<LimitOption>,
    /// Maximum number of executions that run at a time in any one worker; "none" for no limit.
    #[arg(long, value_name = "N|none", value_parser = parse_limit)]
    worker_concurrency: Option<LimitOption>,
    /// Maximum number of executions of any one key that run at a time, in all processes together; "none" for no limit.
    #[arg(long, value_name = "N|none", value_parser = parse_limit)]
    key_concurrency: Option<LimitOption>,
    /// How often executions begin: "100/1m" permits at most 100 in any minute; "10/s burst 1" spaces them evenly, with
    /// 1 at once after a pause; "none" removes the limit.
    #[arg(long, value_name = "RATE|none", value_parser = parse_rate)]
    rate: Option<RateOption>,
    /// How often executions of any one key begin; like --rate.
    #[arg(long, value_name = "RATE|none", value_parser = parse_rate)]
    key_rate: Option<RateOption>,
    /// Maximum number of executions that wait in the queue to begin. Further starts are rejected, or wait until the
    /// queue has space; "none" for no limit.
    #[arg(long, value_name = "N|none", value_parser = parse_limit)]
    max_depth: Option<LimitOption>,
    /// Give a key N shares of the queue where other keys have one; 1 removes the weight. May be given several times.
    #[arg(long, value_name = "KEY=N", value_parser = parse_weight)]
    key_weight: Vec<(String, u32)>,
}

/// The argument of a rate option: a rate, or `None` for no limit.
#[derive(Clone, Copy)]
struct RateOption(Option<Rate>);

/// The argument of a limit option: a number, or `None` for no limit.
#[derive(Clone, Copy)]
struct LimitOption(Option<u32>);

impl QueueCommand {
    pub(crate) async fn run(self) -> anyhow::Result<Exit> {
        match self {
            QueueCommand::List(list) => list.run().await,
            QueueCommand::Show(named) => named.show().await,
            QueueCommand::Pause(named) => named.set_paused(true).await,
            QueueCommand::Resume(named) => named.set_paused(false).await,
            QueueCommand::Set(set) => set.run().await,
            QueueCommand::DeadLetters(letters) => letters.run().await,
        }
    }
}

impl ListQueuesArgs {
    async fn run(self) -> anyhow::Result<Exit> {
        let store = stepfast::connect_existing(&self.target.store).await?;
        let rows = store.queues(None).await.map_err(Error::from)?;
        if self.target.json {
            let queues: Vec<Value> = rows.iter().map(queue_json).collect();
            output::print_json(&json!({ "queues": queues }))?;
        } else {
            output::print(&queue_table(&rows));
        }
        Ok(Exit::Done)
    }
}

impl QueueArgs {
    async fn show(self) -> anyhow::Result<Exit> {
        let store = stepfast::connect_existing(&self.target.store).await?;
        if self.name == DEFAULT_QUEUE {
            let reason = format!(
                "{DEFAULT_QUEUE:?} holds the executions without a queue, and has no settings: name another queue"
            );
            return Err(Error::Invalid { input: "queue", reason }.into());
        }
        let rows = store.queues(None).await.map_err(Error::from)?;
        let Some(row) = rows.iter().find(|row| *row.queue.name == *self.name) else {
            let known = list_names(rows.iter().map(|row| &*row.queue.name));
            return Err(Error::UnknownQueue { name: self.name, known }.into());
        };
        if self.target.json {
            output::print_json(&queue_json(row))?;
        } else {
            output::print(&queue_text(row));
        }
        Ok(Exit::Done)
    }

    async fn set_paused(self, is_paused: bool) -> anyhow::Result<Exit> {
        let words = if is_paused { ["paused", "already paused"] } else { ["resumed", "already open"] };
        self.change(words, async |client, name| {
            if is_paused { client.pause_queue(name).await } else { client.resume_queue(name).await }
        })
        .await
    }

    /// Changes the queue and prints the result: the text `done` if the queue has changed, or `already` if the queue was
    /// in that state before.
    async fn change(
        self,
        [done, already]: [&str; 2],
        change: impl AsyncFnOnce(&Client, &str) -> Result<QueueRow, Error>,
    ) -> anyhow::Result<Exit> {
        let store = stepfast::connect_existing(&self.target.store).await?;
        let (before, row) = with_client(store, async |client| {
            let before = client.queues().await?.into_iter().find(|row| *row.queue.name == *self.name);
            Ok((before, change(client, &self.name).await?))
        })
        .await?;
        let is_changed = before.as_ref() != Some(&row);
        if self.target.json {
            let mut shown = queue_json(&row);
            shown["is_changed"] = is_changed.into();
            output::print_json(&shown)?;
        } else {
            let result = match (before, is_changed) {
                (None, _) => "created",
                (_, true) => done,
                (_, false) => already,
            };
            let names = ["concurrency", "per worker", "per key", "rate", "rate per key", "depth", "weights"];
            let limits = names.into_iter().zip(format_limits(&row).into_iter().chain([format_weights(&row)]));
            let limits = limits.filter(|(_, limit)| limit != "none");
            let limits = limits.map(|(name, limit)| format!("{name} {limit}"));
            let shown: Vec<String> = limits.chain([state(&row).to_owned()]).collect();
            output::print(&format!("{}: {result} ({})", self.name, shown.join(", ")));
        }
        Ok(Exit::Done)
    }
}

impl SetQueueArgs {
    async fn run(self) -> anyhow::Result<Exit> {
        let Self {
            named,
            concurrency,
            worker_concurrency,
            key_concurrency,
            rate,
            key_rate,
            max_depth,
            key_weight,
        } = self;
        let change = |mut limits: Limits| {
            for (limit, given) in [
                (&mut limits.concurrency, concurrency),
                (&mut limits.worker_concurrency, worker_concurrency),
                (&mut limits.key_concurrency, key_concurrency),
                (&mut limits.max_depth, max_depth),
            ] {
                *limit = given.map_or(*limit, |given| given.0);
            }
            for (stored, given) in [(&mut limits.rate, rate), (&mut limits.key_rate, key_rate)] {
                *stored = given.map_or(*stored, |given| given.0);
            }
            for (key, weight) in &key_weight {
                limits.key_weights.set(key, *weight);
            }
            limits
        };
        let words = ["changed", "unchanged"];
        named.change(words, async |client, name| client.change_queue(name, change).await).await
    }
}

fn parse_limit(text: &str) -> Result<LimitOption, String> {
    if text == "none" {
        return Ok(LimitOption(None));
    }
    text.parse()
        .map(|limit| LimitOption(Some(limit)))
        .map_err(|_| "give a whole number, or \"none\"".to_owned())
}

/// Parses a queue key, which may contain equals signs, and its weight.
fn parse_weight(text: &str) -> Result<(String, u32), String> {
    let parts = text.rsplit_once('=').and_then(|(key, weight)| Some((key.to_owned(), weight.parse().ok()?)));
    parts.ok_or_else(|| "give a key and a whole number, as in \"ann=5\"".to_owned())
}

fn parse_rate(text: &str) -> Result<RateOption, String> {
    if text == "none" { Ok(RateOption(None)) } else { text.parse().map(|rate| RateOption(Some(rate))) }
}

fn queue_table(rows: &[QueueRow]) -> String {
    if rows.is_empty() {
        return "no queues".to_owned();
    }
    let mut table = Table::new();
    table.load_style(UTF8_HORIZONTAL_ONLY).set_header([
        "queue",
        "concurrency",
        "per worker",
        "per key",
        "rate",
        "rate per key",
        "depth",
        "state",
        "changed",
    ]);
    for row in rows {
        let mut cells = vec![row.queue.name.to_string()];
        cells.extend(format_limits(row));
        cells.extend([state(row).to_owned(), output::format_instant(row.changed_at)]);
        table.add_row(cells);
    }
    table.to_string()
}

fn queue_text(row: &QueueRow) -> String {
    let [concurrency, per_worker, per_key, rate, key_rate, depth] = format_limits(row);
    format!(
        "queue {}\nconcurrency  {concurrency}\nper worker   {per_worker}\nper key      {per_key}\nrate         \
         {rate}\nrate per key {key_rate}\ndepth        {depth}\nweights      {}\nstate        {}\nchanged      {}",
        row.queue.name,
        format_weights(row),
        state(row),
        output::format_instant(row.changed_at)
    )
}

/// Formats the limits in the order of the table: in all processes, per worker, per key, rate, rate per key, depth.
fn format_limits(row: &QueueRow) -> [String; 6] {
    let Limits { concurrency, worker_concurrency, key_concurrency, rate, key_rate, max_depth, .. } =
        row.queue.limits;
    let count = |limit: Option<u32>| limit.map_or("none".to_owned(), |limit| limit.to_string());
    let often = |rate: Option<Rate>| rate.map_or("none".to_owned(), |rate| rate.to_string());
    let counts = [concurrency, worker_concurrency, key_concurrency, max_depth].map(count);
    let [all, of_worker, of_key, depth] = counts;
    [all, of_worker, of_key, often(rate), often(key_rate), depth]
}

/// Formats the weights of queue keys.
fn format_weights(row: &QueueRow) -> String {
    let all: Vec<String> =
        row.queue.limits.key_weights.iter().map(|(key, weight)| format!("{key}={weight}")).collect();
    if all.is_empty() { "none".to_owned() } else { all.join(" ") }
}

fn state(row: &QueueRow) -> &'static str {
    if row.is_paused { "paused" } else { "open" }
}

fn queue_json(row: &QueueRow) -> Value {
    let Limits { concurrency, worker_concurrency, key_concurrency, rate, key_rate, max_depth, key_weights } =
        &row.queue.limits;
    let often = |rate: &Option<Rate>| {
        rate.map(|rate| json!({ "starts": rate.starts, "period_ms": rate.period_ms(), "burst": rate.burst }))
    };
    json!({
        "queue": &*row.queue.name,
        "concurrency": concurrency,
        "worker_concurrency": worker_concurrency,
        "key_concurrency": key_concurrency,
        "rate": often(rate),
        "key_rate": often(key_rate),
        "max_depth": max_depth,
        "key_weights": key_weights.iter().collect::<BTreeMap<_, _>>(),
        "is_paused": row.is_paused,
        "version": row.version,
        "changed_at": output::format_instant(row.changed_at),
    })
}
