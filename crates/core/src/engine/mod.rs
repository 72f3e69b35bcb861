//! [`Engine`]: the API with which programs run workflows on a store.

pub(crate) mod batch;
pub(crate) mod builder;
pub(crate) mod bulk;
pub(crate) mod client;
pub(crate) mod handle;
pub(crate) mod messaging;
mod os_signals;
mod queues;
pub(crate) mod schedules;
mod search;
pub(crate) mod start;
pub(crate) mod start_future;
pub(crate) mod submission;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::commit::{Lane, LaneLoad};
use crate::engine::handle::Handle;
use crate::error::Error;
use crate::key::Key;
use crate::payload::Payload;
use crate::runtime::inner::EngineInner;
use crate::runtime::lifecycle::ShutdownRequest;
use crate::store::{
    DeadLetter, Detail, Execution, Filter, Page, Record, RequestKind, RequestResult, Store, StoreInfo,
    WorkerOverview,
};
use crate::text::quote;

/// An engine that runs workflows on a store. Cheap to clone; [`shutdown`](Engine::shutdown) ends it.
#[derive(Clone)]
pub struct Engine {
    pub(crate) inner: Arc<EngineInner>,
    _guard: Arc<ShutdownGuard>,
}

/// A guard that shuts the engine down when its last clone is dropped.
struct ShutdownGuard(Arc<EngineInner>);

impl Drop for ShutdownGuard {
    fn drop(&mut self) {
        let (done, _) = oneshot::channel();
        self.0.send_shutdown(ShutdownRequest { grace: Duration::from_secs(5), done });
    }
}

impl Engine {
    pub(crate) fn new(inner: Arc<EngineInner>) -> Self {
        Self { _guard: Arc::new(ShutdownGuard(inner.clone())), inner }
    }

    /// Returns a handle to the execution with this workflow_id, whichever process started the execution.
    pub async fn get<O>(&self, workflow_id: &str) -> Result<Handle<O>, Error> {
        let execution = self.inner.find(workflow_id, Detail::Outcome).await?.execution;
        let Execution { key, run_no, given_id, .. } = execution;
        Ok(Handle::attach(self.inner.clone(), key, given_id, |run| run.run_no == run_no))
    }

    /// Returns a handle to the execution with this workflow_id. Fails with [`Error::Invalid`] if the registered name of
    /// its workflow is not `workflow`.
    pub async fn get_of<O>(&self, workflow_id: &str, workflow: &str) -> Result<Handle<O>, Error> {
        let execution = self.inner.find(workflow_id, Detail::Outcome).await?.execution;
        if *execution.workflow != *workflow {
            let reason = format!(
                "execution {} is of workflow {:?}, not {workflow:?}; get it with its own workflow",
                quote(workflow_id),
                &*execution.workflow
            );
            return Err(Error::Invalid { input: "workflow", reason });
        }
        let Execution { key, run_no, given_id, .. } = execution;
        Ok(Handle::attach(self.inner.clone(), key, given_id, |run| run.run_no == run_no))
    }

    /// Returns the whole record of an execution.
    pub async fn show(&self, workflow_id: &str) -> Result<Record, Error> {
        self.inner.find(workflow_id, Detail::Full).await
    }

    /// Returns a recorded payload of an execution with its bytes, which are loaded if they are stored as chunks.
    pub async fn load_value(&self, execution: Key, payload: Payload) -> Result<Payload, Error> {
        crate::runtime::run::chunks::fetch(&self.inner, execution, payload).await
    }

    /// Returns the executions that match, newest first, and at most `filter.limit` of them (50 by default). For the
    /// next page, set `filter.after` to the last key of this page. In this order, a child that its parent starts and
    /// awaits in one call is as old as the parent.
    pub async fn list(&self, filter: &Filter) -> Result<Page, Error> {
        filter.check()?;
        Ok(self.inner.store.list(filter).await?)
    }

    /// Counts the executions that match, regardless of `filter.limit`.
    pub async fn count(&self, filter: &Filter) -> Result<u64, Error> {
        filter.check()?;
        let filter = Filter { limit: 0, ..filter.clone() };
        Ok(self.inner.store.list(&filter).await?.total.unwrap_or(0))
    }

    /// Lists the workers and clients on the database, and the executions that wait for a worker.
    pub async fn workers(&self) -> Result<WorkerOverview, Error> {
        Ok(self.inner.store.workers(u64::MAX, true).await?.without_built_in())
    }

