//! The `stepfast` program: look at executions, act on them, measure.

mod bench;

use clap::{Parser, Subcommand};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Stepfast is a durable workflow engine that batches for you.
#[derive(Parser)]
#[command(name = "stepfast", version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Measure this machine and this store.
    #[command(subcommand)]
    Bench(bench::Bench),
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_max_level(tracing_subscriber::filter::LevelFilter::WARN)
        .init();
    match Cli::parse().command {
        Command::Bench(bench) => bench.run().await,
    }
}
