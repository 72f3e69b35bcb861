//! [`GraphShape`], [`GraphProgress`] and [`Rule`]: the structure of graphs, and which tasks may begin.

use std::cell::RefCell;
use std::sync::Arc;

use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyFloat, PyString};
use stepfast::Status;
use stepfast::graph::{
    self, Comparison, InputDeclaration, Literal, RecordedCall, RecordedOutcome, TaskDeclaration, TaskPlace,
    ValueCondition,
};

use crate::convert::step_settings::StepSettings;
use crate::error::to_exception;
use crate::lock::Mutex;

/// A condition on which a task runs.
#[pyclass(frozen, eq, module = "stepfast._native", from_py_object)]
#[derive(Clone, PartialEq)]
pub(crate) struct Rule(graph::Rule);

#[pymethods]
impl Rule {
    /// Returns a rule about all dependencies.
    #[new]
    fn new(name: &str) -> PyResult<Self> {
        Ok(Self(match name {
            "all_success" => graph::Rule::all_success(),
            "all_done" => graph::Rule::all_done(),
            "any_success" => graph::Rule::any_success(),
            "one_failed" => graph::Rule::one_failed(),
            "none_failed" => graph::Rule::none_failed(),
            _ => return Err(crate::error::runtime_error("there is no such rule")),
        }))
    }

    /// The rule that the task has succeeded.
    #[staticmethod]
    fn succeeded(task: String) -> Self {
        Self(graph::Rule::succeeded(task))
    }

    /// The rule that the task has failed.
    #[staticmethod]
    fn failed(task: String) -> Self {
        Self(graph::Rule::failed(task))
    }

    /// The rule that the task was skipped.
    #[staticmethod]
    fn skipped(task: String) -> Self {
        Self(graph::Rule::skipped(task))
    }

    /// The rule that the value of the task, or a field of it, compares with a literal in this way.
    #[staticmethod]
    fn value(task: String, fields: Vec<String>, operator: &str, literal: LiteralValue) -> PyResult<Self> {
        let Some(comparison) = Comparison::from_operator(operator) else {
            return Err(crate::error::runtime_error("there is no such comparison"));
        };
        let condition = ValueCondition { task: task.into(), fields, comparison, literal: literal.0 };
        Ok(Self(graph::Rule::of_value(condition)))
    }

    /// Whether the rule can hold only if the task has succeeded.
    fn requires_success(&self, task: &str) -> bool {
        self.0.requires_success(task)
    }

    fn __and__(&self, other: &Self) -> Self {
        Self(self.0.clone() & other.0.clone())
    }

    fn __or__(&self, other: &Self) -> Self {
        Self(self.0.clone() | other.0.clone())
    }

    fn __invert__(&self) -> Self {
        Self(!self.0.clone())
    }

    fn __repr__(&self) -> String {
        self.0.to_string()
    }
}

/// A literal of a condition.
struct LiteralValue(Literal);

impl<'py> FromPyObject<'_, 'py> for LiteralValue {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        Ok(Self(if object.is_none() {
            Literal::None
        } else if let Ok(literal) = object.cast::<PyBool>() {
            Literal::Bool(literal.is_true())
        } else if let Ok(literal) = object.cast::<PyString>() {
            Literal::Text(literal.to_str()?.to_owned())
        } else if let Ok(literal) = object.cast::<PyFloat>() {
            Literal::Float(literal.value())
        } else {
            Literal::Integer(object.extract()?)
        }))
    }
}

impl LiteralValue {
    fn to_python<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(match &self.0 {
            Literal::None => py.None().into_bound(py),
            Literal::Bool(literal) => PyBool::new(py, *literal).to_owned().into_any(),
            Literal::Integer(literal) => literal.into_pyobject(py)?.into_any(),
            Literal::Float(literal) => PyFloat::new(py, *literal).into_any(),
            Literal::Text(literal) => PyString::new(py, literal).into_any(),
        })
    }
}

/// The structure of a graph.
#[pyclass(frozen, module = "stepfast._native")]
pub(crate) struct GraphShape {
    shape: Arc<graph::GraphShape>,
    tasks: Vec<TaskDeclaration>,
}

/// The declaration of a graph, which engines store.
#[pyclass(frozen, module = "stepfast._native")]
pub(crate) struct GraphDeclaration(pub(crate) graph::GraphDeclaration);

/// A recorded call: path, name, outcome, duration in milliseconds, error.
type CallTuple = (String, String, String, i64, String);

impl GraphShape {
    /// Returns the places of the tasks that depend on a task, directly or through others.
    pub(crate) fn dependent_places(&self, task: usize) -> impl Iterator<Item = TaskPlace> {
        self.shape.dependent_places(task)
    }
}

#[pymethods]
impl GraphShape {
    /// Returns the shape of a graph. Each task has a name, the names of its dependencies, and a rule.
    #[new]
    #[allow(clippy::needless_pass_by_value)] // converted from Python
    fn new(py: Python<'_>, name: &str, tasks: Vec<(String, Vec<String>, Rule)>) -> PyResult<Self> {
        let tasks: Vec<TaskDeclaration> = tasks
            .into_iter()
            .map(|(name, dependencies, rule)| TaskDeclaration {
                name: name.into(),
                dependencies: dependencies.into_iter().map(Into::into).collect(),
                rule: rule.0,
            })
            .collect();
        match graph::GraphShape::new(name, &tasks) {
            Ok(shape) => Ok(Self { shape: Arc::new(shape), tasks }),
            Err(error) => Err(to_exception(py, &error)),
        }
    }

    /// The names of the tasks, each after those of its dependencies.
    fn topological_order(&self) -> Vec<&str> {
        self.shape.topological_order()
    }

