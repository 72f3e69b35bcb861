//! `stepfast bench messages`.

use clap::Args;
use stepfast_benchmarks::experiments::messaging::messages::{self, MessageParameters};
use stepfast_benchmarks::report::table;

use crate::bench::{BenchArgs, MAX_CALLERS, MAX_COUNT, Sdk, parse_number, progress_bar};

#[derive(Args)]
pub(crate) struct MessagesArgs {
    #[command(flatten)]
    common: BenchArgs,
    /// Messages, round trips and events that are sent one at a time.
    #[arg(long, default_value_t = 2_000, value_parser = parse_number::<usize, 1, MAX_COUNT>)]
    count: usize,
    /// Tasks that send to one execution at the same time.
    #[arg(long, default_value_t = 1_000, value_parser = parse_number::<usize, 1, MAX_CALLERS>)]
    senders: usize,
    /// Messages of each of these tasks.
    #[arg(long, default_value_t = 20, value_parser = parse_number::<usize, 1, MAX_COUNT>)]
    per_sender: usize,
}

impl MessagesArgs {
    pub(in crate::bench) async fn run(self) -> anyhow::Result<()> {
        let Self { common, count, senders, per_sender } = self;
        let parameters = MessageParameters { count, senders, per_sender };
        let bar = progress_bar(parameters.total());
        let progress = |doing: &'static str, done| {
            bar.set_message(doing);
            bar.set_position(done);
        };
        let (rows, figures) = messages::run(&common.place(), parameters, &progress).await?;
        bar.finish_and_clear();
        let report = common.report("messages", Sdk::Rust, rows, figures).await?;
        common.output(&report, &table::row_table(&report.rows))
    }
}
