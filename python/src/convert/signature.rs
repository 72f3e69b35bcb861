//! [`Signature`]: the parameters of a function. Calls are checked against it before they are recorded, and have one
//! fingerprint however they are spelled.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyString, PyTuple};
use stepfast::Payload;

use crate::convert::value::{encode, fingerprint};
use crate::exit::InterpreterGuard;

/// The parameters of a step or of a workflow.
#[pyclass(frozen)]
pub(crate) struct Signature {
    /// Those that may be given by position, in their order.
    positional: Vec<Parameter>,
    /// The number of these, the first ones, that may not be given by name.
    only_by_position: usize,
    /// The number of these, the first ones, that have no default.
    required: usize,
    only_by_name: Vec<Parameter>,
    takes_more_by_position: bool,
    takes_more_by_name: bool,
    /// The same for Python, which says what is wrong with a call.
    signature: Py<PyAny>,
    /// Of the function.
    name: String,
}

struct Parameter {
    name: Py<PyString>,
    default: Option<Default>,
}

struct Default {
    value: Py<PyAny>,
    /// As it is recorded; `None` if it cannot be.
    encoded: PyOnceLock<Option<Payload>>,
}

impl Default {
    /// Returns true if the value is recorded as the default is.
    fn is(&self, value: &Bound<'_, PyAny>) -> bool {
        let py = value.py();
        if value.is(&self.value) {
            return true;
        }
        let encoded = self.encoded.get_or_init(py, || encode(self.value.bind(py)).ok());
        encoded.as_ref().is_some_and(|encoded| encode(value).is_ok_and(|value| value == *encoded))
    }
}

impl Parameter {
    fn is_default(&self, value: &Bound<'_, PyAny>) -> bool {
        self.default.as_ref().is_some_and(|default| default.is(value))
    }

    fn is_called(&self, py: Python<'_>, name: &Bound<'_, PyString>) -> bool {
        self.name.is(name) || self.name.bind(py).as_any().eq(name).unwrap_or(false)
    }
}

/// Arguments by position and by name.
type Arguments<'py> = (Bound<'py, PyTuple>, Bound<'py, PyDict>);

impl Signature {
    /// Refuses a call that the function does not take.
    pub(crate) fn check(&self, args: &Bound<'_, PyTuple>, kwargs: &Bound<'_, PyDict>) -> PyResult<()> {
        if self.takes(args.len(), kwargs) {
            return Ok(());
        }
        let py = args.py();
        let _inside = InterpreterGuard::enter(py);
        let signature = self.signature.bind(py);
        let bound = signature.call_method(pyo3::intern!(py, "bind"), args, Some(kwargs));
        match bound {
            Ok(_) => Ok(()),
            Err(raised) if raised.is_instance_of::<PyTypeError>(py) => Err(PyTypeError::new_err(format!(
                "the arguments do not fit {}{signature}: {}",
                self.name,
                raised.value(py)
            ))),
            Err(raised) => Err(raised),
        }
    }

    /// Returns true if the function takes `given` arguments by position, and these by name.
    fn takes(&self, given: usize, kwargs: &Bound<'_, PyDict>) -> bool {
        let py = kwargs.py();
        if given > self.positional.len() && !self.takes_more_by_position {
            return false;
        }
        if kwargs.is_empty() {
            let is_required = |parameter: &Parameter| parameter.default.is_none();
            return given >= self.required && !self.only_by_name.iter().any(is_required);
        }
        let mut by_name = 0;
        for name in kwargs.keys().iter() {
            let Ok(name) = name.cast_into::<PyString>() else { return false };
            let place = self.positional.iter().position(|parameter| parameter.is_called(py, &name));
            match place {
                Some(place) if place >= self.only_by_position => {
                    if place < given {
                        return false;
                    }
                    by_name += usize::from(place < self.required);
                }
                _ => {
                    let is_known = self.only_by_name.iter().any(|parameter| parameter.is_called(py, &name));
                    if !is_known && !self.takes_more_by_name {
                        return false;
                    }
                }
            }
        }
        let is_there = |parameter: &Parameter| {
            parameter.default.is_some() || kwargs.contains(&parameter.name).unwrap_or(false)
        };
        given.min(self.required) + by_name >= self.required && self.only_by_name.iter().all(is_there)
    }

    /// Returns what tells a call apart, without its first `bound` arguments; `None` if it cannot be recorded.
    pub(crate) fn fingerprint(
        &self,
        args: &Bound<'_, PyTuple>,
        kwargs: &Bound<'_, PyDict>,
        bound: usize,
    ) -> Option<u64> {
        match self.one_spelling(args, kwargs, bound) {
            Some((args, kwargs)) => fingerprint(&args, &kwargs),
            None => fingerprint(args, kwargs),
        }
    }

