//! `stepfast bench backlog`.

use clap::Args;
use stepfast_benchmarks::experiments::queue::backlog::{self, BacklogSweep};
use stepfast_benchmarks::report::table;

use super::{BenchArgs, MAX_COUNT, Sdk, parse_number, progress_bar};

#[derive(Args)]
pub(crate) struct BacklogArgs {
    #[command(flatten)]
    common: BenchArgs,
    /// Executions that wait behind the running ones; separate several values by commas.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "0,1000000,2000000",
        value_parser = parse_number::<usize, 0, MAX_COUNT>
    )]
    backlog: Vec<usize>,
    /// Executions in each run.
    #[arg(long, default_value_t = 100_000, value_parser = parse_number::<usize, 100, MAX_COUNT>)]
    iterations: usize,
    /// Runs for each number of waiting executions, alternating with an empty queue for comparison; the median counts.
    #[arg(long, default_value_t = 5, value_parser = parse_number::<usize, 1, MAX_COUNT>)]
    runs: usize,
}

impl BacklogArgs {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let Self { common, backlog, iterations, runs } = self;
        let sweep = BacklogSweep { backlog, iterations, runs };
        let bar = progress_bar(sweep.total());
        let progress = |done, message: &str| {
            bar.set_position(done);
            if bar.message() != message {
                bar.set_message(message.to_owned());
            }
        };
        let (rows, figures) = backlog::run(&common.place(), &sweep, &progress).await?;
        bar.finish_and_clear();
        let report = common.report("backlog", Sdk::Rust, rows, figures).await?;
        common.output(&report, &table::row_table(&report.rows))
    }
}
