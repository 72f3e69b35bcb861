//! Writes the pages with figures, from the reports in `results/`. Figures are never typed by hand.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;

use crate::report::table;
use crate::report::{Report, Row};

/// The line before the table.
pub const BEGIN_MARKER: &str = "<!-- benchmarks: written by `make bench`, do not edit -->";
/// The line after the table.
pub const END_MARKER: &str = "<!-- end of benchmarks -->";

/// The text between the markers while there are no figures.
const NO_FIGURES: &str = "run `make bench`\n";

/// A page with figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Page {
    /// The project's README: only workflows per second.
    Readme,
    /// The README of the results: all figures.
    Results,
}

impl Page {
    /// All pages.
    pub const ALL: [Self; 2] = [Self::Readme, Self::Results];

    /// The page's path, relative to the folder of this package.
    pub fn path(self) -> &'static str {
        match self {
            Self::Readme => "../README.md",
            Self::Results => "results/README.md",
        }
    }
}

/// Reads the reports in `folder`, each with the name of its file, oldest first.
pub fn read_reports(folder: &Path) -> std::io::Result<Vec<(String, Report)>> {
    let mut found = Vec::new();
    if !folder.exists() {
        return Ok(found);
    }
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "json") {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let report = serde_json::from_slice(&std::fs::read(&path)?)
                .map_err(|error| std::io::Error::other(format!("{}: {error}", path.display())))?;
            found.push((name, report));
        }
    }
    // names begin with their dates
    found.sort_by(|(a, _), (b, _)| a.cmp(b));
    Ok(found)
}

/// Returns `text` with the tables of the newest reports between its markers, or an error if the markers are missing.
pub fn update_page(page: Page, text: &str, reports: &[(String, Report)]) -> Result<String, String> {
    replace_between(text, BEGIN_MARKER, END_MARKER, &page_tables(page, reports))
}

/// Returns `text` with `table` between the lines `begin` and `end`, or an error if these are missing.
pub(crate) fn replace_between(text: &str, begin: &str, end: &str, table: &str) -> Result<String, String> {
    let missing = |marker: &str| format!("the line {marker:?} is missing");
    let (before, rest) = text.split_once(begin).ok_or_else(|| missing(begin))?;
    let (_, after) = rest.split_once(end).ok_or_else(|| missing(end))?;
    Ok(format!("{before}{begin}\n{table}{end}{after}"))
}

/// A report, with the name of its file.
type NamedReport<'r> = &'r (&'r String, &'r Report);

fn page_tables(page: Page, reports: &[(String, Report)]) -> String {
    match page {
        Page::Readme => summary_table(reports),
        Page::Results => result_tables(reports),
    }
}

/// The rows of the README's table: the sdk and its name, steps, callers.
const SUMMARY_ROWS: [(&str, &str, usize, usize); 6] = [
    ("rust", "Rust", 0, 1),
    ("rust", "Rust", 0, 2_048),
    ("rust", "Rust", 3, 1),
    ("rust", "Rust", 3, 2_048),
    ("python", "Python", 0, 1_000),
    ("python", "Python", 3, 1_000),
];

