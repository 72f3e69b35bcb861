//! Lists of queues.

use std::sync::Arc;

use stepfast_core::queue::QueueRow;
use stepfast_core::store::StoreError;

use crate::conn::pipeline::{Query, param};
use crate::conn::statements::Sql;
use crate::read::Reader;
use crate::rows::queues::parse_queue;

impl Reader {
    /// Lists queues; see [`Store::queues`](stepfast_core::Store::queues).
    pub(crate) async fn queues(&self, names: Option<&[Arc<str>]>) -> Result<Vec<QueueRow>, StoreError> {
        let names: Option<Vec<String>> = names.map(|names| names.iter().map(ToString::to_string).collect());
        let query = Query { sql: Sql::Queues, action: "listing queues", params: vec![param(names)] };
        self.query(query).await?.iter().map(parse_queue).collect()
    }
}