    /// The names of the tasks by the length of their longest chain of dependencies.
    fn levels(&self) -> Vec<Vec<&str>> {
        self.shape.levels()
    }

    /// The names of the tasks without dependencies.
    fn roots(&self) -> Vec<&str> {
        self.shape.roots()
    }

    /// The names of the tasks without dependents.
    fn leaves(&self) -> Vec<&str> {
        self.shape.leaves()
    }

    /// The names of the dependencies of a task.
    fn dependencies(&self, task: &str) -> Option<Vec<&str>> {
        self.shape.dependencies(task)
    }

    /// The longest chain of tasks.
    fn critical_path(&self) -> Vec<&str> {
        self.shape.critical_path(|_| 1.0)
    }

    /// The graph in the language of Mermaid.
    fn to_mermaid(&self) -> String {
        self.shape.to_mermaid()
    }

    /// The graph in DOT, the language of Graphviz.
    fn to_dot(&self) -> String {
        self.shape.to_dot()
    }

    /// The graph as an SVG picture.
    fn to_svg(&self) -> String {
        self.shape.to_svg()
    }

    /// The graph as a tree of text.
    fn to_tree(&self) -> String {
        self.shape.to_tree(|_| String::new())
    }

    /// The graph as a tree of text, with the states of the tasks in an execution. `value_holds` is as in
    /// `GraphProgress.end`.
    fn to_execution_tree(
        &self,
        status: &str,
        calls: Vec<CallTuple>,
        value_holds: &Bound<'_, PyAny>,
    ) -> PyResult<String> {
        let status = status.parse::<Status>().map_err(|error| crate::error::runtime_error(&error))?;
        let calls = calls.into_iter().map(|(path, name, outcome, duration_ms, error)| RecordedCall {
            path: path.split('.').filter_map(|number| number.parse().ok()).collect(),
            name,
            outcome: match outcome.as_str() {
                "failed" => RecordedOutcome::Failed(error),
                "ended" => RecordedOutcome::Ended,
                "attempt" => RecordedOutcome::FailedAttempt,
                _ => RecordedOutcome::Succeeded,
            },
            duration_ms,
        });
        let raised = RefCell::new(None);
        let holds = |condition: &ValueCondition| call_condition(value_holds, condition, &raised);
        let tree = self.shape.to_execution_tree(status, calls, holds);
        raised.into_inner().map_or(Ok(tree), Err)
    }

    /// Returns the declaration of the graph. Each input has a name, and is required or not.
    fn declare(&self, inputs: Vec<(String, bool)>) -> GraphDeclaration {
        let inputs = inputs.into_iter().map(|(name, is_required)| InputDeclaration { name, is_required });
        GraphDeclaration(graph::GraphDeclaration {
            tasks: self.tasks.clone(),
            inputs: Some(inputs.collect()),
        })
    }

    /// Gives the step of a task its place in the record.
    fn bind(&self, task: usize, settings: &StepSettings) -> PyResult<()> {
        if task >= self.shape.len() {
            return Err(PyIndexError::new_err("there is no such task"));
        }
        settings.bind_task(self.shape.place(task));
        Ok(())
    }
}

/// The states of a graph's tasks in one execution.
#[pyclass(frozen, module = "stepfast._native")]
pub(crate) struct GraphProgress {
    shape: Arc<graph::GraphShape>,
    progress: Mutex<graph::GraphProgress>,
}

impl GraphProgress {
    /// Takes the next task that may begin in an execution. `is_recorded` returns whether a replay delivers the outcome of
    /// the task at a place.
    pub(crate) fn begin_next_in(&self, is_recorded: impl Fn(TaskPlace) -> bool + Sync) -> Option<usize> {
        self.progress.with(|progress| progress.begin_next(|task| is_recorded(self.shape.place(task))))
    }
}

#[pymethods]
impl GraphProgress {
    #[new]
    fn new(shape: &GraphShape, max_concurrency: Option<usize>) -> Self {
        let progress = graph::GraphProgress::new(&shape.shape, max_concurrency.unwrap_or(usize::MAX));
        Self { shape: shape.shape.clone(), progress: Mutex::new(progress) }
    }

    /// Takes the next task that may begin, outside of executions.
    fn begin_next(&self) -> Option<usize> {
        self.progress.with(|progress| progress.begin_next(|_| false))
    }

    /// Notes the end of a task. `value_holds` gets the task, the fields, the operator and the literal of a condition, and
    /// returns whether it holds.
    fn end(&self, task: usize, has_succeeded: bool, value_holds: &Bound<'_, PyAny>) -> PyResult<()> {
        // a condition runs Python code, under which no lock may be held. The callers take turns, by a lock of theirs.
        let raised = RefCell::new(None);
        let holds = |condition: &ValueCondition| call_condition(value_holds, condition, &raised);
        let mut progress = self.progress.with(std::mem::take);
        progress.end(&self.shape, task, has_succeeded, holds, |_| {});
        self.progress.with(|shared| *shared = progress);
        raised.into_inner().map_or(Ok(()), Err)
    }
}

/// Returns whether a condition holds, by a Python function. An error of the function is stored in `raised`; then the
/// condition does not hold.
fn call_condition(
    value_holds: &Bound<'_, PyAny>,
    condition: &ValueCondition,
    raised: &RefCell<Option<PyErr>>,
) -> bool {
    let ValueCondition { task, fields, comparison, literal } = condition;
    let literal = LiteralValue(literal.clone()).to_python(value_holds.py());
    let answer = literal
        .and_then(|literal| value_holds.call1((&**task, fields, comparison.operator(), literal)))
        .and_then(|answer| answer.is_truthy());
    answer.unwrap_or_else(|error| {
        raised.replace(Some(error));
        false
    })
}
