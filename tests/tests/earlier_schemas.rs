//! Databases of each earlier schema, with executions in flight: the migration is killed in the middle and repeated, and then
//! the executions complete.
//!
//! The rows in `fixtures/earlier_schemas` come from the programs of that time, ended by SIGKILL. Before a migration is added,
//! `dump.py` there writes those of the current schema. Version 2 on Postgres is absent, because no program used its final text.

#![allow(clippy::unwrap_used)] // a test with a main of its own

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::Duration;

use libtest_mimic::{Arguments, Failed, Trial};
use rusqlite::Connection;
use rustix::process::{Resource, Rlimit, Signal, setrlimit};
use stepfast::Filter;
use stepfast::prelude::*;
use stepfast_tests::fixtures::in_flight::{self, Program, events, messages, queues};
use stepfast_tests::fixtures::postgres_server::PostgresServer;
use tokio::signal::unix::{SignalKind, signal};
use tokio_postgres::{Client, NoTls};

/// The environment variable that makes this process open the database of a URL, and end.
const URL_VARIABLE: &str = "STEPFAST_EARLIER_SCHEMA_URL";

/// The environment variable that limits the files of such a process, in bytes. The system kills it at the first longer write.
const FILE_LIMIT_VARIABLE: &str = "STEPFAST_EARLIER_SCHEMA_FILE_LIMIT";

/// The table of applied migrations, as it is created before the first one.
const VERSION_TABLE: &str = "CREATE TABLE schema_version \
     (version INT4 PRIMARY KEY, name VARCHAR(255), applied_on VARCHAR(255), checksum VARCHAR(255));";

/// The time in which the executions of a database complete, leases of dead workers included.
const PATIENCE: Duration = Duration::from_secs(120);

/// A kind of store, and the first versions of its schema with later features.
struct Kind {
    name: &'static str,
    /// Versions without a program of their own.
    absent: &'static [u32],
    queues_since: u32,
    messages_since: u32,
    events_since: u32,
}

const SQLITE: Kind =
    Kind { name: "sqlite", absent: &[], queues_since: 2, messages_since: 7, events_since: 8 };

const POSTGRES: Kind =
    Kind { name: "postgres", absent: &[2], queues_since: 2, messages_since: 9, events_since: 10 };

fn main() -> ExitCode {
    if let Ok(url) = std::env::var(URL_VARIABLE) {
        return open_and_end(&url);
    }
    let mut trials = Vec::new();
    for kind in [&SQLITE, &POSTGRES] {
        let newest = migrations(kind).last().unwrap().0;
        for version in 1..newest {
            if kind.absent.contains(&version) {
                continue;
            }
            trials.push(Trial::test(format!("{}::version_{version}", kind.name), move || {
                let runtime =
                    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
                let case = async {
                    if kind.name == "sqlite" { on_sqlite(version).await } else { on_postgres(version).await }
                };
                runtime.block_on(case)
            }));
        }
    }
    let mut arguments = Arguments::from_args();
    // cases wait for leases most of the time
    arguments.test_threads.get_or_insert(6);
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Returns the versions and the texts of a store's migrations, in order.
fn migrations(kind: &Kind) -> Vec<(u32, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../crates/{}/migrations", kind.name));
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        // preparations are optional
        if !name.ends_with(".before.sql") {
            let version = name[1..].split_once("__").unwrap().0.parse().unwrap();
            found.push((version, fs::read_to_string(&path).unwrap()));
        }
    }
    found.sort();
    found
}

/// Returns the script that creates the schema of a version.
fn schema_script(kind: &Kind, version: u32) -> String {
    let texts = migrations(kind).into_iter().filter(|it| it.0 <= version).map(|it| it.1);
    std::iter::once(VERSION_TABLE.to_owned()).chain(texts).collect::<Vec<_>>().join("\n")
}

/// Returns the script that inserts the rows of a version.
fn rows_script(kind: &Kind, version: u32) -> Result<String, Failed> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/earlier_schemas");
    let path: PathBuf = folder.join(format!("{}_{version}.sql", kind.name));
    fs::read_to_string(&path).map_err(|error| {
        format!("{}: {error}; write it with dump.py from a program before the migration", path.display())
            .into()
    })
}

