//! Schedules under SIGKILL of the workers that run them, on SQLite and Postgres: each instant gets exactly one execution. The
//! processes are this test binary, started again with a role.
//!
//! `STEPFAST_SCHEDULE_KILLS=long` sets a thousand schedules instead of a hundred, for a longer time.
//! `STEPFAST_SCHEDULE_KILLS_SEED` repeats the choices of a run.

#![allow(clippy::unwrap_used, clippy::print_stdout)] // the output belongs to the test

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use stepfast::clock::Timestamp;
use stepfast::schedule::instant_of;
use stepfast::{Attributes, CatchUp, Client, Context, Engine, Failure, Filter, Overlap, Schedule, Workflow};
use stepfast_tests::chaos::Form;
use stepfast_tests::crash::harness::fresh_url;
use stepfast_tests::crash::role_process::RoleProcess;
use stepfast_tests::engine::run_within;
use tempfile::TempDir;

const ROLE: &str = "STEPFAST_SCHEDULE_KILLS_ROLE";
const URL: &str = "STEPFAST_SCHEDULE_KILLS_URL";
const WORKERS: usize = 3;
const TEST_TIMEOUT: Duration = Duration::from_mins(15);
const INTERVAL: Duration = Duration::from_secs(1);

/// The size of a run.
#[derive(Clone, Copy)]
struct Scale {
    schedules: usize,
    instants: u32,
    kills: u32,
}

impl Scale {
    fn chosen() -> Self {
        Form::from_variable("STEPFAST_SCHEDULE_KILLS").pick(
            Self { schedules: 100, instants: 8, kills: 8 },
            Self { schedules: 1_000, instants: 60, kills: 40 },
        )
    }
}

/// The entry point of the processes. Does nothing when the suite runs it.
#[test]
fn child() {
    if std::env::var(ROLE).is_err() {
        return;
    }
    let url = std::env::var(URL).unwrap();
    let run = run_within(TEST_TIMEOUT, move |runtime| {
        runtime.block_on(async {
            let engine = Engine::builder(stepfast::connect(&url).await.unwrap());
            let _engine = engine.register(&workflow()).open().await.unwrap();
            std::future::pending::<()>().await;
        });
    });
    run.unwrap();
}

fn workflow() -> Workflow<usize, i64> {
    Workflow::new("tick", |mut cx: Context, _: usize| async move {
        let instant = cx.scheduled_at().map(Timestamp::as_micros);
        cx.step("step", async || instant.ok_or_else(|| Failure::new("no instant"))).await
    })
}

fn name(schedule: usize) -> String {
    format!("schedule-{schedule}")
}

/// Runs schedules to the end of their instants, and kills workers meanwhile.
async fn run(url: &str, scale: Scale, rng: &mut fastrand::Rng) -> u32 {
    let start = || RoleProcess::start(&[(ROLE, "worker"), (URL, url)]);
    let client = Client::open(stepfast::connect(url).await.unwrap()).await.unwrap();
    let mut workers: Vec<RoleProcess> = (0..WORKERS).map(|_| start()).collect();
    let now = jiff::Timestamp::now().as_microsecond();
    // the last schedule is set before its first instant, also if other tests run
    let first = Timestamp::from_micros(now).plus(Duration::from_secs(3 + scale.schedules as u64 / 25));
    let last = first.plus((scale.instants - 1) * INTERVAL);
    let client = &client;
    let set = async |number| {
        let overlap = if number % 2 == 0 { Overlap::Allow } else { Overlap::BufferAll };
        let schedule = Schedule::new(name(number), &workflow(), &number).unwrap();
        let schedule = schedule.every(INTERVAL).starts_at(first).ends_at(last);
        client.set_schedule(&schedule.overlap(overlap).catch_up(CatchUp::All)).await.unwrap();
    };
    stream::iter(0..scale.schedules).for_each_concurrent(100, set).await;
    let mut looks = tokio::time::interval(Duration::from_millis(50));
    let is_over = async {
        for number in 0..scale.schedules {
            loop {
                let view = client.schedule(&name(number)).await.unwrap();
                if view.started >= u64::from(scale.instants) && view.next.is_none() {
                    break;
                }
                looks.tick().await;
            }
        }
    };
    let mut is_over = std::pin::pin!(is_over);
    let mut kills = 0;
    while kills < scale.kills
        && tokio::time::timeout(Duration::from_secs(2).mul_f64(rng.f64()), &mut is_over).await.is_err()
    {
        workers.swap_remove(rng.usize(..workers.len())).kill();
        workers.push(start());
        kills += 1;
    }
    if kills == scale.kills {
        is_over.await;
    }
    check(client, scale, first).await;
    client.shutdown(Duration::from_secs(10)).await.unwrap();
    kills
}

/// Checks that each instant of each schedule has one execution, which completes with its instant.
async fn check(client: &Client, scale: Scale, first: Timestamp) {
    let expected: BTreeSet<i64> =
        (0..scale.instants).map(|number| first.plus(number * INTERVAL).as_micros()).collect();
    for number in 0..scale.schedules {
        let mut attributes = Attributes::NONE;
        attributes.set("schedule", name(number));
        let filter = Filter { attributes, limit: 10_000, ..Filter::default() };
        let executions = client.list(&filter).await.unwrap().executions;
        assert_eq!(executions.len(), scale.instants as usize, "schedule {number}");
        let mut found = BTreeSet::new();
        for execution in executions {
            let id = execution.given_id.unwrap();
            let instant = client.get::<i64>(&id).await.unwrap().result().await.unwrap();
            assert_eq!(instant_of(&id).map(Timestamp::as_micros), Some(instant));
            found.insert(instant);
        }
        assert_eq!(found, expected, "schedule {number}");
        let view = client.schedule(&name(number)).await.unwrap();
        assert_eq!((view.started, view.skipped, view.error), (u64::from(scale.instants), 0, None));
        assert_eq!(view.stopped, None);
    }
}

fn on_database(is_sqlite: bool) {
    let scale = Scale::chosen();
    let seed = std::env::var("STEPFAST_SCHEDULE_KILLS_SEED").map(|seed| seed.parse().unwrap());
    let seed = seed.unwrap_or_else(|_| fastrand::u64(..));
    println!("STEPFAST_SCHEDULE_KILLS_SEED={seed}");
    let test = run_within(TEST_TIMEOUT, move |runtime| {
        let mut rng = fastrand::Rng::with_seed(seed);
        let directory = TempDir::new().unwrap();
        let kills = runtime.block_on(async {
            let url = fresh_url(is_sqlite, directory.path()).await;
            run(&url, scale, &mut rng).await
        });
        println!("{} schedules with {} instants each: {kills} kills", scale.schedules, scale.instants);
        assert!(kills > 0);
    });
    test.unwrap_or_else(|error| panic!("sqlite: {is_sqlite}, seed {seed}: {error}"));
}

#[test]
fn every_instant_gets_one_execution_on_sqlite() {
    on_database(true);
}

#[test]
fn every_instant_gets_one_execution_on_postgres() {
    on_database(false);
}
