//! Random interleavings of several engines on one database: what callers ask for, what fails, and which
//! engines are lost or end is made up from a seed; in the end everything that was promised is checked.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use stepfast_core::store::{Detail, Execution, ExecutionId, Filter, Record, RequestResult, Status};
use stepfast_core::{Engine, EngineBuilder, Error, Key, Store};
use tokio::task::JoinHandle;

use crate::engine::support::{open, shut_down};
use crate::faults::fault_store::{Call, Fault, FaultStore};
use crate::model::actions::{Action, ActionWorkflow, LONG_SLEEP_MILLIS, BodyLog, random_actions, count_children, action_workflows};
use crate::{StoreFixture, Worker};

/// Ids that callers give, over and over.
const IDS: usize = 12;
/// Things that happen.
const EVENTS: usize = 160;
/// A world that has not settled by then never will.
const SETTLE_TIMEOUT: Duration = Duration::from_mins(2);
const ALL_CALLS: &[Call] = &[Call::Commit, Call::Claim, Call::Heartbeat, Call::Load, Call::List];

/// What a caller was told.
enum CallResult {
    /// It was started, under this key.
    Started(Key),
    /// It has completed with these values.
    Completed(Vec<u64>),
    /// It has ended so.
    Ended(Status),
    /// A cancel was answered.
    Cancel(RequestResult),
    /// A resume was answered.
    Resume(RequestResult),
    /// Nobody knows.
    Unknown,
}

/// What was asked about an id, and what the caller was told.
type PendingCall = (usize, JoinHandle<CallResult>);

struct TestEngine {
    engine: Engine,
    store: Arc<FaultStore>,
}

struct World<'f> {
    fixture: &'f dyn StoreFixture,
    handles: [Arc<dyn Store>; 2],
    random: Rng,
    notes: Arc<BodyLog>,
    workflows: [ActionWorkflow; 3],
    inputs: Vec<Vec<Action>>,
    /// What each id is started with, and whether workers may end in this world.
    has_shutdowns: bool,
    engines: Vec<TestEngine>,
    /// Engines that stand still, as stopped processes do.
    stalled: Vec<TestEngine>,
    calls: Vec<PendingCall>,
    resumed: HashSet<usize>,
}

