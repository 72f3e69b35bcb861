//! `stepfast bench`: runs an experiment, prints a table, writes the JSON.

mod backlog;
mod batching;
mod graphs;
mod history;
mod idle;
mod memory;
mod messaging;
mod neighbours;
mod payload;
mod queue;
mod rate;
mod sweep;
mod takeover;
mod timers;
mod writes;

use std::path::PathBuf;

use anyhow::Context;
use clap::builder::{PathBufValueParser, TypedValueParser};
use clap::{Args, Subcommand, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use stepfast_benchmarks::experiments::flush;
use stepfast_benchmarks::experiments::graphs::Shape;
use stepfast_benchmarks::report::Machine;
use stepfast_benchmarks::report::table;
use stepfast_benchmarks::target::TargetLocation;
use stepfast_benchmarks::{Figure, Report, Row, python};

use crate::output::{self, UsageError};

/// Maximum of a count, such as the number of workflows. A measurement of more would take days, or more memory than
/// machines have.
const MAX_COUNT: usize = 100_000_000;
/// Maximum number of concurrent callers.
const MAX_CALLERS: usize = 1_000_000;
/// Maximum number of worker processes.
const MAX_WORKERS: usize = 1_000;
/// Maximum of a duration, in seconds: a day.
const MAX_SECONDS: usize = 24 * 60 * 60;
/// Maximum rate: executions or values per second.
const MAX_PER_SECOND: usize = 1_000_000;

/// The experiments.
#[derive(Subcommand)]
pub(crate) enum BenchCommand {
    /// No-op workflows by concurrent callers.
    Workflows(sweep::SweepArgs),
    /// Workflows of several steps by concurrent callers.
    Steps(sweep::SweepArgs),
    /// Seven steps that return 1 byte to 1 MB, and a single step that returns as much at once.
    Payload(payload::PayloadArgs),
    /// The raw device, and a bare commit of the store.
    Flush(FlushArgs),
    /// Memory per execution that waits in a step, and a burst of starts.
    Memory(memory::MemoryArgs),
    /// Rows in transactions of their own, and as many rows through an engine.
    Writes(writes::WritesArgs),
    /// No-op workflows, with more and more finished executions stored.
    History(history::HistoryArgs),
    /// An idle engine, and occasional workflows that another process runs.
    Idle(idle::IdleArgs),
    /// No-op workflows through queues.
    Queue(queue::QueueBenchArgs),
    /// No-op workflows of a queue in which more and more other executions wait.
    Backlog(backlog::BacklogArgs),
    /// Workflows, queues and claims beside the rows of another service, and alone.
    Neighbours(neighbours::NeighboursArgs),
    /// Suspended executions whose sleeps end at the same time.
    Sleepers(timers::SleepersArgs),
    /// Time until pauses and changed limits of a busy queue take effect.
    Pauses(queue::PausesArgs),
    /// How evenly a rate limit spaces the executions.
    Rate(rate::RateArgs),
    /// Time for which executions of a killed worker do not progress.
    Takeover(takeover::TakeoverArgs),
    /// Graphs of one task, which returns a greeting.
    Simple(graphs::GraphBenchArgs),
    /// Graphs of five tasks: three that run at once, between one that prepares and one that combines.
    Parallel(graphs::GraphBenchArgs),
    /// Graphs of three tasks in a row.
    Pipeline(graphs::GraphBenchArgs),
    /// Graphs with few and with many tasks: the time per task.
    LargeGraph(graphs::LargeGraphArgs),
    /// Items written in calls of one to many, single calls, and large batches that run to their ends.
    Batching(batching::BatchingArgs),
    /// Messages, round trips and events between executions, and many senders to one receiver.
    Messages(messaging::MessagesArgs),
    /// Values from a step to readers of its stream, in the same process and in another one.
    Streams(messaging::StreamsArgs),
    /// A long loop that is suspended before each message, and many executions that are suspended on messages.
    Waits(messaging::WaitsArgs),
    /// Schedules with an instant each second.
    Schedules(timers::SchedulesArgs),
    #[command(hide = true)]
    Worker(takeover::WorkerProcessArgs),
}

impl BenchCommand {
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        match self {
            BenchCommand::Workflows(sweep) => sweep.run("workflows", 0).await,
            BenchCommand::Steps(sweep) => sweep.run("steps", 3).await,
            BenchCommand::Payload(payload) => payload.run().await,
            BenchCommand::Flush(flush) => flush.run().await,
            BenchCommand::Memory(memory) => memory.run().await,
            BenchCommand::Writes(writes) => writes.run().await,
            BenchCommand::History(history) => history.run().await,
            BenchCommand::Idle(idle) => idle.run().await,
            BenchCommand::Queue(queue) => queue.run().await,
            BenchCommand::Backlog(backlog) => backlog.run().await,
            BenchCommand::Neighbours(neighbours) => neighbours.run().await,
            BenchCommand::Sleepers(sleepers) => sleepers.run().await,
            BenchCommand::Pauses(pauses) => pauses.run().await,
            BenchCommand::Rate(rate) => rate.run().await,
            BenchCommand::Takeover(takeover) => takeover.run().await,
            BenchCommand::Simple(graph) => graph.run(Shape::Simple).await,
            BenchCommand::Parallel(graph) => graph.run(Shape::Parallel).await,
            BenchCommand::Pipeline(graph) => graph.run(Shape::Pipeline).await,
            BenchCommand::LargeGraph(graph) => graph.run().await,
            BenchCommand::Batching(batching) => batching.run().await,
            BenchCommand::Messages(messages) => messages.run().await,
            BenchCommand::Streams(streams) => streams.run().await,
            BenchCommand::Waits(waits) => waits.run().await,
            BenchCommand::Schedules(schedules) => schedules.run().await,
            BenchCommand::Worker(worker) => worker.run().await,
        }
    }
}

