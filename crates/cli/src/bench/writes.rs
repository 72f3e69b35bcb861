//! `stepfast bench writes`.

use clap::Args;
use stepfast_benchmarks::experiments::writes;
use stepfast_benchmarks::report::table;

use super::{BenchArgs, MAX_CALLERS, MAX_COUNT, Sdk, parse_number, progress_bar};

#[derive(Args)]
pub(crate) struct WritesArgs {
    #[command(flatten)]
    common: BenchArgs,
    /// Concurrent clients, each with a connection of its own and one row per transaction; every value of a list is
    /// measured.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "1,8,32,64",
        value_parser = parse_number::<usize, 1, MAX_CALLERS>
    )]
    concurrency: Vec<usize>,
    /// Concurrent callers of one engine, whose lanes commit the rows together; separate several values by commas
    /// [default: the numbers of clients, and 256,2048,16384].
    #[arg(long, value_delimiter = ',', value_parser = parse_number::<usize, 1, MAX_CALLERS>)]
    callers: Vec<usize>,
    /// Database rows in all, for each row of the printed table [default: by the number of clients].
    #[arg(long, value_parser = parse_number::<usize, 1, MAX_COUNT>)]
    iterations: Option<usize>,
}

impl WritesArgs {
    pub(super) async fn run(mut self) -> anyhow::Result<()> {
        if self.callers.is_empty() {
            self.callers = self.concurrency.iter().copied().chain([256, 2_048, 16_384]).collect();
        }
        let mut rows = Vec::new();
        for clients in self.concurrency {
            let total = self.iterations.unwrap_or_else(|| writes::one_by_one_total(clients));
            let bar = progress_bar(total as u64);
            bar.set_message(format!("one by one, {clients} clients"));
            let progress = |done| bar.set_position(done);
            let target = self.common.place().open_target().await?;
            rows.extend(
                writes::one_by_one(&target, &self.common.durability, clients, total, &progress).await?,
            );
            bar.finish_and_clear();
        }
        for callers in self.callers {
            let total = self.iterations.unwrap_or_else(|| writes::lane_total(callers));
            let bar = progress_bar(total as u64);
            bar.set_message(format!("lane, {callers} callers"));
            let progress = |done| bar.set_position(done);
            let target = self.common.place().open_target().await?;
            rows.push(writes::by_lane(&target, callers, total, &progress).await?);
            bar.finish_and_clear();
        }
        let report = self.common.report("writes", Sdk::Rust, rows, Vec::new()).await?;
        self.common.output(&report, &table::row_table(&report.rows))
    }
}
