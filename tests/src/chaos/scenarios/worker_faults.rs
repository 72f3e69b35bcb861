//! Workers that are killed, and workers that are stopped.

use fastrand::Rng;
use rustix::process::Signal;
use tokio::time::Instant;

use crate::chaos::Form;
use crate::chaos::deployment::Deployment;
use crate::chaos::report::Report;
use crate::chaos::worker_process::WorkerOptions;
use crate::fixtures::pooler::{Pooler, PreparedStatements};
use crate::fixtures::postgres_server::PostgresServer;

const WORKERS: usize = 3;

/// Workers are killed at random under load, sometimes all at once, and replaced. No acknowledged work is lost,
/// everything is recorded once, and other workers complete the executions.
pub(crate) async fn killed_on_postgres(form: Form, rng: Rng) -> Report {
    let deployment = Deployment::on_postgres(PostgresServer::shared(), form).await;
    kill_workers(deployment, WorkerOptions::orders(8), form.pick(4, 40), rng).await
}

/// The scenario behind a pooler that assigns a server connection to each transaction, and that keeps track of prepared
/// statements if it can.
pub(crate) async fn killed_behind_pooler(form: Form, rng: Rng) -> Report {
    let deployment = Deployment::on_postgres(PostgresServer::shared(), form).await;
    let statements = *PreparedStatements::supported().last().unwrap();
    let url = Some(Pooler::shared(statements).store_url(&deployment.url, true));
    let options = WorkerOptions { url, ..WorkerOptions::orders(8) };
    let mut report = kill_workers(deployment, options, form.pick(4, 40), rng).await;
    report.notes.push(format!("prepared statements are {statements:?}"));
    report
}

/// The scenario on a SQLite file.
pub(crate) async fn killed_on_sqlite(form: Form, rng: Rng) -> Report {
    kill_workers(Deployment::on_sqlite(form).await, WorkerOptions::orders(8), form.pick(8, 100), rng).await
}

async fn kill_workers(
    mut deployment: Deployment,
    options: WorkerOptions,
    kills: u64,
    mut rng: Rng,
) -> Report {
    deployment.start_workers(WORKERS, &options);
    let mut done = 0;
    let impact = deployment
        .measure_fault(async |deployment| {
            while done < kills {
                let running = deployment.running_workers();
                let all = rng.u8(0..6) == 0;
                let chosen = running[rng.usize(0..running.len())];
                for number in running.into_iter().filter(|number| all || *number == chosen) {
                    deployment.workers[number].kill();
                    deployment.start_worker(&options);
                    done += 1;
                }
                deployment.wait_for_ends(rng.usize(1..200)).await;
                if rng.u8(0..4) == 0 {
                    deployment.check().await;
                }
            }
        })
        .await;
    deployment.finish("SIGKILL of random workers", done, impact).await
}

/// A worker is stopped for longer than its lease, taken over, and continued. Its pending flushes are fenced, no step is
/// recorded twice, and it registers again and runs executions.
pub(crate) async fn stopped_on_postgres(form: Form, mut rng: Rng) -> Report {
    let mut deployment = Deployment::on_postgres(PostgresServer::shared(), form).await;
    deployment.start_workers(WORKERS, &WorkerOptions::orders(8));
    deployment.wait_for_registrations(WORKERS).await;
    let times = form.pick(1, 10);
    let impact = deployment
        .measure_fault(async |deployment| {
            for _ in 0..times {
                let number = rng.usize(0..WORKERS);
                deployment.workers[number].signal(Signal::STOP);
                deployment.wait_for_registrations(WORKERS - 1).await;
                // other workers run its executions
                deployment.wait_for_ends(50).await;
                deployment.workers[number].signal(Signal::CONT);
                deployment.wait_for_registrations(WORKERS).await;
            }
        })
        .await;
    deployment.wait_for_ends_of_each(20).await;
    deployment.check().await;
    let recovered = deployment.query_number("SELECT count(*) FROM executions WHERE recoveries > 0").await;
    deployment.expect(recovered > Some(0), || "a stopped worker had no executions to recover".into());
    deployment.finish("SIGSTOP beyond the lease", times, impact).await
}

/// A stopped worker on a SQLite file keeps its executions until it continues or dies.
pub(crate) async fn stopped_on_sqlite(form: Form, mut rng: Rng) -> Report {
    let mut deployment = Deployment::on_sqlite(form).await;
    deployment.start_workers(WORKERS, &WorkerOptions::orders(4));
    deployment.wait_for_registrations(WORKERS).await;
    let times = form.pick(2, 6);
    let stopped = form.seconds(3, 15);
    let impact = deployment
        .measure_fault(async |deployment| {
            for _ in 0..times {
                let number = rng.usize(0..WORKERS);
                deployment.workers[number].signal(Signal::STOP);
                let since = Instant::now();
                // flushes that had begun end within this time
                deployment.listen_for(form.seconds(1, 5)).await;
                let before = deployment.throughput.end_count();
                deployment.listen_for(stopped).await;
                deployment.workers[number].signal(Signal::CONT);
                if deployment.throughput.end_count() == before {
                    // a worker that is stopped within a transaction blocks all others
                    deployment.excuse_neighbour(since);
                }
                deployment.wait_for_ends_of_each(5).await;
            }
        })
        .await;
    let holds =
        deployment.query_number("SELECT count(*) FROM executions WHERE recoveries > 0").await == Some(0);
    deployment.expect(holds, || "a stopped worker was taken over".into());
    deployment.expect_no_new_registration(WORKERS).await;
    // a stopped worker may also die
    deployment.workers[0].signal(Signal::STOP);
    deployment.workers[0].kill();
    deployment.wait_for_registrations(WORKERS - 1).await;
    deployment.finish("SIGSTOP", times, impact).await
}
