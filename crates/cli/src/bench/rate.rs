//! `stepfast bench rate`.

use clap::Args;
use stepfast_benchmarks::experiments::queue::rate::{self, RateParameters};
use stepfast_benchmarks::report::table;

use super::{BenchArgs, MAX_PER_SECOND, MAX_SECONDS, MAX_WORKERS, Sdk, parse_number, progress_bar};

#[derive(Args)]
pub(crate) struct RateArgs {
    #[command(flatten)]
    common: BenchArgs,
    /// Executions that begin per second, evenly spaced; separate several values by commas.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "10,50,200",
        value_parser = parse_number::<u32, 1, MAX_PER_SECOND>
    )]
    per_second: Vec<u32>,
    /// Worker processes in addition to the process that enqueues workflows. With 0, that process also runs them.
    /// Separate several values by commas.
    #[arg(long, value_delimiter = ',', default_value = "0,2", value_parser = parse_number::<usize, 0, MAX_WORKERS>)]
    workers: Vec<usize>,
    /// Duration, in seconds.
    #[arg(long, default_value_t = 10, value_parser = parse_number::<usize, 1, MAX_SECONDS>)]
    seconds: usize,
}

impl RateArgs {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let Self { common, per_second, workers, seconds } = self;
        let (mut rows, mut figures) = (Vec::new(), Vec::new());
        let bar = progress_bar((per_second.len() * workers.len()) as u64);
        for workers in workers {
            for &per_second in &per_second {
                bar.set_message(format!("{per_second} in a second, {workers} workers"));
                let place = common.place();
                let target =
                    if workers > 0 { place.open_fresh().await? } else { place.open_target().await? };
                let iterations = (per_second as usize * seconds).max(2);
                let measured = rate::run(&target, RateParameters { per_second, workers, iterations }).await;
                target.close().await?;
                let (row, found) = measured?;
                rows.push(row);
                figures.extend(found);
                bar.inc(1);
            }
        }
        bar.finish_and_clear();
        let report = common.report("rate", Sdk::Rust, rows, figures).await?;
        common.output(&report, &table::time_table(&report.rows))
    }
}
