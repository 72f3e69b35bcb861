//! `bench flush`: the raw device and a bare commit of the store. Other figures can be stated as multiples of them.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};

use stepfast::Error;
use stepfast::key::Key;
use tokio::time::Instant;

use crate::measure::{Latencies, own_bytes_written};
use crate::report::Row;
use crate::target::{Target, io_error};

/// Measures raw writes of `size` bytes with `fdatasync`, `iterations` times to the same position.
pub fn measure_device(target: &Target, size: usize, iterations: usize) -> Result<Row, Error> {
    let mut file = create_file(target)?;
    let block = vec![7u8; size];
    let bytes = own_bytes_written();
    let latencies = Latencies::new(iterations);
    while let Some(n) = latencies.next() {
        let begun = Instant::now();
        let result = file
            .seek(SeekFrom::Start(0))
            .and_then(|_| file.write_all(&block))
            .and_then(|()| file.sync_data());
        latencies.record(n, begun, result.is_ok());
    }
    let mut row = Row { mode: Some("write".into()), size: Some(size), ..Row::default() };
    latencies.fill(&mut row);
    row.flushes = row.completed;
    row.writes_per_flush = 1.0;
    row.bytes_written = own_bytes_written() - bytes;
    Ok(row)
}

/// Measures transactions that insert one row of `size` bytes, `iterations` times. Returns `None` for a store in memory.
pub async fn measure_commit(
    target: &Target,
    durability: &str,
    size: usize,
    iterations: usize,
) -> Result<Option<Row>, Error> {
    let bytes = target.bytes_written().await;
    let Some(mut bare) = BareStore::open(target, durability).await? else { return Ok(None) };
    let data = vec![7u8; size];
    let latencies = Latencies::new(iterations);
    while let Some(n) = latencies.next() {
        let begun = Instant::now();
        let result = bare.commit(&data).await;
        latencies.record(n, begun, result.is_ok());
    }
    let mut row = Row { mode: Some("commit".into()), size: Some(size), ..Row::default() };
    latencies.fill(&mut row);
    bare.close().await?;
    row.flushes = row.completed;
    row.writes_per_flush = 1.0;
    row.bytes_written = target.bytes_written().await - bytes;
    Ok(Some(row))
}

/// A file to which blocks are appended, each followed by `fdatasync`.
pub struct AppendFile(File);

impl AppendFile {
    /// Creates an empty temporary file in the database's folder.
    pub fn open(target: &Target) -> Result<Self, Error> {
        create_file(target).map(Self)
    }

    /// Appends `block`, and waits until it is on the device.
    pub fn append(&mut self, block: &[u8]) -> Result<(), Error> {
        let result = self.0.write_all(block).and_then(|()| self.0.sync_data());
        result.map_err(|error| io_error("append to a file", &error))
    }
}

fn create_file(target: &Target) -> Result<File, Error> {
    tempfile::tempfile_in(target.folder()).map_err(|error| io_error("create a file", &error))
}

/// The store's database without an engine: a separate table.
pub enum BareStore<'t> {
    /// A file in the folder of the engine's file, with the same settings.
    Sqlite(rusqlite::Connection),
    /// The engine's database, and the statement that inserts a row.
    Postgres(&'t tokio_postgres::Client, tokio_postgres::Statement),
}

impl<'t> BareStore<'t> {
    /// Creates the table. Returns `None` for a store in memory.
    pub async fn open(target: &'t Target, durability: &str) -> Result<Option<Self>, Error> {
        match (target.path(), target.postgres()) {
            (Some(path), _) => {
                open_sqlite(&path, durability).map(|db| Some(BareStore::Sqlite(db))).map_err(sqlite_error)
            }
            (None, Some(client)) => {
                let insert = prepare_postgres(client, durability).await.map_err(postgres_error)?;
                Ok(Some(BareStore::Postgres(client, insert)))
            }
            (None, None) => Ok(None),
        }
    }

    /// Inserts a row in its own transaction.
    pub async fn commit(&mut self, data: &[u8]) -> Result<(), Error> {
        match self {
            BareStore::Sqlite(db) => {
                let insert = db.prepare_cached("INSERT INTO bare VALUES (?1, ?2)");
                let inserted =
                    insert.and_then(|mut it| it.execute((Key::mint(0).as_bytes().as_slice(), data)));
                inserted.map(drop).map_err(sqlite_error)
            }
            BareStore::Postgres(client, insert) => {
                let inserted = client.execute(&*insert, &[&Key::mint(0).to_string(), &data]).await;
                inserted.map(drop).map_err(postgres_error)
            }
        }
    }

    /// Drops the table.
    pub async fn close(self) -> Result<(), Error> {
        match self {
            BareStore::Sqlite(db) => db.execute_batch("DROP TABLE bare").map_err(sqlite_error),
            BareStore::Postgres(client, _) => {
                client.batch_execute("DROP TABLE stepfast_bare").await.map_err(postgres_error)
            }
        }
    }
}

#[allow(clippy::needless_pass_by_value)] // for map_err
fn sqlite_error(error: rusqlite::Error) -> Error {
    Error::Unavailable(format!("a bare commit on SQLite failed: {error}"))
}

#[allow(clippy::needless_pass_by_value)] // for map_err
fn postgres_error(error: tokio_postgres::Error) -> Error {
    Error::Unavailable(format!("a bare commit on Postgres failed: {error}"))
}

fn open_sqlite(path: &std::path::Path, durability: &str) -> Result<rusqlite::Connection, rusqlite::Error> {
    let db = rusqlite::Connection::open(path.with_extension("flush.db"))?;
    db.pragma_update(None, "journal_mode", "WAL")?;
    db.pragma_update(None, "synchronous", if durability == "full" { "FULL" } else { "NORMAL" })?;
    // an interrupted run may have left a table that is not empty
    db.execute_batch(
        "DROP TABLE IF EXISTS bare; CREATE TABLE bare (id BLOB PRIMARY KEY, data BLOB) WITHOUT ROWID",
    )?;
    Ok(db)
}

async fn prepare_postgres(
    client: &tokio_postgres::Client,
    durability: &str,
) -> Result<tokio_postgres::Statement, tokio_postgres::Error> {
    let commit = if durability == "full" { "on" } else { "off" };
    client
        .batch_execute(&format!(
            "SET synchronous_commit = {commit}; CREATE TEMPORARY TABLE IF NOT EXISTS probe (id int);
             DROP TABLE IF EXISTS stepfast_bare; CREATE TABLE stepfast_bare (id text PRIMARY KEY, data bytea)"
        ))
        .await?;
    client.prepare("INSERT INTO stepfast_bare VALUES ($1, $2)").await
}
