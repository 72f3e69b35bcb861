//! [`Carried`]: calls that are awaited like coroutines: for a value, or for what comes of the body of a step, which
//! runs in the task that awaits it, or of the code of an execution.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::bridge::branch::Branch;
use crate::bridge::call::Call;
use crate::bridge::caller_code::{CallerCode, Entered};
use crate::convert::step_settings::StepSettings;
use crate::exit::InterpreterGuard;
use crate::interpreter::{SendOutcome, reset, send, set_context_var, throw};
use crate::lock::Mutex;
use crate::poll_state::{BODY, DONE, FAILED, PENDING};
use crate::python_functions::package;

/// What makes a call an awaitable that comes to its value, like a coroutine.
#[derive(Default)]
pub(crate) struct Carried {
    /// Of a call of an execution's code.
    branch: Option<Py<Branch>>,
    /// Of a call without a body, what is missing if nobody awaits it.
    what: Option<&'static str>,
    body: Body,
    state: Mutex<State>,
}

/// What is run while the call is awaited.
#[derive(Default)]
enum Body {
    #[default]
    None,
    /// The function, and what it is called with.
    Step(Py<StepSettings>, Py<PyTuple>, Py<PyDict>),
    /// The code of an execution, until it begins: whoever holds the call keeps no engine.
    Code(Mutex<Option<CallerCode>>),
    /// None: what makes a handle of what has been started, and what the package knows the engine by.
    Started(Py<PyAny>, Py<PyAny>),
}

#[derive(Default)]
struct State {
    is_awaited: bool,
    running: Option<Running>,
    /// What the body of a step has returned, or raised.
    value: Option<Py<PyAny>>,
    error: Option<Py<PyAny>>,
}

