//! Writes the figures in `benchmarks/results/` into the README's table.

use std::path::Path;

use stepfast_benchmarks::readme;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let home = Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = home.join("../README.md");
    let updated = readme::update(&std::fs::read_to_string(&path)?, &readme::reports(&home.join("results"))?)?;
    Ok(std::fs::write(&path, updated)?)
}
