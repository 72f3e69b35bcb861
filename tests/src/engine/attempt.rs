//! Attempts over crashes: what failed is counted and its pause kept, what a crash cut off is not counted.

use std::sync::Arc;
use std::time::Duration;

use stepfast_core::store::{CheckpointKind, Write};
use stepfast_core::{Context, Engine, Error, Failure, RetryPolicy, Workflow};

use super::support::{Count, Latch, Returns, deliveries, engine, record, row, second_engine, shut_down};
use crate::StoreFixture;
use crate::faults::fault_store::{Call, FaultStore};

super::cases![
    attempts_go_on_after_a_crash,
    a_pause_between_attempts_outlasts_a_crash,
    a_body_that_crashes_cut_off_has_not_failed,
    attempts_that_are_used_up_before_a_crash_fail_the_step,
];

const HOUR: Duration = Duration::from_hours(1);
const BRIEF: Duration = Duration::from_millis(10);

/// Engines that are lost one after the other.
struct Crashes<'f> {
    fixture: &'f dyn StoreFixture,
    workflow: Workflow<(), usize>,
    lost: Vec<(Engine, Arc<FaultStore>)>,
    now: (Engine, Arc<FaultStore>),
}

impl<'f> Crashes<'f> {
    async fn new(fixture: &'f dyn StoreFixture, workflow: Workflow<(), usize>) -> Self {
        let now = engine(fixture, |b| b.register(&workflow)).await;
        now.0.start(&workflow, ()).workflow_id("x").await.unwrap();
        Self { fixture, workflow, lost: Vec::new(), now }
    }

    /// The engine that runs it is lost; the next one has claimed it when this returns, or has
    /// even ended it.
    async fn crash(&mut self) {
        let (engine, store) = &self.now;
        let owner = row(engine, "x").await.owner.unwrap();
        // it does not notice, and does not write
        store.hold_calls(&[Call::Heartbeat, Call::Commit, Call::Claim]);
        self.fixture.mark_dead(owner).await;
        let next = second_engine(self.fixture, |b| b.register(&self.workflow)).await;
        loop {
            let execution = row(&next.0, "x").await;
            let has_gone_on = execution.owner.is_some_and(|now| now != owner);
            if has_gone_on || execution.status.is_terminal() {
                break;
            }
            tokio::task::yield_now().await;
        }
        self.lost.push(std::mem::replace(&mut self.now, next));
    }

    async fn result(&self) -> Result<usize, Error> {
        self.now.0.get("x").await.unwrap().result().await
    }

    /// What was recorded of failed attempts.
    async fn attempts(&self) -> Vec<(u32, Failure)> {
        let attempts = record(&self.now.0, "x").await.attempts;
        attempts.iter().map(|it| (it.attempt, it.failure.decode().unwrap())).collect()
    }

    async fn end(self) {
        for (engine, store) in self.lost {
            store.release();
            shut_down(engine).await;
        }
        shut_down(self.now.0).await;
    }
}

async fn attempts_go_on_after_a_crash(fixture: &dyn StoreFixture) {
    let (runs, bodies, third) = (Count::new(), Count::new(), Count::new());
    let workflow = {
        let all = (runs.clone(), bodies.clone(), third.clone());
        Workflow::new("w", move |mut cx: Context, (): ()| {
            let (runs, bodies, third) = all.clone();
            async move {
                let timeout = if runs.more() == 1 { HOUR } else { BRIEF };
                cx.step("flaky", || {
                    let (n, third) = (bodies.more(), third.clone());
                    async move {
                        match n {
                            1 | 2 => Err(Failure::new(format!("no {n}"))),
                            3 | 4 => {
                                third.more();
                                std::future::pending().await
                            }
                            n => Ok(n),
                        }
                    }
                })
                .retries(3)
                .backoff(BRIEF, BRIEF)
                .timeout(timeout)
                .await
            }
        })
    };
    let mut crashes = Crashes::new(fixture, workflow).await;
    third.reaches(1).await;
    let before = crashes.attempts().await;
    assert_eq!(before.iter().map(|(n, _)| *n).collect::<Vec<_>>(), [1, 2]);
    crashes.crash().await;
    assert_eq!(crashes.result().await.unwrap(), 5);
    let attempts = crashes.attempts().await;
    assert_eq!(attempts[..2], before);
    let [_, _, (3, timed_out)] = &attempts[..] else { panic!("{attempts:?}") };
    assert_eq!(timed_out.code(), Some("SF-0020"));
    assert_eq!((bodies.get(), third.get()), (5, 2), "two failed, one was cut off, one took too long");
    let record = record(&crashes.now.0, "x").await;
    assert_eq!(deliveries(&record), [(CheckpointKind::Step, "flaky".into())]);
    assert_eq!(record.execution.recoveries, 1);
    crashes.end().await;
}