/// Lets a random interleaving happen, and checks what has come of it.
pub async fn check(fixture: &dyn StoreFixture, seed: u64) {
    let mut random = Rng::with_seed(seed);
    let handles = [fixture.store(), fixture.second_store().await];
    let notes = BodyLog::new(handles[0].clone());
    let inputs = (0..IDS).map(|_| random_actions(&mut random, 2)).collect();
    let (doers, has_ends) = (action_workflows(&notes), random.bool());
    let (places, still, asked, resumed) = (Vec::new(), Vec::new(), Vec::new(), HashSet::new());
    let mut world =
        World { fixture, handles, random, notes, workflows: doers, inputs, has_shutdowns: has_ends, engines: places, stalled: still, calls: asked, resumed };
    for n in 0..2 {
        let place = world.open(n).await;
        world.engines.push(place);
    }
    for _ in 0..EVENTS {
        world.perform_event().await;
        for _ in 0..world.random.u32(0..40).pow(2) {
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
        let patience = Duration::from_millis(5);
        let engine = open(store.clone(), |b| {
            let max = if n == 0 { 3 } else { 100 };
            self.workflows.iter().fold(b, EngineBuilder::register).suspend_after(patience).max_running(max)
        })
        .await;
        TestEngine { engine, store }
    }

    async fn perform_event(&mut self) {
        let which = self.random.usize(0..self.engines.len());
        let (engine, store) = (self.engines[which].engine.clone(), self.engines[which].store.clone());
        let n = self.random.usize(0..IDS);
        match self.random.u32(0..40) {
            0..10 => self.start(engine, n),
            10..16 => self.run(engine, n),
            16..19 => {
                self.spawn_call(n, async move { engine.cancel(&id(n)).await.map_or_else(result_of_request_error, CallResult::Cancel) });
            }
            19..21 => {
                self.resumed.insert(n);
                self.spawn_call(n, async move { engine.resume(&id(n)).await.map_or_else(result_of_request_error, CallResult::Resume) });
            }
            21..24 => self.fixture.clock().advance(Duration::from_millis(LONG_SLEEP_MILLIS)),
            24..27 => store.fail_nth_call(self.random.u64(1..6), Fault::Before),
            27..30 => store.fail_nth_call(self.random.u64(1..6), Fault::After),
            30 => store.fail_nth_call(self.random.u64(1..6), Fault::Hang),
            31 => {
                store.hold_calls(&[Call::Commit]);
            }
            32..36 => store.release(),
            36 if self.has_shutdowns && self.stalled.len() < 2 => self.stall_engine(which).await,
            37 if self.has_shutdowns => self.replace_engine(which).await,
            38 => {
                // others may notice who is lost
                let other = &self.engines[(which + 1) % 2].store;
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
        let (doer, input) = (self.workflows[0].clone(), self.inputs[n].clone());
        let is_impatient = self.random.u32(0..4) == 0;
        self.spawn_call(n, async move {
            let start = engine.start(&doer, input).workflow_id(id(n));
            let start = if is_impatient { start.wait_timeout(Duration::from_millis(1)) } else { start };
            start.await.map_or_else(result_of_error, |handle| CallResult::Started(handle.key()))
        });
    }

    fn run(&mut self, engine: Engine, n: usize) {
        let (doer, input) = (self.workflows[0].clone(), self.inputs[n].clone());
        let is_impatient = self.random.u32(0..3) == 0;
        self.spawn_call(n, async move {
            let run = engine.run(&doer, input).workflow_id(id(n));
            let run = if is_impatient { run.wait_timeout(Duration::from_millis(2)) } else { run };
            run.await.map_or_else(result_of_error, CallResult::Completed)
        });
    }

    /// An engine stands still and counts as dead; another one takes its place.
    async fn stall_engine(&mut self, which: usize) {
        let place = self.open(which).await;
        let lost = std::mem::replace(&mut self.engines[which], place);
        lost.store.hold_calls(ALL_CALLS);
        for worker in lost.store.workers() {
            self.fixture.mark_dead(worker).await;
        }
        self.stalled.push(lost);
    }

    /// An engine ends, and another one takes its place.
    async fn replace_engine(&mut self, which: usize) {
        let place = self.open(which).await;
        let ending = std::mem::replace(&mut self.engines[which], place);
        ending.store.release();
        shut_down(ending.engine).await;
    }

    /// Nothing fails any more: everything must come to its end, and be as it was promised.
    async fn settle(mut self) {
        self.engines.append(&mut self.stalled);
        for place in &self.engines {
            place.store.heal();
        }
        let engine = self.engines[0].engine.clone();
        let looks = self.engines[0].store.clone();
        let ticks = async {
            loop {
                self.fixture.clock().advance(Duration::from_millis(LONG_SLEEP_MILLIS));
                looks.wait_until_called(Call::Heartbeat, looks.call_count(Call::Heartbeat) + 1).await;
            }
        };
        let answers = async {
            let mut answers = Vec::new();
            for (n, asked) in std::mem::take(&mut self.calls) {
                answers.push((n, asked.await.unwrap()));
            }
            let mut rows = list_all(&self.handles[0]).await;
            while let Some(row) = rows.iter().find(|row| !row.status.is_terminal()) {
                assert!(!row.is_parked, "parked: {:?}", load(&self.handles[0], row.key).await);
                let handle = engine.get::<Vec<u64>>(&row.key.to_string()).await.unwrap();
                let _ = handle.result().await;
                rows = list_all(&self.handles[0]).await;
            }
            answers
        };
        let settled = async {
            tokio::select! {
                answers = answers => answers,
                () = ticks => unreachable!("the clock goes on"),
            }
        };
        let Ok(answers) = tokio::time::timeout(SETTLE_TIMEOUT, settled).await else {
            let left = list_all(&self.handles[0]).await.into_iter().filter(|row| !row.status.is_terminal());
            let loads: Vec<_> = self
                .engines
                .iter()
                .map(|place| (place.engine.running_count(), place.engine.lane_load()))
                .collect();
            panic!("it does not settle: {:?}, engines: {loads:?}", left.collect::<Vec<_>>());
        };
        for place in self.engines.drain(..) {
            shut_down(place.engine).await;
        }
        self.assert_nothing_left().await;
        let mut records = HashMap::new();
        for row in list_all(&self.handles[0]).await {
            let record = load(&self.handles[0], row.key).await;
            assert_eq!(record, load(&self.handles[1], row.key).await, "the handles differ");
            records.insert(row.key, record);
        }
        self.check_records(&records);
        self.check_calls(answers, &records);
    }

    async fn assert_nothing_left(&self) {
        let mut worker = Worker::register(&self.handles[1]).await;
        worker.workflows = ["root", "one", "two"].map(Arc::from).into();
        let seen = worker.heartbeat().await;
        assert!(!seen.has_ready && seen.next_due.is_none() && seen.requests.is_empty(), "{seen:?}");
        assert_eq!(seen.recovered, 0, "all have handed back what they had");
        assert!(worker.claim(10).await.is_empty());
        self.handles[1].close(worker.id).await.unwrap();
    }

    fn check_records(&self, records: &HashMap<Key, Record>) {
        let outputs: HashMap<Key, Vec<u64>> = records
            .values()
            .filter(|record| record.execution.status == Status::Completed)
            .map(|record| (record.execution.key, record.execution.outcome.decode().unwrap()))
            .collect();
        let bodies = self.notes.bodies();
        for record in records.values() {
            let Execution { key, recoveries, run_no, status, .. } = record.execution;
            assert!(status.is_terminal() && record.requests.is_empty() && record.execution.owner.is_none());
            let values = self.notes.check_record(record, &outputs);
            if let Some(output) = outputs.get(&key) {
                assert_eq!(*output, values, "the output is what is recorded: {record:?}");
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

    /// However often a parent was continued, it has each child once; twice where a resume began a new run.
    fn check_children(parent: &Record, records: &HashMap<Key, Record>) {
        let row = &parent.execution;
        let mine = |child: &&Record| child.execution.parent.as_ref().is_some_and(|it| it.key == row.key);
        let count = records.values().filter(mine).count();
        let input: Vec<Action> = row.input.decode().unwrap();
        let most = count_children(&input);
        assert!(count <= most * row.run_no as usize, "{count} children of {parent:?}");
        if row.status == Status::Completed && row.run_no == 1 {
            assert_eq!(count, most, "children of {parent:?}");
        }
    }

    fn check_calls(&self, answers: Vec<(usize, CallResult)>, records: &HashMap<Key, Record>) {
        let mut roots = BTreeMap::new();
        for record in records.values().filter(|record| record.execution.parent.is_none()) {
            let id = record.execution.given_id.clone().unwrap();
            assert!(roots.insert(id, record).is_none(), "an id has one execution");
        }
        for (n, told) in answers {
            let root = roots.get(id(n).as_str());
            if matches!(told, CallResult::Unknown) {
                continue;
            }
            let Execution { key, status, outcome, .. } = &root.expect("what was answered is there").execution;
            let is_final = !self.resumed.contains(&n);
            match told {
                CallResult::Started(started) => assert_eq!(started, *key),
                CallResult::Completed(values) => {
                    assert_eq!((*status, outcome.decode().unwrap()), (Status::Completed, values));
                }
                CallResult::Ended(ended) => assert!(!is_final || ended == *status, "{ended:?}, then {status:?}"),
                CallResult::Cancel(RequestResult::Done) => assert!(!is_final || *status == Status::Cancelled),
                CallResult::Cancel(RequestResult::NotApplicable(ended)) => assert!(!is_final || ended == *status),
                CallResult::Resume(RequestResult::Pending) => panic!("a resume is done or declined"),
                CallResult::Cancel(RequestResult::Pending) | CallResult::Resume(_) | CallResult::Unknown => {}
            }
        }
    }
}

/// What an error of a request tells: the id may not have been started yet.
fn result_of_request_error(error: Error) -> CallResult {
    match error {
        Error::NotFound { .. } => CallResult::Unknown,
        error => result_of_error(error),
    }
}

/// What an error tells; panics at errors that nobody should get here.
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
