//! Heartbeats: a worker renews its lease, and the reply contains what concerns the worker.

use std::collections::HashSet;
use std::sync::PoisonError;
use std::time::Duration;

use stepfast_core::Key;
use stepfast_core::store::{
    Detail, ExecutionId, Heartbeat, HeartbeatReply, Record, RequestKind, StoreError, WorkerId,
};
use tokio::time::Instant;
use uuid::Uuid;

use crate::conn::pipeline::{Query, QueryResult, column, optional_text_array, param, text_array};
use crate::conn::statements::Sql;
use crate::control::WorkerControl;
use crate::control::lease_observer::{LeaseObserver, PeerLease};
use crate::error::{DbError, corrupt};
use crate::lane::{self, lost_history, parse_lane_state};
use crate::ownership::WindowRenewal;
use crate::read::Reader;
use crate::rows::Columns;
use crate::rows::types::{Timestamptz, to_key, to_uuid};
use crate::schema::newest_version;

/// A parsed result of heartbeat.sql.
struct HeartbeatRow {
    reply: HeartbeatReply,
    unregistered_owners: Vec<i64>,
    peers: Vec<PeerLease>,
    has_peers: bool,
}

impl WorkerControl {
    /// Handles a heartbeat; see [`Store::heartbeat`](stepfast_core::Store::heartbeat). Also returns whether other
    /// workers exist.
    pub(crate) async fn heartbeat(
        &self,
        heartbeat: &Heartbeat,
        reader: &Reader,
    ) -> Result<(HeartbeatReply, bool), StoreError> {
        let renewal = if heartbeat.renews_lease {
            self.ownership.begin_renewal(heartbeat.worker)
        } else {
            WindowRenewal::default()
        };
        let is_search = heartbeat.renews_lease
            && self.with_observer(heartbeat.worker, |observer| observer.is_search_due());
        let params = vec![
            param(heartbeat.worker.0),
            param(heartbeat.epoch),
            param(self.now().map(Timestamptz)),
            param(self.lease_micros()),
            param(heartbeat.watched.iter().map(|key| to_uuid(*key)).collect::<Vec<_>>()),
            text_array(&heartbeat.workflows),
            param(heartbeat.app_version.as_deref()),
            param(renewal.window.as_ref().map(|window| to_uuid(window.start))),
            param(renewal.window.as_ref().map(|window| to_uuid(window.end))),
            param(heartbeat.renews_lease),
            param(is_search),
            optional_text_array(heartbeat.queues.as_ref()),
        ];
        let mut queries = vec![Query { sql: Sql::Heartbeat, action: "sending a heartbeat", params }];
        let idle = if heartbeat.renews_lease {
            self.lanes.take_idle_positions(heartbeat.worker)
        } else {
            Vec::new()
        };
        if !idle.is_empty() {
            let params = vec![
                param(heartbeat.worker.0),
                column(&idle, |position| position.lane.cast_signed()),
                column(&idle, |position| position.number),
                column(&idle, |position| position.ctid_hint.clone()),
            ];
            queries.push(Query {
                sql: Sql::RegressedLanes,
                action: "checking lanes for lost history",
                params,
            });
        }
        let results = self.query_all(&queries).await?;
        if let Some(row) = results.get(1).and_then(|regressed| regressed.rows.first()) {
            let mut row = Columns::new(row);
            return Err(lost_history(row.next::<i16>()?.cast_unsigned(), row.next()?, row.next()?));
        }
        let mut parsed = parse_heartbeat_row(results.first().ok_or_else(|| corrupt("a query result"))?)?;
        if parsed.reply.is_fenced {
            self.remove_worker(heartbeat.worker);
            let reply =
                HeartbeatReply { now: parsed.reply.now, is_fenced: true, ..HeartbeatReply::default() };
            return Ok((reply, true));
        }
        if let Some(window) = renewal.window {
            self.ownership.set_window_end(heartbeat.worker, window.end);
        }
        if !renewal.to_index.is_empty() {
            self.index_owners(heartbeat.worker, &renewal.to_index).await?;
        }
        if heartbeat.renews_lease {
            self.delete_finished_claims(heartbeat.worker, renewal.uncertain_claims).await?;
        }
        if let Some(held) = &heartbeat.held {
            parsed.reply.unheld = self.load_unheld(heartbeat.worker, held, reader).await?;
        }
        if heartbeat.renews_lease {
            let lease = self.connector.options().lease;
            self.with_observer(heartbeat.worker, |observer| {
                let renewed_at = Instant::now();
                let may_declare_dead = observer.outage_guard.record_renewal(renewed_at, lease);
                parsed.reply.next_expiry_at = observer.observe(
                    &parsed.peers,
                    parsed.unregistered_owners,
                    may_declare_dead,
                    (parsed.reply.now, renewed_at),
                );
                parsed.reply.has_dead_workers = observer.targets.has_any();
            });
        }
        Ok((parsed.reply, parsed.has_peers))
    }

    fn with_observer<R>(&self, worker: WorkerId, f: impl FnOnce(&mut LeaseObserver) -> R) -> R {
        f(self.observers.lock().unwrap_or_else(PoisonError::into_inner).entry(worker).or_default())
    }