async fn a_pause_between_attempts_outlasts_a_crash(fixture: &dyn StoreFixture) {
    let bodies = Count::new();
    let workflow = {
        let bodies = bodies.clone();
        Workflow::new("w", move |mut cx: Context, (): ()| {
            let bodies = bodies.clone();
            async move {
                // an hour after the first, two after the second
                let policy = RetryPolicy {
                    retries: 2,
                    backoff: HOUR,
                    max_backoff: HOUR * 9,
                    ..RetryPolicy::default()
                };
                cx.step("flaky", || {
                    let n = bodies.more();
                    std::future::ready(if n < 3 { Err(Failure::new(format!("no {n}"))) } else { Ok(n) })
                })
                .retry(policy)
                .await
            }
        })
    };
    let mut crashes = Crashes::new(fixture, workflow).await;
    for pause in 1..=2 {
        let store = crashes.now.1.clone();
        store.wait_until_committed(|write| matches!(write, Write::Attempt(_))).await;
        if pause == 2 {
            // half of it is over
            fixture.clock().advance(HOUR);
            crashes.crash().await;
            let store = crashes.now.1.clone();
            store.wait_until_called(Call::Heartbeat, store.call_count(Call::Heartbeat) + 2).await;
            assert_eq!(bodies.get(), 2, "the pause goes on");
        }
        fixture.clock().advance(HOUR);
        crashes.crash().await;
        bodies.reaches(pause + 1).await;
    }
    assert_eq!(crashes.result().await.unwrap(), 3);
    let attempts = crashes.attempts().await;
    assert_eq!(attempts, [(1, Failure::new("no 1")), (2, Failure::new("no 2"))]);
    assert_eq!(record(&crashes.now.0, "x").await.execution.recoveries, 3);
    crashes.end().await;
}

/// Attempts count failures of code, never lost workers.
async fn a_body_that_crashes_cut_off_has_not_failed(fixture: &dyn StoreFixture) {
    let (bodies, latch) = (Count::new(), Latch::new());
    let workflow = {
        let all = (bodies.clone(), latch.clone());
        Workflow::new("w", move |mut cx: Context, (): ()| {
            let all = all.clone();
            async move {
                cx.step("once", || {
                    let (bodies, latch) = all.clone();
                    async move {
                        let n = bodies.more();
                        if n < 3 {
                            std::future::pending::<()>().await;
                        }
                        latch.passed().await;
                        Returns::Ok(n)
                    }
                })
                .await
            }
        })
    };
    let mut crashes = Crashes::new(fixture, workflow).await;
    for n in 1..=2 {
        bodies.reaches(n).await;
        crashes.crash().await;
    }
    latch.open();
    assert_eq!(crashes.result().await.unwrap(), 3);
    assert!(crashes.attempts().await.is_empty());
    assert_eq!(record(&crashes.now.0, "x").await.execution.recoveries, 2);
    crashes.end().await;
}

/// The next code allows fewer than have failed.
async fn attempts_that_are_used_up_before_a_crash_fail_the_step(fixture: &dyn StoreFixture) {
    let (runs, bodies, third) = (Count::new(), Count::new(), Count::new());
    let workflow = {
        let all = (runs.clone(), bodies.clone(), third.clone());
        Workflow::new("w", move |mut cx: Context, (): ()| {
            let (runs, bodies, third) = all.clone();
            async move {
                let retries = if runs.more() == 1 { 5 } else { 1 };
                cx.step("flaky", || {
                    let (n, third) = (bodies.more(), third.clone());
                    async move {
                        if n == 3 {
                            third.more();
                            std::future::pending::<()>().await;
                        }
                        Err::<usize, _>(Failure::new(format!("no {n}")))
                    }
                })
                .retries(retries)
                .backoff(BRIEF, BRIEF)
                .await
            }
        })
    };
    let mut crashes = Crashes::new(fixture, workflow).await;
    third.reaches(1).await;
    crashes.crash().await;
    let Error::Failed(failure) = crashes.result().await.unwrap_err() else { panic!() };
    assert_eq!((failure.message.as_str(), bodies.get()), ("no 2", 3));
    let record = record(&crashes.now.0, "x").await;
    assert_eq!(deliveries(&record), [(CheckpointKind::Failed, "flaky".into())]);
    assert_eq!(record.attempts.len(), 2);
    crashes.end().await;
}
