//! Random small workflows, and the check that a replay repeats their recorded outcomes exactly.
//!
//! One workflow interprets a [`Program`], and notes every outcome in the order of delivery. [`check`] runs a program
//! once, keeps all Writes, and then lets engines continue from any prefix of these Writes, as after a crash at that
//! position.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use proptest::prelude::*;
use serde::{Deserialize, Serialize};
use stepfast_core::store::{CheckpointKind, Record};
use stepfast_core::{Context, Failure, Key, MemoryStore, Store, Workflow};
use tokio::sync::mpsc;

use super::gated_engine::{BodyGate, CommittedWrite, GatedEngine, cut, load, replay_writes};
use crate::engine::support::fresh_number;
use crate::faults::fault_store::FaultStore;

/// The code of a workflow. Leaves are numbered; the numbers make their names unique.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Program {
    /// A step whose body returns another value each time it runs.
    Step(u32),
    /// A step that fails, with another message each time.
    Fail(u32),
    /// A sleep of this number of milliseconds.
    Sleep(u8),
    /// A child with one step.
    Child(u32),
    /// Programs in sequence.
    Seq(Vec<Program>),
    /// `cx.join`
    Join(Box<Program>, Box<Program>),
    /// `cx.map` with a limit.
    Map(usize, Vec<Program>),
    /// `cx.race`
    Race(Box<Program>, Box<Program>),
    /// `cx.race_all`
    RaceAll(Vec<Program>),
    /// `cx.timeout` after this number of milliseconds.
    Timeout(u8, Box<Program>),
    /// `cx.spawn` of the first program, then the second, then the output of the first.
    Spawn(Box<Program>, Box<Program>),
    /// A number of workers that take a number of items from a channel, with a step for each item.
    Pool(usize, u32),
}

impl Program {
    /// Gives every leaf its own number.
    fn number(&mut self, next: &mut u32) {
        match self {
            Program::Step(n) | Program::Fail(n) | Program::Child(n) => {
                *n = *next;
                *next += 1;
            }
            Program::Sleep(_) | Program::Pool(..) => {}
            Program::Seq(all) | Program::Map(_, all) | Program::RaceAll(all) => {
                for program in all {
                    program.number(next);
                }
            }
            Program::Join(a, b) | Program::Race(a, b) | Program::Spawn(a, b) => {
                a.number(next);
                b.number(next);
            }
            Program::Timeout(_, a) => a.number(next),
        }
    }

    /// Returns the program with numbered leaves.
    #[must_use]
    pub fn numbered(mut self) -> Self {
        self.number(&mut 0);
        self
    }
}

/// Returns a strategy for programs, a few levels deep.
pub fn programs() -> impl Strategy<Value = Program> {
    let leaf = prop_oneof![
        4 => Just(Program::Step(0)),
        1 => Just(Program::Fail(0)),
        2 => (0..4u8).prop_map(Program::Sleep),
        1 => Just(Program::Child(0)),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        let some = proptest::collection::vec(inner.clone(), 1..4);
        let two = (inner.clone().prop_map(Box::new), inner.clone().prop_map(Box::new));
        prop_oneof![
            3 => some.clone().prop_map(Program::Seq),
            2 => two.clone().prop_map(|(a, b)| Program::Join(a, b)),
            2 => two.clone().prop_map(|(a, b)| Program::Race(a, b)),
            1 => (1..3usize, some.clone()).prop_map(|(limit, all)| Program::Map(limit, all)),
            1 => some.prop_map(Program::RaceAll),
            1 => (0..4u8, inner.prop_map(Box::new)).prop_map(|(ms, a)| Program::Timeout(ms, a)),
            1 => two.prop_map(|(a, b)| Program::Spawn(a, b)),
        ]
    })
    .prop_map(Program::numbered)
}

/// The outcomes that a workflow received, each with its name.
pub type ObservedOutcomes = Vec<(String, String)>;

/// The state that the interpreter shares with branches.
#[derive(Clone)]
struct InterpreterState {
    gate: Arc<BodyGate>,
    child: Workflow<u32, usize>,
    observed: Arc<Mutex<ObservedOutcomes>>,
}

