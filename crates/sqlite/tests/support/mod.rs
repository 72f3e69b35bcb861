//! Helpers for the tests of this crate: a store in a directory of its own, and constructors for Writes.
#![allow(dead_code, unreachable_pub)] // each test file uses a part of it

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::time::Duration;

use stepfast_core::attributes::Attributes;
use stepfast_core::clock::{Clock, ManualClock, Timestamp};
use stepfast_core::key::Key;
use stepfast_core::path::Path;
use stepfast_core::payload::Payload;
use stepfast_core::store::{
    Checkpoint, CheckpointKind, Claim, Detail, ExecutionId, Flush, Heartbeat, HeartbeatReply, Outcome,
    Parent, Record, Registration, Renewal, Request, RequestKind, Start, State, Status, Store, StoreError,
    Transition, Wait, WorkerInfo, Write,
};
use stepfast_sqlite::{SqliteOptions, SqliteStore};

pub const NOON: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);

/// A store with a registered worker.
pub struct Worker {
    pub store: Arc<SqliteStore>,
    pub clock: Arc<ManualClock>,
    pub registration: Registration,
    number: AtomicI64,
}

/// Creates a directory, and returns it with a path for a database in it.
pub fn temp_database() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("test.db");
    (dir, path)
}

pub fn open(path: &std::path::Path, clock: &Arc<ManualClock>) -> Arc<SqliteStore> {
    let clock: Arc<dyn Clock> = clock.clone();
    let options = SqliteOptions { clock: Some(clock), ..SqliteOptions::default() };
    Arc::new(SqliteStore::open(path, options).unwrap())
}

/// The reply to a heartbeat, and the number of executions recovered by the takeover after it.
pub struct HeartbeatResult {
    pub reply: HeartbeatReply,
    pub recovered: u64,
}

impl std::ops::Deref for HeartbeatResult {
    type Target = HeartbeatReply;

    fn deref(&self) -> &HeartbeatReply {
        &self.reply
    }
}

impl Worker {
    pub async fn at(path: &std::path::Path) -> Self {
        let clock = Arc::new(ManualClock::at(NOON));
        Self::on(open(path, &clock), clock).await
    }

    pub async fn on(store: Arc<SqliteStore>, clock: Arc<ManualClock>) -> Self {
        let registration = store.register(2, &WorkerInfo::default()).await.unwrap();
        Self { store, clock, registration, number: AtomicI64::new(0) }
    }

    pub fn flush(&self, writes: Vec<Write>) -> Flush {
        Flush {
            worker: self.registration.worker,
            lane: 0,
            epoch: self.registration.epoch,
            number: self.number.load(Relaxed) + 1,
            is_resent: false,
            is_bisecting: false,
            writes,
        }
    }

    /// Sends a flush. If it is durable, the next one gets the next number.
    pub async fn send(&self, flush: &Flush) -> Result<Vec<(usize, Outcome)>, StoreError> {
        let outcomes = self.store.commit(flush).await?;
        self.number.store(flush.number, Relaxed);
        Ok(outcomes)
    }

    pub async fn try_commit(&self, writes: Vec<Write>) -> Result<Vec<(usize, Outcome)>, StoreError> {
        self.send(&self.flush(writes)).await
    }

    pub async fn commit(&self, writes: Vec<Write>) -> Vec<(usize, Outcome)> {
        self.try_commit(writes).await.unwrap()
    }

    /// Commits one Write, and returns its outcome.
    pub async fn commit_one(&self, write: Write) -> Outcome {
        self.commit(vec![write]).await.pop().map_or(Outcome::Applied, |(_, outcome)| outcome)
    }

    pub fn claim_request(&self, limit: usize, workflows: &[&str]) -> Claim {
        Claim {
            worker: self.registration.worker,
            lane: 1,
            epoch: self.registration.epoch,
            number: 1,
            limit,
            max_bundles: usize::MAX,
            busy_keys: Vec::new(),
            max_bytes: 16 << 20,
            workflows: names(workflows),
            app_version: None,
            queues: None,
            from_quarantine: false,
        }
    }

    pub async fn claim(&self, limit: usize, workflows: &[&str]) -> Vec<Record> {
        self.store.claim(&self.claim_request(limit, workflows)).await.unwrap().records
    }

    pub async fn claim_keys(&self, limit: usize, workflows: &[&str]) -> Vec<Key> {
        self.claim(limit, workflows).await.iter().map(|record| record.execution.key).collect()
    }

