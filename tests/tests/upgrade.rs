//! Upgrades under load: processes of two versions of the engine, or of the program, on one database. What was accepted
//! completes as promised, and no process stops but those that must, which say what to do.
//!
//! The later version of the engine is this build with one more migration ([`later`]). Processes of the version before run
//! without it; the test itself is of the later version. `STEPFAST_CHAOS=long` asks for more processes and more rounds.

#![allow(clippy::unwrap_used, clippy::print_stdout)] // a test with a main of its own

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use libtest_mimic::{Arguments, Failed, Trial};
use rustix::process::Signal;
use stepfast::store::Filter;
use stepfast_tests::chaos::Form;
use stepfast_tests::chaos::hand::{Fate, Heard, MayEnd, Terms};
use stepfast_tests::chaos::pace::Dent;
use stepfast_tests::chaos::site::Site;
use stepfast_tests::chaos::worker::{self, Calls, Role};
use stepfast_tests::later;
use stepfast_tests::postgres_server::PostgresServer;

type Case = (&'static str, fn(Site) -> futures_util::future::LocalBoxFuture<'static, Site>);

const CASES: [Case; 6] = [
    ("old_workers_hand_on_and_later_ones_complete", |site| Box::pin(rolling(site))),
    ("a_worker_that_dies_as_it_hands_on_loses_nothing", |site| Box::pin(killed(site))),
    ("a_worker_that_stood_still_records_nothing_more", |site| Box::pin(stopped(site))),
    ("an_older_program_is_refused_and_changes_nothing", |site| Box::pin(refused(site))),
    ("an_idle_client_of_the_version_before_ends", |site| Box::pin(idle(site))),
    ("versions_of_a_program_run_side_by_side", |site| Box::pin(programs(site))),
];

