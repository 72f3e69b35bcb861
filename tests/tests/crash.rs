//! Crashes: processes that run workflows are killed with SIGKILL repeatedly, at random and at named points, and
//! restarted on the same database until all work is done. Below SQLite, the power is cut. Acknowledged results are
//! compared with the record, in between and at the end.
//!
//! `STEPFAST_CRASH_KILLS` is the approximate number of kills (20 by default; from 200 on, more passages of the crash
//! points are tried); `STEPFAST_CRASH_SEED` repeats the choices of a run; `STEPFAST_CRASH_POINT` restricts the run to
//! one crash point.

#![allow(clippy::unwrap_used, clippy::print_stdout)] // a test with a main of its own

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use stepfast::store::Durability;
use stepfast_tests::crash::child;
use stepfast_tests::crash::crash_points::{ENGINE_POINTS, POSTGRES_POINTS, SQLITE_POINTS, crash_at_point};
use stepfast_tests::crash::harness::{StoreKind, Tally, kill_at_random};
use stepfast_tests::crash::power;
use stepfast_tests::fixtures::postgres_server::PostgresServer;

/// Number of concurrent jobs per store: jobs on Postgres wait for leases most of the time.
const AT_ONCE: [(StoreKind, usize); 2] = [(StoreKind::Sqlite, 2), (StoreKind::Postgres, 6)];

/// The work of a job. It calls its argument after each kill.
type Work = Box<dyn Fn(&dyn Fn()) -> Tally + Send>;

/// Work for a row of the result table.
struct Job {
    row: usize,
    kind: StoreKind,
    work: Work,
}

/// A row of the result table.
struct Row {
    what: &'static str,
    store: &'static str,
    victims: &'static str,
    tally: Tally,
}

fn main() -> ExitCode {
    if child::run_if_requested() {
        return ExitCode::SUCCESS;
    }
    let seed = variable("STEPFAST_CRASH_SEED").unwrap_or_else(|| fastrand::u64(..));
    let kills = variable("STEPFAST_CRASH_KILLS").unwrap_or(20);
    println!("crash: about {kills} kills, STEPFAST_CRASH_SEED={seed}");
    PostgresServer::shared();
    let (mut rows, jobs) = plan(kills, seed);
    let failed = run(&mut rows, jobs);
    table(&rows);
    let violations: usize = rows.iter().map(|row| row.tally.violations.len()).sum();
    println!("test crash ... {}", if violations + failed == 0 { "ok" } else { "FAILED" });
    if violations + failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// Plans the rows and jobs for about `kills` kills.
fn plan(kills: u64, seed: u64) -> (Vec<Row>, Vec<Job>) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut rows = Vec::new();
    let mut jobs = Vec::new();
    if let Ok(only) = std::env::var("STEPFAST_CRASH_POINT") {
        plan_points(&mut rows, &mut jobs, kills, &mut rng, Some(&only));
        assert!(!jobs.is_empty(), "there is no crash point {only:?}");
        return (rows, jobs);
    }
    // on Postgres a lease must expire after each kill: that takes seconds, and several jobs wait concurrently
    let random = [
        (StoreKind::Sqlite, "sqlite", 1, "1", kills * 3 / 10, 20),
        (StoreKind::Sqlite, "sqlite", 2, "2", kills * 3 / 10, 20),
        (StoreKind::Postgres, "postgres", 1, "1", kills / 10, 6),
        (StoreKind::Postgres, "postgres", 2, "2", kills / 10, 6),
    ];
    for (kind, store, victims, named, kills, portion) in random {
        let row = rows.len();
        rows.push(Row { what: "random", store, victims: named, tally: Tally::default() });
        let mut left = kills.max(1);
        while left > 0 {
            let (some, seed) = (left.min(portion), rng.u64(..));
            left -= some;
            let work =
                Box::new(move |progress: &dyn Fn()| kill_at_random(kind, victims, some, seed, progress));
            jobs.push(Job { row, kind, work });
        }
    }
    plan_points(&mut rows, &mut jobs, kills, &mut rng, None);
    plan_cuts(&mut rows, &mut jobs, kills, &mut rng);
    // the long jobs first
    jobs.reverse();
    (rows, jobs)
}