/// Returns a small table of `run` at full durability, with the stores as columns.
fn summary_table(reports: &[(String, Report)]) -> String {
    let find = |product: &str, sdk: &str, steps: usize, callers: usize| {
        // later reports replace earlier ones
        reports.iter().rev().find_map(|(_, report)| {
            let is_wanted = report.sdk == sdk
                && report.durability == "full"
                && matches!(&*report.experiment, "workflows" | "steps")
                && report.store.starts_with(product);
            let mut rows = report.rows.iter().filter(|row| {
                row.mode.as_deref() == Some("run")
                    && row.callers.is_none()
                    && (row.steps, row.concurrency) == (Some(steps), Some(callers))
            });
            Some((report, rows.next().filter(|_| is_wanted)?))
        })
    };
    let mut text = String::from(
        "| `run` | callers | SQLite: per second | p50 ms | p99 ms | Postgres: per second | p50 ms | p99 ms |\n\
         |---|---:|---:|---:|---:|---:|---:|---:|\n",
    );
    let (mut stores, mut last) = (BTreeSet::new(), None);
    for (sdk, language, steps, callers) in SUMMARY_ROWS {
        let found = ["SQLite", "PostgreSQL"].map(|product| find(product, sdk, steps, callers));
        if found.iter().all(Option::is_none) {
            continue;
        }
        let cells = found.map(|found| found.map_or("n/a | n/a | n/a".to_owned(), |(_, row)| run_cells(row)));
        let steps = if steps == 0 { "no steps".to_owned() } else { format!("{steps} steps") };
        // writing to a String does not fail
        let _ = writeln!(
            text,
            "| {language}, {steps} | {} | {} |",
            group_digits(callers as u64),
            cells.join(" | ")
        );
        for (report, _) in found.into_iter().flatten() {
            // without the distribution's name in parentheses
            stores.insert(report.store.split(" (").next().unwrap_or_default());
            last = Some(report);
        }
    }
    let Some(last) = last else { return NO_FIGURES.to_owned() };
    // SQLite first, like the columns
    let stores: Vec<_> = stores.into_iter().rev().collect();
    let _ = write!(
        text,
        "\n`run` starts a workflow and waits for its output. {}, with {} at full durability. [All \
         results](benchmarks/results/README.md) also contain `start`, queues, memory, takeover, and what bounds \
         each row.\n",
        describe_machine(last),
        stores.join(" and ")
    );
    text
}

/// Describes the version of Stepfast and the machine of a report.
fn describe_machine(Report { machine, version, .. }: &Report) -> String {
    let gib = machine.memory_bytes >> 30;
    let (cores, processor, system) = (machine.cores, &machine.processor, &machine.system);
    format!("Stepfast {version} on {cores} cores ({processor}), {gib} GiB, {system}")
}

/// Returns the tables of all experiments.
fn result_tables(reports: &[(String, Report)]) -> String {
    // later reports replace earlier ones
    let newest: BTreeMap<_, _> = reports
        .iter()
        .map(|(name, report)| {
            ((&report.sdk, &report.store, &report.durability, &report.experiment), (name, report))
        })
        .collect();
    let mut text = String::new();
    let mut last = None;
    for (sdk, language) in [("rust", "Rust"), ("python", "Python, in one process")] {
        let of = |experiments: &[&str]| -> Vec<NamedReport<'_>> {
            let is_wanted = |it: &Report| it.sdk == sdk && experiments.contains(&&*it.experiment);
            newest.values().filter(|(_, report)| is_wanted(report)).collect()
        };
        let mut sweeps = of(&["workflows", "steps"]);
        // store by store, runs without steps first
        sweeps.sort_by_key(|(_, it)| (&it.store, &it.durability, it.experiment != "workflows"));
        let (payload, memory) = (of(&["payload"]), of(&["memory"]));
        // writing to a String does not fail
        if !sweeps.is_empty() {
            let _ = write!(text, "**{language}**\n\n{}\n", sweep_table(&sweeps));
        }
        for (_, Report { store, durability, rows, .. }) in
            sweeps.iter().filter(|it| it.1.experiment == "workflows")
        {
            if let Some(bounds) = table::bound_table(rows) {
                let _ = write!(
                    text,
                    "**{language}: what bounds workflows**, {store}, durability {durability}\n\n{bounds}\n\n"
                );
            }
        }
        for (_, Report { store, durability, rows, figures, .. }) in &payload {
            let (sizes, figures) = (table::size_table(rows), table::figure_table(figures));
            let _ = write!(
                text,
                "**{language}: steps by size of their values**, {store}, durability {durability}\n\n{sizes}\n\n{figures}\n\n"
            );
        }
        for (_, Report { store, durability, figures, .. }) in &memory {
            let figures = table::figure_table(figures);
            let _ = write!(text, "**{language}: memory**, {store}, durability {durability}\n\n{figures}\n\n");
        }
        let others = other_tables(&of, &mut text);
        last = sweeps.last().or(others.as_ref()).or(payload.last()).or(memory.last()).copied().or(last);
    }
    let Some((name, report)) = last else { return NO_FIGURES.to_owned() };
    let _ = writeln!(
        text,
        "{}. The reports are in this folder, for example [{name}]({name}).",
        describe_machine(report)
    );
    text
}

