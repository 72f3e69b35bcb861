//! `stepfast bench pauses`.

use clap::Args;
use stepfast_benchmarks::experiments::pauses::{self, PauseParameters};
use stepfast_benchmarks::report::table;

use super::{BenchArgs, Sdk, progress_bar};

#[derive(Args)]
pub(crate) struct PausesArgs {
    #[command(flatten)]
    common: BenchArgs,
    /// Executions that are queued per second.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(100..))]
    per_second: u64,
    /// Workers, each in a process of its own.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    workers: u32,
    /// Pauses of the queue, and as many changes of its limit.
    #[arg(long, default_value_t = 100)]
    changes: usize,
}

impl PausesArgs {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let Self { common, per_second, workers, changes } = self;
        let changes = changes.max(1);
        let parameters = PauseParameters { per_second, workers: workers as usize, changes };
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
