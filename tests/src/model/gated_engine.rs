//! [`GatedEngine`]: an engine whose bodies complete in a random order, and executions that continue from a part of
//! their Writes, as after a crash.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use stepfast_core::store::{Detail, ExecutionId, Outcome, Record, RequestResult, State, Transition, Write};
use stepfast_core::{Engine, EngineBuilder, Key, Store};
use tokio::sync::{Notify, oneshot};

use crate::Worker;
use crate::engine::support::GRACE;
use crate::faults::fault_store::FaultStore;

/// A gate at which bodies wait, to be released in a random order.
#[derive(Default)]
pub(super) struct BodyGate {
    waiting: Mutex<Vec<oneshot::Sender<()>>>,
    arrival: Notify,
    /// The number of bodies that have begun, by the name of the step.
    begun: Mutex<BTreeMap<String, usize>>,
}

impl BodyGate {
    /// Waits until the body is released. Returns the number of bodies of this name that have begun.
    pub(super) async fn wait_for_release(&self, name: &str) -> usize {
        let number = {
            let mut begun = self.begun();
            let number = begun.entry(name.to_owned()).or_default();
            *number += 1;
            *number
        };
        let (open, opened) = oneshot::channel();
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).push(open);
        self.arrival.notify_one();
        let _ = opened.await;
        number
    }

    /// Returns the number of bodies that have begun, by the name of the step.
    pub(super) fn begun(&self) -> MutexGuard<'_, BTreeMap<String, usize>> {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Releases bodies in a random order, endlessly.
    async fn release_bodies(&self, seed: u64) {
        let mut random = fastrand::Rng::with_seed(seed);
        loop {
            for _ in 0..random.u32(0..8) {
                tokio::task::yield_now().await;
            }
            let open = {
                let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
                (!waiting.is_empty()).then(|| {
                    let which = random.usize(0..waiting.len());
                    waiting.swap_remove(which)
                })
            };
            match open {
                Some(open) => drop(open.send(())),
                None => self.arrival.notified().await,
            }
        }
    }
}

/// An engine with a gate for the bodies of its steps.
pub(super) struct GatedEngine {
    pub(super) engine: Engine,
    pub(super) gate: Arc<BodyGate>,
    gate_task: tokio::task::JoinHandle<()>,
}

impl GatedEngine {
    /// Opens an engine whose bodies complete in an order determined by `seed`.
    pub(super) async fn open(
        store: Arc<dyn Store>,
        gate: Arc<BodyGate>,
        seed: u64,
        with: impl FnOnce(EngineBuilder) -> EngineBuilder,
    ) -> Self {
        let engine = with(Engine::builder(store)).open().await.unwrap();
        let released = gate.clone();
        let gate_task = tokio::spawn(async move { released.release_bodies(seed).await });
        Self { engine, gate, gate_task }
    }

    /// Shuts the engine down, and returns the number of bodies that have begun, by the name of the step.
    pub(super) async fn close(self) -> BTreeMap<String, usize> {
        self.engine.shutdown(GRACE).await.unwrap();
        self.gate_task.abort();
        std::mem::take(&mut *self.gate.begun())
    }
}

/// Loads the record of an execution.
pub(super) async fn load(store: &Arc<dyn Store>, key: Key) -> Record {
    store.load(&[ExecutionId::Key(key)], Detail::Full).await.unwrap().remove(0).unwrap()
}

/// A Write with its outcome.
pub(super) type CommittedWrite = (Write, Outcome);

/// Returns random prefixes of the Writes that were committed through `store`, at most `cuts`. None of them contains the
/// last end of the execution.
pub(super) fn cut(
    store: &FaultStore,
    key: Key,
    cuts: usize,
    random: &mut fastrand::Rng,
) -> Vec<Vec<CommittedWrite>> {
    let mut writes = store.committed_writes();
    writes.retain(|(_, outcome)| *outcome != Outcome::NotFound);
    let last = writes.iter().rposition(|(write, _)| is_end(write, key)).unwrap();
    let mut places: Vec<usize> = (1..=last).collect();
    random.shuffle(&mut places);
    places.truncate(cuts);
    places.into_iter().map(|place| writes[..place].to_vec()).collect()
}

fn is_end(write: &Write, execution: Key) -> bool {
    matches!(write, Write::Transition(Transition { key, state: State::Ended { .. }, .. }) if *key == execution)
}

/// Commits `writes` to `store` as a worker that then ends. The worker claims an execution that was claimed in between.
pub(super) async fn replay_writes(store: &Arc<dyn Store>, writes: Vec<CommittedWrite>, workflows: &[&str]) {
    let mut worker = Worker::register_for(store, workflows).await;
    for (write, outcome) in writes {
        if matches!(outcome, Outcome::RequestHandled(RequestResult::Pending, _)) {
            worker.claim(1).await;
        }
        if worker.commit_one(write.clone()).await == Outcome::NotFound {
            worker.claim(1).await;
            assert_ne!(worker.commit_one(write.clone()).await, Outcome::NotFound, "{write:?}");
        }
    }
    store.close(worker.id).await.unwrap();
}
