//! `stepfast bench large-graph`.

use clap::Args;
use stepfast_benchmarks::experiments::large_graph::{self, LargeGraphParameters};
use stepfast_benchmarks::report::table;

use super::graphs::parse_positive;
use super::{BenchArgs, Sdk, progress_bar};

#[derive(Args)]
pub(crate) struct LargeGraphArgs {
    #[command(flatten)]
    common: BenchArgs,
    /// Tasks of a graph; separate several values by commas. The time per task of the largest graph is compared with that of
    /// the smallest one.
    #[arg(long, value_delimiter = ',', default_value = "1000,10000", value_parser = parse_positive)]
    tasks: Vec<usize>,
    /// Turns. In each turn, every graph runs, and a small graph runs several times.
    #[arg(long, default_value_t = 5, value_parser = parse_positive)]
    runs: usize,
}

impl LargeGraphArgs {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let Self { common, tasks, runs } = self;
        let parameters = LargeGraphParameters::new(&tasks, runs);
        let bar = progress_bar(parameters.total());
        let target = common.place().open_target().await?;
        let measured = large_graph::run(&target, &parameters, &|turns| bar.set_position(turns)).await;
        target.close().await?;
        let (rows, figures) = measured?;
        bar.finish_and_clear();
        let report = common.report("large-graph", Sdk::Rust, rows, figures).await?;
        common.output(&report, &table::time_table(&report.rows))
    }
}
