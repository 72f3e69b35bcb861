//! A large batch under SIGKILL of the process that submits it and of the workers that run it, on SQLite and Postgres. The
//! processes are this test binary, started again with a role.
//!
//! `STEPFAST_BATCH_KILLS=long` submits a million items instead of 20,000, and kills more often. `STEPFAST_BATCH_KILLS_SEED`
//! repeats the choices of a run.

#![allow(clippy::unwrap_used, clippy::print_stdout)] // the output belongs to the test

use std::time::Duration;

use futures_util::TryStreamExt;
use stepfast::store::{Detail, ExecutionId};
use stepfast::{BatchHandle, Client, Context, Engine, Failure, Workflow};
use stepfast_tests::chaos::Form;
use stepfast_tests::crash::harness::fresh_url;
use stepfast_tests::crash::role_process::{RoleProcess, peak_memory};
use stepfast_tests::engine::run_within;
use tempfile::TempDir;

const ROLE: &str = "STEPFAST_BATCH_KILLS_ROLE";
const URL: &str = "STEPFAST_BATCH_KILLS_URL";
const ITEMS: &str = "STEPFAST_BATCH_KILLS_ITEMS";
const BATCH_ID: &str = "large";
/// One of this many items has a step.
const STEP_EVERY: u64 = 50;
/// Number of processes that run items.
const WORKERS: usize = 2;
/// Maximum memory of each process at any time, in KiB: 500 MB.
const MAX_MEMORY_KIB: u64 = 500_000;
/// Number of bundles that the check loads at a time.
const PAGE_BUNDLES: u64 = 64;
/// Maximum number of databases on which processes are killed.
const MAX_DATABASES: u32 = 20;
const TEST_TIMEOUT: Duration = Duration::from_mins(20);

/// The size of a run.
#[derive(Clone, Copy)]
struct Scale {
    items: u64,
    kills: u32,
    /// Maximum time between two kills.
    max_pause: Duration,
}

impl Scale {
    fn chosen() -> Self {
        Form::from_variable("STEPFAST_BATCH_KILLS").pick(
            Self { items: 20_000, kills: 6, max_pause: Duration::from_millis(300) },
            Self { items: 1_000_000, kills: 30, max_pause: Duration::from_secs(2) },
        )
    }
}

/// The entry point of the processes. Does nothing when the suite runs it.
#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let url = std::env::var(URL).unwrap();
    let items = std::env::var(ITEMS).unwrap().parse().unwrap();
    let run = run_within(TEST_TIMEOUT, move |runtime| {
        runtime.block_on(async {
            match &*role {
                "submitter" => submit(&url, items).await,
                "worker" => work(&url).await,
                role => panic!("{role}"),
            }
        });
    });
    run.unwrap();
}

fn workflow() -> Workflow<u64, u64> {
    Workflow::new("item", |mut cx: Context, x: u64| async move {
        if x.is_multiple_of(STEP_EVERY) {
            cx.step("step", async || Ok::<_, Failure>(x)).await?;
        }
        Ok::<_, Failure>(output(x))
    })
}

fn output(x: u64) -> u64 {
    3 * x + 1
}

async fn submit(url: &str, items: u64) {
    let client = Client::open(stepfast::connect(url).await.unwrap()).await.unwrap();
    client.submit_batch(&workflow(), 0..items).batch_id(BATCH_ID).await.unwrap();
    client.shutdown(Duration::from_secs(10)).await.unwrap();
    let memory = peak_memory(std::process::id());
    assert!(memory < MAX_MEMORY_KIB, "the submission took {memory} KiB");
}

async fn work(url: &str) {
    let engine = Engine::builder(stepfast::connect(url).await.unwrap());
    let _engine = engine.register(&workflow()).open().await.unwrap();
    std::future::pending::<()>().await;
}

/// The results of a run on one database.
#[derive(Default)]
struct Tally {
    kills: u32,
    submitter_kills: u32,
    /// The maximum memory of a process, in KiB.
    memory: u64,
}

