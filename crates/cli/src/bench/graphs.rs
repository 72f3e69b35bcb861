//! `stepfast bench simple`, `stepfast bench parallel`, `stepfast bench pipeline` and `stepfast bench large-graph`.

use std::path::PathBuf;

use clap::Args;
use stepfast_benchmarks::experiments::graphs::{self, GraphParameters, Shape};
use stepfast_benchmarks::experiments::large_graph::{self, LargeGraphParameters};
use stepfast_benchmarks::report::{plot, table};

use super::{BenchArgs, MAX_CALLERS, MAX_COUNT, PythonArgs, Sdk, forward_stderr, parse_number, progress_bar};
use crate::output;

#[derive(Args)]
pub(crate) struct GraphBenchArgs {
    #[command(flatten)]
    common: BenchArgs,
    /// Executions in all, for each row.
    #[arg(long, default_value_t = 150, value_parser = parse_number::<usize, 1, MAX_COUNT>)]
    iterations: usize,
    /// Executions that run at a time; separate several values by commas.
    #[arg(long, value_delimiter = ',', default_value = "32", value_parser = parse_number::<usize, 1, MAX_CALLERS>)]
    concurrency: Vec<usize>,
    /// The language whose API is measured; Python's API is measured in a single process.
    #[arg(long, value_enum, default_value = "rust")]
    sdk: Sdk,
    #[command(flatten)]
    python: PythonArgs,
    /// Also write the graphs of the throughput and of the time by callers into this directory, as SVG files.
    #[arg(long, value_name = "DIR")]
    plot: Option<PathBuf>,
}

impl GraphBenchArgs {
    pub(super) async fn run(self, shape: Shape) -> anyhow::Result<()> {
        let python = self.python.find(self.sdk)?;
        let mut rows = Vec::new();
        for &concurrency in &self.concurrency {
            let bar = progress_bar(self.iterations as u64);
            bar.set_message(format!("{} {concurrency} at a time", shape.as_str()));
            let target = self.common.place().open_target().await?;
            let parameters = GraphParameters { shape, iterations: self.iterations, concurrency };
            let progress = |done| bar.set_position(done);
            let (row, stderr) = match &python {
                None => (graphs::run(&target, parameters, &progress).await?, String::new()),
                Some(python) => graphs::run_in_python(python, &target, parameters, &progress).await?,
            };
            bar.finish_and_clear();
            forward_stderr(&stderr);
            output::print(&graphs::summary(&row, self.iterations));
            rows.push(row);
        }
        let report = self.common.report(shape.as_str(), self.sdk, rows, Vec::new()).await?;
        self.common.output(&report, &table::sweep_table(&report.rows))?;
        if let Some(directory) = &self.plot {
            for file in plot::write_sweep(&report.rows, shape.as_str(), directory)? {
                output::print(&format!("wrote {}", file.display()));
            }
        }
        Ok(())
    }
}

#[derive(Args)]
pub(crate) struct LargeGraphArgs {
    #[command(flatten)]
    common: BenchArgs,
    /// Tasks of a graph; separate several values by commas. The time per task of the largest graph is compared with that of
    /// the smallest one.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "1000,10000",
        value_parser = parse_number::<usize, 1, MAX_COUNT>
    )]
    tasks: Vec<usize>,
    /// Turns. In each turn, every graph runs, and a small graph runs several times.
    #[arg(long, default_value_t = 5, value_parser = parse_number::<usize, 1, MAX_COUNT>)]
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
