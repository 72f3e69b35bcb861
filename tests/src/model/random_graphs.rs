//! Random graphs, and the check that each of them ends as a plain evaluation of its tasks says: whatever the timing,
//! whenever its worker crashes, and however often the failed execution is resumed.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use proptest::prelude::*;
use stepfast_core::graph::{Graph, GraphShape, Rule, TaskRef};
use stepfast_core::path::Path;
use stepfast_core::store::{CheckpointKind, Record, Request, RequestKind, RequestResult, Write};
use stepfast_core::{Error, Failure, Key, MemoryStore, RetryPolicy, Store, Workflow};

use super::gated_engine::{BodyGate, GatedEngine, cut, load, replay_writes};
pub use super::graph_reference::RandomGraph;
use super::graph_reference::{
    Attempts, Evaluation, RandomRule, RandomTask, Repetitions, Unit, list_of, name_of, value_of, values_of,
};
use crate::faults::fault_store::FaultStore;

/// The number of retries of each task: enough for one attempt that fails in each of two processes, and one that fails
/// before a cancel.
const RETRIES: u32 = 3;
/// Maximum number of resumes of an execution.
const MAX_RESUMES: u32 = 3;
/// The pause between two attempts, and the shortest sleep for which an execution is suspended.
const PAUSE: Duration = Duration::from_millis(3);
const SUSPEND_AFTER: Duration = Duration::from_millis(1);

/// The output of a random graph: the values of its tasks.
type Output = Vec<Option<Vec<u64>>>;

fn rules() -> impl Strategy<Value = RandomRule> {
    let rule = prop_oneof![
        8 => Just(RandomRule::AllSuccess),
        3 => Just(RandomRule::AllDone),
        1 => Just(RandomRule::AnySuccess),
        1 => Just(RandomRule::OneFailed),
        1 => Just(RandomRule::NoneFailed),
        1 => (0..4usize).prop_map(RandomRule::Succeeded),
        1 => (0..4usize).prop_map(RandomRule::Failed),
        1 => (0..4usize).prop_map(RandomRule::Skipped),
    ];
    rule.prop_recursive(2, 5, 2, |inner| {
        let two = (inner.clone().prop_map(Box::new), inner.clone().prop_map(Box::new));
        prop_oneof![
            two.clone().prop_map(|(a, b)| RandomRule::And(a, b)),
            two.prop_map(|(a, b)| RandomRule::Or(a, b)),
            inner.prop_map(|rule| RandomRule::Not(rule.into())),
        ]
    })
}

/// Returns a strategy for graphs with up to 16 tasks. Some tasks are mapped over lists of up to 8 items.
pub fn graphs() -> impl Strategy<Value = RandomGraph> {
    let attempts = prop_oneof![
        8 => Just(Attempts::Succeed),
        1 => Just(Attempts::Fail),
        1 => Just(Attempts::FailOnce),
        3 => (1..3u32).prop_map(Attempts::FailUntil),
    ];
    let attempts = proptest::collection::vec(attempts, 1..5);
    let max_items = prop_oneof![2 => Just(None), 1 => prop_oneof![1..4usize, Just(1_000)].prop_map(Some)];
    let dependencies = proptest::collection::vec(0..16usize, 0..4);
    let task = (dependencies, rules(), attempts, any::<bool>(), 0..9usize, max_items);
    let task = task.prop_map(|(dependencies, rule, attempts, may_fail, len, max_items)| RandomTask {
        dependencies,
        rule,
        attempts,
        may_fail,
        len,
        max_items,
    });
    let cancelled_after = proptest::option::weighted(0.3, 1..12usize);
    let graph =
        (proptest::collection::vec(task, 1..16), 1..6usize, proptest::bool::weighted(0.2), cancelled_after);
    graph.prop_map(|(tasks, max_concurrency, has_pauses, cancelled_after)| RandomGraph {
        tasks,
        max_concurrency,
        has_pauses,
        cancelled_after,
    })
}

/// The state that the bodies of a graph share.
#[derive(Clone, Default)]
struct BodyState {
    gate: Arc<BodyGate>,
    /// The number of resumes so far.
    resumes: Arc<AtomicU32>,
    /// The number of bodies that run: of the items of each mapped task, and of the other tasks.
    running: Arc<Mutex<BTreeMap<Option<usize>, usize>>>,
    /// The largest excess of running bodies over their limit.
    excess: Arc<AtomicUsize>,
}

