//! `stepfast workflow`: list, show, cancel, resume.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{anyhow, bail};
use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use stepfast::clock::{Clock, SystemClock, Timestamp};
use stepfast::store::{Detail, Execution, Filter, RequestResult};
use stepfast::text::{abbreviate, quote};
use stepfast::{BulkResult, Error, Status, Store, find_record};

use crate::client::with_client;
use crate::execution_tree::{execution_tree, graph_of};
use crate::follow::follow;
use crate::output::{self, DeadWorkers, Exit, UsageError};
use crate::show::load_shown;

/// Show executions, cancel, pause and resume them.
#[derive(Subcommand)]
pub(crate) enum WorkflowCommand {
    /// List executions, newest first.
    List(ListExecutionsArgs),
    /// Show everything that is recorded of an execution.
    Show(ShowExecutionArgs),
    /// Cancel executions, and the children they wait for.
    Cancel(RequestArgs),
    /// Park executions until they are resumed: steps that run end first, and no further step begins.
    Pause(RequestArgs),
    /// Continue executions that are parked, failed or cancelled.
    Resume(RequestArgs),
}

#[derive(Args)]
pub(crate) struct StoreArgs {
    /// The store, which must exist: sqlite://FILE, sqlite:////ABSOLUTE/FILE or postgres://…
    #[arg(long, env = "STEPFAST_STORE", hide_env_values = true)]
    pub(crate) store: String,
    /// Print JSON, for programs.
    #[arg(long)]
    pub(crate) json: bool,
}

/// The filters of executions.
#[derive(Args)]
struct FilterArgs {
    /// Only these statuses: scheduled, queued, running, waiting, completed, failed, cancelled.
    #[arg(long, value_delimiter = ',')]
    status: Vec<Status>,
    /// Only executions of this workflow.
    #[arg(long)]
    workflow: Option<String>,
    /// Only executions that are parked.
    #[arg(long)]
    parked: bool,
    /// Only children of this execution.
    #[arg(long)]
    parent: Option<String>,
    /// Only executions whose workflow_id begins with this text.
    #[arg(long)]
    id_prefix: Option<String>,
    /// Only executions that are pinned to this version of the code.
    #[arg(long, value_name = "VERSION")]
    app_version: Option<String>,
    /// Only executions that wait in this queue whenever they are queued.
    #[arg(long)]
    queue: Option<String>,
    /// Only executions with this attribute. May be given several times: executions must have all the attributes.
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_attribute)]
    attribute: Vec<(String, String)>,
    /// Only executions created at or after this: an instant (2026-11-21T10:00:00Z) or an age (90s, 15m, 2h, 7d).
    #[arg(long, value_parser = parse_instant_or_age)]
    since: Option<Timestamp>,
    /// Only executions created before this: an instant or an age.
    #[arg(long, value_parser = parse_instant_or_age)]
    until: Option<Timestamp>,
}

#[derive(Args)]
pub(crate) struct ListExecutionsArgs {
    #[command(flatten)]
    target: StoreArgs,
    #[command(flatten)]
    filter: FilterArgs,
    /// Maximum number of executions.
    #[arg(long, default_value_t = stepfast::store::DEFAULT_LIMIT, value_parser = parse_list_limit)]
    limit: usize,
    /// Only count the executions.
    #[arg(long)]
    count: bool,
}

#[derive(Args)]
pub(crate) struct ShowExecutionArgs {
    #[command(flatten)]
    target: StoreArgs,
    /// The execution's workflow_id.
    workflow_id: String,
    /// Show the execution until it has ended, for a graph the states of its tasks. The exit code is 1 if it did not
    /// complete.
    #[arg(long, conflicts_with = "json")]
    follow: bool,
}

#[derive(Args)]
pub(crate) struct RequestArgs {
    #[command(flatten)]
    target: StoreArgs,
    /// The executions' workflow_ids.
    #[arg(required_unless_present = "all")]
    workflow_ids: Vec<String>,
    /// All executions that match the filters; at least one filter must be given.
    #[arg(long, conflicts_with = "workflow_ids")]
    all: bool,
    #[command(flatten)]
    filter: FilterArgs,
}

/// A request for executions.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RequestAction {
    Cancel,
    Pause,
    Resume,
}

impl RequestAction {
    /// Returns the verb for the worker that handles the request.
    fn verb(self) -> &'static str {
        match self {
            RequestAction::Cancel => "stop",
            RequestAction::Pause => "park",
            RequestAction::Resume => "continue",
        }
    }
}

