//! [`Engine`]: an engine or a client, as the package uses it. Most operations return a [`Call`], for which the program
//! waits.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use stepfast::guest::{GuestInput, GuestWorkflow};
use stepfast::store::Filter;
use stepfast::{Client, Engine as CoreEngine, Error, Payload};

use crate::bridge::batch::submission::BatchSubmission;
use crate::bridge::call::Call;
use crate::bridge::caller_code::CallerCode;
use crate::bridge::code_future::CodeFuture;
use crate::bridge::coroutine::CallCoroutine;
use crate::bridge::handle::{event_value, new_message};
use crate::bridge::inline::offer_inline;
use crate::bridge::mailbox::{Mailbox, Message, NewRun};
use crate::bridge::messaging::question::answer_of;
use crate::bridge::messaging::stream::StreamReader;
use crate::bridge::port::Port;
use crate::bridge::reply::{FailureTuple, MappedReply, Reply, ReplyFuture};
use crate::bridge::scheduling::schedules::{DeclaredSchedule, Schedules, declared};
use crate::convert::durations::duration_of;
use crate::convert::filter::UnresolvedFilter;
use crate::convert::graph::GraphDeclaration;
use crate::convert::queue::{QueueTuple, on_conflict, queue_from_tuple};
use crate::convert::record;
use crate::convert::signature::Signature;
use crate::convert::start_options::StartOptions;
use crate::convert::value::encode_arguments;
use crate::error::to_exception;
use crate::exit::without_interpreter;
use crate::fork::Process;
use crate::lock::Mutex;
use crate::outcome_slot::OutcomeSlot;
use crate::runtime::runtime;

/// A workflow, and the parameters of its function if they are known.
#[derive(Clone)]
pub(crate) struct KnownWorkflow {
    pub(crate) workflow: GuestWorkflow,
    signature: Option<Arc<Py<Signature>>>,
}

/// An engine or a client, with its workflows. The number of a workflow is its index in `workflows`.
#[pyclass(frozen)]
pub(crate) struct Engine {
    engine: Mutex<Option<CoreEngine>>,
    workflows: Mutex<Vec<KnownWorkflow>>,
    /// The ports through which the code of the workflows runs.
    ports: Vec<Py<Port>>,
    process: Process,
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.process.drop_if_current(self.engine.get_mut().take());
    }
}

