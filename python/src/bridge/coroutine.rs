//! [`CallCoroutine`]: makes calls awaitable like coroutines.
//!
//! An `await` of such a call returns the call's value. Meanwhile the call may run the body of a step, or the code of an
//! execution, in the task that awaits the call.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::bridge::branch::Branch;
use crate::bridge::call::Call;
use crate::bridge::caller_code::{CallerCode, CallerRun};
use crate::convert::step_settings::StepSettings;
use crate::exit::InterpreterGuard;
use crate::interpreter::{SendOutcome, reset_context_var, run_in_context, send, set_context_var, throw};
use crate::lock::Mutex;
use crate::poll_state::{DONE, FAILED, PENDING, RUN_BODY};
use crate::python_functions::python_functions;

/// The state of a call that is awaited like a coroutine. The `await` returns the call's value.
#[derive(Default)]
pub(crate) struct CallCoroutine {
    /// The branch that has made the call; `None` for a call of a program.
    branch: Option<Py<Branch>>,
    /// The description of a call without a body, for the warning that the call was never awaited; `None` for no
    /// warning.
    description: Option<&'static str>,
    body: CallBody,
    state: Mutex<CoroutineState>,
}

/// The code that runs while the call is awaited.
#[derive(Default)]
enum CallBody {
    #[default]
    None,
    /// The step and the arguments of its function.
    Step(Py<StepSettings>, Py<PyTuple>, Py<PyDict>),
    /// The code of an execution, until the code begins. Then the code is taken out, so that a program that keeps the
    /// call does not keep the engine.
    Code(Mutex<Option<CallerCode>>),
    /// No code, but the function that makes the handle of a started execution, and its argument: the engine's object
    /// in the package.
    Start(Py<PyAny>, Py<PyAny>),
}

#[derive(Default)]
struct CoroutineState {
    is_awaited: bool,
    running_body: Option<RunningBody>,
    /// The value that the body of a step has returned, or the exception that it has raised.
    value: Option<Py<PyAny>>,
    error: Option<Py<PyAny>>,
}

/// A body that has begun and has not ended.
struct RunningBody {
    coroutine: Py<PyAny>,
    origin: BodyOrigin,
}

/// The kind of a running body.
enum BodyOrigin {
    /// The body of a step, with the token that resets the context variable of the current code.
    Step(Py<PyAny>),
    /// The code of an execution, which runs in a context of its own.
    Code(CallerRun),
}

/// The progress of a body.
enum BodyProgress<'py> {
    Yielded(Bound<'py, PyAny>),
    /// The body has ended, and the call has this state code.
    Finished(u8),
}

impl CallCoroutine {
    /// Returns the state of a call without a body that the code of an execution makes.
    pub(crate) fn for_call(branch: Py<Branch>) -> Self {
        Self {
            branch: Some(branch),
            description: Some("a durable call, such as a sleep,"),
            ..Self::default()
        }
    }

    /// Returns the state of a call of a program.
    pub(crate) fn for_program(description: &'static str) -> Self {
        Self { description: Some(description), ..Self::default() }
    }

    /// Returns the state of a start, whose value is `make_handle(handle, host)`.
    pub(crate) fn for_start(make_handle: Py<PyAny>, host: Py<PyAny>) -> Self {
        Self { body: CallBody::Start(make_handle, host), ..Self::default() }
    }

    /// Returns the state of a step's call.
    pub(crate) fn for_step(
        branch: Py<Branch>,
        settings: Py<StepSettings>,
        args: Py<PyTuple>,
        kwargs: Py<PyDict>,
    ) -> Self {
        Self { branch: Some(branch), body: CallBody::Step(settings, args, kwargs), ..Self::default() }
    }

    /// Returns the state of a call that runs the code of an execution in the task that awaits the call.
    pub(crate) fn for_code(code: CallerCode) -> Self {
        Self { body: CallBody::Code(Mutex::new(Some(code))), ..Self::default() }
    }

