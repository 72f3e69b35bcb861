//! Transactions of other programs that stay open for a long time.

use fastrand::Rng;

use crate::chaos::Form;
use crate::chaos::connection::connect;
use crate::chaos::deployment::Deployment;
use crate::chaos::report::Report;
use crate::chaos::worker_process::WorkerOptions;
use crate::fixtures::postgres_server::PostgresServer;

const WORKERS: usize = 2;
/// Minimum share of the throughput while another program holds a snapshot, and the tolerance for a busy machine.
const MIN_THROUGHPUT_SHARE: f64 = 0.7;
const TOLERANCE: f64 = 0.9;

/// Another program has inserted an execution's workflow_id and does not commit. A start with this workflow_id waits,
/// and delays no other start. After the rollback, the execution is started.
pub(crate) async fn locked_id(form: Form, _rng: Rng) -> Report {
    let mut deployment = Deployment::on_postgres(PostgresServer::shared(), form).await;
    let worker = deployment.start_workers(WORKERS, &WorkerOptions::orders(8))[0];
    deployment.wait_for_registrations(WORKERS).await;
    let mut sql = connect(&deployment.url).await.unwrap();
    let impact = deployment
        .measure_fault(async |deployment| {
            let transaction = sql.transaction().await.unwrap();
            let insert = "INSERT INTO executions (created_at, status, key, workflow, workflow_id, input) \
                          VALUES (now(), 1, gen_random_uuid(), 'order', 'wanted', '')";
            transaction.execute(insert, &[]).await.unwrap();
            deployment.workers[worker].send_command("start wanted 7");
            deployment.listen_for(form.seconds(10, 180)).await;
            // other starts must have passed it in the meantime
            deployment.wait_for_ends(100).await;
            let is_held = !deployment.promises.has_started("wanted");
            deployment.expect(is_held, || "a start was acknowledged although it waits for a lock".into());
            transaction.rollback().await.unwrap();
            deployment
                .wait_until("the start that waited", |deployment| deployment.promises.has_started("wanted"))
                .await;
        })
        .await;
    deployment.expect(impact.during > 0.0, || "one waiting start delayed all others".into());
    deployment.finish("a workflow_id is locked", 1, impact).await
}

/// Another program holds a snapshot, so that no dead row can be removed. The throughput stays at 70 % or more.
pub(crate) async fn held_snapshot(form: Form, _rng: Rng) -> Report {
    let mut deployment = Deployment::on_postgres(PostgresServer::shared(), form).await;
    deployment.start_workers(WORKERS, &WorkerOptions::orders(8));
    deployment.wait_for_registrations(WORKERS).await;
    let mut sql = connect(&deployment.url).await.unwrap();
    let impact = deployment
        .measure_fault(async |deployment| {
            let level = tokio_postgres::IsolationLevel::RepeatableRead;
            let transaction = sql.build_transaction().isolation_level(level).start().await.unwrap();
            transaction.query_one("SELECT count(*) FROM executions", &[]).await.unwrap();
            deployment.listen_for(form.seconds(10, 180)).await;
            transaction.rollback().await.unwrap();
        })
        .await;
    if form == Form::Long {
        let is_enough = impact.during >= MIN_THROUGHPUT_SHARE * TOLERANCE * impact.before;
        deployment.expect(is_enough, || format!("a held snapshot cost more than 30 %: {impact:?}"));
    }
    deployment.finish("a snapshot is held", 1, impact).await
}
