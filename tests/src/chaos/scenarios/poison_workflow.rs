//! A workflow that kills its worker whenever it runs, among innocent ones.

use std::sync::Arc;

use fastrand::Rng;
use stepfast::payload::Payload;
use stepfast::{Failure, Key, Store};

use crate::Worker;
use crate::chaos::Form;
use crate::chaos::deployment::{Site, executions};
use crate::chaos::report::Report;
use crate::chaos::throughput::Dent;
use crate::chaos::worker_process::{Fate, MayEnd, Terms};
use crate::fixtures::builders::{queued, start, write};
use crate::fixtures::postgres_server::PostgresServer;

/// Executions that harm nobody.
const INNOCENT: u32 = 2000;
/// Workers that a supervisor keeps running.
const WORKERS: usize = 2;
/// After so many deaths somebody should have noticed; two of them are not yet suspicious, ten are `max_recoveries`.
const DEATHS: usize = 40;

/// One execution's step ends its process, and workers are started again and again: all others complete, and it
/// ends as failed, with a code of its own, once its recoveries are used up.
pub(crate) async fn on_sqlite(form: Form, _rng: Rng) -> Report {
    supervise(Site::sqlite(form)).await
}

/// The same where leases have to run out.
pub(crate) async fn on_postgres(form: Form, _rng: Rng) -> Report {
    supervise(Site::on(PostgresServer::shared(), form).await).await
}

async fn supervise(mut site: Site) -> Report {
    let store: Arc<dyn Store> = stepfast::connect(&site.url).await.unwrap();
    let mut worker = Worker::register(&store).await;
    let execution = |n: u32| {
        let workflow = if n == INNOCENT / 2 { "culprit" } else { "order" };
        let mut start = start(Key::mint(0), queued());
        (start.workflow, start.input) = (workflow.into(), Payload::encode(&n).unwrap());
        write(start)
    };
    let all: Vec<u32> = (0..=INNOCENT).collect();
    for some in all.chunks(500) {
        worker.apply(some.iter().copied().map(execution).collect()).await;
    }
    store.close(worker.id).await.unwrap();
    let terms = Terms { may_end: MayEnd::Aborting, ..Terms::default() };
    let going = "SELECT count(*) FROM executions WHERE status < 4";
    let dead = |site: &Site| site.hands.iter().filter(|hand| hand.fate == Fate::Dead).count();
    site.hire_some(WORKERS, &terms);
    while site.number(going).await != Some(0) {
        while site.working().len() < WORKERS {
            site.hire(&terms);
        }
        site.hear_for(std::time::Duration::from_millis(50)).await;
        if dead(&site) > DEATHS {
            site.expect(false, || format!("{DEATHS} workers have died, and it goes on"));
            break;
        }
    }
    let found = executions(&store, "culprit").await;
    let failure: Option<Failure> = found.first().and_then(|row| row.outcome.decode().ok());
    let is_own = failure.as_ref().is_some_and(|failure| failure.kind.starts_with("SF-"));
    site.expect(is_own, || format!("the culprit has no code of its own: {failure:?}"));
    let deaths = dead(&site) as u64;
    drop(store);
    let mut report = site.finish("a step aborts its worker", deaths, Dent::default()).await;
    report.notes.push(format!("the culprit ended with {failure:?}"));
    report
}
