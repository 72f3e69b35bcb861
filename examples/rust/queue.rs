//! A queue: one execution at a time per customer, urgent ones first, a pause, and failed executions resumed together.
//!
//! `cargo run --example queue [URL]`; the URL of a store is `memory:` unless given.
#![allow(clippy::print_stdout)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use stepfast::prelude::*;
use stepfast::{Filter, OnDuplicate, Queue};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = std::env::args().nth(1).unwrap_or("memory:".to_owned());
    let is_up = Arc::new(AtomicBool::new(false));
    let send = {
        let is_up = is_up.clone();
        Workflow::new("send", move |mut cx: Context, text: String| {
            let is_up = is_up.clone();
            async move {
                let deliver = async || {
                    let is_up = is_up.load(SeqCst);
                    is_up
                        .then(|| format!("sent: {text}"))
                        .ok_or_else(|| Failure::new("the mail server is down"))
                };
                cx.step("deliver", deliver).await
            }
        })
    };
    let mails = Queue::new("mails").concurrency(10).key_concurrency(1);
    let engine = Engine::builder(stepfast::connect(&url).await?).register(&send).queue(mails).open().await?;

    engine.pause_queue("mails").await?;
    let news = ["news 1", "news 2", "news 3"].map(str::to_owned);
    let handles = engine.start_many(&send, news).queue("mails").key("ann").await?;
    let urgent = engine.start(&send, "your parcel".to_owned()).queue("mails").key("ann").priority(-1).await?;
    let report = || {
        let start = engine.start(&send, "a report".to_owned()).queue("mails").key("bob");
        start.dedup_id("report").on_duplicate(OnDuplicate::ReturnExisting)
    };
    let (first, second) = (report().await?, report().await?);
    println!("one report: {}", first.workflow_id() == second.workflow_id());
    let in_mails = Filter { queue: Some("mails".into()), ..Filter::default() };
    println!("{} mails are waiting", engine.count(&in_mails).await?);

    engine.resume_queue("mails").await?;
    for handle in handles.iter().chain([&urgent, &first]) {
        if let Err(error) = handle.result().await {
            println!("{error}");
        }
    }
    is_up.store(true, SeqCst);
    let failed = Filter { statuses: vec![Status::Failed], ..in_mails };
    let again = engine.resume_all(&failed, |_| ()).await?;
    println!("{} resumed, {} still failed", again.done, engine.count(&failed).await?);
    println!("{}", engine.get::<String>(&urgent.workflow_id()).await?.result().await?);
    engine.shutdown(Duration::from_secs(10)).await
}
