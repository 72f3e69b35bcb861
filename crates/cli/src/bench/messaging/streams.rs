//! `stepfast bench streams`.

use clap::Args;
use stepfast_benchmarks::experiments::messaging::streams::{self, StreamParameters};
use stepfast_benchmarks::report::table;

use crate::bench::{BenchArgs, MAX_CALLERS, MAX_COUNT, MAX_PER_SECOND, Sdk, parse_number, progress_bar};

#[derive(Args)]
pub(crate) struct StreamsArgs {
    #[command(flatten)]
    common: BenchArgs,
    /// Values of each stream.
    #[arg(long, default_value_t = 100_000, value_parser = parse_number::<usize, 1, MAX_COUNT>)]
    count: usize,
    /// Values per second to the reader in another process. Many readers get a tenth of this rate.
    #[arg(long, default_value_t = 10_000, value_parser = parse_number::<usize, 1, MAX_PER_SECOND>)]
    rate: usize,
    /// Readers of one stream.
    #[arg(long, default_value_t = 100, value_parser = parse_number::<usize, 1, MAX_CALLERS>)]
    readers: usize,
}

impl StreamsArgs {
    pub(in crate::bench) async fn run(self) -> anyhow::Result<()> {
        let Self { common, count, rate, readers } = self;
        let bar = progress_bar(4);
        let progress = |doing: &'static str| {
            bar.set_message(doing);
            bar.inc(1);
        };
        let parameters = StreamParameters { count, rate, readers };
        let (rows, figures) = streams::run(&common.place(), parameters, &progress).await?;
        bar.finish_and_clear();
        let report = common.report("streams", Sdk::Rust, rows, figures).await?;
        common.output(&report, &table::row_table(&report.rows))
    }
}
