//! [`Handle`]: a reference to an execution, whichever process runs it.

use std::fmt;
use std::future::poll_fn;
use std::marker::PhantomData;
use std::sync::Arc;
use std::task::Poll;

use serde::de::DeserializeOwned;

use crate::error::Error;
use crate::key::Key;
use crate::payload::FromPayload;
use crate::runtime::inner::{EngineInner, missing_error};
use crate::runtime::outcome::{decode_outcome, parked_error};
use crate::runtime::run::{Conclusion, Run};
use crate::store::{RequestKind, RequestResult, Status};
use crate::text::quote;

/// A reference to an execution whose output is an `O`.
pub struct Handle<O> {
    key: Key,
    given_id: Option<Arc<str>>,
    location: Location,
    output: PhantomData<fn() -> O>,
}

/// The place where the execution was when the handle was made. Both variants give access to the engine.
#[derive(Clone)]
enum Location {
    Local(Arc<Run>),
    Remote(Arc<EngineInner>),
}

impl<O> Handle<O> {
    /// Returns a handle that waits for the run in this process, if `is_same_run` confirms that the database reports the
    /// same run. Without this check the run may be out of date. Its execution may have ended and been resumed before
    /// this process received the end.
    pub(crate) fn attach(
        engine: Arc<EngineInner>,
        key: Key,
        given_id: Option<Arc<str>>,
        is_same_run: impl FnOnce(&Run) -> bool,
    ) -> Self {
        let run = engine.runs.get(key).filter(|run| is_same_run(run));
        let location = run.map_or_else(|| Location::Remote(engine), Location::Local);
        Self { key, given_id, location, output: PhantomData }
    }

    pub(crate) fn local(run: Arc<Run>, given_id: Option<Arc<str>>) -> Self {
        Self { key: run.key, given_id, location: Location::Local(run), output: PhantomData }
    }

    /// Returns a handle that does not wait for a run in this process.
    pub(crate) fn remote(engine: Arc<EngineInner>, key: Key, given_id: Option<Arc<str>>) -> Self {
        Self { key, given_id, location: Location::Remote(engine), output: PhantomData }
    }

    pub(crate) fn engine(&self) -> &Arc<EngineInner> {
        match &self.location {
            Location::Local(run) => &run.engine,
            Location::Remote(engine) => engine,
        }
    }

    /// Returns the execution's workflow_id.
    pub fn workflow_id(&self) -> String {
        self.key.workflow_id(self.given_id.as_deref())
    }

    /// Returns the execution's key.
    pub fn key(&self) -> Key {
        self.key
    }

    /// Reads the execution's present status from the database.
    pub async fn status(&self) -> Result<Status, Error> {
        self.engine().check_open()?;
        let execution = self.engine().load_execution(self.key).await?;
        execution
            .map(|execution| execution.status)
            .ok_or_else(|| Error::NotFound { workflow_id: self.workflow_id() })
    }

    /// Cancels the execution; see [`Engine::cancel`](crate::Engine::cancel).
    pub async fn cancel(&self) -> Result<RequestResult, Error> {
        self.request(RequestKind::Cancel).await
    }

    /// Continues the execution; see [`Engine::resume`](crate::Engine::resume).
    pub async fn resume(&self) -> Result<RequestResult, Error> {
        self.request(RequestKind::Resume).await
    }

    /// Parks the execution; see [`Engine::pause`](crate::Engine::pause).
    pub async fn pause(&self) -> Result<RequestResult, Error> {
        self.request(RequestKind::Pause).await
    }

    /// Stages a request by key, because another execution may have this key's text as its given workflow_id.
    async fn request(&self, kind: RequestKind) -> Result<RequestResult, Error> {
        let engine = self.engine();
        engine.check_open()?;
        let result = engine.request_by_key(self.key, kind).await?;
        result.ok_or_else(|| missing_error(self.key, self.workflow_id()))
    }
}

impl<O: DeserializeOwned> Handle<O> {
    /// Waits until the execution ends and returns its output, which is then durable.
    ///
    /// Fails with [`Error::Failed`] if the workflow failed, and with [`Error::Cancelled`] if the execution was
    /// cancelled. Fails with [`Error::Parked`] if the execution is parked, and with [`Error::Decode`] if its output is
    /// not an `O`.
    pub async fn result(&self) -> Result<O, Error> {
        self.output().await
    }
}

impl<O> Handle<O> {
    pub(crate) async fn output<V: FromPayload>(&self) -> Result<V, Error> {
        if let Location::Local(run) = &self.location {
            let conclusion = poll_fn(|cx| match run.conclusion_or_register(cx.waker()) {
                Some(conclusion) => Poll::Ready(conclusion),
                None => Poll::Pending,
            })
            .await;
            if let Conclusion::Ended(status, outcome) = conclusion {
                let decoded = decode_outcome(self.engine(), self.key, status, outcome).await;
                return decoded.map_err(|error| self.with_output_name(error, &run.definition.name));
            }
        }
        if self.key.is_batch() {
            let reason =
                format!("{} is a batch, which has no output; use `get_batch`", quote(&self.workflow_id()));
            return Err(Error::Invalid { input: "workflow_id", reason });
        }
        let execution = Box::pin(self.engine().wait_ended_or_parked(self.key)).await?;
        if execution.is_parked {
            return Err(parked_error(execution.workflow_id(), &execution.outcome));
        }
        decode_outcome(self.engine(), self.key, execution.status, execution.outcome)
            .await
            .map_err(|error| self.with_output_name(error, &execution.workflow))
    }

    fn with_output_name(&self, error: Error, workflow: &str) -> Error {
        error.with_value(|| {
            format!("the output of execution {:?}, workflow {workflow:?},", self.workflow_id())
        })
    }
}

impl<O> fmt::Debug for Handle<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Handle({:?})", self.workflow_id())
    }
}

impl<O> Clone for Handle<O> {
    fn clone(&self) -> Self {
        Self {
            key: self.key,
            given_id: self.given_id.clone(),
            location: self.location.clone(),
            output: PhantomData,
        }
    }
}
