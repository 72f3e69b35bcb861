//! Control of workers and queues: registrations, heartbeats, takeovers of dead workers, and changes of queues.

mod graphs;
mod heartbeat;
mod lease_observer;
mod outage_guard;
mod queues;
mod takeover;

use std::collections::HashMap;
use std::sync::{Arc, Mutex as StdMutex, PoisonError};

use stepfast_core::clock::Timestamp;
use stepfast_core::store::{Assignments, Registration, StoreError, WorkerId, WorkerInfo};
use tokio::sync::{Mutex, MutexGuard};

use crate::changes::Changes;
use crate::conn::background::BackgroundRuntime;
use crate::conn::connector::{Connector, Purpose};
use crate::conn::pipeline;
use crate::conn::pipeline::{Query, QueryResult, param};
use crate::conn::pipeline::{optional_text_array, text_array};
use crate::conn::session::Session;
use crate::conn::session::TxPart;
use crate::conn::statements::{HEARTBEAT_STATEMENTS, Sql, TAKEOVER_STATEMENTS};
use crate::control::lease_observer::LeaseObserver;
use crate::control::takeover::FencedWorker;
use crate::error::{corrupt, query_error, unavailable_error};
use crate::lane::Lanes;
use crate::rows::Columns;
use crate::rows::types::Timestamptz;
use crate::schema::{newest_version, newest_version_column};

/// The operations that use no lane. Renewals have a connection of their own, so that they wait for nothing else. So do
/// registrations and heartbeats, and maintenance and takeovers.
pub(crate) struct WorkerControl {
    connector: Arc<Connector>,
    background: Arc<BackgroundRuntime>,
    renewal_session: Mutex<Option<Session>>,
    heartbeat_session: Mutex<Option<Session>>,
    takeover_session: Mutex<Option<Session>>,
    observers: StdMutex<HashMap<WorkerId, LeaseObserver>>,
    assignments: Arc<Assignments>,
    lanes: Arc<Lanes>,
}

impl WorkerControl {
    /// Creates the control of a store. `heartbeat_session`: the connection for heartbeats, if one is open already.
    pub(crate) fn new(
        connector: Arc<Connector>,
        background: Arc<BackgroundRuntime>,
        assignments: Arc<Assignments>,
        lanes: Arc<Lanes>,
        heartbeat_session: Option<Session>,
    ) -> Self {
        Self {
            connector,
            background,
            renewal_session: Mutex::default(),
            heartbeat_session: Mutex::new(heartbeat_session),
            takeover_session: Mutex::default(),
            observers: StdMutex::default(),
            assignments,
            lanes,
        }
    }

    pub(crate) fn now(&self) -> Option<Timestamp> {
        self.connector.options().clock.as_ref().map(|clock| clock.now())
    }

    pub(crate) fn lease_micros(&self) -> i64 {
        i64::try_from(self.connector.options().lease.as_micros()).unwrap_or(i64::MAX / 2)
    }

    /// Returns the kept session if its connection is open; otherwise opens a new one.
    async fn reuse_or_open(&self, kept: Option<Session>, statements: &[Sql]) -> Result<Session, StoreError> {
        match kept.filter(|session| !session.is_closed()) {
            Some(session) => Ok(session),
            None => {
                Session::open(&self.connector, self.background.runtime(), Purpose::Control, statements).await
            }
        }
    }

    /// Locks the place of the session for takeovers, and returns it with the session; see [`keep_session`].
    async fn open_takeover_session(&self) -> Result<(MutexGuard<'_, Option<Session>>, Session), StoreError> {
        let mut kept_session = self.takeover_session.lock().await;
        let session = self.reuse_or_open(kept_session.take(), TAKEOVER_STATEMENTS).await?;
        Ok((kept_session, session))
    }

