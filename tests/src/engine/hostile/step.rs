//! Options of steps, sleeps and branches, and values.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use stepfast_core::clock::MAX_STORED_DURATION;
use stepfast_core::{Context, Error, Failure, RetryPolicy, Workflow};

use super::harness::HostileHarness;
use super::values::{COUNTS, FLOATS, SIZES, durations, texts};
use crate::StoreFixture;
use crate::engine::support::{BodyResult, is_suspension_of};

/// The options of a step. Its body fails at most three times, and at most as often as the policy retries.
#[derive(Clone)]
struct HostileStepOptions {
    name: String,
    policy: RetryPolicy,
    timeout: Option<Duration>,
}

fn options() -> HostileStepOptions {
    let short = Duration::from_millis(1);
    let policy = RetryPolicy { backoff: short, max_backoff: short, ..RetryPolicy::default() };
    HostileStepOptions { name: "step".into(), policy, timeout: None }
}

/// The options that the workflow `steps` passes to its step.
type Current = Arc<Mutex<HostileStepOptions>>;

fn steps(current: &Current) -> Workflow<i64, i64> {
    let current = current.clone();
    Workflow::new("steps", move |mut cx: Context, x: i64| {
        let options = current.lock().unwrap().clone();
        async move {
            let mut attempts = 0;
            let step = cx.step(options.name, || {
                attempts += 1;
                let succeeds = attempts > 3.min(options.policy.retries);
                async move { if succeeds { Ok(x) } else { Err(Failure::new("again")) } }
            });
            let step = step.retry(options.policy);
            match options.timeout {
                Some(timeout) => step.timeout(timeout).await,
                None => step.await,
            }
        }
    })
}

pub(super) async fn step_options_are_applied_or_rejected(fixture: &dyn StoreFixture) {
    let current = Current::new(Mutex::new(options()));
    let steps = steps(&current);
    let harness = HostileHarness::with(fixture, |b| b.register(&steps)).await;
    let run = async |options: HostileStepOptions| {
        *current.lock().unwrap() = options;
        assert_eq!(harness.engine.run(&steps, 7).await?, 7);
        Ok::<_, Error>(())
    };
    let policy = options().policy;
    harness
        .check("step name", &["step name"], texts(), async |name| {
            run(HostileStepOptions { name: name.clone(), ..options() }).await
        })
        .await;
    harness
        .check("retries", &["retries"], COUNTS, async |retries| {
            run(HostileStepOptions { policy: RetryPolicy { retries: *retries, ..policy }, ..options() }).await
        })
        .await;
    let failing = RetryPolicy { retries: 3, ..policy };
    harness
        .check("backoff_factor", &["backoff_factor"], FLOATS, async |factor| {
            run(HostileStepOptions {
                policy: RetryPolicy { backoff_factor: *factor, ..failing },
                ..options()
            })
            .await?;
            // a backoff of zero stays zero
            let endless = RetryPolicy { backoff: Duration::ZERO, max_backoff: Duration::MAX, ..failing };
            run(HostileStepOptions {
                policy: RetryPolicy { backoff_factor: *factor, ..endless },
                ..options()
            })
            .await
        })
        .await;
    harness
        .check("jitter", &["jitter"], FLOATS, async |jitter| {
            run(HostileStepOptions { policy: RetryPolicy { jitter: *jitter, ..failing }, ..options() }).await
        })
        .await;
    harness
        .check("backoff", &["backoff"], durations(), async |backoff| {
            run(HostileStepOptions { policy: RetryPolicy { backoff: *backoff, ..failing }, ..options() })
                .await?;
            run(HostileStepOptions {
                policy: RetryPolicy { backoff: *backoff, max_backoff: Duration::MAX, ..policy },
                ..options()
            })
            .await
        })
        .await;
    harness
        .check("max_backoff", &["max_backoff"], durations(), async |max_backoff| {
            let short = RetryPolicy { backoff_factor: 1.0, ..failing };
            run(HostileStepOptions {
                policy: RetryPolicy { max_backoff: *max_backoff, ..short },
                ..options()
            })
            .await
        })
        .await;
    harness
        .check("timeout", &["timeout"], durations(), async |limit| {
            run(HostileStepOptions { timeout: Some(*limit), ..options() }).await
        })
        .await;
    harness.end().await;
}

