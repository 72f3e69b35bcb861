//! `stepfast bench payload`.

use clap::Args;
use stepfast_benchmarks::experiments::payload;
use stepfast_benchmarks::report::table;

use super::{BenchArgs, MAX_COUNT, PythonArgs, Sdk, forward_stderr, parse_number, progress_bar};

#[derive(Args)]
pub(crate) struct PayloadArgs {
    #[command(flatten)]
    common: BenchArgs,
    /// Measured rounds; every variant runs once in each.
    #[arg(long, default_value_t = 20, value_parser = parse_number::<usize, 5, MAX_COUNT>)]
    iterations: usize,
    /// The language whose API is measured.
    #[arg(long, value_enum, default_value = "python")]
    sdk: Sdk,
    #[command(flatten)]
    python: PythonArgs,
}

impl PayloadArgs {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let sdk = self.python.find(self.sdk)?.map_or(payload::Sdk::Rust, payload::Sdk::Python);
        let runs = self.iterations;
        let bar = progress_bar(payload::rounds(runs));
        bar.set_message("rounds");
        let progress = |done| bar.set_position(done);
        let (rows, figures, stderr) = payload::run(&self.common.place(), &sdk, runs, &progress).await?;
        bar.finish_and_clear();
        forward_stderr(&stderr);
        let report = self.common.report("payload", self.sdk, rows, figures).await?;
        self.common.output(&report, &table::size_table(&report.rows))
    }
}
