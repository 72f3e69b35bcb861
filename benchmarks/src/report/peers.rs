//! Compares other engines with Stepfast on the same machine: the tables of `peers/README.md`, generated from `peers/results/`.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use serde::Deserialize;

use crate::measure::median;
use crate::report::peer_graphs::graph_table;
use crate::report::readme::{group_digits, read_reports, replace_between};
use crate::report::{Report, Row};

/// The line before the table.
pub const BEGIN_MARKER: &str = "<!-- peers: written by `make bench-peers`, do not edit -->";
/// The line after the table.
pub const END_MARKER: &str = "<!-- end of peers -->";

/// The path of the page, relative to the folder of this package.
pub const PAGE: &str = "peers/README.md";
/// The folder of the results, relative to the folder of this package.
pub const RESULTS: &str = "peers/results";

/// A line of a peer's results; see `peers/dbos/bench.py`.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct PeerResult {
    pub(super) peer: String,
    pub(super) experiment: String,
    pub(super) version: Option<String>,
    pub(super) mode: Option<String>,
    pub(super) store: Option<String>,
    pub(super) size: Option<usize>,
    pub(super) concurrency: Option<usize>,
    pub(super) callers: Option<String>,
    pub(super) per_second: Option<f64>,
    pub(super) p50_ms: Option<f64>,
    pub(super) bytes_each: Option<f64>,
    pub(super) flushes_each: Option<f64>,
    pub(super) killed_with: Option<usize>,
    pub(super) steps_begun_meanwhile: Option<usize>,
    pub(super) after_seconds: Option<f64>,
}

/// The newest results. Those of graphs may have another date than all others, because they are measured separately.
#[derive(Debug, Default)]
pub struct Results {
    engines: DateResults,
    graphs: DateResults,
}

/// The results of one date: those of the peers, and Stepfast's reports.
#[derive(Debug, Default)]
pub(super) struct DateResults {
    pub(super) lines: Vec<PeerResult>,
    pub(super) reports: Vec<Report>,
}

/// The beginning of the names of files with results of graphs, after their date.
const GRAPH_PREFIX: &str = "-graphs-";

impl Results {
    /// Reads the newest results in `folder`.
    pub fn newest(folder: &Path) -> std::io::Result<Self> {
        let is_graph = |name: &str| name.get(10..).is_some_and(|rest| rest.starts_with(GRAPH_PREFIX));
        let engines = DateResults::newest(folder, |name| !is_graph(name))?;
        Ok(Self { engines, graphs: DateResults::newest(folder, is_graph)? })
    }
}

impl DateResults {
    /// Reads the newest of the results in `folder` whose file names are in the group.
    fn newest(folder: &Path, is_in_group: impl Fn(&str) -> bool) -> std::io::Result<Self> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(folder)? {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        names.retain(|name| is_in_group(name));
        names.sort();
        let Some(newest) = names.iter().filter_map(|name| name.get(..10)).max().map(str::to_owned) else {
            return Ok(Self::default());
        };
        let mut lines = Vec::new();
        let is_lines = |name: &str| Path::new(name).extension().is_some_and(|it| it == "jsonl");
        for name in names.iter().filter(|name| name.starts_with(&newest) && is_lines(name)) {
            for line in std::fs::read_to_string(folder.join(name))?.lines() {
                lines.push(
                    serde_json::from_str(line)
                        .map_err(|error| std::io::Error::other(format!("{name}: {error}: {line}")))?,
                );
            }
        }
        let reports = read_reports(folder)?.into_iter();
        let reports = reports.filter(|(name, _)| name.starts_with(&newest) && is_in_group(name));
        Ok(Self { lines, reports: reports.map(|(_, report)| report).collect() })
    }
}

/// Returns `text` with new tables between its markers, or an error if the markers are missing.
pub fn update_page(text: &str, results: &Results) -> Result<String, String> {
    let tables = engine_tables(&results.engines) + &graph_table(&results.graphs);
    replace_between(text, BEGIN_MARKER, END_MARKER, &tables)
}

/// A row of the table: its name, and its cells.
type TableRow = (String, [Option<String>; 3]);

fn engine_tables(results: &DateResults) -> String {
    // the first peer has all experiments
    let peers = peer_columns(results);
    let Some((_, peer)) = peers.first() else { return "run `make bench-peers`\n".to_owned() };
    let mut text = format!("| | {peer} | Stepfast, Python | Stepfast, Rust |\n|---|---:|---:|---:|\n");
    for (name, cells) in
        workflow_rows(results).into_iter().chain(payload_rows(results)).chain(takeover_row(results))
    {
        let [peer_figures, python, rust] = cells.map(Option::unwrap_or_default);
        // writing to a String does not fail
        let _ = writeln!(text, "| {name} | {peer_figures} | {python} | {rust} |");
    }
    text += &queue_table(results, &peers);
    if let Some(Report { machine, store, version, .. }) = results.reports.first() {
        let (cores, processor) = (machine.cores, &machine.processor);
        let _ = writeln!(
            text,
            "\nMedians. Stepfast {version}, {store}, on {cores} cores ({processor}) that clients and server share."
        );
    }
    text
}

