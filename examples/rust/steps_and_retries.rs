//! Steps: retries with backoff, an error that retrying cannot cure, and the record of both.
//!
//! `cargo run --example steps_and_retries [URL]`; the URL of a store is `memory:` unless given.
#![allow(clippy::print_stdout)]

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use stepfast::prelude::*;

/// A payment service that succeeds from the third call on.
fn pay(order: &str) -> Result<String, Failure> {
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    match CALLS.fetch_add(1, SeqCst) + 1 {
        call @ 1..=2 => Err(Failure::new(format!("call {call}: the service is busy"))),
        call => Ok(format!("{order} paid by call {call}")),
    }
}

async fn checkout(mut cx: Context, order: String) -> Result<String, Failure> {
    let receipt = cx
        .step("pay", async || pay(&order))
        .args(&order)
        .retries(5)
        .backoff(Duration::from_millis(10), Duration::from_millis(100))
        .timeout(Duration::from_secs(10))
        .await?;
    // an error is an outcome too: it is recorded, and the workflow decides what to do
    let gift = cx
        .step("wrap", async || Err::<(), _>(Failure::new("we are out of paper").permanent()))
        .retries(5)
        .await;
    Ok(match gift {
        Ok(()) => format!("{receipt}, wrapped"),
        Err(failure) => format!("{receipt}, not wrapped: {failure}"),
    })
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = std::env::args().nth(1).unwrap_or("memory:".to_owned());
    let checkout = Workflow::new("checkout", checkout);
    let engine = Engine::builder(stepfast::connect(&url).await?).register(&checkout).open().await?;
    let handle = engine.start(&checkout, "order-7".to_owned()).await?;
    println!("{}", handle.result().await?);

    let record = engine.show(&handle.workflow_id()).await?;
    for checkpoint in &record.checkpoints {
        println!("step {} {:?}: {:?}", checkpoint.path, &*checkpoint.name, checkpoint.kind);
        for attempt in record.attempts.iter().filter(|attempt| attempt.path == checkpoint.path) {
            println!("  attempt {}: {}", attempt.attempt, attempt.failure.decode::<Failure>()?);
        }
    }
    Ok(())
}
