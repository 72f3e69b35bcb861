//! Failovers to a synchronous standby under load: nothing that was acknowledged is lost.

use std::time::Duration;

use fastrand::Rng;
use tokio::time::Instant;

use crate::chaos::Form;
use crate::chaos::deployment::Deployment;
use crate::chaos::report::Report;
use crate::chaos::scenarios::outages::finish_without_takeovers;
use crate::chaos::worker_process::WorkerOptions;
use crate::fixtures::postgres_cluster::PostgresCluster;

const WORKERS: usize = 3;
/// Maximum time for which two primaries run, in milliseconds.
const MAX_OVERLAP_MILLIS: u64 = 1_500;
/// Number of ends of each worker after a failover.
const ENDS_OF_EACH: u64 = 5;

/// The primary ends as in a crash under load, and its synchronous standby takes its place, with a new standby in the place
/// of the old primary. In the long form, this happens again and again, and every second time the standby is promoted while
/// the old primary still runs. Nothing that was acknowledged is lost, no worker is taken over, and no call fails.
pub(crate) async fn on_postgres(form: Form, mut rng: Rng) -> Report {
    let mut cluster = PostgresCluster::start().await;
    let name = cluster.primary().create_database("chaos").await;
    let mut deployment = Deployment::at(cluster.database_url(&name), form).await;
    deployment.start_workers(WORKERS, &WorkerOptions::orders(8));
    deployment.wait_for_registrations(WORKERS).await;
    let times = form.pick(1, 10);
    let (mut slowest, mut rebuilding) = (Duration::ZERO, Duration::ZERO);
    let impact = deployment
        .measure_fault(async |deployment| {
            for n in 0..times {
                deployment.wait_for_ends(rng.usize(1..form.pick(50, 500))).await;
                let began = Instant::now();
                deployment
                    .during_outage(async |deployment| {
                        if n % 2 == 0 {
                            cluster.fail_over();
                        } else {
                            let overlap = Duration::from_millis(rng.u64(0..MAX_OVERLAP_MILLIS));
                            cluster.promote_early(deployment.listen_for(overlap)).await;
                        }
                    })
                    .await;
                deployment.wait_for_ends_of_each(ENDS_OF_EACH).await;
                slowest = slowest.max(began.elapsed());
                deployment.check().await;
                let began = Instant::now();
                cluster.rebuild_standby().await;
                rebuilding = rebuilding.max(began.elapsed());
                deployment.wait_for_ends_of_each(ENDS_OF_EACH).await;
            }
        })
        .await;
    deployment.check().await;
    let mut report = finish_without_takeovers(deployment, "failover to a standby", times, impact).await;
    report.notes.push(format!(
        "every worker had {ENDS_OF_EACH} results at most {:.1} s after a failover began; a new standby took at most {:.1} s",
        slowest.as_secs_f64(),
        rebuilding.as_secs_f64()
    ));
    report
}
