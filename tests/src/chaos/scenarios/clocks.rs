//! Workers with wrong clocks.

use std::path::PathBuf;

use fastrand::Rng;

use crate::chaos::Form;
use crate::chaos::deployment::{Deployment, load_executions};
use crate::chaos::load::NAP;
use crate::chaos::report::Report;
use crate::chaos::worker::CallKind;
use crate::chaos::worker_process::WorkerOptions;
use crate::fixtures::postgres_server::PostgresServer;

const HOUR_MICROS: i64 = 3_600_000_000;
/// Offsets of the workers' clocks from the database's, in microseconds.
const CLOCK_OFFSETS: [i64; 3] = [HOUR_MICROS, 0, -HOUR_MICROS];

/// The clock of one worker is an hour ahead, and that of another an hour behind. No worker is taken over, and no sleep
/// ends early by the database's clock, whichever workers began and continued it.
///
/// The clocks are set by libfaketime (Debian package faketime), which is loaded into the workers before the C library.
pub(crate) async fn skewed(form: Form, _rng: Rng) -> Report {
    let Some(library) = find_faketime() else {
        let reason = "not run: libfaketime is not installed (Debian and Ubuntu: apt-get install faketime)";
        let violations = form.pick(Vec::new(), vec![reason.to_owned()]);
        let notes = vec![reason.to_owned()];
        return Report {
            fault: "clocks an hour off",
            store: "postgres",
            violations,
            notes,
            ..Report::default()
        };
    };
    let mut deployment = Deployment::on_postgres(PostgresServer::shared(), form).await;
    for offset in CLOCK_OFFSETS {
        let faketime = format!("{:+}s", offset / 1_000_000);
        let environment = vec![
            ("LD_PRELOAD", library.display().to_string()),
            ("FAKETIME", faketime),
            // relative waits use the monotonic clock, which has no date
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
            ("DONT_FAKE_MONOTONIC", "1".to_owned()),
        ];
        deployment.start_worker(&WorkerOptions {
            calls: CallKind::Naps,
            environment,
            clock_offset: offset,
            ..WorkerOptions::orders(6)
        });
    }
    deployment.wait_for_registrations(CLOCK_OFFSETS.len()).await;
    for (number, offset) in CLOCK_OFFSETS.into_iter().enumerate() {
        let is_as_set = deployment.workers[number].clock_offset.abs_diff(offset) < HOUR_MICROS as u64 / 2;
        deployment.expect(is_as_set, || format!("worker {number} has the correct time"));
    }
    let mut impact =
        deployment.observe_fault(async |deployment| deployment.listen_for(form.seconds(6, 60)).await).await;
    // the clocks stay as they are: there is no recovery to measure
    impact.recovered_after = None;
    deployment.expect_no_new_registration(CLOCK_OFFSETS.len()).await;
    let store = stepfast::connect(&deployment.url).await.unwrap();
    let mut report = deployment.finish("clocks an hour off", 2, impact).await;
    if report.takeovers != 0 {
        report.violations.push(format!("{} executions were taken over", report.takeovers));
    }
    let naps = load_executions(&store, "nap").await;
    for nap in &naps {
        let output = nap.outcome.decode::<String>().unwrap_or_default();
        let slept = output
            .split_once(' ')
            .and_then(|(from, to)| Some(to.parse::<i64>().ok()? - from.parse::<i64>().ok()?));
        if slept.is_none_or(|slept| slept < NAP.as_micros() as i64) {
            report.violations.push(format!("{} slept {slept:?} µs instead of {NAP:?}", nap.workflow_id()));
        }
    }
    if naps.is_empty() {
        report.violations.push("no execution slept".to_owned());
    }
    report.notes.push(format!("{} sleeps, none of which ended early", naps.len()));
    report
}

/// Returns the path of libfaketime in its variant for programs with threads.
fn find_faketime() -> Option<PathBuf> {
    let folders = ["/usr/lib", "/usr/lib64", "/usr/local/lib"].map(PathBuf::from);
    let below = folders.iter().filter_map(|folder| folder.read_dir().ok()).flatten().flatten();
    let all: Vec<PathBuf> = below.map(|entry| entry.path()).chain(folders.iter().cloned()).collect();
    all.into_iter().map(|folder| folder.join("faketime/libfaketimeMT.so.1")).find(|path| path.is_file())
}
