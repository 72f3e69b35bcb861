//! `stepfast bench backlog`.

use clap::Args;
use stepfast_benchmarks::backlog::{self, Sweep};
use stepfast_benchmarks::table;

use super::{Common, Sdk, bar};

#[derive(Args)]
pub(crate) struct Backlog {
    #[command(flatten)]
    common: Common,
    /// Executions that wait at each step behind those that run; a list sweeps, from the smallest.
    #[arg(long, value_delimiter = ',', default_value = "0,1000000,2000000")]
    backlog: Vec<usize>,
    /// Executions that run each time.
    #[arg(long, default_value_t = 100_000)]
    iterations: usize,
    /// Runs at each step, alternating with an empty queue for comparison; the median counts.
    #[arg(long, default_value_t = 5)]
    runs: usize,
}

impl Backlog {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let Self { common, backlog, iterations, runs } = self;
        let sweep = Sweep { backlog, iterations: iterations.max(100), runs };
        let bar = bar(sweep.total());
        let progress = |done, what: &str| {
            bar.set_position(done);
            if bar.message() != what {
                bar.set_message(what.to_owned());
            }
        };
        let (rows, figures) = backlog::run(&common.place(), &sweep, &progress).await?;
        bar.finish_and_clear();
        let report = common.report("backlog", Sdk::Rust, rows, figures).await?;
        common.show(&report, &table::rows(&report.rows))
    }
}
