//! [`EngineBuilder`]: an engine's store, workflows, queues and options, before it is opened.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::commit::{DEFAULT_STAGED_BYTES, Lane};
use crate::engine::Engine;
use crate::engine::queues::declare_queue;
use crate::error::Error;
use crate::name_checks::check_text;
use crate::payload::DEFAULT_VALUE_LIMIT;
use crate::queue::{OnConflict, Queue, check_queue_name};
use crate::runtime::commit_observer::EngineObserver;
use crate::runtime::definition::Definitions;
use crate::runtime::inner::{EngineInner, EngineOptions};
use crate::schedule::{Schedule, schedule_workflow};
use crate::store::{GraphRow, Store, StoreError, WorkerInfo};
use crate::text::quote;
use crate::workflow::Workflow;
use crate::workflow::messaging::send_workflow;

/// Maximum length of an app_version, in bytes.
const APP_VERSION_LIMIT: usize = 255;

/// A builder for an [`Engine`]; [`open`](EngineBuilder::open) opens it.
pub struct EngineBuilder {
    store: Arc<dyn Store>,
    options: EngineOptions,
    definitions: Definitions,
    info: WorkerInfo,
    queues: Vec<(Queue, OnConflict)>,
    schedules: Vec<(Schedule, OnConflict)>,
    error: Option<Error>,
}

impl Engine {
    /// Returns a builder for an engine on `store`.
    pub fn builder(store: Arc<dyn Store>) -> EngineBuilder {
        EngineBuilder {
            store,
            options: EngineOptions {
                max_running: 10_000,
                max_threads: None,
                max_recoveries: 10,
                suspend_after: Duration::from_secs(5),
                value_limit: DEFAULT_VALUE_LIMIT,
                staged_bytes: DEFAULT_STAGED_BYTES,
            },
            definitions: Definitions::default(),
            info: WorkerInfo { host: host_name(), pid: std::process::id(), ..WorkerInfo::default() },
            queues: Vec::new(),
            schedules: Vec::new(),
            error: None,
        }
    }
}

/// Returns the name of this machine.
fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

impl EngineBuilder {
    /// Registers a workflow: the engine may start executions of the workflow, and claims them.
    #[must_use]
    pub fn register<I, O>(mut self, workflow: &Workflow<I, O>) -> Self {
        if let Err(error) = self.definitions.register(&workflow.definition) {
            self.error.get_or_insert(error);
        }
        self
    }

    /// Declares a queue. Opening the engine stores the queue with these limits for all processes. If the queue is
    /// stored already, these limits replace the stored ones.
    #[must_use]
    pub fn queue(self, queue: Queue) -> Self {
        self.declare_queue(queue, OnConflict::default())
    }

    /// Declares a queue, with a policy for a queue that is stored already with other limits.
    #[must_use]
    pub fn declare_queue(mut self, queue: Queue, on_conflict: OnConflict) -> Self {
        self.queues.push((queue, on_conflict));
        self
    }

    /// Declares a schedule. Opening the engine stores the schedule; see [`Engine::set_schedule`]. If it is stored already,
    /// these values replace the stored ones.
    #[must_use]
    pub fn schedule(self, schedule: Schedule) -> Self {
        self.declare_schedule(schedule, OnConflict::default())
    }

    /// Declares a schedule, with a policy for a schedule that is stored already with other values.
    #[must_use]
    pub fn declare_schedule(mut self, schedule: Schedule, on_conflict: OnConflict) -> Self {
        self.schedules.push((schedule, on_conflict));
        self
    }

    /// Sets the queues from which this engine claims executions; all queues by default. Executions without a queue of
    /// their own wait in [`DEFAULT_QUEUE`](crate::queue::DEFAULT_QUEUE).
    #[must_use]
    pub fn serve_queues<S: AsRef<str>>(mut self, queues: impl IntoIterator<Item = S>) -> Self {
        let queues: Vec<Arc<str>> = queues.into_iter().map(|name| name.as_ref().into()).collect();
        if let Some(error) = queues.iter().find_map(|name| check_queue_name(name).err()) {
            self.error.get_or_insert(error);
        }
        self.info.queues = Some(queues.into());
        self
    }

