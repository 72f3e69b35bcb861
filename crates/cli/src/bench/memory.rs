//! `stepfast bench memory`.

use clap::Args;
use stepfast_benchmarks::{memory, table};

use super::{Common, Python, Sdk, bar, pass_on};

#[derive(Args)]
pub(crate) struct Memory {
    #[command(flatten)]
    common: Common,
    /// Executions that wait, or are started, at once.
    #[arg(long, default_value_t = 100_000)]
    iterations: usize,
    /// The language whose API is measured.
    #[arg(long, value_enum, default_value = "rust")]
    sdk: Sdk,
    #[command(flatten)]
    python: Python,
}

impl Memory {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let (many, place) = (self.iterations.max(2_000), self.common.place());
        let (rows, figures) = match self.sdk {
            Sdk::Rust => memory::run(&place, many).await?,
            Sdk::Python => {
                let bar = bar(many as u64);
                bar.set_message("executions that wait, then bursts");
                let progress = |done| bar.set_position(done);
                let python = self.python.find();
                let (rows, figures, said) = memory::run_in_python(&python, &place, many, &progress).await?;
                bar.finish_and_clear();
                pass_on(&said);
                (rows, figures)
            }
        };
        let report = self.common.report("memory", self.sdk, rows, figures).await?;
        self.common.show(&report, &table::rows(&report.rows))
    }
}
