//! [`SqlConnection`]: a connection to the database of a deployment that bypasses the code of the stores.

use std::sync::{Mutex, PoisonError};

use rusqlite::types::ValueRef;
use rusqlite::{Connection, OpenFlags};
use tokio_postgres::SimpleQueryMessage;

/// A row, as text.
pub type TextRow = Vec<Option<String>>;

/// A connection to the database of a deployment.
pub enum SqlConnection {
    /// A connection to a SQLite file.
    Sqlite(Mutex<Connection>),
    /// A connection to a schema in Postgres.
    Postgres(tokio_postgres::Client),
}

impl SqlConnection {
    /// Opens a connection; `None` while the database is unreachable.
    pub async fn open(url: &str) -> Option<Self> {
        match url.strip_prefix("sqlite:") {
            Some(path) => {
                let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE).ok()?;
                Some(SqlConnection::Sqlite(connection.into()))
            }
            None => Some(SqlConnection::Postgres(connect(url).await?)),
        }
    }

    /// Returns the rows that a statement finds; `None` after an error.
    pub async fn query_rows(&self, sql: &str) -> Option<Vec<TextRow>> {
        match self {
            SqlConnection::Sqlite(connection) => {
                let connection = connection.lock().unwrap_or_else(PoisonError::into_inner);
                query_sqlite_rows(&connection, sql).ok()
            }
            SqlConnection::Postgres(client) => {
                let messages = client.simple_query(sql).await.ok()?;
                let rows = messages.iter().filter_map(|message| match message {
                    SimpleQueryMessage::Row(row) => {
                        Some((0..row.len()).map(|i| row.get(i).map(ToOwned::to_owned)).collect())
                    }
                    _ => None,
                });
                Some(rows.collect())
            }
        }
    }

    /// Returns the number that a statement finds; `None` after an error.
    pub async fn query_number(&self, sql: &str) -> Option<i64> {
        match self {
            SqlConnection::Sqlite(connection) => {
                let connection = connection.lock().unwrap_or_else(PoisonError::into_inner);
                connection.query_row(sql, [], |row| row.get(0)).ok()
            }
            SqlConnection::Postgres(client) => client.query_one(sql, &[]).await.ok().map(|row| row.get(0)),
        }
    }
}

/// Returns the rows that a statement finds in a SQLite file, as text.
fn query_sqlite_rows(conn: &Connection, sql: &str) -> rusqlite::Result<Vec<TextRow>> {
    let mut statement = conn.prepare_cached(sql)?;
    let columns = statement.column_count();
    let rows = statement.query_map([], |row| {
        let text = |i| {
            Ok(match row.get_ref(i)? {
                ValueRef::Null => None,
                ValueRef::Integer(number) => Some(number.to_string()),
                ValueRef::Real(number) => Some(number.to_string()),
                ValueRef::Text(text) | ValueRef::Blob(text) => {
                    Some(String::from_utf8_lossy(text).into_owned())
                }
            })
        };
        (0..columns).map(text).collect()
    })?;
    rows.collect()
}

/// Returns a connection to the schema of the store; `None` while the database is unreachable.
pub async fn connect(url: &str) -> Option<tokio_postgres::Client> {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.ok()?;
    tokio::spawn(connection);
    client.batch_execute("SET search_path TO stepfast").await.ok()?;
    Some(client)
}
