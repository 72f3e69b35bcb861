//! The `stepfast` program: shows and changes executions, queues and schedules, maintains the database, measures.

mod arguments;
mod batch;
mod bench;
mod client;
mod db;
mod dead_letters;
mod execution_tree;
mod follow;
mod graph;
mod input;
mod messaging;
mod output;
mod queue;
mod schedule;
mod show;
mod unclaimable;
mod value;
mod worker;
mod workflow;

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use anyhow::anyhow;
use clap::{Parser, Subcommand};
use stepfast::text::quote;
use tracing_subscriber::EnvFilter;

use crate::output::Exit;

/// The environment variable that contains the filter of the log.
const LOG_VARIABLE: &str = "STEPFAST_LOG";

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Stepfast is a durable workflow engine that batches for you: every step is safe on disk before the next
/// one acts, and a thousand of them share one flush.
///
/// Exit codes: 0 done, 1 failed, 2 wrong command line, 3 no such execution, queue or schedule, 4 not applicable, 5 the
/// database is unreachable.
#[derive(Parser)]
#[command(name = "stepfast", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    #[command(subcommand)]
    Workflow(workflow::WorkflowCommand),
    #[command(subcommand)]
    Batch(batch::BatchCommand),
    #[command(subcommand)]
    Message(messaging::message::MessageCommand),
    #[command(subcommand)]
    Event(messaging::event::EventCommand),
    #[command(subcommand)]
    Stream(messaging::stream::StreamCommand),
    #[command(subcommand)]
    Token(messaging::token::TokenCommand),
    /// Ask an execution a question, and print the answer.
    Ask(messaging::ask::AskArgs),
    #[command(subcommand)]
    Graph(graph::GraphCommand),
    #[command(subcommand)]
    Queue(queue::QueueCommand),
    #[command(subcommand)]
    Schedule(schedule::ScheduleCommand),
    #[command(subcommand)]
    Worker(worker::WorkerCommand),
    #[command(subcommand)]
    Db(db::DbCommand),
    /// Measure this machine and this store.
    #[command(subcommand)]
    Bench(bench::BenchCommand),
}

#[tokio::main]
async fn main() -> ExitCode {
    let command = arguments::parse::<Cli>().command;
    if let Err(error) = init_log(&command) {
        print_error(&format!("{error:#}"));
        return ExitCode::from(Exit::Failed as u8);
    }
    let result = match command {
        Command::Workflow(workflow) => workflow.run().await,
        Command::Batch(batch) => batch.run().await,
        Command::Message(message) => message.run().await,
        Command::Event(event) => event.run().await,
        Command::Stream(stream) => stream.run().await,
        Command::Token(token) => token.run().await,
        Command::Ask(ask) => ask.run().await,
        Command::Graph(graph) => graph.run().await,
        Command::Queue(queue) => queue.run().await,
        Command::Schedule(schedule) => schedule.run().await,
        Command::Worker(worker) => worker.run().await,
        Command::Db(db) => db.run().await,
        Command::Bench(bench) => bench.run().await.map(|()| Exit::Done),
    };
    let exit = result.unwrap_or_else(|error| {
        if let Some(ours) = error.downcast_ref::<stepfast::Error>() {
            print_error(&format!("{ours} [{}]", ours.code()));
            Exit::of(ours)
        } else {
            print_error(&format!("{error:#}"));
            Exit::of_command(&error)
        }
    });
    ExitCode::from(exit as u8)
}

/// Prints an error. Standard error may be closed.
fn print_error(error: &str) {
    let _ = writeln!(std::io::stderr(), "error: {}", output::escape_lines(error));
}

/// Writes the engine's log to standard error, filtered by `STEPFAST_LOG`. If the reader of a pipe ends, as `head` does,
/// the log is lost and the program continues.
fn init_log(command: &Command) -> anyhow::Result<()> {
    let filter = match std::env::var_os(LOG_VARIABLE) {
        Some(directives) => {
            let directives = directives.to_string_lossy();
            EnvFilter::try_new(&directives).map_err(|_| {
                let shown = quote(&directives);
                anyhow!("{LOG_VARIABLE}={shown} is neither a level, such as info, nor a list of targets and levels")
            })?
        }
        // building an index may take hours: without log lines the command would seem to hang
        None if matches!(command, Command::Db(db::DbCommand::Migrate(_))) => {
            EnvFilter::new("error,stepfast_postgres::admin::prepare=info")
        }
        None => EnvFilter::new("error"),
    };
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .log_internal_errors(false)
        .with_env_filter(filter)
        .init();
    Ok(())
}