/// Runs in a process of its own: opens a store, which migrates its schema, and ends.
fn open_and_end(url: &str) -> ExitCode {
    if let Ok(bytes) = std::env::var(FILE_LIMIT_VARIABLE) {
        let limit = |bytes| Rlimit { current: Some(bytes), maximum: Some(bytes) };
        setrlimit(Resource::Core, limit(0)).unwrap();
        setrlimit(Resource::Fsize, limit(bytes.parse().unwrap())).unwrap();
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    match runtime.block_on(stepfast::connect(url)) {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => panic!("{error}"),
    }
}

/// Starts a process that opens a store.
fn start_opening(url: &str, file_limit: Option<u64>) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env(URL_VARIABLE, url).stdout(Stdio::null());
    if let Some(limit) = file_limit {
        command.env(FILE_LIMIT_VARIABLE, limit.to_string());
    }
    command.spawn().unwrap()
}

async fn on_sqlite(version: u32) -> Result<(), Failed> {
    let directory = tempfile::tempdir()?;
    let (path, log) = (directory.path().join("flight.db"), directory.path().join("flight.db-wal"));
    let conn = Connection::open(&path)?;
    let rows = rows_script(&SQLITE, version)?;
    let is_wal: String = conn.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?;
    assert_eq!(is_wal, "wal");
    conn.execute_batch(&schema_script(&SQLITE, version))?;
    let tables = "SELECT 'DELETE FROM ' || name FROM sqlite_schema WHERE type = 'table'";
    let deletions =
        conn.prepare(tables)?.query_map([], |row| row.get(0))?.collect::<Result<Vec<String>, _>>()?;
    // some migrations insert a row
    conn.execute_batch(&deletions.join(";"))?;
    conn.execute_batch(&rows)?;
    drop(conn);
    let url = format!("sqlite:{}", path.display());
    // Some programs, such as Python, ignore this signal and pass that on to their children. A signal with a handler has
    // its default action again in a new program.
    let _handled = signal(SignalKind::from_raw(Signal::XFSZ.as_raw()))?;
    // the shorter the limit, the earlier the process is killed
    let (mut limit, mut kills, mut kills_with_log) = (4_096, 0, 0);
    loop {
        let status = start_opening(&url, Some(limit)).wait()?;
        if status.success() {
            break;
        }
        assert_eq!(status.signal(), Some(Signal::XFSZ.as_raw()), "{status}");
        kills += 1;
        kills_with_log += u32::from(fs::metadata(&log).is_ok_and(|log| log.len() > 0));
        limit += 8_192;
    }
    assert!(kills >= 3 && kills_with_log >= 1, "{kills} kills, {kills_with_log} of them with a log");
    complete(&url, &SQLITE, version).await;
    let check: String = Connection::open(&path)?.query_row("PRAGMA integrity_check", [], |row| row.get(0))?;
    assert_eq!(check, "ok");
    Ok(())
}

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// Starts a process that opens a store, and kills it once it waits for a lock. Returns its status if it ended before.
async fn open_until_blocked(sql: &Client, url: &str) -> Result<Option<ExitStatus>, Failed> {
    let of_waiting = |what: &str| {
        format!(
            "SELECT {what} FROM pg_stat_activity \
             WHERE datname = current_database() AND wait_event_type = 'Lock' AND wait_event = 'relation'"
        )
    };
    let mut process = start_opening(url, None);
    loop {
        if let Some(status) = process.try_wait()? {
            break Ok(Some(status));
        }
        if sql.execute(&of_waiting(""), &[]).await? > 0 {
            process.kill()?;
            process.wait()?;
            // as the server does once it notices that its client is gone
            sql.execute(&of_waiting("pg_terminate_backend(pid)"), &[]).await?;
            break Ok(None);
        }
    }
}