    /// Returns the fingerprint of a call that has another spelling; `None` if its arguments as given are that.
    pub(crate) fn fingerprint_if_respelled(
        &self,
        args: &Bound<'_, PyTuple>,
        kwargs: &Bound<'_, PyDict>,
    ) -> Option<u64> {
        let (args, kwargs) = self.one_spelling(args, kwargs, 0)?;
        fingerprint(&args, &kwargs)
    }

    /// Returns the one spelling of a call that others have in common with it: by position what can be, without what is as
    /// by default. What follows something that was left out is by name. `None` if that is how the arguments are given.
    /// The first `bound` parameters are those of `args` that are not there.
    fn one_spelling<'py>(
        &self,
        args: &Bound<'py, PyTuple>,
        kwargs: &Bound<'py, PyDict>,
        bound: usize,
    ) -> Option<Arguments<'py>> {
        let py = args.py();
        let positional = self.positional.get(bound..)?;
        let only_by_position = self.only_by_position.saturating_sub(bound);
        let required = self.required.saturating_sub(bound);
        if kwargs.is_empty() && args.len() <= required {
            return None;
        }
        let named = kwargs.copy().ok()?;
        for parameter in &self.only_by_name {
            if let Some(given) = named.get_item(&parameter.name).ok()?
                && parameter.is_default(&given)
            {
                named.del_item(&parameter.name).ok()?;
            }
        }
        if args.len() > positional.len() {
            return Some((args.clone(), named));
        }
        let mut values: Vec<Option<Bound<'py, PyAny>>> = args.iter().map(Some).collect();
        for parameter in &positional[args.len()..] {
            let given = named.get_item(&parameter.name).ok()?;
            if given.is_some() && values.len() >= only_by_position {
                named.del_item(&parameter.name).ok()?;
                values.push(given);
            } else {
                values.push(None);
            }
        }
        if values.iter().take(required).any(Option::is_none) {
            // a call that the function does not take
            return None;
        }
        let mut is_last = true;
        for (i, parameter) in positional.iter().enumerate().skip(required).rev() {
            let is_default = values[i].as_ref().is_some_and(|value| parameter.is_default(value));
            // in front of something that can be given by position only, nothing can be left out
            if is_default && (i >= only_by_position || is_last) {
                values[i] = None;
            }
            is_last &= i >= only_by_position || values[i].is_none();
        }
        let in_front = values.iter().take_while(|value| value.is_some()).count();
        for (parameter, value) in positional.iter().zip(values.iter_mut()).skip(in_front) {
            if let Some(value) = value.take() {
                named.set_item(&parameter.name, value).ok()?;
            }
        }
        let args = PyTuple::new(py, values.into_iter().flatten().collect::<Vec<_>>()).ok()?;
        Some((args, named))
    }
}

#[pymethods]
impl Signature {
    /// Of a function with this name. Parameters have a name, the kind of `inspect.Parameter`, and a default in a tuple,
    /// or none.
    #[new]
    fn new(
        name: String,
        signature: Py<PyAny>,
        parameters: Vec<(Bound<'_, PyString>, u8, Bound<'_, PyTuple>)>,
    ) -> Self {
        let mut made = Self {
            positional: Vec::new(),
            only_by_position: 0,
            required: 0,
            only_by_name: Vec::new(),
            takes_more_by_position: false,
            takes_more_by_name: false,
            signature,
            name,
        };
        for (name, kind, default) in parameters {
            let default = match default.get_item(0) {
                Ok(value) => Some(Default { value: value.unbind(), encoded: PyOnceLock::new() }),
                Err(_) => None,
            };
            let parameter = Parameter { name: name.unbind(), default };
            match kind {
                0 | 1 => {
                    made.only_by_position += usize::from(kind == 0);
                    made.required += usize::from(parameter.default.is_none());
                    made.positional.push(parameter);
                }
                2 => made.takes_more_by_position = true,
                3 => made.only_by_name.push(parameter),
                _ => made.takes_more_by_name = true,
            }
        }
        made
    }

    fn __traverse__(&self, visit: pyo3::PyVisit<'_>) -> Result<(), pyo3::PyTraverseError> {
        for parameter in self.positional.iter().chain(&self.only_by_name) {
            if let Some(default) = &parameter.default {
                visit.call(&default.value)?;
            }
        }
        visit.call(&self.signature)
    }
}