    /// Returns the results of standalone queries on a session, each with a snapshot of its own. Opens the session with
    /// `statements` unless it is open.
    async fn query_all(
        &self,
        session: &Mutex<Option<Session>>,
        statements: &[Sql],
        queries: &[Query<'_>],
    ) -> Result<Vec<QueryResult>, StoreError> {
        let mut kept_session = session.lock().await;
        let session = self.reuse_or_open(kept_session.take(), statements).await?;
        let results = pipeline::run(&session, TxPart::Standalone, queries).await.map_err(query_error)?;
        *kept_session = Some(session);
        Ok(results)
    }

    /// Registers a worker; see [`Store::register`](stepfast_core::Store::register).
    pub(crate) async fn register(&self, lanes: u16, info: &WorkerInfo) -> Result<Registration, StoreError> {
        let params = vec![
            param(i32::from(lanes)),
            param(self.now().map(Timestamptz)),
            param(self.lease_micros()),
            param(info.host.as_str()),
            param(i64::from(info.pid)),
            param(info.engine.as_str()),
            param(info.app_version.as_deref()),
            text_array(&info.workflows),
            param(info.is_client),
            optional_text_array(info.queues.as_ref()),
            // the epoch, a random number: if the server loses this registration and assigns its id again, the epoch is
            // another one; takeovers count up from it
            param(fastrand::i64(1..1 << 42) << 20),
            param(newest_version_column()),
        ];
        let action = "registering a worker";
        let queries = [
            Query { sql: Sql::Register, action, params },
            // the versions are read after the registration, because it may have waited for a migration
            Query { sql: Sql::ReadVersions, action, params: Vec::new() },
        ];
        let results = self.query_all(&self.heartbeat_session, HEARTBEAT_STATEMENTS, &queries).await?;
        stepfast_core::crash_point!("postgres registered");
        let [registered, versions] = &results[..] else { return Err(corrupt("a query result")) };
        let Some(row) = registered.rows.first() else {
            let mut row = Columns::new(versions.rows.first().ok_or_else(|| corrupt("table shard"))?);
            let (oldest, version) = (row.next::<i32>()?, row.next::<i32>()?);
            return Err(StoreError::NewerSchema {
                found: oldest.max(version).into(),
                supported: newest_version(),
            });
        };
        let mut row = Columns::new(row);
        Ok(Registration { worker: WorkerId(row.next()?), epoch: row.next()?, now: row.time()? })
    }

    /// Closes a registration; see [`Store::close`](stepfast_core::Store::close). Adds the executions that have become ready,
    /// and the batches that have ended, to `changes`, also before an error.
    pub(crate) async fn close(&self, worker: WorkerId, changes: &mut Changes) -> Result<(), StoreError> {
        self.remove_worker(worker);
        let (kept_session, session) = self.open_takeover_session().await?;
        let mut requeued = 0;
        let result = async {
            let fenced = takeover::fence_workers(&session, &[(worker, None)], false).await?;
            let Some(FencedWorker { is_client, .. }) = fenced.first() else { return Ok(()) };
            stepfast_core::crash_point!("postgres registration closed");
            takeover::requeue(&session, worker, false, self.now(), &mut requeued).await?;
            // the worker's lanes may have been closed before they had sent its last Wakes
            if !is_client {
                takeover::wake_satisfied(&session, self.now(), changes).await?;
            }
            Ok(())
        };
        let result = result.await;
        if requeued > 0 {
            changes.merge(Changes::ready(requeued));
        }
        keep_session(kept_session, session, result.is_ok()).await;
        result.map_err(unavailable_error)
    }

    /// Forgets a worker whose registration has ended.
    fn remove_worker(&self, worker: WorkerId) {
        self.observers.lock().unwrap_or_else(PoisonError::into_inner).remove(&worker);
        self.assignments.remove_worker(worker);
    }
}

/// Keeps a session for the next use, unless its transaction failed and cannot be rolled back.
async fn keep_session(mut kept_session: MutexGuard<'_, Option<Session>>, session: Session, is_ok: bool) {
    if is_ok || pipeline::roll_back(&session).await {
        *kept_session = Some(session);
    }
}
