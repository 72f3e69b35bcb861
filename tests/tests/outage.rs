//! Real outages of Postgres: an unreachable server, a server that crashes and returns, and a stalled network. Promises
//! about any store whose calls fail are in the suite of faults.

#![allow(clippy::unwrap_used)] // this is test code

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use stepfast::store::{Filter, RequestResult};
use stepfast::{Context, Engine, Error, ErrorKind, Handle, PostgresOptions, PostgresStore, Workflow};
use stepfast_tests::engine::run_within;
use stepfast_tests::engine::support::{BodyResult, Count, Latch, open, record, row, shut_down};
use stepfast_tests::faults::fault_store::{Call, FaultStore};
use stepfast_tests::faults::stalling_proxy::StallingProxy;
use stepfast_tests::fixtures::clock::TestClock;
use stepfast_tests::fixtures::postgres_server::PostgresServer;
use stepfast_tests::fixtures::stores::TEST_EPOCH;
use tokio::task::JoinHandle;
use tokio::time::Instant;

const TEST_TIMEOUT: Duration = Duration::from_secs(120);
/// Names the variable with the seconds for which a server is really stopped: 5 by default, at most 90.
const AWAY_VARIABLE: &str = "STEPFAST_TEST_OUTAGE_SECONDS";
/// A lease that expires in no test.
const LONG_LEASE: Duration = Duration::from_secs(1000);

fn case<F: Future<Output = ()>>(run: impl FnOnce() -> F + Send + 'static) {
    if let Err(error) = run_within(TEST_TIMEOUT, |runtime| runtime.block_on(run())) {
        panic!("{error}");
    }
}

async fn store(url: &str, options: PostgresOptions) -> Arc<FaultStore> {
    FaultStore::wrap(Arc::new(PostgresStore::open_with(url, options).await.unwrap()))
}

/// The number of bodies that have begun, by input and number of the step.
type Bodies = Arc<Mutex<BTreeMap<(u32, u32), u32>>>;

/// A workflow with sequential steps. Each body is counted, waits for the latch, and returns the number of its step.
#[derive(Clone)]
struct Load {
    workflow: Workflow<(u32, u32), Vec<u32>>,
    bodies: Bodies,
    begun_bodies: Count,
    latch: Latch,
}

impl Load {
    fn new() -> Self {
        Self::counting(Arc::default())
    }

    fn counting(bodies: Bodies) -> Self {
        let (begun_bodies, latch) = (Count::new(), Latch::new());
        let counted = (bodies.clone(), begun_bodies.clone(), latch.clone());
        let workflow = Workflow::new("load", move |mut cx: Context, (n, steps): (u32, u32)| {
            let counted = counted.clone();
            async move {
                let mut values = Vec::new();
                for i in 0..steps {
                    let value = cx.step(format!("step {i}"), async || {
                        let (bodies, begun_bodies, latch) = &counted;
                        *bodies.lock().unwrap().entry((n, i)).or_default() += 1;
                        begun_bodies.increment();
                        latch.wait().await;
                        BodyResult::Ok(i)
                    });
                    values.push(value.await?);
                }
                BodyResult::Ok(values)
            }
        });
        Self { workflow, bodies, begun_bodies, latch }
    }

    fn run(&self, engine: &Engine, n: u32, steps: u32) -> JoinHandle<Result<Vec<u32>, Error>> {
        let (engine, workflow) = (engine.clone(), self.workflow.clone());
        tokio::spawn(async move { engine.run(&workflow, (n, steps)).workflow_id(n.to_string()).await })
    }

    /// Checks that all of `runs` completed, and that each step has one outcome, and one body if its execution was not
    /// recovered.
    async fn check(&self, engine: &Engine, runs: Vec<JoinHandle<Result<Vec<u32>, Error>>>, steps: u32) {
        let expected: Vec<u32> = (0..steps).collect();
        for (n, run) in (0..).zip(runs) {
            assert_eq!(run.await.unwrap().unwrap(), expected, "execution {n}");
            let record = record(engine, &n.to_string()).await;
            let values: Vec<u32> = record.checkpoints.iter().map(|it| it.outcome.decode().unwrap()).collect();
            assert_eq!(values, expected);
            if record.execution.recoveries == 0 {
                let bodies = self.bodies.lock().unwrap();
                let once: Vec<u32> = (0..steps).map(|i| bodies[&(n, i)]).collect();
                assert_eq!(once, vec![1; steps as usize], "bodies of execution {n}");
            }
        }
    }
}

