//! Attempts across crashes: failed attempts are counted with their backoff, and interrupted attempts are not counted.

use std::sync::Arc;
use std::time::Duration;

use stepfast_core::store::{CheckpointKind, Write};
use stepfast_core::{Context, Engine, Error, Failure, RetryPolicy, Workflow};

use super::support::{
    BodyResult, Count, Latch, deliveries, open_engine, open_second_engine, record, row, shut_down,
};
use crate::StoreFixture;
use crate::faults::fault_store::{Call, FaultStore};

super::cases![
    attempts_continue_after_a_crash,
    exponential_backoff_outlasts_a_crash,
    linear_backoff_outlasts_a_crash,
    custom_backoff_outlasts_a_crash,
    interrupted_body_counts_no_attempt,
    exhausted_attempts_fail_the_step_after_a_crash,
];

const HOUR: Duration = Duration::from_hours(1);
const SHORT: Duration = Duration::from_millis(10);

/// Engines that die one after another.
struct Crashes<'f> {
    fixture: &'f dyn StoreFixture,
    workflow: Workflow<(), usize>,
    dead: Vec<(Engine, Arc<FaultStore>)>,
    current: (Engine, Arc<FaultStore>),
}

impl<'f> Crashes<'f> {
    async fn new(fixture: &'f dyn StoreFixture, workflow: Workflow<(), usize>) -> Self {
        let current = open_engine(fixture, |b| b.register(&workflow)).await;
        current.0.start(&workflow, ()).workflow_id("x").await.unwrap();
        Self { fixture, workflow, dead: Vec::new(), current }
    }

    /// Kills the engine that runs the execution. Waits until the next engine has claimed or even ended the execution.
    async fn crash(&mut self) {
        let (engine, store) = &self.current;
        let owner = row(engine, "x").await.owner.unwrap();
        // the dead engine does not notice its death, and does not write
        store.hold_calls(&[Call::Heartbeat, Call::Commit, Call::Claim]);
        self.fixture.mark_dead(owner).await;
        let next = open_second_engine(self.fixture, |b| b.register(&self.workflow)).await;
        loop {
            let execution = row(&next.0, "x").await;
            let is_claimed = execution.owner.is_some_and(|next_owner| next_owner != owner);
            if is_claimed || execution.status.is_terminal() {
                break;
            }
            tokio::task::yield_now().await;
        }
        self.dead.push(std::mem::replace(&mut self.current, next));
    }

    async fn result(&self) -> Result<usize, Error> {
        self.current.0.get("x").await.unwrap().result().await
    }

    /// Returns the recorded failed attempts.
    async fn attempts(&self) -> Vec<(u32, Failure)> {
        let attempts = record(&self.current.0, "x").await.attempts;
        attempts.iter().map(|attempt| (attempt.attempt, attempt.failure.decode().unwrap())).collect()
    }

    async fn end(self) {
        for (engine, store) in self.dead {
            store.release();
            shut_down(engine).await;
        }
        shut_down(self.current.0).await;
    }
}

async fn attempts_continue_after_a_crash(fixture: &dyn StoreFixture) {
    let (runs, bodies, third) = (Count::new(), Count::new(), Count::new());
    let workflow = {
        let all = (runs.clone(), bodies.clone(), third.clone());
        Workflow::new("w", move |mut cx: Context, (): ()| {
            let (runs, bodies, third) = all.clone();
            async move {
                let timeout = if runs.increment() == 1 { HOUR } else { SHORT };
                cx.step("flaky", || {
                    let (n, third) = (bodies.increment(), third.clone());
                    async move {
                        match n {
                            1 | 2 => Err(Failure::new(format!("no {n}"))),
                            3 | 4 => {
                                third.increment();
                                std::future::pending().await
                            }
                            n => Ok(n),
                        }
                    }
                })
                .retries(3)
                .backoff(SHORT, SHORT)
                .timeout(timeout)
                .await
            }
        })
    };
    let mut crashes = Crashes::new(fixture, workflow).await;
    third.wait_for(1).await;
    let before = crashes.attempts().await;
    assert_eq!(before.iter().map(|(n, _)| *n).collect::<Vec<_>>(), [1, 2]);
    crashes.crash().await;
    assert_eq!(crashes.result().await.unwrap(), 5);
    let attempts = crashes.attempts().await;
    assert_eq!(attempts[..2], before);
    let [_, _, (3, timed_out)] = &attempts[..] else { panic!("{attempts:?}") };
    assert_eq!(timed_out.code(), Some("SF-0020"));
    assert_eq!((bodies.get(), third.get()), (5, 2), "two failed, one was interrupted, one timed out");
    let record = record(&crashes.current.0, "x").await;
    assert_eq!(deliveries(&record), [(CheckpointKind::Step, "flaky".into())]);
    assert_eq!(record.execution.recoveries, 1);
    crashes.end().await;
}

