//! A graph that extracts sales, transforms them and loads totals. One of its tasks runs once for each file.
//!
//! `cargo run --example etl [URL]`; the URL of a store is `memory:` unless given.
#![allow(clippy::print_stdout)]

use std::collections::BTreeMap;

use stepfast::graph::Graph;
use stepfast::prelude::*;

/// Returns the lines of a file, as a call of some service would.
fn read(file: &str) -> Vec<String> {
    let text = if file.ends_with('1') { "tea 3\ncup 4" } else { "bread two\ntea 5" };
    text.lines().map(str::to_owned).collect()
}

/// Returns the product and the amount of a line; `None` if the line has no amount.
fn parse(line: &str) -> Option<(&str, u32)> {
    let (product, amount) = line.split_once(' ')?;
    Some((product, amount.parse().ok()?))
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let mut graph = Graph::<String>::new("etl");
    let folder = graph.input();
    let files = graph.task("files").run(folder, async |folder: String| {
        // the number of items is known when this task has run
        Ok::<_, Failure>((1..=2).map(|number| format!("{folder}/{number}")).collect::<Vec<_>>())
    });
    let extract = graph
        .task("extract")
        .retries(3)
        .map_over(&files)
        .run((), async |file: String, ()| Ok::<_, Failure>(read(&file)));
    let totals = graph.task("totals").run(extract.clone(), async |files: Vec<Vec<String>>| {
        let mut totals = BTreeMap::<String, u32>::new();
        for (product, amount) in files.iter().flatten().filter_map(|line| parse(line)) {
            *totals.entry(product.to_owned()).or_default() += amount;
        }
        Ok::<_, Failure>(totals)
    });
    let rejected = graph.task("rejected").run(extract, async |files: Vec<Vec<String>>| {
        let lines = files.into_iter().flatten().filter(|line| parse(line).is_none());
        Ok::<_, Failure>(lines.collect::<Vec<_>>())
    });
    let load = graph.task("load").retries(3).run((totals, rejected), async |(totals, rejected)| {
        // a body may run twice: a database would replace rows instead of adding them
        Ok::<_, Failure>(format!("loaded {totals:?}, rejected {rejected:?}"))
    });
    println!("{:?}", graph.shape()?.levels());
    let etl = graph.build(load)?;

    let url = std::env::args().nth(1).unwrap_or("memory:".to_owned());
    let engine = Engine::builder(stepfast::connect(&url).await?).register(&etl).open().await?;
    println!("{}", engine.run(&etl, "sales".to_owned()).await?);
    Ok(())
}