pub(super) async fn sleeps_branches_and_values_are_unbounded(fixture: &dyn StoreFixture) {
    let sleeper = Workflow::new("sleeps", |mut cx: Context, limit: Duration| async move {
        cx.sleep(limit).await;
        BodyResult::Ok(())
    });
    let limited = Workflow::new("limited", |mut cx: Context, limit: Duration| async move {
        let within = cx
            .timeout(limit, |mut cx| async move { cx.step("step", async || BodyResult::Ok(7)).await })
            .await;
        within.unwrap_or(Ok(7))
    });
    let mapped = Workflow::new("mapped", |mut cx: Context, limit: usize| async move {
        let branch = async |mut cx: Context, n: i64| cx.step("step", async || BodyResult::Ok(n)).await;
        let outputs = cx.map(0..9_i64, limit, branch).await;
        outputs.into_iter().sum::<Result<i64, Failure>>()
    });
    let echo = Workflow::new("echo", |mut cx: Context, text: String| async move {
        cx.step("echo", async || BodyResult::Ok(text.clone())).args(&text).await
    });
    let measure = Workflow::new("measure", |mut cx: Context, bits: u64| async move {
        cx.step("measure", async || BodyResult::Ok(f64::from_bits(bits))).await
    });
    let fail = Workflow::new("fail", |mut cx: Context, text: String| async move {
        cx.step("fail", async || Err::<(), _>(Failure::with_kind(text.clone(), text.clone()))).await
    });
    let (engine, store) = crate::engine::support::open_engine(fixture, |b| {
        b.register(&sleeper).suspend_after(Duration::from_millis(10))
    })
    .await;
    let harness = HostileHarness::with(fixture, |b| {
        b.register(&limited).register(&mapped).register(&echo).register(&measure).register(&fail)
    })
    .await;
    harness
        .check("sleep", &[], durations(), async |limit| {
            if *limit < Duration::from_secs(1) {
                return engine.run(&sleeper, *limit).await;
            }
            let handle = engine.start(&sleeper, *limit).await?;
            store.wait_until_committed(is_suspension_of(handle.key())).await;
            let row = harness.row(&handle.workflow_id()).await;
            let least = row.created_at.plus((*limit).min(MAX_STORED_DURATION));
            assert!(row.wake_at.unwrap() >= least, "{row:?}");
            handle.cancel().await?;
            match handle.result().await {
                Err(Error::Cancelled(_)) => Ok(()),
                ended => panic!("{ended:?}"),
            }
        })
        .await;
    harness
        .check("limit of a branch", &[], durations(), async |limit| {
            assert_eq!(harness.engine.run(&limited, *limit).await?, 7);
            Ok(())
        })
        .await;
    harness
        .check("limit of a map", &[], SIZES, async |limit| {
            assert_eq!(harness.engine.run(&mapped, *limit).await?, 36);
            Ok(())
        })
        .await;
    harness
        .check("text", &[], texts().into_iter().chain(["x".repeat(3_000_000)]), async |text| {
            assert_eq!(harness.engine.run(&echo, text.clone()).await?, *text);
            Ok(())
        })
        .await;
    harness
        .check("number", &[], FLOATS, async |number| {
            let output = harness.engine.run(&measure, number.to_bits()).await?;
            assert_eq!(output.to_bits(), number.to_bits());
            Ok(())
        })
        .await;
    harness
        .check("failure", &[], texts(), async |text| {
            let handle = harness.engine.start(&fail, text.clone()).await?;
            match handle.result().await {
                Err(Error::Failed(failure)) => assert_eq!((&failure.kind, &failure.message), (text, text)),
                ended => panic!("{ended:?}"),
            }
            Ok(())
        })
        .await;
    crate::engine::support::shut_down(engine).await;
    harness.end().await;
}
