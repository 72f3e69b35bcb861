//! Formats reports as Markdown tables, which `stepfast bench` prints and the READMEs contain.

use comfy_table::Table;
use comfy_table::presets::ASCII_MARKDOWN;

use crate::bound::CpuEach;
use crate::experiments::payload;
use crate::report::{Figure, Row};

fn new_table<const N: usize>(header: [&str; N]) -> Table {
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_header(header);
    table
}

/// Returns a number as text; an empty text if there is none.
fn number(number: Option<impl ToString>) -> String {
    number.map_or(String::new(), |number| number.to_string())
}

/// Returns a table with a line for each row.
pub fn row_table(rows: &[Row]) -> Table {
    let has_queues = rows.iter().any(|row| row.queues.is_some());
    let varied = if has_queues { ["queues", "workers"] } else { ["steps", "size"] };
    let has_disk = rows.iter().any(|row| row.disk_bytes_each.is_some());
    let mut header = vec![
        "mode",
        "callers",
        varied[0],
        varied[1],
        "completed",
        "failed",
        "per second",
        "p50 ms",
        "p99 ms",
        "max ms",
        "flushes",
        "writes/flush",
        "MB written",
    ];
    let has_cpu = rows.iter().any(|row| row.cpu_each.is_some());
    let has_server = rows.iter().any(|row| row.cpu_each.as_ref().is_some_and(|cpu| cpu.server_us.is_some()));
    header.extend(has_cpu.then_some(["user us", "system us"]).into_iter().flatten());
    header.extend(has_server.then_some("server us"));
    header.extend(has_disk.then_some("disk bytes each"));
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_header(header);
    for row in rows {
        let callers = row.callers.as_deref().map_or(String::new(), |callers| format!(" {callers}"));
        let mut cells = vec![
            row.mode.clone().unwrap_or_default() + &stored_suffix(row),
            number(row.concurrency) + &callers,
            number(if has_queues { row.queues } else { row.steps }),
            number(if has_queues { row.workers } else { row.size }),
            row.completed.to_string(),
            row.failed.to_string(),
            format!("{:.0}", row.per_second),
            format!("{:.3}", row.p50_ms),
            format!("{:.3}", row.p99_ms),
            format!("{:.3}", row.max_ms),
            row.flushes.to_string(),
            format!("{:.1}", row.writes_per_flush),
            format!("{:.1}", row.bytes_written as f64 / 1e6),
        ];
        let cpu = |part: fn(&CpuEach) -> Option<f64>| {
            let part = row.cpu_each.as_ref().and_then(part);
            part.map_or(String::new(), |micros| format!("{micros:.1}"))
        };
        if has_cpu {
            cells.extend([cpu(|it| Some(it.user_us)), cpu(|it| Some(it.system_us))]);
        }
        cells.extend(has_server.then(|| cpu(|it| it.server_us)));
        cells.extend(
            has_disk.then(|| row.disk_bytes_each.map_or(String::new(), |bytes| format!("{bytes:.0}"))),
        );
        table.add_row(cells);
    }
    table
}

/// Returns a table of a sweep over concurrency. The speedup and the efficiency are relative to the first row: the
/// efficiency is 100 % if the throughput grows like the concurrency.
pub fn sweep_table(rows: &[Row]) -> Table {
    let mut table = new_table([
        "workers",
        "time s",
        "throughput/s",
        "speedup",
        "efficiency %",
        "tasks/s",
        "p50 ms",
        "p99 ms",
        "failed",
        "flushes",
        "writes/flush",
    ]);
    let first = rows.first().map_or((0.0, 1.0), |row| (row.per_second, row.concurrency.unwrap_or(1) as f64));
    for row in rows {
        let speedup = row.per_second / first.0.max(1e-9);
        let workers = row.concurrency.unwrap_or(1) as f64;
        table.add_row([
            number(row.concurrency),
            format!("{:.3}", row.seconds),
            format!("{:.0}", row.per_second),
            format!("{speedup:.2}"),
            format!("{:.1}", speedup * first.1 * 100.0 / workers),
            format!("{:.0}", row.tasks_per_second.unwrap_or_default()),
            format!("{:.3}", row.p50_ms),
            format!("{:.3}", row.p99_ms),
            row.failed.to_string(),
            row.flushes.to_string(),
            format!("{:.1}", row.writes_per_flush),
        ]);
    }
    table
}

/// Returns a table with a line for each row, with only the columns for times.
pub fn time_table(rows: &[Row]) -> Table {
    let has_late = rows.iter().any(|row| row.late.is_some());
    let mut header = vec!["mode", "times", "failed", "p50 ms", "p99 ms", "max ms"];
    header.extend(has_late.then_some("above 5 s"));
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_header(header);
    for row in rows {
        let mut cells = vec![
            row.mode.clone().unwrap_or_default(),
            row.completed.to_string(),
            row.failed.to_string(),
            format!("{:.3}", row.p50_ms),
            format!("{:.3}", row.p99_ms),
            format!("{:.3}", row.max_ms),
        ];
        cells.extend(has_late.then(|| number(row.late)));
        table.add_row(cells);
    }
    table
}

