//! Loading and listing, on connections of their own.

pub(crate) mod queues;
pub(crate) mod workers;

use std::collections::HashMap;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use stepfast_core::Key;
use stepfast_core::clock::Timestamp;
use stepfast_core::payload::ChunkRef;
use stepfast_core::store::{Detail, ExecutionId, Filter, Page, Record, StoreError, WorkerId};
use tokio_postgres::Row;

use crate::conn::background::Background;
use crate::conn::connector::Connector;
use crate::conn::pipeline;
use crate::conn::pipeline::{Query, param};
use crate::conn::pool::ReaderPool;
use crate::conn::session::TxPart;
use crate::conn::statements::Sql;
use crate::error::{corrupt, query_error};
use crate::rows::types::{Instant, uuid};
use crate::rows::{Columns, Details, bare, execution, listed};

/// Loads and lists.
pub(crate) struct Reader {
    readers: ReaderPool,
}

impl Reader {
    /// Makes connections when they are needed, and keeps them.
    pub(crate) fn new(connector: &Arc<Connector>, background: &Arc<Background>) -> Self {
        Self { readers: ReaderPool::new(connector.clone(), background.clone()) }
    }

    /// One statement on its own.
    pub(crate) async fn ask(&self, job: Query<'_>) -> Result<Vec<Row>, StoreError> {
        let lent = self.readers.acquire().await?;
        let answers = pipeline::run(lent.session(), TxPart::Standalone, &[job]).await.map_err(query_error)?;
        lent.release();
        Ok(answers.into_iter().next().ok_or_else(|| corrupt("an answer"))?.rows)
    }

    /// See [`Store::load`](stepfast_core::Store::load).
    pub(crate) async fn load(
        &self,
        ids: &[ExecutionId],
        detail: Detail,
    ) -> Result<Vec<Option<Record>>, StoreError> {
        let (mut keys, mut given) = (Vec::new(), Vec::new());
        for id in ids {
            match id {
                ExecutionId::Key(key) => keys.push(uuid(*key)),
                ExecutionId::Given(id) => given.push(id.as_ref()),
            }
        }
        // no row can have an id that the server cannot store
        given.retain(|id| !id.contains('\0'));
        let what = "loading executions";
        let is_bare = detail == Detail::Outcome;
        let load = Query { sql: Sql::Load, action: what, params: vec![param(keys), param(given), param(is_bare)] };
        if is_bare {
            return Ok(in_order(ids, &bares(&self.ask(load).await?)?));
        }
        // one snapshot for the rows and what belongs to them
        let lent = self.readers.acquire().await?;
        let answers =
            pipeline::run(lent.session(), TxPart::BeginSnapshot, &[load]).await.map_err(query_error)?;
        let mut records = bares(&answers.first().ok_or_else(|| corrupt("an answer"))?.rows)?;
        let found: Vec<_> = records.iter().map(|record| uuid(record.execution.key)).collect();
        let read = |sql| Query { sql, action: what, params: vec![param(found.clone())] };
        let more = [Sql::Checkpoints, Sql::Attempts, Sql::Requests, Sql::Attributes].map(read);
        let answers = pipeline::run(lent.session(), TxPart::End, &more).await.map_err(query_error)?;
        lent.release();
        let [checkpoints, attempts, requests, attributes] = answers.as_slice() else {
            return Err(corrupt("an answer"));
        };
        let details = Details::new(&records);
        details.checkpoints(&checkpoints.rows, &mut records)?;
        details.attempts(&attempts.rows, &mut records)?;
        details.requests(&requests.rows, &mut records)?;
        details.attributes(&attributes.rows, &mut records)?;
        Ok(in_order(ids, &records))
    }

    /// See [`Store::value`](stepfast_core::Store::value).
    pub(crate) async fn value(&self, execution: Key, chunks: ChunkRef) -> Result<Bytes, StoreError> {
        let params =
            vec![param(uuid(execution)), param(chunks.value.cast_signed()), param(i64::from(chunks.count))];
        let rows = self.ask(Query { sql: Sql::Value, action: "loading a large value", params }).await?;
        let mut bytes = BytesMut::with_capacity(usize::try_from(chunks.len).unwrap_or(0).min(1 << 30));
        for row in &rows {
            bytes.extend_from_slice(Columns::of(row).next()?);
        }
        if bytes.len() as u64 == chunks.len && rows.len() == chunks.count as usize {
            return Ok(bytes.freeze());
        }
        Err(StoreError::Corrupt(format!(
            "value {} of execution {execution} has {} pieces with {} bytes instead of {} with {}",
            chunks.value,
            rows.len(),
            bytes.len(),
            chunks.count,
            chunks.len
        )))
    }

