//! Concurrent writers on one file: none of them starves.

use std::io::{BufRead, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use fastrand::Rng;
use stepfast::store::Outcome;
use stepfast::{Key, Store};
use tokio::time::Instant;

use crate::Worker;
use crate::chaos::Form;
use crate::chaos::deployment::Deployment;
use crate::chaos::neighbour::NOT_OF_NEIGHBOUR;
use crate::chaos::report::Report;
use crate::chaos::worker_process::{AllowedExit, WorkerOptions};
use crate::fixtures::builders::{completed, start_in};

/// The environment variable that makes a process a writer and names its database.
const URL_VARIABLE: &str = "STEPFAST_CHAOS_WRITER";
/// The environment variable with the number of rows in a flush.
const ROWS_VARIABLE: &str = "STEPFAST_CHAOS_ROWS";
/// The environment variable with the milliseconds from one flush to the next; 0 for as fast as possible.
const INTERVAL_VARIABLE: &str = "STEPFAST_CHAOS_EVERY";

/// Maximum p99 wait of the fifth writer, in median flushes of the others.
const MAX_FLUSHES_WAITED: u32 = 20;

/// Runs a writer and returns true if the environment makes this process one. When its input ends, the writer prints
/// `flushes COUNT P50 P99 MAX`, in microseconds.
pub fn run_if_requested() -> bool {
    let Ok(url) = std::env::var(URL_VARIABLE) else { return false };
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
    let has_input_ended = Arc::new(AtomicBool::new(false));
    let flag = has_input_ended.clone();
    std::thread::spawn(move || {
        for _ in std::io::stdin().lock().lines() {}
        flag.store(true, SeqCst);
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store: Arc<dyn Store> = stepfast::connect(&url).await.unwrap();
        let mut worker = Worker::register(&store).await;
        let mut every = tokio::time::interval(Duration::from_millis(number(INTERVAL_VARIABLE).max(1)));
        let mut durations = Vec::new();
        while !has_input_ended.load(SeqCst) {
            if number(INTERVAL_VARIABLE) > 0 {
                every.tick().await;
            }
            let writes = (0..number(ROWS_VARIABLE)).map(|_| start_in(Key::mint(0), completed())).collect();
            let began = Instant::now();
            // on a busy machine, another process may hold the write lock for more than a second
            let outcomes = worker.commit_with_retry(writes).await;
            assert!(outcomes.iter().all(|outcome| *outcome == Outcome::Applied), "{outcomes:?}");
            durations.push(began.elapsed().as_micros());
        }
        durations.sort_unstable();
        let at = |part: f64| durations[((durations.len() - 1) as f64 * part).round() as usize];
        let (count, half, p99, max) = (durations.len(), at(0.5), at(0.99), at(1.0));
        let line = format!("flushes {count} {half} {p99} {max}\n");
        std::io::stdout().write_all(line.as_bytes()).unwrap();
        worker.close_with_retry().await;
    });
    true
}

/// Four processes write a thousand rows per flush as fast as they can, and a fifth one row every 100 ms. At its p99,
/// the fifth waits for at most 20 flushes of the others.
pub(crate) async fn four_and_one(form: Form, _rng: Rng) -> Report {
    let mut deployment = Deployment::on_sqlite(form).await;
    let mut start_writer = |rows: &str, every: &str| {
        let environment = vec![
            (URL_VARIABLE, deployment.url.clone()),
            (ROWS_VARIABLE, rows.to_owned()),
            (INTERVAL_VARIABLE, every.to_owned()),
        ];
        deployment.start_worker(&WorkerOptions {
            environment,
            allowed_exit: AllowedExit::InputClosed,
            ..WorkerOptions::default()
        })
    };
    let numbers = [
        start_writer("1000", "0"),
        start_writer("1000", "0"),
        start_writer("1000", "0"),
        start_writer("1000", "0"),
        start_writer("1", "100"),
    ];
    deployment.listen_for(form.seconds(5, 30)).await;
    for number in numbers {
        deployment.workers[number].close_input();
    }
    deployment.wait_until("the writers' figures", |deployment| deployment.running_workers().is_empty()).await;
    let figures: Vec<Vec<u64>> =
        numbers.iter().map(|&number| deployment.workers[number].flush_figures.clone()).collect();
    let mut halves: Vec<u64> = figures[..4].iter().filter_map(|figures| figures.get(1).copied()).collect();
    halves.sort_unstable();
    let rows: u64 = figures
        .iter()
        .zip([1000, 1000, 1000, 1000, 1])
        .map(|(it, rows)| it.first().unwrap_or(&0) * rows)
        .sum();
    let written = format!("SELECT count(*) FROM executions WHERE {NOT_OF_NEIGHBOUR}");
    let found = deployment.query_number(&written).await;
    deployment
        .expect(found == Some(rows as i64), || format!("{rows} rows were acknowledged, {found:?} are there"));
    let (flush, wait) = (halves.get(2).copied().unwrap_or(0), figures[4].get(2).copied().unwrap_or(u64::MAX));
    if form == Form::Long {
        let is_fair = wait <= flush * u64::from(MAX_FLUSHES_WAITED);
        deployment.expect(is_fair, || {
            format!("one row waited {wait} µs at its p99, {flush} µs is a flush of the others")
        });
    }
    let mut notes = deployment.finish_neighbour().await;
    let (violations, ms) =
        (std::mem::take(&mut deployment.promises.violations), |micros: u64| micros as f64 / 1000.0);
    notes.push(format!(
        "{} flushes of 1,000 rows, median {:.1} ms; one row waited p50 {:.1}, p99 {:.1}, at most {:.1} ms: {:.1} flushes",
        figures[..4].iter().filter_map(|it| it.first()).sum::<u64>(),
        ms(flush),
        ms(figures[4].get(1).copied().unwrap_or(0)),
        ms(wait),
        ms(figures[4].get(3).copied().unwrap_or(0)),
        wait as f64 / flush.max(1) as f64
    ));
    Report {
        fault: "four writers at full speed, one slow",
        store: "sqlite",
        executions: rows,
        violations,
        notes,
        ..Report::default()
    }
}
