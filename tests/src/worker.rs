//! [`Worker`]: a registration with its numbers, as the suite uses it.

use std::ops::Deref;
use std::sync::Arc;

use stepfast_core::key::Key;
use stepfast_core::store::{
    Claim, ClaimReply, Detail, Execution, ExecutionId, Filter, Flush, Heartbeat, Outcome, Record, HeartbeatReply, Store,
    StoreError, WorkerId, WorkerInfo, Write,
};

use crate::make::WORKFLOW;

/// The lane that flushes are numbered in.
pub const FLUSHES: u16 = 0;
/// The lane that claims are numbered in.
pub const CLAIMS: u16 = 1;

/// What a look saw, and how many executions of lost workers were recovered after it.
#[derive(Clone, Debug)]
pub struct Looked {
    /// What it saw; what was recovered after it counts as ready.
    pub seen: HeartbeatReply,
    /// How many were recovered.
    pub recovered: u64,
}

impl Deref for Looked {
    type Target = HeartbeatReply;

    fn deref(&self) -> &HeartbeatReply {
        &self.seen
    }
}

/// Looks, and takes over what it shows to be lost, as an engine does.
pub async fn look(store: &dyn Store, look: &Heartbeat) -> Looked {
    let mut seen = store.heartbeat(look).await.unwrap();
    let recovered = if seen.has_dead_workers { store.take_over(look.worker).await.unwrap() } else { 0 };
    seen.has_ready |= recovered > 0;
    Looked { seen, recovered }
}

/// What a worker says of itself that can run these workflows.
pub fn info(workflows: &[&str]) -> WorkerInfo {
    let workflows = workflows.iter().map(|name| Arc::from(*name)).collect();
    WorkerInfo { host: "here".into(), pid: 7, engine: "test".into(), workflows, ..WorkerInfo::default() }
}

/// A registered worker. Its methods panic on errors unless they return them.
pub struct Worker {
    /// Where it is registered.
    pub store: Arc<dyn Store>,
    /// Its id.
    pub id: WorkerId,
    /// Its epoch.
    pub epoch: i64,
    /// The number of its next flush.
    pub number: i64,
    /// The number of its next claim.
    pub claim_number: i64,
    /// What it can run.
    pub workflows: Arc<[Arc<str>]>,
}

impl Worker {
    /// Registers a worker with a lane for flushes and one for claims.
    pub async fn register(store: &Arc<dyn Store>) -> Self {
        Self::register_for(store, &[WORKFLOW]).await
    }

    /// Registers a worker that can run these workflows.
    pub async fn register_for(store: &Arc<dyn Store>, workflows: &[&str]) -> Self {
        let registration = store.register(2, &info(workflows)).await.unwrap();
        Self {
            store: store.clone(),
            id: registration.worker,
            epoch: registration.epoch,
            number: 1,
            claim_number: 1,
            workflows: workflows.iter().map(|name| Arc::from(*name)).collect(),
        }
    }

    /// Its next flush, with these Writes.
    pub fn flush(&self, writes: Vec<Write>) -> Flush {
        let (worker, epoch, number) = (self.id, self.epoch, self.number);
        Flush { worker, lane: FLUSHES, epoch, number, is_resent: false, is_bisecting: false, writes }
    }

    /// Commits a flush and returns an outcome for every Write.
    pub async fn send(&mut self, flush: &Flush) -> Result<Vec<Outcome>, StoreError> {
        let others = self.store.commit(flush).await?;
        self.number = flush.number + 1;
        assert!(others.windows(2).all(|pair| pair[0].0 < pair[1].0), "indexes ascend: {others:?}");
        let mut outcomes = vec![Outcome::Applied; flush.writes.len()];
        for (i, outcome) in others {
            assert_ne!(outcome, Outcome::Applied, "Applied is not reported");
            outcomes[i] = outcome;
        }
        Ok(outcomes)
    }

    /// Commits its next flush and returns an outcome for every Write, or the error.
    pub async fn try_commit(&mut self, writes: Vec<Write>) -> Result<Vec<Outcome>, StoreError> {
        self.send(&self.flush(writes)).await
    }

    /// Commits its next flush and returns an outcome for every Write.
    pub async fn commit(&mut self, writes: Vec<Write>) -> Vec<Outcome> {
        self.try_commit(writes).await.unwrap()
    }

