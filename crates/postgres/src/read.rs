//! Loading and listing, on connections of their own.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use deadpool_postgres::{Connect, Manager, ManagerConfig, Object, Pool, RecyclingMethod};
use futures_util::future::try_join3;
use stepfast_core::Key;
use stepfast_core::clock::Timestamp;
use stepfast_core::payload::ChunkRef;
use stepfast_core::record::{Detail, ExecutionId, Filter, Page, Record};
use stepfast_core::store::StoreError;
use stepfast_core::write::WorkerId;
use tokio::task::JoinHandle;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Config, IsolationLevel, Row};

use crate::background::Background;
use crate::connect::{Connector, Role, chain};
use crate::error::store_error;
use crate::rows::{Columns, Details, bare, execution};
use crate::statements::Sql;
use crate::types::{Instant, uuid};

/// Connections for reading.
pub(crate) struct Reader {
    pool: Pool,
    name: String,
}

/// Lets the pool connect as the other parts of the store do.
struct Connections {
    connector: Arc<Connector>,
    background: Arc<Background>,
}

impl Connect for Connections {
    fn connect(
        &self,
        _: &Config,
    ) -> Pin<Box<dyn Future<Output = Result<(Client, JoinHandle<()>), tokio_postgres::Error>> + Send + '_>>
    {
        Box::pin(self.connector.dial(self.background.runtime(), Role::Reader))
    }
}

impl Reader {
    /// Makes connections when they are needed, and keeps them.
    pub(crate) fn new(connector: &Arc<Connector>, background: &Arc<Background>) -> Result<Self, StoreError> {
        let connections = Connections { connector: connector.clone(), background: background.clone() };
        let config = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        let manager = Manager::from_connect(connector.config().clone(), connections, config);
        let pool = Pool::builder(manager).max_size(connector.options().readers.max(1)).build();
        let pool = pool.map_err(|error| StoreError::Open {
            store: connector.name().to_owned(),
            reason: format!("cannot make a pool of connections: {error}"),
        })?;
        Ok(Self { pool, name: connector.name().to_owned() })
    }

    async fn client(&self) -> Result<Object, StoreError> {
        self.pool.get().await.map_err(|error| {
            StoreError::Unavailable(format!("cannot connect to {}: {}", self.name, chain(&error)))
        })
    }

    /// See [`Store::load`](stepfast_core::Store::load).
    pub(crate) async fn load(
        &self,
        ids: &[ExecutionId],
        detail: Detail,
    ) -> Result<Vec<Option<Record>>, StoreError> {
        let fail = |error: tokio_postgres::Error| store_error("loading executions", &error);
        let (mut keys, mut given) = (Vec::new(), Vec::new());
        for id in ids {
            match id {
                ExecutionId::Key(key) => keys.push(uuid(*key)),
                ExecutionId::Given(id) => given.push(id.as_ref()),
            }
        }
        // no row can have an id that the server cannot store
        given.retain(|id| !id.contains('\0'));
        let mut client = self.client().await?;
        let records = if detail == Detail::Outcome {
            let load = client.prepare_cached(Sql::Load.text()).await.map_err(fail)?;
            let rows = client.query(&load, &[&keys, &given, &true]).await.map_err(fail)?;
            bares(&rows)?
        } else {
            // one snapshot for the rows and what belongs to them
            let transaction = (client.build_transaction())
                .isolation_level(IsolationLevel::RepeatableRead)
                .read_only(true)
                .start()
                .await
                .map_err(fail)?;
            let load = transaction.prepare_cached(Sql::Load.text()).await.map_err(fail)?;
            let rows = transaction.query(&load, &[&keys, &given, &false]).await.map_err(fail)?;
            let mut records = bares(&rows)?;
            let found: Vec<_> = records.iter().map(|record| uuid(record.execution.key)).collect();
            let read = async |sql: Sql| {
                let statement = transaction.prepare_cached(sql.text()).await?;
                transaction.query(&statement, &[&found]).await
            };
            let (checkpoints, attempts, requests) =
                try_join3(read(Sql::Checkpoints), read(Sql::Attempts), read(Sql::Requests))
                    .await
                    .map_err(fail)?;
            transaction.commit().await.map_err(fail)?;
            let details = Details::new(&records);
            details.checkpoints(&checkpoints, &mut records)?;
            details.attempts(&attempts, &mut records)?;
            details.requests(&requests, &mut records)?;
            records
        };
        Ok(in_order(ids, &records))
    }

    /// See [`Store::value`](stepfast_core::Store::value).
    pub(crate) async fn value(&self, execution: Key, chunks: ChunkRef) -> Result<Bytes, StoreError> {
        let fail = |error: tokio_postgres::Error| store_error("loading a large value", &error);
        let client = self.client().await?;
        let statement = client.prepare_cached(Sql::Value.text()).await.map_err(fail)?;
        let rows = client
            .query(&statement, &[&uuid(execution), &chunks.value.cast_signed(), &i64::from(chunks.count)])
            .await
            .map_err(fail)?;
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
        let fail = |error: tokio_postgres::Error| store_error("looking for lost workers", &error);
        let ids: Vec<i64> = workers.iter().map(|worker| worker.0).collect();
        let client = self.client().await?;
        let lost = client.prepare_cached(Sql::Lost.text()).await.map_err(fail)?;
        let rows = client.query(&lost, &[&ids, &now.map(Instant), &lease_micros]).await.map_err(fail)?;
        rows.iter().map(|row| Columns::of(row).next().map(WorkerId)).collect()
    }

    /// See [`Store::list`](stepfast_core::Store::list).
    pub(crate) async fn list(&self, filter: &Filter) -> Result<Page, StoreError> {
        let fail = |error: tokio_postgres::Error| store_error("listing executions", &error);
        let has_nul = |text: &Option<Arc<str>>| text.as_ref().is_some_and(|text| text.contains('\0'));
        if has_nul(&filter.workflow) || has_nul(&filter.id_prefix) {
            return Ok(Page { executions: Vec::new(), total: (filter.limit == 0).then_some(0) });
        }
        let statuses: Option<Vec<i16>> = (!filter.statuses.is_empty())
            .then(|| filter.statuses.iter().map(|status| *status as i16).collect());
        let (workflow, id_prefix) = (filter.workflow.as_deref(), filter.id_prefix.as_deref());
        let (parent, after) = (filter.parent.map(uuid), filter.after.map(uuid));
        let (from, before) = (filter.created_from.map(Instant), filter.created_before.map(Instant));
        let limit = i64::try_from(filter.limit).unwrap_or(i64::MAX);
        let mut params: Vec<&(dyn ToSql + Sync)> =
            vec![&statuses, &workflow, &filter.is_paused, &parent, &id_prefix, &from, &before];
        let client = self.client().await?;
        if filter.limit == 0 {
            let count = client.prepare_cached(Sql::Count.text()).await.map_err(fail)?;
            let row = client.query_one(&count, &params).await.map_err(fail)?;
            let total = Columns::of(&row).next::<i64>()? as u64;
            return Ok(Page { executions: Vec::new(), total: Some(total) });
        }
        params.extend([&after as &(dyn ToSql + Sync), &limit]);
        let list = client.prepare_cached(Sql::List.text()).await.map_err(fail)?;
        let rows = client.query(&list, &params).await.map_err(fail)?;
        let executions = rows.iter().map(execution).collect::<Result<_, _>>()?;
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
