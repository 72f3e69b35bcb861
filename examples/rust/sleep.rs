//! A durable sleep: the engine that began it is shut down, and another one continues in time.
//!
//! `cargo run --example sleep [URL]`; the URL of a store is `memory:` unless given.
#![allow(clippy::print_stdout)]

use std::time::Duration;

use stepfast::prelude::*;

const NAP: Duration = Duration::from_millis(400);

async fn reminder(mut cx: Context, text: String) -> Result<String, Failure> {
    cx.step("note", async || Ok::<_, Failure>(())).await?;
    // during a long sleep, an execution takes neither a thread nor memory: only a row
    cx.sleep(NAP).await;
    cx.step("remind", async || Ok::<_, Failure>(format!("remember: {text}"))).await
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = std::env::args().nth(1).unwrap_or("memory:".to_owned());
    let store = stepfast::connect(&url).await?;
    let reminder = Workflow::new("reminder", reminder);
    let builder = || Engine::builder(store.clone()).register(&reminder).suspend_after(NAP / 4);

    let first = builder().open().await?;
    let id = first.start(&reminder, "water the plants".to_owned()).await?.workflow_id();
    first.shutdown(Duration::from_secs(10)).await?;
    println!("the first engine has started the execution and is shut down");

    let second = builder().open().await?;
    println!("the second engine returns: {}", second.get::<String>(&id).await?.result().await?);

    let record = second.show(&id).await?;
    for checkpoint in &record.checkpoints {
        println!("{}. {:?} {}", checkpoint.order, checkpoint.kind, checkpoint.name);
    }
    let slept = record.checkpoints[2].at.since(record.checkpoints[0].at);
    println!("slept long enough: {}", slept >= NAP);
    Ok(())
}
