//! The search for entries of streams.

use stepfast_core::store::{MAX_ENTRIES_LOADED, StoreError, StreamEntry, StreamQuery};

use crate::conn::pipeline::{Query, column, param};
use crate::conn::statements::Sql;
use crate::error::corrupt;
use crate::read::Reader;
use crate::rows::Columns;
use crate::rows::types::to_uuid;

impl Reader {
    /// Loads entries of streams; see [`Store::stream_entries`](stepfast_core::Store::stream_entries).
    pub(crate) async fn stream_entries(
        &self,
        queries: &[StreamQuery],
    ) -> Result<Vec<Vec<StreamEntry>>, StoreError> {
        let streams: Vec<&str> = queries.iter().map(|query| &*query.stream).collect();
        let params = vec![
            column(queries, |query| to_uuid(query.execution)),
            column(&streams, |stream| *stream),
            column(queries, |query| query.from),
            param(MAX_ENTRIES_LOADED as i64),
        ];
        let query = Query { sql: Sql::StreamEntries, action: "loading entries of streams", params };
        let mut entries = vec![Vec::new(); queries.len()];
        for row in self.query(query).await? {
            let mut row = Columns::new(&row);
            let index = usize::try_from(row.next::<i64>()?).ok();
            let entry = StreamEntry {
                offset: row.next()?,
                attempt_offset: row.next()?,
                step: row.path()?.unwrap_or_default(),
                value: row.payload()?,
                written_at: row.time()?,
            };
            index
                .and_then(|i| entries.get_mut(i))
                .ok_or_else(|| corrupt("an entry of a stream"))?
                .push(entry);
        }
        Ok(entries)
    }
}
