//! Durable sleeps.

use std::time::Duration;

use crate::payload::Payload;
use crate::runtime::run::call::Call;
use crate::runtime::run::replay::CallKind;
use crate::store::CheckpointKind;
use crate::workflow::context::Context;

impl Context {
    /// Waits durably for `duration`, and never less by the database's clock. Time that passes during a crash counts.
    /// While all branches wait for long, the execution takes no memory.
    pub async fn sleep(&mut self, duration: Duration) {
        let call = self.begin_sleep();
        sleep_for(&call, duration).await;
    }

    pub(crate) fn begin_sleep(&mut self) -> Call {
        let path = self.next_path();
        Call::begin(&self.run, path, &"sleep".into(), CallKind::Sleep, None)
    }
}

/// Carries out a sleep whose call has begun.
pub(crate) async fn sleep_for(call: &Call, duration: Duration) {
    if call.recorded().await.is_some() {
        return;
    }
    let run = &call.run;
    let path = call.path.clone();
    let armed = { run.state().armed.iter().find(|armed| armed.path == path).map(|armed| armed.due_at) };
    if let Some(due_at) = armed {
        // so that the recorded duration of the sleep is complete, even after a suspension
        run.began_at(call.id(), due_at.minus(duration));
    }
    let due_at = armed.unwrap_or_else(|| run.core.now().plus(duration));
    call.until(due_at).await;
    call.deliver(CheckpointKind::Timer, Payload::empty(), 0).await;
}
