//! Reports as tables, which are Markdown too: `stepfast bench` prints them, the README holds them.

use comfy_table::Table;
use comfy_table::presets::ASCII_MARKDOWN;

use crate::payload;
use crate::report::{Figure, Row};

fn table<const N: usize>(header: [&str; N]) -> Table {
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_header(header);
    table
}

/// A line for each row.
pub fn rows(rows: &[Row]) -> Table {
    let mut table = table([
        "mode",
        "callers",
        "steps",
        "size",
        "completed",
        "failed",
        "per second",
        "p50 ms",
        "p99 ms",
        "max ms",
        "flushes",
        "writes/flush",
        "MB written",
    ]);
    for row in rows {
        let number = |n: Option<usize>| n.map_or(String::new(), |n| n.to_string());
        let callers = row.callers.as_deref().map_or(String::new(), |callers| format!(" {callers}"));
        table.add_row([
            row.mode.clone().unwrap_or_default(),
            number(row.concurrency) + &callers,
            number(row.steps),
            number(row.size),
            row.completed.to_string(),
            row.failed.to_string(),
            format!("{:.0}", row.per_second),
            format!("{:.3}", row.p50_ms),
            format!("{:.3}", row.p99_ms),
            format!("{:.3}", row.max_ms),
            row.flushes.to_string(),
            format!("{:.1}", row.writes_per_flush),
            format!("{:.1}", row.bytes_written as f64 / 1e6),
        ]);
    }
    table
}

/// A line for each figure, and whether its target was met.
pub fn figures(figures: &[Figure]) -> Table {
    let mut table = table(["figure", "measured", "at most", "target"]);
    for figure in figures {
        let shown = |value: f64| format!("{} {}", digits(value), figure.unit);
        let met = match figure.is_met() {
            None => "",
            Some(true) => "met",
            Some(false) => "MISSED",
        };
        table.add_row([
            figure.name.clone(),
            shown(figure.value),
            figure.limit.map_or(String::new(), shown),
            met.to_owned(),
        ]);
    }
    table
}

/// What was published, and beside it what was measured of each arm: median, smallest and largest.
pub fn sizes(rows: &[Row]) -> Table {
    let mut table = table([
        "milliseconds",
        "published",
        "ordinary steps",
        "times",
        "durable steps",
        "times",
        "speculative steps",
        "times",
    ]);
    let find = |mode: &str, size: Option<usize>, steps: Option<usize>| {
        rows.iter().find(|row| row.mode.as_deref() == Some(mode) && row.size == size && row.steps == steps)
    };
    let mut line = |name: String, columns: [Option<&Row>; 3]| {
        let published = columns.iter().flatten().find_map(|row| row.published_ms);
        let mut cells = vec![name, published.map_or(String::new(), |ms| format!("{ms:.2}"))];
        for row in columns {
            cells.push(row.map_or(String::new(), spread));
            let times = row.and_then(|row| Some(row.published_ms? / row.p50_ms.max(1e-9)));
            cells.push(times.map_or(String::new(), |times| digits(times) + "x"));
        }
        table.add_row(cells);
    };
    line("1 B, first call".into(), [find("first call", Some(1), Some(7)), None, None]);
    let arms = ["ordinary", "durable", "speculative"];
    for (size, name) in payload::SIZES.into_iter().zip(NAMES) {
        line(name.into(), arms.map(|arm| find(arm, Some(size), Some(7))));
    }
    line("seven steps".into(), arms.map(|arm| find(arm, None, Some(7))));
    line("one batched step".into(), [find("batched", None, Some(1)), None, None]);
    for (mode, name) in [
        ("commit", "bare commit"),
        ("append", "raw append and fdatasync"),
        ("random data", "making the random data (not in the above)"),
    ] {
        for row in rows.iter().filter(|row| row.mode.as_deref() == Some(mode)) {
            let size = row.size.unwrap_or_default();
            line(format!("{name}, {size} B"), [Some(row), None, None]);
        }
    }
    table
}

/// As people write the seven sizes.
const NAMES: [&str; 7] = ["1 B", "10 B", "100 B", "1 KB", "10 KB", "100 KB", "1 MB"];

fn spread(row: &Row) -> String {
    let smallest = row.min_ms.unwrap_or_default();
    format!("{:.3} [{:.3}..{:.3}]", row.p50_ms, smallest, row.max_ms)
}

/// Three digits at least.
fn digits(value: f64) -> String {
    match value.abs() {
        ..10.0 => format!("{value:.3}"),
        10.0..100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}
