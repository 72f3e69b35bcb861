//! `stepfast bench takeover`, and the worker processes that experiments start.

use clap::Args;
use stepfast_benchmarks::experiments::takeover::{self, TakeoverParameters, Termination};
use stepfast_benchmarks::report::table;
use stepfast_benchmarks::worker;

use super::{BenchArgs, MAX_COUNT, MAX_WORKERS, Sdk, parse_number, progress_bar};

#[derive(Args)]
pub(crate) struct TakeoverArgs {
    #[command(flatten)]
    common: BenchArgs,
    /// Number of kills.
    #[arg(long, default_value_t = 20, value_parser = parse_number::<usize, 1, MAX_COUNT>)]
    kills: usize,
    /// Ask workers to end (SIGTERM) instead of killing them.
    #[arg(long)]
    drain: bool,
    /// Workers, each in a process of its own.
    #[arg(long, default_value_t = 3, value_parser = parse_number::<usize, 2, MAX_WORKERS>)]
    workers: usize,
    /// Long executions, in all.
    #[arg(long, default_value_t = 12, value_parser = parse_number::<u32, 1, MAX_COUNT>)]
    executions: u32,
}

impl TakeoverArgs {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let Self { common, kills, drain, workers, executions } = self;
        let end = if drain { Termination::Drain } else { Termination::Kill };
        let bar = progress_bar(kills as u64);
        bar.set_message(if drain { "workers asked to end" } else { "workers killed" });
        let progress = |done| bar.set_position(done);
        let parameters = TakeoverParameters { termination: end, times: kills, workers, executions };
        let (row, figures) = takeover::run(&common.place(), parameters, &progress).await?;
        bar.finish_and_clear();
        let report =
            common.report(if drain { "drain" } else { "takeover" }, Sdk::Rust, vec![row], figures).await?;
        common.output(&report, &table::time_table(&report.rows))
    }
}

/// A worker process, which other experiments start.
#[derive(Args)]
pub(crate) struct WorkerProcessArgs {
    #[arg(long)]
    store: String,
}

impl WorkerProcessArgs {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        Ok(worker::run_worker(&self.store).await?)
    }
}
