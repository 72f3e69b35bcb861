//! Chaos: worker processes under load on real stores, external faults, and checks of the promises after each fault. The
//! scenarios are in `src/chaos`.
//!
//! `STEPFAST_CHAOS=long` runs the long form, which also judges the throughput; `STEPFAST_CHAOS_ONLY` names scenarios,
//! separated by commas; `STEPFAST_CHAOS_SEED` repeats the choices of a run. `STEPFAST_CHAOS_TAKEOVERS=N` only measures
//! the duration of takeovers, N times per store.

#![allow(clippy::unwrap_used, clippy::print_stdout)] // a test with a main of its own

use std::collections::VecDeque;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use stepfast_tests::chaos::report::TABLE_HEAD;
use stepfast_tests::chaos::{Form, SCENARIOS, Scenario, measure_takeovers, worker, write_if_requested};
use stepfast_tests::fixtures::postgres_server::PostgresServer;
use tokio::runtime::Runtime;

/// Number of scenarios that run concurrently in the short form: most of them wait most of the time.
const AT_ONCE: usize = 4;

/// Maximum number of violations shown per scenario.
const SHOWN: usize = 20;

fn main() -> ExitCode {
    if write_if_requested() || worker::run_if_requested() {
        return ExitCode::SUCCESS;
    }
    if let Some(times) = variable("STEPFAST_CHAOS_TAKEOVERS") {
        let times = times.parse().expect("STEPFAST_CHAOS_TAKEOVERS is a number");
        let mut violations = 0;
        for is_sqlite in [true, false] {
            let (lines, found) = runtime().block_on(measure_takeovers(is_sqlite, times));
            for line in &lines {
                println!("{line}");
            }
            for violation in &found {
                println!("VIOLATION: {violation}");
            }
            violations += found.len();
        }
        return if violations == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let form = Form::from_variable("STEPFAST_CHAOS");
    let seed =
        variable("STEPFAST_CHAOS_SEED").map(|seed| seed.parse().expect("STEPFAST_CHAOS_SEED is a number"));
    let seed = seed.unwrap_or_else(|| fastrand::u64(..));
    println!("chaos: {form:?} form, STEPFAST_CHAOS_SEED={seed}");
    let chosen = chosen(form);
    PostgresServer::shared();
    println!("{TABLE_HEAD}");
    let is_ok = run(form, seed, chosen);
    println!("test chaos ... {}", if is_ok { "ok" } else { "FAILED" });
    if is_ok { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Returns the scenarios to run: the requested ones, or all of the form.
fn chosen(form: Form) -> Vec<&'static Scenario> {
    let Some(names) = variable("STEPFAST_CHAOS_ONLY") else {
        return SCENARIOS.iter().filter(|it| it.is_short || form == Form::Long).collect();
    };
    let find = |name: &str| SCENARIOS.iter().find(|it| it.name == name.trim());
    let all = || SCENARIOS.iter().map(|it| it.name).collect::<Vec<_>>().join(", ");
    names
        .split(',')
        .map(|name| find(name).unwrap_or_else(|| panic!("{name:?} is none of: {}", all())))
        .collect()
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// Runs the scenarios, and prints the report of each when it ends. Returns whether none panicked or broke a promise.
fn run(form: Form, seed: u64, chosen: Vec<&'static Scenario>) -> bool {
    let queue: Mutex<VecDeque<_>> = Mutex::new(chosen.into());
    let is_ok = AtomicBool::new(true);
    std::thread::scope(|scope| {
        // scenarios run one by one if the throughput is judged
        for _ in 0..form.pick(AT_ONCE, 1) {
            scope.spawn(|| {
                loop {
                    let Some(scenario) = queue.lock().unwrap().pop_front() else { return };
                    if !run_scenario(form, seed, scenario) {
                        is_ok.store(false, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    is_ok.into_inner()
}

/// Runs a scenario and prints its report. Returns whether the scenario neither panicked nor broke a promise.
fn run_scenario(form: Form, seed: u64, scenario: &Scenario) -> bool {
    // the same choices, independent of the other scenarios
    let salt = scenario.name.bytes().fold(0u64, |sum, byte| sum.wrapping_mul(31) ^ u64::from(byte));
    let rng = fastrand::Rng::with_seed(seed.wrapping_add(salt));
    let began = tokio::time::Instant::now();
    let limit = form.seconds(300, 3_600);
    let done = catch_unwind(AssertUnwindSafe(|| {
        runtime().block_on(async {
            let run = tokio::time::timeout(limit, (scenario.run)(form, rng));
            run.await.unwrap_or_else(|_| panic!("the scenario has not finished after {limit:?}"))
        })
    }));
    let Ok(report) = done else {
        println!("{} PANICKED", scenario.name);
        return false;
    };
    // one lock, so that reports of concurrent scenarios do not mix
    let mut out = std::io::stdout().lock();
    writeln!(out, "{report}\n    {} took {:.0} s", scenario.name, began.elapsed().as_secs_f64()).unwrap();
    for violation in report.violations.iter().take(SHOWN) {
        writeln!(out, "    VIOLATION: {violation}").unwrap();
    }
    if report.violations.len() > SHOWN {
        writeln!(out, "    and {} more", report.violations.len() - SHOWN).unwrap();
    }
    report.violations.is_empty()
}