/// A limit of bodies that run at a time.
#[derive(Clone, Copy)]
struct BodyLimit {
    /// The mapped task whose items are limited; `None` for the limit of tasks that are not mapped.
    mapped: Option<usize>,
    bodies: usize,
}

/// A body that runs, until this value is dropped.
struct RunningBody<'s> {
    state: &'s BodyState,
    mapped: Option<usize>,
}

impl<'s> RunningBody<'s> {
    fn begin(state: &'s BodyState, limit: BodyLimit) -> Self {
        let mut running = state.running.lock().unwrap_or_else(PoisonError::into_inner);
        let count = running.entry(limit.mapped).or_default();
        *count += 1;
        state.excess.fetch_max(count.saturating_sub(limit.bodies), SeqCst);
        Self { state, mapped: limit.mapped }
    }
}

impl Drop for RunningBody<'_> {
    fn drop(&mut self) {
        let mut running = self.state.running.lock().unwrap_or_else(PoisonError::into_inner);
        *running.entry(self.mapped).or_default() -= 1;
    }
}

impl BodyState {
    /// Waits at the gate. Fails if this attempt fails.
    async fn attempt(&self, name: &str, attempts: Attempts, limit: BodyLimit) -> Result<(), Failure> {
        let running = RunningBody::begin(self, limit);
        let number = self.gate.wait_for_release(name).await;
        drop(running);
        if attempts.fails(number, self.resumes.load(SeqCst)) { Err(Failure::new("no")) } else { Ok(()) }
    }
}

impl RandomGraph {
    /// Returns the workflow of the graph, and its shape.
    fn build(&self, state: &BodyState) -> (Workflow<(), Output>, GraphShape) {
        let mut graph = Graph::<()>::new("graph");
        graph.max_concurrency(self.max_concurrency);
        let mut tasks: Vec<TaskRef<Vec<u64>>> = Vec::new();
        for (n, task) in self.tasks.iter().enumerate() {
            let dependencies = self.dependencies(n);
            let mut arguments: Vec<_> =
                dependencies.iter().map(|&dependency| tasks[dependency].optional()).collect();
            let rule =
                if dependencies.is_empty() { Rule::all_success() } else { task.rule.to_rule(&dependencies) };
            let backoff = if self.has_pauses { PAUSE } else { Duration::ZERO };
            let policy =
                RetryPolicy { retries: RETRIES, backoff, max_backoff: backoff, ..RetryPolicy::default() };
            let builder = graph.task(name_of(n, None)).retry(policy);
            let builder = if task.may_fail { builder.may_fail() } else { builder };
            let (state, code) = (state.clone(), task.clone());
            tasks.push(if let Some(max_items) = self.max_items(n) {
                let items = tasks[dependencies[0]].clone();
                arguments.remove(0);
                let builder = builder.when(Rule::succeeded(items.name().to_owned()) & rule);
                let builder = builder.map_over(&items).max_items(max_items);
                let limit = BodyLimit { mapped: Some(n), bodies: max_items };
                builder.run(arguments, move |item: u64, values: Output| {
                    let (state, attempts) = (state.clone(), code.attempts_of(Some(item)));
                    async move {
                        state.attempt(&name_of(n, Some(item)), attempts, limit).await?;
                        Ok::<_, Failure>(value_of(n, item, &values))
                    }
                })
            } else {
                let limit = BodyLimit { mapped: None, bodies: self.max_concurrency };
                builder.when(rule).run(arguments, move |values: Output| {
                    let (state, attempts, len) = (state.clone(), code.attempts_of(None), code.len);
                    async move {
                        state.attempt(&name_of(n, None), attempts, limit).await?;
                        Ok::<_, Failure>(list_of(n, len, &values))
                    }
                })
            });
        }
        let shape = graph.shape().unwrap();
        let output: Vec<_> = tasks.iter().map(TaskRef::optional).collect();
        (graph.build(output).unwrap(), shape)
    }
}

impl RandomRule {
    fn to_rule(&self, dependencies: &[usize]) -> Rule {
        let name = |n: &usize| name_of(dependencies[n % dependencies.len()], None);
        match self {
            RandomRule::AllSuccess => Rule::all_success(),
            RandomRule::AllDone => Rule::all_done(),
            RandomRule::AnySuccess => Rule::any_success(),
            RandomRule::OneFailed => Rule::one_failed(),
            RandomRule::NoneFailed => Rule::none_failed(),
            RandomRule::Succeeded(n) => Rule::succeeded(name(n)),
            RandomRule::Failed(n) => Rule::failed(name(n)),
            RandomRule::Skipped(n) => Rule::skipped(name(n)),
            RandomRule::And(a, b) => a.to_rule(dependencies) & b.to_rule(dependencies),
            RandomRule::Or(a, b) => a.to_rule(dependencies) | b.to_rule(dependencies),
            RandomRule::Not(rule) => !rule.to_rule(dependencies),
        }
    }
}