/// Returns a table with a line for each row of an experiment with batches.
pub fn batch_table(rows: &[Row]) -> Table {
    let mut table = Table::new();
    let header =
        ["operation", "batch", "callers", "items", "failed", "items/s", "published/s", "p50 ms", "p99 ms"];
    table.load_style(ASCII_MARKDOWN).set_header(header);
    for row in rows {
        table.add_row([
            row.op.clone().unwrap_or_default(),
            number(row.batch),
            number(row.concurrency),
            row.completed.to_string(),
            row.failed.to_string(),
            format!("{:.0}", row.per_second),
            row.published_per_second.map_or(String::new(), |it| format!("{it:.0}")),
            format!("{:.3}", row.p50_ms),
            format!("{:.3}", row.p99_ms),
        ]);
    }
    table
}

/// Returns a table of what bounds each row: the shares of its time, and what it wrote. `None` if that was not measured. All
/// rows must be of one store.
pub fn bound_table(rows: &[Row]) -> Option<Table> {
    let measured: Vec<_> = rows.iter().filter_map(|row| Some((row, row.bound.as_ref()?))).collect();
    let (first_row, first) = measured.first()?;
    let is_server = first.samples.is_some();
    // a sweep would otherwise have several rows of the same name
    let is_steps_varied = measured.iter().any(|(row, _)| row.steps != first_row.steps);
    let is_size_varied = measured.iter().any(|(row, _)| row.size != first_row.size);
    let mut header = vec!["what bounds it".to_owned(), "callers".to_owned()];
    header.extend(is_steps_varied.then(|| "steps".to_owned()));
    header.extend(is_size_varied.then(|| "size".to_owned()));
    header.extend(first.shares.iter().map(|share| format!("{} %", share.name)));
    header.extend(["flushes/s", "writes/flush", "largest", "bytes each"].map(str::to_owned));
    if is_server {
        header.extend(["of it images", "busy sessions", "samples"].map(str::to_owned));
    }
    header.extend(["CPUs", "of the machine"].map(str::to_owned));
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_header(header);
    for (row, bound) in &measured {
        let each = |bytes: u64| format!("{:.0}", bytes as f64 / row.completed.max(1) as f64);
        let processors = |used: Option<f64>| used.map_or(String::new(), |used| format!("{used:.2}"));
        let mut cells = vec![
            format!("{}{}", row.mode.as_deref().unwrap_or_default(), stored_suffix(row)),
            number(row.concurrency),
        ];
        cells.extend(is_steps_varied.then(|| number(row.steps)));
        cells.extend(is_size_varied.then(|| number(row.size)));
        cells.extend(bound.shares.iter().map(|share| format!("{:.1}", share.percent)));
        cells.push(format!("{:.0}", bound.flushes_per_second));
        cells.push(format!("{:.1}", row.writes_per_flush));
        cells.push(number(bound.largest_flush));
        cells.push(each(row.bytes_written));
        if is_server {
            let log = bound.log.as_ref();
            let images = log.and_then(|log| Some((log.image_bytes?, log.image_source.as_deref()?)));
            cells.push(images.map_or(String::new(), |(bytes, source)| {
                let at_most = if source == "log" { "" } else { "<= " };
                format!("{at_most}{}", each(bytes))
            }));
            cells.push(bound.busy_sessions.map_or(String::new(), |busy| format!("{busy:.2}")));
            cells.push(bound.samples.map_or(String::new(), |samples| samples.to_string()));
        }
        cells.push(processors(bound.own_processors));
        cells.push(processors(bound.all_processors));
        table.add_row(cells);
    }
    Some(table)
}

/// Returns the number of executions in the store or in its queue as a suffix, if it was varied.
fn stored_suffix(row: &Row) -> String {
    let word = if row.queues.is_some() { "waiting" } else { "stored" };
    row.stored.map_or(String::new(), |stored| format!(", {stored} {word}"))
}

/// Returns a table with a line for each figure, and whether its target was met.
pub fn figure_table(figures: &[Figure]) -> Table {
    let mut table = new_table(["figure", "measured", "at most", "target"]);
    for figure in figures {
        let shown = |value: f64| format!("{} {}", three_digits(value), figure.unit);
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

/// Returns the table of published and measured times of each arm: median, minimum and maximum.
pub fn size_table(rows: &[Row]) -> Table {
    let mut table = new_table([
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
            cells.push(row.map_or(String::new(), median_and_range));
            let times = row.and_then(|row| Some(row.published_ms? / row.p50_ms.max(1e-9)));
            cells.push(times.map_or(String::new(), |times| three_digits(times) + "x"));
        }
        table.add_row(cells);
    };
    line("1 B, first call".into(), [find("first call", Some(1), Some(7)), None, None]);
    let arms = ["ordinary", "durable", "speculative"];
    for (size, name) in payload::SIZES.into_iter().zip(SIZE_NAMES) {
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

/// The names of the seven sizes.
const SIZE_NAMES: [&str; 7] = ["1 B", "10 B", "100 B", "1 KB", "10 KB", "100 KB", "1 MB"];

fn median_and_range(row: &Row) -> String {
    let smallest = row.min_ms.unwrap_or_default();
    format!("{:.3} [{:.3}..{:.3}]", row.p50_ms, smallest, row.max_ms)
}

/// Formats a number with at least three digits.
fn three_digits(value: f64) -> String {
    match value.abs() {
        ..10.0 => format!("{value:.3}"),
        10.0..100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}
