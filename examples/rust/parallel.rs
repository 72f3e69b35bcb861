//! Branches: a workflow that does several things at a time, and still replays them in the same order.
//!
//! `cargo run --example parallel [URL]`; the URL of a store is `memory:` unless given.
#![allow(clippy::print_stdout)]

use std::time::Duration;

use stepfast::prelude::*;

async fn fetch(mut cx: Context, page: u32) -> Result<u32, Failure> {
    cx.step("fetch", async || Ok::<_, Failure>(page * page)).args(&page).await
}

async fn figure(mut cx: Context, name: &'static str, n: u32) -> Result<String, Failure> {
    cx.step(name, async || Ok::<_, Failure>(format!("{name} {n}"))).await
}

async fn report(mut cx: Context, pages: u32) -> Result<Vec<String>, Failure> {
    let mut lines = Vec::new();

    // one branch per item, at most three at a time; the outputs are in the order of the items
    let sizes = cx.map(1..=pages, 3, fetch).await.into_iter().collect::<Result<Vec<_>, _>>()?;
    lines.push(format!("map: {sizes:?}"));

    // two branches, both awaited
    let (sum, max) = (sizes.iter().sum::<u32>(), sizes.iter().max().copied().unwrap_or(0));
    let (sum, max) = cx.join(|cx| figure(cx, "sum", sum), |cx| figure(cx, "max", max)).await;
    lines.push(format!("join: {}, {}", sum?, max?));

    // the branch that is done first wins; the abandonment of the other one is recorded too
    let hour = async |mut cx: Context| cx.sleep(Duration::from_hours(1)).await;
    lines.push(match cx.race(|cx| figure(cx, "quick", 7), hour).await {
        Either::First(answer) => format!("race: {}", answer?),
        Either::Second(()) => "race: the hour passed first".to_owned(),
    });

    // a time limit with the same result in every replay
    let slow = async |mut cx: Context| cx.step("slow", std::future::pending::<Result<(), Failure>>).await;
    lines.push(match cx.timeout(Duration::from_millis(50), slow).await {
        Ok(_) => "timeout: it came in time".to_owned(),
        Err(elapsed) => format!("timeout: {elapsed}"),
    });
    Ok(lines)
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = std::env::args().nth(1).unwrap_or("memory:".to_owned());
    let report = Workflow::new("report", report);
    let engine = Engine::builder(stepfast::connect(&url).await?).register(&report).open().await?;
    println!("{}", engine.run(&report, 6).await?.join("\n"));
    Ok(())
}
