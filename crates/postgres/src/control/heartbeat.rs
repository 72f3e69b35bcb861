//! Renewals of leases, and heartbeats, whose reply contains what concerns the worker.

use std::collections::{BTreeSet, HashSet};
use std::sync::PoisonError;
use std::time::Duration;

use stepfast_core::Key;
use stepfast_core::store::{
    AssignmentId, Detail, ExecutionId, Heartbeat, HeartbeatReply, Maintenance, Record, Renewal, RequestKind,
    StoreError, Tidying, WorkerId,
};
use tokio::time::Instant;
use tokio_postgres::Row;
use uuid::Uuid;

use crate::conn::pipeline::{self, Query, QueryResult, column, optional_text_array, param, text_array};
use crate::conn::row_counts::single_row;
use crate::conn::session::TxPart;
use crate::conn::statements::{HEARTBEAT_STATEMENTS, RENEWAL_STATEMENTS, Sql, TAKEOVER_STATEMENTS};
use crate::control::WorkerControl;
use crate::control::lease_observer::{LeaseObserver, PeerLease};
use crate::error::{DbError, corrupt, query_error};
use crate::lane::{self, lost_history, parse_lane_state};
use crate::read::Reader;
use crate::rows::Columns;
use crate::rows::types::{Timestamptz, to_key, to_uuid};
use crate::schema::newest_version;

