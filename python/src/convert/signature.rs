//! [`Signature`]: the parameters of a function. A call is checked against the signature before it is recorded. All
//! spellings of a call have the same fingerprint.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyString, PyTuple};
use stepfast::Payload;

use crate::convert::start_options::OPTION_NAMES;
use crate::convert::value::{encode, fingerprint};
use crate::exit::InterpreterGuard;

/// The parameters of a step or of a workflow.
#[pyclass(frozen)]
pub(crate) struct Signature {
    /// The parameters that may be given by position, in order.
    positional: Vec<Parameter>,
    /// The number of leading parameters that may not be given by name.
    positional_only_count: usize,
    /// The number of leading parameters that have no default.
    required_count: usize,
    keyword_only: Vec<Parameter>,
    has_var_positional: bool,
    has_var_keyword: bool,
    /// The signature object of Python, which explains what is wrong with a call.
    signature: Py<PyAny>,
    /// The name of the function.
    name: String,
}

struct Parameter {
    name: Py<PyString>,
    default: Option<DefaultValue>,
}

struct DefaultValue {
    value: Py<PyAny>,
    /// The value as it is recorded; `None` if it cannot be recorded.
    encoded: PyOnceLock<Option<Payload>>,
}

impl DefaultValue {
    /// Returns true if the value and the default have the same recorded form.
    fn equals(&self, value: &Bound<'_, PyAny>) -> bool {
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
        self.default.as_ref().is_some_and(|default| default.equals(value))
    }

    fn has_name(&self, py: Python<'_>, name: &Bound<'_, PyString>) -> bool {
        self.name.is(name) || self.name.bind(py).as_any().eq(name).unwrap_or(false)
    }
}

/// Arguments by position and by name.
type Arguments<'py> = (Bound<'py, PyTuple>, Bound<'py, PyDict>);

impl Signature {
    /// Checks that the function takes the arguments. Fails with `TypeError` if it does not.
    pub(crate) fn check(&self, args: &Bound<'_, PyTuple>, kwargs: &Bound<'_, PyDict>) -> PyResult<()> {
        if self.accepts(args.len(), kwargs) {
            return Ok(());
        }
        let py = args.py();
        let _guard = InterpreterGuard::enter(py);
        let signature = self.signature.bind(py);
        let bound = signature.call_method(pyo3::intern!(py, "bind"), args, Some(kwargs));
        match bound {
            Ok(_) => Ok(()),
            Err(raised) if raised.is_instance_of::<PyTypeError>(py) => Err(PyTypeError::new_err(format!(
                "the arguments do not fit {}{signature}: {}{}",
                self.name,
                raised.value(py),
                self.option_advice(kwargs)
            ))),
            Err(raised) => Err(raised),
        }
    }

