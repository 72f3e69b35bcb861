//! Workers whose clocks are wrong.

use std::path::PathBuf;

use fastrand::Rng;

use crate::chaos::Form;
use crate::chaos::deployment::{Site, executions};
use crate::chaos::load::NAP;
use crate::chaos::report::Report;
use crate::chaos::worker::Calls;
use crate::chaos::worker_process::Terms;
use crate::fixtures::postgres_server::PostgresServer;

const HOUR: i64 = 3_600_000_000;
/// Clocks of the workers, ahead of the database's, in microseconds.
const AHEAD: [i64; 3] = [HOUR, 0, -HOUR];

/// One worker's clock is an hour ahead, one's an hour behind: nobody is taken over, and no sleep is over early by
/// the database's clock, whoever began it and whoever goes on.
///
/// The clocks are set by libfaketime (Debian package faketime), loaded into the workers before the C library.
pub(crate) async fn skewed(form: Form, _rng: Rng) -> Report {
    let Some(library) = library() else {
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
    let mut site = Site::on(PostgresServer::shared(), form).await;
    for ahead in AHEAD {
        let offset = format!("{:+}s", ahead / 1_000_000);
        let environment = vec![
            ("LD_PRELOAD", library.display().to_string()),
            ("FAKETIME", offset),
            // what waits for a time from now is not concerned: its clock has no date
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
            ("DONT_FAKE_MONOTONIC", "1".to_owned()),
        ];
        site.hire(&Terms { calls: Calls::Naps, environment, ahead, ..Terms::orders(6) });
    }
    site.until_registered(AHEAD.len()).await;
    for (number, ahead) in AHEAD.into_iter().enumerate() {
        let is_as_set = site.hands[number].ahead.abs_diff(ahead) < HOUR as u64 / 2;
        site.expect(is_as_set, || format!("worker {number} has the right time"));
    }
    let mut dent = site.seen_under(async |site| site.hear_for(form.seconds(6, 60)).await).await;
    // nothing to come back from: the clocks stay as they are
    dent.back = None;
    let ids = site.number("SELECT max(worker_id) FROM workers").await;
    site.expect(ids == Some(AHEAD.len() as i64), || format!("a worker registered anew: the last is {ids:?}"));
    let store = stepfast::connect(&site.url).await.unwrap();
    let mut report = site.finish("clocks an hour off", 2, dent).await;
    if report.takeovers != 0 {
        report.violations.push(format!("{} executions were taken over", report.takeovers));
    }
    let naps = executions(&store, "nap").await;
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
        report.violations.push("nobody slept".to_owned());
    }
    report.notes.push(format!("{} sleeps, none of them over early", naps.len()));
    report
}

/// Where libfaketime is, in the form for programs with threads.
fn library() -> Option<PathBuf> {
    let folders = ["/usr/lib", "/usr/lib64", "/usr/local/lib"].map(PathBuf::from);
    let below = folders.iter().filter_map(|folder| folder.read_dir().ok()).flatten().flatten();
    let all: Vec<PathBuf> = below.map(|entry| entry.path()).chain(folders.iter().cloned()).collect();
    all.into_iter().map(|folder| folder.join("faketime/libfaketimeMT.so.1")).find(|path| path.is_file())
}
