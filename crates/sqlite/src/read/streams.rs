//! The search for entries of streams.

use stepfast_core::clock::Timestamp;
use stepfast_core::store::{MAX_ENTRIES_LOADED, StoreError, StreamEntry, StreamQuery};

use crate::conn::statements::{Sql, Statements};
use crate::database::Database;
use crate::error::DbResult;
use crate::rows::{key_bytes, path_of, payload_of};

impl Database {
    pub(crate) fn stream_entries(
        &self,
        queries: &[StreamQuery],
    ) -> Result<Vec<Vec<StreamEntry>>, StoreError> {
        self.read("loading entries of streams", |conn| {
            let mut sql = Statements::new(conn);
            queries.iter().map(|query| stream_entries(&mut sql, query)).collect()
        })
    }
}

fn stream_entries(sql: &mut Statements<'_>, query: &StreamQuery) -> DbResult<Vec<StreamEntry>> {
    let (execution, stream) = (key_bytes(&query.execution), &*query.stream);
    let mut rows = match query.from {
        Some(from) => {
            sql.get(Sql::StreamEntries)?.query((execution, stream, from, MAX_ENTRIES_LOADED as i64))?
        }
        None => sql.get(Sql::LastStreamEntry)?.query((execution, stream))?,
    };
    let mut entries = Vec::new();
    while let Some(row) = rows.next()? {
        entries.push(StreamEntry {
            offset: row.get(0)?,
            attempt_offset: row.get(1)?,
            step: path_of(row, 2)?.unwrap_or_default(),
            value: payload_of(row, 3)?,
            written_at: Timestamp::from_micros(row.get(4)?),
        });
    }
    Ok(entries)
}
