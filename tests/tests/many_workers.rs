//! Many workers on one server of Postgres: the cost while they are idle, while others are busy, while all of them
//! are busy, and when half of them die.
//!
//! The variable `STEPFAST_TEST_WORKERS` sets the number of workers, 100 by default. From 1,000 workers on, times are
//! judged too, so the tests must then run one at a time (`make scale`).

#![allow(clippy::unwrap_used, clippy::print_stdout)] // this is test code, which prints its figures

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join, join_all, try_join_all};
use stepfast::clock::{Clock, SystemClock};
use stepfast::{Client, Context, Engine, PostgresOptions, PostgresStore, Schedule, Workflow};
use stepfast_tests::engine::support::BodyResult;
use stepfast_tests::fixtures::postgres_server::PostgresServer;
use stepfast_tests::fixtures::statement_counter::{StatementCounter, StatementCounts};
use stepfast_tests::fixtures::worker_group::{HELD_WORKFLOW, HoldingProcess, open_workers};
use tokio::time::Instant;

/// The environment variable with the number of workers.
const WORKERS_VARIABLE: &str = "STEPFAST_TEST_WORKERS";
/// Number of workers from which on times are judged, and more is counted.
const LONG_FORM_WORKERS: usize = 1_000;
/// Number of workers that are busy while the others are idle.
const BUSY_WORKERS: usize = 10;
/// Number of statements for an execution of one step: two flushes that contain nothing else, and a hint.
const STATEMENTS_PER_EXECUTION: f64 = 14.0;
/// Number of executions of each worker that dies.
const HELD_EXECUTIONS: usize = 3;
/// Number of statements of each kind that are printed.
const LINES: usize = 12;

/// A server with as many connections as the workers of a test open, and a counter of its statements.
struct CountedServer {
    server: PostgresServer,
    counter: StatementCounter,
    worker_count: usize,
    is_long: bool,
}

/// The cost of workers for the server.
struct Costs {
    /// Statements per second while no execution runs.
    idle_rate: f64,
    /// Statements per execution, without those that the idle workers send.
    per_execution: f64,
}

impl CountedServer {
    async fn start() -> Self {
        let worker_count = worker_count();
        // a worker that runs and claims executions has three connections, a store at most eight
        let connections = 200 + worker_count * 4;
        let server = StatementCounter::start_server(&format!("max_connections={connections}"));
        let counter = StatementCounter::connect(&server).await;
        println!("counting {}", counter.unit());
        Self { server, counter, worker_count, is_long: worker_count >= LONG_FORM_WORKERS }
    }

    fn url(&self) -> &str {
        self.server.url()
    }

    /// Waits until the workers have opened their connections and sent their first messages.
    async fn settle(&self) {
        self.count_for(if self.is_long { 6 } else { 3 }, async {}).await;
    }

    /// Counts statements for this time, while `work` runs, or for longer if the work takes longer. Also returns the time.
    async fn count_for(&self, seconds: u64, work: impl Future<Output = ()>) -> (StatementCounts, Duration) {
        let (before, begun_at) = (self.counter.count().await, Instant::now());
        let end = begun_at + Duration::from_secs(seconds);
        work.await;
        let late = end.elapsed();
        tokio::time::sleep_until(end).await;
        if late > Duration::ZERO {
            println!("    the work took {late:?} too long");
        }
        (self.counter.count().await.since(&before), begun_at.elapsed())
    }

    /// Counts the statements of `workers` workers, in a schema of their own, for `rate` executions a second.
    async fn measure(&self, schema: &str, workers: usize, rate: u32, is_queued: bool) -> Costs {
        let add = workflow("add");
        let engines = open_workers(self.url(), schema, &add, workers).await;
        let store = PostgresStore::open_with(self.url(), PostgresOptions::default().schema(schema)).await;
        let client = Client::open(Arc::new(store.unwrap())).await.unwrap();
        // each time contains as many heartbeats
        let seconds = if self.is_long { 20 } else { 5 };
        let run = async |n: u32| {
            let engine = &engines[n as usize % engines.len()];
            let result = if is_queued { client.run(&add, n).await } else { engine.run(&add, n).await };
            assert_eq!(result.unwrap(), n + 1);
        };
        // each lane opens its connection; a queued execution runs on any worker, and each wave is claimed in turns
        let waves = if is_queued { 2 } else { 6 };
        for begin in (0..workers as u32 * waves).step_by(workers) {
            join_all((begin..begin + workers as u32).map(run)).await;
        }
        self.settle().await;
        let (idle, idle_time) = self.count_for(seconds, async {}).await;
        let count = rate * seconds as u32;
        let (busy, busy_time) = self.count_for(seconds, run_evenly(count, rate, run)).await;
        let idle_rate = idle.total() as f64 / idle_time.as_secs_f64();
        let costs = Costs {
            idle_rate,
            per_execution: (busy.total() as f64 - idle_rate * busy_time.as_secs_f64()) / f64::from(count),
        };
        println!(
            "{workers} workers, {rate} executions/s{}: idle {:.0} statements/s, {:.1} statements/execution\n\
             while idle for {seconds} s:\n{}while busy:\n{}",
            if is_queued { " of a client" } else { "" },
            costs.idle_rate,
            costs.per_execution,
            idle.most_frequent(LINES),
            busy.most_frequent(LINES),
        );
        shut_down(engines.into_iter().chain([client.into_engine()])).await;
        costs
    }
}

