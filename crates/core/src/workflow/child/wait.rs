//! Waiting for the end of a child, in this process or in another one.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::task::Poll;

use futures_util::future::{Either, select};

use crate::commit::Lsn;
use crate::failure::Failure;
use crate::key::Key;
use crate::payload::{FromPayload, Payload};
use crate::runtime::run::call::{Call, WaitingFor};
use crate::runtime::run::{ChildEnd, ChildState, Interrupt};
use crate::store::{CheckpointKind, Detail, Execution, ExecutionId, Outcome, RequestKind, Status};

/// Waits for the end of a child and delivers the end to the branch. `has_started` is whether this call has started the
/// child, perhaps in an earlier run.
pub(super) async fn wait_for_end<O: FromPayload>(
    call: &Call,
    key: Key,
    has_started: bool,
) -> Result<O, Failure> {
    let run = &call.run;
    let signal = poll_fn(|cx| {
        let known = run.state().children.get(&key).cloned();
        match known {
            Some(ChildState::Ended(end)) => Poll::Ready(Some(end)),
            Some(ChildState::Local) => {
                run.set_waiting_for(call.id(), WaitingFor::Child(key), cx.waker());
                // the child may have ended between the check and the registration of the waiter
                match run.state().children.get(&key) {
                    Some(ChildState::Local) => Poll::Pending,
                    Some(ChildState::Ended(end)) => Poll::Ready(Some(end.clone())),
                    Some(ChildState::Remote) | None => Poll::Ready(None),
                }
            }
            Some(ChildState::Remote) | None => Poll::Ready(None),
        }
    });
    let end = match signal.await {
        Some(end) => end,
        None => wait_for_remote_end(call, key).await,
    };
    if end.status == Status::Cancelled {
        stop_if_cancelled(call).await;
    }
    if has_started {
        // with this time, the recorded duration covers the whole child, even after a suspension
        run.set_call_begun_at(call.id(), end.created_at);
    }
    run.add_dependency(end.lsn);
    run.state().children.remove(&key);
    crate::crash_point!("child end received");
    call.deliver(CheckpointKind::Child, Payload::encode(&key.to_string())?, 0).await;
    decode_output(call, key, end.status, end.outcome).await
}

/// Stops the run if a cancel is recorded for the execution itself. The same cancel may have ended the child, and this
/// run may be notified of the child's end first. In this case the child's end is not an outcome of the call.
async fn stop_if_cancelled(call: &Call) {
    let run = &call.run;
    let id = ExecutionId::Key(run.key);
    let record = call.query(|| run.engine.load(id.clone(), Detail::Full)).await;
    if record.is_some_and(|it| it.requests.contains(&RequestKind::Cancel)) {
        run.interrupt(Interrupt::Cancel(Failure::cancelled().into()));
        std::future::pending::<()>().await;
    }
}

/// Waits for the end of a child that does not run in this process, or that did not run here a moment ago.
async fn wait_for_remote_end(call: &Call, key: Key) -> ChildEnd {
    let run = &call.run;
    // until the first read, the child may already have ended, so the run must not suspend for it
    let has_read = AtomicBool::new(false);
    let waker = poll_fn(|cx| Poll::Ready(cx.waker().clone())).await;
    let on_not_ended = || {
        has_read.store(true, SeqCst);
        run.set_waiting_for(call.id(), WaitingFor::Child(key), &waker);
        // the notification of the end may have come before this call was waiting
        waker.wake_by_ref();
    };
    let signal = poll_fn(|cx| {
        if has_read.load(SeqCst) {
            run.set_waiting_for(call.id(), WaitingFor::Child(key), cx.waker());
        }
        match run.state().children.get(&key) {
            Some(ChildState::Ended(end)) => Poll::Ready(end.clone()),
            _ => Poll::Pending,
        }
    });
    let ended = async {
        // the child's Start may be under way: before it is durable there is no row to read
        let Some(barrier) = run.barrier(true) else { std::future::pending().await };
        if let Outcome::Fenced | Outcome::Dropped = run.lane().wait_durable(barrier).await {
            std::future::pending::<()>().await;
        }
        match run.engine.wait_ended(key, &on_not_ended).await {
            Ok(Execution { status, outcome, created_at, .. }) => {
                ChildEnd { status, outcome, created_at, lsn: Lsn(0) }
            }
            Err(error) => call.park(error.to_string()).await,
        }
    };
    match select(std::pin::pin!(signal), std::pin::pin!(ended)).await {
        Either::Left((end, _)) | Either::Right((end, _)) => end,
    }
}

/// Returns the output of a child whose end was recorded, from the child's row.
pub(super) async fn recorded_output<O: FromPayload>(
    call: &Call,
    kind: CheckpointKind,
    payload: Payload,
) -> Result<O, Failure> {
    if kind == CheckpointKind::Failed {
        return match payload.decode::<Failure>() {
            Ok(failure) => Err(failure),
            Err(error) => call.park(error.to_string()).await,
        };
    }
    let key = recorded_key(call, &payload).await;
    let engine = &call.run.engine;
    let execution = match call.query(|| engine.load(ExecutionId::Key(key), Detail::Outcome)).await {
        Some(record) => record.execution,
        None => call.park(format!("the child {key} is not in the database any more")).await,
    };
    let (status, outcome) = if execution.status.is_terminal() {
        (execution.status, execution.outcome)
    } else {
        // the child was resumed: its end is still to come
        let end = wait_for_remote_end(call, key).await;
        (end.status, end.outcome)
    };
    call.run.state().children.remove(&key);
    decode_output(call, key, status, outcome).await
}

pub(super) async fn recorded_key(call: &Call, payload: &Payload) -> Key {
    match payload.decode::<String>().ok().and_then(|text| Key::from_text(&text)) {
        Some(key) => key,
        None => call.park("the recorded value is not a child's key".to_owned()).await,
    }
}

pub(super) async fn decode_output<O: FromPayload>(
    call: &Call,
    key: Key,
    status: Status,
    outcome: Payload,
) -> Result<O, Failure> {
    let outcome = call.fetch_from(key, outcome).await;
    if status == Status::Completed {
        return match O::from_payload(&outcome) {
            Ok(output) => Ok(output),
            Err(error) => {
                let name = call.run.call_name(call.id());
                let error = error.with_value(|| format!("the output of child {key}, workflow {name:?},"));
                call.park(error.to_string()).await
            }
        };
    }
    Err(outcome.to_failure())
}
