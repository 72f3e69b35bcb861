//! A graph of tasks: values along its edges, tasks that run concurrently, and a compensation.
//!
//! `cargo run --example graph [URL]`; the URL of a store is `memory:` unless given.
#![allow(clippy::print_stdout)]

use stepfast::graph::{Graph, Rule};
use stepfast::prelude::*;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let mut graph = Graph::<bool>::new("order");
    let in_stock = graph.input();
    let reserve = graph.task("reserve").retries(3).run((), async |()| Ok::<_, Failure>(2));
    let charge =
        graph.task("charge").run(reserve, async |items: u32| Ok::<_, Failure>(format!("{} EUR", 3 * items)));
    let ship = graph.task("ship").may_fail().run((in_stock, charge.clone()), async |(in_stock, _)| {
        if in_stock { Ok("shipped".to_owned()) } else { Err(Failure::new("out of stock")) }
    });
    let refund = graph
        .task("refund")
        .when(Rule::failed("ship") & Rule::succeeded("charge"))
        .run(charge, async |amount: String| Ok::<_, Failure>(format!("refunded {amount}")));
    println!("{}", graph.shape()?.critical_path(|_| 1.0).join(" -> "));
    let order = graph.build((ship.optional(), refund.optional()))?;

    let url = std::env::args().nth(1).unwrap_or("memory:".to_owned());
    let engine = Engine::builder(stepfast::connect(&url).await?).register(&order).open().await?;
    for in_stock in [true, false] {
        let (shipped, refunded) = engine.run(&order, in_stock).await?;
        println!("{}", shipped.or(refunded).unwrap_or_default());
    }
    Ok(())
}
