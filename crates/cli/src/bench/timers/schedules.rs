//! `stepfast bench schedules`.

use clap::Args;
use stepfast_benchmarks::experiments::schedules::{self, ScheduleParameters};
use stepfast_benchmarks::report::table;

use crate::bench::{BenchArgs, MAX_COUNT, Sdk, parse_number, progress_bar};

#[derive(Args)]
pub(crate) struct SchedulesArgs {
    #[command(flatten)]
    common: BenchArgs,
    /// Schedules with an instant each second.
    #[arg(long, default_value_t = 1_000, value_parser = parse_number::<usize, 1, MAX_COUNT>)]
    schedules: usize,
    /// Instants of each of these schedules.
    #[arg(long, default_value_t = 20, value_parser = parse_number::<usize, 1, MAX_COUNT>)]
    instants: usize,
}

impl SchedulesArgs {
    pub(in crate::bench) async fn run(self) -> anyhow::Result<()> {
        let Self { common, schedules, instants } = self;
        let parameters = ScheduleParameters { schedules, instants };
        let bar = progress_bar(parameters.total());
        let progress = |doing: &'static str, done| {
            bar.set_message(doing);
            bar.set_position(done);
        };
        let (rows, figures) = schedules::run(&common.place(), parameters, &progress).await?;
        bar.finish_and_clear();
        let report = common.report("schedules", Sdk::Rust, rows, figures).await?;
        common.output(&report, &table::row_table(&report.rows))
    }
}
