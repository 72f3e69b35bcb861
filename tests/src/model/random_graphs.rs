//! Random graphs, and the check that each of them ends as a plain evaluation of its tasks says, whatever the timing and
//! whenever its worker crashes.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use stepfast_core::graph::{Graph, Rule, TaskRef};
use stepfast_core::store::{CheckpointKind, Record, Write};
use stepfast_core::{Engine, Error, Failure, Key, MemoryStore, RetryPolicy, Store, Workflow};

use super::random_programs::{BodyGate, is_end, load};
use crate::Worker;
use crate::engine::support::{Count, GRACE};
use crate::faults::fault_store::FaultStore;

/// How the attempts of a random task end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attempts {
    Succeed,
    Fail,
    /// The first attempt in each process fails, and the next one succeeds.
    FailOnce,
}

/// A rule about the dependencies of a random task. Numbers select a dependency.
#[derive(Clone, Debug)]
enum RandomRule {
    AllSuccess,
    AllDone,
    AnySuccess,
    OneFailed,
    NoneFailed,
    Succeeded(usize),
    Failed(usize),
    Skipped(usize),
    And(Box<RandomRule>, Box<RandomRule>),
    Or(Box<RandomRule>, Box<RandomRule>),
    Not(Box<RandomRule>),
}

/// The state in which a task ends, with its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Succeeded(u64),
    Failed,
    Skipped,
}

#[derive(Clone, Debug)]
struct RandomTask {
    /// Selects dependencies among the earlier tasks.
    dependencies: Vec<usize>,
    rule: RandomRule,
    attempts: Attempts,
    may_fail: bool,
}

/// A random graph. Its tasks depend on earlier ones.
#[derive(Clone, Debug)]
pub struct RandomGraph {
    tasks: Vec<RandomTask>,
    max_concurrency: usize,
}

/// The output of a random graph: the values of its tasks.
type Output = Vec<Option<u64>>;

/// Returns a strategy for graphs with up to 16 tasks.
pub fn graphs() -> impl Strategy<Value = RandomGraph> {
    let rule = prop_oneof![
        8 => Just(RandomRule::AllSuccess),
        2 => Just(RandomRule::AllDone),
        1 => Just(RandomRule::AnySuccess),
        1 => Just(RandomRule::OneFailed),
        1 => Just(RandomRule::NoneFailed),
        1 => (0..4usize).prop_map(RandomRule::Succeeded),
        1 => (0..4usize).prop_map(RandomRule::Failed),
        1 => (0..4usize).prop_map(RandomRule::Skipped),
    ];
    let rule = rule.prop_recursive(2, 5, 2, |inner| {
        let two = (inner.clone().prop_map(Box::new), inner.clone().prop_map(Box::new));
        prop_oneof![
            two.clone().prop_map(|(a, b)| RandomRule::And(a, b)),
            two.prop_map(|(a, b)| RandomRule::Or(a, b)),
            inner.prop_map(|rule| RandomRule::Not(rule.into())),
        ]
    });
    let attempts =
        prop_oneof![6 => Just(Attempts::Succeed), 2 => Just(Attempts::Fail), 1 => Just(Attempts::FailOnce)];
    let dependencies = proptest::collection::vec(0..16usize, 0..4);
    let task =
        (dependencies, rule, attempts, any::<bool>()).prop_map(|(dependencies, rule, attempts, may_fail)| {
            RandomTask { dependencies, rule, attempts, may_fail }
        });
    (proptest::collection::vec(task, 1..16), 1..6usize)
        .prop_map(|(tasks, max_concurrency)| RandomGraph { tasks, max_concurrency })
}

impl RandomGraph {
    /// Returns the dependencies of a task, without repetitions.
    fn dependencies(&self, task: usize) -> Vec<usize> {
        let mut dependencies = Vec::new();
        for dependency in &self.tasks[task].dependencies {
            if task > 0 && !dependencies.contains(&(dependency % task)) {
                dependencies.push(dependency % task);
            }
        }
        dependencies
    }