/// Submits and runs a batch, and kills up to `max_kills` processes meanwhile.
async fn run(url: &str, scale: Scale, max_kills: u32, rng: &mut fastrand::Rng) -> Tally {
    let mut tally = Tally::default();
    let items = scale.items.to_string();
    let start = |role: &str| RoleProcess::start(&[(ROLE, role), (URL, url), (ITEMS, &items)]);
    let client = Client::open(stepfast::connect(url).await.unwrap()).await.unwrap();
    let mut workers: Vec<RoleProcess> = (0..WORKERS).map(|_| start("worker")).collect();
    let mut submitter = start("submitter");
    let mut is_submitted = false;
    while tally.kills < max_kills {
        // the moment of a kill is random; the first one is early, because a submission may end soon
        let max_pause = if tally.kills == 0 { scale.max_pause / 5 } else { scale.max_pause };
        let pause = max_pause.mul_f64(rng.f64());
        if !is_submitted {
            is_submitted = submitter.ends_within(pause);
        } else if let Ok(counts) = tokio::time::timeout(pause, batch(&client).await.wait()).await {
            counts.unwrap();
            break;
        }
        if !is_submitted && (tally.submitter_kills == 0 || rng.bool()) {
            tally.memory = tally.memory.max(std::mem::replace(&mut submitter, start("submitter")).kill());
            tally.submitter_kills += 1;
        } else {
            let worker = workers.swap_remove(rng.usize(..workers.len()));
            tally.memory = tally.memory.max(worker.kill());
            workers.push(start("worker"));
        }
        tally.kills += 1;
    }
    assert!(is_submitted || submitter.ends_within(TEST_TIMEOUT), "the submission does not end");
    let counts = batch(&client).await.wait().await.unwrap();
    assert_eq!((counts.submitted, counts.ended.completed), (scale.items, scale.items), "{counts:?}");
    for worker in workers {
        tally.memory = tally.memory.max(worker.kill());
    }
    check_items(url, &batch(&client).await, scale.items).await;
    client.shutdown(Duration::from_secs(10)).await.unwrap();
    tally
}

async fn batch(client: &Client) -> BatchHandle<u64> {
    client.get_batch(BATCH_ID).await.unwrap()
}

/// Checks that each item has exactly one recorded outcome, which is the expected one, in the results and in the database.
async fn check_items(url: &str, batch: &BatchHandle<u64>, items: u64) {
    let mut results = std::pin::pin!(batch.results());
    let mut next = 0;
    while let Some(item) = results.try_next().await.unwrap() {
        assert_eq!((u64::from(item.index), item.result.ok()), (next, Some(output(next))));
        next += 1;
    }
    assert_eq!(next, items);
    let store = stepfast::connect(url).await.unwrap();
    let mut next = 0;
    while u64::from(next) < items {
        let bundles = store.bundles(batch.key(), next, PAGE_BUNDLES).await.unwrap();
        let ids: Vec<ExecutionId> = bundles.into_iter().map(ExecutionId::Key).collect();
        assert!(!ids.is_empty(), "no bundle has item {next}");
        for record in store.load(&ids, Detail::Outcome).await.unwrap().into_iter().flatten() {
            let bundle = record.bundle.unwrap();
            assert_eq!(record.execution.key.first_index(bundle.item_count), Some(next));
            let outcomes = bundle.outcomes().unwrap();
            // a bundle that was recovered again and again is tried item by item, in rows of their own
            let ended = outcomes.iter().map(|outcome| outcome.index);
            let mut ended: Vec<u32> = ended.chain(bundle.promoted.iter().copied()).collect();
            ended.sort_unstable();
            let end = next + bundle.item_count as u32;
            assert!(ended.iter().copied().eq(next..end), "items {next} to {end} ended as {ended:?}");
            next = end;
        }
    }
}

fn on_databases(is_sqlite: bool) {
    let scale = Scale::chosen();
    let seed = std::env::var("STEPFAST_BATCH_KILLS_SEED").map(|seed| seed.parse().unwrap());
    let seed = seed.unwrap_or_else(|_| fastrand::u64(..));
    println!("STEPFAST_BATCH_KILLS_SEED={seed}");
    let test = run_within(TEST_TIMEOUT, move |runtime| {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut all = Tally::default();
        for databases in 1.. {
            let directory = TempDir::new().unwrap();
            let tally = runtime.block_on(async {
                let url = fresh_url(is_sqlite, directory.path()).await;
                run(&url, scale, scale.kills.saturating_sub(all.kills).max(1), &mut rng).await
            });
            all.kills += tally.kills;
            all.submitter_kills += tally.submitter_kills;
            all.memory = all.memory.max(tally.memory);
            assert!(tally.memory < MAX_MEMORY_KIB, "a process took {} KiB", tally.memory);
            if all.kills >= scale.kills && all.submitter_kills > 0 {
                println!(
                    "{databases} batches of {} items: {} kills, {} of the submitter, at most {} MB per process",
                    scale.items,
                    all.kills,
                    all.submitter_kills,
                    all.memory / 1_000
                );
                return;
            }
            assert!(
                databases < MAX_DATABASES,
                "batches end before processes can be killed: {} kills",
                all.kills
            );
        }
    });
    test.unwrap_or_else(|error| panic!("sqlite: {is_sqlite}, seed {seed}: {error}"));
}

#[test]
fn every_item_of_a_large_batch_ends_once_on_sqlite() {
    on_databases(true);
}

#[test]
fn every_item_of_a_large_batch_ends_once_on_postgres() {
    on_databases(false);
}
