//! Workers that are killed, and workers that are stopped.

use std::time::Duration;

use fastrand::Rng;
use rustix::process::Signal;

use crate::chaos::Form;
use crate::chaos::deployment::Deployment;
use crate::chaos::report::Report;
use crate::chaos::worker_process::WorkerOptions;
use crate::fixtures::postgres_server::PostgresServer;

const WORKERS: usize = 3;

/// Workers are killed at random under load, sometimes all at once, and replaced. No acknowledged work is lost,
/// everything is recorded once, and other workers complete the executions.
pub(crate) async fn killed_on_postgres(form: Form, rng: Rng) -> Report {
    let deployment = Deployment::on_postgres(PostgresServer::shared(), form).await;
    kill_workers(deployment, form.pick(4, 40), rng).await
}

/// The scenario on a SQLite file.
pub(crate) async fn killed_on_sqlite(form: Form, rng: Rng) -> Report {
    kill_workers(Deployment::on_sqlite(form), form.pick(8, 100), rng).await
}

async fn kill_workers(mut deployment: Deployment, kills: u64, mut rng: Rng) -> Report {
    let options = WorkerOptions::orders(8);
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
    let mut deployment = Deployment::on_sqlite(form);
    deployment.start_workers(WORKERS, &WorkerOptions::orders(4));
    deployment.wait_for_registrations(WORKERS).await;
    let times = form.pick(2, 6);
    let stopped = form.pick(Duration::from_secs(4), Duration::from_secs(20));
    let impact = deployment
        .measure_fault(async |deployment| {
            for _ in 0..times {
                let number = rng.usize(0..WORKERS);
                deployment.workers[number].signal(Signal::STOP);
                // a worker that is stopped within a transaction blocks all others
                deployment.listen_for(stopped).await;
                deployment.workers[number].signal(Signal::CONT);
                deployment.wait_for_ends_of_each(5).await;
            }
        })
        .await;
    let holds =
        deployment.query_number("SELECT count(*) FROM executions WHERE recoveries > 0").await == Some(0);
    deployment.expect(holds, || "a stopped worker was taken over".into());
    let holds = deployment.query_number("SELECT max(worker_id) FROM workers").await == Some(WORKERS as i64);
    deployment.expect(holds, || "a worker registered again".into());
    // a stopped worker may also die
    deployment.workers[0].signal(Signal::STOP);
    deployment.workers[0].kill();
    deployment
        .wait_for_number("the dead worker is taken over", "SELECT count(*) FROM workers", |it| it == 2)
        .await;
    deployment.finish("SIGSTOP", times, impact).await
}
