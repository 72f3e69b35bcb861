//! Lists of queues.

use std::sync::Arc;

use stepfast_core::queue::{Queue, QueueRow};
use stepfast_core::store::StoreError;
use tokio_postgres::Row;

use crate::conn::pipeline::{Query, param};
use crate::conn::statements::Sql;
use crate::read::Reader;
use crate::rows::Columns;
use crate::rows::queues::{parse_count, parse_limits};

impl Reader {
    /// See [`Store::queues`](stepfast_core::Store::queues).
    pub(crate) async fn queues(&self, names: Option<&[Arc<str>]>) -> Result<Vec<QueueRow>, StoreError> {
        let names: Option<Vec<String>> = names.map(|names| names.iter().map(ToString::to_string).collect());
        let query = Query { sql: Sql::Queues, action: "listing queues", params: vec![param(names)] };
        self.query(query).await?.iter().map(parse_queue).collect()
    }
}

fn parse_queue(row: &Row) -> Result<QueueRow, StoreError> {
    let mut row = Columns::new(row);
    let name = row.next::<&str>()?.into();
    let (version, changed_at, is_paused) = (row.next()?, row.time()?, row.next()?);
    let mut limits = parse_limits(&mut row)?;
    limits.max_depth = parse_count(&mut row)?;
    Ok(QueueRow { queue: Queue { name, limits }, is_paused, version, changed_at })
}
