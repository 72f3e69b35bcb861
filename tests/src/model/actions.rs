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
pub enum Act {
    /// A step with a value that no other body returns.
    Step,
    /// A step whose first attempt in each run fails.
    Flaky,
    /// A sleep of so many milliseconds.
    Sleep(u64),
    /// A child, awaited.
    Child(Vec<Act>),
    /// A child, started before a step and awaited after it.
    StartChild(Vec<Act>),
    /// A child that nobody waits for.
    Detached(Vec<Act>),
    /// Two things at a time.
    Both(Vec<Act>, Vec<Act>),
    /// An end as failed.
    Fail,
}

/// Longer than any patience: the clock has to be put forward.
pub const LONG: u64 = 3_600_000;

/// Random acts; `depth` children may stand below each other.
pub fn acts(random: &mut Rng, depth: u32) -> Vec<Act> {
    let count = random.usize(0..4);
    (0..count).map(|_| act(random, depth)).collect()
}

fn act(random: &mut Rng, depth: u32) -> Act {
    match random.u32(0..if depth > 0 { 16 } else { 9 }) {
        0..4 => Act::Step,
        4 | 5 => Act::Flaky,
        6 => Act::Sleep(random.u64(0..30)),
        7 => Act::Sleep(LONG),
        8 if random.u32(0..3) == 0 => Act::Fail,
        8 => Act::Sleep(0),
        9..12 => Act::Child(acts(random, depth - 1)),
        12 | 13 => Act::StartChild(acts(random, depth - 1)),
        14 => Act::Detached(acts(random, depth - 1)),
        _ => Act::Both(acts(random, depth - 1), acts(random, depth - 1)),
    }
}

/// How many children `acts` start if they are all done once; also those below.
pub fn children(acts: &[Act]) -> usize {
    acts.iter()
        .map(|act| match act {
            Act::Child(_) | Act::StartChild(_) | Act::Detached(_) => 1,
            Act::Both(a, b) => children(a) + children(b),
            _ => 0,
        })
        .sum()
}

/// What the workflows share: a note of every body.
pub struct Notes {
    store: Arc<dyn Store>,
    last: AtomicU64,
    bodies: Mutex<HashMap<u64, (Key, String)>>,
    /// What must not have happened.
    wrongs: Mutex<Vec<String>>,
}

impl Notes {
    /// None so far; bodies look into `store`.
    pub fn new(store: Arc<dyn Store>) -> Arc<Self> {
        Arc::new(Self { store, last: AtomicU64::new(0), bodies: Mutex::default(), wrongs: Mutex::default() })
    }

    /// A body begins. Returns its value.
    async fn begin(&self, execution: String, step: &str) -> u64 {
        let key = Key::from_text(&execution).unwrap();
        let value = self.last.fetch_add(1, SeqCst) + 1;
        self.bodies.lock().unwrap_or_else(PoisonError::into_inner).insert(value, (key, step.to_owned()));
        let loaded = self.store.load(&[ExecutionId::Key(key)], Detail::Full).await;
        match loaded.unwrap().remove(0) {
            None => self.wrong(format!("{key} runs {step} and is not recorded")),
            // a worker that was lost may not know it yet
            Some(record) if record.execution.recoveries > 0 => {}
            Some(record) => {
                if record.checkpoints.iter().any(|checkpoint| &*checkpoint.name == step) {
                    self.wrong(format!("{key} runs {step} again, which is recorded"));
                }
            }
        }
        value
    }

    fn wrong(&self, what: String) {
        self.wrongs.lock().unwrap_or_else(PoisonError::into_inner).push(what);
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
    pub fn check(&self, record: &Record, outputs: &HashMap<Key, Vec<u64>>) -> Vec<u64> {
        let wrongs = self.wrongs.lock().unwrap_or_else(PoisonError::into_inner);
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
pub type Doer = Workflow<Vec<Act>, Vec<u64>>;

/// The workflows: the first runs the acts of roots, each starts children of the next.
pub fn doers(notes: &Arc<Notes>) -> [Doer; 3] {
    let two = doer("two", None, notes);
    let one = doer("one", Some(two.clone()), notes);
    [doer("root", Some(one.clone()), notes), one, two]
}

fn doer(name: &str, child: Option<Doer>, notes: &Arc<Notes>) -> Doer {
    let notes = notes.clone();
    Workflow::new(name, move |mut cx: Context, acts: Vec<Act>| {
        let (child, notes) = (child.clone(), notes.clone());
        async move { all(&acts, &mut cx, &child, &notes, "").await }
    })
}

type Values = Result<Vec<u64>, Failure>;

#[allow(clippy::ref_option)] // a branch borrows what its workflow has
fn all<'a>(
    acts: &'a [Act],
    cx: &'a mut Context,
    child: &'a Option<Doer>,
    notes: &'a Arc<Notes>,
    prefix: &'a str,
) -> BoxFuture<'a, Values> {
    Box::pin(async move {
        let mut values = Vec::new();
        for (i, act) in acts.iter().enumerate() {
            values.extend(one(act, cx, child, notes, &format!("{prefix}{i}")).await?);
        }
        Ok(values)
    })
}

#[allow(clippy::ref_option)]
async fn one(act: &Act, cx: &mut Context, child: &Option<Doer>, notes: &Arc<Notes>, place: &str) -> Values {
    let execution = cx.execution_key();
    let child = || child.as_ref().expect("acts are no deeper than there are workflows");
    match act {
        Act::Step => Ok(vec![cx.step(place.to_owned(), || body(notes, &execution, place)).await?]),
        Act::Flaky => {
            let mut is_first = true;
            let step = cx.step(place.to_owned(), || {
                let fails = std::mem::take(&mut is_first);
                let execution = &execution;
                async move {
                    let value = body(notes, execution, place).await?;
                    if fails { Err(Failure::new("not yet")) } else { Ok(value) }
                }
            });
            Ok(vec![step.retries(100).backoff(Duration::ZERO, Duration::ZERO).await?])
        }
        Act::Sleep(millis) => {
            cx.sleep(Duration::from_millis(*millis)).await;
            Ok(Vec::new())
        }
        Act::Child(acts) => cx.child(child(), acts.clone()).await,
        Act::StartChild(acts) => {
            let started = cx.start_child(child(), acts.clone()).await?;
            let mut values = vec![cx.step(place.to_owned(), || body(notes, &execution, place)).await?];
            values.extend(started.result(cx).await?);
            Ok(values)
        }
        Act::Detached(acts) => {
            cx.start_detached(child(), acts.clone()).await?;
            Ok(Vec::new())
        }
        Act::Both(a, b) => {
            let child = Some(child().clone());
            let (left, right) = (format!("{place} left "), format!("{place} right "));
            let (one, two) = cx
                .join(
                    |mut cx| async { (all(a, &mut cx, &child, notes, &left).await, cx).0 },
                    |mut cx| async { (all(b, &mut cx, &child, notes, &right).await, cx).0 },
                )
                .await;
            let mut values = one?;
            values.extend(two?);
            Ok(values)
        }
        Act::Fail => Err(Failure::new("as it was told").permanent()),
    }
}

async fn body(notes: &Arc<Notes>, execution: &str, step: &str) -> Result<u64, Failure> {
    let value = notes.begin(execution.to_owned(), step).await;
    for _ in 0..value % 4 {
        tokio::task::yield_now().await;
    }
    Ok(value)
}
