//! Options of steps, sleeps and branches, and values.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use stepfast_core::clock::MAX_STORED_DURATION;
use stepfast_core::{Context, Error, Failure, RetryPolicy, Workflow};

use super::stage::HostileHarness;
use super::values::{COUNTS, FLOATS, SIZES, durations, texts};
use crate::StoreFixture;
use crate::engine::support::{BodyResult, is_suspension_of};

/// The options of a step. Its body fails three times at most, and as often as the policy retries.
#[derive(Clone)]
struct HostileStepOptions {
    name: String,
    policy: RetryPolicy,
    timeout: Option<Duration>,
}

fn options() -> HostileStepOptions {
    let brief = Duration::from_millis(1);
    let policy = RetryPolicy { backoff: brief, max_backoff: brief, ..RetryPolicy::default() };
    HostileStepOptions { name: "step".into(), policy, timeout: None }
}

/// The options that the workflow `steps` gives its step.
type Current = Arc<Mutex<HostileStepOptions>>;

fn steps(current: &Current) -> Workflow<i64, i64> {
    let current = current.clone();
    Workflow::new("steps", move |mut cx: Context, x: i64| {
        let options = current.lock().unwrap().clone();
        async move {
            let mut attempts = 0;
            let step = cx.step(options.name, || {
                attempts += 1;
                let is_over = attempts > 3.min(options.policy.retries);
                async move { if is_over { Ok(x) } else { Err(Failure::new("again")) } }
            });
            let step = step.retry(options.policy);
            match options.timeout {
                Some(timeout) => step.timeout(timeout).await,
                None => step.await,
            }
        }
    })
}

pub(super) async fn steps_take_an_option_or_refuse_it(fixture: &dyn StoreFixture) {
    let current = Current::new(Mutex::new(options()));
    let steps = steps(&current);
    let stage = HostileHarness::with(fixture, |it| it.register(&steps)).await;
    let run = async |options: HostileStepOptions| {
        *current.lock().unwrap() = options;
        assert_eq!(stage.engine.run(&steps, 7).await?, 7);
        Ok::<_, Error>(())
    };
    let policy = options().policy;
    stage
        .check("step name", &["step name"], texts(), async |name| {
            run(HostileStepOptions { name: name.clone(), ..options() }).await
        })
        .await;
    stage
        .check("retries", &["retries"], COUNTS, async |retries| {
            run(HostileStepOptions { policy: RetryPolicy { retries: *retries, ..policy }, ..options() }).await
        })
        .await;
    let failing = RetryPolicy { retries: 3, ..policy };
    stage
        .check("factor", &["factor"], FLOATS, async |factor| {
            run(HostileStepOptions { policy: RetryPolicy { factor: *factor, ..failing }, ..options() }).await?;
            // a pause of zero stays zero
            let endless = RetryPolicy { backoff: Duration::ZERO, max_backoff: Duration::MAX, ..failing };
            run(HostileStepOptions { policy: RetryPolicy { factor: *factor, ..endless }, ..options() }).await
        })
        .await;
    stage
        .check("jitter", &["jitter"], FLOATS, async |jitter| {
            run(HostileStepOptions { policy: RetryPolicy { jitter: *jitter, ..failing }, ..options() }).await
        })
        .await;
    stage
        .check("backoff", &["backoff"], durations(), async |backoff| {
            run(HostileStepOptions { policy: RetryPolicy { backoff: *backoff, ..failing }, ..options() }).await?;
            run(HostileStepOptions {
                policy: RetryPolicy { backoff: *backoff, max_backoff: Duration::MAX, ..policy },
                ..options()
            })
            .await
        })
        .await;
    stage
        .check("max_backoff", &["max_backoff"], durations(), async |most| {
            let brief = RetryPolicy { factor: 1.0, ..failing };
            run(HostileStepOptions { policy: RetryPolicy { max_backoff: *most, ..brief }, ..options() }).await
        })
        .await;
    stage
        .check("timeout", &["timeout"], durations(), async |limit| {
            run(HostileStepOptions { timeout: Some(*limit), ..options() }).await
        })
        .await;
    stage.end().await;
}

pub(super) async fn sleeps_branches_and_values_have_no_bounds(fixture: &dyn StoreFixture) {
    let sleeper = Workflow::new("sleeps", |mut cx: Context, limit: Duration| async move {
        cx.sleep(limit).await;
        BodyResult::Ok(())
    });
    let limited = Workflow::new("limited", |mut cx: Context, limit: Duration| async move {
        let within =
            cx.timeout(limit, |mut cx| async move { cx.step("step", async || BodyResult::Ok(7)).await }).await;
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
    let complain = Workflow::new("complain", |mut cx: Context, text: String| async move {
        cx.step("fail", async || Err::<(), _>(Failure::with_kind(text.clone(), text.clone()))).await
    });
    let (engine, store) = crate::engine::support::open_engine(fixture, |it| {
        it.register(&sleeper).suspend_after(Duration::from_millis(10))
    })
    .await;
    let stage = HostileHarness::with(fixture, |it| {
        it.register(&limited).register(&mapped).register(&echo).register(&measure).register(&complain)
    })
    .await;
    stage
        .check("sleep", &[], durations(), async |limit| {
            if *limit < Duration::from_secs(1) {
                return engine.run(&sleeper, *limit).await;
            }
            let handle = engine.start(&sleeper, *limit).await?;
            store.wait_until_committed(is_suspension_of(handle.key())).await;
            let row = stage.row(&handle.workflow_id()).await;
            let least = row.created_at.plus((*limit).min(MAX_STORED_DURATION));
            assert!(row.wake_at.unwrap() >= least, "{row:?}");
            handle.cancel().await?;
            match handle.result().await {
                Err(Error::Cancelled(_)) => Ok(()),
                ended => panic!("{ended:?}"),
            }
        })
        .await;
    stage
        .check("limit of a branch", &[], durations(), async |limit| {
            assert_eq!(stage.engine.run(&limited, *limit).await?, 7);
            Ok(())
        })
        .await;
    stage
        .check("limit of a map", &[], SIZES, async |limit| {
            assert_eq!(stage.engine.run(&mapped, *limit).await?, 36);
            Ok(())
        })
        .await;
    stage
        .check("text", &[], texts().into_iter().chain(["x".repeat(3_000_000)]), async |text| {
            assert_eq!(stage.engine.run(&echo, text.clone()).await?, *text);
            Ok(())
        })
        .await;
    stage
        .check("number", &[], FLOATS, async |number| {
            let output = stage.engine.run(&measure, number.to_bits()).await?;
            assert_eq!(output.to_bits(), number.to_bits());
            Ok(())
        })
        .await;
    stage
        .check("failure", &[], texts(), async |text| {
            let handle = stage.engine.start(&complain, text.clone()).await?;
            match handle.result().await {
                Err(Error::Failed(failure)) => assert_eq!((&failure.kind, &failure.message), (text, text)),
                ended => panic!("{ended:?}"),
            }
            Ok(())
        })
        .await;
    crate::engine::support::shut_down(engine).await;
    stage.end().await;
}
