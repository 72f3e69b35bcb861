//! Begins executions on the database of the given URL, and prints `ready` when they are in flight. `dump.py` in
//! `fixtures/earlier_schemas` then kills the process.

#![allow(clippy::print_stdout)]

use stepfast::prelude::*;
use stepfast_tests::fixtures::in_flight::Program::Earlier;
use stepfast_tests::fixtures::in_flight::{self, events, messages, queues};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let Some(url) = std::env::args().nth(1) else { panic!("the first argument is the URL of a database") };
    let builder = in_flight::register(Engine::builder(stepfast::connect(&url).await?), Earlier);
    let builder = events::register(messages::register(queues::register(builder), Earlier), Earlier);
    let engine = builder.open().await?;
    in_flight::start_all(&engine).await?;
    queues::start_all(&engine).await?;
    messages::start_all(&engine).await?;
    events::start_all(&engine).await?;
    let stuck = [in_flight::STUCK_BODIES, queues::STUCK_BODIES, messages::STUCK_BODIES, events::STUCK_BODIES];
    in_flight::wait_until_in_flight(&engine, stuck.into_iter().sum()).await?;
    println!("ready");
    std::future::pending::<()>().await;
    Ok(())
}
