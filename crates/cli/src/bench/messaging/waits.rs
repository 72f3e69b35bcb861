//! `stepfast bench waits`.

use clap::Args;
use stepfast_benchmarks::experiments::messaging::waits;
use stepfast_benchmarks::report::table;

use crate::bench::{BenchArgs, MAX_COUNT, Sdk, parse_number, progress_bar};

#[derive(Args)]
pub(crate) struct WaitsArgs {
    #[command(flatten)]
    common: BenchArgs,
    /// Messages that the loop receives, suspended before each of them.
    #[arg(long, default_value_t = 10_000, value_parser = parse_number::<usize, 1, MAX_COUNT>)]
    rounds: usize,
    /// Executions that are suspended on messages.
    #[arg(long, default_value_t = 100_000, value_parser = parse_number::<usize, 1, MAX_COUNT>)]
    executions: usize,
}

impl WaitsArgs {
    pub(in crate::bench) async fn run(self) -> anyhow::Result<()> {
        let Self { common, rounds, executions } = self;
        let bar = progress_bar((rounds + executions) as u64);
        let progress = |doing: &'static str, done| {
            bar.set_message(doing);
            bar.set_position(done);
        };
        let (rows, figures) = waits::run(&common.place(), rounds, executions, &progress).await?;
        bar.finish_and_clear();
        let report = common.report("waits", Sdk::Rust, rows, figures).await?;
        common.output(&report, &table::row_table(&report.rows))
    }
}
