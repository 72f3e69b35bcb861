//! The database or the way to it fails: nobody is lost by that.

use std::time::Duration;

use fastrand::Rng;
use tokio::time::Instant;

use crate::chaos::Form;
use crate::chaos::deployment::{Site, connect};
use crate::chaos::report::Report;
use crate::chaos::throughput::Dent;
use crate::chaos::worker_process::Terms;
use crate::faults::lossy_proxy::LossyProxy;
use crate::fixtures::postgres_server::PostgresServer;

const WORKERS: usize = 3;

/// Workers on `server` that have all begun.
async fn workers(server: &PostgresServer, form: Form) -> Site {
    let mut site = Site::on(server, form).await;
    site.hire_some(WORKERS, &Terms::orders(8));
    site.until_registered(WORKERS).await;
    site
}

/// Nobody was taken over.
async fn finish(mut site: Site, fault: &'static str, times: u64, dent: Dent) -> Report {
    let ids = site.number("SELECT max(worker_id) FROM workers").await;
    site.expect(ids == Some(WORKERS as i64), || format!("a worker registered anew: the last is {ids:?}"));
    let mut report = site.finish(fault, times, dent).await;
    if report.takeovers != 0 {
        report.violations.push(format!("{} executions were taken over", report.takeovers));
    }
    report
}

/// Postgres crashes and comes back every few seconds: nobody takes anybody over, and nothing fails.
pub(crate) async fn restarts(form: Form, mut rng: Rng) -> Report {
    let server = PostgresServer::start();
    let mut site = workers(&server, form).await;
    let times = form.pick(3, 20);
    let dent = site
        .struck(async |site| {
            for n in 0..times {
                server.stop();
                server.start_again();
                site.more_ends(rng.usize(20..form.pick(80, 300))).await;
                if n % 4 == 3 {
                    site.check().await;
                }
            }
        })
        .await;
    finish(site, "Postgres crashes", times, dent).await
}

/// Postgres is away for much longer than a lease: the same.
pub(crate) async fn away(form: Form, _rng: Rng) -> Report {
    let server = PostgresServer::start();
    let mut site = workers(&server, form).await;
    let dent = site
        .struck(async |site| {
            server.stop();
            // longer than two leases
            site.hear_for(form.seconds(8, 60)).await;
            server.start_again();
        })
        .await;
    finish(site, "Postgres is away", 1, dent).await
}

const PIDS: &str = "SELECT pid FROM pg_stat_activity \
                    WHERE datname = current_database() AND application_name LIKE 'stepfast %'";

/// Every connection is terminated, one after the other and then all at once: nothing fails, nobody is lost.
pub(crate) async fn terminated(form: Form, mut rng: Rng) -> Report {
    let mut site = workers(PostgresServer::shared(), form).await;
    let sql = connect(&site.url).await.unwrap();
    let mut times = 0;
    let dent = site
        .struck(async |site| {
            for _ in 0..form.pick(1, 5) {
                let mut pids: Vec<i32> =
                    sql.query(PIDS, &[]).await.unwrap().iter().map(|row| row.get(0)).collect();
                rng.shuffle(&mut pids);
                for pid in pids {
                    sql.execute("SELECT pg_terminate_backend($1)", &[&pid]).await.unwrap();
                    times += 1;
                    site.more_ends(rng.usize(1..20)).await;
                }
                let all = format!("SELECT pg_terminate_backend(pid) FROM ({PIDS}) AS ours");
                times += sql.execute(&all, &[]).await.unwrap();
                site.more_ends(50).await;
                site.check().await;
            }
        })
        .await;
    finish(site, "connections are terminated", times, dent).await
}

/// Replies to COMMIT get lost with their connection, or come late; messages end in the middle: every outcome is
/// found out, and nothing is recorded twice.
pub(crate) async fn lossy(form: Form, rng: Rng) -> Report {
    let mut site = Site::on(PostgresServer::shared(), form).await;
    let proxy = LossyProxy::start(&site.url, rng).await;
    let terms = Terms { url: Some(proxy.url(&site.url)), ..Terms::orders(8) };
    site.hire_some(WORKERS, &terms);
    site.until_registered(WORKERS).await;
    let wanted = form.pick([5, 2, 5], [200, 50, 200]);
    let dent = site
        .struck(async |site| {
            proxy.set_lossy(true);
            let until = Instant::now() + form.seconds(120, 600);
            while proxy.fault_counts().iter().zip(wanted).any(|(done, wanted)| *done < wanted) {
                site.hear_for(Duration::from_millis(100)).await;
                if Instant::now() > until {
                    site.expect(false, || "the network has lost too little".into());
                    break;
                }
            }
            proxy.set_lossy(false);
        })
        .await;
    let struck = proxy.fault_counts();
    let [dropped, stalled, cut] = struck;
    let mut report = site.finish("replies lost, late, torn", struck.iter().sum(), dent).await;
    report.notes.push(format!("{dropped} replies to COMMIT lost, {stalled} late, {cut} messages torn"));
    report
}
