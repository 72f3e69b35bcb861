//! Transactions of others that stay open for a long time.

use fastrand::Rng;

use crate::chaos::Form;
use crate::chaos::deployment::{Site, connect};
use crate::chaos::report::Report;
use crate::chaos::worker_process::Terms;
use crate::fixtures::postgres_server::PostgresServer;

const WORKERS: usize = 2;
/// Least part of the pace that is left while somebody holds a snapshot; and what a busy machine may take of it.
const LEAST: f64 = 0.7;
const TOLERANCE: f64 = 0.9;

/// Somebody has inserted an execution's id and does not commit: who starts that id waits, alone. When the other
/// one gives up, it is started.
pub(crate) async fn locked_id(form: Form, _rng: Rng) -> Report {
    let mut site = Site::on(PostgresServer::shared(), form).await;
    let worker = site.hire_some(WORKERS, &Terms::orders(8))[0];
    site.until_registered(WORKERS).await;
    let mut sql = connect(&site.url).await.unwrap();
    let dent = site
        .struck(async |site| {
            let foreign = sql.transaction().await.unwrap();
            let insert = "INSERT INTO executions (created_at, status, key, workflow, workflow_id, input) \
                          VALUES (now(), 1, gen_random_uuid(), 'order', 'wanted', '')";
            foreign.execute(insert, &[]).await.unwrap();
            site.hands[worker].ask("start wanted 7");
            site.hear_for(form.seconds(10, 180)).await;
            // not for lack of time: others have passed it by
            site.more_ends(100).await;
            let is_held = !site.told.has_started("wanted");
            site.expect(is_held, || "a start was acknowledged that waits for somebody else".into());
            foreign.rollback().await.unwrap();
            site.hear_until("the start that had to wait", |site| site.told.has_started("wanted")).await;
        })
        .await;
    site.expect(dent.during > 0.0, || "one start that waits held up all others".into());
    site.finish("an id is locked for long", 1, dent).await
}

/// Somebody holds a snapshot, so that no dead row can be removed: it all goes on at 70 % of the pace, or more.
pub(crate) async fn held_snapshot(form: Form, _rng: Rng) -> Report {
    let mut site = Site::on(PostgresServer::shared(), form).await;
    site.hire_some(WORKERS, &Terms::orders(8));
    site.until_registered(WORKERS).await;
    let mut sql = connect(&site.url).await.unwrap();
    let dent = site
        .struck(async |site| {
            let level = tokio_postgres::IsolationLevel::RepeatableRead;
            let foreign = sql.build_transaction().isolation_level(level).start().await.unwrap();
            foreign.query_one("SELECT count(*) FROM executions", &[]).await.unwrap();
            site.hear_for(form.seconds(10, 180)).await;
            foreign.rollback().await.unwrap();
        })
        .await;
    if form == Form::Long {
        let is_enough = dent.during >= LEAST * TOLERANCE * dent.before;
        site.expect(is_enough, || format!("a foreign snapshot cost more than 30 %: {dent:?}"));
    }
    site.finish("a snapshot is held for long", 1, dent).await
}
