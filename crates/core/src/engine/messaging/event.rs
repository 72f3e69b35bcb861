//! [`GetEventBuilder`]: a wait for an event of an execution, whichever process runs it.

use std::future::IntoFuture;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;

use crate::engine::Engine;
use crate::engine::handle::Handle;
use crate::error::Error;
use crate::key::Key;
use crate::payload::Payload;
use crate::runtime::inner::EngineInner;
use crate::runtime::messaging::events::check_event_name;
use crate::runtime::messaging::private_names::is_private;
use crate::runtime::run::chunks::fetch;
use crate::store::{Event, EventQuery};

/// A wait for an event. Made by [`Engine::get_event`] or [`Handle::get_event`].
#[must_use = "nothing is read before the builder is awaited"]
pub struct GetEventBuilder<T> {
    engine: Arc<EngineInner>,
    workflow_id: String,
    key: Option<Key>,
    name: Arc<str>,
    timeout: Option<Duration>,
    value: PhantomData<fn() -> T>,
}

impl Engine {
    /// Waits until the execution with this workflow_id has set the event of this name, and returns its value. If it was
    /// set several times, the call returns the value that was set last. The execution may run in any process, and may
    /// have ended.
    ///
    /// # Errors
    ///
    /// - [`Error::NotFound`] if no execution has this id.
    /// - [`Error::HasEnded`] if the execution has ended without setting the event.
    /// - [`Error::Decode`] if the value is not a `T`.
    pub fn get_event<T: DeserializeOwned>(
        &self,
        workflow_id: impl Into<String>,
        name: impl Into<Arc<str>>,
    ) -> GetEventBuilder<T> {
        GetEventBuilder::new(self.inner.clone(), workflow_id.into(), None, name.into())
    }

    /// Returns all events that an execution has set, in their order: also values that a later one of the same name has
    /// replaced.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`] if no execution has this id.
    pub async fn events(&self, workflow_id: &str) -> Result<Vec<Event>, Error> {
        self.inner.check_open()?;
        let execution = self.inner.find_setter(workflow_id).await?;
        let mut events = self.inner.event_loads.load(EventQuery { execution, name: None }).await?;
        events.retain(|event| !is_private(&event.name));
        for event in &mut events {
            event.value = fetch(&self.inner, execution, std::mem::take(&mut event.value)).await?;
        }
        Ok(events)
    }
}

impl<O> Handle<O> {
    /// Waits for an event of the execution: see [`Engine::get_event`].
    pub fn get_event<T: DeserializeOwned>(&self, name: impl Into<Arc<str>>) -> GetEventBuilder<T> {
        GetEventBuilder::new(self.engine().clone(), self.workflow_id(), Some(self.key()), name.into())
    }
}

impl<T> GetEventBuilder<T> {
    fn new(engine: Arc<EngineInner>, workflow_id: String, key: Option<Key>, name: Arc<str>) -> Self {
        Self { engine, workflow_id, key, name, timeout: None, value: PhantomData }
    }

    /// Ends the wait after this time. The call then returns `None`. With no time, the call returns the value that was set
    /// before, if any.
    pub fn timeout(self, timeout: Duration) -> GetEventWithinBuilder<T> {
        GetEventWithinBuilder(Self { timeout: Some(timeout), ..self })
    }

    async fn get(self) -> Result<Option<T>, Error>
    where
        T: DeserializeOwned,
    {
        let described = format!("event {:?} of execution {:?}", self.name, self.workflow_id);
        match self.payload().await? {
            Some(value) => value.decode().map(Some).map_err(|error| error.with_value(|| described)),
            None => Ok(None),
        }
    }

    /// Returns the encoded value, or `None` after the timeout.
    #[doc(hidden)]
    pub async fn payload(self) -> Result<Option<Payload>, Error> {
        let Self { engine, workflow_id, key, name, timeout, .. } = self;
        engine.check_open()?;
        check_event_name(&name)?;
        let setter = match key {
            Some(key) => key,
            None => engine.find_setter(&workflow_id).await?,
        };
        let event = engine.wait_for_event(setter, &workflow_id, &name, timeout).await?;
        match event {
            Some(event) => fetch(&engine, setter, event.value).await.map(Some),
            None => Ok(None),
        }
    }
}

/// A [`GetEventBuilder`] whose wait ends after a time.
#[must_use = "nothing is read before the builder is awaited"]
pub struct GetEventWithinBuilder<T>(GetEventBuilder<T>);

impl<T> GetEventWithinBuilder<T> {
    /// Returns the encoded value, or `None` after the timeout.
    #[doc(hidden)]
    pub async fn payload(self) -> Result<Option<Payload>, Error> {
        self.0.payload().await
    }
}

impl<T: DeserializeOwned + Send + 'static> IntoFuture for GetEventBuilder<T> {
    type Output = Result<T, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

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

impl<T: DeserializeOwned + Send + 'static> IntoFuture for GetEventWithinBuilder<T> {
    type Output = Result<Option<T>, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.0.get())
    }
}