    /// Returns at most `limit` dead letters, the latest first: rows of the inbox that could not become executions.
    pub async fn dead_letters(&self, limit: usize) -> Result<Vec<DeadLetter>, Error> {
        Ok(self.inner.store.dead_letters(limit as u64).await?)
    }

    /// Cancels an execution and the children it waits for.
    ///
    /// - `Done`: the execution has ended.
    /// - `Pending`: the request is durable, and the execution neither completes nor fails any more. Its worker stops
    ///   the execution at the flush before the next body, or at the worker's next heartbeat.
    /// - `NotApplicable`: the execution had ended before.
    pub async fn cancel(&self, workflow_id: &str) -> Result<RequestResult, Error> {
        self.inner.request(workflow_id, RequestKind::Cancel).await
    }

    /// Continues an execution that is parked, failed or cancelled, from its record. If the execution failed, the
    /// failed steps with which its record ends are deleted and tried again. The rest of the record is kept. If the
    /// execution is not parked yet, but a pause is pending, the resume withdraws the pause.
    pub async fn resume(&self, workflow_id: &str) -> Result<RequestResult, Error> {
        self.inner.request(workflow_id, RequestKind::Resume).await
    }

    /// Parks an execution until it is [resumed](Engine::resume).
    ///
    /// - `Done`: the execution is parked.
    /// - `Pending`: the request is durable. The worker that runs the execution receives it with a heartbeat. From then
    ///   on no further body begins. The worker parks the execution when all bodies that run have ended and are recorded.
    ///   The request has no effect if the execution ends before.
    /// - `NotApplicable`: the execution is scheduled, or has ended.
    ///
    /// Children that the execution has started continue. A resume withdraws a pending pause.
    pub async fn pause(&self, workflow_id: &str) -> Result<RequestResult, Error> {
        self.inner.request(workflow_id, RequestKind::Pause).await
    }

    /// Returns the static facts about the store.
    pub fn store_info(&self) -> &StoreInfo {
        self.inner.store.info()
    }

    /// Returns the store, with its counters.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.inner.store
    }

    /// Returns the present load of each lane.
    pub fn lane_load(&self) -> Vec<LaneLoad> {
        self.inner.lanes().iter().map(Lane::load).collect()
    }

    /// Returns the number of executions that run in this process.
    pub fn running_count(&self) -> usize {
        self.inner.running_count()
    }

    /// Shuts the engine down: it accepts nothing more, requeues running executions, flushes everything staged, and ends
    /// its registration. The next engine continues the requeued executions. If the database is unreachable, the method
    /// waits for it up to `grace`, and then a few seconds more to stop.
    ///
    /// The method does not wait for executions to end. Running bodies are dropped at their next `await`, and the next
    /// engine runs them again. Without a shutdown, the end of the process is a crash like any other. Nothing
    /// acknowledged is lost, and another worker takes over when it finds this worker dead. Dropping the last clone of
    /// the engine begins a shutdown in the background.
    pub async fn shutdown(&self, grace: Duration) -> Result<(), Error> {
        self.inner.shut_down(grace).await
    }

    /// Ends the engine as a deploy should: begins no further execution, lets running ones end, then calls
    /// [`shutdown`](Engine::shutdown). The shutdown begins when nothing runs any more, or when `grace` has passed.
    /// Executions that still run then are requeued, and other workers claim them at once.
    ///
    /// Until the shutdown, the engine accepts starts from this process; their executions wait for another worker.
    pub async fn drain(&self, grace: Duration) -> Result<(), Error> {
        self.inner.drain(grace).await
    }

    /// Waits until the engine has ended. Returns an error if the engine has ended by itself because its program is
    /// too old for the database.
    #[doc(hidden)]
    pub async fn wait_until_ended(&self) -> Result<(), Error> {
        self.inner.wait_stopped().await;
        match self.inner.check_open() {
            Err(error @ Error::NewerSchema { .. }) => Err(error),
            _ => Ok(()),
        }
    }

    /// Does only the first part of [`Engine::drain`]: begins no further execution, and waits until nothing runs any
    /// more. Returns false if executions still run when `grace` has passed.
    #[doc(hidden)]
    pub async fn drain_running(&self, grace: Duration) -> bool {
        self.inner.drain_running(grace).await
    }
}
