//! [`Act`]s: what the executions of a random interleaving do, and what must come of it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fastrand::Rng;
use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use stepfast_core::store::{CheckpointKind, Detail, ExecutionId, Record};
use stepfast_core::{Context, Failure, Key, Store, Workflow};

/// Something that a workflow does.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Action {
    /// A step with a value that no other body returns.
    Step,
    /// A step whose first attempt in each run fails.
    Flaky,
    /// A sleep of so many milliseconds.
    Sleep(u64),
    /// A child, awaited.
    Child(Vec<Action>),
    /// A child, started before a step and awaited after it.
    StartChild(Vec<Action>),
    /// A child that nobody waits for.
    Detached(Vec<Action>),
    /// Two things at a time.
    Both(Vec<Action>, Vec<Action>),
    /// An end as failed.
    Fail,
}

/// Longer than any patience: the clock has to be put forward.
pub const LONG_SLEEP_MILLIS: u64 = 3_600_000;

/// Random acts; `depth` children may stand below each other.
pub fn random_actions(random: &mut Rng, depth: u32) -> Vec<Action> {
    let count = random.usize(0..4);
    (0..count).map(|_| random_action(random, depth)).collect()
}

fn random_action(random: &mut Rng, depth: u32) -> Action {
    match random.u32(0..if depth > 0 { 16 } else { 9 }) {
        0..4 => Action::Step,
        4 | 5 => Action::Flaky,
        6 => Action::Sleep(random.u64(0..30)),
        7 => Action::Sleep(LONG_SLEEP_MILLIS),
        8 if random.u32(0..3) == 0 => Action::Fail,
        8 => Action::Sleep(0),
        9..12 => Action::Child(random_actions(random, depth - 1)),
        12 | 13 => Action::StartChild(random_actions(random, depth - 1)),
        14 => Action::Detached(random_actions(random, depth - 1)),
        _ => Action::Both(random_actions(random, depth - 1), random_actions(random, depth - 1)),
    }
}

/// How many children `acts` start if they are all done once; also those below.
pub fn count_children(acts: &[Action]) -> usize {
    acts.iter()
        .map(|act| match act {
            Action::Child(_) | Action::StartChild(_) | Action::Detached(_) => 1,
            Action::Both(a, b) => count_children(a) + count_children(b),
            _ => 0,
        })
        .sum()
}

/// What the workflows share: a note of every body.
pub struct BodyLog {
    store: Arc<dyn Store>,
    last: AtomicU64,
    bodies: Mutex<HashMap<u64, (Key, String)>>,
    /// What must not have happened.
    violations: Mutex<Vec<String>>,
}

impl BodyLog {
    /// None so far; bodies look into `store`.
    pub fn new(store: Arc<dyn Store>) -> Arc<Self> {
        Arc::new(Self { store, last: AtomicU64::new(0), bodies: Mutex::default(), violations: Mutex::default() })
    }

    /// A body begins. Returns its value.
    async fn record_body(&self, execution: String, step: &str) -> u64 {
        let key = Key::from_text(&execution).unwrap();
        let value = self.last.fetch_add(1, SeqCst) + 1;
        self.bodies.lock().unwrap_or_else(PoisonError::into_inner).insert(value, (key, step.to_owned()));
        let loaded = self.store.load(&[ExecutionId::Key(key)], Detail::Full).await;
        match loaded.unwrap().remove(0) {
            None => self.add_violation(format!("{key} runs {step} and is not recorded")),
            // a worker that was lost may not know it yet
            Some(record) if record.execution.recoveries > 0 => {}
            Some(record) => {
                if record.checkpoints.iter().any(|checkpoint| &*checkpoint.name == step) {
                    self.add_violation(format!("{key} runs {step} again, which is recorded"));
                }
            }
        }
        value
    }

    fn add_violation(&self, what: String) {
        self.violations.lock().unwrap_or_else(PoisonError::into_inner).push(what);
    }

    /// How many bodies of each step of an execution have begun.
    pub fn bodies(&self) -> HashMap<(Key, String), usize> {
        let mut counts = HashMap::new();
        for body in self.bodies.lock().unwrap_or_else(PoisonError::into_inner).values() {
            *counts.entry(body.clone()).or_default() += 1;
        }
        counts
    }