/// Appends the experiments without a table layout of their own: writes, history, queues, idle engines, takeover. Returns one
/// of them.
fn other_tables<'r>(
    of: &dyn Fn(&[&str]) -> Vec<NamedReport<'r>>,
    text: &mut String,
) -> Option<NamedReport<'r>> {
    const TITLES: [(&str, &str); 11] = [
        ("writes", "Rows written one by one, and by an engine"),
        ("history", "With finished executions in the store"),
        ("queue", "Through queues"),
        ("rate", "Through a queue with evenly spaced starts"),
        ("backlog", "With a backlog in the queue"),
        ("neighbours", "Beside the rows of another service"),
        ("sleepers", "When many sleeps end at once"),
        ("pauses", "Until pauses and limits of a busy queue take effect"),
        ("idle", "Idle engines"),
        ("takeover", "After a worker is killed"),
        ("drain", "After a worker receives SIGTERM"),
    ];
    let mut last = None;
    for (experiment, title) in TITLES {
        for &found in &of(&[experiment]) {
            let Report { sdk, store, durability, rows, figures, .. } = found.1;
            let language = if sdk == "python" { ", from Python" } else { "" };
            let rows = if matches!(experiment, "rate" | "idle" | "pauses" | "takeover" | "drain") {
                table::time_table(rows)
            } else {
                table::row_table(rows)
            };
            let _ = write!(text, "**{title}{language}**, {store}, durability {durability}\n\n{rows}\n\n");
            if !figures.is_empty() {
                let _ = write!(text, "{}\n\n", table::figure_table(figures));
            }
            last = Some(found);
        }
    }
    last
}

/// Returns the table of workflows by callers, with `start` beside `run`.
fn sweep_table(reports: &[&(&String, &Report)]) -> String {
    let mut text = String::from(
        "| store | durability | steps | callers | start: per second | p50 ms | p99 ms | run: per second | p50 ms \
         | p99 ms |\n|---|---|---:|---:|---:|---:|---:|---:|---:|---:|\n",
    );
    for (_, report) in reports {
        let mut lines: BTreeMap<_, [Option<&Row>; 2]> = BTreeMap::new();
        for row in &report.rows {
            let line = lines.entry((row.steps, &row.callers, row.concurrency)).or_default();
            line[usize::from(row.mode.as_deref() == Some("run"))] = Some(row);
        }
        for ((steps, kind, callers), figures) in lines {
            let number = |n: Option<usize>| n.map_or(String::new(), |n| group_digits(n as u64));
            let [start, run] = figures.map(|row| row.map_or("n/a | n/a | n/a".to_owned(), run_cells));
            let (store, durability) = (&report.store, &report.durability);
            let (steps, callers) = (number(steps), number(callers));
            let kind = kind.as_ref().map_or(String::new(), |kind| format!(" {kind}"));
            let _ =
                writeln!(text, "| {store} | {durability} | {steps} | {callers}{kind} | {start} | {run} |");
        }
    }
    text
}

/// Returns the cells of a row: operations per second, median and 99th percentile.
fn run_cells(row: &Row) -> String {
    format!("{} | {:.2} | {:.2}", group_digits(row.per_second as u64), row.p50_ms, row.p99_ms)
}

