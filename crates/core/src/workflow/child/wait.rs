//! Waiting for the end of a child, here or elsewhere.

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

/// Waits for the end of a child and delivers it.
pub(super) async fn until_end<O: FromPayload>(call: &Call, key: Key) -> Result<O, Failure> {
    let run = &call.run;
    let signal = poll_fn(|cx| {
        let known = run.state().children.get(&key).cloned();
        match known {
            Some(ChildState::Ended(end)) => Poll::Ready(Some(end)),
            Some(ChildState::Local) => {
                run.waits_for(call.id(), WaitingFor::Child(key), cx.waker());
                // it may have ended between the two
                match run.state().children.get(&key) {
                    Some(ChildState::Local) => Poll::Pending,
                    Some(ChildState::Ended(end)) => Poll::Ready(Some(end.clone())),
                    Some(ChildState::Elsewhere) | None => Poll::Ready(None),
                }
            }
            Some(ChildState::Elsewhere) | None => Poll::Ready(None),
        }
    });
    let end = match signal.await {
        Some(end) => end,
        None => elsewhere(call, key).await,
    };
    if end.status == Status::Cancelled {
        unless_cancelled_too(call).await;
    }
    run.depends_on(end.lsn);
    run.state().children.remove(&key);
    crate::crash_point!("child end heard");
    call.deliver(CheckpointKind::Child, Payload::encode(&key.to_string())?, 0).await;
    output(call, key, end.status, end.outcome).await
}

/// Returns unless a cancel is recorded for the execution itself. The same one may have ended the child, and
/// that must not be taken for an outcome: it can be heard of before the execution's own turn comes.
async fn unless_cancelled_too(call: &Call) {
    let run = &call.run;
    let id = ExecutionId::Key(run.key);
    let record = call.ask(|| run.core.load(id.clone(), Detail::Full)).await;
    if record.is_some_and(|it| it.requests.contains(&RequestKind::Cancel)) {
        run.interrupt(Interrupt::Cancel(Failure::cancelled().into()));
        std::future::pending::<()>().await;
    }
}

/// Waits for the end of a child that does not run in this process, or did not a moment ago.
async fn elsewhere(call: &Call, key: Key) -> ChildEnd {
    let run = &call.run;
    // before the first look it may have ended: that is no reason yet to suspend
    let has_looked = AtomicBool::new(false);
    let waker = poll_fn(|cx| Poll::Ready(cx.waker().clone())).await;
    let has_not_ended = || {
        has_looked.store(true, SeqCst);
        run.waits_for(call.id(), WaitingFor::Child(key), &waker);
        // its end may have been told before somebody listened
        waker.wake_by_ref();
    };
    let signal = poll_fn(|cx| {
        if has_looked.load(SeqCst) {
            run.waits_for(call.id(), WaitingFor::Child(key), cx.waker());
        }
        match run.state().children.get(&key) {
            Some(ChildState::Ended(end)) => Poll::Ready(end.clone()),
            _ => Poll::Pending,
        }
    });
    let ended = async {
        // its Start may be on its way: before that is durable there is nothing to look at
        let Some(barrier) = run.barrier(true) else { std::future::pending().await };
        if let Outcome::Fenced | Outcome::Dropped = run.lane().durable(barrier).await {
            std::future::pending::<()>().await;
        }
        match run.core.until_terminal(key, &has_not_ended).await {
            Ok(Execution { status, outcome, .. }) => ChildEnd { status, outcome, lsn: Lsn(0) },
            Err(error) => call.park(error.to_string()).await,
        }
    };
    match select(std::pin::pin!(signal), std::pin::pin!(ended)).await {
        Either::Left((end, _)) | Either::Right((end, _)) => end,
    }
}

/// The output of a child whose end was recorded: from its row.
pub(super) async fn recorded<O: FromPayload>(
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
    let core = &call.run.core;
    let execution = match call.ask(|| core.load(ExecutionId::Key(key), Detail::Outcome)).await {
        Some(record) => record.execution,
        None => call.park(format!("the child {key} is not in the database any more")).await,
    };
    let (status, outcome) = if execution.status.is_terminal() {
        (execution.status, execution.outcome)
    } else {
        // somebody has resumed it: what it comes to now is its end
        let end = elsewhere(call, key).await;
        (end.status, end.outcome)
    };
    call.run.state().children.remove(&key);
    output(call, key, status, outcome).await
}

pub(super) async fn recorded_key(call: &Call, payload: &Payload) -> Key {
    match payload.decode::<String>().ok().and_then(|text| Key::from_text(&text)) {
        Some(key) => key,
        None => call.park("what is recorded is not a child's key".to_owned()).await,
    }
}

pub(super) async fn output<O: FromPayload>(
    call: &Call,
    key: Key,
    status: Status,
    outcome: Payload,
) -> Result<O, Failure> {
    let outcome = call.fetch_of(key, outcome).await;
    if status == Status::Completed {
        return match O::from_payload(&outcome) {
            Ok(output) => Ok(output),
            Err(error) => {
                let name = call.run.name_of(call.id());
                let error = error.of_value(|| format!("the output of child {key}, workflow {name:?},"));
                call.park(error.to_string()).await
            }
        };
    }
    Err(outcome.to_failure())
}
