//! Upgrades under load: processes of two versions of the engine, or of the program, on one database. Accepted
//! executions complete as promised. Only processes that must stop do so, with a message that says what to do.
//!
//! The later version of the engine is this build with one more migration ([`later_version`]). Processes of the earlier version
//! run without it; the test itself is of the later version. `STEPFAST_CHAOS=long` runs more processes and more rounds.

#![allow(clippy::unwrap_used, clippy::print_stdout)] // a test with a main of its own

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use libtest_mimic::{Arguments, Failed, Trial};
use rustix::process::Signal;
use stepfast::store::Filter;
use stepfast_tests::chaos::Form;
use stepfast_tests::chaos::deployment::Deployment;
use stepfast_tests::chaos::throughput::FaultImpact;
use stepfast_tests::chaos::worker::{self, CallKind, Role};
use stepfast_tests::chaos::worker_process::{AllowedExit, ProcessState, WorkerEvent, WorkerOptions};
use stepfast_tests::fixtures::later_version;
use stepfast_tests::fixtures::postgres_server::PostgresServer;

type Case = (&'static str, fn(Deployment) -> futures_util::future::LocalBoxFuture<'static, Deployment>);

const CASES: [Case; 6] = [
    ("old_workers_requeue_and_later_workers_complete", |deployment| Box::pin(rolling(deployment))),
    ("worker_killed_while_requeueing_loses_nothing", |deployment| Box::pin(killed(deployment))),
    ("stopped_worker_records_nothing_after_migration", |deployment| Box::pin(stopped(deployment))),
    ("older_program_is_rejected_and_changes_nothing", |deployment| Box::pin(rejected(deployment))),
    ("idle_client_of_earlier_version_stops", |deployment| Box::pin(idle(deployment))),
    ("program_versions_run_side_by_side", |deployment| Box::pin(programs(deployment))),
];