    /// Sets the maximum number of executions that run at a time in this process. Further ones wait in the database.
    /// 10,000 by default.
    #[must_use]
    pub fn max_running(mut self, executions: usize) -> Self {
        self.options.max_running = executions;
        self
    }

    /// Sets the version of the program's code. An execution gets the version of the engine that starts it. Workers with
    /// a version run the executions of this version and those without a version. Workers without a version run all
    /// executions. By default there is no version, so new code continues the executions that older code began.
    #[must_use]
    pub fn app_version(mut self, version: impl AsRef<str>) -> Self {
        match check_text("app_version", version.as_ref(), APP_VERSION_LIMIT) {
            Ok(()) => self.info.app_version = Some(version.as_ref().into()),
            Err(error) => {
                self.error.get_or_insert(error);
            }
        }
        self
    }

    /// Makes the engine a client, which runs no executions.
    #[must_use]
    pub(crate) fn run_nothing(mut self) -> Self {
        self.info.is_client = true;
        self
    }

    /// Sets how often an execution in quarantine is tried alone before it ends as failed. 10 by default. An execution
    /// enters quarantine when its workers have died three times in a row, without a new checkpoint or attempt in
    /// between.
    #[must_use]
    pub fn max_recoveries(mut self, recoveries: u32) -> Self {
        self.options.max_recoveries = recoveries;
        self
    }

    /// Sets the maximum number of executions that hold a thread at a time, at least 1. The option is for bindings whose
    /// code runs in threads ([`new_guest`](crate::Workflow::new_guest)). The worker claims no more of these executions
    /// than its threads can begin soon, and leaves the others to other workers. No limit by default.
    #[must_use]
    pub fn max_threads(mut self, threads: usize) -> Self {
        self.options.max_threads = Some(threads);
        self
    }

    /// Suspends an execution, which frees its memory, when all of its branches wait for longer than `wait`. 5 s by
    /// default.
    #[must_use]
    pub fn suspend_after(mut self, wait: Duration) -> Self {
        self.options.suspend_after = wait;
        self
    }

    /// Sets the maximum size of an input, a step's value or an output, in encoded bytes. 256 MiB by default.
    #[must_use]
    pub fn value_limit(mut self, bytes: usize) -> Self {
        self.options.value_limit = bytes;
        self
    }

    /// Sets how many bytes may be staged per lane before callers and steps have to wait. 64 MiB by default. A value
    /// larger than this number waits until nothing else is staged. Inputs, values and outputs count; attributes, failed
    /// attempts and requests do not.
    #[must_use]
    pub fn staged_bytes(mut self, bytes: usize) -> Self {
        self.options.staged_bytes = bytes;
        self
    }