/// Waits until the engine on `store` has sent `times` more heartbeats.
async fn wait_for_heartbeats(store: &FaultStore, times: usize) {
    store.wait_until_called(Call::Heartbeat, store.call_count(Call::Heartbeat) + times).await;
}

#[test]
fn unusable_server_is_named_with_advice() {
    case(async || {
        let server = PostgresServer::start();
        let (sql, connection) = tokio_postgres::connect(server.url(), tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        let file: String = sql.query_one("SHOW hba_file", &[]).await.unwrap().get(0);
        let rules = "('host all clerk 127.0.0.1/32 scram-sha-256'), ('host all all 127.0.0.1/32 trust')";
        let opened = store(server.url(), PostgresOptions::default()).await;
        let write = format!("COPY (SELECT * FROM (VALUES {rules}) AS t) TO '{file}'");
        sql.batch_execute("CREATE ROLE clerk LOGIN PASSWORD 'right'").await.unwrap();
        sql.batch_execute(&write).await.unwrap();
        sql.batch_execute("SELECT pg_reload_conf()").await.unwrap();
        let at = server.url().split('@').nth(1).unwrap().split('/').next().unwrap().to_owned();
        let error = async |url: String, kind: ErrorKind| {
            let error = stepfast::connect(&url).await.map(drop).unwrap_err();
            assert_eq!(error.kind(), kind, "{error:?}");
            let text = format!("{error} {error:?}");
            assert!(text.contains(&at) && !text.contains("secret") && !text.contains("right@"), "{text}");
            error.to_string()
        };
        let text = error(format!("postgres://clerk:secret@{at}/postgres"), ErrorKind::Invalid).await;
        assert!(text.contains("postgres://clerk@") && text.contains("check user and password"), "{text}");
        let text = error(format!("postgres://clerk@{at}/postgres"), ErrorKind::Invalid).await;
        assert!(text.contains("asks for a password") && text.contains("user:password@host"), "{text}");
        let text = error(format!("postgres://stepfast:secret@{at}/shop"), ErrorKind::Invalid).await;
        assert!(text.contains(&format!("{at}/shop")) && text.contains("create the database"), "{text}");
        // a role without privileges
        let text = error(format!("postgres://clerk:right@{at}/postgres"), ErrorKind::Invalid).await;
        assert!(
            text.contains("permission denied") && text.contains("stepfast db migrate --role clerk"),
            "{text}"
        );
        sql.batch_execute("ALTER ROLE clerk CONNECTION LIMIT 0").await.unwrap();
        let text =
            error(format!("postgres://clerk:right@{at}/postgres?connect_timeout=1"), ErrorKind::Unavailable)
                .await;
        assert!(text.contains("too many connections"), "{text}");
        server.stop();
        let text = error(format!("postgres://stepfast:secret@{at}/shop"), ErrorKind::Unavailable).await;
        assert!(text.contains(&format!("{at}/shop")) && text.contains("is the server running"), "{text}");
        assert!(text.starts_with("cannot reach") && !text.contains("is unknown"), "{text}");
        // the server was reachable when the store was opened
        let error = Engine::builder(opened).open().await.map(drop).unwrap_err();
        assert_eq!((error.kind(), error.code()), (ErrorKind::Unavailable, "SF-0035"), "{error}");
        assert!(error.to_string().contains(&at) && !error.to_string().contains("is unknown"), "{error}");
        // a listener that accepts the connection and never replies
        let silent_listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let at = silent_listener.local_addr().unwrap();
        let error = stepfast::connect(&format!("postgres://me@{at}/shop?connect_timeout=1")).await;
        let error = error.map(drop).unwrap_err();
        assert_eq!((error.kind(), error.code()), (ErrorKind::Unavailable, "SF-0035"), "{error}");
        assert!(error.to_string().contains("did not reply within 1s"), "{error}");
    });
}

#[test]
fn server_crash_under_load_loses_nothing() {
    case(async || {
        let server = Arc::new(PostgresServer::start());
        let control_server = async |what: fn(&PostgresServer)| {
            let server = server.clone();
            tokio::task::spawn_blocking(move || what(&server)).await.unwrap();
        };
        let load = Load::new();
        load.latch.open();
        let store = store(server.url(), PostgresOptions::default()).await;
        let engine = open(store.clone(), |b| b.register(&load.workflow)).await;
        let mut runs = Vec::new();
        for round in 0..3 {
            runs.extend((0..100).map(|n| load.run(&engine, round * 100 + n, 4)));
            load.begun_bodies.wait_for((round * 400 + 150) as usize).await;
            control_server(PostgresServer::stop).await;
            // callers with a short timeout get an error, the others wait
            let start = engine.start(&load.workflow, (1000 + round, 1)).workflow_id(format!("in {round}"));
            let error = start.wait_timeout(Duration::from_millis(20)).await.map(drop).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            store.wait_until_called(Call::Commit, store.call_count(Call::Commit) + 3).await;
            wait_for_heartbeats(&store, 2).await;
            control_server(PostgresServer::start_again).await;
        }
        load.check(&engine, runs, 4).await;
        for round in 0..3 {
            // a repeated start finds the execution that was staged although its caller had timed out
            let start = engine.start(&load.workflow, (1000 + round, 1)).workflow_id(format!("in {round}"));
            assert_eq!(start.await.unwrap().result().await.unwrap(), [0]);
        }
        assert_eq!(engine.count(&Filter::default()).await.unwrap(), 303);
        shut_down(engine).await;
        let bodies = load.bodies.lock().unwrap();
        assert!(bodies.len() == 1203 && bodies.values().all(|count| *count == 1), "{bodies:?}");
    });
}

#[test]
fn workers_survive_outage_longer_than_lease() {
    case(async || {
        let server = Arc::new(PostgresServer::start());
        let load = Load::new();
        let proxy = StallingProxy::start(server.url()).await;
        let url = proxy.url(server.url());
        let options = PostgresOptions::default().lease(LONG_LEASE);
        let (one, two) = (store(&url, options.clone()).await, store(&url, options).await);
        let engines = [
            open(one.clone(), |b| b.register(&load.workflow)).await,
            open(two.clone(), |b| b.register(&load.workflow)).await,
        ];
        let runs: Vec<_> = (0..20).map(|n| load.run(&engines[n as usize % 2], n, 2)).collect();
        load.begun_bodies.wait_for(20).await;
        proxy.cut();
        wait_for_heartbeats(&one, 2).await;
        wait_for_heartbeats(&two, 2).await;
        // all leases have long expired when the server returns
        let (sql, connection) = tokio_postgres::connect(server.url(), tokio_postgres::NoTls).await.unwrap();
        let connection = tokio::spawn(connection);
        let past = "UPDATE stepfast.workers SET lease_expires_at = '2000-01-01 00:00:00Z'";
        assert_eq!(sql.execute(past, &[]).await.unwrap(), 2);
        let again = server.clone();
        tokio::task::spawn_blocking(move || {
            again.stop();
            again.start_again();
        })
        .await
        .unwrap();
        let _ = connection.await;
        // one worker is back long before the other
        two.hold_calls(&[Call::Heartbeat]);
        proxy.open();
        wait_for_heartbeats(&one, 5).await;
        two.release();
        wait_for_heartbeats(&two, 3).await;
        load.latch.open();
        load.check(&engines[0], runs, 2).await;
        for n in 0..20 {
            assert_eq!(row(&engines[1], &n.to_string()).await.recoveries, 0, "no worker was taken over");
        }
        for engine in engines {
            shut_down(engine).await;
        }
    });
}

#[test]
fn stopped_server_costs_no_execution_beyond_lease() {
    case(async || {
        let seconds = std::env::var(AWAY_VARIABLE).map_or(5, |seconds| seconds.parse().unwrap());
        let away = Duration::from_secs(seconds);
        let options = PostgresOptions::default();
        assert!(away > options.lease);
        let server = Arc::new(PostgresServer::start());
        let control_server = async |what: fn(&PostgresServer)| {
            let server = server.clone();
            tokio::task::spawn_blocking(move || what(&server)).await.unwrap();
        };
        let load = Load::new();
        let nap = Workflow::new("nap", |mut cx: Context, (): ()| async move {
            // due while the server is away
            cx.sleep(Duration::from_secs(2)).await;
            cx.step("after", async || BodyResult::Ok(())).await
        });
        let stores = [store(server.url(), options.clone()).await, store(server.url(), options.clone()).await];
        let with = |b: stepfast::EngineBuilder| {
            b.register(&load.workflow).register(&nap).suspend_after(Duration::from_millis(100))
        };
        let engines = [open(stores[0].clone(), with).await, open(stores[1].clone(), with).await];
        let mut runs: Vec<_> = (0..40).map(|n| load.run(&engines[n as usize % 2], n, 3)).collect();
        load.begun_bodies.wait_for(40).await;
        let naps = [engines[0].start(&nap, ()).await.unwrap(), engines[1].start(&nap, ()).await.unwrap()];
        let registered = stores.each_ref().map(|store| store.call_count(Call::Register));
        control_server(PostgresServer::stop).await;
        let began = Instant::now();
        // starts of callers and results of bodies wait during the outage
        runs.extend((40..60).map(|n| load.run(&engines[n as usize % 2], n, 3)));
        load.latch.open();
        let mut timed_out_starts = 0;
        while began.elapsed() <= away {
            for engine in &engines {
                let start = engine
                    .start(&load.workflow, (100 + timed_out_starts, 1))
                    .workflow_id(format!("in {timed_out_starts}"));
                let error = start.wait_timeout(Duration::from_millis(200)).await.map(drop).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                timed_out_starts += 1;
            }
            wait_for_heartbeats(&stores[0], 1).await;
            assert!(runs.iter().all(|run| !run.is_finished()));
        }
        control_server(PostgresServer::start_again).await;
        load.check(&engines[0], runs, 3).await;
        for n in 0..timed_out_starts {
            // staged although its caller had timed out
            let start = engines[1].start(&load.workflow, (100 + n, 1)).workflow_id(format!("in {n}"));
            assert_eq!(start.await.unwrap().result().await.unwrap(), [0]);
        }
        for nap in naps {
            nap.result().await.unwrap();
        }
        let all = Filter { limit: 1000, ..Filter::default() };
        let rows = engines[0].list(&all).await.unwrap().executions;
        assert_eq!(rows.len(), 62 + timed_out_starts as usize);
        for row in rows {
            assert_eq!(
                (row.recoveries, row.status),
                (0, stepfast::Status::Completed),
                "no worker was taken over"
            );
        }
        // both workers keep their registrations
        assert_eq!(stores.each_ref().map(|store| store.call_count(Call::Register)), registered);
        let bodies = load.bodies.lock().unwrap().clone();
        assert!(bodies.len() == 180 + timed_out_starts as usize && bodies.values().all(|count| *count == 1));
        for engine in engines {
            shut_down(engine).await;
        }
    });
}

#[test]
fn stalled_network_delays_work_and_loses_nothing() {
    case(async || {
        let url = PostgresServer::shared().url();
        let load = Load::new();
        load.latch.open();
        let proxy = StallingProxy::start(url).await;
        let options =
            PostgresOptions::default().schema(PostgresServer::shared().fresh_schema_name()).lease(LONG_LEASE);
        let store = store(&proxy.url(url), options).await;
        let engine = open(store.clone(), |b| b.register(&load.workflow)).await;
        let mut runs = Vec::new();
        for round in 0..10 {
            runs.extend((0..30).map(|n| load.run(&engine, round * 30 + n, 3)));
            load.begun_bodies.wait_for((round * 90 + 40) as usize).await;
            proxy.stall();
            let called = store.call_count(Call::Commit);
            let run = engine.run(&load.workflow, (1000 + round, 1)).wait_timeout(Duration::from_millis(10));
            let error = run.await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            // in every other round, the connections break
            if round % 2 == 1 {
                proxy.cut();
                store.wait_until_called(Call::Commit, called + 3).await;
            }
            proxy.open();
        }
        load.check(&engine, runs, 3).await;
        // requeues or finishes the executions whose callers are gone
        shut_down(engine).await;
        let bodies = load.bodies.lock().unwrap();
        assert!(bodies.values().all(|count| *count == 1), "{bodies:?}");
    });
}

/// Two engines on one database. The connection of the first one can stall.
struct CutOff {
    proxy: StallingProxy,
    clock: Arc<TestClock>,
    stores: [Arc<FaultStore>; 2],
    engines: [Engine; 2],
}

impl CutOff {
    /// The database's clock stands still: no lease expires before the test advances it.
    async fn new<I, O>(lease: Duration, workflows: [&Workflow<I, O>; 2]) -> Self {
        let url = PostgresServer::shared().url();
        let clock = Arc::new(TestClock::frozen(TEST_EPOCH));
        let proxy = StallingProxy::start(url).await;
        let schema = PostgresServer::shared().fresh_schema_name();
        let options = PostgresOptions::default().schema(schema).clock(clock.clone()).lease(lease);
        let stores = [store(&proxy.url(url), options.clone()).await, store(url, options).await];
        let engines = [
            open(stores[0].clone(), |b| b.register(workflows[0])).await,
            open(stores[1].clone(), |b| b.register(workflows[1])).await,
        ];
        Self { proxy, clock, stores, engines }
    }

    async fn shut_down(self) {
        for engine in self.engines {
            shut_down(engine).await;
        }
    }
}

#[test]
fn inflight_writes_of_disconnected_worker_are_fenced() {
    case(async || {
        let load = Load::new();
        // the same workflow in another process, with its own latch
        let next = Load::counting(load.bodies.clone());
        let cut_off = CutOff::new(LONG_LEASE, [&load.workflow, &next.workflow]).await;
        let CutOff { proxy, clock, stores, engines } = &cut_off;
        let mut runs: Vec<_> = (0..30).map(|n| load.run(&engines[0], n, 2)).collect();
        load.begun_bodies.wait_for(30).await;
        proxy.stall();
        // outcomes of the first bodies and starts of callers are in flight, and stay so
        let called = stores[0].call_count(Call::Commit);
        load.latch.open();
        stores[0].wait_until_called(Call::Commit, called + 2).await;
        runs.extend((30..40).map(|n| load.run(&engines[0], n, 2)));
        clock.advance(LONG_LEASE * 2);
        next.begun_bodies.wait_for(30).await;
        let registered = stores[0].call_count(Call::Register);
        proxy.open();
        stores[0].wait_until_called(Call::Register, registered + 1).await;
        for n in 0..30 {
            let record = record(&engines[1], &n.to_string()).await;
            assert_eq!((record.checkpoints.len(), record.execution.recoveries), (0, 1), "of execution {n}");
        }
        next.latch.open();
        load.check(&engines[1], runs, 2).await;
        cut_off.shut_down().await;
    });
}

/// A run that reaches its step bodies when its worker could not renew its lease in time.
struct LateRun {
    cut_off: CutOff,
    handle: Handle<()>,
    bodies: Count,
}

impl LateRun {
    /// The lease has expired by the worker's own clock, the code has reached its steps, and no body has begun.
    async fn new() -> Self {
        let lease = Duration::from_secs(2);
        let (code_latch, passed, bodies) = (Latch::new(), Count::new(), Count::new());
        let shared = (code_latch.clone(), passed.clone(), bodies.clone());
        let workflow = Workflow::new("late", move |mut cx: Context, (): ()| {
            let (code_latch, passed, bodies) = shared.clone();
            async move {
                code_latch.wait().await;
                let bodies = &bodies;
                let body = || async move {
                    bodies.increment();
                    BodyResult::Ok(())
                };
                let plain = |mut cx: Context| async move { cx.step("plain", body).await };
                let speculative =
                    |mut cx: Context| async move { cx.step("speculative", body).speculative().await };
                let steps = |mut cx: Context| async move { cx.join(plain, speculative).await };
                // polled after the two steps, in the same turn
                let last = |_| async { passed.increment() };
                let ((plain, speculative), _) = cx.join(steps, last).await;
                plain.and(speculative)
            }
        });
        let cut_off = CutOff::new(lease, [&workflow, &workflow]).await;
        let handle = cut_off.engines[0].start(&workflow, ()).workflow_id("x").await.unwrap();
        cut_off.proxy.stall();
        let began = Instant::now();
        while began.elapsed() <= lease {
            wait_for_heartbeats(&cut_off.stores[1], 1).await;
        }
        code_latch.open();
        passed.wait_for(1).await;
        assert_eq!(bodies.get(), 0, "another worker may run the bodies by now");
        Self { cut_off, handle, bodies }
    }
}

#[test]
fn step_body_waits_for_heartbeat_after_lease_expiry() {
    case(async || {
        let LateRun { cut_off, handle, bodies } = LateRun::new().await;
        cut_off.proxy.open();
        handle.result().await.unwrap();
        assert_eq!((bodies.get(), row(&cut_off.engines[0], "x").await.recoveries), (2, 0));
        cut_off.shut_down().await;
    });
}

/// The lease in the database may have expired while the reply was under way.
#[test]
fn lease_counts_from_when_its_renewal_was_requested() {
    case(async || {
        let lease = Duration::from_secs(2);
        let (code_latch, passed, bodies) = (Latch::new(), Count::new(), Count::new());
        let shared = (code_latch.clone(), passed.clone(), bodies.clone());
        let workflow = Workflow::new("late", move |mut cx: Context, (): ()| {
            let (code_latch, passed, bodies) = shared.clone();
            async move {
                code_latch.wait().await;
                let step = |mut cx: Context| async move {
                    cx.step("s", || std::future::ready(BodyResult::Ok(bodies.increment()))).await
                };
                // polled after the step, in the same turn
                let last = |_| async { passed.increment() };
                cx.join(step, last).await.0
            }
        });
        let schema = PostgresServer::shared().fresh_schema_name();
        let clock = Arc::new(TestClock::frozen(TEST_EPOCH));
        let options = PostgresOptions::default().schema(schema).clock(clock).lease(lease);
        let store = store(PostgresServer::shared().url(), options).await;
        let engine = open(store.clone(), |b| b.register(&workflow)).await;
        let handle = engine.start(&workflow, ()).workflow_id("x").await.unwrap();
        let renewals = store.hold_calls(&[Call::Renew]);
        store.wait_until_called(Call::Renew, renewals + 1).await;
        // all later renewals fail
        store.make_unavailable(&[Call::Renew]);
        let began = Instant::now();
        while began.elapsed() <= lease {
            row(&engine, "x").await;
        }
        code_latch.open();
        passed.wait_for(1).await;
        store.release();
        store.wait_until_called(Call::Renew, renewals + 3).await;
        assert_eq!(bodies.get(), 0, "another worker may run the body by now");
        store.heal();
        assert_eq!(handle.result().await.unwrap(), 1);
        shut_down(engine).await;
    });
}

#[test]
fn step_body_never_begins_after_cancel_during_disconnect() {
    case(async || {
        let LateRun { cut_off, handle, bodies } = LateRun::new().await;
        assert_eq!(cut_off.engines[1].cancel("x").await.unwrap(), RequestResult::Pending);
        cut_off.proxy.open();
        let error = handle.result().await.unwrap_err();
        assert!(matches!(error, Error::Cancelled(_)), "{error}");
        cut_off.shut_down().await;
        assert_eq!(bodies.get(), 0);
    });
}

#[test]
fn step_body_never_begins_in_worker_that_was_taken_over() {
    case(async || {
        let LateRun { cut_off, handle, bodies } = LateRun::new().await;
        cut_off.clock.advance(LONG_LEASE);
        cut_off.engines[1].get::<()>("x").await.unwrap().result().await.unwrap();
        cut_off.proxy.open();
        handle.result().await.unwrap();
        cut_off.shut_down().await;
        assert_eq!(bodies.get(), 2, "only the bodies of the second worker");
    });
}
