//! Failures of the database, or of the network path to it: no worker dies of them.

use std::time::Duration;

use fastrand::Rng;
use tokio::time::Instant;

use crate::chaos::Form;
use crate::chaos::connection::connect;
use crate::chaos::deployment::Deployment;
use crate::chaos::report::Report;
use crate::chaos::throughput::FaultImpact;
use crate::chaos::worker_process::WorkerOptions;
use crate::faults::lossy_proxy::LossyProxy;
use crate::fixtures::postgres_server::PostgresServer;

const WORKERS: usize = 3;

/// Deploys workers on `server`, and waits until all are registered.
async fn deploy_workers(server: &PostgresServer, form: Form) -> Deployment {
    let mut deployment = Deployment::on_postgres(server, form).await;
    deployment.start_workers(WORKERS, &WorkerOptions::orders(8));
    deployment.wait_for_registrations(WORKERS).await;
    deployment
}

/// Finishes the deployment, and checks that no worker was taken over.
pub(super) async fn finish_without_takeovers(
    mut deployment: Deployment,
    fault: &'static str,
    times: u64,
    impact: FaultImpact,
) -> Report {
    deployment.expect_no_new_registration(WORKERS).await;
    let mut report = deployment.finish(fault, times, impact).await;
    if report.takeovers != 0 {
        report.violations.push(format!("{} executions were taken over", report.takeovers));
    }
    report
}

/// Postgres crashes and returns every few seconds. No worker takes another one over, and no call fails.
pub(crate) async fn restarts(form: Form, mut rng: Rng) -> Report {
    let server = PostgresServer::start();
    let mut deployment = deploy_workers(&server, form).await;
    let times = form.pick(3, 20);
    let impact = deployment
        .measure_fault(async |deployment| {
            for n in 0..times {
                deployment
                    .during_outage(async |_| {
                        server.stop();
                        server.start_again();
                    })
                    .await;
                deployment.wait_for_ends(rng.usize(20..form.pick(80, 300))).await;
                if n % 4 == 3 {
                    deployment.check().await;
                }
            }
        })
        .await;
    finish_without_takeovers(deployment, "Postgres crashes", times, impact).await
}

/// Postgres is down for much longer than a lease. No worker takes another one over, and no call fails.
pub(crate) async fn long_outage(form: Form, _rng: Rng) -> Report {
    let server = PostgresServer::start();
    let mut deployment = deploy_workers(&server, form).await;
    let impact = deployment
        .measure_fault(async |deployment| {
            deployment
                .during_outage(async |deployment| {
                    server.stop();
                    // longer than two leases
                    deployment.listen_for(form.seconds(8, 60)).await;
                    server.start_again();
                })
                .await;
        })
        .await;
    finish_without_takeovers(deployment, "Postgres is down", 1, impact).await
}

const BACKEND_PIDS_SQL: &str = "SELECT pid FROM pg_stat_activity \
                    WHERE datname = current_database() AND application_name LIKE 'stepfast %'";

/// Every connection of the first service is terminated, one by one and then all at once. No call fails, and no worker is taken over.
pub(crate) async fn terminated(form: Form, mut rng: Rng) -> Report {
    let mut deployment = deploy_workers(PostgresServer::shared(), form).await;
    let sql = connect(&deployment.url).await.unwrap();
    let mut times = 0;
    let impact = deployment
        .measure_fault(async |deployment| {
            for _ in 0..form.pick(1, 5) {
                let mut pids: Vec<i32> =
                    sql.query(BACKEND_PIDS_SQL, &[]).await.unwrap().iter().map(|row| row.get(0)).collect();
                rng.shuffle(&mut pids);
                for pid in pids {
                    sql.execute("SELECT pg_terminate_backend($1)", &[&pid]).await.unwrap();
                    times += 1;
                    deployment.wait_for_ends(rng.usize(1..20)).await;
                }
                let all = format!("SELECT pg_terminate_backend(pid) FROM ({BACKEND_PIDS_SQL}) AS ours");
                times += sql.execute(&all, &[]).await.unwrap();
                deployment.wait_for_ends(50).await;
                deployment.check().await;
            }
        })
        .await;
    finish_without_takeovers(deployment, "connections are terminated", times, impact).await
}

/// Replies to COMMIT are dropped with their connection, or delayed, and messages are truncated. Every outcome becomes
/// known, and nothing is recorded twice.
pub(crate) async fn lossy(form: Form, rng: Rng) -> Report {
    let mut deployment = Deployment::on_postgres(PostgresServer::shared(), form).await;
    let proxy = LossyProxy::start(&deployment.url, rng).await;
    let options = WorkerOptions { url: Some(proxy.url(&deployment.url)), ..WorkerOptions::orders(8) };
    deployment.start_workers(WORKERS, &options);
    deployment.wait_for_registrations(WORKERS).await;
    let wanted = form.pick([5, 2, 5], [200, 50, 200]);
    let impact = deployment
        .measure_fault(async |deployment| {
            proxy.set_lossy(true);
            let until = Instant::now() + form.seconds(120, 600);
            while proxy.fault_counts().iter().zip(wanted).any(|(done, wanted)| *done < wanted) {
                deployment.listen_for(Duration::from_millis(100)).await;
                if Instant::now() > until {
                    deployment.expect(false, || "the proxy injected too few faults".into());
                    break;
                }
            }
            proxy.set_lossy(false);
        })
        .await;
    let counts = proxy.fault_counts();
    let [dropped, delayed, cut] = counts;
    let mut report =
        deployment.finish("replies dropped, delayed, truncated", counts.iter().sum(), impact).await;
    report
        .notes
        .push(format!("{dropped} replies to COMMIT dropped, {delayed} delayed, {cut} messages truncated"));
    report
}
