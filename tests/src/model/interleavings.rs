//! Random interleavings of several engines on one database. A seed determines the calls, the faults, and which engines
//! die or shut down. At the end, all promises are checked.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use stepfast_core::store::{Detail, Execution, ExecutionId, Filter, Record, RequestResult, Status};
use stepfast_core::{Engine, EngineBuilder, Error, Key, Store};
use tokio::task::JoinHandle;

use crate::engine::support::{open, shut_down};
use crate::faults::fault_store::{Call, Fault, FaultStore};
use crate::model::actions::{
    Action, ActionWorkflow, BodyLog, LONG_SLEEP_MILLIS, action_workflows, count_children, random_actions,
};
use crate::{StoreFixture, Worker};

/// Number of workflow_ids, which calls use again and again.
const IDS: usize = 12;
/// Number of events in an interleaving.
const EVENTS: usize = 160;
/// The time after which an interleaving that has not settled counts as hanging.
const SETTLE_TIMEOUT: Duration = Duration::from_mins(2);
const ALL_CALLS: &[Call] = &[Call::Commit, Call::Claim, Call::Heartbeat, Call::Load, Call::List];

/// The result of a call.
enum CallResult {
    /// The execution was started under this key.
    Started(Key),
    /// The execution completed with these values.
    Completed(Vec<u64>),
    /// The execution ended with this status.
    Ended(Status),
    /// The result of a cancel.
    Cancel(RequestResult),
    /// The result of a resume.
    Resume(RequestResult),
    /// The outcome is unknown.
    Unknown,
}

/// The number of a workflow_id, and a call that concerns it.
type PendingCall = (usize, JoinHandle<CallResult>);

struct TestEngine {
    engine: Engine,
    store: Arc<FaultStore>,
}

struct World<'f> {
    fixture: &'f dyn StoreFixture,
    handles: [Arc<dyn Store>; 2],
    rng: Rng,
    log: Arc<BodyLog>,
    workflows: [ActionWorkflow; 3],
    /// The input of each workflow_id.
    inputs: Vec<Vec<Action>>,
    /// Whether engines may stall and shut down.
    has_shutdowns: bool,
    engines: Vec<TestEngine>,
    /// Engines that stall, like stopped processes.
    stalled: Vec<TestEngine>,
    calls: Vec<PendingCall>,
    resumed: HashSet<usize>,
}

/// Runs a random interleaving, and checks its results.
pub async fn check(fixture: &dyn StoreFixture, seed: u64) {
    let mut rng = Rng::with_seed(seed);
    let handles = [fixture.store(), fixture.second_store().await];
    let log = BodyLog::new(handles[0].clone());
    let inputs = (0..IDS).map(|_| random_actions(&mut rng, 2)).collect();
    let (workflows, has_shutdowns) = (action_workflows(&log), rng.bool());
    let (engines, stalled, calls, resumed) = (Vec::new(), Vec::new(), Vec::new(), HashSet::new());
    let mut world = World {
        fixture,
        handles,
        rng,
        log,
        workflows,
        inputs,
        has_shutdowns,
        engines,
        stalled,
        calls,
        resumed,
    };
    for n in 0..2 {
        let engine = world.open(n).await;
        world.engines.push(engine);
    }
    for _ in 0..EVENTS {
        world.perform_event().await;
        for _ in 0..world.rng.u32(0..40).pow(2) {
            tokio::task::yield_now().await;
        }
    }
    world.settle().await;
}

fn id(n: usize) -> String {
    format!("id {n}")
}

