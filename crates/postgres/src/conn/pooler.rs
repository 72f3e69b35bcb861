//! Detects a proxy that assigns server connections per transaction.

use std::collections::HashSet;

use tokio_postgres::{Client, Error, SimpleQueryMessage};

/// The number of checks. Some proxies assign the server connection that was returned first, other proxies the one that
/// was returned last. Beside other clients, a check often finds nothing: on a busy machine, three were too few once in some
/// hundred runs of the tests.
const PROBE_ROUNDS: usize = 8;

/// Returns true if the clients have shared a server connection, or if one client has had two server connections. In
/// both cases a proxy in between pools transactions.
///
/// False does not prove that there is no such proxy. But a proxy with little load soon assigns the same server
/// connections again.
pub(crate) async fn detect_transaction_pooling(first: &Client, second: &Client) -> Result<bool, Error> {
    let (mut firsts, mut seconds) = (HashSet::new(), HashSet::new());
    for _ in 0..PROBE_ROUNDS {
        firsts.insert(backend_pid(first, "SELECT pg_backend_pid()").await?);
        seconds.insert(backend_pid(second, "BEGIN; SELECT pg_backend_pid()").await?);
        firsts.insert(backend_pid(first, "SELECT pg_backend_pid()").await?);
        second.batch_execute("ROLLBACK").await?;
    }
    Ok(firsts.len() > 1 || seconds.len() > 1 || !firsts.is_disjoint(&seconds))
}

async fn backend_pid(client: &Client, sql: &str) -> Result<Option<String>, Error> {
    Ok(query_first_row(client, sql).await?.and_then(|mut row| row.swap_remove(0)))
}

/// Returns the first row of `sql` as text. The statement is not prepared, so the query works through any proxy.
pub(crate) async fn query_first_row(
    client: &Client,
    sql: &str,
) -> Result<Option<Vec<Option<String>>>, Error> {
    Ok(query_rows(client, sql).await?.into_iter().next())
}

/// Returns all rows of `sql` as text, like [`query_first_row`].
pub(crate) async fn query_rows(client: &Client, sql: &str) -> Result<Vec<Vec<Option<String>>>, Error> {
    let messages = client.simple_query(sql).await?;
    Ok(messages
        .into_iter()
        .filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => {
                Some((0..row.len()).map(|column| row.get(column).map(str::to_owned)).collect())
            }
            _ => None,
        })
        .collect())
}
