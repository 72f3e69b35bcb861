//! [`StepSettings`]: the settings that all calls of a step share.

use std::collections::BTreeSet;
use std::sync::OnceLock;
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyString;
use stepfast::graph::TaskPlace;
use stepfast::{Name, Pauses, RetryPolicy, StepOptions};

use crate::convert::durations::duration_of;
use crate::convert::signature::Signature;
use crate::lock::Mutex;

/// The settings of a step, created once per step function. The settings contain no time limit, because the package
/// enforces the limit of an attempt.
#[pyclass(frozen)]
pub(crate) struct StepSettings {
    pub(crate) name: Name,
    /// The options of the step in the engine; `None` for the defaults.
    pub(crate) options: Option<StepOptions>,
    /// The function that gets the step's arguments and returns the coroutine of the body.
    function: Py<PyAny>,
    /// The function that decides whether an exception may be retried; `None` if every exception may.
    #[pyo3(get)]
    retry_if: Option<Py<PyAny>>,
    shown_name: Py<PyString>,
    /// The parameters of the step's function, if they are known.
    signature: Option<Py<Signature>>,
    /// The place in the record of a step that is a task of a graph; empty for other steps.
    task_place: OnceLock<TaskPlace>,
}

impl StepSettings {
    pub(crate) fn name(&self) -> String {
        self.name.to_string()
    }

    /// Makes the step a task of a graph. Only the first call has an effect.
    pub(crate) fn bind_task(&self, place: TaskPlace) {
        let _ = self.task_place.set(place);
    }

    pub(crate) fn task_place(&self) -> Option<TaskPlace> {
        self.task_place.get().copied()
    }

    pub(crate) fn shown_name<'py>(&self, py: Python<'py>) -> &Bound<'py, PyString> {
        self.shown_name.bind(py)
    }

    pub(crate) fn signature<'py>(&'py self, py: Python<'py>) -> Option<&'py Signature> {
        self.signature.as_ref().map(|signature| signature.bind(py).get())
    }

    pub(crate) fn function<'py>(&self, py: Python<'py>) -> &Bound<'py, PyAny> {
        self.function.bind(py)
    }
}

#[pymethods]
impl StepSettings {
    #[new]
    #[pyo3(signature = (name, retries, backoff, factor, max_backoff, jitter, is_speculative, function, retry_if, signature, pauses=None))]
    #[allow(clippy::too_many_arguments)] // arguments by name, once per step function
    fn new(
        name: &Bound<'_, PyString>,
        retries: u32,
        backoff: f64,
        factor: f64,
        max_backoff: f64,
        jitter: f64,
        is_speculative: bool,
        function: Py<PyAny>,
        retry_if: Option<Py<PyAny>>,
        signature: Option<Py<Signature>>,
        pauses: Option<Vec<f64>>,
    ) -> PyResult<Self> {
        let is_default = retries == 0 && !is_speculative;
        let retry = RetryPolicy {
            retries,
            backoff: duration_of(backoff),
            backoff_factor: factor,
            max_backoff: duration_of(max_backoff),
            pauses: pauses.map_or(Pauses::Exponential, |pauses| {
                Pauses::Listed(shared_pauses(pauses.into_iter().map(duration_of).collect()))
            }),
            jitter,
            retry_if: None,
        };
        let options = StepOptions { retry, timeout: None, is_speculative };
        Ok(Self {
            name: name.to_str()?.to_owned().into(),
            options: (!is_default).then_some(options),
            function,
            retry_if,
            shown_name: name.clone().unbind(),
            signature,
            task_place: OnceLock::new(),
        })
    }

    /// Returns the settings of an item, if the step is a task that is mapped over items.
    fn for_item(&self, py: Python<'_>, index: u32) -> Self {
        self.at(py, self.task_place().map(|place| place.item(index)))
    }

    /// Returns the settings of the task's next repetition.
    fn for_repetition(&self, py: Python<'_>) -> Self {
        self.at(py, self.task_place().map(TaskPlace::repeated))
    }

    /// Returns these settings of a callback, at the place of the callback for the end of a task.
    fn at_end_of(&self, py: Python<'_>, task: &Self, has_succeeded: bool) -> Self {
        self.at(py, task.task_place().map(|place| place.callback(has_succeeded)))
    }

    /// The position of the task in the record; None for other steps.
    #[getter]
    fn path(&self) -> Option<String> {
        self.task_place().map(|place| place.path().to_string())
    }

    /// The name of the step.
    #[getter(name)]
    fn text(&self) -> String {
        self.name()
    }

    fn __traverse__(&self, visit: pyo3::PyVisit<'_>) -> Result<(), pyo3::PyTraverseError> {
        visit.call(&self.function)?;
        visit.call(&self.signature)?;
        visit.call(&self.retry_if)
    }
}

impl StepSettings {
    /// Returns the settings of the same task at another place.
    fn at(&self, py: Python<'_>, place: Option<TaskPlace>) -> Self {
        let task_place = OnceLock::new();
        if let Some(place) = place {
            let _ = task_place.set(place);
        }
        Self {
            name: self.name.clone(),
            options: self.options,
            function: self.function.clone_ref(py),
            retry_if: self.retry_if.as_ref().map(|function| function.clone_ref(py)),
            shown_name: self.shown_name.clone_ref(py),
            signature: self.signature.as_ref().map(|signature| signature.clone_ref(py)),
            task_place,
        }
    }
}

/// Returns a list of pauses that lives as long as the program, because policies are copied for each call. Equal lists
/// share their memory, so a program that defines a step many times keeps one list.
fn shared_pauses(pauses: Vec<Duration>) -> &'static [Duration] {
    static LISTS: Mutex<BTreeSet<&'static [Duration]>> = Mutex::new(BTreeSet::new());
    LISTS.with(|lists| {
        let list = lists.get(&*pauses).copied();
        list.unwrap_or_else(|| {
            let list = &*pauses.leak();
            lists.insert(list);
            list
        })
    })
}