/// Returns the unit and the repetition at a path of the record.
fn unit_of(shape: &GraphShape, path: &Path) -> (Unit, usize) {
    let mut numbers = path.numbers().unwrap();
    let task = (0..shape.len()).find(|&task| shape.place(task).path().numbers().unwrap()[0] == numbers[0]);
    let repetition = match numbers.as_slice() {
        [.., 0, repetition] => {
            let repetition = *repetition as usize;
            numbers.truncate(numbers.len() - 2);
            repetition
        }
        _ => 0,
    };
    let item = numbers.get(1).map(|number| *number as usize - 1);
    ((task.expect("a task of the graph"), item), repetition)
}

/// Returns the recorded repetitions of all units: without the failures that come last if a resume withdraws them.
fn repetitions(shape: &GraphShape, record: &Record, is_withdrawn: bool) -> Repetitions {
    let mut checkpoints = record.checkpoints.as_slice();
    while is_withdrawn
        && let [rest @ .., last] = checkpoints
        && last.kind == CheckpointKind::Failed
    {
        checkpoints = rest;
    }
    let mut found: BTreeMap<(Unit, usize), bool> = BTreeMap::new();
    for checkpoint in checkpoints {
        assert!(matches!(checkpoint.kind, CheckpointKind::Step | CheckpointKind::Failed), "{checkpoint:?}");
        let place = unit_of(shape, &checkpoint.path);
        assert_eq!(*checkpoint.name, name_of(place.0.0, None));
        let before = found.insert(place, checkpoint.kind == CheckpointKind::Step);
        assert_eq!(before, None, "{place:?} is recorded twice");
    }
    let mut repetitions = Repetitions::new();
    for ((unit, repetition), has_succeeded) in found {
        let recorded = repetitions.entry(unit).or_default();
        assert_eq!(recorded.len(), repetition, "the repetitions of {unit:?} are numbered without gaps");
        recorded.push(has_succeeded);
    }
    repetitions
}

/// An engine with a random graph.
struct GraphEngine<'g> {
    graph: &'g RandomGraph,
    shape: GraphShape,
    state: BodyState,
    stage: GatedEngine,
    workflow: Workflow<(), Output>,
    store: Arc<dyn Store>,
}

impl<'g> GraphEngine<'g> {
    async fn open(store: Arc<dyn Store>, graph: &'g RandomGraph, seed: u64, resumes: u32) -> Self {
        let state = BodyState { resumes: Arc::new(resumes.into()), ..BodyState::default() };
        let (workflow, shape) = graph.build(&state);
        let with = |builder: stepfast_core::EngineBuilder| {
            let builder = if graph.has_pauses { builder.suspend_after(SUSPEND_AFTER) } else { builder };
            builder.register(&workflow)
        };
        let stage = GatedEngine::open(store.clone(), state.gate.clone(), seed, with).await;
        Self { graph, shape, state, stage, workflow, store }
    }

    /// Waits for the end of `x`, and compares it and the number of bodies with the reference. Resumes `x` as long as it
    /// fails or is cancelled. `before` is the record at the beginning, and `kept` what the evaluation keeps of it.
    /// Returns what it keeps at the beginning of each run.
    async fn run_to_end(&self, key: Key, mut before: Option<Record>, kept: Repetitions) -> Vec<Repetitions> {
        let mut kept_by_run = vec![kept];
        loop {
            let resumes = self.state.resumes.load(SeqCst);
            let outcome = self.stage.engine.get::<Output>("x").await.unwrap().result().await;
            let record = load(&self.store, key).await;
            let evaluation = self.graph.evaluate(&kept_by_run[kept_by_run.len() - 1], resumes);
            let recorded = repetitions(&self.shape, &record, false);
            let failure = self.graph.failure(&evaluation.ends);
            let is_cancelled = matches!(outcome, Err(Error::Cancelled(_)));
            if is_cancelled {
                let is_expected = |(unit, repetitions): (&Unit, &Vec<bool>)| {
                    evaluation.repetitions[unit].starts_with(repetitions)
                };
                assert!(recorded.iter().all(is_expected), "{recorded:?}, not {:?}", evaluation.repetitions);
            } else {
                match (&outcome, &failure) {
                    (Ok(output), None) => assert_eq!(*output, values_of(&evaluation.ends)),
                    (Err(Error::Failed(error)), Some(expected)) => assert_eq!(error.message, *expected),
                    _ => panic!("{outcome:?}, not {failure:?}"),
                }
                assert_eq!(recorded, evaluation.repetitions);
                self.assert_bodies(&evaluation, before.as_ref());
                if failure.is_none() || resumes >= MAX_RESUMES {
                    return kept_by_run;
                }
            }
            kept_by_run.push(repetitions(&self.shape, &record, !is_cancelled));
            before = is_cancelled.then_some(record);
            self.stage.gate.begun().clear();
            self.state.resumes.store(resumes + 1, SeqCst);
            assert_eq!(self.stage.engine.resume("x").await.unwrap(), RequestResult::Done);
        }
    }

