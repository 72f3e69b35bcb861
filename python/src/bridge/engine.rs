//! [`Engine`]: the engine, with its waits as calls.

use std::sync::Arc;
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use stepfast::guest::{GuestInput, GuestWorkflow};
use stepfast::store::Filter;
use stepfast::{Client, Engine as CoreEngine, Payload};

use crate::bridge::call::Call;
use crate::bridge::caller_code::CallerCode;
use crate::bridge::code_future::Running;
use crate::bridge::coroutine::Carried;
use crate::bridge::inline::begin_inline;
use crate::bridge::mailbox::{Begin, Note, Shared};
use crate::bridge::port::Port;
use crate::bridge::reply::{Future, Replied, Reply};
use crate::convert::filter::PyFilter;
use crate::convert::queue::{PyQueue, on_conflict, queue};
use crate::convert::record;
use crate::convert::signature::Signature;
use crate::convert::start_options::Order;
use crate::convert::value::encode_arguments;
use crate::error::to_exception;
use crate::exit::without_interpreter;
use crate::fork::Process;
use crate::lock::Mutex;
use crate::outcome_slot::Slot;
use crate::runtime::runtime;

/// A workflow, and the parameters of its function if they are known.
#[derive(Clone)]
struct Known {
    workflow: GuestWorkflow,
    signature: Option<Arc<Py<Signature>>>,
}

/// An engine, with its workflows by number.
#[pyclass(frozen)]
pub(crate) struct Engine {
    engine: Mutex<Option<CoreEngine>>,
    workflows: Mutex<Vec<Known>>,
    /// Where their code runs.
    ports: Vec<Py<Port>>,
    process: Process,
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.process.drop_if_current(self.engine.get_mut().take());
    }
}

/// A workflow to be registered: its name, whether it is eager, where its code runs, its parameters.
type Definition<'py> = (String, bool, Bound<'py, Port>, Option<Py<Signature>>);