fn main() -> ExitCode {
    if worker::run_if_requested() {
        return ExitCode::SUCCESS;
    }
    later_version::become_later();
    let form = Form::from_variable("STEPFAST_CHAOS");
    let mut arguments = Arguments::from_args();
    // cases wait for leases and for the end of drains most of the time
    arguments.test_threads.get_or_insert(6);
    let mut trials = Vec::new();
    for (name, run) in CASES {
        for is_sqlite in [false, true] {
            let store = if is_sqlite { "sqlite" } else { "postgres" };
            trials.push(Trial::test(format!("{store}::{name}"), move || {
                (0..form.pick(1, 5)).try_for_each(|_| run_case(is_sqlite, form, run))
            }));
        }
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Runs a case on a database of its own, and checks all its results.
fn run_case(
    is_sqlite: bool,
    form: Form,
    run: fn(Deployment) -> futures_util::future::LocalBoxFuture<'static, Deployment>,
) -> Result<(), Failed> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let violations = runtime.block_on(async {
        let mut deployment = if is_sqlite {
            Deployment::alone_on_sqlite(form)
        } else {
            Deployment::alone_on_postgres(PostgresServer::shared(), form).await
        };
        let bodies = observe_bodies(&mut deployment);
        let mut deployment = run(deployment).await;
        if !is_sqlite {
            let strangers = deployment.query_number("SELECT count(*) FROM strangers").await;
            deployment.expect(strangers == Some(0), || {
                format!("{strangers:?} rows were changed by the earlier version")
            });
        }
        let later: Vec<bool> = deployment.workers.iter().map(|hand| hand.is_later).collect();
        let mut report = deployment.finish("upgrade", 1, FaultImpact::default()).await;
        println!("    {report}");
        let bodies = bodies.lock().unwrap();
        let (bodies, later) = (&*bodies, &later);
        let of = |is_later| bodies.iter().filter(move |(number, _)| later[**number] == is_later);
        let first = of(true).map(|(_, (first, _))| *first).min();
        let last = of(false).map(|(_, (_, last))| *last).max();
        if last.is_some() && first <= last {
            report.violations.push(format!(
                "a body began in the earlier version at {last:?}, in the later one at {first:?}"
            ));
        }
        report.violations
    });
    if violations.is_empty() { Ok(()) } else { Err(violations.join("\n").into()) }
}

/// Times at which the first and the last body began, by process.
type Bodies = Arc<Mutex<BTreeMap<usize, (i64, i64)>>>;

fn observe_bodies(deployment: &mut Deployment) -> Bodies {
    let bodies = Bodies::default();
    let seen = bodies.clone();
    deployment.listener = Some(Box::new(move |heard: &WorkerEvent| {
        let mut words = heard.line.as_deref().unwrap_or_default().split(' ');
        if let (Some("body"), Some(Ok(at))) = (words.next(), words.next().map(str::parse::<i64>)) {
            let mut bodies = seen.lock().unwrap();
            let (first, last) = bodies.entry(heard.number).or_insert((at, at));
            (*first, *last) = ((*first).min(at), (*last).max(at));
        }
    }));
    bodies
}

/// Options of a process of the earlier version, which stops when the schema is that of the later version.
fn earlier_options(deployment: &Deployment, role: Role, calls: CallKind, callers: u32) -> WorkerOptions {
    let url = (!deployment.is_sqlite())
        .then(|| format!("{}?application_name={}", deployment.url, later_version::EARLIER_APPLICATION_NAME));
    WorkerOptions {
        url,
        role,
        calls,
        callers,
        allowed_exit: AllowedExit::Reported,
        ..WorkerOptions::default()
    }
}

/// Options of a process of the later version.
fn later_options(role: Role, callers: u32) -> WorkerOptions {
    WorkerOptions { role, callers, is_later: true, calls: CallKind::Queued, ..WorkerOptions::default() }
}

/// Waits for the last line of a process.
async fn wait_for_end(deployment: &mut Deployment, number: usize) -> String {
    deployment
        .wait_until("a process that ends by itself", |deployment| {
            deployment.workers[number].exit_line.is_some()
        })
        .await;
    deployment.workers[number].exit_line.clone().unwrap_or_default()
}

/// Reports a violation unless each of these processes stops by itself, with a message that contains `words`.
async fn expect_ends(deployment: &mut Deployment, numbers: &[usize], words: &[&str]) {
    for &number in numbers {
        let line = wait_for_end(deployment, number).await;
        let has_words = words.iter().all(|words| line.contains(words));
        deployment.expect(has_words, || format!("process {number} printed {line:?}, without {words:?}"));
    }
}

/// Words of the last line of an engine that is too old for the schema.
const OUTDATED: [&str; 3] = ["outdated", "SF-0014", "upgrade the program"];

/// Begins the migration to the later version as documented: on Postgres by `stepfast db migrate`, on SQLite by a first
/// worker. Returns the number of the process.
fn migrate(deployment: &mut Deployment) -> usize {
    let terms = if deployment.is_sqlite() {
        later_options(Role::Worker, 2)
    } else {
        later_options(Role::Operator, 0)
    };
    deployment.start_worker(&WorkerOptions { allowed_exit: AllowedExit::Reported, ..terms })
}

/// Waits until the schema is that of the later version.
async fn until_migrated(deployment: &mut Deployment) {
    let ask = "SELECT CAST(max(version) AS BIGINT) FROM schema_version";
    deployment
        .wait_for_number("the later schema", ask, |version| version == later_version::SCHEMA_VERSION)
        .await;
}

/// Starts workers and a client of the earlier version, under load.
async fn start_old_processes(deployment: &mut Deployment, workers: usize, calls: CallKind) -> Vec<usize> {
    let mut old = deployment.start_workers(workers, &earlier_options(deployment, Role::Worker, calls, 3));
    old.push(deployment.start_worker(&earlier_options(deployment, Role::Client, CallKind::Queued, 6)));
    deployment.wait_for_registrations(workers + 1).await;
    deployment.wait_for_ends_of_each(5).await;
    old
}

/// Starts workers and a client of the later version, and waits until they complete executions.
async fn run_later_processes(deployment: &mut Deployment) {
    let mut hired = deployment.start_workers(deployment.form.pick(2, 4), &later_options(Role::Worker, 3));
    hired.push(deployment.start_worker(&later_options(Role::Client, 6)));
    let has_ends = |deployment: &Deployment| hired.iter().all(|n| deployment.workers[*n].end_count >= 20);
    deployment.wait_until("ends reported by later processes", has_ends).await;
}

async fn rolling(mut deployment: Deployment) -> Deployment {
    let workers = deployment.form.pick(3, 6);
    let old = start_old_processes(&mut deployment, workers, CallKind::Upgrades).await;
    if !deployment.is_sqlite() {
        // a worker of the later version that starts too early stops no other worker
        let early = deployment.start_worker(&WorkerOptions {
            allowed_exit: AllowedExit::Reported,
            ..later_options(Role::Worker, 2)
        });
        let words = [
            "open-failed",
            "SF-0013",
            "workers of an older program use it: ",
            "(pid ",
            "stepfast db migrate",
        ];
        expect_ends(&mut deployment, &[early], &words).await;
        let named = wait_for_end(&mut deployment, early).await.matches("(pid ").count();
        deployment.expect(named == workers, || format!("{named} of {workers} workers are named"));
        deployment.wait_for_ends_of_each(3).await;
    }
    migrate(&mut deployment);
    expect_ends(&mut deployment, &old, &OUTDATED).await;
    until_migrated(&mut deployment).await;
    run_later_processes(&mut deployment).await;
    deployment
}

async fn killed(mut deployment: Deployment) -> Deployment {
    let workers = deployment.form.pick(3, 6);
    let old = start_old_processes(&mut deployment, workers, CallKind::Upgrades).await;
    migrate(&mut deployment);
    let asked = "SELECT CAST(oldest_engine AS BIGINT) FROM shard";
    deployment
        .wait_for_number("workers that are asked to end", asked, |oldest| {
            oldest == later_version::SCHEMA_VERSION
        })
        .await;
    // its long execution keeps it alive for a while
    deployment.workers[old[0]].kill();
    expect_ends(&mut deployment, &old[1..], &OUTDATED).await;
    until_migrated(&mut deployment).await;
    run_later_processes(&mut deployment).await;
    deployment
}

async fn stopped(mut deployment: Deployment) -> Deployment {
    let workers = deployment.form.pick(3, 6);
    let old = start_old_processes(&mut deployment, workers, CallKind::Queued).await;
    let (first, others) = old.split_first().unwrap();
    stop_outside_transaction(&mut deployment, *first).await;
    if deployment.is_sqlite() {
        // its lock does not expire
        let migrating = migrate(&mut deployment);
        expect_ends(&mut deployment, others, &OUTDATED).await;
        let words = ["open-failed", "SF-0013", "still have it open", "end them, then open it again"];
        expect_ends(&mut deployment, &[migrating], &words).await;
        deployment.workers[*first].signal(Signal::CONT);
        expect_ends(&mut deployment, &[*first], &OUTDATED).await;
    } else {
        let second = others[0];
        stop_outside_transaction(&mut deployment, second).await;
        migrate(&mut deployment);
        expect_ends(&mut deployment, &others[1..], &OUTDATED).await;
        until_migrated(&mut deployment).await;
        // the first continues before its takeover, the second after it
        deployment.workers[*first].signal(Signal::CONT);
        expect_ends(&mut deployment, &[*first], &OUTDATED).await;
        run_later_processes(&mut deployment).await;
        let living = deployment.running_workers().len() as i64 - 1;
        deployment.wait_for_number("a takeover", "SELECT count(*) FROM workers", |it| it == living).await;
        deployment.workers[second].signal(Signal::CONT);
        expect_ends(&mut deployment, &[second], &OUTDATED).await;
    }
    run_later_processes(&mut deployment).await;
    deployment
}

/// Stops a worker; on SQLite outside of a transaction, which would block every process.
async fn stop_outside_transaction(deployment: &mut Deployment, number: usize) {
    loop {
        deployment.workers[number].signal(Signal::STOP);
        let enough = deployment.throughput.end_count() + 20;
        for _ in 0..60 {
            deployment.listen_for(Duration::from_millis(50)).await;
            if deployment.throughput.end_count() >= enough || !deployment.is_sqlite() {
                return;
            }
        }
        deployment.workers[number].signal(Signal::CONT);
    }
}

async fn rejected(mut deployment: Deployment) -> Deployment {
    run_later_processes(&mut deployment).await;
    let state = "SELECT CAST(1000 * count(*) + max(version) AS BIGINT) FROM schema_version";
    let oldest = "SELECT CAST(1000 * number + oldest_engine AS BIGINT) FROM shard";
    let workers = "SELECT max(worker_id) FROM workers";
    let mut found = Vec::new();
    for ask in [state, oldest, workers] {
        found.push(deployment.query_number(ask).await);
    }
    let words = ["open-failed", "SF-0014", "schema version 90", "upgrade the program"];
    for role in [Role::Worker, Role::Client, Role::Operator] {
        let old = deployment.start_worker(&earlier_options(&deployment, role, CallKind::Queued, 2));
        expect_ends(&mut deployment, &[old], &words).await;
    }
    for (ask, found) in [state, oldest, workers].into_iter().zip(found) {
        let now = deployment.query_number(ask).await;
        deployment.expect(now == found, || format!("{ask} was {found:?} and is {now:?}"));
    }
    deployment.wait_for_ends_of_each(10).await;
    deployment
}

async fn idle(mut deployment: Deployment) -> Deployment {
    let client = deployment.start_worker(&earlier_options(&deployment, Role::Client, CallKind::Orders, 0));
    deployment.wait_for_registrations(1).await;
    if !deployment.is_sqlite() {
        // a migration that does not get its locks changes nothing, and blocks others for at most ten seconds
        deployment.query_rows("BEGIN; LOCK TABLE executions IN ACCESS SHARE MODE").await.unwrap();
        let held = migrate(&mut deployment);
        let words = ["open-failed", "SF-0013", "lock timeout", "pg_locks", "nothing was changed"];
        expect_ends(&mut deployment, &[held], &words).await;
        deployment.query_rows("ROLLBACK").await.unwrap();
        deployment
            .expect(deployment.workers[client].exit_line.is_none(), || "the client has ended".to_owned());
    }
    let migration = migrate(&mut deployment);
    expect_ends(&mut deployment, &[client], &OUTDATED).await;
    // a first worker ends if the client has not left in time, and is started again
    if deployment.is_sqlite() && deployment.workers[migration].exit_line.is_some() {
        migrate(&mut deployment);
    }
    until_migrated(&mut deployment).await;
    run_later_processes(&mut deployment).await;
    deployment
}

/// Runs two versions of a program on one schema: one after the other, together, and back again. Executions started by a
/// version run in that version; those started by a client run in any.
async fn programs(mut deployment: Deployment) -> Deployment {
    let (ran, by) = (Arc::<Mutex<BTreeMap<String, BTreeSet<usize>>>>::default(), deployment.listener.take());
    let (seen, mut by) = (ran.clone(), by.unwrap());
    deployment.listener = Some(Box::new(move |heard: &WorkerEvent| {
        by(heard);
        let words: Vec<&str> = heard.line.as_deref().unwrap_or_default().split(' ').collect();
        if let ["body", _, execution, ..] = words[..] {
            seen.lock().unwrap().entry(execution.to_owned()).or_default().insert(heard.number);
        }
    }));
    let of = |version: &str| WorkerOptions {
        environment: vec![(worker::APP_VERSION_VARIABLE, version.to_owned())],
        ..later_options(Role::Worker, 4)
    };
    let mut versions = vec![Some("1"), Some("1")];
    let first = deployment.start_workers(2, &of("1"));
    deployment.wait_for_ends_of_each(5).await;
    // on a new database, the first worker creates the schema
    deployment.start_worker(&later_options(Role::Client, 4));
    versions.push(None);
    deployment.wait_for_ends_of_each(5).await;
    deployment.start_workers(2, &of("2"));
    versions.extend([Some("2"); 2]);
    deployment.wait_for_ends_of_each(10).await;
    // all workers of the first version leave during their work: their executions wait for that version
    for &number in &first {
        deployment.workers[number].send_command("shutdown");
    }
    let has_left = |deployment: &Deployment| {
        first.iter().all(|n| deployment.workers[*n].state == ProcessState::ShutDown)
    };
    deployment.wait_until("the first version has left", has_left).await;
    let pinned = "SELECT count(*) FROM executions WHERE app_version = '1' AND status IN (0, 1, 3)";
    let waiting = deployment.query_number(pinned).await;
    deployment.expect(waiting > Some(0), || "the first version has left nothing behind".into());
    deployment.wait_for_ends_of_each(20).await;
    let waits = deployment
        .query_number("SELECT count(*) FROM executions WHERE app_version = '1' AND status < 4")
        .await;
    deployment.expect(waits == waiting, || {
        format!("of {waiting:?} executions of the first version {waits:?} wait")
    });
    // the first version returns, as after a rollback
    deployment.start_workers(2, &of("1"));
    versions.extend([Some("1"); 2]);
    deployment.wait_for_ends_of_each(10).await;
    deployment.wait_for_number("what waited for its version", pinned, |left| left < 8).await;
    let keys = "SELECT CAST(count(*) AS BIGINT) FROM executions WHERE app_version IS NULL AND status = 4";
    let free = deployment.query_number(keys).await;
    deployment.expect(free > Some(0), || "nothing that a client started has run".into());
    let pins = pins(&deployment).await;
    for (execution, numbers) in &*ran.lock().unwrap() {
        let Some(Some(pin)) = pins.get(execution) else { continue };
        let strange = numbers.iter().find(|number| versions[**number].is_some_and(|version| version != pin));
        deployment.expect(strange.is_none(), || {
            format!("{execution} of version {pin} ran in {:?}", strange.map(|number| versions[*number]))
        });
    }
    deployment
}

/// Returns the versions to which executions are pinned.
async fn pins(deployment: &Deployment) -> BTreeMap<String, Option<String>> {
    let store = stepfast::connect(&deployment.url).await.unwrap();
    let all = store.list(&Filter { limit: 1_000_000, ..Filter::default() }).await.unwrap().executions;
    all.iter().map(|row| (row.key.to_string(), row.app_version.as_deref().map(str::to_owned))).collect()
}
