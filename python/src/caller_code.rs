//! [`CallerCode`]: the code of an execution that its caller runs, in a task that is not ours.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PySet};

use crate::branch::Branch;
use crate::call::Call;
use crate::ending::stopped;

/// What the code is called with, beside what is recorded.
pub(crate) struct CallerCode {
    pub(crate) function: Py<PyAny>,
    /// What the package knows the engine by.
    pub(crate) home: Py<PyAny>,
}

/// What a loop knows of callers whose code runs, by run: their tasks, what guards those, and which unwind.
pub(crate) struct Callers {
    pub(crate) tasks: Py<PyDict>,
    pub(crate) guards: Py<PyDict>,
    pub(crate) unwound: Py<PySet>,
}

/// The code of one execution, while it runs.
pub(crate) struct Entered {
    pub(crate) branch: Py<Branch>,
    /// The caller's task.
    pub(crate) caller: Py<PyAny>,
}

impl CallerCode {
    /// The first branch of the code that begins, and its arguments; `None` if those cannot be read.
    pub(crate) fn enter<'py>(
        &self,
        call: &Bound<'py, Call>,
        caller: Bound<'py, PyAny>,
    ) -> PyResult<Option<(Entered, Bound<'py, PyAny>)>> {
        let py = call.py();
        let Some((branch, input)) = Call::begun(call) else { return Ok(None) };
        let branch = Bound::new(py, branch.at_home(self.home.clone_ref(py)))?;
        if let Some(callers) = call.get().callers(py) {
            callers.tasks.bind(py).set_item(branch.get().run(), &caller)?;
        }
        Ok(Some((Entered { branch: branch.unbind(), caller: caller.unbind() }, input)))
    }

    /// Calls the function: a coroutine.
    pub(crate) fn called<'py>(&self, input: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let (args, kwargs) = (input.get_item(0)?, input.get_item(1)?);
        let args = args.cast::<PyList>()?.to_tuple();
        self.function.bind(input.py()).call(args, Some(kwargs.cast::<PyDict>()?))
    }
}

impl Entered {
    /// The code has ended. True if somebody has to look at how.
    pub(crate) fn leave(&self, call: &Call, py: Python<'_>) -> PyResult<bool> {
        let Some(callers) = call.callers(py) else { return Ok(false) };
        callers.tasks.bind(py).del_item(self.branch.get().run())?;
        Ok(!callers.guards.bind(py).is_empty()
            || !callers.unwound.bind(py).is_empty()
            || stopped(self.branch.get().gate()) != 0)
    }
}
