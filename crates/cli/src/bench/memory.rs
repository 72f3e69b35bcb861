//! `stepfast bench memory`.

use clap::Args;
use stepfast_benchmarks::experiments::memory;
use stepfast_benchmarks::report::table;

use super::{BenchArgs, MAX_COUNT, PythonArgs, Sdk, forward_stderr, parse_number, progress_bar};

#[derive(Args)]
pub(crate) struct MemoryArgs {
    #[command(flatten)]
    common: BenchArgs,
    /// Executions that wait, or are started, at once.
    #[arg(long, default_value_t = 100_000, value_parser = parse_number::<usize, 2_000, MAX_COUNT>)]
    iterations: usize,
    /// The language whose API is measured.
    #[arg(long, value_enum, default_value = "rust")]
    sdk: Sdk,
    #[command(flatten)]
    python: PythonArgs,
}

impl MemoryArgs {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let (executions, place) = (self.iterations, self.common.place());
        let (rows, figures) = match &self.python.find(self.sdk)? {
            None => memory::run(&place, executions).await?,
            Some(python) => {
                let bar = progress_bar(executions as u64);
                bar.set_message("executions that wait, then bursts");
                let progress = |done| bar.set_position(done);
                let (rows, figures, stderr) =
                    memory::run_in_python(python, &place, executions, &progress).await?;
                bar.finish_and_clear();
                forward_stderr(&stderr);
                (rows, figures)
            }
        };
        let report = self.common.report("memory", self.sdk, rows, figures).await?;
        self.common.output(&report, &table::row_table(&report.rows))
    }
}