fn main() -> ExitCode {
    if worker::run_if_asked() {
        return ExitCode::SUCCESS;
    }
    later::become_later();
    let form = match std::env::var("STEPFAST_CHAOS").as_deref() {
        Ok("long") => Form::Long,
        _ => Form::Short,
    };
    let mut arguments = Arguments::from_args();
    // they wait for leases and for the end of drains most of the time
    arguments.test_threads.get_or_insert(6);
    let mut trials = Vec::new();
    for (name, run) in CASES {
        for is_sqlite in [false, true] {
            let store = if is_sqlite { "sqlite" } else { "postgres" };
            trials.push(Trial::test(format!("{store}::{name}"), move || {
                (0..form.pick(1, 5)).try_for_each(|_| on_site(is_sqlite, form, run))
            }));
        }
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Runs a case on a database of its own, and checks all that it leaves.
fn on_site(
    is_sqlite: bool,
    form: Form,
    run: fn(Site) -> futures_util::future::LocalBoxFuture<'static, Site>,
) -> Result<(), Failed> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let violations = runtime.block_on(async {
        let mut site =
            if is_sqlite { Site::sqlite(form) } else { Site::on(PostgresServer::shared(), form).await };
        let bodies = witness(&mut site);
        let mut site = run(site).await;
        if !is_sqlite {
            let strangers = site.number("SELECT count(*) FROM strangers").await;
            site.expect(strangers == Some(0), || {
                format!("{strangers:?} rows were changed by the version before")
            });
        }
        let later: Vec<bool> = site.hands.iter().map(|hand| hand.is_later).collect();
        let mut report = site.finish("upgrade", 1, Dent::default()).await;
        println!("    {report}");
        let bodies = bodies.lock().unwrap();
        let (bodies, later) = (&*bodies, &later);
        let of = |is_later| bodies.iter().filter(move |(number, _)| later[**number] == is_later);
        let first = of(true).map(|(_, (first, _))| *first).min();
        let last = of(false).map(|(_, (_, last))| *last).max();
        if last.is_some() && first <= last {
            report.violations.push(format!(
                "a body began in the version before at {last:?}, in the later one at {first:?}"
            ));
        }
        report.violations
    });
    if violations.is_empty() { Ok(()) } else { Err(violations.join("\n").into()) }
}

/// When the first and the last body began in each process.
type Bodies = Arc<Mutex<BTreeMap<usize, (i64, i64)>>>;

fn witness(site: &mut Site) -> Bodies {
    let bodies = Bodies::default();
    let seen = bodies.clone();
    site.listener = Some(Box::new(move |heard: &Heard| {
        let mut words = heard.line.as_deref().unwrap_or_default().split(' ');
        if let (Some("body"), Some(Ok(at))) = (words.next(), words.next().map(str::parse::<i64>)) {
            let mut bodies = seen.lock().unwrap();
            let (first, last) = bodies.entry(heard.number).or_insert((at, at));
            (*first, *last) = ((*first).min(at), (*last).max(at));
        }
    }));
    bodies
}

/// A process of the version before, which ends when the schema is that of the later one.
fn before(site: &Site, role: Role, calls: Calls, callers: u32) -> Terms {
    let url = (!site.is_sqlite()).then(|| format!("{}?application_name={}", site.url, later::BEFORE));
    Terms { url, role, calls, callers, may_end: MayEnd::Telling, ..Terms::default() }
}

/// A process of the later version.
fn after(role: Role, callers: u32) -> Terms {
    Terms { role, callers, is_later: true, calls: Calls::Queued, ..Terms::default() }
}

/// Waits for the last words of a process.
async fn ended(site: &mut Site, number: usize) -> String {
    site.hear_until("a process that ends by itself", |site| site.hands[number].last_words.is_some()).await;
    site.hands[number].last_words.clone().unwrap_or_default()
}

/// Notes a violation unless each of these processes ends by itself, with words that say why and what to do.
async fn expect_ends(site: &mut Site, numbers: &[usize], words: &[&str]) {
    for &number in numbers {
        let told = ended(site, number).await;
        let is_so = words.iter().all(|words| told.contains(words));
        site.expect(is_so, || format!("process {number} told {told:?}, without {words:?}"));
    }
}

/// Words of the last line of an engine whose version is too old.
const OUTDATED: [&str; 3] = ["outdated", "SF-0014", "upgrade the program"];

/// Begins to bring the schema to the later version as the documentation says: on Postgres by `stepfast db migrate`, on
/// SQLite by a first worker. Returns the process.
fn migrate(site: &mut Site) -> usize {
    let terms = if site.is_sqlite() { after(Role::Worker, 2) } else { after(Role::Operator, 0) };
    site.hire(&Terms { may_end: MayEnd::Telling, ..terms })
}

/// Waits until the schema is that of the later version.
async fn until_migrated(site: &mut Site) {
    let ask = "SELECT CAST(max(version) AS BIGINT) FROM schema_version";
    site.until_number("the later schema", ask, |version| version == later::VERSION).await;
}

/// Workers and a client of the version before, under load.
async fn old_site(site: &mut Site, workers: usize, calls: Calls) -> Vec<usize> {
    let mut old = site.hire_some(workers, &before(site, Role::Worker, calls, 3));
    old.push(site.hire(&before(site, Role::Client, Calls::Queued, 6)));
    site.until_registered(workers + 1).await;
    site.ends_of_each(5).await;
    old
}

/// Workers and a client of the later version: all goes on.
async fn later_site(site: &mut Site) {
    let mut hired = site.hire_some(site.form.pick(2, 4), &after(Role::Worker, 3));
    hired.push(site.hire(&after(Role::Client, 6)));
    let has_ends = |site: &Site| hired.iter().all(|n| site.hands[*n].ends >= 20);
    site.hear_until("ends told by later processes", has_ends).await;
}

async fn rolling(mut site: Site) -> Site {
    let workers = site.form.pick(3, 6);
    let old = old_site(&mut site, workers, Calls::Ferries).await;
    if !site.is_sqlite() {
        // a worker of the later version that comes too early stops no other
        let early = site.hire(&Terms { may_end: MayEnd::Telling, ..after(Role::Worker, 2) });
        let words =
            ["refused", "SF-0013", "workers of an older program use it: ", "(pid ", "stepfast db migrate"];
        expect_ends(&mut site, &[early], &words).await;
        let named = ended(&mut site, early).await.matches("(pid ").count();
        site.expect(named == workers, || format!("{named} of {workers} workers are named"));
        site.ends_of_each(3).await;
    }
    migrate(&mut site);
    expect_ends(&mut site, &old, &OUTDATED).await;
    until_migrated(&mut site).await;
    later_site(&mut site).await;
    site
}

async fn killed(mut site: Site) -> Site {
    let workers = site.form.pick(3, 6);
    let old = old_site(&mut site, workers, Calls::Ferries).await;
    migrate(&mut site);
    let asked = "SELECT CAST(oldest_engine AS BIGINT) FROM shard";
    site.until_number("workers that are asked to end", asked, |oldest| oldest == later::VERSION).await;
    // its ferry keeps it alive for a while
    site.hands[old[0]].kill();
    expect_ends(&mut site, &old[1..], &OUTDATED).await;
    until_migrated(&mut site).await;
    later_site(&mut site).await;
    site
}

async fn stopped(mut site: Site) -> Site {
    let workers = site.form.pick(3, 6);
    let old = old_site(&mut site, workers, Calls::Queued).await;
    let (still, going) = old.split_first().unwrap();
    stop_apart(&mut site, *still).await;
    if site.is_sqlite() {
        // its lock does not run out
        let first = migrate(&mut site);
        expect_ends(&mut site, going, &OUTDATED).await;
        let words = ["refused", "SF-0013", "still have it open", "end them, then open it again"];
        expect_ends(&mut site, &[first], &words).await;
        site.hands[*still].signal(Signal::CONT);
        expect_ends(&mut site, &[*still], &OUTDATED).await;
    } else {
        let second = going[0];
        stop_apart(&mut site, second).await;
        migrate(&mut site);
        expect_ends(&mut site, &going[1..], &OUTDATED).await;
        until_migrated(&mut site).await;
        // the first continues before its takeover, the second after it
        site.hands[*still].signal(Signal::CONT);
        expect_ends(&mut site, &[*still], &OUTDATED).await;
        later_site(&mut site).await;
        let living = site.working().len() as i64 - 1;
        site.until_number("a takeover", "SELECT count(*) FROM workers", |it| it == living).await;
        site.hands[second].signal(Signal::CONT);
        expect_ends(&mut site, &[second], &OUTDATED).await;
    }
    later_site(&mut site).await;
    site
}

/// Stops a worker, and on SQLite not in the middle of a transaction, which would hold up every process.
async fn stop_apart(site: &mut Site, number: usize) {
    loop {
        site.hands[number].signal(Signal::STOP);
        let enough = site.pace.count() + 20;
        for _ in 0..60 {
            site.hear_for(Duration::from_millis(50)).await;
            if site.pace.count() >= enough || !site.is_sqlite() {
                return;
            }
        }
        site.hands[number].signal(Signal::CONT);
    }
}

async fn refused(mut site: Site) -> Site {
    later_site(&mut site).await;
    let state = "SELECT CAST(1000 * count(*) + max(version) AS BIGINT) FROM schema_version";
    let oldest = "SELECT CAST(1000 * number + oldest_engine AS BIGINT) FROM shard";
    let workers = "SELECT max(worker_id) FROM workers";
    let mut found = Vec::new();
    for ask in [state, oldest, workers] {
        found.push(site.number(ask).await);
    }
    let words = ["refused", "SF-0014", "schema version 90", "upgrade the program"];
    for role in [Role::Worker, Role::Client, Role::Operator] {
        let old = site.hire(&before(&site, role, Calls::Queued, 2));
        expect_ends(&mut site, &[old], &words).await;
    }
    for (ask, found) in [state, oldest, workers].into_iter().zip(found) {
        let now = site.number(ask).await;
        site.expect(now == found, || format!("{ask} was {found:?} and is {now:?}"));
    }
    site.ends_of_each(10).await;
    site
}

async fn idle(mut site: Site) -> Site {
    let client = site.hire(&before(&site, Role::Client, Calls::Orders, 0));
    site.until_registered(1).await;
    if !site.is_sqlite() {
        // a migration that cannot have its locks changes nothing, and keeps others waiting for ten seconds at most
        site.rows("BEGIN; LOCK TABLE executions IN ACCESS SHARE MODE").await.unwrap();
        let held = migrate(&mut site);
        let words = ["refused", "SF-0013", "lock timeout", "pg_locks", "nothing was changed"];
        expect_ends(&mut site, &[held], &words).await;
        site.rows("ROLLBACK").await.unwrap();
        site.expect(site.hands[client].last_words.is_none(), || "the client has ended".to_owned());
    }
    migrate(&mut site);
    expect_ends(&mut site, &[client], &OUTDATED).await;
    until_migrated(&mut site).await;
    later_site(&mut site).await;
    site
}

/// Two versions of a program on one schema, one after the other and together, and back again. What a version starts runs in
/// that version; what a client starts runs in any.
async fn programs(mut site: Site) -> Site {
    let (ran, by) = (Arc::<Mutex<BTreeMap<String, BTreeSet<usize>>>>::default(), site.listener.take());
    let (seen, mut by) = (ran.clone(), by.unwrap());
    site.listener = Some(Box::new(move |heard: &Heard| {
        by(heard);
        let words: Vec<&str> = heard.line.as_deref().unwrap_or_default().split(' ').collect();
        if let ["body", _, execution, ..] = words[..] {
            seen.lock().unwrap().entry(execution.to_owned()).or_default().insert(heard.number);
        }
    }));
    let of = |version: &str| Terms {
        environment: vec![(worker::APP_VERSION, version.to_owned())],
        ..after(Role::Worker, 4)
    };
    let mut versions = vec![Some("1"), Some("1")];
    let first = site.hire_some(2, &of("1"));
    site.ends_of_each(5).await;
    // on a new database the first worker makes the schema
    site.hire(&after(Role::Client, 4));
    versions.push(None);
    site.ends_of_each(5).await;
    site.hire_some(2, &of("2"));
    versions.extend([Some("2"); 2]);
    site.ends_of_each(10).await;
    // the first version goes in the middle of its work, all of it: what it began waits for it
    for &number in &first {
        site.hands[number].ask("leave");
    }
    let has_left = |site: &Site| first.iter().all(|n| site.hands[*n].fate == Fate::Left);
    site.hear_until("the first version has left", has_left).await;
    let pinned = "SELECT count(*) FROM executions WHERE app_version = '1' AND status IN (0, 1, 3)";
    let waiting = site.number(pinned).await;
    site.expect(waiting > Some(0), || "the first version has left nothing behind".into());
    site.ends_of_each(20).await;
    let waits = site.number("SELECT count(*) FROM executions WHERE app_version = '1' AND status < 4").await;
    site.expect(waits == waiting, || {
        format!("of {waiting:?} executions of the first version {waits:?} wait")
    });
    // and comes back, as after a rollback
    site.hire_some(2, &of("1"));
    versions.extend([Some("1"); 2]);
    site.ends_of_each(10).await;
    site.until_number("what waited for its version", pinned, |left| left < 8).await;
    let keys = "SELECT CAST(count(*) AS BIGINT) FROM executions WHERE app_version IS NULL AND status = 4";
    let free = site.number(keys).await;
    site.expect(free > Some(0), || "nothing that a client started has run".into());
    let pins = pins(&site).await;
    for (execution, numbers) in &*ran.lock().unwrap() {
        let Some(Some(pin)) = pins.get(execution) else { continue };
        let strange = numbers.iter().find(|number| versions[**number].is_some_and(|version| version != pin));
        site.expect(strange.is_none(), || {
            format!("{execution} of version {pin} ran in {:?}", strange.map(|number| versions[*number]))
        });
    }
    site
}

/// The versions that executions are pinned to.
async fn pins(site: &Site) -> BTreeMap<String, Option<String>> {
    let store = stepfast::connect(&site.url).await.unwrap();
    let all = store.list(&Filter { limit: 1_000_000, ..Filter::default() }).await.unwrap().executions;
    all.iter().map(|row| (row.key.to_string(), row.app_version.as_deref().map(str::to_owned))).collect()
}
