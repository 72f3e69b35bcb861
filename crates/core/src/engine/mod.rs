//! [`Engine`]: what a program holds to run workflows on a store.

pub(crate) mod builder;
pub(crate) mod bulk;
pub(crate) mod client;
pub(crate) mod handle;
mod os_signals;
mod queues;
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
use crate::runtime::inner::Core;
use crate::runtime::lifecycle::ShutdownRequest;
use crate::store::{
    StoreInfo, RequestResult, DeadLetter, Detail, Execution, Filter, Page, Record, RequestKind, Store, WorkerOverview,
};

/// Runs workflows on a store. Cheap to clone; [`shutdown`](Engine::shutdown) ends it.
#[derive(Clone)]
pub struct Engine {
    pub(crate) core: Arc<Core>,
    _guard: Arc<Guard>,
}

/// Ends the engine when the last of its handles goes away.
struct Guard(Arc<Core>);

impl Drop for Guard {
    fn drop(&mut self) {
        let (done, _) = oneshot::channel();
        self.0.send_shutdown(ShutdownRequest { grace: Duration::from_secs(5), done });
    }
}

impl Engine {
    pub(crate) fn of(core: Arc<Core>) -> Self {
        Self { _guard: Arc::new(Guard(core.clone())), core }
    }

    /// A handle to the execution with this workflow_id, whoever started it.
    pub async fn get<O>(&self, workflow_id: &str) -> Result<Handle<O>, Error> {
        let execution = self.core.find(workflow_id, Detail::Outcome).await?.execution;
        let Execution { key, run_no, given_id, .. } = execution;
        Ok(Handle::of(self.core.clone(), key, given_id, |run| run.run_no == run_no))
    }

    /// Everything recorded of an execution.
    pub async fn show(&self, workflow_id: &str) -> Result<Record, Error> {
        self.core.find(workflow_id, Detail::Full).await
    }

    /// The bytes behind a payload of an execution: itself, or fetched if it is stored aside.
    pub async fn value(&self, execution: Key, payload: Payload) -> Result<Payload, Error> {
        crate::runtime::run::chunks::fetch(&self.core, execution, payload).await
    }

    /// Executions that match, newest first: at most `filter.limit` of them (50 by default); the next page
    /// comes with `filter.after` set to the last key of this one. A child that is called is as old as its parent.
    pub async fn list(&self, filter: &Filter) -> Result<Page, Error> {
        filter.check()?;
        Ok(self.core.store.list(filter).await?)
    }

    /// How many executions match, whatever `filter.limit` says.
    pub async fn count(&self, filter: &Filter) -> Result<u64, Error> {
        filter.check()?;
        let filter = Filter { limit: 0, ..filter.clone() };
        Ok(self.core.store.list(&filter).await?.total.unwrap_or(0))
    }

    /// Who works on the database, and what waits for them.
    pub async fn survey(&self) -> Result<WorkerOverview, Error> {
        Ok(self.core.store.workers(u64::MAX).await?)
    }

    /// Returns at most `limit` dead letters, the latest first: rows of the inbox that could not become executions.
    pub async fn dead_letters(&self, limit: usize) -> Result<Vec<DeadLetter>, Error> {
        Ok(self.core.store.dead_letters(limit as u64).await?)
    }

    /// Cancels an execution and the children it waits for. `Done`: it has ended. `Requested`: that is durable, and it neither
    /// completes nor fails any more; the worker that runs it stops it with the flush before its next body, or at its next
    /// look. `Declined`: it had ended before.
    pub async fn cancel(&self, workflow_id: &str) -> Result<RequestResult, Error> {
        self.core.request(workflow_id, RequestKind::Cancel).await
    }

    /// Continues an execution that is parked, failed or cancelled. What was recorded is kept, but the failures of steps that
    /// ended an execution, after which nothing else was recorded: those steps are tried again.
    pub async fn resume(&self, workflow_id: &str) -> Result<RequestResult, Error> {
        self.core.request(workflow_id, RequestKind::Resume).await
    }

    /// What the store is.
    pub fn about(&self) -> &StoreInfo {
        self.core.store.info()
    }

    /// The store, with its counters.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.core.store
    }

    /// What the lanes hold at the moment.
    pub fn load(&self) -> Vec<LaneLoad> {
        self.core.lanes().iter().map(Lane::load).collect()
    }

    /// How many executions run in this process.
    pub fn running(&self) -> usize {
        self.core.running()
    }

    /// Ends the engine: accepts nothing more, hands back what runs (the next engine continues it), flushes
    /// everything staged, gives up ownership. Waits `grace` for a database that does not answer, and a few seconds more to
    /// give up.
    ///
    /// Bodies that are under way are dropped at their next `await`, and run again in the next engine; it does
    /// not wait for executions to end. Without it, the end of the process is a crash like any other: nothing
    /// acknowledged is lost, and another worker takes over when this one is seen to be gone. Dropping the
    /// last clone of the engine begins it in the background.
    pub async fn shutdown(&self, grace: Duration) -> Result<(), Error> {
        self.core.shut_down(grace).await
    }

    /// Ends the engine as a deploy should: takes nothing new to run, lets what runs here come to its end, and
    /// [shuts down](Engine::shutdown) when nothing runs any more, or `grace` is over: what runs then is handed
    /// back, and other workers take over at once.
    ///
    /// What is started here meanwhile is accepted, and waits for another worker.
    pub async fn drain(&self, grace: Duration) -> Result<(), Error> {
        self.core.drain(grace).await
    }

    /// Waits until the engine has ended. Returns an error if the engine has ended by itself, as its program is too old for
    /// the database.
    #[doc(hidden)]
    pub async fn ended(&self) -> Result<(), Error> {
        self.core.stopped().await;
        match self.core.check_open() {
            Err(error @ Error::NewerSchema { .. }) => Err(error),
            _ => Ok(()),
        }
    }

    /// The first part of [`Engine::drain`] alone: false if something still runs when `grace` is over.
    #[doc(hidden)]
    pub async fn drained(&self, grace: Duration) -> bool {
        self.core.drained(grace).await
    }
}
