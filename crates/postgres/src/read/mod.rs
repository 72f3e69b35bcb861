//! Reads: loads and lists by [`Reader`], on connections of their own.

mod batches;
mod events;
mod graphs;
mod messages;
pub(crate) mod queues;
mod streams;
pub(crate) mod workers;

use std::collections::HashMap;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use stepfast_core::Key;
use stepfast_core::payload::ChunkRef;
use stepfast_core::store::{Detail, ExecutionId, Filter, Page, Record, StoreError};
use tokio_postgres::Row;

use crate::conn::background::BackgroundRuntime;
use crate::conn::batches::{item_queries, outcome_queries};
use crate::conn::connector::Connector;
use crate::conn::pipeline;
use crate::conn::pipeline::{Query, QueryResult, param};
use crate::conn::pool::ReaderPool;
use crate::conn::session::TxPart;
use crate::conn::statements::Sql;
use crate::error::{corrupt, query_error};
use crate::rows::bundles::BundleItems;
use crate::rows::types::{Timestamptz, to_uuid};
use crate::rows::{Columns, RecordDetails, parse_listed_execution, parse_record};

/// The store's loads and lists, with their pool of connections.
pub(crate) struct Reader {
    pool: ReaderPool,
}

impl Reader {
    /// Creates a reader. Its pool opens connections when they are needed, and keeps them.
    pub(crate) fn new(connector: &Arc<Connector>, background: &Arc<BackgroundRuntime>) -> Self {
        Self { pool: ReaderPool::new(connector.clone(), background.clone()) }
    }

    /// Runs one standalone query.
    pub(crate) async fn query(&self, query: Query<'_>) -> Result<Vec<Row>, StoreError> {
        let pooled = self.pool.acquire().await?;
        let results =
            pipeline::run(pooled.session(), TxPart::Standalone, &[query]).await.map_err(query_error)?;
        pooled.release();
        Ok(results.into_iter().next().ok_or_else(|| corrupt("a query result"))?.rows)
    }

    /// Loads executions; see [`Store::load`](stepfast_core::Store::load).
    pub(crate) async fn load(
        &self,
        ids: &[ExecutionId],
        detail: Detail,
    ) -> Result<Vec<Option<Record>>, StoreError> {
        let (mut keys, mut given) = (Vec::new(), Vec::new());
        for id in ids {
            match id {
                ExecutionId::Key(key) => keys.push(to_uuid(*key)),
                ExecutionId::Given(id) => given.push(id.as_ref()),
            }
        }
        // the server cannot store an id with a zero byte, so no row has such an id
        given.retain(|id| is_storable(id));
        let action = "loading executions";
        let is_bare = detail == Detail::Outcome;
        let load = Query { sql: Sql::Load, action, params: vec![param(keys), param(given), param(is_bare)] };
        let may_be_bundle = |id: &ExecutionId| matches!(id, ExecutionId::Key(key) if key.is_bundle());
        if is_bare && !ids.iter().any(may_be_bundle) {
            return Ok(order_by_ids(ids, &parse_records(&self.query(load).await?)?));
        }
        // the rows and their details must come from one snapshot
        let pooled = self.pool.acquire().await?;
        let results =
            pipeline::run(pooled.session(), TxPart::BeginSnapshot, &[load]).await.map_err(query_error)?;
        let mut records = parse_records(&results.first().ok_or_else(|| corrupt("a query result"))?.rows)?;
        let bundles = BundleItems::new(&records);
        let queries = if is_bare {
            outcome_queries(&bundles, action).into()
        } else {
            detail_queries(&records, &bundles, detail, action)
        };
        let results = pipeline::run(pooled.session(), TxPart::End, &queries).await.map_err(query_error)?;
        pooled.release();
        add_details(&bundles, &queries, &results, &mut records)?;
        Ok(order_by_ids(ids, &records))
    }

    /// Loads a payload from its chunks; see [`Store::load_value`](stepfast_core::Store::load_value).
    pub(crate) async fn load_value(&self, execution: Key, chunks: ChunkRef) -> Result<Bytes, StoreError> {
        let params = vec![
            param(to_uuid(execution)),
            param(chunks.value.cast_signed()),
            param(i64::from(chunks.count)),
        ];
        let rows =
            self.query(Query { sql: Sql::LoadChunks, action: "loading a large value", params }).await?;
        let mut bytes = BytesMut::with_capacity(usize::try_from(chunks.len).unwrap_or(0).min(1 << 30));
        for row in &rows {
            bytes.extend_from_slice(Columns::new(row).next()?);
        }
        if bytes.len() as u64 == chunks.len && rows.len() == chunks.count as usize {
            return Ok(bytes.freeze());
        }
        Err(StoreError::Corrupt(format!(
            "value {} of execution {execution} has {} chunks with {} bytes instead of {} chunks with {} bytes",
            chunks.value,
            rows.len(),
            bytes.len(),
            chunks.count,
            chunks.len
        )))
    }

