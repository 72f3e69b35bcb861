//! Helpers: a store in a schema of its own, and constructors for Writes.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::time::Duration;

use serde::Serialize;
use stepfast_core::attributes::Attributes;
use stepfast_core::clock::{ManualClock, Timestamp};
use stepfast_core::store::{
    Attempt, Checkpoint, CheckpointKind, Claim, Detail, ExecutionId, Flush, Heartbeat, Outcome, Parent,
    Record, Registration, Renewal, Request, RequestKind, Start, State, Status, StoreError, Transition, Wait,
    WorkerId, Write,
};
use stepfast_core::{Key, Path, Payload, Store};
use stepfast_postgres::{PostgresOptions, PostgresStore};
use stepfast_tests::fixtures::postgres_server::PostgresServer;
pub(crate) use stepfast_tests::fixtures::registration::{
    HeartbeatWithTakeover, heartbeat_and_take_over, worker_info,
};
use tokio_postgres::{Client, NoTls};

pub(crate) const NOON: Timestamp = Timestamp::from_micros(1_700_000_000_123_457);

/// A store, a worker with two lanes for flushes (0 and 1) and one for claims (2), and a plain connection.
pub(crate) struct Fixture {
    pub(crate) store: Arc<PostgresStore>,
    pub(crate) worker: Registration,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) sql: Client,
    pub(crate) schema: String,
    pub(crate) numbers: [AtomicI64; 3],
}

pub(crate) fn url() -> &'static str {
    PostgresServer::shared().url()
}

pub(crate) async fn client(schema: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url(), NoTls).await.unwrap();
    tokio::spawn(connection);
    client.batch_execute(&format!("SET search_path TO {schema}")).await.unwrap();
    client
}

/// Ends the sessions with this application name, and waits until the server has ended them.
pub(crate) async fn end_sessions(sql: &Client, application_name: &str) {
    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1";
    assert!(sql.execute(end, &[&application_name]).await.unwrap() > 0);
    let count = "SELECT FROM pg_stat_activity WHERE application_name = $1";
    while sql.execute(count, &[&application_name]).await.unwrap() > 0 {}
}

impl Fixture {
    /// Opens a store with a clock that stands still.
    pub(crate) async fn new() -> Self {
        Self::with(|options| options).await
    }

    pub(crate) async fn with(options: impl FnOnce(PostgresOptions) -> PostgresOptions) -> Self {
        Self::at(url(), options).await
    }

    pub(crate) async fn at(url: &str, options: impl FnOnce(PostgresOptions) -> PostgresOptions) -> Self {
        let schema = PostgresServer::shared().fresh_schema_name();
        let clock = Arc::new(ManualClock::at(NOON));
        let options = options(PostgresOptions::default().schema(&schema).clock(clock.clone()));
        let store = Arc::new(PostgresStore::open_with(url, options).await.unwrap());
        let worker = store.register(3, &worker_info(&[])).await.unwrap();
        let sql = client(&schema).await;
        Self { store, worker, clock, sql, schema, numbers: Default::default() }
    }

    /// Opens another store in the same schema, as another process does.
    pub(crate) async fn other(&self) -> PostgresStore {
        let options = PostgresOptions::default().schema(&self.schema).clock(self.clock.clone());
        PostgresStore::open_with(url(), options).await.unwrap()
    }

    /// Returns the next flush of lane 0.
    pub(crate) fn flush(&self, writes: Vec<Write>) -> Flush {
        self.flush_on(0, writes)
    }

    pub(crate) fn flush_on(&self, lane: u16, writes: Vec<Write>) -> Flush {
        let number = self.numbers[usize::from(lane)].load(Relaxed) + 1;
        let (worker, epoch) = (self.worker.worker, self.worker.epoch);
        Flush { worker, lane, epoch, number, is_resent: false, is_bisecting: false, writes }
    }

    /// Commits a flush. Its number counts as used after a success.
    pub(crate) async fn commit(&self, flush: &Flush) -> Result<Vec<(usize, Outcome)>, StoreError> {
        let result = self.store.commit(flush).await;
        if result.is_ok() {
            self.numbers[usize::from(flush.lane)].store(flush.number, Relaxed);
        }
        result
    }

