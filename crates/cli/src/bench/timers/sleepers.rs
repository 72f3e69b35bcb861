//! `stepfast bench sleepers`.

use std::time::Duration;

use clap::Args;
use stepfast_benchmarks::experiments::sleepers;
use stepfast_benchmarks::report::table;

use crate::bench::{BenchArgs, MAX_COUNT, MAX_SECONDS, Sdk, parse_number, progress_bar};

#[derive(Args)]
pub(crate) struct SleepersArgs {
    #[command(flatten)]
    common: BenchArgs,
    /// Executions that sleep.
    #[arg(long, default_value_t = 1_000_000, value_parser = parse_number::<usize, 10, MAX_COUNT>)]
    iterations: usize,
    /// Time until all sleeps end, in seconds. All executions must be suspended by then.
    #[arg(long, default_value_t = 120, value_parser = parse_number::<u64, 0, MAX_SECONDS>)]
    seconds: u64,
}

impl SleepersArgs {
    pub(in crate::bench) async fn run(self) -> anyhow::Result<()> {
        let Self { common, iterations, seconds } = self;
        let bar = progress_bar(2 * iterations as u64);
        let progress = |done, message: &str| {
            bar.set_position(done);
            if bar.message() != message {
                bar.set_message(message.to_owned());
            }
        };
        let wait = Duration::from_secs(seconds);
        let (rows, figures) = sleepers::run(&common.place(), iterations, wait, &progress).await?;
        bar.finish_and_clear();
        let report = common.report("sleepers", Sdk::Rust, rows, figures).await?;
        common.output(&report, &table::row_table(&report.rows))
    }
}
