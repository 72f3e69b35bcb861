//! Postgres away for real: a server that is not there, one that crashes and comes back, and a network that
//! stands still. What must be true of any store whose calls fail is in the suite of faults.

#![allow(clippy::unwrap_used)] // this is test code

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use stepfast::store::{RequestResult, Filter};
use stepfast::{Context, Engine, Error, ErrorKind, Handle, PostgresOptions, PostgresStore, Workflow};
use stepfast_tests::clock::TestClock;
use stepfast_tests::fault_store::{Call, FaultStore};
use stepfast_tests::fixture::EPOCH;
use stepfast_tests::postgres_server::PostgresServer;
use stepfast_tests::scenarios::kit::{Count, Latch, Returns, open, record, row, shut_down};
use stepfast_tests::scenarios::within;
use stepfast_tests::standing_proxy::StandingProxy;
use tokio::task::JoinHandle;
use tokio::time::Instant;

const PATIENCE: Duration = Duration::from_secs(120);
/// Says for how many seconds a server is away that is really stopped, instead of five: at most 90.
const AWAY_VARIABLE: &str = "STEPFAST_TEST_OUTAGE_SECONDS";
/// A lease that runs out in no test on a machine that is not out of its mind.
const LONG: Duration = Duration::from_secs(1000);

fn case<F: Future<Output = ()>>(run: impl FnOnce() -> F + Send + 'static) {
    if let Err(error) = within(PATIENCE, |runtime| runtime.block_on(run())) {
        panic!("{error}");
    }
}

async fn store(url: &str, options: PostgresOptions) -> Arc<FaultStore> {
    FaultStore::wrap(Arc::new(PostgresStore::open_with(url, options).await.unwrap()))
}

/// How often the body of each step has begun, by input and number.
type Bodies = Arc<Mutex<BTreeMap<(u32, u32), u32>>>;

/// A workflow with steps in a row, each of which counts its bodies, waits for the latch, and returns its own
/// number.
#[derive(Clone)]
struct Load {
    workflow: Workflow<(u32, u32), Vec<u32>>,
    bodies: Bodies,
    begun: Count,
    latch: Latch,
}

impl Load {
    fn new() -> Self {
        Self::counting(Arc::default())
    }

    fn counting(bodies: Bodies) -> Self {
        let (begun, latch) = (Count::new(), Latch::new());
        let counted = (bodies.clone(), begun.clone(), latch.clone());
        let workflow = Workflow::new("load", move |mut cx: Context, (n, steps): (u32, u32)| {
            let counted = counted.clone();
            async move {
                let mut values = Vec::new();
                for i in 0..steps {
                    let value = cx.step(format!("step {i}"), async || {
                        let (bodies, begun, latch) = &counted;
                        *bodies.lock().unwrap().entry((n, i)).or_default() += 1;
                        begun.more();
                        latch.passed().await;
                        Returns::Ok(i)
                    });
                    values.push(value.await?);
                }
                Returns::Ok(values)
            }
        });
        Self { workflow, bodies, begun, latch }
    }

    fn run(&self, engine: &Engine, n: u32, steps: u32) -> JoinHandle<Result<Vec<u32>, Error>> {
        let (engine, workflow) = (engine.clone(), self.workflow.clone());
        tokio::spawn(async move { engine.run(&workflow, (n, steps)).workflow_id(n.to_string()).await })
    }

    /// All of `runs` have ended well, each step has one outcome, and one body if its execution was not
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

/// Waits until the engine on `store` has looked so many times more.
async fn looks(store: &FaultStore, times: usize) {
    store.until_called(Call::Look, store.called(Call::Look) + times).await;
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
        // a role that may do nothing here
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
        assert!(text.starts_with("cannot reach") && !text.contains("not known"), "{text}");
        // it was there when the store was opened
        let error = Engine::builder(opened).open().await.map(drop).unwrap_err();
        assert_eq!((error.kind(), error.code()), (ErrorKind::Unavailable, "SF-0035"), "{error}");
        assert!(error.to_string().contains(&at) && !error.to_string().contains("not known"), "{error}");
        // somebody takes the connection and never says a word
        let deaf = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let at = deaf.local_addr().unwrap();
        let error = stepfast::connect(&format!("postgres://me@{at}/shop?connect_timeout=1")).await;
        let error = error.map(drop).unwrap_err();
        assert_eq!((error.kind(), error.code()), (ErrorKind::Unavailable, "SF-0035"), "{error}");
        assert!(error.to_string().contains("did not answer within 1s"), "{error}");
    });
}