impl InterpreterState {
    fn observe(&self, name: &str, outcome: &impl std::fmt::Debug) {
        let entry = (name.to_owned(), format!("{outcome:?}"));
        self.observed.lock().unwrap_or_else(PoisonError::into_inner).push(entry);
    }
}

fn child(gate: &Arc<BodyGate>) -> Workflow<u32, usize> {
    let gate = gate.clone();
    Workflow::new("child", move |mut cx: Context, n: u32| {
        let gate = gate.clone();
        async move { gated_step(&mut cx, &gate, &format!("child {n}"), false).await }
    })
}

/// Runs a step whose body waits at the gate.
async fn gated_step(
    cx: &mut Context,
    gate: &Arc<BodyGate>,
    name: &str,
    fails: bool,
) -> Result<usize, Failure> {
    cx.step(name.to_owned(), || async move {
        gate.wait_for_release(name).await;
        if fails { Err(Failure::new(fresh_number().to_string())) } else { Ok(fresh_number()) }
    })
    .await
}

fn interpret<'a>(program: &'a Program, cx: &'a mut Context, env: &'a InterpreterState) -> BoxFuture<'a, ()> {
    Box::pin(async move {
        match program {
            Program::Step(n) => observed_step(cx, env, &format!("step {n}"), false).await,
            Program::Fail(n) => observed_step(cx, env, &format!("fail {n}"), true).await,
            Program::Sleep(millis) => {
                cx.sleep(Duration::from_millis(u64::from(*millis))).await;
                env.observe("sleep", &());
            }
            Program::Child(n) => {
                let output = cx.child(&env.child, *n).await;
                env.observe("child", &output);
            }
            Program::Seq(all) => {
                for program in all {
                    interpret(program, cx, env).await;
                }
            }
            Program::Join(a, b) => {
                cx.join(|cx| interpret_branch(a, cx, env), |cx| interpret_branch(b, cx, env)).await;
            }
            Program::Map(limit, all) => {
                cx.map(all, *limit, |cx, program| interpret_branch(program, cx, env)).await;
            }
            Program::Race(a, b) => {
                cx.race(|cx| interpret_branch(a, cx, env), |cx| interpret_branch(b, cx, env)).await;
            }
            Program::RaceAll(all) => {
                cx.race_all(all.iter().map(|program| move |cx| interpret_branch(program, cx, env))).await;
            }
            Program::Timeout(millis, a) => {
                let limit = Duration::from_millis(u64::from(*millis));
                if cx.timeout(limit, |cx| interpret_branch(a, cx, env)).await.is_err() {
                    env.observe("sleep", &());
                }
            }
            Program::Spawn(a, b) => {
                let (a, spawned) = (a.clone(), env.clone());
                let branch = cx.spawn(|cx| async move { interpret_branch(&a, cx, &spawned).await });
                interpret(b, cx, env).await;
                branch.output().await.unwrap();
            }
            Program::Pool(workers, items) => run_worker_pool(cx, env, *workers, *items).await,
        }
    })
}

async fn interpret_branch(program: &Program, mut cx: Context, env: &InterpreterState) {
    interpret(program, &mut cx, env).await;
}

async fn observed_step(cx: &mut Context, env: &InterpreterState, name: &str, fails: bool) {
    let outcome = gated_step(cx, &env.gate, name, fails).await.map_err(|failure| failure.message);
    env.observe(name, &outcome);
}

async fn run_worker_pool(cx: &mut Context, env: &InterpreterState, workers: usize, items: u32) {
    let (send, receive) = mpsc::channel(2);
    let receive = &tokio::sync::Mutex::new(receive);
    let feed = |_cx: Context| async move {
        for n in 0..items {
            send.send(n).await.unwrap();
        }
    };
    let work = |mut cx: Context| async move {
        cx.map(0..workers, workers, |mut cx, _| async move {
            loop {
                let item = receive.lock().await.recv().await;
                let Some(item) = item else { break };
                observed_step(&mut cx, env, &format!("item {item}"), false).await;
            }
        })
        .await;
    };
    cx.join(feed, work).await;
}

