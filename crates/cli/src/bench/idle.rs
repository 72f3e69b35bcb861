//! `stepfast bench idle`.

use clap::Args;
use stepfast_benchmarks::experiments::idle;
use stepfast_benchmarks::report::table;

use super::{BenchArgs, MAX_COUNT, MAX_SECONDS, Sdk, parse_number, progress_bar};

#[derive(Args)]
pub(crate) struct IdleArgs {
    #[command(flatten)]
    common: BenchArgs,
    /// Duration for which the engine is idle, in seconds.
    #[arg(long, default_value_t = 30, value_parser = parse_number::<u64, 1, MAX_SECONDS>)]
    seconds: u64,
    /// Queues that are declared and always empty.
    #[arg(long, default_value_t = 0, value_parser = parse_number::<usize, 0, MAX_COUNT>)]
    queues: usize,
    /// Workflows that are started afterwards, one at a time.
    #[arg(long, default_value_t = 200, value_parser = parse_number::<usize, 1, MAX_COUNT>)]
    iterations: usize,
}

impl IdleArgs {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let Self { common, seconds, queues, iterations: workflows } = self;
        let bar = progress_bar(idle::SETTLE_TIME.as_secs() + seconds + workflows as u64);
        let progress = |doing: &'static str, done| {
            bar.set_message(doing);
            bar.set_position(done);
        };
        let (rows, figures) = idle::run(&common.place(), seconds, queues, workflows, &progress).await?;
        bar.finish_and_clear();
        let report = common.report("idle", Sdk::Rust, rows, figures).await?;
        common.output(&report, &table::time_table(&report.rows))
    }
}
