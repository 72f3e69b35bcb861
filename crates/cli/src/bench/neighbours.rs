//! `stepfast bench neighbours`.

use clap::Args;
use stepfast_benchmarks::experiments::neighbours::{self, NeighbourParameters};
use stepfast_benchmarks::report::table;

use super::{BenchArgs, MAX_CALLERS, MAX_COUNT, Sdk, parse_number, progress_bar};

#[derive(Args)]
pub(crate) struct NeighboursArgs {
    #[command(flatten)]
    common: BenchArgs,
    /// Finished executions of the other service.
    #[arg(long, default_value_t = 10_000_000, value_parser = parse_number::<usize, 0, MAX_COUNT>)]
    finished: usize,
    /// Executions of the other service that wait in queues.
    #[arg(long, default_value_t = 1_000_000, value_parser = parse_number::<usize, 0, MAX_COUNT>)]
    waiting: usize,
    /// Executions of the other service that sleep.
    #[arg(long, default_value_t = 1_000_000, value_parser = parse_number::<usize, 0, MAX_COUNT>)]
    sleeping: usize,
    /// Concurrent callers.
    #[arg(long, default_value_t = 2_048, value_parser = parse_number::<usize, 1, MAX_CALLERS>)]
    concurrency: usize,
    /// Executions in each run.
    #[arg(long, default_value_t = 100_000, value_parser = parse_number::<usize, 1, MAX_COUNT>)]
    iterations: usize,
    /// Runs of each operation beside the other service, and as many alone; the median counts.
    #[arg(long, default_value_t = 5, value_parser = parse_number::<usize, 1, MAX_COUNT>)]
    runs: usize,
}

impl NeighboursArgs {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let Self { common, finished, waiting, sleeping, concurrency, iterations, runs } = self;
        let parameters = NeighbourParameters { finished, waiting, sleeping, concurrency, iterations, runs };
        let bar = progress_bar(parameters.total());
        let progress = |done, message: &str| {
            bar.set_position(done);
            if bar.message() != message {
                bar.set_message(message.to_owned());
            }
        };
        let (rows, figures) = neighbours::run(&common.place(), parameters, &progress).await?;
        bar.finish_and_clear();
        let report = common.report("neighbours", Sdk::Rust, rows, figures).await?;
        common.output(&report, &table::row_table(&report.rows))
    }
}
