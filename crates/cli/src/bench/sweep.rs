//! `stepfast bench workflows` and `stepfast bench steps`.

use std::path::Path;

use anyhow::bail;
use clap::{Args, ValueEnum};
use stepfast_benchmarks::Row;
use stepfast_benchmarks::experiments::sizes;
use stepfast_benchmarks::experiments::workflows::{self, IdSource, Mode, WorkflowParameters};
use stepfast_benchmarks::report::table;

use super::{BenchArgs, MAX_CALLERS, MAX_COUNT, PythonArgs, Sdk, forward_stderr, parse_number, progress_bar};
use crate::output::UsageError;

/// The default numbers of callers.
const DEFAULT_CONCURRENCY: [usize; 4] = [1, 256, 2_048, 16_384];
/// Maximum size of a value, in bytes.
const MAX_VALUE_BYTES: usize = 4 << 20;

#[derive(Args)]
pub(crate) struct SweepArgs {
    #[command(flatten)]
    common: BenchArgs,
    /// Workflows in all, for each row. Processor time is counted in units of 10 ms, so a row should take seconds [default:
    /// 400 per caller, 2,000 to 300,000, divided by one more than the number of steps].
    #[arg(long, value_parser = parse_number::<usize, 1, MAX_COUNT>)]
    iterations: Option<usize>,
    /// Concurrent callers that are tasks; separate several values by commas [default: 1,256,2048,16384, as far as they
    /// are not more than --iterations, unless --threads is given].
    #[arg(long, value_delimiter = ',', value_parser = parse_number::<usize, 1, MAX_CALLERS>)]
    concurrency: Vec<usize>,
    /// For --sdk python: concurrent callers that are threads, with sync workflows; separate several values by commas.
    #[arg(long, value_delimiter = ',', value_parser = parse_number::<usize, 1, MAX_CALLERS>)]
    threads: Vec<usize>,
    /// Steps in each workflow; separate several values by commas [default: 0 for workflows, 3 for steps].
    #[arg(long, value_delimiter = ',', value_parser = parse_number::<usize, 0, MAX_COUNT>)]
    steps: Vec<usize>,
    /// Bytes of the value that each step returns or, without steps, of input and output, from 0 to 4194304; separate
    /// several values by commas [default: the values are numbers].
    #[arg(
        long,
        value_delimiter = ',',
        allow_hyphen_values = true,
        value_parser = parse_number::<usize, 0, MAX_VALUE_BYTES>
    )]
    size: Vec<usize>,
    /// How callers start workflows; separate several values by commas [default: start,run].
    #[arg(long, value_enum, value_delimiter = ',')]
    mode: Vec<ModeName>,
    /// The language whose API is measured; Python's API is measured in a single process.
    #[arg(long, value_enum, default_value = "rust")]
    sdk: Sdk,
    #[command(flatten)]
    python: PythonArgs,
}

#[derive(Clone, Copy, ValueEnum)]
enum ModeName {
    Start,
    Run,
}

impl SweepArgs {
    pub(super) async fn run(mut self, experiment: &str, default_steps: usize) -> anyhow::Result<()> {
        if self.sdk == Sdk::Rust && !self.threads.is_empty() {
            bail!(UsageError::new("--threads is for --sdk python: in Rust every caller is a task"));
        }
        let python = self.python.find(self.sdk)?;
        if self.steps.is_empty() {
            self.steps.push(default_steps);
        }
        if self.mode.is_empty() {
            self.mode = vec![ModeName::Start, ModeName::Run];
        }
        if self.concurrency.is_empty() && self.threads.is_empty() {
            self.concurrency = DEFAULT_CONCURRENCY.to_vec();
            self.concurrency.retain(|&callers| callers <= self.iterations.unwrap_or(callers));
        }
        self.check_callers()?;
        let tasks = self.concurrency.iter().map(|&callers| (callers, false));
        let callers: Vec<_> = tasks.chain(self.threads.iter().map(|&callers| (callers, true))).collect();
        let sizes: Vec<_> =
            if self.size.is_empty() { vec![None] } else { self.size.iter().copied().map(Some).collect() };
        let mut rows = Vec::new();
        for (&steps, &size) in self.steps.iter().flat_map(|steps| sizes.iter().map(move |size| (steps, size)))
        {
            for &(concurrency, are_threads) in &callers {
                for mode in &self.mode {
                    let mode = match mode {
                        ModeName::Start => Mode::Start,
                        ModeName::Run => Mode::Run,
                    };
                    let parameters = WorkflowParameters {
                        mode,
                        concurrency,
                        ids: IdSource::Minted,
                        steps,
                        iterations: self.iterations,
                    };
                    rows.push(self.row(python.as_deref(), parameters, are_threads, size).await?);
                }
            }
        }
        let report = self.common.report(experiment, self.sdk, rows, Vec::new()).await?;
        self.common.output(&report, &table::row_table(&report.rows))
    }

    /// Checks that each caller has a workflow to run, so that a row's number of callers is true.
    fn check_callers(&self) -> Result<(), UsageError> {
        let Some(iterations) = self.iterations else { return Ok(()) };
        let options = [("--concurrency", &self.concurrency), ("--threads", &self.threads)];
        for (option, callers) in options {
            if let Some(callers) = callers.iter().find(|callers| **callers > iterations) {
                return Err(UsageError::new(format!(
                    "{option} {callers} is more than --iterations {iterations}: give each caller a workflow at least"
                )));
            }
        }
        Ok(())
    }

    async fn row(
        &self,
        python: Option<&Path>,
        parameters: WorkflowParameters,
        are_threads: bool,
        size: Option<usize>,
    ) -> anyhow::Result<Row> {
        let WorkflowParameters { mode, concurrency, steps, .. } = parameters;
        let bar = progress_bar(parameters.total() as u64);
        let callers = if are_threads { "threads" } else { "callers" };
        bar.set_message(format!("{} {concurrency} {callers}, {steps} steps", mode.as_str()));
        let progress = |done| bar.set_position(done);
        let target = self.common.place().open_target().await?;
        let (row, stderr) = match python {
            None => {
                let row = match size {
                    None => workflows::run(&target, parameters, &progress).await?,
                    Some(size) => sizes::run(&target, parameters, size, &progress).await?,
                };
                (row, String::new())
            }
            Some(python) => {
                workflows::run_in_python(python, &target, parameters, are_threads, size, &progress).await?
            }
        };
        bar.finish_and_clear();
        forward_stderr(&stderr);
        Ok(row)
    }
}
