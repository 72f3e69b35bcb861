//! Children: executions that a workflow starts, each with a record of its own.
//!
//! `cargo run --example children [URL]`; the URL of a store is `memory:` unless given.
#![allow(clippy::print_stdout)]

use stepfast::Filter;
use stepfast::prelude::*;

async fn pack(mut cx: Context, item: String) -> Result<usize, Failure> {
    cx.step("weigh", async || match item.as_str() {
        "feather" => Err(Failure::new("too light for the scales")),
        item => Ok(item.len()),
    })
    .await
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = std::env::args().nth(1).unwrap_or("memory:".to_owned());
    let pack = Workflow::new("pack", pack);
    let child = pack.clone();
    let ship = Workflow::new("ship", move |mut cx: Context, items: Vec<String>| {
        let pack = child.clone();
        async move {
            // start all first and await them later: all are packed at the same time
            let mut children = Vec::new();
            for item in items {
                children.push((item.clone(), cx.start_child(&pack, item).await?));
            }
            let mut label = Vec::new();
            for (item, child) in children {
                label.push(match child.result(&mut cx).await {
                    Ok(weight) => format!("{item} ({weight} g)"),
                    Err(failure) => format!("{item} (left out: {failure})"),
                });
            }
            Ok::<_, Failure>(label.join(", "))
        }
    });
    let engine =
        Engine::builder(stepfast::connect(&url).await?).register(&pack).register(&ship).open().await?;
    let items = ["hammer", "feather", "screwdriver"].map(str::to_owned).to_vec();
    let handle = engine.start(&ship, items).await?;
    println!("shipped: {}", handle.result().await?);

    // every list shows them beside their parent, in no order among themselves
    let children = Filter { parent: Some(handle.key()), limit: 10, ..Filter::default() };
    let mut ended: Vec<Status> =
        engine.list(&children).await?.executions.iter().map(|child| child.status).collect();
    ended.sort();
    println!("its children: {}", ended.iter().map(Status::to_string).collect::<Vec<_>>().join(", "));
    Ok(())
}