fn worker_count() -> usize {
    std::env::var(WORKERS_VARIABLE).map_or(100, |count| count.parse().unwrap())
}

fn workflow(name: &str) -> Workflow<u32, u32> {
    Workflow::new(name, |mut cx: Context, n: u32| async move {
        cx.step("add", async || BodyResult::Ok(n + 1)).await
    })
}

/// Runs `count` executions, `rate` of them a second.
async fn run_evenly(count: u32, rate: u32, run: impl AsyncFn(u32)) {
    let begun_at = Instant::now();
    let run = &run;
    join_all((0..count).map(|n| async move {
        tokio::time::sleep_until(begun_at + Duration::from_secs(1) * n / rate).await;
        run(n).await;
    }))
    .await;
}

async fn shut_down(engines: impl IntoIterator<Item = Engine>) {
    let engines: Vec<Engine> = engines.into_iter().collect();
    try_join_all(engines.iter().map(|engine| engine.shutdown(Duration::from_secs(60)))).await.unwrap();
}

/// Counts the statements of workers of which all but ten are idle, while the ten run 100 executions a second, and while
/// they run none.
async fn check_idle_workers(idle_workflow: &str) {
    let server = CountedServer::start().await;
    let (idle, busy) = (workflow(idle_workflow), workflow("busy"));
    let opened_at = Instant::now();
    let busy_engines = open_workers(server.url(), "many_workers", &busy, BUSY_WORKERS).await;
    let idle_count = server.worker_count - BUSY_WORKERS;
    let idle_engines = open_workers(server.url(), "many_workers", &idle, idle_count).await;
    println!("{} workers were opened in {:.1?}", server.worker_count, opened_at.elapsed());
    // meanwhile all connections begin to listen, and all first heartbeats are sent
    server.settle().await;
    // a long count contains the reports that workers make now and then
    let seconds = if server.is_long { 60 } else { 6 };
    let (idle, _) = server.count_for(seconds, async {}).await;
    let run = async |n: u32| {
        let engine = &busy_engines[n as usize % busy_engines.len()];
        assert_eq!(engine.run(&busy, n).await.unwrap(), n + 1);
    };
    let (during_runs, time) = server.count_for(3, run_evenly(300, 100, run)).await;
    let rate = idle.total() as f64 / seconds as f64;
    let per_run = (during_runs.total() as f64 - rate * time.as_secs_f64()) / 300.0;
    println!(
        "{} workers, {BUSY_WORKERS} of them of workflow busy, the others of {idle_workflow}: {rate:.0} statements/s, \
         and {per_run:.1} for each run of a busy worker\nwhile all are idle:\n{}during 300 runs:\n{}",
        server.worker_count,
        idle.most_frequent(LINES),
        during_runs.most_frequent(LINES)
    );
    // a renewal per second, a heartbeat every five seconds, reports once a minute; eight workers observe leases
    let limit = server.worker_count as f64 * 1.45 + 50.0;
    assert!(rate <= limit, "{rate} statements per second of idle workers, more than {limit}");
    assert!(per_run <= 30.0, "{per_run} statements per run");
    shut_down(busy_engines.into_iter().chain(idle_engines)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_workers_send_few_statements() {
    let of_another_service = check_idle_workers("idle");
    if worker_count() >= LONG_FORM_WORKERS {
        of_another_service.await;
        check_idle_workers("busy").await;
    } else {
        join(of_another_service, check_idle_workers("busy")).await;
    }
}

/// Executions that run where they were started cost as many statements on many workers as on few.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn executions_cost_as_much_on_many_workers_as_on_few() {
    let server = CountedServer::start().await;
    let rate = if server.is_long { 100 } else { 50 };
    let few = server.measure("few", 10, rate, false).await;
    let many = server.measure("many", server.worker_count, rate, false).await;
    // in the short form, the report of each worker 10 s after it opened may fall into the time
    let limit = server.worker_count as f64 * if server.is_long { 1.45 } else { 2.0 } + 50.0;
    assert!(many.idle_rate <= limit, "{} statements per second, more than {limit}", many.idle_rate);
    // A flush of a few busy workers may contain several executions. A worker that runs one now and then checks its
    // lane, and deletes the record of the ended execution, for this one alone.
    let limit = few.per_execution.max(STATEMENTS_PER_EXECUTION) * 1.2;
    assert!(
        many.per_execution <= limit,
        "{} statements per execution, more than {limit}",
        many.per_execution
    );
    if server.is_long {
        server.measure("few_claims", 10, 20, true).await;
        server.measure("many_claims", server.worker_count, 20, true).await;
    }
}

/// Schedules that wait cost an idle worker nothing, however many they are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_schedules_cost_no_statements() {
    const SCHEDULES: u32 = 10_000;
    let server = CountedServer::start().await;
    let store = PostgresStore::open_with(server.url(), PostgresOptions::default().schema("schedules")).await;
    let add = workflow("add");
    let builder = Engine::builder(Arc::new(store.unwrap())).register(&add);
    let engine = builder.suspend_after(Duration::ZERO).open().await.unwrap();
    let hour = Duration::from_hours(1);
    // the next instants are half an hour away
    let begin = SystemClock.now().minus(hour / 2);
    let set = async |number: u32| {
        let schedule = Schedule::new(format!("schedule {number}"), &add, &number).unwrap();
        engine.set_schedule(&schedule.every(hour).starts_at(begin)).await.unwrap();
    };
    let count = async || {
        while engine.running_count() > 0 {
            tokio::task::yield_now().await;
        }
        // the worker deletes the records of executions that it no longer runs
        server.settle().await;
        let (counts, time) = server.count_for(6, async {}).await;
        println!("{}", counts.most_frequent(LINES));
        counts.total() as f64 / time.as_secs_f64()
    };
    set(0).await;
    let with_one = count().await;
    for numbers in (1..SCHEDULES).collect::<Vec<_>>().chunks(100) {
        join_all(numbers.iter().copied().map(set)).await;
    }
    let with_many = count().await;
    assert_eq!(engine.schedules().await.unwrap().len(), SCHEDULES as usize);
    println!("statements per second: {with_one:.1} with one schedule, {with_many:.1} with {SCHEDULES}");
    assert!(with_many <= with_one * 1.2 + 2.0, "{with_many} statements per second, after {with_one}");
    shut_down([engine]).await;
}

