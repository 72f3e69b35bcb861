//! [`Carried`]: calls that are awaited like coroutines: for a value, or for what comes of the body of a step, which
//! runs in the task that awaits it.

use pyo3::exceptions::{PyRuntimeError, PyStopIteration};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple};
use stepfast::lock::Mutex;

use crate::branch::{Branch, StepSettings};
use crate::call::{BODY, Call, DONE, FAILED, PENDING};
use crate::interpreter::{Sent, reset, returned, send, set};

/// What the package has for it.
struct Package {
    branch_var: Py<PyAny>,
    body_var: Py<PyAny>,
    failed: Py<PyAny>,
    interrupted: Py<PyAny>,
    over: Py<PyAny>,
}

fn package(py: Python<'_>) -> PyResult<&'static Package> {
    static PACKAGE: PyOnceLock<Package> = PyOnceLock::new();
    PACKAGE.get_or_try_init(py, || {
        let found = |module: &str, name: &str| PyResult::Ok(py.import(module)?.getattr(name)?.unbind());
        Ok(Package {
            branch_var: found("stepfast.branch", "branch_var")?,
            body_var: found("stepfast.current", "body_var")?,
            failed: found("stepfast.carried", "failed")?,
            interrupted: found("stepfast.carried", "interrupted")?,
            over: found("stepfast.carried", "over")?,
        })
    })
}

/// What makes a call an awaitable that comes to its value, like a coroutine.
#[derive(Default)]
pub(crate) struct Carried {
    /// Of a call of an execution's code.
    branch: Option<Py<Branch>>,
    body: Option<Body>,
    state: Mutex<State>,
}

/// The body of a step: the function, and what it is called with.
struct Body {
    settings: Py<StepSettings>,
    args: Py<PyTuple>,
    kwargs: Py<PyDict>,
}

#[derive(Default)]
struct State {
    is_awaited: bool,
    running: Option<Running>,
    /// What the body has returned, or raised.
    value: Option<Py<PyAny>>,
    error: Option<Py<PyAny>>,
}

/// A body that runs, and what ends that its step is the current one.
struct Running {
    coroutine: Py<PyAny>,
    branch_token: Py<PyAny>,
    body_token: Py<PyAny>,
}

/// How far the body came.
enum Resumed<'py> {
    Yielded(Bound<'py, PyAny>),
    /// It has ended: whose turn it is.
    Ended(u8),
}

impl Carried {
    /// Of a call without a body, made by the code of an execution.
    pub(crate) fn of(branch: Py<Branch>) -> Self {
        Self { branch: Some(branch), ..Self::default() }
    }

    /// Of a step.
    pub(crate) fn step(
        branch: Py<Branch>,
        settings: Py<StepSettings>,
        args: Py<PyTuple>,
        kwargs: Py<PyDict>,
    ) -> Self {
        let body = Body { settings, args, kwargs };
        Self { branch: Some(branch), body: Some(body), state: Mutex::default() }
    }

    pub(crate) fn traverse(&self, visit: &pyo3::PyVisit<'_>) -> Result<(), pyo3::PyTraverseError> {
        visit.call(&self.branch)?;
        if let Some(body) = &self.body {
            visit.call(&body.settings)?;
            visit.call(&body.args)?;
            visit.call(&body.kwargs)?;
        }
        // whoever holds the lock has the interpreter's too, and does not collect
        let Some(state) = self.state.try_lock() else { return Ok(()) };
        visit.call(&state.value)?;
        visit.call(&state.error)?;
        if let Some(running) = &state.running {
            visit.call(&running.coroutine)?;
            visit.call(&running.branch_token)?;
            visit.call(&running.body_token)?;
        }
        Ok(())
    }

    /// Somebody awaits the call: nobody else may.
    pub(crate) fn set_awaited(&self) -> PyResult<()> {
        if std::mem::replace(&mut self.state.lock().is_awaited, true) {
            return Err(PyRuntimeError::new_err("a durable call can be awaited once only: use a task"));
        }
        Ok(())
    }

    /// The name of the step, if nobody has awaited it.
    pub(crate) fn name_of_unawaited(&self) -> Option<String> {
        let body = self.body.as_ref()?;
        (!self.state.lock().is_awaited).then(|| body.settings.get().name())
    }

    /// The task that awaits the call goes on, or something is `thrown` into it. What it waits for next; `None`
    /// if that is the call. Ends as an iterator does.
    pub(crate) fn go_on<'py>(
        &self,
        call: &Bound<'py, Call>,
        thrown: Option<PyErr>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let running = {
            let mut state = self.state.lock();
            state.is_awaited = true;
            state.running.take()
        };
        let gone_on = match (running, thrown) {
            (Some(running), thrown) => self.resume(call, running, thrown),
            (None, None) => Ok(Resumed::Ended(call.get().advance(call.py()))),
            (None, Some(thrown)) => self.interrupted(call, thrown).map(Resumed::Ended),
        };
        let followed = gone_on.and_then(|resumed| self.follow(call, resumed));
        if followed.is_err() {
            // a traceback may keep it
            call.get().end();
        }
        followed
    }

    /// Ends the body, if it runs.
    pub(crate) fn close(&self, py: Python<'_>) -> PyResult<()> {
        let running = {
            let mut state = self.state.lock();
            state.is_awaited = true;
            state.running.take()
        };
        let Some(running) = running else { return Ok(()) };
        let closed = running.coroutine.call_method0(py, pyo3::intern!(py, "close"));
        running.leave(py)?;
        closed.map(drop)
    }

    /// Does what it is the turn for.
    fn follow<'py>(
        &self,
        call: &Bound<'py, Call>,
        mut resumed: Resumed<'py>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let py = call.py();
        loop {
            let turn = match resumed {
                Resumed::Yielded(awaited) => return Ok(Some(awaited)),
                Resumed::Ended(turn) => turn,
            };
            match turn {
                PENDING => return Ok(None),
                BODY => resumed = self.begin(call)?,
                DONE => {
                    let value = self.state.lock().value.take();
                    let value = value.map_or_else(|| call.get().value(py), Ok)?;
                    return Err(returned(value.into_bound(py)));
                }
                _ => {
                    let error = self.state.lock().error.take();
                    let over = package(py)?.over.bind(py).call1((call, turn, error))?;
                    return Err(PyErr::from_value(over));
                }
            }
        }
    }

    /// Begins the body of the step, which is the current one while that runs.
    fn begin<'py>(&self, call: &Bound<'py, Call>) -> PyResult<Resumed<'py>> {
        let py = call.py();
        let (Some(body), Some(branch)) = (&self.body, &self.branch) else {
            return Err(PyRuntimeError::new_err("a call without a body is asked for it"));
        };
        let (package, settings) = (package(py)?, body.settings.get());
        let current = (branch, call, settings.shown_name(py)).into_pyobject(py)?;
        let branch_token = set(package.branch_var.bind(py), py.None().bind(py))?;
        let body_token = set(package.body_var.bind(py), &current)?;
        let coroutine = settings.function(py).call(body.args.bind(py), Some(body.kwargs.bind(py)));
        let (coroutine, raised) = match coroutine {
            Ok(coroutine) => (coroutine.unbind(), None),
            // called with arguments that it does not take
            Err(raised) => (py.None(), Some(raised)),
        };
        let running = Running { coroutine, branch_token, body_token };
        match raised {
            None => self.resume(call, running, None),
            Some(raised) => {
                running.leave(py)?;
                self.failed(call, raised).map(Resumed::Ended)
            }
        }
    }

    /// The body goes on, or something is thrown into it.
    fn resume<'py>(
        &self,
        call: &Bound<'py, Call>,
        running: Running,
        thrown: Option<PyErr>,
    ) -> PyResult<Resumed<'py>> {
        let py = call.py();
        let coroutine = running.coroutine.bind(py);
        let sent = match thrown {
            None => send(coroutine),
            Some(thrown) => throw(coroutine, thrown),
        };
        let turn = match sent {
            Ok(Sent::Yielded(awaited)) => {
                self.state.lock().running = Some(running);
                return Ok(Resumed::Yielded(awaited));
            }
            Ok(Sent::Returned(value)) => {
                running.leave(py)?;
                match call.get().succeed(py, &value) {
                    Ok(turn) => {
                        self.state.lock().value = Some(value.unbind());
                        turn
                    }
                    Err(raised) => self.failed(call, raised)?,
                }
            }
            Err(raised) => {
                running.leave(py)?;
                self.failed(call, raised)?
            }
        };
        Ok(Resumed::Ended(turn))
    }

    /// The body has raised something: whose turn it is.
    fn failed(&self, call: &Bound<'_, Call>, raised: PyErr) -> PyResult<u8> {
        let py = call.py();
        let error = raised.clone_ref(py).into_value(py);
        let settings = self.body.as_ref().map(|body| body.settings.clone_ref(py));
        let turn = package(py)?.failed.bind(py).call1((call, settings, &error))?;
        match turn.extract::<Option<u8>>()? {
            Some(turn) => {
                self.state.lock().error = Some(error.into_any());
                Ok(turn)
            }
            None => self.interrupted(call, raised),
        }
    }

    /// What awaits the call is cancelled, or the program is told to end: whose turn it is, if it is not over with
    /// what was raised.
    fn interrupted(&self, call: &Bound<'_, Call>, raised: PyErr) -> PyResult<u8> {
        let py = call.py();
        let error = raised.clone_ref(py).into_value(py);
        let turn = package(py)?.interrupted.bind(py).call1((call, &self.branch, error))?;
        match turn.extract::<Option<u8>>()? {
            Some(turn @ (DONE | FAILED)) => Ok(turn),
            _ => Err(raised),
        }
    }
}

impl Running {
    /// The step is not the current one any more.
    fn leave(&self, py: Python<'_>) -> PyResult<()> {
        let package = package(py)?;
        // where the collector closes it, in some other context, there is nothing to reset
        reset(package.body_var.bind(py), &self.body_token);
        reset(package.branch_var.bind(py), &self.branch_token);
        Ok(())
    }
}

fn throw<'py>(coroutine: &Bound<'py, PyAny>, thrown: PyErr) -> PyResult<Sent<'py>> {
    let py = coroutine.py();
    match coroutine.call_method1(pyo3::intern!(py, "throw"), (thrown.into_value(py),)) {
        Ok(awaited) => Ok(Sent::Yielded(awaited)),
        Err(raised) if raised.is_instance_of::<PyStopIteration>(py) => {
            Ok(Sent::Returned(raised.value(py).getattr(pyo3::intern!(py, "value"))?))
        }
        Err(raised) => Err(raised),
    }
}
