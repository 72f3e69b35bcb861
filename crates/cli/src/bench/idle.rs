//! `stepfast bench idle`.

use clap::Args;
use stepfast_benchmarks::{idle, table};

use super::{Common, Sdk, bar};

#[derive(Args)]
pub(crate) struct Idle {
    #[command(flatten)]
    common: Common,
    /// Duration for which the engine is idle, in seconds.
    #[arg(long, default_value_t = 30)]
    seconds: u64,
    /// Queues that are declared and always empty.
    #[arg(long, default_value_t = 0)]
    queues: usize,
    /// Workflows that are started afterwards, one at a time.
    #[arg(long, default_value_t = 200)]
    iterations: usize,
}

impl Idle {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let Self { common, seconds, queues, iterations } = self;
        let (seconds, many) = (seconds.max(1), iterations.max(1));
        let bar = bar(idle::SETTLED.as_secs() + seconds + many as u64);
        let progress = |doing: &'static str, done| {
            bar.set_message(doing);
            bar.set_position(done);
        };
        let (rows, figures) = idle::run(&common.place(), seconds, queues, many, &progress).await?;
        bar.finish_and_clear();
        let report = common.report("idle", Sdk::Rust, rows, figures).await?;
        common.show(&report, &table::times(&report.rows))
    }
}