    pub fn heartbeat_request(&self, workflows: &[&str]) -> Heartbeat {
        Heartbeat {
            worker: self.registration.worker,
            epoch: self.registration.epoch,
            watched: Vec::new(),
            held: None,
            workflows: names(workflows),
            app_version: None,
            queues: None,
        }
    }

    pub async fn renew(&self) -> Result<Renewal, StoreError> {
        self.store.renew(self.registration.worker, self.registration.epoch).await
    }

    pub async fn heartbeat(&self) -> HeartbeatResult {
        self.heartbeat_and_take_over(&self.heartbeat_request(&["w"])).await
    }

    /// Renews the registration, sends a heartbeat, does the maintenance, and takes over the dead workers that it finds.
    pub async fn heartbeat_and_take_over(&self, heartbeat: &Heartbeat) -> HeartbeatResult {
        let (worker, epoch) = (heartbeat.worker, heartbeat.epoch);
        let is_fenced = self.store.renew(worker, epoch).await.unwrap().is_fenced;
        let mut reply = self.store.heartbeat(heartbeat).await.unwrap();
        assert_eq!(reply.is_fenced, is_fenced);
        let is_dead_found = !is_fenced && self.store.maintain(worker, epoch).await.unwrap().has_dead_workers;
        let recovered = if is_dead_found { self.store.take_over(worker).await.unwrap() } else { 0 };
        reply.has_ready |= recovered > 0;
        HeartbeatResult { reply, recovered }
    }

    pub async fn record(&self, key: Key) -> Record {
        self.store.load(&[ExecutionId::Key(key)], Detail::Full).await.unwrap().remove(0).unwrap()
    }

    pub async fn status(&self, key: Key) -> Status {
        self.record(key).await.execution.status
    }
}

pub fn names(names: &[&str]) -> Arc<[Arc<str>]> {
    names.iter().map(|name| Arc::from(*name)).collect()
}

pub fn value(value: &str) -> Payload {
    Payload::encode(value).unwrap()
}

pub fn running() -> State {
    State::Running { pending_sleeps: Vec::new() }
}

pub fn queued() -> State {
    State::Queued { pending_sleeps: Vec::new() }
}

pub fn waiting(wake_at: Option<Timestamp>, children: &[Key]) -> State {
    State::Waiting {
        wake_at,
        waits: Wait::for_children(children.iter().copied()),
        pending_sleeps: Vec::new(),
    }
}

pub fn parked(reason: &str) -> State {
    State::Parked { reason: value(reason), pending_sleeps: Vec::new(), is_pause: false }
}

pub fn completed(outcome: &str) -> State {
    State::Ended { status: Status::Completed, outcome: value(outcome), at: later(1) }
}

pub fn later(seconds: u64) -> Timestamp {
    NOON.plus(Duration::from_secs(seconds))
}

pub fn start(key: Key, state: State) -> Start {
    Start {
        key,
        root: key,
        parent: None,
        workflow_id: None,
        workflow: Arc::from("w"),
        app_version: None,
        placement: None,
        fingerprint: None,
        input: value("input"),
        created_at: NOON,
        deadline_at: None,
        item_count: None,
        is_guarded: false,
        has_begun: false,
        self_claims: false,
        dedup_id: None,
        debounce_window: None,
        run_timeout: None,
        attributes: Attributes::NONE,
        state,
    }
}

pub fn child(parent: Key, is_detached: bool, state: State) -> Start {
    let mut start = start(Key::mint(0), state);
    start.root = parent;
    start.parent = Some(Parent { key: parent, is_detached });
    start
}

/// Wraps a Start in a Write.
pub fn start_write(start: Start) -> Write {
    Write::Start(Box::new(start))
}

pub fn transition(key: Key, state: State) -> Write {
    Write::Transition(Transition { key, placement: None, state })
}

pub fn checkpoint(execution: Key, n: u32, outcome: &str) -> Checkpoint {
    Checkpoint {
        execution,
        path: Path::root().child(n),
        run_no: 1,
        order: n,
        kind: CheckpointKind::Step,
        name: "step".into(),
        fingerprint: Some(u64::MAX - u64::from(n)),
        outcome: value(outcome),
        at: later(u64::from(n)),
        duration_ms: 7,
        number: None,
    }
}

pub fn cancel(execution: Key) -> Request {
    Request { execution, id: Key::mint(0), kind: RequestKind::Cancel, at: later(9), reason: value("stop") }
}

pub fn resume(execution: Key) -> Request {
    Request { execution, id: Key::mint(0), kind: RequestKind::Resume, at: later(9), reason: Payload::empty() }
}