impl WorkflowCommand {
    pub(crate) async fn run(self) -> anyhow::Result<Exit> {
        match self {
            WorkflowCommand::List(list) => list.run().await,
            WorkflowCommand::Show(show) => show.run().await,
            WorkflowCommand::Cancel(args) => args.run(RequestAction::Cancel).await,
            WorkflowCommand::Pause(args) => args.run(RequestAction::Pause).await,
            WorkflowCommand::Resume(args) => args.run(RequestAction::Resume).await,
        }
    }
}

impl FilterArgs {
    /// Returns the filter that these options describe.
    async fn into_filter(self, store: &Arc<dyn Store>) -> Result<Filter, Error> {
        let parent = match &self.parent {
            None => None,
            Some(id) => Some(find_record(&**store, id, Detail::Outcome).await?.execution.key),
        };
        let filter = Filter {
            statuses: self.status,
            workflow: self.workflow.map(Into::into),
            is_parked: self.parked.then_some(true),
            parent,
            id_prefix: self.id_prefix.map(Into::into),
            app_version: self.app_version.map(Into::into),
            queue: self.queue.map(Into::into),
            attributes: self.attribute.into_iter().collect(),
            created_from: self.since,
            created_before: self.until,
            ..Filter::default()
        };
        filter.check()?;
        Ok(filter)
    }
}

impl ListExecutionsArgs {
    async fn run(self) -> anyhow::Result<Exit> {
        let store = stepfast::connect_existing(&self.target.store).await?;
        let limit = if self.count { 0 } else { self.limit };
        let filter = Filter { limit, ..self.filter.into_filter(&store).await? };
        let page = store.list(&filter).await.map_err(Error::from)?;
        if self.count {
            let total = page.total.unwrap_or(0);
            output::print(&if self.target.json {
                json!({ "count": total }).to_string()
            } else {
                total.to_string()
            });
        } else if self.target.json {
            let dead_workers = dead_owners(&store, &page.executions).await?;
            let shown = |execution| output::execution_json(execution, &dead_workers);
            let executions: Vec<Value> = page.executions.iter().map(shown).collect();
            output::print_json(&json!({ "executions": executions }))?;
        } else {
            let dead_workers = dead_owners(&store, &page.executions).await?;
            output::print(&output::executions_table(&page.executions, &dead_workers));
        }
        Ok(Exit::Done)
    }
}

impl ShowExecutionArgs {
    async fn run(self) -> anyhow::Result<Exit> {
        let store = stepfast::connect_existing(&self.target.store).await?;
        if self.follow {
            return follow(&store, &self.workflow_id).await;
        }
        let shown = load_shown(&store, &self.workflow_id).await?;
        if self.target.json {
            output::print_json(&output::record_json(&shown))?;
            return Ok(Exit::Done);
        }
        let graph = graph_of(&store, &shown.record.execution.workflow).await?;
        let tree = graph.map_or_else(String::new, |shape| format!("\n\n{}", execution_tree(&shape, &shown)));
        output::print(format!("{}{tree}", output::record_text(&shown)).trim_end());
        Ok(Exit::Done)
    }
}

impl RequestArgs {
    async fn run(self, action: RequestAction) -> anyhow::Result<Exit> {
        let store = stepfast::connect_existing(&self.target.store).await?;
        let filter = self.filter.into_filter(&store).await?;
        let has_filters = filter != Filter::default();
        if !self.all {
            if has_filters {
                bail!(UsageError::new("filters need --all: give either workflow_ids, or --all with filters"));
            }
            return request_each(store, &self.workflow_ids, self.target.json, action).await;
        }
        if !has_filters {
            bail!(UsageError::new("--all needs a filter, such as --queue, --workflow or --status"));
        }
        if action == RequestAction::Resume && filter.statuses.is_empty() && filter.is_parked.is_none() {
            bail!(UsageError::new(
                "resume --all needs a status: add --status failed, --status cancelled or --parked"
            ));
        }
        request_all(store, &filter, self.target.json, action).await
    }
}

