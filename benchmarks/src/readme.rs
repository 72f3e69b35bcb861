//! The README's table of figures, generated from the reports in `results/`: figures are never typed.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use crate::report::{Report, Row};

/// The line before the table.
pub const BEGIN: &str = "<!-- benchmarks: written by `make bench`, do not edit -->";
/// The line behind it.
pub const END: &str = "<!-- end of benchmarks -->";

/// What stands there while there are no figures.
const NONE: &str = "run `make bench`\n";

/// The reports in `folder`, each with the name of its file, oldest first.
pub fn reports(folder: &Path) -> std::io::Result<Vec<(String, Report)>> {
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

/// `text` with the table of the newest reports between its markers; an error if they are not there.
pub fn update(text: &str, reports: &[(String, Report)]) -> Result<String, String> {
    let missing = |marker: &str| format!("the line {marker:?} is missing");
    let (before, rest) = text.split_once(BEGIN).ok_or_else(|| missing(BEGIN))?;
    let (_, after) = rest.split_once(END).ok_or_else(|| missing(END))?;
    Ok(format!("{before}{BEGIN}\n{}{END}{after}", table(reports)))
}

fn table(reports: &[(String, Report)]) -> String {
    // later ones replace earlier ones
    let newest: BTreeMap<_, _> = reports
        .iter()
        .filter(|(_, report)| report.experiment == "workflows" || report.experiment == "steps")
        .map(|(name, report)| {
            (
                (&report.sdk, &report.store, &report.durability, report.experiment != "workflows"),
                (name, report),
            )
        })
        .collect();
    if newest.is_empty() {
        return NONE.to_owned();
    }
    let mut text = String::from(
        "| store | durability | steps | callers | start: per second | p50 ms | p99 ms | run: per second | p50 ms \
         | p99 ms |\n|---|---|---:|---:|---:|---:|---:|---:|---:|---:|\n",
    );
    for (_, report) in newest.values() {
        let mut lines: BTreeMap<_, [Option<&Row>; 2]> = BTreeMap::new();
        for row in &report.rows {
            let line = lines.entry((row.steps, row.concurrency)).or_default();
            line[usize::from(row.mode.as_deref() == Some("run"))] = Some(row);
        }
        for ((steps, callers), figures) in lines {
            let number = |n: Option<usize>| n.map_or(String::new(), |n| grouped(n as u64));
            let [start, run] = figures.map(|row| {
                row.map_or("n/a | n/a | n/a".to_owned(), |row| {
                    format!("{} | {:.2} | {:.2}", grouped(row.per_second as u64), row.p50_ms, row.p99_ms)
                })
            });
            let (store, durability) = (&report.store, &report.durability);
            let (steps, callers) = (number(steps), number(callers));
            // writing to a String does not fail
            let _ = writeln!(text, "| {store} | {durability} | {steps} | {callers} | {start} | {run} |");
        }
    }
    if let Some((name, Report { machine, version, .. })) = newest.values().next_back() {
        let gib = machine.memory_bytes >> 30;
        let (cores, processor, system) = (machine.cores, &machine.processor, &machine.system);
        let _ = write!(
            text,
            "\nStepfast {version} on {cores} cores ({processor}), {gib} GiB, {system}. Files: [{name}]\
             (benchmarks/results/{name}) and its neighbours.\n"
        );
    }
    text
}

/// A number with its thousands apart.
fn grouped(n: u64) -> String {
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
        }
    }

    #[test]
    fn the_readme_holds_the_newest_figures() {
        let home = Path::new(env!("CARGO_MANIFEST_DIR"));
        let readme = std::fs::read_to_string(home.join("../README.md")).unwrap();
        let updated = update(&readme, &reports(&home.join("results")).unwrap()).unwrap();
        assert_eq!(
            readme, updated,
            "run `make bench`, or `cargo run -p stepfast-benchmarks --bin readme-table`"
        );
    }

    #[test]
    fn only_what_is_between_the_markers_changes_and_the_newest_report_counts() {
        let text = format!("before\n{BEGIN}\nold\n{END}\nafter\n");
        assert_eq!(update(&text, &[]).unwrap(), format!("before\n{BEGIN}\n{NONE}{END}\nafter\n"));
        let reports = [
            ("1.json".to_owned(), report("steps", 1.0)),
            ("2.json".to_owned(), report("steps", 1_234_567.0)),
        ];
        let updated = update(&text, &reports).unwrap();
        assert!(
            updated.contains("| SQLite | full | 3 | 2,048 | 1,234,567 | 0.00 | 0.00 | 1,234,567 |"),
            "{updated}"
        );
        assert!(
            updated.starts_with("before\n") && updated.ends_with("\nafter\n") && !updated.contains("| 1 |")
        );
        assert_eq!(update(&updated, &reports).unwrap(), updated);
        assert!(update("no markers", &[]).is_err());
    }
}