/// Formats a number with commas between thousands.
pub(crate) fn group_digits(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bound::{Bound, Share};
    use crate::report::Figure;

    fn report(experiment: &str, per_second: f64) -> Report {
        let row = |mode: &str| Row {
            mode: Some(mode.into()),
            concurrency: Some(2048),
            steps: Some(3),
            per_second,
            ..Row::default()
        };
        Report {
            experiment: experiment.into(),
            sdk: "rust".into(),
            store: "SQLite".into(),
            durability: "full".into(),
            version: "0.1.0".into(),
            machine: crate::report::Machine::default(),
            rows: vec![row("start"), row("run")],
            figures: Vec::new(),
        }
    }

    #[test]
    fn pages_contain_the_newest_figures() {
        let home = Path::new(env!("CARGO_MANIFEST_DIR"));
        let reports = read_reports(&home.join("results")).unwrap();
        for page in Page::ALL {
            let text = std::fs::read_to_string(home.join(page.path())).unwrap();
            let updated = update_page(page, &text, &reports).unwrap();
            assert_eq!(
                text, updated,
                "run `make bench`, or `cargo run -p stepfast-benchmarks --bin readme-table`"
            );
        }
    }

    #[test]
    fn readme_table_has_one_row_per_kind_of_run() {
        let server = Report { store: "PostgreSQL 17 (Debian)".into(), ..report("steps", 41.0) };
        let mut python = Report { sdk: "python".into(), ..report("workflows", 77.0) };
        for row in &mut python.rows {
            (row.steps, row.concurrency) = (Some(0), Some(1_000));
        }
        let other = Report { durability: "relaxed".into(), ..report("steps", 1_000.0) };
        let reports = [report("steps", 99.0), server, python, other, report("writes", 55.0)];
        let table = page_tables(Page::Readme, &reports.map(|it| ("1.json".to_owned(), it)));
        let rows: Vec<_> = table.lines().filter(|line| line.starts_with("| ")).skip(1).collect();
        assert_eq!(
            rows,
            [
                "| Rust, 3 steps | 2,048 | 99 | 0.00 | 0.00 | 41 | 0.00 | 0.00 |",
                "| Python, no steps | 1,000 | 77 | 0.00 | 0.00 | n/a | n/a | n/a |",
            ]
        );
        assert!(table.contains("with SQLite and PostgreSQL 17 at full durability"), "{table}");
        assert!(table.contains("](benchmarks/results/README.md)"), "{table}");
    }

    #[test]
    fn update_replaces_text_between_markers_by_newest_report() {
        let text = format!("before\n{BEGIN_MARKER}\nold\n{END_MARKER}\nafter\n");
        assert_eq!(
            update_page(Page::Readme, &text, &[]).unwrap(),
            format!("before\n{BEGIN_MARKER}\n{NO_FIGURES}{END_MARKER}\nafter\n")
        );
        let reports = [
            ("1.json".to_owned(), report("steps", 1.0)),
            ("2.json".to_owned(), report("steps", 1_234_567.0)),
        ];
        let updated = update_page(Page::Readme, &text, &reports).unwrap();
        assert!(
            updated.contains("| Rust, 3 steps | 2,048 | 1,234,567 | 0.00 | 0.00 | n/a | n/a | n/a |"),
            "{updated}"
        );
        assert!(
            updated.starts_with("before\n") && updated.ends_with("\nafter\n") && !updated.contains("| 1 |")
        );
        assert_eq!(update_page(Page::Readme, &updated, &reports).unwrap(), updated);
        assert!(update_page(Page::Readme, "no markers", &[]).is_err());
    }

    #[test]
    fn results_page_contains_server_rows_and_their_bounds() {
        let shares = vec![Share::new("log flush", 61.5), Share::new("client", 38.5)];
        let bound = Bound { shares, samples: Some(9), ..Bound::default() };
        let mut server = Report { store: "PostgreSQL 17".into(), ..report("workflows", 41.0) };
        server.rows.iter_mut().for_each(|row| row.bound = Some(bound.clone()));
        let limit = Figure::new("executions run elsewhere", 6.5, "s").at_most(5.0);
        let takeover = Report { figures: vec![limit], ..report("takeover", 1.0) };
        let reports = [report("workflows", 99.0), server, report("writes", 55.0), takeover]
            .map(|it| ("1.json".to_owned(), it));
        let table = page_tables(Page::Results, &reports);
        assert!(table.contains("| PostgreSQL 17 | full | 3 | 2,048 | 41 |"), "{table}");
        assert!(table.contains("| SQLite | full | 3 | 2,048 | 99 |"), "{table}");
        let (_, bounds) = table.split_once("**Rust: what bounds workflows**, PostgreSQL 17").unwrap();
        assert!(bounds.contains("log flush %") && bounds.contains("| 61.5 "), "{bounds}");
        assert_eq!(table.matches("what bounds workflows").count(), 1, "{table}");
        let (_, writes) = table.split_once("**Rows written one by one, and by an engine**, SQLite").unwrap();
        let (writes, takeover) = writes.split_once("**After a worker is killed**, SQLite").unwrap();
        assert!(writes.contains("| 55 "), "{writes}");
        assert!(takeover.contains("6.500 s") && takeover.contains("MISSED"), "{takeover}");
    }

    #[test]
    fn python_results_have_their_own_part() {
        let of = |experiment: &str| Report { sdk: "python".into(), ..report(experiment, 77.0) };
        let mut python = of("workflows");
        for row in &mut python.rows.clone() {
            python.rows.push(Row {
                callers: Some("threads".into()),
                concurrency: Some(64),
                per_second: 5.0,
                ..row.clone()
            });
        }
        let figures = vec![
            Figure::new("peak resident memory", 3_000.0, "MB").at_most(2_000.0),
            Figure::new("an execution that waits", 7.5, "KB").at_most(10.0),
        ];
        let memory = Report { rows: Vec::new(), figures, ..of("memory") };
        let row = |mode: &str, size, ms| Row {
            mode: Some(mode.into()),
            size,
            steps: Some(7),
            p50_ms: ms,
            published_ms: Some(120.46),
            ..Row::default()
        };
        let payload = Report { rows: vec![row("ordinary", Some(1_000_000), 2.0)], ..of("payload") };
        let reports =
            [report("workflows", 99.0), python, payload, memory].map(|it| ("1.json".to_owned(), it));
        let table = page_tables(Page::Results, &reports);
        let (rust, rest) = table.split_once("**Python, in one process**").unwrap();
        assert!(rust.starts_with("**Rust**\n") && rust.contains("| 2,048 | 99 |") && !rust.contains("77"));
        let (sweep, rest) =
            rest.split_once("**Python, in one process: steps by size of their values**").unwrap();
        assert!(sweep.contains("| 3 | 2,048 | 77 |") && sweep.contains("| 3 | 64 threads | 5 |"), "{sweep}");
        let (sizes, memory) = rest.split_once("**Python, in one process: memory**").unwrap();
        let cells: Vec<_> =
            sizes.lines().find(|it| it.contains("1 MB")).unwrap().split_whitespace().collect();
        assert_eq!(cells[..7], ["|", "1", "MB", "|", "120.46", "|", "2.000"], "{sizes}");
        assert!(cells.contains(&"60.2x"), "{sizes}");
        let line = |name: &str| memory.lines().find(|line| line.contains(name)).unwrap();
        assert!(line("resident").contains("3000 MB") && line("resident").contains("MISSED"), "{memory}");
        assert!(line("waits").contains("10.0 KB") && line("waits").contains(" met "), "{memory}");
        assert!(memory.ends_with("for example [1.json](1.json).\n"), "{memory}");
    }
}
