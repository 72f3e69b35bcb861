//! A workflow that kills its worker whenever it runs, among harmless workflows.

use std::sync::Arc;

use fastrand::Rng;
use stepfast::payload::Payload;
use stepfast::{Failure, Key, Store};

use crate::Worker;
use crate::chaos::Form;
use crate::chaos::deployment::{Deployment, load_executions};
use crate::chaos::neighbour::NOT_OF_NEIGHBOUR;
use crate::chaos::report::Report;
use crate::chaos::throughput::FaultImpact;
use crate::chaos::worker_process::{AllowedExit, ProcessState, WorkerOptions};
use crate::fixtures::builders::{queued, start, write};
use crate::fixtures::postgres_server::PostgresServer;

/// Number of executions that do no harm.
const INNOCENT_EXECUTIONS: u32 = 2000;
/// Number of workers that a supervisor keeps running.
const WORKERS: usize = 2;
/// Maximum number of deaths until the workflow is stopped: two of them are not yet suspicious, ten are
/// `max_recoveries`.
const MAX_DEATHS: usize = 40;

/// The step of one execution aborts its process, and dead workers are replaced. All others complete, and this execution
/// ends as failed with an error code when its recoveries are used up.
pub(crate) async fn on_sqlite(form: Form, _rng: Rng) -> Report {
    supervise(Deployment::on_sqlite(form).await).await
}

/// The scenario on Postgres, where leases must expire.
pub(crate) async fn on_postgres(form: Form, _rng: Rng) -> Report {
    supervise(Deployment::on_postgres(PostgresServer::shared(), form).await).await
}

async fn supervise(mut deployment: Deployment) -> Report {
    let store: Arc<dyn Store> = stepfast::connect(&deployment.url).await.unwrap();
    let mut worker = Worker::register(&store).await;
    let execution = |n: u32| {
        let workflow = if n == INNOCENT_EXECUTIONS / 2 { "poison" } else { "order" };
        let mut start = start(Key::mint(0), queued());
        (start.workflow, start.input) = (workflow.into(), Payload::encode(&n).unwrap());
        write(start)
    };
    let all: Vec<u32> = (0..=INNOCENT_EXECUTIONS).collect();
    for chunk in all.chunks(500) {
        worker.apply(chunk.iter().copied().map(execution).collect()).await;
    }
    store.close(worker.id).await.unwrap();
    let options = WorkerOptions { allowed_exit: AllowedExit::Abort, ..WorkerOptions::default() };
    let unfinished = format!("SELECT count(*) FROM executions WHERE status < 4 AND {NOT_OF_NEIGHBOUR}");
    let dead = |deployment: &Deployment| {
        deployment.workers.iter().filter(|process| process.state == ProcessState::Exited).count()
    };
    deployment.start_workers(WORKERS, &options);
    while deployment.query_number(&unfinished).await != Some(0) {
        while deployment.running_workers().len() < WORKERS {
            deployment.start_worker(&options);
        }
        deployment.listen_for(std::time::Duration::from_millis(50)).await;
        if dead(&deployment) > MAX_DEATHS {
            deployment
                .expect(false, || format!("{MAX_DEATHS} workers have died, and the workflow still runs"));
            break;
        }
    }
    let found = load_executions(&store, "poison").await;
    let failure: Option<Failure> = found.first().and_then(|row| row.outcome.decode().ok());
    let is_own = failure.as_ref().is_some_and(|failure| failure.kind.starts_with("SF-"));
    deployment.expect(is_own, || format!("the poison workflow failed without an error code: {failure:?}"));
    let deaths = dead(&deployment) as u64;
    drop(store);
    let mut report = deployment.finish("a step aborts its worker", deaths, FaultImpact::default()).await;
    report.notes.push(format!("the poison workflow ended with {failure:?}"));
    report
}
