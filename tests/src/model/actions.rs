//! [`Action`]s: the steps, sleeps and children of executions in a random interleaving, and the checks of their records.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fastrand::Rng;
use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use stepfast_core::store::{CheckpointKind, Detail, ExecutionId, Record};
use stepfast_core::{Context, Failure, Key, Store, Workflow};

/// One action of a workflow.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Action {
    /// A step with a value that no other body returns.
    Step,
    /// A step whose first attempt in each run fails.
    Flaky,
    /// A sleep of this number of milliseconds.
    Sleep(u64),
    /// An awaited child.
    Child(Vec<Action>),
    /// A child, started before a step and awaited after it.
    StartChild(Vec<Action>),
    /// A detached child.
    Detached(Vec<Action>),
    /// Two lists of actions in two concurrent branches.
    Both(Vec<Action>, Vec<Action>),
    /// The end of the execution as failed.
    Fail,
}

/// A sleep that always suspends: it ends only when the clock is advanced.
pub const LONG_SLEEP_MILLIS: u64 = 3_600_000;

/// Returns random actions. Children nest at most `depth` levels.
pub fn random_actions(rng: &mut Rng, depth: u32) -> Vec<Action> {
    let count = rng.usize(0..4);
    (0..count).map(|_| random_action(rng, depth)).collect()
}

fn random_action(rng: &mut Rng, depth: u32) -> Action {
    match rng.u32(0..if depth > 0 { 16 } else { 9 }) {
        0..4 => Action::Step,
        4 | 5 => Action::Flaky,
        6 => Action::Sleep(rng.u64(0..30)),
        7 => Action::Sleep(LONG_SLEEP_MILLIS),
        8 if rng.u32(0..3) == 0 => Action::Fail,
        8 => Action::Sleep(0),
        9..12 => Action::Child(random_actions(rng, depth - 1)),
        12 | 13 => Action::StartChild(random_actions(rng, depth - 1)),
        14 => Action::Detached(random_actions(rng, depth - 1)),
        _ => Action::Both(random_actions(rng, depth - 1), random_actions(rng, depth - 1)),
    }
}

/// Returns the number of children that `actions` start if each runs once, not counting children of children.
pub fn count_children(actions: &[Action]) -> usize {
    actions
        .iter()
        .map(|action| match action {
            Action::Child(_) | Action::StartChild(_) | Action::Detached(_) => 1,
            Action::Both(a, b) => count_children(a) + count_children(b),
            _ => 0,
        })
        .sum()
}

/// A log of all bodies, which the workflows share.
pub struct BodyLog {
    store: Arc<dyn Store>,
    last: AtomicU64,
    bodies: Mutex<HashMap<u64, (Key, String)>>,
    /// Observations that break a promise.
    violations: Mutex<Vec<String>>,
}

impl BodyLog {
    /// Creates an empty log. Bodies read their executions from `store`.
    pub fn new(store: Arc<dyn Store>) -> Arc<Self> {
        Arc::new(Self {
            store,
            last: AtomicU64::new(0),
            bodies: Mutex::default(),
            violations: Mutex::default(),
        })
    }

    /// Records that a body begins, and checks that its step has no checkpoint. Returns the body's value.
    async fn record_body(&self, execution: String, step: &str) -> u64 {
        let key = Key::from_text(&execution).unwrap();
        let value = self.last.fetch_add(1, SeqCst) + 1;
        self.bodies.lock().unwrap_or_else(PoisonError::into_inner).insert(value, (key, step.to_owned()));
        let loaded = self.store.load(&[ExecutionId::Key(key)], Detail::Full).await;
        match loaded.unwrap().remove(0) {
            None => self.add_violation(format!("{key} runs {step} without a row")),
            // a dead worker may still run its executions
            Some(record) if record.execution.recoveries > 0 => {}
            Some(record) => {
                if record.checkpoints.iter().any(|checkpoint| &*checkpoint.name == step) {
                    self.add_violation(format!("{key} runs {step} again, which has a checkpoint"));
                }
            }
        }
        value
    }

    fn add_violation(&self, violation: String) {
        self.violations.lock().unwrap_or_else(PoisonError::into_inner).push(violation);
    }