    /// Commits Writes, and expects success.
    pub(crate) async fn write(&self, writes: Vec<Write>) -> Vec<(usize, Outcome)> {
        self.commit(&self.flush(writes)).await.unwrap()
    }

    /// Commits one Write, and returns its outcome.
    pub(crate) async fn outcome(&self, write: Write) -> Outcome {
        let outcomes = self.write(vec![write]).await;
        outcomes.into_iter().next().map_or(Outcome::Applied, |(_, outcome)| outcome)
    }

    pub(crate) async fn load(&self, key: Key) -> Option<Record> {
        self.store.load(&[ExecutionId::Key(key)], Detail::Full).await.unwrap().remove(0)
    }

    pub(crate) async fn status(&self, key: Key) -> Status {
        self.load(key).await.unwrap().execution.status
    }

    pub(crate) async fn count(&self, table: &str) -> i64 {
        self.sql.query_one(&format!("SELECT count(*) FROM {table}"), &[]).await.unwrap().get(0)
    }

    /// Returns the numbers of rows of all tables, including role tables.
    pub(crate) async fn counts(&self) -> Vec<i64> {
        let mut counts = Vec::new();
        for table in TABLES {
            counts.push(self.count(table).await);
        }
        counts
    }

    pub(crate) fn claim(&self, limit: usize) -> Claim {
        let number = self.numbers[2].load(Relaxed) + 1;
        let (worker, epoch) = (self.worker.worker, self.worker.epoch);
        Claim {
            worker,
            lane: 2,
            epoch,
            number,
            limit,
            max_bundles: usize::MAX,
            busy_keys: Vec::new(),
            max_bytes: 1 << 20,
            workflows: workflows(),
            app_version: None,
            queues: None,
            from_quarantine: false,
        }
    }

    pub(crate) async fn take(&self, limit: usize) -> Vec<Record> {
        self.try_take(limit).await.unwrap()
    }

    pub(crate) async fn try_take(&self, limit: usize) -> Result<Vec<Record>, StoreError> {
        let claim = self.claim(limit);
        let records = self.store.claim(&claim).await?.records;
        self.numbers[2].store(claim.number, Relaxed);
        Ok(records)
    }

    pub(crate) async fn renew(&self) -> Result<Renewal, StoreError> {
        self.store.renew(self.worker.worker, self.worker.epoch).await
    }

    pub(crate) async fn heartbeat(&self) -> HeartbeatWithTakeover {
        heartbeat_and_take_over(&*self.store, &heartbeat_request(&self.worker)).await
    }
}

pub(crate) const TABLES: [&str; 8] =
    ["executions", "checkpoints", "attempts", "chunks", "ready", "timers", "waits", "requests"];

/// Returns the key as the database stores it.
pub(crate) fn uuid(key: Key) -> uuid::Uuid {
    uuid::Uuid::from_bytes(*key.as_bytes())
}

pub(crate) fn workflows() -> Arc<[Arc<str>]> {
    ["order", "child"].map(Arc::from).into()
}

pub(crate) fn heartbeat_request(worker: &Registration) -> Heartbeat {
    Heartbeat {
        worker: worker.worker,
        epoch: worker.epoch,
        watched: Vec::new(),
        held: None,
        workflows: workflows(),
        app_version: None,
        queues: None,
    }
}

pub(crate) fn payload<T: Serialize + ?Sized>(value: &T) -> Payload {
    Payload::encode(value).unwrap()
}

pub(crate) const RUNNING: State = State::Running { pending_sleeps: Vec::new() };
pub(crate) const QUEUED: State = State::Queued { pending_sleeps: Vec::new() };

pub(crate) fn waiting(wake_at: Option<Timestamp>, children: &[Key]) -> State {
    State::Waiting {
        wake_at,
        waits: Wait::for_children(children.iter().copied()),
        pending_sleeps: Vec::new(),
    }
}

pub(crate) fn ended(status: Status) -> State {
    State::Ended { status, outcome: payload("the end"), at: NOON }
}

pub(crate) fn parked() -> State {
    State::Parked { reason: payload("parked"), pending_sleeps: Vec::new(), is_pause: false }
}

