//! [`SetEvent`]: a durable call that sets an event of its execution.

use std::future::IntoFuture;
use std::pin::Pin;
use std::sync::Arc;

use crate::error::Error;
use crate::failure::Failure;
use crate::payload::Payload;
use crate::runtime::messaging::events::check_event_name;
use crate::runtime::run::call::Call;
use crate::runtime::run::replay::CallKind;
use crate::store::CheckpointKind;
use crate::workflow::context::Context;
use crate::workflow::step_execution::{check_size, store_payload};

/// A durable call that sets an event. Made by [`Context::set_event`].
#[must_use = "nothing is set before the call is awaited"]
pub struct SetEvent<'c> {
    context: &'c mut Context,
    name: Arc<str>,
    value: Result<Payload, Error>,
}

impl Context {
    /// Sets the event of this name: anyone can read its value by [`Engine::get_event`](crate::Engine::get_event), while
    /// the execution runs and after its end. A later value of the same name replaces the value; the record of the
    /// execution keeps both. A replay does not set the event again.
    ///
    /// # Errors
    ///
    /// The call fails if no event can have the name, or if the value is too large or cannot be encoded.
    pub fn set_event<T: serde::Serialize + ?Sized>(
        &mut self,
        name: impl Into<Arc<str>>,
        value: &T,
    ) -> SetEvent<'_> {
        SetEvent { context: self, name: name.into(), value: Payload::encode(value) }
    }

    /// Begins the call that sets an event. Takes the path of the call in any case.
    pub(crate) fn begin_set_event(&mut self, name: Arc<str>) -> Result<Call, Error> {
        let path = self.next_path();
        check_event_name(&name)?;
        Ok(Call::begin(&self.run, path, &name.into(), CallKind::SetEvent, None))
    }
}

impl<'c> IntoFuture for SetEvent<'c> {
    type Output = Result<(), Failure>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'c>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let call = self.context.begin_set_event(self.name).map_err(|error| error.to_failure())?;
            set_event(&call, self.value).await
        })
    }
}

/// Runs a call that sets an event.
pub(crate) async fn set_event(call: &Call, value: Result<Payload, Error>) -> Result<(), Failure> {
    if let Some(recorded) = call.wait_recorded().await {
        return match recorded.kind {
            CheckpointKind::Failed => Err(recorded.outcome.to_failure()),
            _ => Ok(()),
        };
    }
    match value.and_then(|value| check_size(call, "the value of event", value)) {
        Ok(value) => {
            // an event is found by the row of its execution
            call.run.stage_row();
            let (value, reserved) = store_payload(call, value).await;
            call.deliver(CheckpointKind::Event, value, reserved).await;
            Ok(())
        }
        Err(error) => {
            let failure = error.to_failure();
            call.deliver_failure(&failure).await;
            Err(failure)
        }
    }
}