#[pymethods]
impl Engine {
    /// Opens the store and an engine on it.
    #[staticmethod]
    #[pyo3(signature = (url, definitions, max_running, threads, suspend_after, value_limit, app_version, max_recoveries, queues, serve))]
    #[allow(clippy::too_many_arguments)] // of one call
    fn open(
        py: Python<'_>,
        url: &str,
        definitions: Vec<Definition<'_>>,
        max_running: usize,
        threads: usize,
        suspend_after: f64,
        value_limit: usize,
        app_version: Option<&str>,
        max_recoveries: u32,
        queues: Vec<(PyQueue, String)>,
        serve: Option<Vec<String>>,
    ) -> PyResult<Self> {
        let ports: Vec<Py<Port>> = definitions.iter().map(|(_, _, port, _)| port.clone().unbind()).collect();
        let workflows: Vec<Known> = definitions
            .into_iter()
            .enumerate()
            .map(|(number, (name, is_eager, port, signature))| Known {
                workflow: defined(number, &name, is_eager, port.get().shared.clone()),
                signature: signature.map(Arc::new),
            })
            .collect();
        let opened = without_interpreter(py, || {
            runtime().block_on(async {
                let store = stepfast::connect(url).await?;
                let mut builder = CoreEngine::builder(store)
                    .max_running(max_running)
                    .threads(threads)
                    .suspend_after(Duration::try_from_secs_f64(suspend_after).unwrap_or(Duration::MAX))
                    .value_limit(value_limit)
                    .max_recoveries(max_recoveries);
                if let Some(app_version) = app_version {
                    builder = builder.app_version(app_version);
                }
                for (declared, policy) in queues {
                    builder = builder.declare_queue(queue(declared), on_conflict(&policy));
                }
                if let Some(serve) = serve {
                    builder = builder.serve(serve);
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
        Ok(Self::of(engine, workflows, ports))
    }

    /// Opens the store and a client on it, which knows workflows by their names.
    #[staticmethod]
    #[allow(clippy::needless_pass_by_value)] // of a call from Python
    fn open_client(py: Python<'_>, url: &str, names: Vec<(String, Option<Py<Signature>>)>) -> PyResult<Self> {
        let opened = without_interpreter(py, || {
            runtime().block_on(async {
                Client::open(stepfast::connect(url).await?).await.map(Client::into_engine)
            })
        });
        let engine = opened.map_err(|error| to_exception(py, &error))?;
        let workflows = names.into_iter().map(|(name, signature)| Known::named(&name, signature)).collect();
        Ok(Self::of(engine, workflows, Vec::new()))
    }

    /// The number of a workflow whose code runs elsewhere.
    fn declare(&self, name: &str, signature: Option<Py<Signature>>) -> usize {
        let known = Known::named(name, signature);
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

    /// Takes nothing new to run from here on; resolves when nothing runs any more, or after `grace` seconds.
    fn drained(&self, py: Python<'_>, grace: f64, port: Option<&Bound<'_, Port>>) -> PyResult<Call> {
        let engine = self.get(py)?;
        let grace = Duration::try_from_secs_f64(grace).unwrap_or(Duration::MAX);
        let future: Future = Box::pin(async move {
            engine.drained(grace).await;
            Reply::Nothing
        });
        Ok(Call::awaitable(port, future))
    }

    /// Resolves when the engine has ended, with an error if it has ended by itself.
    fn ended(&self, py: Python<'_>, port: Option<&Bound<'_, Port>>) -> PyResult<Call> {
        let engine = self.get(py)?;
        let future: Future =
            Box::pin(async move { engine.ended().await.map_or_else(Reply::Error, |()| Reply::Nothing) });
        Ok(Call::awaitable(port, future))
    }

    /// Starts an execution: a handle, when that is durable. If it is awaited, what `made`
    /// makes of that and `home`.
    #[pyo3(signature = (workflow, args, kwargs, port, made=None, home=None, order=None))]
    #[allow(clippy::too_many_arguments)] // of one call, by name
    fn start(
        &self,
        py: Python<'_>,
        workflow: usize,
        args: &Bound<'_, PyTuple>,
        kwargs: &Bound<'_, PyDict>,
        port: Option<&Bound<'_, Port>>,
        made: Option<Py<PyAny>>,
        home: Option<Py<PyAny>>,
        order: Option<&Order>,
    ) -> PyResult<Call> {
        let has_id = order.is_some_and(Order::has_id);
        let (workflow, input) = self.call(workflow, args, kwargs, has_id)?;
        let start = self.get(py)?.start_guest(&workflow, input, order.map(Order::options));
        let future = Replied::boxed(start, Reply::of_start);
        let carried = match (made, home) {
            (Some(made), Some(home)) => Carried::started(made, home),
            _ => Carried::default(),
        };
        Ok(Call::awaitable_as(carried, port, future))
    }

    /// Starts an execution for each of these tuples of arguments; their handles.
    #[pyo3(signature = (workflow, items, port, order=None))]
    #[allow(clippy::too_many_arguments)] // of one call, by name
    fn start_many(
        &self,
        py: Python<'_>,
        workflow: usize,
        items: &Bound<'_, PyList>,
        port: Option<&Bound<'_, Port>>,
        order: Option<&Order>,
    ) -> PyResult<Call> {
        let options = order.map(Order::options);
        let known = self.known(workflow)?;
        let none = PyDict::new(py);
        let input = |item: Bound<'_, PyAny>| known.input(item.cast::<PyTuple>()?, &none, false);
        let inputs: PyResult<Vec<_>> = items.iter().map(input).collect();
        let started = self.get(py)?.start_guests(&known.workflow, inputs?, options.as_deref());
        let reply = async move { started.await.map_or_else(Reply::Error, Reply::Handles) };
        Ok(Call::awaitable(port, Box::pin(reply)))
    }

    /// Runs an execution to its output; its code is the caller's to run if it begins here at once.
    #[pyo3(signature = (workflow, args, kwargs, order=None))]
    #[allow(clippy::too_many_arguments)] // of one call, by name
    fn run(
        &self,
        py: Python<'_>,
        workflow: usize,
        args: &Bound<'_, PyTuple>,
        kwargs: &Bound<'_, PyDict>,
        order: Option<&Order>,
    ) -> PyResult<Call> {
        let future = self.running(py, workflow, args, kwargs, order)?;
        Ok(Call::new(None, None, future).inline())
    }

    /// The same for a task. If the execution begins here at once, whoever awaits the call runs its `function`, if
    /// it has one; `home` is what the package knows the engine by.
    #[pyo3(signature = (workflow, args, kwargs, port, function, home, order=None))]
    #[allow(clippy::too_many_arguments)] // of one call, by name
    fn run_in_task(
        &self,
        py: Python<'_>,
        workflow: usize,
        args: &Bound<'_, PyTuple>,
        kwargs: &Bound<'_, PyDict>,
        port: Option<&Bound<'_, Port>>,
        function: Option<Py<PyAny>>,
        home: Py<PyAny>,
        order: Option<&Order>,
    ) -> PyResult<Call> {
        let future = self.running(py, workflow, args, kwargs, order)?;
        Ok(match function {
            Some(function) => {
                let code = CallerCode { function, home };
                Call::new(port, None, future).inline().carried(Carried::code(code))
            }
            None => Call::awaitable(port, future),
        })
    }

    /// Ends the engine: hands back what runs, after `grace` seconds at most.
    fn shutdown(&self, py: Python<'_>, grace: f64) -> PyResult<()> {
        self.process.check(py)?;
        let Some(engine) = self.take() else { return Ok(()) };
        let grace = Duration::try_from_secs_f64(grace).unwrap_or(Duration::MAX);
        let ended = without_interpreter(py, || runtime().block_on(engine.shutdown(grace)));
        ended.map_err(|error| to_exception(py, &error))
    }

    /// Flushes that its store has committed, and Writes in them; for benchmarks.
    fn counted(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        let counted = self.get(py)?.store().counters().snapshot();
        Ok((counted.flushes, counted.writes))
    }

    /// Lets the engine end in the background: nobody has it any more.
    fn let_go(&self, py: Python<'_>) {
        if self.process.is_current() {
            let engine = self.take();
            without_interpreter(py, || drop(engine));
        }
    }

    /// A handle to the execution with this workflow_id.
    fn get_handle(
        &self,
        py: Python<'_>,
        workflow_id: String,
        port: Option<&Bound<'_, Port>>,
    ) -> PyResult<Call> {
        let engine = self.get(py)?;
        let future: Future =
            Box::pin(async move { Reply::of_start(engine.get::<Payload>(&workflow_id).await) });
        Ok(Call::awaitable(port, future))
    }

    /// Everything recorded of an execution.
    fn show(&self, py: Python<'_>, workflow_id: String, port: Option<&Bound<'_, Port>>) -> PyResult<Call> {
        let engine = self.get(py)?;
        let future: Future = Box::pin(async move {
            match record::shown(&engine, &workflow_id).await {
                Ok(record) => Reply::Record(Box::new(record)),
                Err(error) => Reply::Error(error),
            }
        });
        Ok(Call::awaitable(port, future))
    }

    /// Who works on the database, and what nobody can run.
    fn survey(&self, py: Python<'_>, port: Option<&Bound<'_, Port>>) -> PyResult<Call> {
        let engine = self.get(py)?;
        let future: Future = Box::pin(async move {
            match engine.survey().await {
                Ok(survey) => Reply::Survey(survey),
                Err(error) => Reply::Error(error),
            }
        });
        Ok(Call::awaitable(port, future))
    }

    /// Dead letters, the latest first.
    fn dead_letters(&self, py: Python<'_>, limit: usize, port: Option<&Bound<'_, Port>>) -> PyResult<Call> {
        let engine = self.get(py)?;
        let future: Future = Box::pin(async move {
            match engine.dead_letters(limit).await {
                Ok(letters) => Reply::DeadLetters(letters),
                Err(error) => Reply::Error(error),
            }
        });
        Ok(Call::awaitable(port, future))
    }

    /// The queues that there are.
    fn queues(&self, py: Python<'_>, port: Option<&Bound<'_, Port>>) -> PyResult<Call> {
        let engine = self.get(py)?;
        let future: Future = Box::pin(async move {
            match engine.queues().await {
                Ok(rows) => Reply::Queues(rows),
                Err(error) => Reply::Error(error),
            }
        });
        Ok(Call::awaitable(port, future))
    }

    /// Creates a queue, or gives it these limits: as it is then.
    fn set_queue(&self, py: Python<'_>, given: PyQueue, port: Option<&Bound<'_, Port>>) -> PyResult<Call> {
        let engine = self.get(py)?;
        let future: Future = Box::pin(async move { Reply::of_queue(engine.set_queue(&queue(given)).await) });
        Ok(Call::awaitable(port, future))
    }

    /// Pauses a queue, or lets it go on: as it is then.
    fn set_paused(
        &self,
        py: Python<'_>,
        name: String,
        is_paused: bool,
        port: Option<&Bound<'_, Port>>,
    ) -> PyResult<Call> {
        let engine = self.get(py)?;
        let future: Future = Box::pin(async move {
            Reply::of_queue(if is_paused {
                engine.pause_queue(&name).await
            } else {
                engine.resume_queue(&name).await
            })
        });
        Ok(Call::awaitable(port, future))
    }

    /// Executions that match, newest first; or only how many, with a limit of 0.
    fn list(
        &self,
        py: Python<'_>,
        port: Option<&Bound<'_, Port>>,
        filter: PyFilter,
        after: Option<String>,
        limit: usize,
    ) -> PyResult<Call> {
        let engine = self.get(py)?;
        let future: Future = Box::pin(async move {
            let listed = async {
                let mut filter = Filter { limit, ..filter.resolved(&engine).await? };
                if let Some(after) = after {
                    filter.after = Some(engine.get::<Payload>(&after).await?.key());
                }
                engine.list(&filter).await
            };
            listed.await.map_or_else(Reply::Error, Reply::Page)
        });
        Ok(Call::awaitable(port, future))
    }

    /// Cancels all that match, or continues them: of how many it was done, requested, declined.
    fn act_on_all(
        &self,
        py: Python<'_>,
        port: Option<&Bound<'_, Port>>,
        filter: PyFilter,
        is_cancel: bool,
    ) -> PyResult<Call> {
        let engine = self.get(py)?;
        let future: Future = Box::pin(async move {
            let asked = async {
                let filter = filter.resolved(&engine).await?;
                if is_cancel {
                    engine.cancel_all(&filter, |_| ()).await
                } else {
                    engine.resume_all(&filter, |_| ()).await
                }
            };
            asked.await.map_or_else(Reply::Error, Reply::Answers)
        });
        Ok(Call::awaitable(port, future))
    }
}

impl Engine {
    fn running(
        &self,
        py: Python<'_>,
        workflow: usize,
        args: &Bound<'_, PyTuple>,
        kwargs: &Bound<'_, PyDict>,
        order: Option<&Order>,
    ) -> PyResult<Future> {
        let (workflow, input) = self.call(workflow, args, kwargs, order.is_some_and(Order::has_id))?;
        let run = self.get(py)?.run_guest(&workflow, input, order.map(Order::options));
        Ok(Replied::boxed(run, Reply::of_end))
    }

    fn take(&self) -> Option<CoreEngine> {
        let engine = self.engine.take();
        for port in &self.ports {
            port.get().set_engine(None);
        }
        engine
    }

    fn get(&self, py: Python<'_>) -> PyResult<CoreEngine> {
        self.process.check(py)?;
        self.engine.with(|engine| engine.clone()).ok_or_else(|| to_exception(py, &stepfast::Error::Shutdown))
    }

    fn of(engine: CoreEngine, workflows: Vec<Known>, ports: Vec<Py<Port>>) -> Self {
        let (engine, workflows) = (Mutex::new(Some(engine)), Mutex::new(workflows));
        Self { engine, workflows, ports, process: Process::current() }
    }

    fn known(&self, number: usize) -> PyResult<Known> {
        let known = self.workflows.with(|workflows| workflows.get(number).cloned());
        known.ok_or_else(|| crate::error::runtime_error("no such workflow in this engine"))
    }

    pub(crate) fn workflow(&self, number: usize) -> PyResult<GuestWorkflow> {
        Ok(self.known(number)?.workflow)
    }

    /// Returns a workflow, and the input that a call with these arguments has. `TypeError` if its function does not take
    /// them. Only inputs that are compared need a fingerprint.
    pub(crate) fn call(
        &self,
        number: usize,
        args: &Bound<'_, PyTuple>,
        kwargs: &Bound<'_, PyDict>,
        is_compared: bool,
    ) -> PyResult<(GuestWorkflow, GuestInput)> {
        let known = self.known(number)?;
        let input = known.input(args, kwargs, is_compared)?;
        Ok((known.workflow, input))
    }

    /// Where the code of a workflow runs, if that is a pool of threads.
    pub(crate) fn threads_of(&self, number: usize) -> Option<Arc<Shared>> {
        self.ports.get(number).map(|port| port.get().shared.clone()).filter(|port| port.is_for_threads())
    }
}

impl Known {
    /// Of a workflow whose code runs elsewhere.
    fn named(name: &str, signature: Option<Py<Signature>>) -> Self {
        Self { workflow: GuestWorkflow::named(name), signature: signature.map(Arc::new) }
    }

    fn input(
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

/// How durable calls are limited in time, for messages.
const TIME_LIMIT: &str = "`stepfast.timeout`, not `asyncio.timeout` or `asyncio.wait_for`";

/// The workflow of a Python function, whose code is run by whoever serves `port`, or by the caller.
fn defined(number: usize, name: &str, is_eager: bool, port: Arc<Shared>) -> GuestWorkflow {
    GuestWorkflow::new_guest(name, is_eager, port.is_for_threads(), TIME_LIMIT, move |branch, input| {
        let slot = Arc::new(Slot::default());
        // asked for at once: the code may have returned before anybody polls this
        let running = Running::new(slot.clone().body(), branch.gate(), port.clone());
        let begin = Begin { workflow: number, branch, input, slot };
        if let Some(begin) = begin_inline(begin) {
            port.push(Note::Begin(begin));
        }
        running
    })
}
