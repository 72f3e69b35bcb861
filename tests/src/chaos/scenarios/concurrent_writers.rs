//! Writers side by side on one file: nobody starves.

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
use crate::chaos::deployment::Site;
use crate::chaos::report::Report;
use crate::chaos::worker_process::{MayEnd, Terms};
use crate::fixtures::builders::{completed, start_in};

/// Names the database to a process that is to be a writer.
const URL: &str = "STEPFAST_CHAOS_WRITER";
/// Rows in a flush.
const ROWS: &str = "STEPFAST_CHAOS_ROWS";
/// Milliseconds from one flush to the next; none for as fast as possible.
const EVERY: &str = "STEPFAST_CHAOS_EVERY";

/// The one waits at its p99 at most so many median flushes of the others.
const FLUSHES: u32 = 20;

/// Runs the writer if this process was started to be one. At the end of its input it tells of its flushes:
/// `flushes COUNT P50 P99 MAX`, in microseconds.
pub fn run_if_asked() -> bool {
    let Ok(url) = std::env::var(URL) else { return false };
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
    let is_over = Arc::new(AtomicBool::new(false));
    let over = is_over.clone();
    std::thread::spawn(move || {
        for _ in std::io::stdin().lock().lines() {}
        over.store(true, SeqCst);
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store: Arc<dyn Store> = stepfast::connect(&url).await.unwrap();
        let mut worker = Worker::register(&store).await;
        let mut every = tokio::time::interval(Duration::from_millis(number(EVERY).max(1)));
        let mut took = Vec::new();
        while !is_over.load(SeqCst) {
            if number(EVERY) > 0 {
                every.tick().await;
            }
            let writes = (0..number(ROWS)).map(|_| start_in(Key::mint(0), completed())).collect();
            let began = Instant::now();
            // on a busy machine another process may keep the turn for more than a second
            let outcomes = worker.commit_with_retry(writes).await;
            assert!(outcomes.iter().all(|outcome| *outcome == Outcome::Applied), "{outcomes:?}");
            took.push(began.elapsed().as_micros());
        }
        took.sort_unstable();
        let at = |part: f64| took[((took.len() - 1) as f64 * part).round() as usize];
        let (count, half, most, max) = (took.len(), at(0.5), at(0.99), at(1.0));
        let line = format!("flushes {count} {half} {most} {max}\n");
        std::io::stdout().write_all(line.as_bytes()).unwrap();
        worker.close_with_retry().await;
    });
    true
}

/// Four processes write a thousand rows a flush as fast as they can; a fifth one row every 100 ms. It waits for
/// 20 of their flushes at most, at its p99.
pub(crate) async fn four_and_one(form: Form, _rng: Rng) -> Report {
    let mut site = Site::sqlite(form);
    let mut terms = |rows: &str, every: &str| {
        let environment = vec![(URL, site.url.clone()), (ROWS, rows.to_owned()), (EVERY, every.to_owned())];
        site.hire(&Terms { environment, may_end: MayEnd::WithInput, ..Terms::default() })
    };
    let numbers =
        [terms("1000", "0"), terms("1000", "0"), terms("1000", "0"), terms("1000", "0"), terms("1", "100")];
    site.hear_for(form.seconds(5, 30)).await;
    for number in numbers {
        site.hands[number].close();
    }
    site.hear_until("the writers' figures", |site| site.working().is_empty()).await;
    let told: Vec<Vec<u64>> = numbers.iter().map(|&number| site.hands[number].figures.clone()).collect();
    let mut halves: Vec<u64> = told[..4].iter().filter_map(|figures| figures.get(1).copied()).collect();
    halves.sort_unstable();
    let rows: u64 =
        told.iter().zip([1000, 1000, 1000, 1000, 1]).map(|(it, rows)| it.first().unwrap_or(&0) * rows).sum();
    let found = site.number("SELECT count(*) FROM executions").await;
    site.expect(found == Some(rows as i64), || format!("{rows} rows were acknowledged, {found:?} are there"));
    let (flush, wait) = (halves.get(2).copied().unwrap_or(0), told[4].get(2).copied().unwrap_or(u64::MAX));
    if form == Form::Long {
        let is_fair = wait <= flush * u64::from(FLUSHES);
        site.expect(is_fair, || {
            format!("one row waited {wait} µs at its p99, {flush} µs is a flush of the others")
        });
    }
    let (violations, ms) = (std::mem::take(&mut site.told.violations), |micros: u64| micros as f64 / 1000.0);
    let note = format!(
        "{} flushes of 1,000 rows, median {:.1} ms; one row waited p50 {:.1}, p99 {:.1}, at most {:.1} ms: {:.1} flushes",
        told[..4].iter().filter_map(|it| it.first()).sum::<u64>(),
        ms(flush),
        ms(told[4].get(1).copied().unwrap_or(0)),
        ms(wait),
        ms(told[4].get(3).copied().unwrap_or(0)),
        wait as f64 / flush.max(1) as f64
    );
    Report {
        fault: "four at full speed, one beside",
        store: "sqlite",
        executions: rows,
        violations,
        notes: vec![note],
        ..Report::default()
    }
}