    pub(crate) fn traverse(&self, visit: &pyo3::PyVisit<'_>) -> Result<(), pyo3::PyTraverseError> {
        visit.call(&self.branch)?;
        match &self.body {
            CallBody::None => {}
            CallBody::Step(settings, args, kwargs) => {
                visit.call(settings)?;
                visit.call(args)?;
                visit.call(kwargs)?;
            }
            CallBody::Code(code) => {
                code.traverse(|code| {
                    let Some(code) = code else { return Ok(()) };
                    visit.call(&code.function)?;
                    visit.call(&code.host)
                })?;
            }
            CallBody::Start(make_handle, host) => {
                visit.call(make_handle)?;
                visit.call(host)?;
            }
        }
        self.state.traverse(|state| {
            visit.call(&state.value)?;
            visit.call(&state.error)?;
            if let Some(running) = &state.running_body {
                visit.call(&running.coroutine)?;
                match &running.origin {
                    BodyOrigin::Step(context_token) => visit.call(context_token)?,
                    BodyOrigin::Code(caller_run) => {
                        visit.call(&caller_run.caller_task)?;
                        visit.call(&caller_run.context)?;
                    }
                }
            }
            Ok(())
        })
    }

    /// Marks the call as awaited; fails if it was awaited before.
    pub(crate) fn mark_awaited(&self) -> PyResult<()> {
        if self.state.with(|state| std::mem::replace(&mut state.is_awaited, true)) {
            return Err(PyRuntimeError::new_err("a call can be awaited only once: create a task for it"));
        }
        Ok(())
    }

    /// Returns a description of the call if it was never awaited.
    pub(crate) fn unawaited_description(&self) -> Option<String> {
        // code that unwinds cannot await the calls that it has made
        let is_closing = || self.branch.as_ref().is_some_and(|branch| branch.get().control().is_closing());
        if self.state.with(|state| state.is_awaited) || is_closing() {
            return None;
        }
        Some(match &self.body {
            CallBody::None => format!("{} was called", self.description?),
            CallBody::Step(settings, ..) => format!("step {:?} was called", settings.get().name()),
            CallBody::Code(_) => "engine.run(...) was called".to_owned(),
            CallBody::Start(..) => "engine.start(...) was called".to_owned(),
        })
    }