    /// Returns the ends of all tasks, one after the other.
    fn evaluate(&self) -> Vec<End> {
        let mut ends: Vec<End> = Vec::new();
        for (n, task) in self.tasks.iter().enumerate() {
            let dependencies: Vec<End> =
                self.dependencies(n).iter().map(|&dependency| ends[dependency]).collect();
            ends.push(if dependencies.is_empty() || task.rule.holds(&dependencies) {
                match task.attempts {
                    Attempts::Fail => End::Failed,
                    Attempts::Succeed | Attempts::FailOnce => {
                        End::Succeeded(value_of(n, &values_of(&dependencies)))
                    }
                }
            } else {
                End::Skipped
            });
        }
        ends
    }

    /// Returns the workflow of the graph.
    fn build(&self, gate: &Arc<BodyGate>) -> Workflow<(), Output> {
        let mut graph = Graph::<()>::new("graph");
        graph.max_concurrency(self.max_concurrency);
        let mut tasks: Vec<TaskRef<u64>> = Vec::new();
        for (n, task) in self.tasks.iter().enumerate() {
            let dependencies = self.dependencies(n);
            let arguments: Vec<_> =
                dependencies.iter().map(|&dependency| tasks[dependency].optional()).collect();
            let rule =
                if dependencies.is_empty() { Rule::all_success() } else { task.rule.to_rule(&dependencies) };
            let retries = if task.attempts == Attempts::FailOnce { 100 } else { 1 };
            let policy = RetryPolicy {
                retries,
                backoff: Duration::ZERO,
                max_backoff: Duration::ZERO,
                ..RetryPolicy::default()
            };
            let builder = graph.task(name_of(n)).when(rule).retry(policy);
            let builder = if task.may_fail { builder.may_fail() } else { builder };
            let (gate, attempts, begun) = (gate.clone(), task.attempts, Count::new());
            tasks.push(builder.run(arguments, move |values: Vec<Option<u64>>| {
                let (gate, attempt) = (gate.clone(), begun.increment());
                async move {
                    gate.wait_for_release(&name_of(n)).await;
                    let fails = attempts == Attempts::Fail || attempts == Attempts::FailOnce && attempt == 1;
                    if fails { Err(Failure::new("no")) } else { Ok(value_of(n, &values)) }
                }
            }));
        }
        let output: Vec<_> = tasks.iter().map(TaskRef::optional).collect();
        graph.build(output).unwrap()
    }
}

impl RandomRule {
    fn holds(&self, ends: &[End]) -> bool {
        let has_succeeded = |end: &End| matches!(end, End::Succeeded(_));
        match self {
            RandomRule::AllSuccess => ends.iter().all(has_succeeded),
            RandomRule::AllDone => true,
            RandomRule::AnySuccess => ends.iter().any(has_succeeded),
            RandomRule::OneFailed => ends.contains(&End::Failed),
            RandomRule::NoneFailed => !ends.contains(&End::Failed),
            RandomRule::Succeeded(n) => has_succeeded(&ends[n % ends.len()]),
            RandomRule::Failed(n) => ends[n % ends.len()] == End::Failed,
            RandomRule::Skipped(n) => ends[n % ends.len()] == End::Skipped,
            RandomRule::And(a, b) => a.holds(ends) && b.holds(ends),
            RandomRule::Or(a, b) => a.holds(ends) || b.holds(ends),
            RandomRule::Not(rule) => !rule.holds(ends),
        }
    }