impl WorkerControl {
    /// Renews the lease of a worker, and checks that the database has lost nothing of its idle lanes; see
    /// [`Store::renew`](stepfast_core::Store::renew). Also returns whether other workers exist. The renewal is the first
    /// statement and a transaction of its own, on a connection of its own.
    pub(crate) async fn renew(&self, worker: WorkerId, epoch: i64) -> Result<(Renewal, bool), StoreError> {
        let now = self.now().map(Timestamptz);
        let params = vec![param(worker.0), param(epoch), param(now), param(self.lease_micros())];
        let mut queries = vec![Query { sql: Sql::Renew, action: "renewing a lease", params }];
        let mut kept_session = self.renewal_session.lock().await;
        let session = self.reuse_or_open(kept_session.take(), RENEWAL_STATEMENTS).await?;
        let server_session = session.server_session();
        let idle = self.lanes.take_idle_positions(worker, server_session);
        if !idle.is_empty() {
            let params = vec![
                param(worker.0),
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
        let results = pipeline::run(&session, TxPart::Standalone, &queries).await.map_err(query_error)?;
        *kept_session = Some(session);
        drop(kept_session);
        if let Some(row) = results.get(1).and_then(|regressed| regressed.rows.first()) {
            let mut row = Columns::new(row);
            return Err(lost_history(row.next::<i16>()?.cast_unsigned(), row.next()?, row.next()?));
        }
        if !idle.is_empty() {
            self.lanes.record_found(worker, &idle, server_session);
        }
        let mut row = Columns::new(single_row(results.first().ok_or_else(|| corrupt("a query result"))?)?);
        let (now, is_registered) = (row.time()?, row.next::<bool>()?);
        let oldest_engine = i64::from(row.next::<i32>()?);
        let (has_peers, is_observing, has_requests) = (row.next()?, row.next()?, row.next()?);
        if is_registered {
            let lease = self.connector.options().lease;
            self.with_observer(worker, |observer| {
                observer.record_renewal(is_observing, Instant::now(), lease);
            });
        } else {
            self.remove_worker(worker);
        }
        let renewal = Renewal {
            now,
            is_fenced: !is_registered,
            newer_schema: (oldest_engine > newest_version()).then(|| (oldest_engine, newest_version())),
            has_requests,
            receives_hints: false,
        };
        Ok((renewal, has_peers))
    }

    /// Tidies the assignments of a worker, and observes the leases of other workers if the last renewal asked for that;
    /// see [`Store::maintain`](stepfast_core::Store::maintain). Now and then also returns the number of registered
    /// workers, and of those that can run exactly what this worker can.
    pub(crate) async fn maintain(
        &self,
        worker: WorkerId,
        epoch: i64,
    ) -> Result<(Maintenance, Option<(u32, u32)>), StoreError> {
        self.tidy_assignments(worker, epoch).await?;
        let begin = |observer: &mut LeaseObserver| (observer.is_count_due(), observer.begin_observation());
        let (is_count_due, observation) = self.with_observer(worker, begin);
        let mut counts = None;
        if is_count_due {
            let query =
                Query { sql: Sql::CountWorkers, action: "counting workers", params: vec![param(worker.0)] };
            let results = self.query_all(&self.takeover_session, TAKEOVER_STATEMENTS, &[query]).await?;
            let counted = results.first().ok_or_else(|| corrupt("a query result"))?;
            let mut row = Columns::new(single_row(counted)?);
            let (workers, peers) = (row.next::<i64>()? as u32, row.next::<i64>()? as u32);
            self.with_observer(worker, |observer| observer.record_count(workers));
            counts = Some((workers, peers));
        }
        let Some(is_sweep_due) = observation else { return Ok((Maintenance::default(), counts)) };
        let now = || param(self.now().map(Timestamptz));
        let params = vec![param(worker.0), now(), param(self.lease_micros()), param(is_sweep_due)];
        let queries = [
            Query { sql: Sql::Peers, action: "reading leases", params },
            // a program may insert rows without a hint
            Query { sql: Sql::HasInboxRows, action: "looking for rows of the inbox", params: vec![now()] },
        ];
        let results = self.query_all(&self.takeover_session, TAKEOVER_STATEMENTS, &queries).await?;
        let [peers, inbox] = &results[..] else { return Err(corrupt("a query result")) };
        let peers = peers.rows.iter().map(parse_peer).collect::<Result<Vec<_>, _>>()?;
        let mut inbox = Columns::new(single_row(inbox)?);
        let (now, has_unannounced) = (inbox.time()?, inbox.next()?);
        let maintenance = self.with_observer(worker, |observer| {
            let next_expiry_at = observer.observe(&peers, (now, Instant::now()));
            Maintenance {
                has_dead_workers: observer.targets.has_any(),
                next_expiry_in: next_expiry_at.map(|at| at.since(now)),
                has_unannounced,
            }
        });
        Ok((maintenance, counts))
    }

    /// Handles a heartbeat; see [`Store::heartbeat`](stepfast_core::Store::heartbeat).
    pub(crate) async fn heartbeat(
        &self,
        heartbeat: &Heartbeat,
        reader: &Reader,
    ) -> Result<HeartbeatReply, StoreError> {
        let worker = heartbeat.worker;
        let params = vec![
            param(worker.0),
            param(heartbeat.epoch),
            param(self.now().map(Timestamptz)),
            param(heartbeat.watched.iter().map(|key| to_uuid(*key)).collect::<Vec<_>>()),
            text_array(&heartbeat.workflows),
            param(heartbeat.app_version.as_deref()),
            optional_text_array(heartbeat.queues.as_ref()),
        ];
        let look = Query { sql: Sql::Look, action: "looking for events", params };
        let results = self.query_all(&self.heartbeat_session, HEARTBEAT_STATEMENTS, &[look]).await?;
        let [look] = &results[..] else { return Err(corrupt("a query result")) };
        let mut reply = parse_look(look)?;
        if reply.is_fenced {
            self.remove_worker(worker);
            return Ok(HeartbeatReply { now: reply.now, is_fenced: true, ..HeartbeatReply::default() });
        }
        if let Some(held) = &heartbeat.held {
            reply.unheld = self.load_unheld(worker, held, reader).await?;
        }
        Ok(reply)
    }

    fn with_observer<R>(&self, worker: WorkerId, f: impl FnOnce(&mut LeaseObserver) -> R) -> R {
        f(self.observers.lock().unwrap_or_else(PoisonError::into_inner).entry(worker).or_default())
    }

    /// Deletes and merges assignments of which no execution, or few executions, still run.
    async fn tidy_assignments(&self, worker: WorkerId, epoch: i64) -> Result<(), StoreError> {
        let Some(Tidying { merged, deleted }) = self.assignments.begin_tidying(worker) else { return Ok(()) };
        let (id, moved) = merged.map(|(id, moved)| (Some(id), moved)).unwrap_or_default();
        let params = vec![
            param(worker.0),
            param(epoch),
            column(&deleted, |id| id.lane.cast_signed()),
            column(&deleted, |id| id.number),
            param(id.map(|id| id.lane.cast_signed())),
            param(id.map(|id| id.number)),
            param(moved.into_iter().map(to_uuid).collect::<Vec<_>>()),
        ];
        let query = Query { sql: Sql::TidyAssignments, action: "tidying assignments", params };
        self.query_all(&self.takeover_session, TAKEOVER_STATEMENTS, &[query]).await?;
        self.assignments.end_tidying(worker);
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
        let results = self.query_all(&self.heartbeat_session, HEARTBEAT_STATEMENTS, &queries).await?;
        if let (Some(lane), Some(row)) = (claim_lane, results.get(1))
            && let Some((_, last)) = parse_lane_state(row).map_err(DbError::into_store_error)?
        {
            self.lanes.record_durable(worker, lane, last, None);
        }
        let result = results.first().ok_or_else(|| corrupt("a query result"))?;
        let held: HashSet<_> = held.iter().collect();
        // a later assignment of an execution may exist beside its first one
        let mut unheld = BTreeSet::new();
        for row in &result.rows {
            let mut row = Columns::new(row);
            let id = AssignmentId { lane: row.next::<i16>()?.cast_unsigned(), number: row.next()? };
            let running: Vec<Uuid> = row.next()?;
            let running: Vec<Key> = running.into_iter().map(to_key).collect();
            unheld.extend(running.iter().filter(|key| !held.contains(key)));
            // A claim whose reply was lost; no claim is under way now. A tidying may have deleted the row of executions
            // that are held since the server read it.
            if Some(id.lane) == claim_lane && running.iter().any(|key| !held.contains(key)) {
                self.assignments.adopt(worker, id, running);
            }
        }
        if unheld.is_empty() {
            return Ok(Vec::new());
        }
        let unheld: Vec<ExecutionId> = unheld.into_iter().map(ExecutionId::Key).collect();
        let records = reader.load(&unheld, Detail::LastPart).await?;
        Ok(records.into_iter().flatten().filter(|record| record.execution.owner == Some(worker)).collect())
    }
}

/// Parses the result of look.sql.
fn parse_look(result: &QueryResult) -> Result<HeartbeatReply, StoreError> {
    let mut row = Columns::new(single_row(result)?);
    let now = row.time()?;
    let is_registered: bool = row.next()?;
    let requested: Vec<Uuid> = row.next::<Option<_>>()?.unwrap_or_default();
    let kinds: Vec<i16> = row.next::<Option<_>>()?.unwrap_or_default();
    let ids: Vec<Uuid> = row.next::<Option<_>>()?.unwrap_or_default();
    let finished: Vec<Uuid> = row.next()?;
    let has_ready = row.next()?;
    let next_due = row.opt_time()?;
    let expired: Vec<Uuid> = row.next()?;
    let next_deadline = row.opt_time()?;
    let quarantined_until = row.opt_time()?;
    let requests = requested.into_iter().zip(kinds.into_iter().zip(ids));
    Ok(HeartbeatReply {
        now,
        is_fenced: !is_registered,
        requests: requests
            .filter_map(|(execution, (kind, id))| {
                Some((to_key(execution), RequestKind::from_row(kind.into(), to_key(id))?))
            })
            .collect(),
        finished: finished.into_iter().map(to_key).collect(),
        has_ready,
        next_due,
        expired: expired.into_iter().map(to_key).collect(),
        next_deadline,
        quarantined_until,
        ..HeartbeatReply::default()
    })
}

/// Parses a row of peers.sql.
fn parse_peer(row: &Row) -> Result<PeerLease, StoreError> {
    let mut row = Columns::new(row);
    Ok(PeerLease {
        worker: WorkerId(row.next()?),
        expires_at: row.time()?,
        length: row.next::<Option<i64>>()?.map(|ms| Duration::from_millis(ms.unsigned_abs())),
        is_expired: row.next()?,
        is_client: row.next()?,
    })
}