/// A body that runs, and what ends that it is the current code.
struct Running {
    coroutine: Py<PyAny>,
    /// What resets what runs here.
    token: Py<PyAny>,
    /// Of the code of an execution.
    code: Option<Entered>,
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
        Self { branch: Some(branch), what: Some("a sleep, or a child,"), ..Self::default() }
    }

    /// Of a call of a program.
    pub(crate) fn named(what: &'static str) -> Self {
        Self { what: Some(what), ..Self::default() }
    }

    /// Of a start, which comes to what `made` makes of its handle and `home`.
    pub(crate) fn started(made: Py<PyAny>, home: Py<PyAny>) -> Self {
        Self { body: Body::Started(made, home), ..Self::default() }
    }

    /// Of a step.
    pub(crate) fn step(
        branch: Py<Branch>,
        settings: Py<StepSettings>,
        args: Py<PyTuple>,
        kwargs: Py<PyDict>,
    ) -> Self {
        Self { branch: Some(branch), body: Body::Step(settings, args, kwargs), ..Self::default() }
    }

    /// Of an execution whose code runs where the call is awaited.
    pub(crate) fn code(code: CallerCode) -> Self {
        Self { body: Body::Code(Mutex::new(Some(code))), ..Self::default() }
    }

    pub(crate) fn traverse(&self, visit: &pyo3::PyVisit<'_>) -> Result<(), pyo3::PyTraverseError> {
        visit.call(&self.branch)?;
        match &self.body {
            Body::None => {}
            Body::Step(settings, args, kwargs) => {
                visit.call(settings)?;
                visit.call(args)?;
                visit.call(kwargs)?;
            }
            Body::Code(code) => {
                code.traverse(|code| {
                    let Some(code) = code else { return Ok(()) };
                    visit.call(&code.function)?;
                    visit.call(&code.home)
                })?;
            }
            Body::Started(made, home) => {
                visit.call(made)?;
                visit.call(home)?;
            }
        }
        self.state.traverse(|state| {
            visit.call(&state.value)?;
            visit.call(&state.error)?;
            if let Some(running) = &state.running {
                visit.call(&running.coroutine)?;
                visit.call(&running.token)?;
                if let Some(entered) = &running.code {
                    visit.call(&entered.caller)?;
                }
            }
            Ok(())
        })
    }

    /// Somebody awaits the call: nobody else may.
    pub(crate) fn set_awaited(&self) -> PyResult<()> {
        if self.state.with(|state| std::mem::replace(&mut state.is_awaited, true)) {
            return Err(PyRuntimeError::new_err("a call can be awaited once only: make a task of it"));
        }
        Ok(())
    }

    /// What has not been done, if nobody has awaited it.
    pub(crate) fn unawaited(&self) -> Option<String> {
        // code that unwinds leaves calls behind
        let is_closing = || self.branch.as_ref().is_some_and(|branch| branch.get().gate().is_closing());
        if self.state.with(|state| state.is_awaited) || is_closing() {
            return None;
        }
        Some(match &self.body {
            Body::None => format!("{} was called", self.what?),
            Body::Step(settings, ..) => format!("step {:?} was called", settings.get().name()),
            Body::Code(_) => "engine.run(...) was called".to_owned(),
            Body::Started(..) => "engine.start(...) was called".to_owned(),
        })
    }

    /// The task that awaits the call goes on, or something is `thrown` into it. What it waits for next, or the
    /// value it has come to.
    pub(crate) fn go_on<'py>(&self, call: &Bound<'py, Call>, thrown: Option<PyErr>) -> PyResult<SendOutcome<'py>> {
        let _inside = InterpreterGuard::enter(call.py());
        let running = self.state.with(|state| {
            state.is_awaited = true;
            state.running.take()
        });
        let gone_on = match (running, thrown) {
            (Some(running), thrown) => self.resume(call, running, thrown),
            (None, None) => Ok(Resumed::Ended(call.get().advance())),
            (None, Some(thrown)) => self.interrupted(call, thrown).map(Resumed::Ended),
        };
        let followed = gone_on.and_then(|resumed| self.follow(call, resumed));
        if !matches!(followed, Ok(SendOutcome::Yielded(_))) {
            // a traceback may keep it
            call.get().end();
        }
        followed
    }

    /// Ends the body, if it runs.
    pub(crate) fn close(&self, call: &Call, py: Python<'_>) -> PyResult<()> {
        let running = self.state.with(|state| {
            state.is_awaited = true;
            state.running.take()
        });
        let Some(running) = running else { return Ok(()) };
        let closed = running.coroutine.call_method0(py, pyo3::intern!(py, "close"));
        if let Some(entered) = &running.code {
            // nobody knows what comes of the caller
            entered.branch.get().put_off();
        }
        running.leave(call, py)?;
        closed.map(drop)
    }

    /// Does what it is the turn for.
    fn follow<'py>(&self, call: &Bound<'py, Call>, mut resumed: Resumed<'py>) -> PyResult<SendOutcome<'py>> {
        let py = call.py();
        loop {
            let turn = match resumed {
                Resumed::Yielded(awaited) => return Ok(SendOutcome::Yielded(awaited)),
                Resumed::Ended(turn) => turn,
            };
            match turn {
                PENDING => return Ok(SendOutcome::Yielded(Call::blocking(call))),
                BODY => resumed = self.begin(call)?,
                DONE => {
                    let value = self.state.with(|state| state.value.take());
                    let mut value = value.map_or_else(|| call.get().value(py), Ok)?.into_bound(py);
                    if let Body::Started(made, home) = &self.body {
                        value = made.bind(py).call1((value, home))?;
                    }
                    return Ok(SendOutcome::Returned(value));
                }
                _ => {
                    let error = self.state.with(|state| state.error.take());
                    let over = package(py)?.over.bind(py).call1((call, turn, error))?;
                    return Err(PyErr::from_value(over));
                }
            }
        }
    }

    /// Begins the body, which is the current code while it runs.
    fn begin<'py>(&self, call: &Bound<'py, Call>) -> PyResult<Resumed<'py>> {
        let py = call.py();
        let here = package(py)?.here_var.bind(py);
        let (token, code, coroutine) = match (&self.body, &self.branch) {
            (Body::Step(settings, args, kwargs), Some(branch)) => {
                let settings = settings.get();
                let body = (branch, call, settings.shown_name(py)).into_pyobject(py)?;
                let token = set_context_var(here, &body)?;
                (token, None, settings.function(py).call(args.bind(py), Some(kwargs.bind(py))))
            }
            (Body::Code(code), _) => {
                let Some(code) = code.take() else {
                    return Err(PyRuntimeError::new_err("the code of an execution has begun before"));
                };
                let caller = call.get().current_task(py)?;
                let Some((entered, input)) = code.enter(call, caller)? else {
                    // it is parked
                    return Ok(Resumed::Ended(call.get().advance()));
                };
                let token = set_context_var(here, entered.branch.bind(py))?;
                (token, Some(entered), code.called(&input))
            }
            _ => return Err(PyRuntimeError::new_err("a call without a body is asked for it")),
        };
        match coroutine {
            Ok(coroutine) => {
                let running = Running { coroutine: coroutine.unbind(), token, code };
                self.resume(call, running, None)
            }
            // called with arguments that it does not take
            Err(raised) => {
                let running = Running { coroutine: py.None(), token, code };
                self.ended(call, &running, Err(raised)).map(Resumed::Ended)
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
        if let Some(entered) = &running.code {
            entered.branch.get().gate().code_runs();
            if let Some(thrown) = &thrown {
                // that its caller is cancelled is none of the execution's business
                let thrown = thrown.clone_ref(py).into_value(py);
                package(py)?.thrown.bind(py).call1((&entered.branch, thrown))?;
            }
        }
        let coroutine = running.coroutine.bind(py);
        let sent = match thrown {
            None => send(coroutine),
            Some(thrown) => throw(coroutine, (thrown.into_value(py),)),
        };
        match sent {
            Ok(SendOutcome::Yielded(awaited)) => {
                if let Some(entered) = &running.code {
                    call.get().code_waits(entered.branch.get(), py)?;
                }
                let before = self.state.with(|state| state.running.replace(running));
                drop(before);
                Ok(Resumed::Yielded(awaited))
            }
            Ok(SendOutcome::Returned(value)) => self.ended(call, &running, Ok(value)).map(Resumed::Ended),
            Err(raised) => self.ended(call, &running, Err(raised)).map(Resumed::Ended),
        }
    }

    /// The body has returned, or raised something: whose turn it is.
    fn ended<'py>(
        &self,
        call: &Bound<'py, Call>,
        running: &Running,
        result: PyResult<Bound<'py, PyAny>>,
    ) -> PyResult<u8> {
        let py = call.py();
        if let Some(entered) = &running.code {
            return running.code_ended(call, entered, result, &self.state);
        }
        running.leave(call.get(), py)?;
        let recorded = result.and_then(|value| Ok((call.get().succeed(&value)?, value)));
        match recorded {
            Ok((turn, value)) => {
                let value = value.unbind();
                let before = self.state.with(|state| state.value.replace(value));
                drop(before);
                Ok(turn)
            }
            Err(raised) => self.failed(call, raised),
        }
    }

    /// The body of a step has raised something: whose turn it is.
    fn failed(&self, call: &Bound<'_, Call>, raised: PyErr) -> PyResult<u8> {
        let py = call.py();
        let error = raised.clone_ref(py).into_value(py);
        let settings = if let Body::Step(settings, ..) = &self.body { Some(settings) } else { None };
        let turn = package(py)?.failed.bind(py).call1((call, settings, &error))?;
        match turn.extract::<Option<u8>>()? {
            Some(turn) => {
                let error = error.into_any();
                let before = self.state.with(|state| state.error.replace(error));
                drop(before);
                Ok(turn)
            }
            None => self.interrupted(call, raised),
        }
    }

    /// What awaits the call is cancelled, or the program is to end: whose turn it is, if it is not over with what
    /// was raised.
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
    /// The code of an execution has ended.
    fn code_ended<'py>(
        &self,
        call: &Bound<'py, Call>,
        entered: &Entered,
        result: PyResult<Bound<'py, PyAny>>,
        state: &Mutex<State>,
    ) -> PyResult<u8> {
        let py = call.py();
        let (mut unwound, mut counts): (Option<Py<PyAny>>, bool) = (None, false);
        let turn = match result.and_then(|output| call.get().returned(&output)) {
            Ok(turn) => Ok(turn),
            Err(raised) => {
                let error = raised.clone_ref(py).into_value(py);
                counts = !entered.branch.get().gate().is_closing();
                let turn = package(py)?.raised.bind(py).call1((call, &entered.branch, &error))?;
                unwound = Some(error.into_any());
                turn.extract::<Option<u8>>()?.ok_or(raised)
            }
        };
        if self.leave(call.get(), py)? {
            package(py)?.left.bind(py).call1((&entered.branch, &entered.caller, &unwound))?;
        }
        // what is recorded of it has no traceback
        let error = unwound.filter(|_| counts);
        let before = state.with(|state| std::mem::replace(&mut state.error, error));
        drop(before);
        turn
    }

    /// It is not the current code any more. True if somebody has to look at how code has ended.
    fn leave(&self, call: &Call, py: Python<'_>) -> PyResult<bool> {
        let has_trouble = match &self.code {
            Some(entered) => entered.leave(call, py),
            None => false,
        };
        // where the collector closes it, in some other context, there is nothing to reset
        reset(package(py)?.here_var.bind(py), &self.token);
        Ok(has_trouble)
    }
}