/// Half of all workers die at once, and the others run each of their executions once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn executions_of_dead_workers_are_run_by_others() {
    let server = CountedServer::start().await;
    let (schema, dead_count) = ("dead_workers", server.worker_count / 2);
    let program = Path::new(env!("CARGO_BIN_EXE_holding-workers"));
    // these workers have the lowest ids, so they are the ones who observe the leases of all
    let mut dead = HoldingProcess::spawn(program, server.url(), schema, dead_count, HELD_EXECUTIONS);
    let held = Workflow::new(HELD_WORKFLOW, |_: Context, n: u32| async move { BodyResult::Ok(n) });
    let live_count = server.worker_count - dead_count;
    let engines = open_workers(server.url(), schema, &held, live_count).await;
    let sql = server.counter.sql();
    sql.batch_execute(&format!("SET search_path TO {schema}, public")).await.unwrap();
    let number = async |query: &str| sql.query_one(query, &[]).await.unwrap().get::<_, i64>(0);
    let last = number("SELECT max(owner) FROM executions").await;
    assert_eq!(
        number("SELECT count(*) FROM executions WHERE status = 2").await as usize,
        dead_count * HELD_EXECUTIONS
    );
    // all workers of the process have renewed their leases regularly, and all others listen
    server.settle().await;
    dead.kill();
    let before = server.counter.count().await;
    let lease_left = format!(
        "SELECT (1000 * extract(epoch FROM max(lease_expires_at) - clock_timestamp()))::bigint FROM workers \
         WHERE worker_id <= {last}"
    );
    let leases_end =
        Instant::now() + Duration::from_millis(number(&lease_left).await.try_into().unwrap_or_default());
    let still_owned = format!("SELECT count(*) FROM executions WHERE status = 2 AND owner <= {last}");
    let unfinished = "SELECT count(*) FROM executions WHERE status <> 4";
    let (mut taken_after, mut next) = (None, Instant::now());
    loop {
        if taken_after.is_none() && number(&still_owned).await == 0 {
            taken_after = Some(leases_end.elapsed());
        }
        if number(unfinished).await == 0 {
            break;
        }
        assert!(
            leases_end.elapsed() < Duration::from_secs(120),
            "{} are unfinished",
            number(unfinished).await
        );
        next += Duration::from_millis(100);
        tokio::time::sleep_until(next).await;
    }
    let ended_after = leases_end.elapsed();
    let counts = server.counter.count().await.since(&before);
    let per_dead_worker = counts.total() as f64 / dead_count as f64;
    println!(
        "{dead_count} workers died: {:.1?} after the end of their leases none of them owned an execution, and after \
         {ended_after:.1?} all had ended on {live_count} other workers; {per_dead_worker:.1} statements per dead \
         worker\n{}",
        taken_after.unwrap_or(ended_after),
        counts.most_frequent(LINES * 2),
    );
    let recovered_once = "SELECT count(*) FROM executions WHERE recoveries = 1";
    assert_eq!(number(recovered_once).await as usize, dead_count * HELD_EXECUTIONS);
    assert_eq!(number(&format!("SELECT count(*) FROM workers WHERE worker_id <= {last}")).await, 0);
    assert!(per_dead_worker <= 100.0, "{per_dead_worker} statements per dead worker");
    if server.is_long {
        assert!(ended_after <= Duration::from_secs(10), "the takeover took {ended_after:?}");
    }
    shut_down(engines).await;
}
