//! `bench writes`: concurrent clients insert one row per transaction, each on its own connection. For comparison, one engine
//! writes as many rows, and its lanes commit them together.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rusqlite::Connection;
use stepfast::clock::{Clock, SystemClock};
use stepfast::key::Key;
use stepfast::store::counters::{Counters, WriterTime};
use stepfast::{Context, Engine, Error, Failure, Workflow};
use tokio::time::Instant;
use uuid::Uuid;

use crate::bound::{Probe, WriterProbe};
use crate::measure::Latencies;
use crate::report::Row;
use crate::target::{Target, connect, postgres_error};

/// The text of each row, which also has a UUIDv7 and a time.
const ROW_TEXT: &str = "a row as a web application would write it";

/// The time for which SQLite waits for its lock.
const BUSY_TIMEOUT: Duration = Duration::from_mins(10);

/// Returns the default number of rows that `clients` write one by one.
pub fn one_by_one_total(clients: usize) -> usize {
    (clients * 250).clamp(500, 16_000)
}

/// Returns the default number of rows that `callers` of an engine write.
pub fn lane_total(callers: usize) -> usize {
    (callers * 400).clamp(2_000, 300_000)
}

/// Writes each row in its own transaction, on `clients` connections. Returns `None` for a store in memory.
pub async fn one_by_one(
    target: &Target,
    durability: &str,
    clients: usize,
    total: usize,
    progress: &dyn Fn(u64),
) -> Result<Option<Row>, Error> {
    let latencies = Arc::new(Latencies::new(total));
    let mut row = Row {
        mode: Some("one by one".into()),
        concurrency: Some(clients),
        writes_per_flush: 1.0,
        ..Row::default()
    };
    if target.postgres().is_some() {
        write_to_postgres(target, durability, clients, &latencies, &mut row, progress).await?;
    } else if let Some(path) = target.path() {
        write_to_sqlite(
            target,
            &path.with_extension("points.db"),
            durability,
            clients,
            &latencies,
            &mut row,
            progress,
        )
        .await?;
    } else {
        return Ok(None);
    }
    Ok(Some(row))
}

async fn write_to_postgres(
    target: &Target,
    durability: &str,
    clients: usize,
    latencies: &Arc<Latencies>,
    row: &mut Row,
    progress: &dyn Fn(u64),
) -> Result<(), Error> {
    let owner = connect(&target.url, "stepfast-bench points").await?;
    let table = "DROP TABLE IF EXISTS stepfast_points;
        CREATE TABLE stepfast_points (id uuid PRIMARY KEY, body text NOT NULL, at timestamptz NOT NULL)";
    owner.batch_execute(table).await.map_err(postgres_error)?;
    let mut connections = Vec::new();
    let commit = if durability == "full" { "on" } else { "off" };
    for _ in 0..clients {
        let client = connect(&target.url, "stepfast bench").await?;
        client.batch_execute(&format!("SET synchronous_commit TO {commit}")).await.map_err(postgres_error)?;
        let insert = client.prepare("INSERT INTO stepfast_points VALUES ($1, $2, $3)").await;
        let insert = insert.map_err(postgres_error)?;
        // the first insert on a connection is slower
        insert_into_postgres(&client, &insert).await.map_err(postgres_error)?;
        connections.push((client, insert));
    }
    let probe = Probe::start(target, None).await?;
    let begun = Instant::now();
    let tasks = connections.into_iter().map(|(client, insert)| {
        let latencies = latencies.clone();
        tokio::spawn(async move {
            while let Some(n) = latencies.next() {
                let begun = Instant::now();
                let written = insert_into_postgres(&client, &insert).await;
                latencies.record(n, begun, written.is_ok());
            }
        })
    });
    wait_for_all(tasks.collect(), latencies, progress).await;
    latencies.fill_with_elapsed(begun.elapsed(), row);
    let observation = probe.stop(None).await?;
    row.flushes = row.completed;
    observation.fill(target, row).await?;
    owner.batch_execute("DROP TABLE stepfast_points").await.map_err(postgres_error)
}

async fn insert_into_postgres(
    client: &tokio_postgres::Client,
    insert: &tokio_postgres::Statement,
) -> Result<u64, tokio_postgres::Error> {
    let at = SystemTime::UNIX_EPOCH + Duration::from_micros(SystemClock.now().as_micros() as u64);
    client.execute(insert, &[&Uuid::from_bytes(*Key::mint(0).as_bytes()), &ROW_TEXT, &at]).await
}

/// Writes rows to SQLite. Its interface is not async, so each client is a thread, which waits for the database's lock in
/// SQLite itself.
async fn write_to_sqlite(
    target: &Target,
    path: &Path,
    durability: &str,
    clients: usize,
    latencies: &Arc<Latencies>,
    row: &mut Row,
    progress: &dyn Fn(u64),
) -> Result<(), Error> {
    let fail = |error: rusqlite::Error| Error::Unavailable(format!("SQLite did not write a row: {error}"));
    let mut connections = Vec::new();
    for n in 0..clients {
        let db = open_sqlite(path, durability, n == 0).map_err(fail)?;
        connections.push(db);
    }
    let counters = Arc::new(Counters::default());
    let bytes = target.bytes_written().await;
    let probe = Probe::start(target, None).await?.with_writer(WriterProbe::from_counters(counters.clone()));
    let begun = Instant::now();
    let tasks = connections.into_iter().map(|db| {
        let (latencies, counters) = (latencies.clone(), counters.clone());
        tokio::task::spawn_blocking(move || {
            while let Some(n) = latencies.next() {
                let begun = Instant::now();
                let written = insert_into_sqlite(&db, &counters);
                latencies.record(n, begun, written.is_ok());
            }
        })
    });
    wait_for_all(tasks.collect(), latencies, progress).await;
    latencies.fill_with_elapsed(begun.elapsed(), row);
    let observation = probe.stop(None).await?;
    row.flushes = row.completed;
    row.bytes_written = target.bytes_written().await - bytes;
    observation.fill(target, row).await
}

