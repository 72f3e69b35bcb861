//! A backlog in a queue with limits, and workers that are killed while they work on it.

use std::time::Duration;

use fastrand::Rng;
use futures_util::{StreamExt, TryStreamExt, stream};
use stepfast::queue::Queue;
use stepfast::{Client, Error, Workflow};

use crate::chaos::Form;
use crate::chaos::deployment::Deployment;
use crate::chaos::neighbour::NOT_OF_NEIGHBOUR;
use crate::chaos::report::Report;
use crate::chaos::throughput::FaultImpact;
use crate::chaos::worker_process::WorkerOptions;
use crate::fixtures::postgres_server::PostgresServer;

const WORKERS: usize = 3;
/// Limits on the number of running executions: in all, per key, and per worker.
const MAX_RUNNING: u32 = 60;
const MAX_RUNNING_PER_KEY: u32 = 3;
const MAX_RUNNING_PER_WORKER: u32 = 25;
const KEYS: u32 = 50;
/// Time from kill to kill, in milliseconds.
const LIFETIME_MILLIS: std::ops::Range<u64> = 200..1_500;

/// Maximum time to wait for an execution to end between two kills.
const PROGRESS_TIMEOUT: Duration = Duration::from_secs(20);

/// The number of running executions of all keys, times a thousand, plus the largest number of one key.
const RUNNING_SQL: &str = "SELECT CAST(coalesce(sum(n), 0) * 1000 + coalesce(max(n), 0) AS BIGINT) \
                       FROM (SELECT count(*) AS n FROM executions WHERE status = 2 AND queue = 'backlog' \
                             GROUP BY queue_key) AS running";
/// The largest number of slots of one worker.
const SLOTS_PER_WORKER_SQL: &str = "SELECT CAST(coalesce(max(n), 0) AS BIGINT) \
                          FROM (SELECT count(*) AS n FROM slots WHERE queue = 'backlog' GROUP BY worker_id) AS held";

/// Workers that process a backlog are killed and replaced. Every execution completes and is recorded once, and no
/// snapshot shows more running executions than the queue allows.
pub(crate) async fn on_postgres(form: Form, rng: Rng) -> Report {
    kill_workers(Deployment::on_postgres(PostgresServer::shared(), form).await, rng).await
}

/// The scenario on a SQLite file.
pub(crate) async fn on_sqlite(form: Form, rng: Rng) -> Report {
    kill_workers(Deployment::on_sqlite(form).await, rng).await
}

/// Fills the queue.
async fn fill_queue(deployment: &mut Deployment, items: u32) -> Result<(), Error> {
    let client = Client::open(stepfast::connect(&deployment.url).await?).await?;
    let queue = Queue::new("backlog")
        .concurrency(MAX_RUNNING)
        .key_concurrency(MAX_RUNNING_PER_KEY)
        .worker_concurrency(MAX_RUNNING_PER_WORKER);
    client.set_queue(&queue).await?;
    let order: Workflow<u32, String> = Workflow::named("order");
    let put = |n: u32| {
        // one key has a backlog until the end
        let key = if n.is_multiple_of(10) { KEYS } else { n % KEYS };
        let start =
            client.start(&order, n).workflow_id(workflow_id(n)).queue("backlog").key(format!("k{key}"));
        async move { start.await.map(|_| ()) }
    };
    stream::iter((0..items).map(put)).buffer_unordered(2_000).try_collect::<()>().await?;
    for n in 0..items {
        deployment.promises.add_line(&format!("started {}", workflow_id(n)));
    }
    client.shutdown(Duration::from_secs(20)).await
}

fn workflow_id(n: u32) -> String {
    format!("backlog-{n}")
}

async fn kill_workers(mut deployment: Deployment, mut rng: Rng) -> Report {
    let items = deployment.form.pick(1_500, 40_000);
    fill_queue(&mut deployment, items).await.unwrap();
    let options = WorkerOptions::default();
    deployment.start_workers(WORKERS, &options);
    let (mut kills, mut samples, mut peaks) = (0, 0, [0, 0, 0]);
    let unfinished = format!("SELECT count(*) FROM executions WHERE status < 4 AND {NOT_OF_NEIGHBOUR}");
    let ended = format!("SELECT count(*) FROM executions WHERE status >= 4 AND {NOT_OF_NEIGHBOUR}");
    // while there is a backlog
    while deployment.query_number(&unfinished).await.is_none_or(|count| count > i64::from(MAX_RUNNING)) {
        let before = deployment.query_number(&ended).await;
        let until = tokio::time::Instant::now() + Duration::from_millis(rng.u64(LIFETIME_MILLIS));
        // on a slow machine, no execution would end in so short a life
        let deadline = until + PROGRESS_TIMEOUT;
        while tokio::time::Instant::now() < until
            || tokio::time::Instant::now() < deadline && deployment.query_number(&ended).await == before
        {
            if let (Some(of_keys), Some(of_workers)) = (
                deployment.query_number(RUNNING_SQL).await,
                deployment.query_number(SLOTS_PER_WORKER_SQL).await,
            ) {
                let observed = [of_keys / 1000, of_keys % 1000, of_workers];
                peaks = std::array::from_fn(|i| peaks[i].max(observed[i]));
                samples += 1;
            }
            deployment.listen_for(Duration::from_millis(rng.u64(5..100))).await;
        }
        let running = deployment.running_workers();
        deployment.workers[running[rng.usize(0..running.len())]].kill();
        deployment.start_worker(&options);
        kills += 1;
    }
    let limits = [MAX_RUNNING, MAX_RUNNING_PER_KEY, MAX_RUNNING_PER_WORKER].map(i64::from);
    let is_kept = peaks.iter().zip(limits).all(|(peak, limit)| *peak <= limit);
    let summary =
        format!("at most {peaks:?} ran in all, per key and per worker, of {limits:?}, in {samples} samples");
    deployment.expect(is_kept, || summary.clone());
    deployment.expect(peaks[0] > 0, || "no sample shows a running execution".into());
    let roots = format!("SELECT count(*) FROM executions WHERE parent IS NULL AND {NOT_OF_NEIGHBOUR}");
    let is_all = deployment.query_number(&roots).await == Some(i64::from(items));
    deployment.expect(is_all, || "items are missing, or duplicated".into());
    let mut report = deployment.finish("SIGKILL with a backlog", kills, FaultImpact::default()).await;
    report.notes.push(summary);
    report
}