async fn exponential_backoff_outlasts_a_crash(fixture: &dyn StoreFixture) {
    let policy = RetryPolicy { max_backoff: HOUR * 9, ..RetryPolicy::exponential(HOUR, 2.0) };
    assert_backoff_outlasts_a_crash(fixture, policy).await;
}

async fn linear_backoff_outlasts_a_crash(fixture: &dyn StoreFixture) {
    let policy = RetryPolicy { max_backoff: HOUR * 9, ..RetryPolicy::linear(HOUR, HOUR) };
    assert_backoff_outlasts_a_crash(fixture, policy).await;
}

async fn custom_backoff_outlasts_a_crash(fixture: &dyn StoreFixture) {
    assert_backoff_outlasts_a_crash(fixture, RetryPolicy::custom(|attempt| HOUR * attempt)).await;
}

/// Checks that the pauses of `policy`, of one hour and of two hours, continue after crashes.
async fn assert_backoff_outlasts_a_crash(fixture: &dyn StoreFixture, policy: RetryPolicy) {
    let bodies = Count::new();
    let workflow = {
        let bodies = bodies.clone();
        Workflow::new("w", move |mut cx: Context, (): ()| {
            let bodies = bodies.clone();
            async move {
                cx.step("flaky", || {
                    let n = bodies.increment();
                    std::future::ready(if n < 3 { Err(Failure::new(format!("no {n}"))) } else { Ok(n) })
                })
                .retry(policy)
                .retries(2)
                .await
            }
        })
    };
    let mut crashes = Crashes::new(fixture, workflow).await;
    for backoffs in 1..=2 {
        let store = crashes.current.1.clone();
        store.wait_until_committed(|write| matches!(write, Write::Attempt(_))).await;
        if backoffs == 2 {
            // half of the backoff has passed
            fixture.clock().advance(HOUR);
            crashes.crash().await;
            let store = crashes.current.1.clone();
            store.wait_until_called(Call::Heartbeat, store.call_count(Call::Heartbeat) + 2).await;
            assert_eq!(bodies.get(), 2, "the backoff ended early");
        }
        fixture.clock().advance(HOUR);
        crashes.crash().await;
        bodies.wait_for(backoffs + 1).await;
    }
    assert_eq!(crashes.result().await.unwrap(), 3);
    let attempts = crashes.attempts().await;
    assert_eq!(attempts, [(1, Failure::new("no 1")), (2, Failure::new("no 2"))]);
    assert_eq!(record(&crashes.current.0, "x").await.execution.recoveries, 3);
    crashes.end().await;
}

/// Attempts count failures of the body, never dead workers.
async fn interrupted_body_counts_no_attempt(fixture: &dyn StoreFixture) {
    let (bodies, latch) = (Count::new(), Latch::new());
    let workflow = {
        let all = (bodies.clone(), latch.clone());
        Workflow::new("w", move |mut cx: Context, (): ()| {
            let all = all.clone();
            async move {
                cx.step("once", || {
                    let (bodies, latch) = all.clone();
                    async move {
                        let n = bodies.increment();
                        if n < 3 {
                            std::future::pending::<()>().await;
                        }
                        latch.wait().await;
                        BodyResult::Ok(n)
                    }
                })
                .await
            }
        })
    };
    let mut crashes = Crashes::new(fixture, workflow).await;
    for n in 1..=2 {
        bodies.wait_for(n).await;
        crashes.crash().await;
    }
    latch.open();
    assert_eq!(crashes.result().await.unwrap(), 3);
    assert!(crashes.attempts().await.is_empty());
    assert_eq!(record(&crashes.current.0, "x").await.execution.recoveries, 2);
    crashes.end().await;
}

/// The next code allows fewer attempts than have failed.
async fn exhausted_attempts_fail_the_step_after_a_crash(fixture: &dyn StoreFixture) {
    let (runs, bodies, third) = (Count::new(), Count::new(), Count::new());
    let workflow = {
        let all = (runs.clone(), bodies.clone(), third.clone());
        Workflow::new("w", move |mut cx: Context, (): ()| {
            let (runs, bodies, third) = all.clone();
            async move {
                let retries = if runs.increment() == 1 { 5 } else { 1 };
                cx.step("flaky", || {
                    let (n, third) = (bodies.increment(), third.clone());
                    async move {
                        if n == 3 {
                            third.increment();
                            std::future::pending::<()>().await;
                        }
                        Err::<usize, _>(Failure::new(format!("no {n}")))
                    }
                })
                .retries(retries)
                .backoff(SHORT, SHORT)
                .await
            }
        })
    };
    let mut crashes = Crashes::new(fixture, workflow).await;
    third.wait_for(1).await;
    crashes.crash().await;
    let Error::Failed(failure) = crashes.result().await.unwrap_err() else { panic!() };
    assert_eq!((failure.message.as_str(), bodies.get()), ("no 2", 3));
    let record = record(&crashes.current.0, "x").await;
    assert_eq!(deliveries(&record), [(CheckpointKind::Failed, "flaky".into())]);
    assert_eq!(record.attempts.len(), 2);
    crashes.end().await;
}
