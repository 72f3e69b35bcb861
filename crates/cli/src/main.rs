//! The `stepfast` program: look at executions, act on them, keep the database in order, measure.

mod bench;
mod db;
mod output;
mod unclaimable;
mod value;
mod worker;
mod workflow;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tracing_subscriber::EnvFilter;

use crate::output::Exit;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Stepfast is a durable workflow engine that batches for you: every step is safe on disk before the next
/// one acts, and a thousand of them share one flush.
///
/// Exit codes: 0 done, 1 failed, 2 wrong command line, 3 no such execution, 4 declined, 5 the database did
/// not answer.
#[derive(Parser)]
#[command(name = "stepfast", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    #[command(subcommand)]
    Workflow(workflow::Workflow),
    #[command(subcommand)]
    Worker(worker::Worker),
    #[command(subcommand)]
    Db(db::Db),
    /// Measure this machine and this store.
    #[command(subcommand)]
    Bench(bench::Bench),
}

#[tokio::main]
#[allow(clippy::print_stderr)] // this is where the program says what went wrong
async fn main() -> ExitCode {
    let filter = EnvFilter::try_from_env("STEPFAST_LOG").unwrap_or_else(|_| EnvFilter::new("error"));
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_env_filter(filter).init();
    let result = match Cli::parse().command {
        Command::Workflow(workflow) => workflow.run().await,
        Command::Worker(worker) => worker.run().await,
        Command::Db(db) => db.run().await,
        Command::Bench(bench) => bench.run().await.map(|()| Exit::Done),
    };
    let exit = result.unwrap_or_else(|error| {
        if let Some(ours) = error.downcast_ref::<stepfast::Error>() {
            eprintln!("error: {ours} [{}]", ours.code());
            Exit::of(ours)
        } else {
            eprintln!("error: {error:#}");
            Exit::Failed
        }
    });
    ExitCode::from(exit as u8)
}