    /// See [`Store::lost`](stepfast_core::Store::lost); by the time `now`, or the server's.
    pub(crate) async fn lost(
        &self,
        workers: &[WorkerId],
        now: Option<Timestamp>,
        lease_micros: i64,
    ) -> Result<Vec<WorkerId>, StoreError> {
        let ids: Vec<i64> = workers.iter().map(|worker| worker.0).collect();
        let params = vec![param(ids), param(now.map(Instant)), param(lease_micros)];
        let rows = self.ask(Query { sql: Sql::Lost, action: "looking for lost workers", params }).await?;
        rows.iter().map(|row| Columns::of(row).next().map(WorkerId)).collect()
    }

    /// See [`Store::list`](stepfast_core::Store::list).
    pub(crate) async fn list(&self, filter: &Filter) -> Result<Page, StoreError> {
        let texts = [&filter.workflow, &filter.id_prefix, &filter.app_version, &filter.queue];
        let texts = texts.into_iter().flatten().map(|text| &**text);
        let (names, values): (Vec<&str>, Vec<&str>) = filter.attributes.iter().unzip();
        if texts.chain(names.iter().chain(&values).copied()).any(|text| text.contains('\0')) {
            return Ok(Page { executions: Vec::new(), total: (filter.limit == 0).then_some(0) });
        }
        let statuses: Option<Vec<i16>> = (!filter.statuses.is_empty())
            .then(|| filter.statuses.iter().map(|status| *status as i16).collect());
        let mut params = vec![
            param(statuses),
            param(filter.workflow.as_deref()),
            param(filter.is_parked),
            param(filter.parent.map(uuid)),
            param(filter.id_prefix.as_deref()),
            param(filter.created_from.map(Instant)),
            param(filter.created_before.map(Instant)),
            param(filter.app_version.as_deref()),
            param(filter.queue.as_deref()),
            param(filter.after.filter(|_| filter.limit > 0).map(uuid)),
            param(names),
            param(values),
        ];
        let has_attributes = !filter.attributes.is_empty();
        if filter.limit == 0 {
            let sql = if has_attributes { Sql::CountByAttribute } else { Sql::Count };
            let rows = self.ask(Query { sql, action: "counting executions", params }).await?;
            let total = Columns::of(rows.first().ok_or_else(|| corrupt("a count"))?).next::<i64>()? as u64;
            return Ok(Page { executions: Vec::new(), total: Some(total) });
        }
        params.push(param(i64::try_from(filter.limit).unwrap_or(i64::MAX)));
        let sql = if has_attributes { Sql::ListByAttribute } else { Sql::List };
        let rows = self.ask(Query { sql, action: "listing executions", params }).await?;
        let executions = rows.iter().map(listed).collect::<Result<_, _>>()?;
        Ok(Page { executions, total: None })
    }
}

fn bares(rows: &[Row]) -> Result<Vec<Record>, StoreError> {
    rows.iter().map(|row| execution(row).map(bare)).collect()
}

/// The records as they were asked for; one that was asked for twice comes twice.
fn in_order(ids: &[ExecutionId], records: &[Record]) -> Vec<Option<Record>> {
    let mut by_key = HashMap::with_capacity(records.len());
    let mut by_id = HashMap::new();
    for (place, record) in records.iter().enumerate() {
        by_key.insert(record.execution.key, place);
        if let Some(id) = &record.execution.given_id {
            by_id.insert(id.clone(), place);
        }
    }
    ids.iter()
        .map(|id| {
            let place = match id {
                ExecutionId::Key(key) => by_key.get(key),
                ExecutionId::Given(id) => by_id.get(id),
            };
            place.and_then(|&place| records.get(place)).cloned()
        })
        .collect()
}
