//! `bench flush`: the raw device and a bare commit of the store, so that everything else can be stated as a
//! multiple of them.

use std::io::{Seek, SeekFrom, Write};

use stepfast::Error;
use stepfast::key::Key;
use tokio::time::Instant;

use crate::measure::{Latencies, bytes_written_here};
use crate::report::Row;
use crate::target::{Target, io};

/// A raw write of `size` bytes with `fdatasync`, `iterations` times over the same place.
pub fn raw(target: &Target, size: usize, iterations: usize) -> Result<Row, Error> {
    let directory = target.path().and_then(|path| path.parent().map(std::path::Path::to_owned));
    let directory = directory.unwrap_or_else(std::env::temp_dir);
    let mut file = tempfile::tempfile_in(&directory).map_err(|error| io("make a file", &error))?;
    let block = vec![7u8; size];
    let bytes = bytes_written_here();
    let latencies = Latencies::new(iterations);
    while let Some(n) = latencies.next() {
        let begun = Instant::now();
        let result = file
            .seek(SeekFrom::Start(0))
            .and_then(|_| file.write_all(&block))
            .and_then(|()| file.sync_data());
        latencies.note(n, begun, result.is_ok());
    }
    let mut row = Row { mode: Some("write".into()), size: Some(size), ..Row::default() };
    latencies.fill(&mut row);
    row.flushes = row.completed;
    row.writes_per_flush = 1.0;
    row.bytes_written = bytes_written_here() - bytes;
    Ok(row)
}

/// A transaction that inserts one row of `size` bytes, `iterations` times; `None` for a store in memory.
pub async fn commit(
    target: &Target,
    durability: &str,
    size: usize,
    iterations: usize,
) -> Result<Option<Row>, Error> {
    let bytes = target.bytes_written().await;
    let latencies = match (target.path(), target.postgres()) {
        (Some(path), _) => sqlite(&path, durability, size, iterations)
            .map_err(|error| Error::Unavailable(format!("a bare commit on SQLite failed: {error}")))?,
        (None, Some(client)) => postgres(client, durability, size, iterations)
            .await
            .map_err(|error| Error::Unavailable(format!("a bare commit on Postgres failed: {error}")))?,
        (None, None) => return Ok(None),
    };
    let mut row = Row { mode: Some("commit".into()), size: Some(size), ..Row::default() };
    latencies.fill(&mut row);
    row.flushes = row.completed;
    row.writes_per_flush = 1.0;
    row.bytes_written = target.bytes_written().await - bytes;
    Ok(Some(row))
}

fn sqlite(
    path: &std::path::Path,
    durability: &str,
    size: usize,
    iterations: usize,
) -> Result<Latencies, rusqlite::Error> {
    let db = rusqlite::Connection::open(path.with_extension("flush.db"))?;
    db.pragma_update(None, "journal_mode", "WAL")?;
    db.pragma_update(None, "synchronous", if durability == "full" { "FULL" } else { "NORMAL" })?;
    db.execute_batch("CREATE TABLE bare (id BLOB PRIMARY KEY, data BLOB) WITHOUT ROWID")?;
    let mut insert = db.prepare("INSERT INTO bare VALUES (?1, ?2)")?;
    let data = vec![7u8; size];
    let latencies = Latencies::new(iterations);
    while let Some(n) = latencies.next() {
        let begun = Instant::now();
        let result = insert.execute((Key::mint().as_bytes().as_slice(), &data));
        latencies.note(n, begun, result.is_ok());
    }
    Ok(latencies)
}

async fn postgres(
    client: &tokio_postgres::Client,
    durability: &str,
    size: usize,
    iterations: usize,
) -> Result<Latencies, tokio_postgres::Error> {
    let commit = if durability == "full" { "on" } else { "off" };
    client
        .batch_execute(&format!(
            "SET synchronous_commit = {commit}; CREATE TEMPORARY TABLE IF NOT EXISTS probe (id int);
             DROP TABLE IF EXISTS stepfast_bare; CREATE TABLE stepfast_bare (id text PRIMARY KEY, data bytea)"
        ))
        .await?;
    let insert = client.prepare("INSERT INTO stepfast_bare VALUES ($1, $2)").await?;
    let data = vec![7u8; size];
    let latencies = Latencies::new(iterations);
    while let Some(n) = latencies.next() {
        let begun = Instant::now();
        let result = client.execute(&insert, &[&Key::mint().to_string(), &data]).await;
        latencies.note(n, begun, result.is_ok());
    }
    client.batch_execute("DROP TABLE stepfast_bare").await?;
    Ok(latencies)
}
