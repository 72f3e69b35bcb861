//! `stepfast bench`: runs an experiment, shows a table, writes the JSON.

use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, Subcommand, ValueEnum};
use comfy_table::Table;
use comfy_table::presets::ASCII_MARKDOWN;
use indicatif::{ProgressBar, ProgressStyle};
use stepfast_benchmarks::report::Machine;
use stepfast_benchmarks::workflows::{self, Mode, Parameters};
use stepfast_benchmarks::{Report, Row, Target, flush, memory};

use crate::output;

/// The experiments.
#[derive(Subcommand)]
pub(crate) enum Bench {
    /// No-op workflows by concurrent callers.
    Workflows(Sweep),
    /// Workflows of several steps by concurrent callers.
    Steps(Sweep),
    /// The raw device, and a bare commit of the store.
    Flush(Flush),
    /// Memory per execution that waits in a step, and a burst of starts.
    Memory(Memory),
}

#[derive(Args)]
struct Common {
    /// The store: sqlite (a fresh file in a temporary directory), memory, or a URL.
    #[arg(long, default_value = "sqlite")]
    store: String,
    /// What an acknowledgement promises: full or relaxed.
    #[arg(long, default_value = "full", value_parser = ["full", "relaxed"])]
    durability: String,
    /// Directory for the fresh file.
    #[arg(long)]
    directory: Option<PathBuf>,
    /// Also write the figures to this file, as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
}

#[derive(Args)]
pub(crate) struct Sweep {
    #[command(flatten)]
    common: Common,
    /// Workflows in all, for each row [default: 400 per caller, 2,000 to 300,000, fewer with steps].
    #[arg(long)]
    iterations: Option<usize>,
    /// Concurrent callers; a list sweeps.
    #[arg(long, value_delimiter = ',', default_value = "1,256,2048,16384")]
    concurrency: Vec<usize>,
    /// Steps in each workflow; a list sweeps [default: 0 for workflows, 3 for steps].
    #[arg(long, value_delimiter = ',')]
    steps: Vec<usize>,
    /// How callers start workflows [default: both].
    #[arg(long, value_enum, value_delimiter = ',')]
    mode: Vec<ModeName>,
}

#[derive(Clone, Copy, ValueEnum)]
enum ModeName {
    Start,
    Run,
}

#[derive(Args)]
pub(crate) struct Flush {
    #[command(flatten)]
    common: Common,
    /// How often, for each row.
    #[arg(long, default_value_t = 500)]
    iterations: usize,
    /// Bytes at a time; a list sweeps.
    #[arg(long, value_delimiter = ',', default_value = "100,8192,1048576")]
    size: Vec<usize>,
}

#[derive(Args)]
pub(crate) struct Memory {
    #[command(flatten)]
    common: Common,
    /// Executions that wait, or are started, at once.
    #[arg(long, default_value_t = 100_000)]
    iterations: usize,
}

impl Memory {
    async fn run(self) -> anyhow::Result<()> {
        let many = self.iterations.max(2_000);
        // first, while the allocator keeps nothing that it could give them
        let (each, blocked) = memory::blocked(&self.common.target().await?, 1_000, many).await?;
        let burst = memory::burst(&self.common.target().await?, many).await?;
        self.common.report("memory", vec![blocked, burst]).await?;
        output::print(&format!(
            "\neach execution that waits in a step: {each:.0} bytes\nat most, with a burst of {many} starts: {:.0} MB resident",
            memory::peak() as f64 / 1e6
        ));
        Ok(())
    }
}

impl Bench {
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        match self {
            Bench::Workflows(sweep) => sweep.run("workflows", 0).await,
            Bench::Steps(sweep) => sweep.run("steps", 3).await,
            Bench::Flush(flush) => flush.run().await,
            Bench::Memory(memory) => memory.run().await,
        }
    }
}

impl Sweep {
    async fn run(mut self, experiment: &str, default_steps: usize) -> anyhow::Result<()> {
        if self.steps.is_empty() {
            self.steps.push(default_steps);
        }
        if self.mode.is_empty() {
            self.mode = vec![ModeName::Start, ModeName::Run];
        }
        let mut rows = Vec::new();
        for &steps in &self.steps {
            for &concurrency in &self.concurrency {
                for mode in &self.mode {
                    let mode = match mode {
                        ModeName::Start => Mode::Start,
                        ModeName::Run => Mode::Run,
                    };
                    let parameters = Parameters {
                        mode,
                        concurrency: concurrency.max(1),
                        steps,
                        iterations: self.iterations,
                    };
                    let bar = bar(parameters.total() as u64);
                    bar.set_message(format!("{} {concurrency} callers, {steps} steps", mode.as_str()));
                    let target = self.common.target().await?;
                    let row = workflows::run(&target, parameters, &|done| bar.set_position(done)).await?;
                    bar.finish_and_clear();
                    rows.push(row);
                }
            }
        }
        self.common.report(experiment, rows).await
    }
}

impl Flush {
    async fn run(self) -> anyhow::Result<()> {
        let mut rows = Vec::new();
        for size in self.size {
            let target = self.common.target().await?;
            rows.push(flush::raw(&target, size, self.iterations)?);
            rows.extend(flush::commit(&target, &self.common.durability, size, self.iterations).await?);
        }
        self.common.report("flush", rows).await
    }
}

fn bar(len: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg:40} {bar:30} {pos}/{len} {per_sec}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(len).with_style(style)
}

impl Common {
    async fn target(&self) -> anyhow::Result<Target> {
        Ok(Target::open(&self.store, &self.durability, self.directory.as_ref()).await?)
    }

    async fn report(&self, experiment: &str, rows: Vec<Row>) -> anyhow::Result<()> {
        let store = self.target().await?.store().await?;
        let about = store.about();
        let report = Report {
            experiment: experiment.to_owned(),
            sdk: "rust".to_owned(),
            store: about.version.clone(),
            durability: about.durability.as_str().to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            machine: Machine::here(),
            rows,
        };
        output::print(&format!(
            "{experiment} on {}, durability {}, {} cores\n\n{}",
            report.store,
            report.durability,
            report.machine.cores,
            table(&report.rows)
        ));
        if let Some(path) = &self.json {
            let json = serde_json::to_string_pretty(&report)?;
            std::fs::write(path, json + "\n").with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(())
    }
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_header([
        "mode",
        "callers",
        "steps",
        "size",
        "completed",
        "failed",
        "per second",
        "p50 ms",
        "p99 ms",
        "max ms",
        "flushes",
        "writes/flush",
        "MB written",
    ]);
    for row in rows {
        let number = |n: Option<usize>| n.map_or(String::new(), |n| n.to_string());
        table.add_row([
            row.mode.clone().unwrap_or_default(),
            number(row.concurrency),
            number(row.steps),
            number(row.size),
            row.completed.to_string(),
            row.failed.to_string(),
            format!("{:.0}", row.per_second),
            format!("{:.3}", row.p50_ms),
            format!("{:.3}", row.p99_ms),
            format!("{:.3}", row.max_ms),
            row.flushes.to_string(),
            format!("{:.1}", row.writes_per_flush),
            format!("{:.1}", row.bytes_written as f64 / 1e6),
        ]);
    }
    table
}