    /// Adds running executions to the index of owners. Rows that another transaction has locked are left to the next
    /// heartbeat.
    async fn index_owners(&self, worker: WorkerId, executions: &[Key]) -> Result<(), StoreError> {
        let keys: Vec<Uuid> = executions.iter().map(|key| to_uuid(*key)).collect();
        let action = "indexing owners";
        self.query(Query {
            sql: Sql::IndexOwner,
            action,
            params: vec![param(worker.0), param(keys.clone())],
        })
        .await?;
        let result = self
            .query(Query {
                sql: Sql::UnindexedExecutions,
                action,
                params: vec![param(worker.0), param(keys)],
            })
            .await?;
        let unindexed = result.rows.iter().map(|row| Columns::new(row).key()).collect::<Result<_, _>>()?;
        self.ownership.record_indexed(worker, executions, &unindexed);
        Ok(())
    }

    /// Deletes rows of `claims` that are no longer needed. Before that, looks up the outcomes of the claims in
    /// `uncertain`.
    async fn delete_finished_claims(&self, worker: WorkerId, uncertain: Vec<i64>) -> Result<(), StoreError> {
        let action = "deleting claims";
        if !uncertain.is_empty() {
            let params = vec![param(worker.0), param(uncertain.clone())];
            let result = self.query(Query { sql: Sql::ClaimedExecutions, action, params }).await?;
            let keys: Vec<Key> =
                result.rows.iter().map(|row| Columns::new(row).key()).collect::<Result<_, _>>()?;
            self.ownership.record_found_claims(worker, &uncertain, keys.into_iter());
        }
        if let Some(number) = self.ownership.take_finished_claims(worker) {
            let params = vec![param(worker.0), param(number)];
            self.query(Query { sql: Sql::DeleteClaims, action, params }).await?;
        }
        Ok(())
    }

    async fn load_unheld(
        &self,
        worker: WorkerId,
        held: &[Key],
        reader: &Reader,
    ) -> Result<Vec<Record>, StoreError> {
        let mut queries = vec![Query {
            sql: Sql::OwnedExecutions,
            action: "reading owned executions",
            params: vec![param(worker.0)],
        }];
        // a claim that proves to be durable is recorded as durable, so that a later loss is detected
        let claim_lane = self.lanes.claim_lane(worker);
        queries.extend(claim_lane.map(|lane| lane::lane_state_query(worker, lane, None)));
        let results = self.query_all(&queries).await?;
        if let (Some(lane), Some(row)) = (claim_lane, results.get(1))
            && let Some((_, last)) = parse_lane_state(row).map_err(DbError::into_store_error)?
        {
            self.lanes.record_durable(worker, lane, last, None);
        }
        let result = results.first().ok_or_else(|| corrupt("a query result"))?;
        let held: HashSet<_> = held.iter().collect();
        let mut unheld = Vec::new();
        for row in &result.rows {
            let key = Columns::new(row).key()?;
            if !held.contains(&key) {
                unheld.push(ExecutionId::Key(key));
            }
        }
        if unheld.is_empty() {
            return Ok(Vec::new());
        }
        let records = reader.load(&unheld, Detail::Full).await?;
        Ok(records.into_iter().flatten().filter(|record| record.execution.owner == Some(worker)).collect())
    }
}

fn parse_heartbeat_row(result: &QueryResult) -> Result<HeartbeatRow, StoreError> {
    let mut row = Columns::new(result.rows.first().ok_or_else(|| corrupt("a query result"))?);
    let now = row.time()?;
    let is_fenced = row.next()?;
    let requested: Vec<Uuid> = row.next::<Option<_>>()?.unwrap_or_default();
    let kinds: Vec<i16> = row.next::<Option<_>>()?.unwrap_or_default();
    let finished: Vec<Uuid> = row.next()?;
    let has_ready = row.next()?;
    let next_due = row.opt_time()?;
    let overdue: Vec<Uuid> = row.next()?;
    let next_deadline = row.opt_time()?;
    let quarantined_until = row.opt_time()?;
    let ids: Vec<i64> = row.next::<Option<_>>()?.unwrap_or_default();
    let expiries: Vec<Timestamptz> = row.next::<Option<_>>()?.unwrap_or_default();
    let lengths: Vec<Option<i64>> = row.next::<Option<_>>()?.unwrap_or_default();
    let expired: Vec<bool> = row.next::<Option<_>>()?.unwrap_or_default();
    let has_peers = row.next()?;
    let unregistered_owners = row.next()?;
    let oldest_engine = i64::from(row.next::<i32>()?);
    let requests = requested.into_iter().zip(kinds);
    Ok(HeartbeatRow {
        reply: HeartbeatReply {
            now,
            is_fenced,
            requests: requests
                .filter_map(|(execution, kind)| {
                    Some((to_key(execution), RequestKind::from_number(kind.into())?))
                })
                .collect(),
            finished: finished.into_iter().map(to_key).collect(),
            unheld: Vec::new(),
            has_ready,
            next_due,
            expired: overdue.into_iter().map(to_key).collect(),
            next_deadline,
            quarantined_until,
            has_dead_workers: false,
            newer_schema: (oldest_engine > newest_version()).then(|| (oldest_engine, newest_version())),
            next_expiry_at: None,
        },
        unregistered_owners,
        has_peers,
        peers: (ids.into_iter().zip(expiries).zip(lengths).zip(expired))
            .map(|(((id, expires_at), length), is_expired)| PeerLease {
                worker: WorkerId(id),
                expires_at: expires_at.0,
                length: length.map(|ms| Duration::from_millis(ms.unsigned_abs())),
                is_expired,
            })
            .collect(),
    })
}
