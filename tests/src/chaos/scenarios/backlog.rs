//! A backlog in a queue with limits, and workers that are killed while they take from it.

use std::time::Duration;

use fastrand::Rng;
use futures_util::{StreamExt, TryStreamExt, stream};
use stepfast::queue::Queue;
use stepfast::{Client, Error, Workflow};

use crate::chaos::Form;
use crate::chaos::deployment::Site;
use crate::chaos::report::Report;
use crate::chaos::throughput::Dent;
use crate::chaos::worker_process::Terms;
use crate::fixtures::postgres_server::PostgresServer;

const WORKERS: usize = 3;
/// Most that may run: in all, of any one key, in any one worker.
const RUNNING: u32 = 60;
const OF_A_KEY: u32 = 3;
const IN_A_WORKER: u32 = 25;
const KEYS: u32 = 50;
/// How long it is from kill to kill, in milliseconds.
const LIFE: std::ops::Range<u64> = 200..1_500;

/// Something ends between two kills, unless that takes longer.
const PATIENCE: Duration = Duration::from_secs(20);

/// How many run at a time of all keys together, times a thousand, and the most that run of one.
const OF_KEYS: &str = "SELECT CAST(coalesce(sum(n), 0) * 1000 + coalesce(max(n), 0) AS BIGINT) \
                       FROM (SELECT count(*) AS n FROM executions WHERE status = 2 AND queue = 'backlog' \
                             GROUP BY queue_key) AS running";
/// The most that have a place in one worker.
const OF_WORKERS: &str = "SELECT CAST(coalesce(max(n), 0) AS BIGINT) \
                          FROM (SELECT count(*) AS n FROM slots GROUP BY worker_id) AS held";

/// Workers that work off a backlog are killed and replaced: everything in it is done and recorded once, and whenever
/// somebody looks no more run than the queue allows.
pub(crate) async fn on_postgres(form: Form, rng: Rng) -> Report {
    killed(Site::on(PostgresServer::shared(), form).await, rng).await
}

/// The same on a file.
pub(crate) async fn on_sqlite(form: Form, rng: Rng) -> Report {
    killed(Site::sqlite(form), rng).await
}

/// Fills the queue.
async fn fill(site: &mut Site, items: u32) -> Result<(), Error> {
    let client = Client::open(stepfast::connect(&site.url).await?).await?;
    let queue =
        Queue::new("backlog").concurrency(RUNNING).key_concurrency(OF_A_KEY).worker_concurrency(IN_A_WORKER);
    client.set_queue(&queue).await?;
    let order: Workflow<u32, String> = Workflow::named("order");
    let put = |n: u32| {
        // one key has a backlog until the end
        let key = if n.is_multiple_of(10) { KEYS } else { n % KEYS };
        let start = client.start(&order, n).workflow_id(id(n)).queue("backlog").key(format!("k{key}"));
        async move { start.await.map(|_| ()) }
    };
    stream::iter((0..items).map(put)).buffer_unordered(2_000).try_collect::<()>().await?;
    for n in 0..items {
        site.told.hear(&format!("started {}", id(n)));
    }
    client.shutdown(Duration::from_secs(20)).await
}

fn id(n: u32) -> String {
    format!("backlog-{n}")
}

async fn killed(mut site: Site, mut rng: Rng) -> Report {
    let items = site.form.pick(1_500, 200_000);
    fill(&mut site, items).await.unwrap();
    let terms = Terms::default();
    site.hire_some(WORKERS, &terms);
    let (mut kills, mut samples, mut most) = (0, 0, [0, 0, 0]);
    let left = "SELECT count(*) FROM executions WHERE status < 4";
    let over = "SELECT count(*) FROM executions WHERE status >= 4";
    // as long as there is a backlog
    while site.number(left).await.is_none_or(|left| left > i64::from(RUNNING)) {
        let before = site.number(over).await;
        let until = tokio::time::Instant::now() + Duration::from_millis(rng.u64(LIFE));
        // where everything is slow nobody would get anywhere in so short a life
        let at_last = until + PATIENCE;
        while tokio::time::Instant::now() < until
            || tokio::time::Instant::now() < at_last && site.number(over).await == before
        {
            if let (Some(of_keys), Some(of_workers)) =
                (site.number(OF_KEYS).await, site.number(OF_WORKERS).await)
            {
                let seen = [of_keys / 1000, of_keys % 1000, of_workers];
                most = std::array::from_fn(|i| most[i].max(seen[i]));
                samples += 1;
            }
            site.hear_for(Duration::from_millis(rng.u64(5..100))).await;
        }
        let working = site.working();
        site.hands[working[rng.usize(0..working.len())]].kill();
        site.hire(&terms);
        kills += 1;
    }
    let limits = [RUNNING, OF_A_KEY, IN_A_WORKER].map(i64::from);
    let is_kept = most.iter().zip(limits).all(|(most, limit)| *most <= limit);
    let seen =
        format!("{most:?} ran at most in all, of a key and in a worker, of {limits:?}, in {samples} looks");
    site.expect(is_kept, || seen.clone());
    site.expect(most[0] > 0, || "nobody ever saw anything run".into());
    let is_all =
        site.number("SELECT count(*) FROM executions WHERE parent IS NULL").await == Some(i64::from(items));
    site.expect(is_all, || "items were lost, or doubled".into());
    let mut report = site.finish("SIGKILL, a backlog is left", kills, Dent::default()).await;
    report.notes.push(seen);
    report
}
