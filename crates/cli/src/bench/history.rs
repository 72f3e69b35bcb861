//! `stepfast bench history`.

use clap::Args;
use stepfast_benchmarks::experiments::history::{self, HistorySweep};
use stepfast_benchmarks::report::table;

use super::{BenchArgs, MAX_CALLERS, MAX_COUNT, Sdk, parse_number, progress_bar};

#[derive(Args)]
pub(crate) struct HistoryArgs {
    #[command(flatten)]
    common: BenchArgs,
    /// Finished executions that are stored. Several values, separated by commas, are measured from the
    /// smallest. The runs alternate with runs on empty stores.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "1000000,3000000",
        value_parser = parse_number::<usize, 1, MAX_COUNT>
    )]
    executions: Vec<usize>,
    /// Concurrent callers.
    #[arg(long, default_value_t = 2_048, value_parser = parse_number::<usize, 1, MAX_CALLERS>)]
    concurrency: usize,
    /// Workflows in each run.
    #[arg(long, default_value_t = 100_000, value_parser = parse_number::<usize, 1, MAX_COUNT>)]
    iterations: usize,
    /// Runs of each mode for each number of stored executions, and as many on empty stores; the median counts.
    #[arg(long, default_value_t = 5, value_parser = parse_number::<usize, 1, MAX_COUNT>)]
    runs: usize,
}

impl HistoryArgs {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let Self { common, executions, concurrency, iterations, runs } = self;
        let sweep = HistorySweep { executions, concurrency, iterations, runs };
        let bar = progress_bar(sweep.total());
        let progress = |done, message: &str| {
            bar.set_position(done);
            if bar.message() != message {
                bar.set_message(message.to_owned());
            }
        };
        let (rows, figures) = history::run(&common.place(), &sweep, &progress).await?;
        bar.finish_and_clear();
        let report = common.report("history", Sdk::Rust, rows, figures).await?;
        common.output(&report, &table::row_table(&report.rows))
    }
}