    /// Opens the engine: registers its worker, and recovers the executions of dead workers. The method must be called
    /// in a tokio runtime, which then runs the workflows.
    ///
    /// The worker at once claims ready and due executions of the registered workflows, whichever process started them.
    /// Without registered workflows the worker claims nothing: such an engine only reads, cancels and resumes.
    pub async fn open(self) -> Result<Engine, Error> {
        if let Some(error) = self.error {
            return Err(error);
        }
        self.options.check()?;
        check_declared_queues(&self.queues)?;
        let Self { store, options, mut definitions, mut info, queues: declared, schedules, .. } = self;
        if !info.is_client && !definitions.is_empty() {
            definitions.register(&schedule_workflow().definition)?;
            definitions.register(&send_workflow().definition)?;
        }
        info.engine = env!("CARGO_PKG_VERSION").to_owned();
        info.workflows = definitions.names();
        let lanes = store.info().lanes.max(1);
        for (queue, on_conflict) in &declared {
            declare_queue(&*store, queue, *on_conflict).await?;
        }
        store_graphs(&*store, definitions.graphs()).await.map_err(opening_error)?;
        // lanes come first, then their slow lanes, then one lane for claims
        let claim_lane = lanes * 2;
        let registering_at = tokio::time::Instant::now();
        let registering = store.clone();
        let registered_info = info.clone();
        let registration =
            run_on_own_thread(async move { registering.register(claim_lane + 1, &registered_info).await })
                .await?;
        let registration = registration.map_err(opening_error)?;
        let runtime = tokio::runtime::Handle::current();
        let engine = EngineInner::new(
            store.clone(),
            options,
            definitions,
            info,
            registration,
            registering_at,
            runtime.clone(),
        );
        for (queue, _) in &declared {
            engine.known_queues.add(&queue.name);
        }
        let mut opened_lanes = Vec::new();
        let mut lane_ends = Vec::new();
        crate::crash_point!("engine registered");
        for number in 0..lanes {
            let observer = Arc::new(EngineObserver(Arc::downgrade(&engine)));
            let (lane, end) = Lane::open(
                number,
                lanes + number,
                store.clone(),
                registration,
                options.staged_bytes,
                runtime.clone(),
                observer,
            )?;
            opened_lanes.push(lane);
            lane_ends.push(end);
        }
        let _ = engine.lanes.set(opened_lanes);
        let (shutdown, receiver) = oneshot::channel();
        engine.set_shutdown_sender(shutdown);
        crate::worker::spawn(engine.clone(), claim_lane, lane_ends, receiver)?;
        engine.end_with_runtime();
        tracing::info!(
            store = store.info().version,
            database = store.info().location,
            worker = registration.worker.0,
            workflows = engine.info.workflows.len(),
            app_version = engine.info.app_version.as_deref(),
            "the {} is open",
            engine.info.noun()
        );
        let engine = Engine::new(engine);
        for (schedule, on_conflict) in &schedules {
            engine.declare_schedule(schedule, *on_conflict).await?;
        }
        Ok(engine)
    }
}

impl EngineOptions {
    /// Returns an error for invalid options.
    fn check(&self) -> Result<(), Error> {
        let Self { max_running, max_threads, value_limit, .. } = *self;
        let minimums = [
            ("max_running", Some(max_running)),
            ("max_threads", max_threads),
            ("value_limit", Some(value_limit)),
        ];
        match minimums.into_iter().find(|(_, given)| *given == Some(0)) {
            None => Ok(()),
            Some((input, _)) => Err(Error::Invalid { input, reason: "must be at least 1".into() }),
        }
    }
}

/// Returns an error if a queue is declared twice with different limits or policies.
fn check_declared_queues(declared: &[(Queue, OnConflict)]) -> Result<(), Error> {
    let mut seen: HashMap<&str, &(Queue, OnConflict)> = HashMap::new();
    for each in declared {
        if seen.insert(&each.0.name, each).is_some_and(|other| other != each) {
            let reason =
                format!("{} is declared twice, in different ways; declare it once", quote(&each.0.name));
            return Err(Error::Invalid { input: "queue name", reason });
        }
    }
    Ok(())
}

/// Returns the error of an engine that cannot be opened. No request of a caller was under way, so no outcome is unknown.
fn opening_error(error: StoreError) -> Error {
    match error {
        StoreError::Unavailable(reason) => Error::Unreachable { store: "the database".into(), reason },
        error => error.into(),
    }
}

/// Stores the graphs that are not stored in this form already.
async fn store_graphs(store: &dyn Store, mut graphs: Vec<GraphRow>) -> Result<(), StoreError> {
    if graphs.is_empty() {
        return Ok(());
    }
    let names: Vec<Arc<str>> = graphs.iter().map(|graph| graph.name.clone()).collect();
    let stored = store.graphs(Some(&names)).await?;
    graphs.retain(|graph| !stored.contains(graph));
    if !graphs.is_empty() {
        store.store_graphs(&graphs).await?;
    }
    Ok(())
}

/// Runs a future on a thread of its own, because the future may block.
async fn run_on_own_thread<T: Send + 'static>(
    future: impl Future<Output = T> + Send + 'static,
) -> Result<T, Error> {
    let (send, receive) = oneshot::channel();
    crate::thread::spawn_on_thread("stepfast-open".into(), async move {
        let _ = send.send(future.await);
    })?;
    receive.await.map_err(|_| Error::Unavailable("the store panicked while the engine was opened".into()))
}