    /// Returns the number of bodies that began, by execution and step.
    pub fn bodies(&self) -> HashMap<(Key, String), usize> {
        let mut counts = HashMap::new();
        for body in self.bodies.lock().unwrap_or_else(PoisonError::into_inner).values() {
            *counts.entry(body.clone()).or_default() += 1;
        }
        counts
    }

    /// Checks the observations of all bodies, and that every recorded value was returned by a body of its step.
    /// Returns the values that the execution must have received, in the order of its code; `outputs` contains those
    /// of children.
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

/// A workflow that performs actions, and returns all values that it received.
pub type ActionWorkflow = Workflow<Vec<Action>, Vec<u64>>;

/// Returns the workflows. The first performs the actions of roots; each starts children of the next.
pub fn action_workflows(log: &Arc<BodyLog>) -> [ActionWorkflow; 3] {
    let two = action_workflow("two", None, log);
    let one = action_workflow("one", Some(two.clone()), log);
    [action_workflow("root", Some(one.clone()), log), one, two]
}

fn action_workflow(name: &str, child: Option<ActionWorkflow>, log: &Arc<BodyLog>) -> ActionWorkflow {
    let log = log.clone();
    Workflow::new(name, move |mut cx: Context, actions: Vec<Action>| {
        let (child, log) = (child.clone(), log.clone());
        async move { perform_all(&actions, &mut cx, &child, &log, "").await }
    })
}

type Values = Result<Vec<u64>, Failure>;

#[allow(clippy::ref_option)] // a branch borrows from its workflow
fn perform_all<'a>(
    actions: &'a [Action],
    cx: &'a mut Context,
    child: &'a Option<ActionWorkflow>,
    log: &'a Arc<BodyLog>,
    prefix: &'a str,
) -> BoxFuture<'a, Values> {
    Box::pin(async move {
        let mut values = Vec::new();
        for (i, action) in actions.iter().enumerate() {
            values.extend(perform(action, cx, child, log, &format!("{prefix}{i}")).await?);
        }
        Ok(values)
    })
}

#[allow(clippy::ref_option)]
async fn perform(
    action: &Action,
    cx: &mut Context,
    child: &Option<ActionWorkflow>,
    log: &Arc<BodyLog>,
    step: &str,
) -> Values {
    let execution = cx.execution_key();
    let child = || child.as_ref().expect("actions nest no deeper than the workflows");
    match action {
        Action::Step => Ok(vec![cx.step(step.to_owned(), || run_body(log, &execution, step)).await?]),
        Action::Flaky => {
            let mut is_first = true;
            let step = cx.step(step.to_owned(), || {
                let fails = std::mem::take(&mut is_first);
                let execution = &execution;
                async move {
                    let value = run_body(log, execution, step).await?;
                    if fails { Err(Failure::new("not yet")) } else { Ok(value) }
                }
            });
            Ok(vec![step.retries(100).backoff(Duration::ZERO, Duration::ZERO).await?])
        }
        Action::Sleep(millis) => {
            cx.sleep(Duration::from_millis(*millis)).await;
            Ok(Vec::new())
        }
        Action::Child(actions) => cx.child(child(), actions.clone()).await,
        Action::StartChild(actions) => {
            let started = cx.start_child(child(), actions.clone()).await?;
            let mut values = vec![cx.step(step.to_owned(), || run_body(log, &execution, step)).await?];
            values.extend(started.result(cx).await?);
            Ok(values)
        }
        Action::Detached(actions) => {
            cx.start_detached(child(), actions.clone()).await?;
            Ok(Vec::new())
        }
        Action::Both(a, b) => {
            let child = Some(child().clone());
            let (left, right) = (format!("{step} left "), format!("{step} right "));
            let (one, two) = cx
                .join(
                    |mut cx| async { (perform_all(a, &mut cx, &child, log, &left).await, cx).0 },
                    |mut cx| async { (perform_all(b, &mut cx, &child, log, &right).await, cx).0 },
                )
                .await;
            let mut values = one?;
            values.extend(two?);
            Ok(values)
        }
        Action::Fail => Err(Failure::new("as scripted").permanent()),
    }
}

async fn run_body(log: &Arc<BodyLog>, execution: &str, step: &str) -> Result<u64, Failure> {
    let value = log.record_body(execution.to_owned(), step).await;
    for _ in 0..value % 4 {
        tokio::task::yield_now().await;
    }
    Ok(value)
}