/// Returns the peers, with the names of their columns.
fn peer_columns(results: &DateResults) -> Vec<(&str, String)> {
    let mut peers = Vec::new();
    for line in results.lines.iter().filter(|line| line.experiment == "about") {
        let column = format!("{} {}, Python", line.peer, line.version.as_deref().unwrap_or_default());
        if !peers.iter().any(|(peer, _)| *peer == line.peer) {
            peers.push((&*line.peer, column));
        }
    }
    peers
}

/// Reads a figure from a peer's result, and from a row of Stepfast.
type MetricReaders = (fn(&PeerResult) -> Option<f64>, fn(&Row) -> Option<f64>);
const RATE: MetricReaders = (|line| line.per_second, |row| Some(row.per_second));
const TIME: MetricReaders = (|line| line.p50_ms, |row| Some(row.p50_ms));
const BYTES: MetricReaders = (|line| line.bytes_each, |row| per_workflow(row, row.bytes_written));
const FLUSHES: MetricReaders = (|line| line.flushes_each, |row| per_workflow(row, row.flushes));

/// Returns the table of no-op workflows through a queue, in one process that enqueues and runs them.
fn queue_table(results: &DateResults, peers: &[(&str, String)]) -> String {
    let columns: Vec<&str> = peers.iter().map(|(_, column)| &**column).collect();
    let mut text = format!("\n| through a queue | {} |", columns.join(" | "));
    text += " Stepfast, Python | Stepfast, Rust |\n|---|";
    text += &"---:|".repeat(columns.len() + 2);
    text += "\n";
    for (name, mode, (peer_figures, own_figures), digits) in [
        ("enqueued per second, without workers", "enqueue", RATE, 0),
        ("run per second, from a backlog", "drain", RATE, 0),
        ("per second, both at once", "both", RATE, 0),
        ("one at a time, until it begins (p50), ms", "one at a time, to start", TIME, 2),
        ("one at a time, until the result (p50), ms", "one at a time, to result", TIME, 2),
        ("bytes of log for each, both at once", "both", BYTES, 0),
        ("flushes for each, both at once", "both", FLUSHES, 4),
    ] {
        let mut cells = Vec::new();
        for (peer, _) in peers {
            let is_wanted = |line: &&PeerResult| {
                line.peer == *peer && line.experiment == "queue" && line.mode.as_deref() == Some(mode)
            };
            cells.push(median(
                &results.lines.iter().filter(is_wanted).filter_map(peer_figures).collect::<Vec<_>>(),
            ));
        }
        for sdk in ["python", "rust"] {
            let rows = rows_of(results, sdk, "queue").filter(|row| row.mode.as_deref() == Some(mode));
            cells.push(median(&rows.filter_map(own_figures).collect::<Vec<_>>()));
        }
        let shown = |value: &Option<f64>| match value {
            Some(value) if digits == 0 => group_digits(*value as u64),
            Some(value) => format!("{value:.digits$}"),
            None => String::new(),
        };
        // writing to a String does not fail
        let _ = writeln!(text, "| {name} | {} |", cells.iter().map(shown).collect::<Vec<_>>().join(" | "));
    }
    text
}

fn per_workflow(row: &Row, count: u64) -> Option<f64> {
    (count > 0).then(|| count as f64 / row.completed.max(1) as f64)
}

fn workflow_rows(results: &DateResults) -> Vec<TableRow> {
    type Kind = (usize, Option<String>);
    let mut peer_figures: BTreeMap<Kind, Vec<(f64, f64)>> = BTreeMap::new();
    for line in &results.lines {
        let Some(per_second) = line.per_second else { continue };
        if let ("workflows", Some(concurrency)) = (&*line.experiment, line.concurrency) {
            let kind = (concurrency, line.callers.clone().filter(|it| it != "tasks"));
            peer_figures.entry(kind).or_default().push((per_second, line.p50_ms.unwrap_or_default()));
        }
    }
    let own_figures = |sdk: &str, kind: &Kind| {
        let is_wanted = |row: &&Row| row.concurrency == Some(kind.0) && row.callers == kind.1;
        let runs: Vec<_> = rows_of(results, sdk, "workflows")
            .filter(is_wanted)
            .map(|it| (it.per_second, it.p50_ms))
            .collect();
        rate_text(&runs)
    };
    let mut cells: Vec<TableRow> = Vec::new();
    for (kind, runs) in &peer_figures {
        let callers = kind.1.as_deref().unwrap_or(if kind.0 == 1 { "task" } else { "tasks" });
        let name = format!("workflows per second (p50), {} {callers}", kind.0);
        cells.push((name, [rate_text(runs), own_figures("python", kind), own_figures("rust", kind)]));
    }
    cells
}