pub(crate) fn later(seconds: u64) -> Timestamp {
    NOON.plus(Duration::from_secs(seconds))
}

pub(crate) fn start_of(key: Key, state: State) -> Start {
    Start {
        key,
        root: key,
        parent: None,
        workflow_id: None,
        workflow: "order".into(),
        app_version: None,
        placement: None,
        fingerprint: None,
        input: payload(&7),
        created_at: NOON,
        deadline_at: None,
        is_guarded: false,
        has_begun: false,
        self_claims: false,
        dedup_id: None,
        debounce_window: None,
        run_timeout: None,
        attributes: Attributes::NONE,
        item_count: None,
        state,
    }
}

pub(crate) fn start(key: Key, state: State) -> Write {
    Write::Start(Box::new(start_of(key, state)))
}

pub(crate) fn start_id(key: Key, id: &str, state: State) -> Write {
    let workflow_id = Some(id.into());
    Write::Start(Box::new(Start {
        workflow_id,
        is_guarded: true,
        fingerprint: Some(u64::MAX),
        ..start_of(key, state)
    }))
}

pub(crate) fn child(key: Key, parent: Key, is_detached: bool, state: State) -> Write {
    Write::Start(Box::new(Start {
        root: parent,
        parent: Some(Parent { key: parent, is_detached }),
        workflow: "child".into(),
        ..start_of(key, state)
    }))
}

pub(crate) fn transition(key: Key, state: State) -> Write {
    Write::Transition(Transition { key, placement: None, state })
}

pub(crate) fn checkpoint(execution: Key, n: u32) -> Write {
    Write::Checkpoint(Checkpoint {
        execution,
        path: Path::root().child(n),
        run_no: 1,
        order: n,
        kind: CheckpointKind::Step,
        name: "charge".into(),
        fingerprint: Some(u64::MAX - 1),
        outcome: payload(&n),
        at: NOON,
        duration_ms: 12,
        number: None,
    })
}

pub(crate) fn attempt(execution: Key, n: u32) -> Write {
    Write::Attempt(Attempt {
        execution,
        path: Path::root().child(1),
        attempt: n,
        failure: payload("failed"),
        at: NOON,
    })
}

pub(crate) fn request(execution: Key, kind: RequestKind) -> Write {
    let reason = if kind == RequestKind::Cancel { payload("cancelled") } else { Payload::empty() };
    Write::Request(Request { execution, id: Key::mint(0), kind, at: NOON, reason })
}

pub(crate) fn cancel(execution: Key) -> Write {
    request(execution, RequestKind::Cancel)
}

pub(crate) fn resume(execution: Key) -> Write {
    request(execution, RequestKind::Resume)
}

pub(crate) fn owner(record: &Record) -> Option<WorkerId> {
    record.execution.owner
}

pub(crate) fn duplicate_of(outcome: &Outcome) -> Option<Key> {
    match outcome {
        Outcome::Duplicate(existing) => Some(existing.key),
        _ => None,
    }
}

/// Commits a flush of a lane beside the test.
pub(crate) fn spawn_flush(
    db: &Arc<Fixture>,
    lane: u16,
    writes: Vec<Write>,
) -> tokio::task::JoinHandle<Vec<(usize, Outcome)>> {
    let db = db.clone();
    tokio::spawn(async move { db.commit(&db.flush_on(lane, writes)).await.unwrap() })
}

/// Waits until a connection of the test's schema waits for a lock while it executes a statement that contains `text`.
pub(crate) async fn wait_until_blocked(sql: &Client, what: &str) {
    let query = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE $1 AND pid IN \
                 (SELECT w.pid FROM pg_locks AS w JOIN pg_locks AS r USING (pid) \
                  JOIN pg_class AS c ON c.oid = r.relation \
                  WHERE NOT w.granted AND c.relnamespace = current_schema()::regnamespace)";
    let like = format!("%{what}%");
    loop {
        // a connection of this schema has locked one of the schema's tables
        let blocked: i64 = sql.query_one(query, &[&like]).await.unwrap().get(0);
        if blocked > 0 {
            return;
        }
    }
}