/// Opens an engine with the interpreter. Returns it with the interpreter's workflow.
async fn open(store: Arc<dyn Store>, seed: u64) -> (GatedEngine, Workflow<Program, ObservedOutcomes>) {
    let gate = Arc::new(BodyGate::default());
    let child = child(&gate);
    let workflow = {
        let (gate, child) = (gate.clone(), child.clone());
        Workflow::new("program", move |mut cx: Context, program: Program| {
            let env = InterpreterState { gate: gate.clone(), child: child.clone(), observed: Arc::default() };
            async move {
                interpret(&program, &mut cx, &env).await;
                let seen = env.observed.lock().unwrap_or_else(PoisonError::into_inner).clone();
                Ok::<_, Failure>(seen)
            }
        })
    };
    (GatedEngine::open(store, gate, seed, |b| b.register(&workflow).register(&child)).await, workflow)
}

/// Returns the outcomes that the workflow must have received: all recorded outcomes, in the order of delivery.
async fn recorded_outcomes(store: &Arc<dyn Store>, record: &Record) -> ObservedOutcomes {
    let mut seen = ObservedOutcomes::new();
    for (n, checkpoint) in (1..).zip(&record.checkpoints) {
        assert_eq!(checkpoint.order, n, "deliveries are numbered without gaps");
        let name = checkpoint.name.to_string();
        match checkpoint.kind {
            CheckpointKind::Step => {
                seen.push((
                    name,
                    format!("Ok::<usize, ()>({})", checkpoint.outcome.decode::<usize>().unwrap()),
                ));
            }
            CheckpointKind::Failed => {
                let failure: Failure = checkpoint.outcome.decode().unwrap();
                seen.push((name, format!("Err({:?})", failure.message)));
            }
            CheckpointKind::Timer => seen.push((name, "()".into())),
            CheckpointKind::Child => {
                let key = Key::from_text(&checkpoint.outcome.decode::<String>().unwrap()).unwrap();
                let output: usize = load(store, key).await.execution.outcome.decode().unwrap();
                seen.push((name, format!("Ok({output})")));
            }
            _ => {}
        }
    }
    for (_, outcome) in &mut seen {
        *outcome = outcome.replace("::<usize, ()>", "");
    }
    seen
}

/// Runs `program` with bodies that complete in an order determined by `seed`. Then continues from `cuts` prefixes of
/// its Writes, or from all prefixes if there are no more.
pub async fn check(program: &Program, seed: u64, cuts: usize) {
    let mut random = fastrand::Rng::with_seed(seed);
    let memory: Arc<dyn Store> = Arc::new(MemoryStore::new());
    // each Write in its own flush: a crash is possible after each of them
    let store = FaultStore::with_flush_writes(memory.clone(), 1);
    let (stage, workflow) = open(store.clone(), seed).await;
    let handle = stage.engine.start(&workflow, program.clone()).workflow_id("x").await.unwrap();
    let key = handle.key();
    let seen = handle.result().await.unwrap();
    stage.close().await;
    let record = load(&memory, key).await;
    assert_eq!(
        seen,
        recorded_outcomes(&memory, &record).await,
        "the workflow received the recorded outcomes"
    );
    for writes in cut(&store, key, cuts, &mut random) {
        continue_from(writes, key, random.u64(..), &record, &seen).await;
    }
}

/// Continues from `writes`, as after a crash.
async fn continue_from(
    writes: Vec<CommittedWrite>,
    key: Key,
    seed: u64,
    first: &Record,
    first_seen: &ObservedOutcomes,
) {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    replay_writes(&store, writes, &["program", "child"]).await;
    let before = load(&store, key).await;
    let (stage, _) = open(store.clone(), seed).await;
    let seen: ObservedOutcomes = stage.engine.get("x").await.unwrap().result().await.unwrap();
    let begun = stage.close().await;
    let record = load(&store, key).await;
    assert_eq!(seen, recorded_outcomes(&store, &record).await, "the workflow received the recorded outcomes");
    let kept = before.checkpoints.len();
    assert_eq!(record.checkpoints[..kept], before.checkpoints, "the record is kept");
    for checkpoint in &before.checkpoints {
        assert!(
            !begun.contains_key(&*checkpoint.name),
            "{} was recorded, and its body ran again",
            checkpoint.name
        );
    }
    if kept == first.checkpoints.len() {
        assert_eq!(seen, *first_seen, "with the whole record, the replay is fully determined");
    }
}
