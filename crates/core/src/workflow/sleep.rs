//! Durable sleeps.

use std::time::Duration;

use crate::clock::Timestamp;
use crate::payload::Payload;
use crate::runtime::run::call::Call;
use crate::runtime::run::replay::CallKind;
use crate::store::CheckpointKind;
use crate::workflow::context::Context;

impl Context {
    /// Waits durably for at least `duration` by the database's clock. The time between a crash and the recovery counts.
    /// While all branches wait for a long time, the execution takes no memory.
    pub async fn sleep(&mut self, duration: Duration) {
        let call = self.begin_sleep();
        sleep_for(&call, duration).await;
    }

    pub(crate) fn begin_sleep(&mut self) -> Call {
        let path = self.next_path();
        Call::begin(&self.run, path, &"sleep".into(), CallKind::Sleep, None)
    }
}

/// Runs a sleep whose call has begun.
pub(crate) async fn sleep_for(call: &Call, duration: Duration) {
    if call.wait_recorded().await.is_some() {
        return;
    }
    finish_sleep(call, due_at_after(call, duration)).await;
}

/// Runs a sleep, whose call has begun, until `due_at`. A due time that was recorded before a suspension replaces
/// `due_at`.
pub(crate) async fn sleep_until(call: &Call, due_at: Timestamp) {
    if call.wait_recorded().await.is_none() {
        finish_sleep(call, recorded_due_at(call).unwrap_or(due_at)).await;
    }
}

/// Returns the time at which a call ends that begins now and lasts this long. A due time that was recorded before a
/// suspension counts instead.
pub(crate) fn due_at_after(call: &Call, duration: Duration) -> Timestamp {
    let run = &call.run;
    match recorded_due_at(call) {
        Some(due_at) => {
            // with this time, the recorded duration covers the whole wait, even after a suspension
            run.set_call_begun_at(call.id(), due_at.minus(duration));
            due_at
        }
        None => run.engine.now().plus(duration),
    }
}

/// Returns the due time that was recorded for this sleep before a suspension; `None` if there is none.
fn recorded_due_at(call: &Call) -> Option<Timestamp> {
    call.run.state().pending_sleeps.iter().find(|sleep| sleep.path == call.path).map(|sleep| sleep.due_at)
}

async fn finish_sleep(call: &Call, due_at: Timestamp) {
    call.sleep_until(due_at).await;
    call.deliver(CheckpointKind::Timer, Payload::empty(), 0).await;
}