#[derive(Args)]
struct BenchArgs {
    /// The store: sqlite (a fresh file in a temporary directory), memory, or a URL.
    #[arg(long, default_value = "sqlite")]
    store: String,
    /// The durability of acknowledgements: full or relaxed.
    #[arg(long, default_value = "full", value_parser = ["full", "relaxed"])]
    durability: String,
    /// Directory for the fresh file, which exists.
    #[arg(long, value_parser = PathBufValueParser::new().try_map(check_directory))]
    directory: Option<PathBuf>,
    /// Also write the figures to this file, as JSON.
    #[arg(long, value_parser = PathBufValueParser::new().try_map(check_output_path))]
    json: Option<PathBuf>,
}

/// The language whose API is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Sdk {
    Rust,
    Python,
}

impl Sdk {
    fn as_str(self) -> &'static str {
        match self {
            Sdk::Rust => "rust",
            Sdk::Python => "python",
        }
    }
}

#[derive(Args)]
struct PythonArgs {
    /// For --sdk python: the Python that has the package stepfast [default: the one in this program's folder,
    /// else python3].
    #[arg(long, value_name = "PATH")]
    python: Option<PathBuf>,
}

impl PythonArgs {
    /// Returns the Python to start, or `None` for the API of Rust.
    fn find(&self, sdk: Sdk) -> Result<Option<PathBuf>, UsageError> {
        match (sdk, &self.python) {
            (Sdk::Python, path) => Ok(Some(python::find_python(path.as_deref()))),
            (Sdk::Rust, None) => Ok(None),
            (Sdk::Rust, Some(_)) => {
                Err(UsageError::new("--python is for --sdk python: add it, or omit --python"))
            }
        }
    }
}