    /// Lists executions; see [`Store::list`](stepfast_core::Store::list).
    pub(crate) async fn list(&self, filter: &Filter) -> Result<Page, StoreError> {
        let texts = [&filter.workflow, &filter.id_prefix, &filter.app_version, &filter.queue];
        let texts = texts.into_iter().flatten().map(|text| &**text);
        let (names, values): (Vec<&str>, Vec<&str>) = filter.attributes.iter().unzip();
        if !texts.chain(names.iter().chain(&values).copied()).all(is_storable) {
            return Ok(Page { executions: Vec::new(), total: (filter.limit == 0).then_some(0) });
        }
        let statuses: Option<Vec<i16>> = (!filter.statuses.is_empty())
            .then(|| filter.statuses.iter().map(|status| *status as i16).collect());
        let mut params = vec![
            param(statuses),
            param(filter.workflow.as_deref()),
            param(filter.is_parked),
            param(filter.parent.map(to_uuid)),
            param(filter.id_prefix.as_deref()),
            param(filter.created_from.map(Timestamptz)),
            param(filter.created_before.map(Timestamptz)),
            param(filter.app_version.as_deref()),
            param(filter.queue.as_deref()),
            param(filter.after.filter(|_| filter.limit > 0).map(to_uuid)),
            param(names),
            param(values),
        ];
        let has_attributes = !filter.attributes.is_empty();
        if filter.limit == 0 {
            let sql = if has_attributes { Sql::CountByAttribute } else { Sql::Count };
            let rows = self.query(Query { sql, action: "counting executions", params }).await?;
            let total = Columns::new(rows.first().ok_or_else(|| corrupt("a count"))?).next::<i64>()? as u64;
            return Ok(Page { executions: Vec::new(), total: Some(total) });
        }
        params.push(param(i64::try_from(filter.limit).unwrap_or(i64::MAX)));
        let sql = if has_attributes { Sql::ListByAttribute } else { Sql::List };
        let rows = self.query(Query { sql, action: "listing executions", params }).await?;
        let executions = rows.iter().map(parse_listed_execution).collect::<Result<_, _>>()?;
        Ok(Page { executions, total: None })
    }

    /// Finds executions by the values of an attribute; see [`Store::find`](stepfast_core::Store::find).
    pub(crate) async fn find(
        &self,
        name: &str,
        values: &[&str],
        limit: u64,
    ) -> Result<Vec<Vec<Key>>, StoreError> {
        let mut found = vec![Vec::new(); values.len()];
        let storable = (0_i64..).zip(values).filter(|(_, value)| is_storable(value));
        let (positions, values): (Vec<i64>, Vec<&str>) = storable.unzip();
        if !is_storable(name) || values.is_empty() {
            return Ok(found);
        }
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let params = vec![param(name), param(positions), param(values), param(limit)];
        let query = Query { sql: Sql::Find, action: "searching by an attribute", params };
        for row in self.query(query).await? {
            let mut row = Columns::new(&row);
            let position = usize::try_from(row.next::<i64>()?).unwrap_or_default();
            let keys = found.get_mut(position).ok_or_else(|| corrupt("a query result"))?;
            keys.push(row.key()?);
        }
        Ok(found)
    }
}

/// Returns whether the server can store this text.
fn is_storable(text: &str) -> bool {
    !text.contains('\0')
}

fn parse_records(rows: &[Row]) -> Result<Vec<Record>, StoreError> {
    rows.iter().map(parse_record).collect()
}

/// Returns the queries for everything that is recorded about executions beside their rows.
fn detail_queries(
    records: &[Record],
    bundles: &BundleItems,
    detail: Detail,
    action: &'static str,
) -> Vec<Query<'static>> {
    let keys: Vec<_> = records.iter().map(|record| to_uuid(record.execution.key)).collect();
    let details_query = |sql| Query { sql, action, params: vec![param(keys.clone())] };
    let recorded = match detail {
        Detail::LastPart => [Sql::CheckpointsOfPart, Sql::AttemptsOfPart],
        _ => [Sql::Checkpoints, Sql::Attempts],
    };
    let beside = [Sql::Requests, Sql::Waits, Sql::Attributes];
    let details = recorded.into_iter().chain(beside).map(details_query);
    let items = (!bundles.is_empty()).then(|| item_queries(bundles, action));
    details.chain(items.into_iter().flatten()).collect()
}

/// Adds the results of queries for details to `records`.
fn add_details(
    bundles: &BundleItems,
    queries: &[Query<'_>],
    results: &[QueryResult],
    records: &mut [Record],
) -> Result<(), StoreError> {
    let details = RecordDetails::new(records);
    for (query, QueryResult { rows, .. }) in queries.iter().zip(results) {
        match query.sql {
            Sql::Checkpoints | Sql::CheckpointsOfPart => details.add_checkpoints(rows, records)?,
            Sql::Attempts | Sql::AttemptsOfPart => details.add_attempts(rows, records)?,
            Sql::Requests => details.add_requests(rows, records)?,
            Sql::Waits => details.add_waits(rows, records)?,
            Sql::Attributes => details.add_attributes(rows, records)?,
            Sql::Packs => bundles.add_packs(rows, records)?,
            Sql::PromotedItems => bundles.add_promoted(rows, records)?,
            Sql::ItemCheckpoints => bundles.add_checkpoints(rows, records)?,
            Sql::ItemAttempts => bundles.add_attempts(rows, records)?,
            _ => return Err(corrupt("a query result")),
        }
    }
    Ok(())
}

/// Returns the record of each id, in the order of `ids`, or `None` for an id without a record. A repeated id gets its
/// record each time.
fn order_by_ids(ids: &[ExecutionId], records: &[Record]) -> Vec<Option<Record>> {
    let mut by_key = HashMap::with_capacity(records.len());
    let mut by_id = HashMap::new();
    for (index, record) in records.iter().enumerate() {
        by_key.insert(record.execution.key, index);
        if let Some(id) = &record.execution.given_id {
            by_id.insert(id.clone(), index);
        }
    }
    ids.iter()
        .map(|id| {
            let index = match id {
                ExecutionId::Key(key) => by_key.get(key),
                ExecutionId::Given(id) => by_id.get(id),
            };
            index.and_then(|&index| records.get(index)).cloned()
        })
        .collect()
}