impl World<'_> {
    async fn open(&self, n: usize) -> TestEngine {
        let store = FaultStore::wrap(self.handles[n % 2].clone());
        let suspend_after = Duration::from_millis(5);
        let engine = open(store.clone(), |b| {
            let max = if n == 0 { 3 } else { 100 };
            self.workflows
                .iter()
                .fold(b, EngineBuilder::register)
                .suspend_after(suspend_after)
                .max_running(max)
        })
        .await;
        TestEngine { engine, store }
    }

    async fn perform_event(&mut self) {
        let nth = self.rng.usize(0..self.engines.len());
        let (engine, store) = (self.engines[nth].engine.clone(), self.engines[nth].store.clone());
        let n = self.rng.usize(0..IDS);
        match self.rng.u32(0..40) {
            0..10 => self.start(engine, n),
            10..16 => self.run(engine, n),
            16..19 => {
                self.spawn_call(n, async move {
                    engine.cancel(&id(n)).await.map_or_else(result_of_request_error, CallResult::Cancel)
                });
            }
            19..21 => {
                self.resumed.insert(n);
                self.spawn_call(n, async move {
                    engine.resume(&id(n)).await.map_or_else(result_of_request_error, CallResult::Resume)
                });
            }
            21..24 => self.fixture.clock().advance(Duration::from_millis(LONG_SLEEP_MILLIS)),
            24..27 => store.fail_nth_call(self.rng.u64(1..6), Fault::Before),
            27..30 => store.fail_nth_call(self.rng.u64(1..6), Fault::After),
            30 => store.fail_nth_call(self.rng.u64(1..6), Fault::Hang),
            31 => {
                store.hold_calls(&[Call::Commit]);
            }
            32..36 => store.release(),
            36 if self.has_shutdowns && self.stalled.len() < 2 => self.stall_engine(nth).await,
            37 if self.has_shutdowns => self.replace_engine(nth).await,
            38 => {
                // lets other engines detect dead workers
                let other = &self.engines[(nth + 1) % 2].store;
                other.release();
                other.wait_until_called(Call::Heartbeat, other.call_count(Call::Heartbeat) + 1).await;
            }
            _ => {}
        }
    }

    fn spawn_call(&mut self, n: usize, work: impl Future<Output = CallResult> + Send + 'static) {
        self.calls.push((n, tokio::spawn(work)));
    }

    fn start(&mut self, engine: Engine, n: usize) {
        let (workflow, input) = (self.workflows[0].clone(), self.inputs[n].clone());
        let is_impatient = self.rng.u32(0..4) == 0;
        self.spawn_call(n, async move {
            let start = engine.start(&workflow, input).workflow_id(id(n));
            let start = if is_impatient { start.wait_timeout(Duration::from_millis(1)) } else { start };
            start.await.map_or_else(result_of_error, |handle| CallResult::Started(handle.key()))
        });
    }

    fn run(&mut self, engine: Engine, n: usize) {
        let (workflow, input) = (self.workflows[0].clone(), self.inputs[n].clone());
        let is_impatient = self.rng.u32(0..3) == 0;
        self.spawn_call(n, async move {
            let run = engine.run(&workflow, input).workflow_id(id(n));
            let run = if is_impatient { run.wait_timeout(Duration::from_millis(2)) } else { run };
            run.await.map_or_else(result_of_error, CallResult::Completed)
        });
    }

    /// Stalls an engine and marks its workers dead. Another engine replaces it.
    async fn stall_engine(&mut self, nth: usize) {
        let engine = self.open(nth).await;
        let stalled = std::mem::replace(&mut self.engines[nth], engine);
        stalled.store.hold_calls(ALL_CALLS);
        for worker in stalled.store.workers() {
            self.fixture.mark_dead(worker).await;
        }
        self.stalled.push(stalled);
    }

    /// Shuts an engine down. Another engine replaces it.
    async fn replace_engine(&mut self, nth: usize) {
        let engine = self.open(nth).await;
        let ending = std::mem::replace(&mut self.engines[nth], engine);
        ending.store.release();
        shut_down(ending.engine).await;
    }

    /// Ends all faults, waits until every execution has ended, and checks all promises.
    async fn settle(mut self) {
        self.engines.append(&mut self.stalled);
        for engine in &self.engines {
            engine.store.heal();
        }
        let engine = self.engines[0].engine.clone();
        let store = self.engines[0].store.clone();
        let ticks = async {
            loop {
                self.fixture.clock().advance(Duration::from_millis(LONG_SLEEP_MILLIS));
                store.wait_until_called(Call::Heartbeat, store.call_count(Call::Heartbeat) + 1).await;
            }
        };
        let results = async {
            let mut results = Vec::new();
            for (n, call) in std::mem::take(&mut self.calls) {
                results.push((n, call.await.unwrap()));
            }
            let mut rows = list_all(&self.handles[0]).await;
            while let Some(row) = rows.iter().find(|row| !row.status.is_terminal()) {
                assert!(!row.is_parked, "parked: {:?}", load(&self.handles[0], row.key).await);
                let handle = engine.get::<Vec<u64>>(&row.key.to_string()).await.unwrap();
                let _ = handle.result().await;
                rows = list_all(&self.handles[0]).await;
            }
            results
        };
        let settled = async {
            tokio::select! {
                results = results => results,
                () = ticks => unreachable!("the clock never stops"),
            }
        };
        let Ok(results) = tokio::time::timeout(SETTLE_TIMEOUT, settled).await else {
            let left = list_all(&self.handles[0]).await.into_iter().filter(|row| !row.status.is_terminal());
            let loads: Vec<_> =
                self.engines.iter().map(|it| (it.engine.running_count(), it.engine.lane_load())).collect();
            panic!("the executions do not end: {:?}, engines: {loads:?}", left.collect::<Vec<_>>());
        };
        for engine in self.engines.drain(..) {
            shut_down(engine.engine).await;
        }
        self.assert_nothing_left().await;
        let mut records = HashMap::new();
        for row in list_all(&self.handles[0]).await {
            let record = load(&self.handles[0], row.key).await;
            assert_eq!(record, load(&self.handles[1], row.key).await, "the handles differ");
            records.insert(row.key, record);
        }
        self.check_records(&records);
        self.check_calls(results, &records);
    }

    async fn assert_nothing_left(&self) {
        let mut worker = Worker::register(&self.handles[1]).await;
        worker.workflows = ["root", "one", "two"].map(Arc::from).into();
        let reply = worker.heartbeat().await;
        assert!(!reply.has_ready && reply.next_due.is_none() && reply.requests.is_empty(), "{reply:?}");
        assert_eq!(reply.recovered, 0, "all engines have requeued their executions");
        assert!(worker.claim(10).await.is_empty());
        self.handles[1].close(worker.id).await.unwrap();
    }

    fn check_records(&self, records: &HashMap<Key, Record>) {
        let outputs: HashMap<Key, Vec<u64>> = records
            .values()
            .filter(|record| record.execution.status == Status::Completed)
            .map(|record| (record.execution.key, record.execution.outcome.decode().unwrap()))
            .collect();
        let bodies = self.log.bodies();
        for record in records.values() {
            let Execution { key, recoveries, run_no, status, .. } = record.execution;
            assert!(status.is_terminal() && record.requests.is_empty() && record.execution.owner.is_none());
            let values = self.log.check_record(record, &outputs);
            if let Some(output) = outputs.get(&key) {
                assert_eq!(*output, values, "the output consists of the recorded values: {record:?}");
            }
            if recoveries == 0 && run_no == 1 && !self.has_shutdowns {
                for checkpoint in &record.checkpoints {
                    let attempts = record.attempts.iter().filter(|it| it.path == checkpoint.path).count();
                    if let Some(count) = bodies.get(&(key, checkpoint.name.to_string())) {
                        assert_eq!(*count, attempts + 1, "bodies of {} of {record:?}", checkpoint.name);
                    }
                }
            }
            Self::check_children(record, records);
        }
    }

    /// Checks that a parent has each child once per `run_no`, however often it was recovered.
    fn check_children(parent: &Record, records: &HashMap<Key, Record>) {
        let row = &parent.execution;
        let is_child = |child: &&Record| child.execution.parent.as_ref().is_some_and(|it| it.key == row.key);
        let count = records.values().filter(is_child).count();
        let input: Vec<Action> = row.input.decode().unwrap();
        let expected = count_children(&input);
        assert!(count <= expected * row.run_no as usize, "{count} children of {parent:?}");
        if row.status == Status::Completed && row.run_no == 1 {
            assert_eq!(count, expected, "children of {parent:?}");
        }
    }

    fn check_calls(&self, results: Vec<(usize, CallResult)>, records: &HashMap<Key, Record>) {
        let mut roots = BTreeMap::new();
        for record in records.values().filter(|record| record.execution.parent.is_none()) {
            let id = record.execution.given_id.clone().unwrap();
            assert!(roots.insert(id, record).is_none(), "a workflow_id has one execution");
        }
        for (n, result) in results {
            let root = roots.get(id(n).as_str());
            if matches!(result, CallResult::Unknown) {
                continue;
            }
            let Execution { key, status, outcome, .. } =
                &root.expect("the execution of a result exists").execution;
            let is_final = !self.resumed.contains(&n);
            match result {
                CallResult::Started(started) => assert_eq!(started, *key),
                CallResult::Completed(values) => {
                    assert_eq!((*status, outcome.decode().unwrap()), (Status::Completed, values));
                }
                CallResult::Ended(ended) => {
                    assert!(!is_final || ended == *status, "{ended:?}, then {status:?}");
                }
                CallResult::Cancel(RequestResult::Done) => assert!(!is_final || *status == Status::Cancelled),
                CallResult::Cancel(RequestResult::NotApplicable(ended)) => {
                    assert!(!is_final || ended == *status);
                }
                CallResult::Resume(RequestResult::Pending) => panic!("a resume is done or not applicable"),
                CallResult::Cancel(RequestResult::Pending) | CallResult::Resume(_) | CallResult::Unknown => {}
            }
        }
    }
}

/// Returns the result of a request that failed. The execution may not have been started yet.
fn result_of_request_error(error: Error) -> CallResult {
    match error {
        Error::NotFound { .. } => CallResult::Unknown,
        error => result_of_error(error),
    }
}

/// Returns the result of a call that failed. Panics at errors that no call may return here.
fn result_of_error(error: Error) -> CallResult {
    match error {
        Error::Unavailable(_) | Error::Shutdown => CallResult::Unknown,
        Error::Failed(_) => CallResult::Ended(Status::Failed),
        Error::Cancelled(_) => CallResult::Ended(Status::Cancelled),
        error => panic!("{error}"),
    }
}

async fn list_all(store: &Arc<dyn Store>) -> Vec<Execution> {
    store.list(&Filter { limit: 100_000, ..Filter::default() }).await.unwrap().executions
}

async fn load(store: &Arc<dyn Store>, key: Key) -> Record {
    store.load(&[ExecutionId::Key(key)], Detail::Full).await.unwrap().remove(0).unwrap()
}