fn open_sqlite(path: &Path, durability: &str, is_first: bool) -> Result<Connection, rusqlite::Error> {
    let db = Connection::open(path)?;
    db.busy_timeout(BUSY_TIMEOUT)?;
    db.pragma_update(None, "journal_mode", "WAL")?;
    db.pragma_update(None, "synchronous", if durability == "full" { "FULL" } else { "NORMAL" })?;
    if is_first {
        db.execute_batch(
            "DROP TABLE IF EXISTS points;
             CREATE TABLE points (id BLOB PRIMARY KEY, body TEXT NOT NULL, at INTEGER NOT NULL) WITHOUT ROWID",
        )?;
    }
    Ok(db)
}

fn insert_into_sqlite(db: &Connection, counters: &Counters) -> Result<(), rusqlite::Error> {
    let run = |sql: &str| db.prepare_cached(sql)?.execute([]);
    let asked_at = Instant::now();
    run("BEGIN IMMEDIATE")?;
    let begun_at = Instant::now();
    let (id, at) = (Key::mint(0), SystemClock.now().as_micros());
    let inserted = db.prepare_cached("INSERT INTO points VALUES (?1, ?2, ?3)")?.execute((
        id.as_bytes().as_slice(),
        ROW_TEXT,
        at,
    ));
    let ended_at = Instant::now();
    let done = inserted.and_then(|_| run("COMMIT"));
    if done.is_err() {
        let _ = run("ROLLBACK");
    }
    counters.add_writer_time(WriterTime {
        turn_wait: begun_at - asked_at,
        statements: ended_at - begun_at,
        commit: ended_at.elapsed(),
    });
    done.map(drop)
}

/// Writes the same rows by an engine: each row is an execution of a no-op workflow, run in one call. The execution's key is
/// a UUIDv7, its input is the text, and its row has the time. It is one Write on a lane.
pub async fn by_lane(
    target: &Target,
    callers: usize,
    total: usize,
    progress: &dyn Fn(u64),
) -> Result<Row, Error> {
    let workflow = Workflow::new("point", |_: Context, _: String| async { Ok::<(), Failure>(()) });
    let builder = Engine::builder(target.store().await?).register(&workflow);
    let engine = builder.max_running(callers.max(10_000) + 1).open().await?;
    let warm_up = Arc::new(Latencies::new((total / 20).clamp(1, 2_000)));
    run_callers(&engine, &workflow, callers.min(64), &warm_up, &|_| {}).await;
    let store = engine.store().clone();
    let probe = Probe::start(target, Some(&store)).await?;
    let counted = store.counters().snapshot();
    let bytes = target.bytes_written().await;
    let latencies = Arc::new(Latencies::new(total));
    let begun = Instant::now();
    run_callers(&engine, &workflow, callers, &latencies, progress).await;
    let mut row = Row { mode: Some("lane".into()), concurrency: Some(callers), ..Row::default() };
    latencies.fill_with_elapsed(begun.elapsed(), &mut row);
    let observation = probe.stop(Some(&store)).await?;
    let counted = store.counters().snapshot().since(&counted);
    row.flushes = counted.flushes;
    row.writes_per_flush = counted.writes as f64 / counted.flushes.max(1) as f64;
    row.bytes_written = target.bytes_written().await - bytes;
    engine.shutdown(Duration::from_secs(10)).await?;
    observation.fill(target, &mut row).await?;
    Ok(row)
}

async fn run_callers(
    engine: &Engine,
    workflow: &Workflow<String, ()>,
    callers: usize,
    latencies: &Arc<Latencies>,
    progress: &dyn Fn(u64),
) {
    let tasks = (0..callers).map(|_| {
        let (engine, workflow, latencies) = (engine.clone(), workflow.clone(), latencies.clone());
        tokio::spawn(async move {
            while let Some(n) = latencies.next() {
                let begun = Instant::now();
                let written = engine.run(&workflow, ROW_TEXT.to_owned()).await;
                latencies.record(n, begun, written.is_ok());
            }
        })
    });
    wait_for_all(tasks.collect(), latencies, progress).await;
}

/// Waits for all `tasks`. `progress` receives the number of operations that have ended.
pub(crate) async fn wait_for_all(
    tasks: Vec<tokio::task::JoinHandle<()>>,
    latencies: &Latencies,
    progress: &dyn Fn(u64),
) {
    let mut tick = tokio::time::interval(Duration::from_millis(100));
    for task in tasks {
        let mut task = std::pin::pin!(task);
        loop {
            tokio::select! {
                _ = &mut task => break,
                _ = tick.tick() => progress(latencies.done_count()),
            }
        }
    }
    progress(latencies.done_count());
}