    /// Checks what bodies have seen, and that what is recorded of `record` is what a body of it has returned.
    /// Returns the values that the execution must have seen, in the order of its code; those of its children
    /// are in `outputs`.
    pub fn check_record(&self, record: &Record, outputs: &HashMap<Key, Vec<u64>>) -> Vec<u64> {
        let wrongs = self.violations.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(wrongs.is_empty(), "{wrongs:#?}");
        let bodies = self.bodies.lock().unwrap_or_else(PoisonError::into_inner);
        let key = record.execution.key;
        let mut checkpoints: Vec<_> = record.checkpoints.iter().collect();
        checkpoints.sort_by(|a, b| a.path.cmp(&b.path));
        let mut values = Vec::new();
        for checkpoint in checkpoints {
            match checkpoint.kind {
                CheckpointKind::Step => {
                    let value: u64 = checkpoint.outcome.decode().unwrap();
                    let body = (key, checkpoint.name.to_string());
                    assert_eq!(bodies.get(&value), Some(&body), "a value of another body");
                    values.push(value);
                }
                CheckpointKind::Child => {
                    let text: String = checkpoint.outcome.decode().unwrap();
                    values.extend(outputs.get(&Key::from_text(&text).unwrap()).into_iter().flatten());
                }
                _ => {}
            }
        }
        values
    }
}

/// A workflow that does what it is told, and returns all values that it has seen.
pub type ActionWorkflow = Workflow<Vec<Action>, Vec<u64>>;

/// The workflows: the first runs the acts of roots, each starts children of the next.
pub fn action_workflows(notes: &Arc<BodyLog>) -> [ActionWorkflow; 3] {
    let two = action_workflow("two", None, notes);
    let one = action_workflow("one", Some(two.clone()), notes);
    [action_workflow("root", Some(one.clone()), notes), one, two]
}

fn action_workflow(name: &str, child: Option<ActionWorkflow>, notes: &Arc<BodyLog>) -> ActionWorkflow {
    let notes = notes.clone();
    Workflow::new(name, move |mut cx: Context, acts: Vec<Action>| {
        let (child, notes) = (child.clone(), notes.clone());
        async move { perform_all(&acts, &mut cx, &child, &notes, "").await }
    })
}

type Values = Result<Vec<u64>, Failure>;

#[allow(clippy::ref_option)] // a branch borrows what its workflow has
fn perform_all<'a>(
    acts: &'a [Action],
    cx: &'a mut Context,
    child: &'a Option<ActionWorkflow>,
    notes: &'a Arc<BodyLog>,
    prefix: &'a str,
) -> BoxFuture<'a, Values> {
    Box::pin(async move {
        let mut values = Vec::new();
        for (i, act) in acts.iter().enumerate() {
            values.extend(perform(act, cx, child, notes, &format!("{prefix}{i}")).await?);
        }
        Ok(values)
    })
}

#[allow(clippy::ref_option)]
async fn perform(act: &Action, cx: &mut Context, child: &Option<ActionWorkflow>, notes: &Arc<BodyLog>, place: &str) -> Values {
    let execution = cx.execution_key();
    let child = || child.as_ref().expect("acts are no deeper than there are workflows");
    match act {
        Action::Step => Ok(vec![cx.step(place.to_owned(), || run_body(notes, &execution, place)).await?]),
        Action::Flaky => {
            let mut is_first = true;
            let step = cx.step(place.to_owned(), || {
                let fails = std::mem::take(&mut is_first);
                let execution = &execution;
                async move {
                    let value = run_body(notes, execution, place).await?;
                    if fails { Err(Failure::new("not yet")) } else { Ok(value) }
                }
            });
            Ok(vec![step.retries(100).backoff(Duration::ZERO, Duration::ZERO).await?])
        }
        Action::Sleep(millis) => {
            cx.sleep(Duration::from_millis(*millis)).await;
            Ok(Vec::new())
        }
        Action::Child(acts) => cx.child(child(), acts.clone()).await,
        Action::StartChild(acts) => {
            let started = cx.start_child(child(), acts.clone()).await?;
            let mut values = vec![cx.step(place.to_owned(), || run_body(notes, &execution, place)).await?];
            values.extend(started.result(cx).await?);
            Ok(values)
        }
        Action::Detached(acts) => {
            cx.start_detached(child(), acts.clone()).await?;
            Ok(Vec::new())
        }
        Action::Both(a, b) => {
            let child = Some(child().clone());
            let (left, right) = (format!("{place} left "), format!("{place} right "));
            let (one, two) = cx
                .join(
                    |mut cx| async { (perform_all(a, &mut cx, &child, notes, &left).await, cx).0 },
                    |mut cx| async { (perform_all(b, &mut cx, &child, notes, &right).await, cx).0 },
                )
                .await;
            let mut values = one?;
            values.extend(two?);
            Ok(values)
        }
        Action::Fail => Err(Failure::new("as it was told").permanent()),
    }
}

async fn run_body(notes: &Arc<BodyLog>, execution: &str, step: &str) -> Result<u64, Failure> {
    let value = notes.record_body(execution.to_owned(), step).await;
    for _ in 0..value % 4 {
        tokio::task::yield_now().await;
    }
    Ok(value)
}