fn payload_rows(results: &DateResults) -> Vec<TableRow> {
    let peer_figures = |mode: &str, size: Option<usize>| {
        let is_wanted = |line: &&PeerResult| {
            line.experiment == "payload" && line.mode.as_deref() == Some(mode) && line.size == size
        };
        milliseconds_text(results.lines.iter().filter(is_wanted).filter_map(|line| line.p50_ms))
    };
    let own_figures = |mode: &str, size: Option<usize>| {
        let is_wanted = |row: &&Row| row.mode.as_deref() == Some(mode) && row.size == size;
        milliseconds_text(rows_of(results, "python", "payload").filter(is_wanted).map(|row| row.p50_ms))
    };
    let mut cells = Vec::new();
    for (size, name) in [(1, "1 byte"), (1_000, "1 kB"), (1_000_000, "1 MB")] {
        let row = [peer_figures("step", Some(size)), own_figures("durable", Some(size)), None];
        cells.push((format!("a step that returns {name}, until it is durable"), row));
    }
    let seven = [peer_figures("seven steps", None), own_figures("ordinary", None), None];
    cells.push(("seven steps of 1 byte to 1 MB".to_owned(), seven));
    let batched = [peer_figures("one batched step", None), own_figures("batched", None), None];
    cells.push(("one step that returns as much".to_owned(), batched));
    cells
}

fn takeover_row(results: &DateResults) -> Option<TableRow> {
    let line = results.lines.iter().find(|line| line.experiment == "takeover")?;
    let waited = line.after_seconds.unwrap_or_default();
    let peer_figures = match line.steps_begun_meanwhile {
        Some(0) => format!("none of {} within {waited:.0} s", line.killed_with.unwrap_or_default()),
        begun => format!("{} steps within {waited:.0} s", begun.unwrap_or_default()),
    };
    let own_figures: Vec<f64> = rows_of(results, "rust", "takeover").map(|row| row.p99_ms / 1e3).collect();
    let own_figures = median(&own_figures).map(|seconds| format!("{seconds:.2} s"));
    Some((
        "workflows of a killed process continue elsewhere (p99)".to_owned(),
        [Some(peer_figures), None, own_figures],
    ))
}

fn rows_of<'r>(results: &'r DateResults, sdk: &'r str, experiment: &'r str) -> impl Iterator<Item = &'r Row> {
    let reports = results.reports.iter();
    reports.filter(move |it| it.sdk == sdk && it.experiment == experiment).flat_map(|report| &report.rows)
}

fn rate_text(runs: &[(f64, f64)]) -> Option<String> {
    let (rates, times): (Vec<f64>, Vec<f64>) = runs.iter().copied().unzip();
    Some(format!("{} ({:.1} ms)", group_digits(median(&rates)? as u64), median(&times)?))
}

fn milliseconds_text(times: impl Iterator<Item = f64>) -> Option<String> {
    median(&times.collect::<Vec<_>>()).map(|ms| format!("{ms:.2} ms"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn home() -> &'static Path {
        Path::new(env!("CARGO_MANIFEST_DIR"))
    }

    #[test]
    fn page_contains_the_newest_figures() {
        let text = std::fs::read_to_string(home().join(PAGE)).unwrap();
        let results = Results::newest(&home().join(RESULTS)).unwrap();
        let updated = update_page(&text, &results).unwrap();
        assert_eq!(text, updated, "run `cargo run -p stepfast-benchmarks --bin readme-table`");
    }

    #[test]
    fn rounds_are_shown_as_medians_side_by_side() {
        let line = |per_second| PeerResult {
            peer: "other".into(),
            experiment: "workflows".into(),
            concurrency: Some(32),
            callers: Some("tasks".into()),
            per_second: Some(per_second),
            p50_ms: Some(2.0),
            ..PeerResult::default()
        };
        let about = PeerResult { experiment: "about".into(), version: Some("1.2".into()), ..line(0.0) };
        let queue = PeerResult { experiment: "queue".into(), mode: Some("both".into()), ..line(44.0) };
        let lost = PeerResult {
            experiment: "takeover".into(),
            killed_with: Some(10),
            steps_begun_meanwhile: Some(0),
            after_seconds: Some(60.01),
            per_second: None,
            ..line(0.0)
        };
        let row = Row { concurrency: Some(32), per_second: 12_345.6, p50_ms: 1.04, ..Row::default() };
        let report = Report {
            experiment: "workflows".into(),
            sdk: "rust".into(),
            store: "PostgreSQL 17".into(),
            durability: "full".into(),
            version: "0.1.0".into(),
            machine: crate::report::Machine::default(),
            rows: vec![row],
            figures: Vec::new(),
        };
        let lines = vec![about, line(30.0), line(900.0), line(80.0), queue, lost];
        let results = DateResults { lines, reports: vec![report] };
        let table = engine_tables(&results);
        assert!(table.contains("| | other 1.2, Python |"), "{table}");
        let workflows = "| workflows per second (p50), 32 tasks | 80 (2.0 ms) |  | 12,345 (1.0 ms) |";
        assert!(table.contains(workflows), "{table}");
        assert!(table.contains("| per second, both at once | 44 |  |  |"), "{table}");
        assert!(table.contains("| none of 10 within 60 s |"), "{table}");
    }
}
