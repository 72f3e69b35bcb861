//! `stepfast bench queue`.

use clap::Args;
use stepfast_benchmarks::queue::{self, Parameters};
use stepfast_benchmarks::table;

use super::{Common, Sdk, bar};

#[derive(Args)]
pub(crate) struct Queue {
    #[command(flatten)]
    common: Common,
    /// Workflows in all, for each row.
    #[arg(long, default_value_t = 300_000)]
    iterations: usize,
    /// Concurrent callers that put workflows into the queues.
    #[arg(long, default_value_t = 2_048)]
    concurrency: usize,
    /// Queues; a list sweeps.
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8")]
    queues: Vec<usize>,
    /// Most that run at a time in each queue [default: no limit].
    #[arg(long)]
    limit: Option<u32>,
}

impl Queue {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let Self { common, iterations, concurrency, queues, limit } = self;
        let mut rows = Vec::new();
        for queues in queues {
            let parameters = Parameters {
                queues: queues.max(1),
                concurrency: concurrency.max(1),
                iterations: iterations.max(1),
                limit,
            };
            let bar = bar(iterations as u64);
            bar.set_message(format!("{queues} queues"));
            let progress = |done| bar.set_position(done);
            let target = common.place().target().await?;
            rows.extend(queue::run(&target, parameters, &progress).await?);
            target.close().await?;
            bar.finish_and_clear();
        }
        let report = common.report("queue", Sdk::Rust, rows, Vec::new()).await?;
        common.show(&report, &table::rows(&report.rows))
    }
}