    /// Resumes the call for the task that awaits it, or throws an exception into it. Returns the object to await
    /// next, or the value of the call.
    pub(crate) fn resume<'py>(
        &self,
        call: &Bound<'py, Call>,
        thrown: Option<PyErr>,
    ) -> PyResult<SendOutcome<'py>> {
        let _guard = InterpreterGuard::enter(call.py());
        let running = self.state.with(|state| {
            state.is_awaited = true;
            state.running_body.take()
        });
        let resumed = match (running, thrown) {
            (Some(running), thrown) => self.resume_body(call, running, thrown),
            (None, None) => Ok(BodyProgress::Finished(call.get().advance())),
            (None, Some(thrown)) => self.handle_interruption(call, thrown).map(BodyProgress::Finished),
        };
        let progress = resumed.and_then(|resumed| self.run_until_blocked(call, resumed));
        if !matches!(progress, Ok(SendOutcome::Yielded(_))) {
            // ended explicitly, because a traceback may keep the call alive
            call.get().end();
        }
        progress
    }

    /// Closes the coroutine of the body, if the body runs.
    pub(crate) fn close(&self, call: &Call, py: Python<'_>) -> PyResult<()> {
        let running = self.state.with(|state| {
            state.is_awaited = true;
            state.running_body.take()
        });
        let Some(running) = running else { return Ok(()) };
        let close = || running.coroutine.call_method0(py, pyo3::intern!(py, "close"));
        let closed = match &running.origin {
            BodyOrigin::Step(_) => close(),
            BodyOrigin::Code(caller_run) => {
                let closed = run_in_context(caller_run.context.bind(py), close);
                // the caller may be ending, so the execution is deferred
                caller_run.branch.get().defer();
                closed
            }
        };
        running.leave(call, py)?;
        closed.map(drop)
    }

    /// Acts on state codes until the call is blocked or finished.
    fn run_until_blocked<'py>(
        &self,
        call: &Bound<'py, Call>,
        mut resumed: BodyProgress<'py>,
    ) -> PyResult<SendOutcome<'py>> {
        let py = call.py();
        loop {
            let state_code = match resumed {
                BodyProgress::Yielded(awaited) => return Ok(SendOutcome::Yielded(awaited)),
                BodyProgress::Finished(state_code) => state_code,
            };
            match state_code {
                PENDING => return Ok(SendOutcome::Yielded(Call::as_blocking_future(call))),
                RUN_BODY => resumed = self.begin_body(call)?,
                DONE => {
                    let value = self.state.with(|state| state.value.take());
                    let mut value = value.map_or_else(|| call.get().take_value(py), Ok)?.into_bound(py);
                    if let CallBody::Start(make_handle, host) = &self.body {
                        value = make_handle.bind(py).call1((value, host))?;
                    }
                    return Ok(SendOutcome::Returned(value));
                }
                _ => {
                    let error = self.state.with(|state| state.error.take());
                    let error = python_functions(py)?.error_of.bind(py).call1((call, state_code, error))?;
                    return Err(PyErr::from_value(error));
                }
            }
        }
    }

    /// Begins the body, which becomes the current code while it runs.
    fn begin_body<'py>(&self, call: &Bound<'py, Call>) -> PyResult<BodyProgress<'py>> {
        let py = call.py();
        let current_code = python_functions(py)?.current_code.bind(py);
        match (&self.body, &self.branch) {
            (CallBody::Step(settings, args, kwargs), Some(branch)) => {
                let settings = settings.get();
                let body = (branch, call, settings.shown_name(py), call.get().attempt()).into_pyobject(py)?;
                let origin = BodyOrigin::Step(set_context_var(current_code, &body)?);
                let coroutine = settings.function(py).call(args.bind(py), Some(kwargs.bind(py)));
                self.start_coroutine(call, origin, coroutine)
            }
            (CallBody::Code(code), _) => {
                let Some(code) = code.take() else {
                    return Err(PyRuntimeError::new_err("the code of an execution can begin only once"));
                };
                let caller_task = call.get().current_task(py)?;
                let Some((caller_run, input)) = code.begin(call, caller_task)? else {
                    // the execution was parked
                    return Ok(BodyProgress::Finished(call.get().advance()));
                };
                let context = caller_run.context.bind(py).clone();
                run_in_context(&context, || {
                    set_context_var(current_code, caller_run.branch.bind(py))?;
                    self.start_coroutine(call, BodyOrigin::Code(caller_run), code.call_function(&input))
                })
            }
            _ => Err(PyRuntimeError::new_err("a call without a body cannot run one")),
        }
    }

    /// Begins to run the coroutine that the function of a body has returned.
    fn start_coroutine<'py>(
        &self,
        call: &Bound<'py, Call>,
        origin: BodyOrigin,
        coroutine: PyResult<Bound<'py, PyAny>>,
    ) -> PyResult<BodyProgress<'py>> {
        match coroutine {
            Ok(coroutine) => {
                self.resume_in_context(call, RunningBody { coroutine: coroutine.unbind(), origin }, None)
            }
            // raised, for example, if the function does not take the arguments
            Err(raised) => {
                let running = RunningBody { coroutine: call.py().None(), origin };
                self.finish_body(call, &running, Err(raised)).map(BodyProgress::Finished)
            }
        }
    }

    /// Resumes the body in its context, or throws an exception into it.
    fn resume_body<'py>(
        &self,
        call: &Bound<'py, Call>,
        running: RunningBody,
        thrown: Option<PyErr>,
    ) -> PyResult<BodyProgress<'py>> {
        let BodyOrigin::Code(caller_run) = &running.origin else {
            return self.resume_in_context(call, running, thrown);
        };
        let context = caller_run.context.bind(call.py()).clone();
        run_in_context(&context, || self.resume_in_context(call, running, thrown))
    }

    /// Resumes the body, whose context was entered, or throws an exception into it.
    fn resume_in_context<'py>(
        &self,
        call: &Bound<'py, Call>,
        running: RunningBody,
        thrown: Option<PyErr>,
    ) -> PyResult<BodyProgress<'py>> {
        let py = call.py();
        if let BodyOrigin::Code(caller_run) = &running.origin {
            caller_run.branch.get().control().code_started();
            if let Some(thrown) = &thrown {
                // the cancellation of the caller does not cancel the execution
                let thrown = thrown.clone_ref(py).into_value(py);
                python_functions(py)?.exception_thrown.bind(py).call1((&caller_run.branch, thrown))?;
            }
        }
        let coroutine = running.coroutine.bind(py);
        let sent = match thrown {
            None => send(coroutine),
            Some(thrown) => throw(coroutine, (thrown.into_value(py),)),
        };
        match sent {
            Ok(SendOutcome::Yielded(awaited)) => {
                if let BodyOrigin::Code(caller_run) = &running.origin {
                    call.get().code_blocked(caller_run.branch.get(), py)?;
                }
                let previous = self.state.with(|state| state.running_body.replace(running));
                drop(previous);
                Ok(BodyProgress::Yielded(awaited))
            }
            Ok(SendOutcome::Returned(value)) => {
                self.finish_body(call, &running, Ok(value)).map(BodyProgress::Finished)
            }
            Err(raised) => self.finish_body(call, &running, Err(raised)).map(BodyProgress::Finished),
        }
    }

    /// Records the result of the body; returns the call's state code.
    fn finish_body<'py>(
        &self,
        call: &Bound<'py, Call>,
        running: &RunningBody,
        result: PyResult<Bound<'py, PyAny>>,
    ) -> PyResult<u8> {
        let py = call.py();
        if let BodyOrigin::Code(caller_run) = &running.origin {
            return running.finish_code(call, caller_run, result, &self.state);
        }
        running.leave(call.get(), py)?;
        let recorded = result.and_then(|value| Ok((call.get().succeed(&value)?, value)));
        match recorded {
            Ok((state_code, value)) => {
                let value = value.unbind();
                let previous = self.state.with(|state| state.value.replace(value));
                drop(previous);
                Ok(state_code)
            }
            Err(raised) => self.handle_body_error(call, raised),
        }
    }

    /// Records the exception that the body of a step has raised; returns the call's state code.
    fn handle_body_error(&self, call: &Bound<'_, Call>, raised: PyErr) -> PyResult<u8> {
        let py = call.py();
        let error = raised.clone_ref(py).into_value(py);
        let settings = if let CallBody::Step(settings, ..) = &self.body { Some(settings) } else { None };
        let state_code = python_functions(py)?.body_raised.bind(py).call1((call, settings, &error))?;
        match state_code.extract::<Option<u8>>()? {
            Some(state_code) => {
                let error = error.into_any();
                let previous = self.state.with(|state| state.error.replace(error));
                drop(previous);
                Ok(state_code)
            }
            None => self.handle_interruption(call, raised),
        }
    }

    /// Handles the cancellation of the task that awaits the call, or the end of the program. Returns the state code
    /// if the call has an outcome nevertheless; otherwise raises the exception again.
    fn handle_interruption(&self, call: &Bound<'_, Call>, raised: PyErr) -> PyResult<u8> {
        let py = call.py();
        let error = raised.clone_ref(py).into_value(py);
        let state_code =
            python_functions(py)?.call_interrupted.bind(py).call1((call, &self.branch, error))?;
        match state_code.extract::<Option<u8>>()? {
            Some(state_code @ (DONE | FAILED)) => Ok(state_code),
            _ => Err(raised),
        }
    }
}

