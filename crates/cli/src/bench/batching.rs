//! `stepfast bench batching`.

use std::time::Duration;

use clap::Args;
use stepfast_benchmarks::experiments::batching::{self, BatchingParameters};
use stepfast_benchmarks::report::table;

use super::{BenchArgs, MAX_CALLERS, MAX_COUNT, MAX_SECONDS, PythonArgs, Sdk, parse_number, progress_bar};

#[derive(Args)]
pub(crate) struct BatchingArgs {
    #[command(flatten)]
    common: BenchArgs,
    /// Items per call of the write rows; separate several values by commas.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "1,10,100,1000,2000,5000,10000,20000",
        value_parser = parse_number::<usize, 1, MAX_COUNT>
    )]
    batch: Vec<usize>,
    /// Seconds for which each number of items per call, and each number of callers, is measured.
    #[arg(long, default_value_t = 3, value_parser = parse_number::<u64, 1, MAX_SECONDS>)]
    seconds: u64,
    /// Items of the batches that run to their ends; separate several values by commas.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "1000000",
        value_parser = parse_number::<u64, 0, MAX_COUNT>
    )]
    items: Vec<u64>,
    /// Tasks that start executions by single calls; separate several values by commas.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "1,64,1000",
        value_parser = parse_number::<usize, 1, MAX_CALLERS>
    )]
    callers: Vec<usize>,
    /// Finished items among which ids are searched for, also among a tenth as many single executions; 0 for no search.
    #[arg(long, default_value_t = 1_000_000, value_parser = parse_number::<u64, 0, MAX_COUNT>)]
    search_items: u64,
    /// The language whose API is measured; Python's API is measured in processes of its own.
    #[arg(long, value_enum, default_value = "rust")]
    sdk: Sdk,
    #[command(flatten)]
    python: PythonArgs,
}

impl BatchingArgs {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let Self { common, batch: sizes, seconds, items, callers, search_items, sdk, python } = self;
        let duration = Duration::from_secs(seconds);
        let python = python.find(sdk)?;
        let parameters = BatchingParameters { sizes, duration, items, callers, search_items, python };
        let bar = progress_bar(parameters.total());
        let place = common.place();
        let (rows, figures) = batching::run(|| place.open_fresh(), &parameters, &|| bar.inc(1)).await?;
        bar.finish_and_clear();
        let report = common.report("batching", sdk, rows, figures).await?;
        common.output(&report, &table::batch_table(&report.rows))
    }
}