    fn to_rule(&self, dependencies: &[usize]) -> Rule {
        let name = |n: &usize| name_of(dependencies[n % dependencies.len()]);
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

fn name_of(task: usize) -> String {
    format!("task {task}")
}

fn values_of(ends: &[End]) -> Vec<Option<u64>> {
    ends.iter().map(|end| if let End::Succeeded(value) = end { Some(*value) } else { None }).collect()
}

/// Returns the value of a task, which depends on the values of all its dependencies.
fn value_of(task: usize, values: &[Option<u64>]) -> u64 {
    let mut hash = task as u64 + 1;
    for value in values {
        hash = hash.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(value.unwrap_or(7));
    }
    hash
}

/// Checks the outcome and the record of an ended graph.
fn assert_ended(graph: &RandomGraph, outcome: &Result<Output, Error>, record: &Record) {
    let ends = graph.evaluate();
    let is_unhandled = |n: &usize| ends[*n] == End::Failed && !graph.tasks[*n].may_fail;
    if (0..ends.len()).any(|n| is_unhandled(&n)) {
        let Err(Error::Failed(failure)) = outcome else { panic!("{outcome:?}, not failed") };
        let mut unhandled = (0..ends.len()).filter(is_unhandled);
        let names_one = unhandled
            .any(|n| failure.message == format!("task {:?} of graph \"graph\" failed: no", name_of(n)));
        assert!(names_one, "{failure}");
    } else {
        assert_eq!(outcome.as_ref().unwrap(), &values_of(&ends));
    }
    for (n, end) in ends.iter().enumerate() {
        let name = name_of(n);
        let mut recorded = record.checkpoints.iter().filter(|checkpoint| *checkpoint.name == *name);
        match (end, recorded.next()) {
            (End::Succeeded(value), Some(checkpoint)) => {
                assert_eq!(checkpoint.kind, CheckpointKind::Step);
                assert_eq!(checkpoint.outcome.decode::<u64>().unwrap(), *value);
            }
            (End::Failed, Some(checkpoint)) => assert_eq!(checkpoint.kind, CheckpointKind::Failed),
            (End::Skipped, None) => {}
            (end, checkpoint) => panic!("{name}: {end:?}, recorded {checkpoint:?}"),
        }
        assert!(recorded.next().is_none(), "{name} is recorded twice");
    }
}

/// An engine with a random graph.
struct GraphEngine {
    engine: Engine,
    gate: Arc<BodyGate>,
    gate_task: tokio::task::JoinHandle<()>,
    workflow: Workflow<(), Output>,
}

impl GraphEngine {
    async fn open(store: Arc<dyn Store>, graph: &RandomGraph, seed: u64) -> Self {
        let gate = Arc::new(BodyGate::default());
        let workflow = graph.build(&gate);
        let engine = Engine::builder(store).register(&workflow).open().await.unwrap();
        let gate_task = tokio::spawn({
            let gate = gate.clone();
            async move { gate.release_bodies(seed).await }
        });
        Self { engine, gate, gate_task, workflow }
    }

    /// Shuts the engine down, and returns the names of the tasks whose bodies have begun.
    async fn close(self) -> Vec<String> {
        self.engine.shutdown(GRACE).await.unwrap();
        self.gate_task.abort();
        self.gate.begun_steps()
    }
}

/// Runs `graph` with bodies that complete in an order determined by `seed`. Then continues from `cuts` prefixes of its
/// Writes, or from all prefixes if there are no more.
pub async fn check(graph: &RandomGraph, seed: u64, cuts: usize) {
    let mut random = fastrand::Rng::with_seed(seed);
    let memory: Arc<dyn Store> = Arc::new(MemoryStore::new());
    // each Write in its own flush: a crash is possible after each of them
    let store = FaultStore::with_flush_writes(memory.clone(), 1);
    let stage = GraphEngine::open(store.clone(), graph, seed).await;
    let handle = stage.engine.start(&stage.workflow, ()).workflow_id("x").await.unwrap();
    let key = handle.key();
    let outcome = handle.result().await;
    stage.close().await;
    assert_ended(graph, &outcome, &load(&memory, key).await);
    let writes: Vec<Write> = store.committed_writes().into_iter().map(|(write, _)| write).collect();
    let last = writes.iter().rposition(|write| is_end(write, key)).unwrap();
    let mut places: Vec<usize> = (1..=last).collect();
    random.shuffle(&mut places);
    places.truncate(cuts);
    for place in places {
        continue_from(graph, &writes[..place], key, random.u64(..)).await;
    }
}

/// Continues from `writes`, as after a crash.
async fn continue_from(graph: &RandomGraph, writes: &[Write], key: Key, seed: u64) {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let mut worker = Worker::register(&store).await;
    for write in writes {
        worker.commit(vec![write.clone()]).await;
    }
    store.close(worker.id).await.unwrap();
    let before = load(&store, key).await;
    let stage = GraphEngine::open(store.clone(), graph, seed).await;
    let outcome: Result<Output, Error> = stage.engine.get("x").await.unwrap().result().await;
    let begun = stage.close().await;
    let record = load(&store, key).await;
    assert_ended(graph, &outcome, &record);
    assert_eq!(record.checkpoints[..before.checkpoints.len()], before.checkpoints, "the record is kept");
    for checkpoint in &before.checkpoints {
        assert!(!begun.contains(&checkpoint.name.to_string()), "{} ran again", checkpoint.name);
    }
}
