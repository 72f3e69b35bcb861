//! `stepfast bench`: runs an experiment, prints a table, writes the JSON.

mod backlog;
mod history;
mod idle;
mod memory;
mod payload;
mod queue;
mod rate;
mod sweep;
mod takeover;
mod writes;

use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, Subcommand, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use stepfast_benchmarks::report::Machine;
use stepfast_benchmarks::target::Place;
use stepfast_benchmarks::{Figure, Report, Row, flush, python, table};

use crate::output;

/// The experiments.
#[derive(Subcommand)]
pub(crate) enum Bench {
    /// No-op workflows by concurrent callers.
    Workflows(sweep::Sweep),
    /// Workflows of several steps by concurrent callers.
    Steps(sweep::Sweep),
    /// Seven steps that return 1 byte to 1 MB, and a single step that returns as much at once.
    Payload(payload::Payload),
    /// The raw device, and a bare commit of the store.
    Flush(Flush),
    /// Memory per execution that waits in a step, and a burst of starts.
    Memory(memory::Memory),
    /// Rows in transactions of their own, and as many rows through an engine.
    Writes(writes::Writes),
    /// No-op workflows, with more and more finished executions stored.
    History(history::History),
    /// An idle engine, and occasional workflows that another process runs.
    Idle(idle::Idle),
    /// No-op workflows through queues.
    Queue(queue::Queue),
    /// No-op workflows of a queue in which more and more other executions wait.
    Backlog(backlog::Backlog),
    /// How evenly a rate limit spaces the executions.
    Rate(rate::Rate),
    /// How long the executions of a killed worker stand still.
    Takeover(takeover::Takeover),
    #[command(hide = true)]
    Worker(takeover::Worker),
}

impl Bench {
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        match self {
            Bench::Workflows(sweep) => sweep.run("workflows", 0).await,
            Bench::Steps(sweep) => sweep.run("steps", 3).await,
            Bench::Payload(payload) => payload.run().await,
            Bench::Flush(flush) => flush.run().await,
            Bench::Memory(memory) => memory.run().await,
            Bench::Writes(writes) => writes.run().await,
            Bench::History(history) => history.run().await,
            Bench::Idle(idle) => idle.run().await,
            Bench::Queue(queue) => queue.run().await,
            Bench::Backlog(backlog) => backlog.run().await,
            Bench::Rate(rate) => rate.run().await,
            Bench::Takeover(takeover) => takeover.run().await,
            Bench::Worker(worker) => worker.run().await,
        }
    }
}

#[derive(Args)]
struct Common {
    /// The store: sqlite (a fresh file in a temporary directory), memory, or a URL.
    #[arg(long, default_value = "sqlite")]
    store: String,
    /// The durability of acknowledgements: full or relaxed.
    #[arg(long, default_value = "full", value_parser = ["full", "relaxed"])]
    durability: String,
    /// Directory for the fresh file.
    #[arg(long)]
    directory: Option<PathBuf>,
    /// Also write the figures to this file, as JSON.
    #[arg(long)]
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
struct Python {
    /// For --sdk python: the Python that has the package stepfast [default: the one beside this program, else
    /// python3].
    #[arg(long, value_name = "PATH")]
    python: Option<PathBuf>,
}

impl Python {
    fn find(&self) -> PathBuf {
        python::find(self.python.as_deref())
    }
}

#[derive(Args)]
pub(crate) struct Flush {
    #[command(flatten)]
    common: Common,
    /// Repetitions for each row.
    #[arg(long, default_value_t = 500)]
    iterations: usize,
    /// Bytes at a time; a list sweeps.
    #[arg(long, value_delimiter = ',', default_value = "100,8192,1048576")]
    size: Vec<usize>,
}

impl Flush {
    async fn run(self) -> anyhow::Result<()> {
        let mut rows = Vec::new();
        for size in self.size {
            let target = self.common.place().target().await?;
            rows.push(flush::raw(&target, size, self.iterations)?);
            rows.extend(flush::commit(&target, &self.common.durability, size, self.iterations).await?);
        }
        let report = self.common.report("flush", Sdk::Rust, rows, Vec::new()).await?;
        self.common.show(&report, &table::rows(&report.rows))
    }
}

fn bar(len: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg:40} {bar:30} {pos}/{len} {per_sec}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(len).with_style(style)
}

/// Passes on what a child process has written to standard error.
#[allow(clippy::print_stderr)] // the output belongs there
fn pass_on(said: &str) {
    if !said.is_empty() {
        eprint!("{said}");
    }
}

impl Common {
    fn place(&self) -> Place {
        let Self { store, durability, directory, .. } = self;
        Place { store: store.clone(), durability: durability.clone(), directory: directory.clone() }
    }

    async fn report(
        &self,
        experiment: &str,
        sdk: Sdk,
        rows: Vec<Row>,
        figures: Vec<Figure>,
    ) -> anyhow::Result<Report> {
        let target = self.place().target().await?;
        let store = target.store().await?;
        let about = store.info();
        Ok(Report {
            experiment: experiment.to_owned(),
            sdk: sdk.as_str().to_owned(),
            store: about.version.clone(),
            durability: about.durability.as_str().to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            machine: Machine::here(),
            rows,
            figures,
        })
    }

    /// Prints the report with its rows as `table`, and writes the JSON.
    fn show(&self, report: &Report, table: &comfy_table::Table) -> anyhow::Result<()> {
        let Report { experiment, sdk, store, durability, machine, figures, .. } = report;
        let cores = machine.cores;
        output::print(&format!(
            "{experiment} on {store}, {sdk}, durability {durability}, {cores} cores\n\n{table}"
        ));
        if let Some(bounds) = table::bounds(&report.rows) {
            output::print(&format!("\n{bounds}"));
        }
        if !figures.is_empty() {
            output::print(&format!("\n{}", table::figures(figures)));
        }
        if let Some(path) = &self.json {
            let json = serde_json::to_string_pretty(report)?;
            std::fs::write(path, json + "\n").with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(())
    }
}