/// Sends a request for all executions that match the filter.
async fn request_all(
    store: Arc<dyn Store>,
    filter: &Filter,
    is_json: bool,
    action: RequestAction,
) -> anyhow::Result<Exit> {
    let count = Filter { limit: 0, ..filter.clone() };
    let total = store.list(&count).await.map_err(Error::from)?.total.unwrap_or(0);
    let bar = ProgressBar::new(total);
    bar.set_style(ProgressStyle::with_template("{wide_bar} {human_pos}/{human_len}  {per_sec}  {eta} left")?);
    let progress = |results: BulkResult| bar.set_position(results.total());
    let results = with_client(store, async |client| {
        Ok(match action {
            RequestAction::Cancel => client.cancel_all(filter, progress).await?,
            RequestAction::Pause => client.pause_all(filter, progress).await?,
            RequestAction::Resume => client.resume_all(filter, progress).await?,
        })
    })
    .await;
    bar.finish_and_clear();
    let verb = action.verb();
    let BulkResult { done, pending, not_applicable } = results?;
    if is_json {
        output::print_json(&json!({ "done": done, "pending": pending, "not_applicable": not_applicable }))?;
    } else {
        let pending = match pending {
            0 => String::new(),
            pending => format!(", {pending} pending: the workers that run them {verb} them"),
        };
        let not_applicable = match not_applicable {
            0 => String::new(),
            not_applicable => format!(", {not_applicable} not applicable: their status does not allow it"),
        };
        output::print(&format!("{done} done{pending}{not_applicable}"));
    }
    Ok(Exit::Done)
}

/// Sends a request for each of the executions with these ids.
async fn request_each(
    store: Arc<dyn Store>,
    workflow_ids: &[String],
    is_json: bool,
    action: RequestAction,
) -> anyhow::Result<Exit> {
    let verb = format!("{}s", action.verb());
    let (exit, results) = with_client(store, async |client| {
        let mut exit = Exit::Done;
        let mut results = Vec::new();
        for workflow_id in workflow_ids {
            let result = match action {
                RequestAction::Cancel => client.cancel(workflow_id).await,
                RequestAction::Pause => client.pause(workflow_id).await,
                RequestAction::Resume => client.resume(workflow_id).await,
            };
            let (word, detail) = match result {
                Ok(RequestResult::Done) => ("done", None),
                Ok(RequestResult::Pending) => {
                    ("pending", Some(format!("recorded; the worker that runs it {verb} it")))
                }
                Ok(RequestResult::NotApplicable(status)) => {
                    exit = exit.max(Exit::NotApplicable);
                    ("not_applicable", Some(format!("its status is {status}")))
                }
                Err(error) => {
                    exit = exit.max(Exit::of(&error));
                    ("error", Some(format!("{error} [{}]", error.code())))
                }
            };
            if is_json {
                results.push(json!({ "workflow_id": workflow_id, "result": word, "detail": detail }));
            } else {
                let detail = detail.map_or(String::new(), |detail| format!(": {detail}"));
                output::print(&format!("{}: {word}{detail}", abbreviate(workflow_id)));
            }
        }
        Ok((exit, results))
    })
    .await?;
    if is_json {
        output::print_json(&json!({ "results": results }))?;
    }
    Ok(exit)
}

/// Parses an attribute of the form `NAME=VALUE`.
pub(crate) fn parse_attribute(text: &str) -> anyhow::Result<(String, String)> {
    let (name, value) =
        text.split_once('=').ok_or_else(|| anyhow!("{} is not of the form NAME=VALUE", quote(text)))?;
    Ok((name.to_owned(), value.to_owned()))
}

/// Returns the dead workers among the owners of these executions.
pub(crate) async fn dead_owners(
    store: &Arc<dyn Store>,
    executions: &[Execution],
) -> Result<DeadWorkers, Error> {
    let mut owners: Vec<_> = executions.iter().filter_map(|execution| execution.owner).collect();
    owners.sort_unstable();
    owners.dedup();
    Ok(DeadWorkers(if owners.is_empty() { owners } else { store.dead_workers(&owners).await? }))
}

/// Parses the limit of a list.
pub(crate) fn parse_list_limit(text: &str) -> anyhow::Result<usize> {
    text.parse().ok().filter(|limit| *limit > 0).ok_or_else(|| anyhow!("give a whole number of at least 1"))
}

/// Parses an instant, or an age.
pub(crate) fn parse_instant_or_age(text: &str) -> anyhow::Result<Timestamp> {
    if let Ok(instant) = text.parse::<jiff::Timestamp>() {
        return Ok(Timestamp::from_micros(instant.as_microsecond()));
    }
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        _ => {
            return Err(anyhow!(
                "{} is neither an instant like 2026-11-21T10:00:00Z nor an age like 15m",
                quote(text)
            ));
        }
    };
    if number.is_empty() {
        return Err(anyhow!("{} has no number before its unit", quote(text)));
    }
    // an age that is too large for a number counts as the largest number
    let age = number.parse().unwrap_or(u64::MAX).saturating_mul(seconds);
    Ok(SystemClock.now().minus(Duration::from_secs(age)))
}