/// Plans power cuts below the database file, and checks that nothing is acknowledged before its sync.
fn plan_cuts(rows: &mut Vec<Row>, jobs: &mut Vec<Job>, kills: u64, rng: &mut fastrand::Rng) {
    let store = "sqlite";
    let mut row = |what| {
        rows.push(Row { what, store, victims: "1", tally: Tally::default() });
        rows.len() - 1
    };
    let (full, relaxed) = (row("power cuts"), row("cuts, relaxed"));
    let (log, relaxed_log) = (row("log of syncs"), row("log, relaxed"));
    let mut left = (kills / 4).max(1);
    let mut job = |row, work: Work| jobs.push(Job { row, kind: StoreKind::Sqlite, work });
    while left > 0 {
        let (some, seed) = (left.min(15), rng.u64(..));
        left -= some;
        job(full, Box::new(move |progress| power::cut_power(Durability::Full, some, seed, progress)));
    }
    let seed = rng.u64(..);
    job(relaxed, Box::new(move |progress| power::cut_power_relaxed(6, seed, progress)));
    let executions = kills * 50;
    job(log, Box::new(move |_| power::check_sync_order(Durability::Full, executions, seed)));
    job(relaxed_log, Box::new(move |_| power::check_sync_order(Durability::Relaxed, 300, seed)));
}

/// Plans jobs in which a process kills itself at each crash point. More requested kills mean more passages.
fn plan_points(
    rows: &mut Vec<Row>,
    jobs: &mut Vec<Job>,
    kills: u64,
    rng: &mut fastrand::Rng,
    only: Option<&str>,
) {
    let passages = if kills < 200 { 1 } else { 3 };
    let engine_on_postgres = u32::from(kills >= 200);
    for (kind, store, own, of_engine) in [
        (StoreKind::Sqlite, "sqlite", SQLITE_POINTS, passages),
        (StoreKind::Postgres, "postgres", POSTGRES_POINTS, engine_on_postgres),
    ] {
        let row = rows.len();
        rows.push(Row { what: "crash points", store, victims: "1", tally: Tally::default() });
        for (points, passages) in [(ENGINE_POINTS, of_engine), (own, passages)] {
            let points = points.iter().filter(|(name, _)| only.is_none_or(|only| only == *name));
            for (&point, n) in points.flat_map(|point| (1..=passages).map(move |n| (point, n))) {
                let seed = rng.u64(..);
                let work: Work = Box::new(move |progress| crash_at_point(kind, point, n, seed, progress));
                jobs.push(Job { row, kind, work });
            }
        }
    }
}

/// Runs all jobs. Returns the number that panicked.
fn run(rows: &mut [Row], jobs: Vec<Job>) -> usize {
    let kills = AtomicU64::new(0);
    let failed = Mutex::new(0);
    let queues = AT_ONCE.map(|(kind, _)| kind);
    let mut parted: [VecDeque<Job>; 2] = Default::default();
    for job in jobs {
        let queue = queues.iter().position(|kind| *kind == job.kind).unwrap();
        parted[queue].push_back(job);
    }
    let parted = parted.map(Mutex::new);
    let rows = Mutex::new(rows);
    std::thread::scope(|scope| {
        for (queue, (_, threads)) in parted.iter().zip(AT_ONCE) {
            for _ in 0..threads {
                scope.spawn(|| {
                    loop {
                        let Some(job) = queue.lock().unwrap().pop_front() else { return };
                        let progress = || {
                            let so_far = kills.fetch_add(1, SeqCst) + 1;
                            if so_far.is_multiple_of(25) {
                                println!("  {so_far} kills");
                            }
                        };
                        let done = catch_unwind(AssertUnwindSafe(|| (job.work)(&progress)));
                        let Ok(tally) = done else {
                            *failed.lock().unwrap() += 1;
                            continue;
                        };
                        for violation in &tally.violations {
                            println!("  VIOLATION: {violation}");
                        }
                        rows.lock().unwrap()[job.row].tally.add(tally);
                    }
                });
            }
        }
    });
    failed.into_inner().unwrap()
}

fn table(rows: &[Row]) {
    println!(
        "{:<14} {:<9} {:>7} {:>7} {:>8} {:>11} {:>11}",
        "crashes", "store", "victims", "kills", "bodies", "executions", "violations"
    );
    let mut all = Tally::default();
    for Row { what, store, victims, tally } in rows {
        print_row(what, store, victims, tally);
        all.add(tally.clone());
    }
    print_row("all", "", "", &all);
}

fn print_row(what: &str, store: &str, victims: &str, tally: &Tally) {
    let Tally { kills, bodies, executions, violations } = tally;
    println!(
        "{what:<14} {store:<9} {victims:>7} {kills:>7} {bodies:>8} {executions:>11} {:>11}",
        violations.len()
    );
}
