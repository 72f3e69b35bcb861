//! `stepfast bench queue` and `pauses`.

use anyhow::bail;
use clap::Args;
use stepfast_benchmarks::experiments::queue::pauses::{self, PauseParameters};
use stepfast_benchmarks::experiments::queue::{self, QueueParameters};
use stepfast_benchmarks::report::table;

use super::{
    BenchArgs, MAX_CALLERS, MAX_COUNT, MAX_PER_SECOND, MAX_WORKERS, PythonArgs, Sdk, forward_stderr,
    parse_number, progress_bar,
};
use crate::output::UsageError;

#[derive(Args)]
pub(crate) struct QueueBenchArgs {
    #[command(flatten)]
    common: BenchArgs,
    /// Workflows in all, for each row.
    #[arg(long, default_value_t = 300_000, value_parser = parse_number::<usize, 1, MAX_COUNT>)]
    iterations: usize,
    /// Concurrent callers that enqueue workflows.
    #[arg(long, default_value_t = 2_048, value_parser = parse_number::<usize, 1, MAX_CALLERS>)]
    concurrency: usize,
    /// Number of queues; separate several values by commas.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "1,2,4,8",
        value_parser = parse_number::<usize, 1, MAX_COUNT>
    )]
    queues: Vec<usize>,
    /// Worker processes in addition to the process that enqueues workflows. With 0, that process also runs them.
    /// Separate several values by commas [default: 0,1,2; with --sdk python 0].
    #[arg(long, value_delimiter = ',', value_parser = parse_number::<usize, 0, MAX_WORKERS>)]
    workers: Vec<usize>,
    /// Maximum number of executions that run at a time in each queue [default: no limit].
    #[arg(long, value_parser = parse_number::<u32, 1, MAX_COUNT>)]
    limit: Option<u32>,
    /// The language whose API is measured; Python's API is measured in a single process.
    #[arg(long, value_enum, default_value = "rust")]
    sdk: Sdk,
    #[command(flatten)]
    python: PythonArgs,
}

impl QueueBenchArgs {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let Self { common, iterations, concurrency, queues, workers, limit, sdk, python } = self;
        let workers = match (sdk, workers.is_empty()) {
            (Sdk::Rust, true) => vec![0, 1, 2],
            (Sdk::Python, true) => vec![0],
            (Sdk::Python, false) if workers != [0] => {
                bail!(UsageError::new(
                    "--workers is for --sdk rust: in Python a single process queues and runs the workflows"
                ))
            }
            _ => workers,
        };
        let python = python.find(sdk)?;
        let mut rows = Vec::new();
        let sweep = workers.iter().flat_map(|workers| queues.iter().map(|queues| (*queues, *workers)));
        for (queues, workers) in sweep {
            let parameters = QueueParameters { queues, workers, concurrency, iterations, limit };
            let bar = progress_bar(iterations as u64);
            bar.set_message(format!("{queues} queues, {workers} workers"));
            let progress = |done| bar.set_position(done);
            let place = common.place();
            let target = if workers > 0 { place.open_fresh().await? } else { place.open_target().await? };
            match &python {
                None => rows.extend(queue::run(&target, parameters, &progress).await?),
                Some(python) => {
                    let (measured, stderr) =
                        queue::run_in_python(python, &target, parameters, &progress).await?;
                    forward_stderr(&stderr);
                    rows.extend(measured);
                }
            }
            target.close().await?;
            bar.finish_and_clear();
        }
        let report = common.report("queue", sdk, rows, Vec::new()).await?;
        common.output(&report, &table::row_table(&report.rows))
    }
}

/// `stepfast bench pauses`.
#[derive(Args)]
pub(crate) struct PausesArgs {
    #[command(flatten)]
    common: BenchArgs,
    /// Executions that are queued per second.
    #[arg(long, default_value_t = 10_000, value_parser = parse_number::<u64, 100, MAX_PER_SECOND>)]
    per_second: u64,
    /// Workers, each in a process of its own.
    #[arg(long, default_value_t = 4, value_parser = parse_number::<usize, 1, MAX_WORKERS>)]
    workers: usize,
    /// Pauses of the queue, and as many changes of its limit.
    #[arg(long, default_value_t = 100, value_parser = parse_number::<usize, 1, MAX_COUNT>)]
    changes: usize,
}

impl PausesArgs {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let Self { common, per_second, workers, changes } = self;
        let parameters = PauseParameters { per_second, workers, changes };
        let bar = progress_bar(2 * changes as u64);
        let progress = |done, message: &str| {
            bar.set_position(done);
            if bar.message() != message {
                bar.set_message(message.to_owned());
            }
        };
        let (rows, figures) = pauses::run(&common.place(), parameters, &progress).await?;
        bar.finish_and_clear();
        let report = common.report("pauses", Sdk::Rust, rows, figures).await?;
        common.output(&report, &table::time_table(&report.rows))
    }
}