    /// Returns advice if an argument is named like an option of starts, and not like a parameter; empty otherwise.
    fn option_advice(&self, kwargs: &Bound<'_, PyDict>) -> String {
        let py = kwargs.py();
        let is_option = |name: &Bound<'_, PyAny>| {
            name.cast::<PyString>().is_ok_and(|name| {
                let parameters = self.positional.iter().chain(&self.keyword_only);
                OPTION_NAMES.contains(&&*name.to_string_lossy())
                    && !parameters.into_iter().any(|parameter| parameter.has_name(py, name))
            })
        };
        if kwargs.keys().iter().any(|name| is_option(&name)) {
            format!("; options of the start belong in {}.options(...)", self.name)
        } else {
            String::new()
        }
    }

    /// Returns true if the function takes `given` arguments by position, and the arguments `kwargs` by name.
    fn accepts(&self, given: usize, kwargs: &Bound<'_, PyDict>) -> bool {
        let py = kwargs.py();
        if given > self.positional.len() && !self.has_var_positional {
            return false;
        }
        if kwargs.is_empty() {
            let is_required = |parameter: &Parameter| parameter.default.is_none();
            return given >= self.required_count && !self.keyword_only.iter().any(is_required);
        }
        let mut by_name = 0;
        for name in kwargs.keys().iter() {
            let Ok(name) = name.cast_into::<PyString>() else { return false };
            let position = self.positional.iter().position(|parameter| parameter.has_name(py, &name));
            match position {
                Some(position) if position >= self.positional_only_count => {
                    if position < given {
                        return false;
                    }
                    by_name += usize::from(position < self.required_count);
                }
                _ => {
                    let is_known = self.keyword_only.iter().any(|parameter| parameter.has_name(py, &name));
                    if !is_known && !self.has_var_keyword {
                        return false;
                    }
                }
            }
        }
        let has_value = |parameter: &Parameter| {
            parameter.default.is_some() || kwargs.contains(&parameter.name).unwrap_or(false)
        };
        given.min(self.required_count) + by_name >= self.required_count
            && self.keyword_only.iter().all(has_value)
    }

    /// Returns the fingerprint of a call without its first `bound` arguments; `None` if the arguments cannot be
    /// encoded.
    pub(crate) fn fingerprint(
        &self,
        args: &Bound<'_, PyTuple>,
        kwargs: &Bound<'_, PyDict>,
        bound: usize,
    ) -> Option<u64> {
        match self.normalize(args, kwargs, bound) {
            Some((args, kwargs)) => fingerprint(&args, &kwargs),
            None => fingerprint(args, kwargs),
        }
    }

    /// Returns the fingerprint of a call's normal form; `None` if the arguments as given are the normal form.
    pub(crate) fn fingerprint_if_respelled(
        &self,
        args: &Bound<'_, PyTuple>,
        kwargs: &Bound<'_, PyDict>,
    ) -> Option<u64> {
        let (args, kwargs) = self.normalize(args, kwargs, 0)?;
        fingerprint(&args, &kwargs)
    }

    /// Returns the normal form of a call, which all spellings of the call share; `None` if the arguments are in that
    /// form.
    ///
    /// In the normal form, arguments are given by position where possible, and defaults are left out. Arguments after
    /// one that was left out are given by name. The first `bound` parameters are missing from `args`.
    fn normalize<'py>(
        &self,
        args: &Bound<'py, PyTuple>,
        kwargs: &Bound<'py, PyDict>,
        bound: usize,
    ) -> Option<Arguments<'py>> {
        let py = args.py();
        let positional = self.positional.get(bound..)?;
        let positional_only_count = self.positional_only_count.saturating_sub(bound);
        let required_count = self.required_count.saturating_sub(bound);
        if kwargs.is_empty() && args.len() <= required_count {
            return None;
        }
        let named = kwargs.copy().ok()?;
        for parameter in &self.keyword_only {
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
            if given.is_some() && values.len() >= positional_only_count {
                named.del_item(&parameter.name).ok()?;
                values.push(given);
            } else {
                values.push(None);
            }
        }
        if values.iter().take(required_count).any(Option::is_none) {
            // the function does not take this call
            return None;
        }
        let mut is_last = true;
        for (i, parameter) in positional.iter().enumerate().skip(required_count).rev() {
            let is_default = values[i].as_ref().is_some_and(|value| parameter.is_default(value));
            // nothing can be left out before an argument that can only be given by position
            if is_default && (i >= positional_only_count || is_last) {
                values[i] = None;
            }
            is_last &= i >= positional_only_count || values[i].is_none();
        }
        let leading = values.iter().take_while(|value| value.is_some()).count();
        for (parameter, value) in positional.iter().zip(values.iter_mut()).skip(leading) {
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
    /// Fails with `TypeError` if the function does not take the arguments.
    #[pyo3(name = "check")]
    fn check_arguments(&self, args: &Bound<'_, PyTuple>, kwargs: &Bound<'_, PyDict>) -> PyResult<()> {
        self.check(args, kwargs)
    }

    /// Creates the signature of a function. A parameter is a name, a number for its kind in `inspect.Parameter`, and a
    /// tuple. The tuple contains the default, or is empty if the parameter has none.
    #[new]
    fn new(
        name: String,
        signature: Py<PyAny>,
        parameters: Vec<(Bound<'_, PyString>, u8, Bound<'_, PyTuple>)>,
    ) -> Self {
        let mut parsed = Self {
            positional: Vec::new(),
            positional_only_count: 0,
            required_count: 0,
            keyword_only: Vec::new(),
            has_var_positional: false,
            has_var_keyword: false,
            signature,
            name,
        };
        for (name, kind, default) in parameters {
            let default = match default.get_item(0) {
                Ok(value) => Some(DefaultValue { value: value.unbind(), encoded: PyOnceLock::new() }),
                Err(_) => None,
            };
            let parameter = Parameter { name: name.unbind(), default };
            match kind {
                0 | 1 => {
                    parsed.positional_only_count += usize::from(kind == 0);
                    parsed.required_count += usize::from(parameter.default.is_none());
                    parsed.positional.push(parameter);
                }
                2 => parsed.has_var_positional = true,
                3 => parsed.keyword_only.push(parameter),
                _ => parsed.has_var_keyword = true,
            }
        }
        parsed
    }

    fn __traverse__(&self, visit: pyo3::PyVisit<'_>) -> Result<(), pyo3::PyTraverseError> {
        for parameter in self.positional.iter().chain(&self.keyword_only) {
            if let Some(default) = &parameter.default {
                visit.call(&default.value)?;
            }
        }
        visit.call(&self.signature)
    }
}
