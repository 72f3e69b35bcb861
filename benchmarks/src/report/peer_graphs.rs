//! The table of `peers/README.md` that compares the graphs of other engines with Stepfast's, store by store.

use std::collections::BTreeSet;
use std::fmt::Write;

use crate::experiments::graphs::Shape;
use crate::measure::median;
use crate::report::peers::{DateResults, PeerResult};
use crate::report::readme::group_digits;
use crate::report::{Report, Row};

/// The stores: the names in the table, and the beginning of the names in results.
const STORES: [(&str, &str); 2] = [("SQLite", "SQLite "), ("Postgres", "PostgreSQL ")];
/// The numbers of Stepfast's callers.
const CALLERS: [usize; 2] = [32, 2_048];

/// Returns the table of the graphs' workflows per second, or nothing without results.
pub(super) fn graph_table(results: &DateResults) -> String {
    let Some(about) = results.lines.iter().find(|line| line.experiment == "about") else {
        return String::new();
    };
    let callers: BTreeSet<_> = graph_lines(results).filter_map(|line| line.concurrency).collect();
    let callers: Vec<_> = callers.into_iter().map(|number| group_digits(number as u64)).collect();
    let mut text = format!(
        "\n| graphs per second | {} {}, Rust, {} callers |",
        about.peer,
        about.version.as_deref().unwrap_or_default(),
        callers.join(" or ")
    );
    let mut ratios = String::new();
    for callers in CALLERS {
        let callers = group_digits(callers as u64);
        text += &format!(" Stepfast, Rust, {callers} callers |");
        ratios += &format!(" ratio, {callers} callers |");
    }
    text += &format!("{ratios}\n|---|{}\n", "---:|".repeat(1 + 2 * CALLERS.len()));
    for shape in [Shape::Simple, Shape::Parallel, Shape::Pipeline] {
        let count = shape.task_count();
        let tasks = if count == 1 { "1 task".to_owned() } else { format!("{count} tasks") };
        for (store, prefix) in STORES {
            let name = shape.as_str();
            let peer = median(&peer_rates(results, name, prefix));
            let own = CALLERS.map(|callers| median(&own_rates(results, name, prefix, callers)));
            let ratio = |own: Option<f64>| Some(group_digits((own? / peer?).round() as u64));
            let rate = |rate: Option<f64>| rate.map(|rate| group_digits(rate as u64));
            let cells = [rate(peer)].into_iter().chain(own.map(rate)).chain(own.map(ratio));
            let cells: Vec<_> = cells.map(|cell| cell.unwrap_or_else(|| "n/a".to_owned())).collect();
            // writing to a String does not fail
            let _ = writeln!(text, "| {name} ({tasks}), {store} | {} |", cells.join(" | "));
        }
    }
    text + &description(results)
}

/// Returns the sentence below the table.
fn description(results: &DateResults) -> String {
    let Some(Report { machine, version, .. }) = results.reports.first() else { return String::new() };
    let stores = |names: BTreeSet<&str>| {
        // SQLite first, like the rows
        names.into_iter().rev().collect::<Vec<_>>().join(" and ")
    };
    let own_stores = stores(results.reports.iter().map(|report| &*report.store).collect());
    let peer_stores = stores(graph_lines(results).filter_map(|line| line.store.as_deref()).collect());
    let (cores, processor) = (machine.cores, &machine.processor);
    let peer = results.lines.first().map_or("", |line| &*line.peer);
    format!(
        "\nMedians. Stepfast {version} on {own_stores}, {peer} on {peer_stores}, on {cores} cores ({processor}).\n"
    )
}

fn graph_lines(results: &DateResults) -> impl Iterator<Item = &PeerResult> {
    results.lines.iter().filter(|line| line.experiment == "graphs")
}

/// Returns the peer's workflows per second in all rounds.
fn peer_rates(results: &DateResults, shape: &str, store: &str) -> Vec<f64> {
    let is_wanted = |line: &&PeerResult| {
        line.mode.as_deref() == Some(shape) && line.store.as_ref().is_some_and(|it| it.starts_with(store))
    };
    graph_lines(results).filter(is_wanted).filter_map(|line| line.per_second).collect()
}

/// Returns Stepfast's workflows per second in all rounds.
fn own_rates(results: &DateResults, shape: &str, store: &str, callers: usize) -> Vec<f64> {
    let is_wanted = |it: &&Report| it.experiment == shape && it.sdk == "rust" && it.store.starts_with(store);
    let rows = results.reports.iter().filter(is_wanted).flat_map(|report| &report.rows);
    let has_callers = |row: &&Row| row.concurrency == Some(callers);
    rows.filter(has_callers).map(|row| row.per_second).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_compare_medians_of_one_store() {
        let line = |store: &str, per_second| PeerResult {
            peer: "other".into(),
            experiment: "graphs".into(),
            mode: Some("simple".into()),
            store: Some(store.into()),
            concurrency: Some(128),
            per_second: Some(per_second),
            ..PeerResult::default()
        };
        let about = PeerResult { experiment: "about".into(), version: Some("1.2".into()), ..line("", 0.0) };
        let row = |callers, per_second| Row { concurrency: Some(callers), per_second, ..Row::default() };
        let report = Report {
            experiment: "simple".into(),
            sdk: "rust".into(),
            store: "SQLite 3.53".into(),
            durability: "full".into(),
            version: "0.1.0".into(),
            machine: crate::report::Machine::default(),
            rows: vec![row(32, 4_000.0), row(2_048, 60_000.0)],
            figures: Vec::new(),
        };
        let rounds = [30.0, 120.0, 100.0].map(|rate| line("SQLite 3.52", rate));
        let mut lines = vec![about, line("PostgreSQL 17", 7.0)];
        lines.extend(rounds);
        let table = graph_table(&DateResults { lines, reports: vec![report] });
        assert!(table.contains("| graphs per second | other 1.2, Rust, 128 callers |"), "{table}");
        assert!(table.contains("| simple (1 task), SQLite | 100 | 4,000 | 60,000 | 40 | 600 |\n"), "{table}");
        assert!(table.contains("| simple (1 task), Postgres | 7 | n/a | n/a | n/a | n/a |\n"), "{table}");
        assert!(table.contains("| parallel (5 tasks), SQLite | n/a | n/a | n/a | n/a | n/a |\n"), "{table}");
        let description =
            "Medians. Stepfast 0.1.0 on SQLite 3.53, other on SQLite 3.52 and PostgreSQL 17, on";
        assert!(table.contains(description), "{table}");
        assert!(graph_table(&DateResults::default()).is_empty());
    }
}
