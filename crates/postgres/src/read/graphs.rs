//! Lists of graphs.

use std::sync::Arc;

use stepfast_core::store::{GraphRow, StoreError};

use crate::conn::pipeline::{Query, param};
use crate::conn::statements::Sql;
use crate::read::Reader;
use crate::rows::Columns;

impl Reader {
    /// Lists graphs; see [`Store::graphs`](stepfast_core::Store::graphs).
    pub(crate) async fn graphs(&self, names: Option<&[Arc<str>]>) -> Result<Vec<GraphRow>, StoreError> {
        let names: Option<Vec<String>> = names.map(|names| names.iter().map(ToString::to_string).collect());
        let query = Query { sql: Sql::Graphs, action: "listing graphs", params: vec![param(names)] };
        let rows = self.query(query).await?;
        rows.iter()
            .map(|row| {
                let mut row = Columns::new(row);
                let (name, declaration) = (row.next::<&str>()?, row.next::<&str>()?);
                Ok(GraphRow { name: name.into(), declaration: declaration.into() })
            })
            .collect()
    }
}
