//! Noticing a proxy that lends connections of the server for single transactions.

use std::collections::HashSet;

use tokio_postgres::{Client, Error, SimpleQueryMessage};

/// How often it is looked: proxies differ in whether they lend what they got back first or last.
const PROBE_ROUNDS: usize = 3;

/// True if two connections of ours have been one and the same of the server's, or one of ours has been two: then a
/// proxy stands in between that pools transactions.
///
/// False proves nothing, but a proxy with little else to do lends the same ones again soon.
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

async fn backend_pid(client: &Client, ask: &str) -> Result<Option<String>, Error> {
    Ok(query_first_row(client, ask).await?.and_then(|mut row| row.swap_remove(0)))
}

/// The first row that `sql` answers, as text. No statement gets a name, so a proxy may stand in between.
pub(crate) async fn query_first_row(client: &Client, sql: &str) -> Result<Option<Vec<Option<String>>>, Error> {
    Ok(query_rows(client, sql).await?.into_iter().next())
}

/// All rows.
pub(crate) async fn query_rows(client: &Client, sql: &str) -> Result<Vec<Vec<Option<String>>>, Error> {
    let answer = client.simple_query(sql).await?;
    Ok(answer
        .into_iter()
        .filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => {
                Some((0..row.len()).map(|column| row.get(column).map(str::to_owned)).collect())
            }
            _ => None,
        })
        .collect())
}