#[test]
fn server_crash_under_load_loses_nothing() {
    case(async || {
        let server = Arc::new(PostgresServer::start());
        let tell = async |what: fn(&PostgresServer)| {
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
            load.begun.reaches((round * 400 + 150) as usize).await;
            tell(PostgresServer::stop).await;
            // callers without patience get their error, the others wait
            let start = engine.start(&load.workflow, (1000 + round, 1)).workflow_id(format!("in {round}"));
            let error = start.wait_at_most(Duration::from_millis(20)).await.map(drop).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            store.until_called(Call::Commit, store.called(Call::Commit) + 3).await;
            looks(&store, 2).await;
            tell(PostgresServer::start_again).await;
        }
        load.check(&engine, runs, 4).await;
        for round in 0..3 {
            // the same start again finds what was staged although its caller had given up
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
        let proxy = StandingProxy::to(server.url()).await;
        let url = proxy.url(server.url());
        let options = PostgresOptions::default().lease(LONG);
        let (one, two) = (store(&url, options.clone()).await, store(&url, options).await);
        let engines = [
            open(one.clone(), |b| b.register(&load.workflow)).await,
            open(two.clone(), |b| b.register(&load.workflow)).await,
        ];
        let runs: Vec<_> = (0..20).map(|n| load.run(&engines[n as usize % 2], n, 2)).collect();
        load.begun.reaches(20).await;
        proxy.cut();
        looks(&one, 2).await;
        looks(&two, 2).await;
        // the lease of everybody is long over when the server comes back
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
        // one is back long before the other
        two.hold(&[Call::Look]);
        proxy.open();
        looks(&one, 5).await;
        two.release();
        looks(&two, 3).await;
        load.latch.open();
        load.check(&engines[0], runs, 2).await;
        for n in 0..20 {
            assert_eq!(row(&engines[1], &n.to_string()).await.recoveries, 0, "nobody was lost");
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
        let tell = async |what: fn(&PostgresServer)| {
            let server = server.clone();
            tokio::task::spawn_blocking(move || what(&server)).await.unwrap();
        };
        let load = Load::new();
        let nap = Workflow::new("nap", |mut cx: Context, (): ()| async move {
            // over while the server is away
            cx.sleep(Duration::from_secs(2)).await;
            cx.step("after", async || Returns::Ok(())).await
        });
        let stores = [store(server.url(), options.clone()).await, store(server.url(), options.clone()).await];
        let with = |b: stepfast::EngineBuilder| {
            b.register(&load.workflow).register(&nap).suspend_after(Duration::from_millis(100))
        };
        let engines = [open(stores[0].clone(), with).await, open(stores[1].clone(), with).await];
        let mut runs: Vec<_> = (0..40).map(|n| load.run(&engines[n as usize % 2], n, 3)).collect();
        load.begun.reaches(40).await;
        let naps = [engines[0].start(&nap, ()).await.unwrap(), engines[1].start(&nap, ()).await.unwrap()];
        let registered = stores.each_ref().map(|store| store.called(Call::Register));
        tell(PostgresServer::stop).await;
        let began = Instant::now();
        // what callers bring meanwhile waits, and so does what the bodies bring
        runs.extend((40..60).map(|n| load.run(&engines[n as usize % 2], n, 3)));
        load.latch.open();
        let mut refused = 0;
        while began.elapsed() <= away {
            for engine in &engines {
                let start =
                    engine.start(&load.workflow, (100 + refused, 1)).workflow_id(format!("in {refused}"));
                let error = start.wait_at_most(Duration::from_millis(200)).await.map(drop).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                refused += 1;
            }
            looks(&stores[0], 1).await;
            assert!(runs.iter().all(|run| !run.is_finished()));
        }
        tell(PostgresServer::start_again).await;
        load.check(&engines[0], runs, 3).await;
        for n in 0..refused {
            // what was staged although its caller had given up
            let start = engines[1].start(&load.workflow, (100 + n, 1)).workflow_id(format!("in {n}"));
            assert_eq!(start.await.unwrap().result().await.unwrap(), [0]);
        }
        for nap in naps {
            nap.result().await.unwrap();
        }
        let all = Filter { limit: 1000, ..Filter::default() };
        let rows = engines[0].list(&all).await.unwrap().executions;
        assert_eq!(rows.len(), 62 + refused as usize);
        for row in rows {
            assert_eq!((row.recoveries, row.status), (0, stepfast::Status::Completed), "nobody was lost");
        }
        // both are still who they were
        assert_eq!(stores.each_ref().map(|store| store.called(Call::Register)), registered);
        let bodies = load.bodies.lock().unwrap().clone();
        assert!(bodies.len() == 180 + refused as usize && bodies.values().all(|count| *count == 1));
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
        let proxy = StandingProxy::to(url).await;
        let options = PostgresOptions::default().schema(PostgresServer::shared().schema()).lease(LONG);
        let store = store(&proxy.url(url), options).await;
        let engine = open(store.clone(), |b| b.register(&load.workflow)).await;
        let mut runs = Vec::new();
        for round in 0..10 {
            runs.extend((0..30).map(|n| load.run(&engine, round * 30 + n, 3)));
            load.begun.reaches((round * 90 + 40) as usize).await;
            proxy.stand_still();
            let called = store.called(Call::Commit);
            let run = engine.run(&load.workflow, (1000 + round, 1)).wait_at_most(Duration::from_millis(10));
            let error = run.await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            // sometimes the connections do not survive it
            if round % 2 == 1 {
                proxy.cut();
                store.until_called(Call::Commit, called + 3).await;
            }
            proxy.open();
        }
        load.check(&engine, runs, 3).await;
        // hands back or ends what nobody waits for any more
        shut_down(engine).await;
        let bodies = load.bodies.lock().unwrap();
        assert!(bodies.values().all(|count| *count == 1), "{bodies:?}");
    });
}

/// Two engines on one database, of which the first has a way that can stand still.
struct CutOff {
    proxy: StandingProxy,
    clock: Arc<TestClock>,
    stores: [Arc<FaultStore>; 2],
    engines: [Engine; 2],
}

impl CutOff {
    /// The database's clock stands still: no lease runs out there before a test says so.
    async fn new<I, O>(lease: Duration, workflows: [&Workflow<I, O>; 2]) -> Self {
        let url = PostgresServer::shared().url();
        let clock = Arc::new(TestClock::standing(EPOCH));
        let proxy = StandingProxy::to(url).await;
        let schema = PostgresServer::shared().schema();
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
        // the same workflow in another process, with a latch of its own
        let next = Load::counting(load.bodies.clone());
        let cut_off = CutOff::new(LONG, [&load.workflow, &next.workflow]).await;
        let CutOff { proxy, clock, stores, engines } = &cut_off;
        let mut runs: Vec<_> = (0..30).map(|n| load.run(&engines[0], n, 2)).collect();
        load.begun.reaches(30).await;
        proxy.stand_still();
        // outcomes of the first bodies and starts of callers are on their way, and stay so
        let called = stores[0].called(Call::Commit);
        load.latch.open();
        stores[0].until_called(Call::Commit, called + 2).await;
        runs.extend((30..40).map(|n| load.run(&engines[0], n, 2)));
        clock.advance(LONG * 2);
        next.begun.reaches(30).await;
        let registered = stores[0].called(Call::Register);
        proxy.open();
        stores[0].until_called(Call::Register, registered + 1).await;
        for n in 0..30 {
            let record = record(&engines[1], &n.to_string()).await;
            assert_eq!((record.checkpoints.len(), record.execution.recoveries), (0, 1), "of execution {n}");
        }
        next.latch.open();
        load.check(&engines[1], runs, 2).await;
        cut_off.shut_down().await;
    });
}

/// A run that comes to bodies when its worker has not been able to renew for longer than its lease.
struct Late {
    cut_off: CutOff,
    handle: Handle<()>,
    bodies: Count,
}

impl Late {
    /// The lease is over by the worker's own clock, the code has come to its steps, and no body has begun.
    async fn new() -> Self {
        let lease = Duration::from_secs(2);
        let (gate, passed, bodies) = (Latch::new(), Count::new(), Count::new());
        let shared = (gate.clone(), passed.clone(), bodies.clone());
        let workflow = Workflow::new("late", move |mut cx: Context, (): ()| {
            let (gate, passed, bodies) = shared.clone();
            async move {
                gate.passed().await;
                let bodies = &bodies;
                let body = || async move {
                    bodies.more();
                    Returns::Ok(())
                };
                let plain = |mut cx: Context| async move { cx.step("plain", body).await };
                let speculative =
                    |mut cx: Context| async move { cx.step("speculative", body).speculative().await };
                let steps = |mut cx: Context| async move { cx.join(plain, speculative).await };
                // after the two in the same turn
                let last = |_| async { passed.more() };
                let ((plain, speculative), _) = cx.join(steps, last).await;
                plain.and(speculative)
            }
        });
        let cut_off = CutOff::new(lease, [&workflow, &workflow]).await;
        let handle = cut_off.engines[0].start(&workflow, ()).workflow_id("x").await.unwrap();
        cut_off.proxy.stand_still();
        let began = Instant::now();
        while began.elapsed() <= lease {
            looks(&cut_off.stores[1], 1).await;
        }
        gate.open();
        passed.reaches(1).await;
        assert_eq!(bodies.get(), 0, "another worker may run them by now");
        Self { cut_off, handle, bodies }
    }
}

#[test]
fn step_body_waits_for_heartbeat_after_lease_expiry() {
    case(async || {
        let Late { cut_off, handle, bodies } = Late::new().await;
        cut_off.proxy.open();
        handle.result().await.unwrap();
        assert_eq!((bodies.get(), row(&cut_off.engines[0], "x").await.recoveries), (2, 0));
        cut_off.shut_down().await;
    });
}

#[test]
fn step_body_never_begins_after_cancel_during_disconnect() {
    case(async || {
        let Late { cut_off, handle, bodies } = Late::new().await;
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
        let Late { cut_off, handle, bodies } = Late::new().await;
        cut_off.clock.advance(LONG);
        cut_off.engines[1].get::<()>("x").await.unwrap().result().await.unwrap();
        cut_off.proxy.open();
        handle.result().await.unwrap();
        cut_off.shut_down().await;
        assert_eq!(bodies.get(), 2, "those of the second worker");
    });
}
