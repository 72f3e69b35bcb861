//! [`GetEvent`]: a durable call that waits for an event of another execution.

use std::future::IntoFuture;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;

use crate::clock::Timestamp;
use crate::error::Error;
use crate::failure::Failure;
use crate::key::Key;
use crate::payload::Payload;
use crate::runtime::inner::EngineInner;
use crate::runtime::messaging::events::{FoundEvent, check_event_name};
use crate::runtime::run::call::{Call, WaitingFor};
use crate::runtime::run::replay::CallKind;
use crate::store::{CheckpointKind, Event};
use crate::workflow::context::Context;
use crate::workflow::messaging::change::wait_for_change;
use crate::workflow::messaging::lookup::{find_other, search};
use crate::workflow::sleep::due_at_after;
use crate::workflow::step_execution::store_payload;

/// A durable call that waits for an event. Made by [`Context::get_event`].
#[must_use = "nothing is read before the call is awaited"]
pub struct GetEvent<'c, T> {
    context: &'c mut Context,
    workflow_id: String,
    name: Arc<str>,
    timeout: Option<Duration>,
    value: PhantomData<fn() -> T>,
}

impl Context {
    /// Waits durably until the execution with this workflow_id has set the event of this name, and returns its value. If
    /// it was set several times, the call returns the value that was set last. The value is recorded, so a replay returns
    /// the same one.
    ///
    /// # Errors
    ///
    /// The call fails if the execution does not exist, if it has ended without setting the event, or if the value is not
    /// a `T`.
    pub fn get_event<T: DeserializeOwned>(
        &mut self,
        workflow_id: impl Into<String>,
        name: impl Into<Arc<str>>,
    ) -> GetEvent<'_, T> {
        let (workflow_id, name) = (workflow_id.into(), name.into());
        GetEvent { context: self, workflow_id, name, timeout: None, value: PhantomData }
    }

    /// Begins the call that waits for an event. Takes the path of the call in any case.
    pub(crate) fn begin_get_event(&mut self, name: Arc<str>) -> Result<Call, Error> {
        let path = self.next_path();
        check_event_name(&name)?;
        Ok(Call::begin(&self.run, path, &name.into(), CallKind::GetEvent, None))
    }
}

impl<'c, T: DeserializeOwned + Send + 'static> GetEvent<'c, T> {
    /// Ends the wait after this time. The call then returns `None`.
    pub fn timeout(self, timeout: Duration) -> GetEventWithin<'c, T> {
        GetEventWithin(Self { timeout: Some(timeout), ..self })
    }

    async fn get(self) -> Result<Option<T>, Failure> {
        let call = self.context.begin_get_event(self.name).map_err(|error| error.to_failure())?;
        let Some(value) = get_event(&call, &self.workflow_id, self.timeout).await? else { return Ok(None) };
        value
            .decode::<T>()
            .map(Some)
            .map_err(|error| error.with_value(|| format!("an event of {:?}", self.workflow_id)).to_failure())
    }
}

/// A [`GetEvent`] whose wait ends after a time.
#[must_use = "nothing is read before the call is awaited"]
pub struct GetEventWithin<'c, T>(GetEvent<'c, T>);

impl<'c, T: DeserializeOwned + Send + 'static> IntoFuture for GetEvent<'c, T> {
    type Output = Result<T, Failure>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'c>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            match self.get().await? {
                Some(value) => Ok(value),
                // without a timeout, the wait ends with an event or an error
                None => std::future::pending().await,
            }
        })
    }
}

impl<'c, T: DeserializeOwned + Send + 'static> IntoFuture for GetEventWithin<'c, T> {
    type Output = Result<Option<T>, Failure>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'c>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.0.get())
    }
}

/// Runs a call that waits for an event. Returns the value, or `None` after the timeout.
pub(crate) async fn get_event(
    call: &Call,
    workflow_id: &str,
    timeout: Option<Duration>,
) -> Result<Option<Payload>, Failure> {
    if let Some(recorded) = call.wait_recorded().await {
        return match recorded.kind {
            CheckpointKind::EventRead => Ok(Some(call.fetch(recorded.outcome).await)),
            CheckpointKind::Failed => Err(recorded.outcome.to_failure()),
            _ => Ok(None),
        };
    }
    let run = &call.run;
    let until = timeout.map(|timeout| due_at_after(call, timeout));
    // a run that is suspended has a row
    run.stage_row();
    match wait_for_event(call, workflow_id, until).await {
        Ok(Some((setter, event))) => {
            let value = call.fetch_from(setter, event.value).await;
            let (stored, reserved) = store_payload(call, value.clone()).await;
            call.deliver(CheckpointKind::EventRead, stored, reserved).await;
            Ok(Some(value))
        }
        Ok(None) => {
            call.deliver(CheckpointKind::Timer, Payload::empty(), 0).await;
            Ok(None)
        }
        Err(error) => {
            let failure = error.to_failure();
            call.deliver_failure(&failure).await;
            Err(failure)
        }
    }
}

/// Waits for an event until a time; `None` if it was not set by then.
async fn wait_for_event(
    call: &Call,
    workflow_id: &str,
    until: Option<Timestamp>,
) -> Result<Option<(Key, Event)>, Error> {
    let run = &call.run;
    let engine = &run.engine;
    let setter = find_other(call, workflow_id, || engine.find_setter(workflow_id)).await?;
    let name: Arc<str> = run.call_name(call.id()).into();
    let (changes, ends) = (engine.change_watch.watch(setter), engine.completion_watch.watch(setter));
    loop {
        let (change, end) = (changes.next_change(), ends.next_change());
        match search(call, || engine.find_event(setter, &name)).await? {
            FoundEvent::Set(event) => return Ok(Some((setter, event))),
            FoundEvent::Ended(status) => {
                return Err(EngineInner::unset_event_error(workflow_id, &name, status));
            }
            FoundEvent::Pending => {}
        }
        // the end of an item without a row wakes no suspended execution
        let can_be_suspended = setter.item_index().is_none();
        let waiting_for = can_be_suspended.then(|| WaitingFor::Event { setter, name: name.clone(), until });
        let change_or_end = async {
            tokio::select! {
                () = change => {}
                () = end => {}
            }
        };
        if !wait_for_change(call, waiting_for, until, change_or_end).await {
            return Ok(None);
        }
    }
}