    /// Cancels `x` as soon as this number of bodies has begun in a run.
    async fn cancel_after(&self, bodies: usize) {
        while self.stage.gate.begun().values().sum::<usize>() < bodies {
            tokio::task::yield_now().await;
        }
        self.stage.engine.cancel("x").await.unwrap();
        std::future::pending::<()>().await;
    }

    /// Asserts that the bodies have begun that must, and as often as the attempts say that were not recorded `before`.
    fn assert_bodies(&self, evaluation: &Evaluation, before: Option<&Record>) {
        let resumes = self.state.resumes.load(SeqCst);
        let mut expected: BTreeMap<String, usize> = BTreeMap::new();
        for (unit, (attempts, name)) in &evaluation.begun {
            let repetition = evaluation.repetitions[unit].len() - 1;
            let place = (*unit, repetition);
            let is_here = |path: &Path| unit_of(&self.shape, path) == place;
            if before.is_some_and(|it| it.checkpoints.iter().any(|checkpoint| is_here(&checkpoint.path))) {
                continue;
            }
            let failed =
                before.map_or(0, |it| it.attempts.iter().filter(|attempt| is_here(&attempt.path)).count());
            let bodies = match attempts {
                Attempts::FailOnce => 2,
                _ if attempts.fails_finally(resumes) => 1 + RETRIES as usize - failed,
                _ => 1,
            };
            expected.insert(name.clone(), bodies);
        }
        assert_eq!(*self.stage.gate.begun(), expected, "the bodies that have begun");
        assert_eq!(self.state.excess.load(SeqCst), 0, "more bodies ran than a limit allows");
    }
}

fn is_resume(write: &Write) -> bool {
    matches!(write, Write::Request(Request { kind: RequestKind::Resume, .. }))
}

/// Runs `graph` with bodies that complete in an order determined by `seed`, and resumes its execution as long as it
/// fails. Then continues from `cuts` prefixes of its Writes, or from all prefixes if there are no more.
pub async fn check(graph: &RandomGraph, seed: u64, cuts: usize) {
    let mut random = fastrand::Rng::with_seed(seed);
    // each Write in its own flush: a crash is possible after each of them
    let store = FaultStore::with_flush_writes(Arc::new(MemoryStore::new()), 1);
    let first = GraphEngine::open(store.clone(), graph, seed, 0).await;
    let key = first.stage.engine.start(&first.workflow, ()).workflow_id("x").await.unwrap().key();
    let kept_by_run = tokio::select! {
        kept_by_run = first.run_to_end(key, None, Repetitions::new()) => kept_by_run,
        () = first.cancel_after(graph.cancelled_after.unwrap_or(usize::MAX)) => Vec::new(),
    };
    first.stage.close().await;
    for writes in cut(&store, key, cuts, &mut random) {
        let resumes = writes.iter().filter(|(write, _)| is_resume(write)).count();
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        replay_writes(&store, writes, &["graph"]).await;
        let before = load(&store, key).await;
        let next = GraphEngine::open(store.clone(), graph, random.u64(..), resumes as u32).await;
        next.run_to_end(key, Some(before.clone()), kept_by_run[resumes].clone()).await;
        next.stage.close().await;
        let (kept, after) = (&before.checkpoints, load(&store, key).await.checkpoints);
        assert!(
            kept.iter().all(|it| it.kind == CheckpointKind::Failed || after.contains(it)),
            "values are kept"
        );
    }
}
