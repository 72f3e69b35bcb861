//! The wait for a change that may end a call: a message or an event has come, or the time is over.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use futures_util::future::OptionFuture;

use crate::clock::Timestamp;
use crate::runtime::run::call::{CLOCK_RECHECK_INTERVAL, Call, WaitingFor};

/// Waits for a change until a time. Returns false if the time is over. With `waiting_for`, the run may be suspended during
/// the wait. The wait may also end without a change.
pub(super) async fn wait_for_change(
    call: &Call,
    waiting_for: Option<WaitingFor>,
    until: Option<Timestamp>,
    change: impl Future<Output = ()>,
) -> bool {
    let run = &call.run;
    let now = run.engine.store_clock.earliest_now();
    if until.is_some_and(|until| now >= until) {
        return false;
    }
    if let Some(waiting_for) = waiting_for {
        let waker = poll_fn(|cx| Poll::Ready(cx.waker().clone())).await;
        run.set_waiting_for(call.id(), waiting_for, &waker);
    }
    let pause = until.map(|until| until.since(now).min(CLOCK_RECHECK_INTERVAL));
    let timer = pin!(OptionFuture::from(pause.map(tokio::time::sleep)));
    tokio::select! {
        () = change => {}
        Some(()) = timer => {}
    }
    run.clear_waiting_for(call.id());
    true
}
