//! Prints the modules of each crate that import each other in a cycle. The first argument names the workspace; the
//! default is this one.

#![allow(clippy::print_stdout)]

use std::path::PathBuf;

use stepfast_tests::rooms::ModuleGraph;

const CRATES: &[&str] = &[
    "crates/core",
    "crates/sqlite",
    "crates/postgres",
    "crates/stepfast",
    "crates/cli",
    "python",
    "benchmarks",
    "tests",
];

fn main() {
    let workspace = std::env::args_os().nth(1).map_or_else(|| PathBuf::from("."), PathBuf::from);
    for name in CRATES {
        let graph = ModuleGraph::of_crate(&workspace.join(name).join("src"));
        let cycles = graph.cycles();
        let sizes: Vec<String> = cycles.iter().map(|it| it.len().to_string()).collect();
        let sizes = if sizes.is_empty() { "none".to_owned() } else { sizes.join(" + ") };
        println!("{name}: {} modules, cycles: {sizes}", graph.len());
        for cycle in cycles {
            println!("    {}", cycle.join(" "));
        }
    }
}
