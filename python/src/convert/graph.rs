//! [`GraphShape`], [`GraphProgress`] and [`Rule`]: the structure of graphs, and which tasks may begin.

use std::sync::Arc;

use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyFloat, PyString};
use stepfast::graph::{
    self, Comparison, InputDeclaration, Literal, RecordedCall, RecordedOutcome, TaskDeclaration, TaskPlace,
    ValueCondition, ValueSource,
};
use stepfast::{Error, Status};

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
        Self::compared(ValueSource::Task(task.into()), fields, operator, literal)
    }

    /// The rule that the value of a key of the context, or a field of it, compares with a literal in this way.
    #[staticmethod]
    fn context_value(
        key: String,
        fields: Vec<String>,
        operator: &str,
        literal: LiteralValue,
    ) -> PyResult<Self> {
        Self::compared(ValueSource::Context(key), fields, operator, literal)
    }

    /// The keys of the context about which the rule has conditions.
    fn context_keys(&self) -> Vec<String> {
        let mut keys = Vec::new();
        self.0.visit_conditions(&mut |condition| {
            if let ValueSource::Context(key) = &condition.source {
                keys.push(key.clone());
            }
        });
        keys
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

    fn __bool__(&self, py: Python<'_>) -> PyResult<bool> {
        let reason =
            format!("{} has no truth value: combine rules with &, | and ~ instead of and, or, not", self.0);
        Err(to_exception(py, &Error::Invalid { input: "rule", reason }))
    }

    fn __repr__(&self) -> String {
        self.0.to_string()
    }
}

impl Rule {
    fn compared(
        source: ValueSource,
        fields: Vec<String>,
        operator: &str,
        literal: LiteralValue,
    ) -> PyResult<Self> {
        let Some(comparison) = Comparison::from_operator(operator) else {
            return Err(crate::error::runtime_error("there is no such comparison"));
        };
        let condition = ValueCondition { source, fields, comparison, literal: literal.0 };
        Ok(Self(graph::Rule::of_value(condition)))
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
        let mut raised = None;
        let tree = self.shape.to_execution_tree(status, calls, conditions_by(value_holds, &mut raised));
        raised.map_or(Ok(tree), Err)
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
    /// Returns the progress of an execution in which no task has begun. `value_holds` is as in `end`.
    #[new]
    fn new(
        shape: &GraphShape,
        max_concurrency: Option<usize>,
        value_holds: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        let mut raised = None;
        let holds = conditions_by(value_holds, &mut raised);
        let max_concurrency = max_concurrency.unwrap_or(usize::MAX);
        let progress = graph::GraphProgress::new(&shape.shape, max_concurrency, holds, |_| {});
        let progress = Self { shape: shape.shape.clone(), progress: Mutex::new(progress) };
        raised.map_or(Ok(progress), Err)
    }

    /// Takes the next task that may begin, outside of executions.
    fn begin_next(&self) -> Option<usize> {
        self.progress.with(|progress| progress.begin_next(|_| false))
    }

    /// Notes the end of a task. `value_holds` returns whether a condition holds; None if its value cannot be read. It gets
    /// the name of the task with the rule, the name of the task whose value is compared (None for the context), the fields
    /// of the value (first the key of the context), the operator and the literal.
    fn end(&self, task: usize, has_succeeded: bool, value_holds: &Bound<'_, PyAny>) -> PyResult<()> {
        // a condition runs Python code, under which no lock may be held. The callers take turns, by a lock of theirs.
        let mut raised = None;
        let holds = conditions_by(value_holds, &mut raised);
        let mut progress = self.progress.with(std::mem::take);
        progress.end(&self.shape, task, has_succeeded, holds, |_| {});
        self.progress.with(|shared| *shared = progress);
        raised.map_or(Ok(()), Err)
    }
}

/// Returns a function that decides on conditions by a Python function. The last error of that function is stored in
/// `raised`; then the condition is undecided.
fn conditions_by(
    value_holds: &Bound<'_, PyAny>,
    raised: &mut Option<PyErr>,
) -> impl FnMut(&str, &ValueCondition) -> Option<bool> {
    move |reader, condition| {
        call_condition(value_holds, reader, condition).unwrap_or_else(|error| {
            *raised = Some(error);
            None
        })
    }
}

fn call_condition(
    value_holds: &Bound<'_, PyAny>,
    reader: &str,
    condition: &ValueCondition,
) -> PyResult<Option<bool>> {
    let ValueCondition { source, fields, comparison, literal } = condition;
    let (task, key) = match source {
        ValueSource::Task(task) => (Some(&**task), None),
        ValueSource::Context(key) => (None, Some(key)),
    };
    let fields: Vec<&String> = key.into_iter().chain(fields).collect();
    let literal = LiteralValue(literal.clone()).to_python(value_holds.py())?;
    let answer = value_holds.call1((reader, task, fields, comparison.operator(), literal))?;
    if answer.is_none() { Ok(None) } else { answer.is_truthy().map(Some) }
}