impl RunningBody {
    /// Records the result of an execution's code; returns the call's state code.
    fn finish_code<'py>(
        &self,
        call: &Bound<'py, Call>,
        caller_run: &CallerRun,
        result: PyResult<Bound<'py, PyAny>>,
        state: &Mutex<CoroutineState>,
    ) -> PyResult<u8> {
        let py = call.py();
        let (mut unwound_with, mut is_recorded): (Option<Py<PyAny>>, bool) = (None, false);
        let state_code = match result.and_then(|output| call.get().code_returned(&output)) {
            Ok(state_code) => Ok(state_code),
            Err(raised) => {
                let error = raised.clone_ref(py).into_value(py);
                is_recorded = !caller_run.branch.get().control().is_closing();
                let state_code = python_functions(py)?.code_raised_in_caller.bind(py).call1((
                    call,
                    &caller_run.branch,
                    &error,
                ))?;
                unwound_with = Some(error.into_any());
                state_code.extract::<Option<u8>>()?.ok_or(raised)
            }
        };
        if self.leave(call.get(), py)? {
            python_functions(py)?.caller_finished.bind(py).call1((
                &caller_run.branch,
                &caller_run.caller_task,
                &unwound_with,
            ))?;
        }
        // the original exception is kept for the caller, because the recorded one has no traceback
        let error = unwound_with.filter(|_| is_recorded);
        let previous = state.with(|state| std::mem::replace(&mut state.error, error));
        drop(previous);
        state_code
    }

    /// Leaves the body, so that the previous code is the current one again. Returns true if the package has to check
    /// how the code of an execution has ended.
    fn leave(&self, call: &Call, py: Python<'_>) -> PyResult<bool> {
        match &self.origin {
            BodyOrigin::Step(context_token) => {
                // in another context, where the garbage collector closes the body, nothing has to be reset
                reset_context_var(python_functions(py)?.current_code.bind(py), context_token);
                Ok(false)
            }
            BodyOrigin::Code(caller_run) => Ok(caller_run.finish(call, py)),
        }
    }
}