#[derive(Args)]
pub(crate) struct FlushArgs {
    #[command(flatten)]
    common: BenchArgs,
    /// Repetitions for each row.
    #[arg(long, default_value_t = 500, value_parser = parse_number::<usize, 1, MAX_COUNT>)]
    iterations: usize,
    /// Bytes in each write; separate several values by commas.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "100,8192,1048576",
        value_parser = parse_number::<usize, 1, MAX_COUNT>
    )]
    size: Vec<usize>,
}

impl FlushArgs {
    async fn run(self) -> anyhow::Result<()> {
        let mut rows = Vec::new();
        for size in self.size {
            let target = self.common.place().open_target().await?;
            rows.push(flush::measure_device(&target, size, self.iterations)?);
            rows.extend(
                flush::measure_commit(&target, &self.common.durability, size, self.iterations).await?,
            );
        }
        let report = self.common.report("flush", Sdk::Rust, rows, Vec::new()).await?;
        self.common.output(&report, &table::row_table(&report.rows))
    }
}

/// Parses a number from `MIN` to `MAX`.
fn parse_number<N: TryFrom<usize>, const MIN: usize, const MAX: usize>(text: &str) -> Result<N, String> {
    let number = text.parse().ok().filter(|number| (MIN..=MAX).contains(number));
    number
        .and_then(|number| N::try_from(number).ok())
        .ok_or_else(|| format!("give a number from {MIN} to {MAX}"))
}

/// Returns `path` if it is a directory.
fn check_directory(path: PathBuf) -> Result<PathBuf, String> {
    if path.is_dir() { Ok(path) } else { Err("there is no such directory: create it first".to_owned()) }
}

/// Returns `path` if it names a file in a directory that exists. The check precedes the measurements, which may take hours.
fn check_output_path(path: PathBuf) -> Result<PathBuf, String> {
    let is_directory = path.is_dir() || path.as_os_str().as_encoded_bytes().ends_with(b"/");
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    match directory {
        _ if is_directory => Err("this is a directory: give the path of a file".to_owned()),
        Some(directory) if !directory.is_dir() => {
            Err(format!("there is no directory {}: create it first", directory.display()))
        }
        _ => Ok(path),
    }
}

fn progress_bar(len: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg:40} {bar:30} {pos}/{len} {per_sec}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(len).with_style(style)
}

/// Prints the text that a child process has written to standard error.
#[allow(clippy::print_stderr)] // the output belongs there
fn forward_stderr(text: &str) {
    if !text.is_empty() {
        eprint!("{text}");
    }
}

impl BenchArgs {
    fn place(&self) -> TargetLocation {
        let Self { store, durability, directory, .. } = self;
        TargetLocation { store: store.clone(), durability: durability.clone(), directory: directory.clone() }
    }

    async fn report(
        &self,
        experiment: &str,
        sdk: Sdk,
        rows: Vec<Row>,
        figures: Vec<Figure>,
    ) -> anyhow::Result<Report> {
        let target = self.place().open_target().await?;
        let store = target.store().await?;
        let info = store.info();
        Ok(Report {
            experiment: experiment.to_owned(),
            sdk: sdk.as_str().to_owned(),
            store: info.version.clone(),
            durability: info.durability.as_str().to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            machine: Machine::here(),
            rows,
            figures,
        })
    }

    /// Prints the report with its rows as `table`, and writes the JSON.
    fn output(&self, report: &Report, table: &comfy_table::Table) -> anyhow::Result<()> {
        let Report { experiment, sdk, store, durability, machine, figures, .. } = report;
        let cores = machine.cores;
        output::print(&format!(
            "{experiment} on {store}, {sdk}, durability {durability}, {cores} cores\n\n{table}"
        ));
        if let Some(bounds) = table::bound_table(&report.rows) {
            output::print(&format!("\n{bounds}"));
        }
        if !figures.is_empty() {
            output::print(&format!("\n{}", table::figure_table(figures)));
        }
        if let Some(path) = &self.json {
            let json = serde_json::to_string_pretty(report)?;
            std::fs::write(path, json + "\n").with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(())
    }
}
