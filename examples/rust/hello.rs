//! The smallest program: a workflow of one step, run to its output.
//!
//! `cargo run --example hello [URL]`; the URL of a store is `memory:` unless given.
#![allow(clippy::print_stdout)]

use stepfast::prelude::*;

async fn greet(mut cx: Context, name: String) -> Result<String, Failure> {
    cx.step("greet", async || Ok::<_, Failure>(format!("Hello, {name}!"))).await
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = std::env::args().nth(1).unwrap_or("memory:".to_owned());
    let greet = Workflow::new("greet", greet);
    let engine = Engine::builder(stepfast::connect(&url).await?).register(&greet).open().await?;

    // starts, runs and records an execution; the output is durable when `run` returns
    println!("{}", engine.run(&greet, "Ada".to_owned()).await?);

    // a workflow_id makes a start idempotent: the second one returns a handle to the first execution
    for _ in 0..2 {
        let handle = engine.start(&greet, "Grace".to_owned()).workflow_id("greet-grace").await?;
        println!("{}: {}", handle.workflow_id(), handle.result().await?);
    }
    let record = engine.show("greet-grace").await?;
    println!("{} execution, {} checkpoint", record.execution.status, record.checkpoints.len());
    Ok(())
}