async fn on_postgres(version: u32) -> Result<(), Failed> {
    let server = PostgresServer::shared();
    let url = server.database_url(&server.create_database("earlier_schema").await);
    let (sql, holder) = (connect(&url).await, connect(&url).await);
    let rows = rows_script(&POSTGRES, version)?;
    sql.batch_execute("CREATE SCHEMA stepfast; SET search_path TO stepfast").await?;
    sql.batch_execute(&schema_script(&POSTGRES, version)).await?;
    let tables = "SELECT relname::text FROM pg_class WHERE relkind = 'r' AND relnamespace = 'stepfast'::regnamespace \
                  ORDER BY relname <> 'schema_version', relname";
    let tables: Vec<String> = sql.query(tables, &[]).await?.iter().map(|row| row.get(0)).collect();
    // some migrations insert a row
    sql.batch_execute(&format!("TRUNCATE {}", tables.join(", "))).await?;
    sql.batch_execute(&rows).await?;
    let others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
                  AND backend_type = 'client backend' AND pid NOT IN (pg_backend_pid(), $1)";
    let holder_pid: i32 = holder.query_one("SELECT pg_backend_pid()", &[]).await?.get(0);
    let mut kills = 0;
    for table in &tables {
        // the last statements insert into the first table; others need an exclusive lock on one of the other tables
        let mode = if table == "schema_version" { "SHARE" } else { "ACCESS SHARE" };
        holder.batch_execute(&format!("BEGIN; LOCK TABLE stepfast.{table} IN {mode} MODE")).await?;
        let status = open_until_blocked(&sql, &url).await?;
        while sql.query_one(others, &[&holder_pid]).await?.get::<_, i64>(0) > 0 {}
        holder.batch_execute("ROLLBACK").await?;
        let Some(status) = status else {
            kills += 1;
            continue;
        };
        assert!(status.success(), "{status}");
        break;
    }
    assert!(kills >= 1, "no migration was killed");
    complete(&url, &POSTGRES, version).await;
    Ok(())
}

/// Opens an engine of this program, and waits until it has completed the executions. Bodies that have ended in the earlier
/// program do not run again.
async fn complete(url: &str, kind: &Kind, version: u32) {
    let builder = Engine::builder(stepfast::connect(url).await.unwrap());
    let mut builder = queues::register(in_flight::register(builder, Program::Later));
    builder = events::register(messages::register(builder, Program::Later), Program::Later);
    let engine = builder.open().await.unwrap();
    let mut expected = in_flight::expected_outputs();
    if version >= kind.queues_since {
        engine.resume_queue("mails").await.unwrap();
        expected.extend(queues::expected_outputs());
    }
    if version >= kind.messages_since {
        expected.extend(messages::expected_outputs());
    }
    if version >= kind.events_since {
        expected.extend(events::expected_outputs());
        let progress: Option<String> = engine.get_event("publisher", "progress").await.unwrap();
        assert_eq!(progress, Some(in_flight::outputs(1, 1).remove(0)));
    }
    let ends = async {
        for (id, outputs) in expected {
            let found = engine.get::<Vec<String>>(id).await.unwrap().result().await;
            assert_eq!(found.unwrap_or_else(|error| panic!("{id}: {error}")), outputs, "{id}");
        }
        let failed = engine.get::<Vec<String>>("failing").await.unwrap();
        assert!(failed.result().await.unwrap_err().to_string().contains("earlier"));
        engine.resume("failing").await.unwrap();
        assert_eq!(failed.result().await.unwrap(), in_flight::outputs(1, 0));
    };
    tokio::time::timeout(PATIENCE, ends).await.unwrap_or_else(|_| panic!("not all executions have ended"));
    assert_eq!(engine.show("retrying").await.unwrap().attempts.len(), 1);
    let parent = engine.get::<Vec<String>>("parent").await.unwrap().key();
    let children = Filter { parent: Some(parent), ..Filter::default() };
    assert_eq!(engine.count(&children).await.unwrap(), 2);
    engine.shutdown(Duration::from_secs(10)).await.unwrap();
}
