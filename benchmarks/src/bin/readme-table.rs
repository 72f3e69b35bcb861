//! Writes the figures in `benchmarks/results/` and `benchmarks/peers/results/` into the pages that show them.

use std::path::Path;

use stepfast_benchmarks::report::peers::{self, Results};
use stepfast_benchmarks::report::readme::{Page, read_reports, update_page};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let home = Path::new(env!("CARGO_MANIFEST_DIR"));
    let reports = read_reports(&home.join("results"))?;
    for page in Page::ALL {
        let path = home.join(page.path());
        let updated = update_page(page, &std::fs::read_to_string(&path)?, &reports)?;
        std::fs::write(&path, updated)?;
    }
    let page = home.join(peers::PAGE);
    let results = Results::newest(&home.join(peers::RESULTS))?;
    std::fs::write(&page, peers::update_page(&std::fs::read_to_string(&page)?, &results)?)?;
    Ok(())
}
