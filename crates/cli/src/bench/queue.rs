//! `stepfast bench queue`.

use anyhow::bail;
use clap::Args;
use stepfast_benchmarks::queue::{self, Parameters};
use stepfast_benchmarks::table;

use super::{Common, Python, Sdk, bar, pass_on};

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
    /// Worker processes beside the one that puts workflows into the queues. With 0, that process also runs them. A list sweeps
    /// [default: 0,1,2; with --sdk python 0].
    #[arg(long, value_delimiter = ',')]
    workers: Vec<usize>,
    /// Maximum number of executions that run at a time in each queue [default: no limit].
    #[arg(long)]
    limit: Option<u32>,
    /// The language whose API is measured; Python's in a single process.
    #[arg(long, value_enum, default_value = "rust")]
    sdk: Sdk,
    #[command(flatten)]
    python: Python,
}

impl Queue {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let Self { common, iterations, concurrency, queues, workers, limit, sdk, python } = self;
        let workers = match (sdk, workers.is_empty()) {
            (Sdk::Rust, true) => vec![0, 1, 2],
            (Sdk::Python, true) => vec![0],
            (Sdk::Python, false) if workers != [0] => {
                bail!("--workers is for --sdk rust: in Python a single process queues and runs the workflows")
            }
            _ => workers,
        };
        let mut rows = Vec::new();
        let sweep = workers.iter().flat_map(|workers| queues.iter().map(|queues| (*queues, *workers)));
        for (queues, workers) in sweep {
            let parameters = Parameters {
                queues: queues.max(1),
                workers,
                concurrency: concurrency.max(1),
                iterations: iterations.max(1),
                limit,
            };
            let bar = bar(iterations as u64);
            bar.set_message(format!("{queues} queues, {workers} workers"));
            let progress = |done| bar.set_position(done);
            let place = common.place();
            let target = if workers > 0 { place.fresh().await? } else { place.target().await? };
            match sdk {
                Sdk::Rust => rows.extend(queue::run(&target, parameters, &progress).await?),
                Sdk::Python => {
                    let (measured, said) =
                        queue::run_in_python(&python.find(), &target, parameters, &progress).await?;
                    pass_on(&said);
                    rows.extend(measured);
                }
            }
            target.close().await?;
            bar.finish_and_clear();
        }
        let report = common.report("queue", sdk, rows, Vec::new()).await?;
        common.show(&report, &table::rows(&report.rows))
    }
}
