//! Noticing a proxy that lends connections of the server for single transactions.

use std::collections::HashSet;

use tokio_postgres::{Client, Error, SimpleQueryMessage};

/// How often it is looked: proxies differ in whether they lend what they got back first or last.
const ROUNDS: usize = 3;

/// True if two connections of ours have been one and the same of the server's, or one of ours has been two: then a
/// proxy stands in between that pools transactions.
///
/// False proves nothing, but a proxy with little else to do lends the same ones again soon.
pub(crate) async fn pools_transactions(first: &Client, second: &Client) -> Result<bool, Error> {
    let (mut firsts, mut seconds) = (HashSet::new(), HashSet::new());
    for _ in 0..ROUNDS {
        firsts.insert(process(first, "SELECT pg_backend_pid()").await?);
        seconds.insert(process(second, "BEGIN; SELECT pg_backend_pid()").await?);
        firsts.insert(process(first, "SELECT pg_backend_pid()").await?);
        second.batch_execute("ROLLBACK").await?;
    }
    Ok(firsts.len() > 1 || seconds.len() > 1 || !firsts.is_disjoint(&seconds))
}

async fn process(client: &Client, ask: &str) -> Result<Option<String>, Error> {
    Ok(first_row(client, ask).await?.and_then(|mut row| row.swap_remove(0)))
}

/// The first row that `sql` answers, as text. No statement gets a name, so a proxy may stand in between.
pub(crate) async fn first_row(client: &Client, sql: &str) -> Result<Option<Vec<Option<String>>>, Error> {
    Ok(rows(client, sql).await?.into_iter().next())
}

/// All rows.
pub(crate) async fn rows(client: &Client, sql: &str) -> Result<Vec<Vec<Option<String>>>, Error> {
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