/// A workflow to register: name, whether it is eager, the port through which its code runs, parameters, and the
/// declaration of a graph.
type DefinitionTuple<'py> =
    (String, bool, Bound<'py, Port>, Option<Py<Signature>>, Option<Py<GraphDeclaration>>);

#[pymethods]
impl Engine {
    /// Opens the store and an engine on it.
    #[staticmethod]
    #[pyo3(signature = (url, definitions, max_running, max_threads, suspend_after, value_limit, app_version, max_recoveries, queues, serve_queues, schedules))]
    #[allow(clippy::too_many_arguments)] // the arguments of one Python call
    fn open(
        py: Python<'_>,
        url: &str,
        definitions: Vec<DefinitionTuple<'_>>,
        max_running: usize,
        max_threads: usize,
        suspend_after: f64,
        value_limit: usize,
        app_version: Option<&str>,
        max_recoveries: u32,
        queues: Vec<(QueueTuple, String)>,
        serve_queues: Option<Vec<String>>,
        schedules: Vec<DeclaredSchedule>,
    ) -> PyResult<Self> {
        let ports: Vec<Py<Port>> = definitions.iter().map(|(_, _, port, ..)| port.clone().unbind()).collect();
        let workflows = definitions
            .into_iter()
            .enumerate()
            .map(|(number, (name, is_eager, port, signature, graph))| {
                let workflow = define_workflow(number, &name, is_eager, port.get().mailbox.clone());
                let workflow = match graph {
                    Some(graph) => workflow.with_graph(&graph.get().0)?,
                    None => workflow,
                };
                Ok(KnownWorkflow { workflow, signature: signature.map(Arc::new) })
            })
            .collect::<Result<Vec<_>, Error>>()
            .map_err(|error| to_exception(py, &error))?;
        let schedules = declared(schedules);
        let opened = without_interpreter(py, || {
            runtime().block_on(async {
                let store = stepfast::connect(url).await?;
                let mut builder = CoreEngine::builder(store)
                    .max_running(max_running)
                    .max_threads(max_threads)
                    .suspend_after(duration_of(suspend_after))
                    .value_limit(value_limit)
                    .max_recoveries(max_recoveries);
                if let Some(app_version) = app_version {
                    builder = builder.app_version(app_version);
                }
                for (queue, policy) in queues {
                    builder = builder.declare_queue(queue_from_tuple(queue), on_conflict(&policy));
                }
                if let Some(served) = serve_queues {
                    builder = builder.serve_queues(served);
                }
                for (schedule, policy) in schedules {
                    builder = builder.declare_schedule(schedule, policy);
                }
                for known in &workflows {
                    builder = builder.register(&known.workflow);
                }
                builder.open().await
            })
        });
        let engine = opened.map_err(|error| to_exception(py, &error))?;
        for port in &ports {
            port.get().set_engine(Some(engine.clone()));
        }
        Ok(Self::with_workflows(engine, workflows, ports))
    }

    /// Opens the store and a client on it, which has only the names of workflows.
    #[staticmethod]
    #[allow(clippy::needless_pass_by_value)] // arguments that Python passes
    fn open_client(
        py: Python<'_>,
        url: &str,
        names: Vec<(String, Option<Py<Signature>>)>,
        queues: Vec<(QueueTuple, String)>,
        schedules: Vec<DeclaredSchedule>,
    ) -> PyResult<Self> {
        let schedules = declared(schedules);
        let opened = without_interpreter(py, || {
            runtime().block_on(async {
                let store = stepfast::connect(url).await?;
                let queues =
                    queues.into_iter().map(|(queue, policy)| (queue_from_tuple(queue), on_conflict(&policy)));
                let client = Client::open_with_queues(store, queues).await?.into_engine();
                for (schedule, policy) in &schedules {
                    client.declare_schedule(schedule, *policy).await?;
                }
                Ok(client)
            })
        });
        let engine = opened.map_err(|error| to_exception(py, &error))?;
        let workflows =
            names.into_iter().map(|(name, signature)| KnownWorkflow::by_name(&name, signature)).collect();
        Ok(Self::with_workflows(engine, workflows, Vec::new()))
    }

    /// Adds a workflow whose code runs elsewhere. Returns the number of the workflow.
    fn declare(&self, name: &str, signature: Option<Py<Signature>>) -> usize {
        let known = KnownWorkflow::by_name(name, signature);
        self.workflows.with(|workflows| {
            workflows.push(known);
            workflows.len() - 1
        })
    }

    /// Replaces the parameters of a workflow that was defined again.
    fn redefine(&self, number: usize, signature: Option<Py<Signature>>) {
        let signature = signature.map(Arc::new);
        let before = self.workflows.with(|workflows| {
            workflows.get_mut(number).and_then(|known| std::mem::replace(&mut known.signature, signature))
        });
        drop(before);
    }

    /// Stops claiming executions. The returned call resolves when no execution runs any more, or after `grace` seconds.
    fn drain(&self, py: Python<'_>, grace: f64, port: Option<&Bound<'_, Port>>) -> PyResult<Call> {
        let engine = self.open_engine(py)?;
        let grace = duration_of(grace);
        let future: ReplyFuture = Box::pin(async move {
            engine.drain_running(grace).await;
            Reply::Nothing
        });
        Ok(Call::awaitable(port, future))
    }

    /// Returns a call that resolves when the engine has ended, with an error if the engine has ended by itself.
    fn wait_until_ended(&self, py: Python<'_>, port: Option<&Bound<'_, Port>>) -> PyResult<Call> {
        self.query(py, port, |engine| async move { engine.wait_until_ended().await }, |()| Reply::Nothing)
    }

    /// Starts an execution. The call returns a handle when the start is durable. If the call is awaited, it returns
    /// `make_handle(handle, host)` instead.
    #[pyo3(signature = (workflow, args, kwargs, port, make_handle=None, host=None, options=None))]
    #[allow(clippy::too_many_arguments)] // the arguments of one Python call
    fn start(
        &self,
        py: Python<'_>,
        workflow: usize,
        args: &Bound<'_, PyTuple>,
        kwargs: &Bound<'_, PyDict>,
        port: Option<&Bound<'_, Port>>,
        make_handle: Option<Py<PyAny>>,
        host: Option<Py<PyAny>>,
        options: Option<&StartOptions>,
    ) -> PyResult<Call> {
        let has_id = options.is_some_and(StartOptions::has_id);
        let (workflow, input) = self.workflow_and_input(workflow, args, kwargs, has_id)?;
        let start = self.open_engine(py)?.start_guest(&workflow, input, options.map(StartOptions::to_core));
        let future = MappedReply::new_boxed(start, Reply::of_start);
        let coroutine = match (make_handle, host) {
            (Some(make_handle), Some(host)) => CallCoroutine::for_start(make_handle, host),
            _ => CallCoroutine::default(),
        };
        Ok(Call::awaitable_with(coroutine, port, future))
    }

    /// Starts an execution for each tuple of arguments. The call returns their handles.
    #[pyo3(signature = (workflow, items, port, options=None))]
    #[allow(clippy::too_many_arguments)] // the arguments of one Python call
    fn start_many(
        &self,
        py: Python<'_>,
        workflow: usize,
        items: &Bound<'_, PyList>,
        port: Option<&Bound<'_, Port>>,
        options: Option<&StartOptions>,
    ) -> PyResult<Call> {
        let core_options = options.map(StartOptions::to_core);
        let known = self.known_workflow(workflow)?;
        let none = PyDict::new(py);
        let input = |item: Bound<'_, PyAny>| known.input(item.cast::<PyTuple>()?, &none, false);
        let inputs: PyResult<Vec<_>> = items.iter().map(input).collect();
        let started =
            self.open_engine(py)?.start_many_guest(&known.workflow, inputs?, core_options.as_deref());
        let reply = async move { started.await.map_or_else(Reply::Error, Reply::Handles) };
        Ok(Call::awaitable(port, Box::pin(reply)))
    }

    /// Begins the submission of a batch. The workflow_id of the options is the id of the batch.
    #[pyo3(signature = (workflow, options=None))]
    fn submit_batch(
        &self,
        py: Python<'_>,
        workflow: usize,
        options: Option<&StartOptions>,
    ) -> PyResult<BatchSubmission> {
        Ok(BatchSubmission::begin(&self.open_engine(py)?, self.known_workflow(workflow)?, options))
    }

    /// Returns a handle to the batch with this id. If the name of a workflow is given, fails for a batch of another
    /// workflow.
    fn get_batch(
        &self,
        py: Python<'_>,
        batch_id: String,
        workflow: Option<String>,
        port: Option<&Bound<'_, Port>>,
    ) -> PyResult<Call> {
        let query = |engine: CoreEngine| async move {
            match workflow {
                Some(name) => engine.get_batch_of::<Payload>(&batch_id, &name).await,
                None => engine.get_batch::<Payload>(&batch_id).await,
            }
        };
        self.query(py, port, query, Reply::Batch)
    }

    /// Runs an execution to its output. The caller runs the code if the execution begins here at once.
    #[pyo3(signature = (workflow, args, kwargs, options=None))]
    #[allow(clippy::too_many_arguments)] // the arguments of one Python call
    fn run(
        &self,
        py: Python<'_>,
        workflow: usize,
        args: &Bound<'_, PyTuple>,
        kwargs: &Bound<'_, PyDict>,
        options: Option<&StartOptions>,
    ) -> PyResult<Call> {
        let future = self.run_future(py, workflow, args, kwargs, options)?;
        Ok(Call::new(None, None, future).run_by_caller())
    }

    /// Runs an execution to its output, for a task. If the execution begins here at once, the task that awaits the
    /// call runs `function`, if there is one. `host` is the engine's object in the package.
    #[pyo3(signature = (workflow, args, kwargs, port, function, host, options=None))]
    #[allow(clippy::too_many_arguments)] // the arguments of one Python call
    fn run_in_task(
        &self,
        py: Python<'_>,
        workflow: usize,
        args: &Bound<'_, PyTuple>,
        kwargs: &Bound<'_, PyDict>,
        port: Option<&Bound<'_, Port>>,
        function: Option<Py<PyAny>>,
        host: Py<PyAny>,
        options: Option<&StartOptions>,
    ) -> PyResult<Call> {
        let future = self.run_future(py, workflow, args, kwargs, options)?;
        Ok(match function {
            Some(function) => {
                let code = CallerCode { function, host };
                Call::new(port, None, future).run_by_caller().with_coroutine(CallCoroutine::for_code(code))
            }
            None => Call::awaitable(port, future),
        })
    }

    /// Ends the engine: requeues running executions. If the database cannot be reached, tries for at most `grace` seconds.
    fn shutdown(&self, py: Python<'_>, grace: f64) -> PyResult<()> {
        self.process.check(py)?;
        let Some(engine) = self.take_engine() else { return Ok(()) };
        let grace = duration_of(grace);
        let ended = without_interpreter(py, || runtime().block_on(engine.shutdown(grace)));
        ended.map_err(|error| to_exception(py, &error))
    }

    /// Returns the number of flushes that the store has committed, and the number of their Writes, for benchmarks.
    fn flush_counts(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        let counts = self.open_engine(py)?.store().counters().snapshot();
        Ok((counts.flushes, counts.writes))
    }

    /// Ends the engine in the background, because the program has dropped it.
    fn release(&self, py: Python<'_>) {
        if self.process.is_current() {
            let engine = self.take_engine();
            without_interpreter(py, || drop(engine));
        }
    }

    /// Sends a message to the execution with this workflow_id. Returns the effect.
    #[allow(clippy::too_many_arguments)] // the arguments of the Python function
    fn send(
        &self,
        py: Python<'_>,
        workflow_id: String,
        value: &Bound<'_, PyAny>,
        topic: &str,
        message_id: Option<&str>,
        keeps: bool,
        port: Option<&Bound<'_, Port>>,
    ) -> PyResult<Call> {
        let value = crate::convert::value::encode(value)?;
        let message = |engine: CoreEngine| {
            let message = new_message(engine.send_payload(workflow_id, value), topic, message_id);
            if keeps { message.keep() } else { message }
        };
        self.query(py, port, |engine| message(engine).into_future(), Reply::of_sent)
    }

    /// Waits for an event of the execution with this workflow_id. Returns its value, or None after the timeout in seconds.
    fn get_event(
        &self,
        py: Python<'_>,
        workflow_id: String,
        name: String,
        timeout: Option<f64>,
        port: Option<&Bound<'_, Port>>,
    ) -> PyResult<Call> {
        let query = move |engine: CoreEngine| event_value(engine.get_event(workflow_id, name), timeout);
        self.query(py, port, query, Reply::of_wait)
    }

    /// Answers a token with a value.
    fn complete_token(
        &self,
        py: Python<'_>,
        token: String,
        value: &Bound<'_, PyAny>,
        port: Option<&Bound<'_, Port>>,
    ) -> PyResult<Call> {
        let answer = Ok(crate::convert::value::encode(value)?);
        let query = |engine: CoreEngine| async move { engine.answer_token(&token, answer).await };
        self.query(py, port, query, |()| Reply::Nothing)
    }

    /// Answers a token with a failure.
    fn fail_token(
        &self,
        py: Python<'_>,
        token: String,
        failure: FailureTuple,
        port: Option<&Bound<'_, Port>>,
    ) -> PyResult<Call> {
        let query =
            |engine: CoreEngine| async move { engine.answer_token(&token, Err(failure.into())).await };
        self.query(py, port, query, |()| Reply::Nothing)
    }

    /// Asks the execution with this workflow_id a question. Returns the answer, or None after the timeout in seconds.
    #[allow(clippy::too_many_arguments)] // the arguments of one Python call
    fn ask(
        &self,
        py: Python<'_>,
        workflow_id: String,
        value: &Bound<'_, PyAny>,
        topic: String,
        timeout: Option<f64>,
        message_id: Option<String>,
        port: Option<&Bound<'_, Port>>,
    ) -> PyResult<Call> {
        let value = crate::convert::value::encode(value)?;
        let question = self.open_engine(py)?.ask_payload(workflow_id, value);
        Ok(Call::awaitable(port, Box::pin(answer_of(question, topic, timeout, message_id))))
    }

    /// Returns a reader of a stream of the execution with this workflow_id, which begins at this offset.
    fn read_stream(
        &self,
        py: Python<'_>,
        workflow_id: String,
        stream: &str,
        offset: i64,
    ) -> PyResult<StreamReader> {
        Ok(StreamReader::new(self.open_engine(py)?.read_stream(workflow_id, stream), offset))
    }

    /// Returns all events that the execution has set.
    fn events(&self, py: Python<'_>, workflow_id: String, port: Option<&Bound<'_, Port>>) -> PyResult<Call> {
        let query = |engine: CoreEngine| async move { engine.events(&workflow_id).await };
        self.query(py, port, query, Reply::Events)
    }

    /// Returns a handle to the execution with this workflow_id. If the name of a workflow is given, fails for an
    /// execution of another workflow.
    fn get_handle(
        &self,
        py: Python<'_>,
        workflow_id: String,
        workflow: Option<String>,
        port: Option<&Bound<'_, Port>>,
    ) -> PyResult<Call> {
        let query = |engine: CoreEngine| async move {
            match workflow {
                Some(name) => engine.get_of::<Payload>(&workflow_id, &name).await,
                None => engine.get::<Payload>(&workflow_id).await,
            }
        };
        self.query(py, port, query, Reply::Handle)
    }

    /// Returns the complete record of an execution.
    fn show(&self, py: Python<'_>, workflow_id: String, port: Option<&Bound<'_, Port>>) -> PyResult<Call> {
        let query = |engine| async move { record::load_record(&engine, &workflow_id).await };
        self.query(py, port, query, |record| Reply::Record(Box::new(record)))
    }

    /// Returns the executions with these workflow_ids, with their outcomes.
    fn get_many(&self, py: Python<'_>, ids: Vec<String>, port: Option<&Bound<'_, Port>>) -> PyResult<Call> {
        let query = |engine| async move { record::load_outcomes(&engine, &ids).await };
        self.query(py, port, query, Reply::Found)
    }

    /// Returns the executions with each of these values of an attribute, with their outcomes.
    fn find(
        &self,
        py: Python<'_>,
        name: String,
        values: Vec<String>,
        limit: usize,
        port: Option<&Bound<'_, Port>>,
    ) -> PyResult<Call> {
        let query = move |engine| async move { record::find_outcomes(&engine, &name, &values, limit).await };
        self.query(py, port, query, Reply::FoundByValue)
    }

    /// Returns the workers of the database, and the executions that no worker can run.
    fn workers(&self, py: Python<'_>, port: Option<&Bound<'_, Port>>) -> PyResult<Call> {
        self.query(py, port, |engine| async move { engine.workers().await }, Reply::Workers)
    }

    /// Returns dead letters, the latest first.
    fn dead_letters(&self, py: Python<'_>, limit: usize, port: Option<&Bound<'_, Port>>) -> PyResult<Call> {
        self.query(
            py,
            port,
            move |engine| async move { engine.dead_letters(limit).await },
            Reply::DeadLetters,
        )
    }

    /// Returns all stored queues.
    fn queues(&self, py: Python<'_>, port: Option<&Bound<'_, Port>>) -> PyResult<Call> {
        self.query(py, port, |engine| async move { engine.queues().await }, Reply::Queues)
    }

    /// Creates a queue, or sets its limits; returns the stored queue.
    fn set_queue(&self, py: Python<'_>, queue: QueueTuple, port: Option<&Bound<'_, Port>>) -> PyResult<Call> {
        let query = |engine: CoreEngine| async move { engine.set_queue(&queue_from_tuple(queue)).await };
        self.query(py, port, query, Reply::Queue)
    }

    /// Pauses or resumes a queue; returns the stored queue.
    fn set_paused(
        &self,
        py: Python<'_>,
        name: String,
        is_paused: bool,
        port: Option<&Bound<'_, Port>>,
    ) -> PyResult<Call> {
        let query = move |engine: CoreEngine| async move {
            if is_paused { engine.pause_queue(&name).await } else { engine.resume_queue(&name).await }
        };
        self.query(py, port, query, Reply::Queue)
    }

    /// Returns the schedules of the store.
    fn schedules(&self, py: Python<'_>) -> PyResult<Schedules> {
        Ok(Schedules::new(self.open_engine(py)?))
    }

    /// Returns matching executions, newest first. With a limit of 0, returns only their number.
    fn list(
        &self,
        py: Python<'_>,
        port: Option<&Bound<'_, Port>>,
        filter: UnresolvedFilter,
        after: Option<String>,
        limit: usize,
    ) -> PyResult<Call> {
        let query = move |engine: CoreEngine| async move {
            let mut filter = Filter { limit, ..filter.resolve(&engine).await? };
            if let Some(after) = after {
                filter.after = Some(engine.get::<Payload>(&after).await?.key());
            }
            engine.list(&filter).await
        };
        self.query(py, port, query, Reply::Page)
    }

    /// Cancels, pauses or resumes all matching executions; returns how many are done, pending, and not applicable.
    fn act_on_all(
        &self,
        py: Python<'_>,
        port: Option<&Bound<'_, Port>>,
        filter: UnresolvedFilter,
        action: String,
    ) -> PyResult<Call> {
        let query = move |engine: CoreEngine| async move {
            let filter = filter.resolve(&engine).await?;
            match action.as_str() {
                "cancel" => engine.cancel_all(&filter, |_| ()).await,
                "pause" => engine.pause_all(&filter, |_| ()).await,
                _ => engine.resume_all(&filter, |_| ()).await,
            }
        };
        self.query(py, port, query, Reply::BulkResult)
    }
}

impl Engine {
    /// Returns a call that runs `query` on the engine and maps its result to a reply.
    fn query<T, F>(
        &self,
        py: Python<'_>,
        port: Option<&Bound<'_, Port>>,
        query: impl FnOnce(CoreEngine) -> F,
        reply: impl FnOnce(T) -> Reply + Send + 'static,
    ) -> PyResult<Call>
    where
        F: Future<Output = Result<T, stepfast::Error>> + Send + 'static,
    {
        let queried = query(self.open_engine(py)?);
        let future: ReplyFuture = Box::pin(async move { queried.await.map_or_else(Reply::Error, reply) });
        Ok(Call::awaitable(port, future))
    }

    fn run_future(
        &self,
        py: Python<'_>,
        workflow: usize,
        args: &Bound<'_, PyTuple>,
        kwargs: &Bound<'_, PyDict>,
        options: Option<&StartOptions>,
    ) -> PyResult<ReplyFuture> {
        let (workflow, input) =
            self.workflow_and_input(workflow, args, kwargs, options.is_some_and(StartOptions::has_id))?;
        let run = self.open_engine(py)?.run_guest(&workflow, input, options.map(StartOptions::to_core));
        Ok(MappedReply::new_boxed(run, Reply::of_end))
    }

    fn take_engine(&self) -> Option<CoreEngine> {
        let engine = self.engine.take();
        for port in &self.ports {
            port.get().set_engine(None);
        }
        engine
    }

    fn open_engine(&self, py: Python<'_>) -> PyResult<CoreEngine> {
        self.process.check(py)?;
        self.engine.with(|engine| engine.clone()).ok_or_else(|| to_exception(py, &stepfast::Error::Shutdown))
    }

    fn with_workflows(engine: CoreEngine, workflows: Vec<KnownWorkflow>, ports: Vec<Py<Port>>) -> Self {
        let (engine, workflows) = (Mutex::new(Some(engine)), Mutex::new(workflows));
        Self { engine, workflows, ports, process: Process::current() }
    }

    pub(crate) fn known_workflow(&self, number: usize) -> PyResult<KnownWorkflow> {
        let known = self.workflows.with(|workflows| workflows.get(number).cloned());
        known.ok_or_else(|| crate::error::runtime_error("no such workflow in this engine"))
    }

    pub(crate) fn workflow(&self, number: usize) -> PyResult<GuestWorkflow> {
        Ok(self.known_workflow(number)?.workflow)
    }

    /// Returns a workflow, and the input for a call with these arguments. Fails with `TypeError` if the workflow's
    /// function does not take the arguments. The input gets a fingerprint only if `is_compared`.
    pub(crate) fn workflow_and_input(
        &self,
        number: usize,
        args: &Bound<'_, PyTuple>,
        kwargs: &Bound<'_, PyDict>,
        is_compared: bool,
    ) -> PyResult<(GuestWorkflow, GuestInput)> {
        let known = self.known_workflow(number)?;
        let input = known.input(args, kwargs, is_compared)?;
        Ok((known.workflow, input))
    }

    /// Returns the mailbox of the thread pool that runs the code of a workflow; `None` if the code runs elsewhere.
    pub(crate) fn thread_mailbox(&self, number: usize) -> Option<Arc<Mailbox>> {
        self.ports
            .get(number)
            .map(|port| port.get().mailbox.clone())
            .filter(|mailbox| mailbox.is_for_threads())
    }
}

impl KnownWorkflow {
    /// Returns a workflow whose code runs elsewhere.
    fn by_name(name: &str, signature: Option<Py<Signature>>) -> Self {
        Self { workflow: GuestWorkflow::named(name), signature: signature.map(Arc::new) }
    }

    pub(crate) fn input(
        &self,
        args: &Bound<'_, PyTuple>,
        kwargs: &Bound<'_, PyDict>,
        is_compared: bool,
    ) -> PyResult<GuestInput> {
        let mut fingerprint = None;
        if let Some(signature) = &self.signature {
            signature.get().check(args, kwargs)?;
            if is_compared {
                fingerprint = signature.get().fingerprint_if_respelled(args, kwargs);
            }
        }
        Ok(GuestInput { payload: encode_arguments(args, Some(kwargs))?, fingerprint })
    }
}

/// The advice, for messages, on how to limit durable calls in time.
const TIME_LIMIT_ADVICE: &str = "`stepfast.timeout`, not `asyncio.timeout` or `asyncio.wait_for`";

/// Returns the workflow of a Python function. The threads or the loop of `mailbox` run its code, unless the caller runs
/// it.
fn define_workflow(number: usize, name: &str, is_eager: bool, mailbox: Arc<Mailbox>) -> GuestWorkflow {
    GuestWorkflow::new_guest(
        name,
        is_eager,
        mailbox.is_for_threads(),
        TIME_LIMIT_ADVICE,
        move |branch, input| {
            let outcome_slot = Arc::new(OutcomeSlot::default());
            // created at once: the code may return before the first poll of this future
            let code = CodeFuture::new(outcome_slot.clone().future(), branch.run_control(), mailbox.clone());
            let new_run = NewRun { workflow: number, branch, input, outcome_slot };
            if let Some(new_run) = offer_inline(new_run) {
                mailbox.push(Message::Begin(new_run));
            }
            code
        },
    )
}