    /// Commits its next flush as a lane does, which sends it again to a store that is unavailable. Returns an outcome for
    /// every Write.
    pub async fn commit_at_last(&mut self, writes: Vec<Write>) -> Vec<Outcome> {
        let mut flush = self.flush(writes);
        loop {
            match self.send(&flush).await {
                Err(StoreError::Unavailable(_)) => flush.is_resent = true,
                outcomes => return outcomes.unwrap(),
            }
        }
    }

    /// Ends its registration as an engine does, which asks a store that is unavailable again.
    pub async fn close_at_last(self) {
        while let Err(error) = self.store.close(self.id).await {
            assert!(matches!(error, StoreError::Unavailable(_)), "{error}");
        }
    }

    /// Commits one Write and returns its outcome.
    pub async fn commit_one(&mut self, write: Write) -> Outcome {
        self.commit(vec![write]).await.remove(0)
    }

    /// Commits its next flush, all of which must be applied.
    pub async fn apply(&mut self, writes: Vec<Write>) {
        let count = writes.len();
        assert_eq!(self.commit(writes).await, vec![Outcome::Applied; count]);
    }

    /// Its next claim, for up to `limit` executions.
    pub fn claim_of(&self, limit: usize) -> Claim {
        Claim {
            worker: self.id,
            lane: CLAIMS,
            epoch: self.epoch,
            number: self.claim_number,
            limit,
            max_bytes: 16 << 20,
            workflows: self.workflows.clone(),
            app_version: None,
            queues: None,
            from_quarantine: false,
        }
    }

    /// Claims as asked, or returns the error.
    pub async fn try_claim(&mut self, claim: &Claim) -> Result<Vec<Record>, StoreError> {
        Ok(self.try_claim_all(claim).await?.records)
    }

    /// The same with what else the store tells.
    pub async fn try_claim_all(&mut self, claim: &Claim) -> Result<ClaimReply, StoreError> {
        let claimed = self.store.claim(claim).await?;
        self.claim_number = claim.number + 1;
        Ok(claimed)
    }

    /// Claims up to `limit` executions.
    pub async fn claim(&mut self, limit: usize) -> Vec<Record> {
        self.try_claim(&self.claim_of(limit)).await.unwrap()
    }

    /// Claims up to `limit` executions of those in quarantine that may be tried.
    pub async fn claim_from_quarantine(&mut self, limit: usize) -> Vec<Record> {
        let claim = Claim { from_quarantine: true, ..self.claim_of(limit) };
        self.try_claim(&claim).await.unwrap()
    }

    /// Claims up to `limit` executions and returns their keys.
    pub async fn claim_keys(&mut self, limit: usize) -> Vec<Key> {
        self.claim(limit).await.into_iter().map(|record| record.execution.key).collect()
    }

    /// A look that watches nothing.
    pub fn look_of(&self) -> Heartbeat {
        let workflows = self.workflows.clone();
        Heartbeat {
            worker: self.id,
            epoch: self.epoch,
            renews_lease: true,
            watched: Vec::new(),
            held: None,
            workflows,
            app_version: None,
            queues: None,
        }
    }

    /// Looks, watching nothing.
    pub async fn look(&self) -> Looked {
        look(&*self.store, &self.look_of()).await
    }

    /// Looks until what was lost is taken over: a store may want to see a lost worker more than once
    /// before it believes. Returns how many executions were recovered.
    pub async fn look_for_lost(&self) -> u64 {
        let mut recovered = 0;
        for _ in 0..5 {
            recovered += self.look().await.recovered;
        }
        recovered
    }

    /// The execution's row and all that was recorded of it.
    pub async fn record(&self, key: Key) -> Record {
        let loaded = self.store.load(&[ExecutionId::Key(key)], Detail::Full).await.unwrap();
        loaded.into_iter().next().flatten().unwrap_or_else(|| panic!("there is no execution {key}"))
    }

    /// The execution's row.
    pub async fn execution(&self, key: Key) -> Execution {
        self.record(key).await.execution
    }

    /// True if there is such an execution.
    pub async fn exists(&self, key: Key) -> bool {
        self.store.load(&[ExecutionId::Key(key)], Detail::Outcome).await.unwrap()[0].is_some()
    }

    /// How many executions there are.
    pub async fn count(&self) -> u64 {
        self.store.list(&Filter { limit: 0, ..Filter::default() }).await.unwrap().total.unwrap()
    }
}
