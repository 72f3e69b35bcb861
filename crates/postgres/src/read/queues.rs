//! Queues: how they are listed.

use std::sync::Arc;

use stepfast_core::queue::{Queue, QueueRow};
use stepfast_core::store::StoreError;
use tokio_postgres::Row;

use crate::conn::pipeline::{Query, param};
use crate::conn::statements::Sql;
use crate::read::Reader;
use crate::rows::Columns;
use crate::rows::queues::{count_of, limits};

impl Reader {
    /// See [`Store::queues`](stepfast_core::Store::queues).
    pub(crate) async fn queues(&self, names: Option<&[Arc<str>]>) -> Result<Vec<QueueRow>, StoreError> {
        let names: Option<Vec<String>> = names.map(|names| names.iter().map(ToString::to_string).collect());
        let job = Query { sql: Sql::Queues, action: "listing queues", params: vec![param(names)] };
        self.ask(job).await?.iter().map(queue).collect()
    }
}

fn queue(row: &Row) -> Result<QueueRow, StoreError> {
    let mut row = Columns::of(row);
    let name = row.next::<&str>()?.into();
    let (version, changed_at, is_paused) = (row.next()?, row.time()?, row.next()?);
    let mut limits = limits(&mut row)?;
    limits.max_depth = count_of(&mut row)?;
    Ok(QueueRow { queue: Queue { name, limits }, is_paused, version, changed_at })
}
