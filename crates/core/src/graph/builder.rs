//! [`Graph`]: builds a workflow of tasks.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use serde::{Serialize, de::DeserializeOwned};

use crate::error::Error;
use crate::failure::{Failure, IntoFailure};
use crate::graph::arguments::{ArgumentSource, ArgumentValues, Arguments, GraphInput, TaskRef};
use crate::graph::callback::Callbacks;
use crate::graph::code::{
    ChildTask, GraphCode, MapItems, Source, TaskArguments, TaskBody, TaskCode, TaskFuture,
};
use crate::graph::context::merge::Merge;
use crate::graph::context::shared::GraphContext;
use crate::graph::context::source::ContextRef;
use crate::graph::runner::run_graph;
use crate::graph::shape::GraphShape;
use crate::graph::shape::condition::ValueSource;
use crate::graph::shape::declaration::{GraphDeclaration, TaskDeclaration};
use crate::graph::shape::rule::Rule;
use crate::name::Name;
use crate::payload::Payload;
use crate::runtime::definition::{BodyFuture, CodeLocation};
use crate::runtime::run::Run;
use crate::workflow::Workflow;
use crate::workflow::retry::{RetryPolicy, StepOptions};

/// A builder of a graph whose input has the type `I`.
///
/// [`task`](Self::task) declares the tasks, and [`build`](Self::build) returns the graph as a workflow, which is
/// registered, started, queued, cancelled and resumed like any other.
pub struct Graph<I> {
    name: String,
    tasks: Vec<DeclaredTask>,
    max_concurrency: usize,
    merge: Merge,
    has_context_input: bool,
    input: PhantomData<fn(I)>,
}

/// A task as it was declared.
struct DeclaredTask {
    declaration: TaskDeclaration,
    arguments: Vec<ArgumentSource>,
    body: TaskBody,
    options: Option<Box<StepOptions>>,
    callbacks: Callbacks,
    may_fail: bool,
}

/// A builder of a task: [`run`](Self::run) gives the task its arguments and its body. Returned by [`Graph::task`].
#[must_use = "a task is declared when its body is given by `run`"]
pub struct TaskBuilder<'g> {
    tasks: &'g mut Vec<DeclaredTask>,
    declaration: TaskDeclaration,
    options: Option<Box<StepOptions>>,
    callbacks: Callbacks,
    may_fail: bool,
}

/// A builder of a task that is mapped over the items of a list. Returned by [`TaskBuilder::map_over`].
#[must_use = "a task is declared when its body is given by `run`"]
pub struct MapBuilder<'g, T> {
    task: TaskBuilder<'g>,
    items: TaskRef<Vec<T>>,
    max_items: usize,
}

/// The default of [`MapBuilder::max_items`].
const DEFAULT_MAX_ITEMS: usize = 1_000;

impl<I> Graph<I>
where
    I: Serialize + DeserializeOwned + Send + 'static,
{
    /// Returns a graph without tasks. The name is that of the workflow.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            tasks: Vec::new(),
            max_concurrency: usize::MAX,
            merge: Merge::default(),
            has_context_input: false,
            input: PhantomData,
        }
    }

    /// Returns the input of the graph, which tasks take as an argument.
    pub fn input(&self) -> GraphInput<I> {
        GraphInput(PhantomData)
    }

    /// Returns the context of the graph, which tasks take as an argument: values that the tasks share by key.
    ///
    /// A task reads the values that the tasks before it have written, directly or through others:
    /// [`after`](TaskBuilder::after) makes it depend on a task whose value it does not take. The context begins empty.
    ///
    /// ```
    /// use std::sync::Arc;
    ///
    /// use stepfast_core::graph::{Graph, GraphContext};
    /// use stepfast_core::{Engine, Failure, MemoryStore};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), stepfast_core::Error> {
    /// let mut graph = Graph::<String>::new("count");
    /// let (input, context) = (graph.input(), graph.context());
    /// let read = graph.task("read").run((context, input), async |(cx, text): (GraphContext, String)| {
    ///     cx.insert("words", text.split(' ').collect::<Vec<_>>())?;
    ///     Ok::<_, Failure>(())
    /// });
    /// let number = graph.task("number").after(&read).run(context, async |cx: GraphContext| {
    ///     cx.insert("number", cx.require::<Vec<String>>("words")?.len())?;
    ///     Ok::<_, Failure>(())
    /// });
    /// graph.task("tidy").after(&number).run(context, async |cx: GraphContext| Ok::<_, Failure>(cx.remove("words")?));
    /// let count = graph.build(context)?; // the output is the context at the end
    ///
    /// let engine = Engine::builder(Arc::new(MemoryStore::new())).register(&count).open().await?;
    /// let output = engine.run(&count, "to be or not".to_owned()).await?;
    /// assert_eq!((output.keys(), output.get("number")?), (vec!["number".to_owned()], Some(4)));
    /// # engine.shutdown(std::time::Duration::from_secs(1)).await
    /// # }
    /// ```
    pub fn context(&self) -> ContextRef {
        ContextRef::new()
    }

    /// Returns the [context](Self::context) of the graph, which begins with the fields of the input as its first values.
    /// The input is a struct, or a map with texts as keys. Executions with another input fail.
    pub fn context_with_input(&mut self) -> ContextRef {
        self.has_context_input = true;
        ContextRef::new()
    }

    /// Sets how values are merged that parallel tasks have written under one key of the context; [`Merge::Error`] by
    /// default.
    pub fn merge(&mut self, policy: Merge) -> &mut Self {
        self.merge = policy;
        self
    }

    /// Declares a task. The name must be unique in the graph: it identifies the task in the record, so it must stay the
    /// same as long as executions may continue.
    pub fn task(&mut self, name: impl Into<Name>) -> TaskBuilder<'_> {
        let declaration =
            TaskDeclaration { name: name.into(), dependencies: Vec::new(), rule: Rule::default() };
        TaskBuilder {
            tasks: &mut self.tasks,
            declaration,
            options: None,
            callbacks: Callbacks::default(),
            may_fail: false,
        }
    }

    /// Sets the maximum number of tasks of one execution that run at a time; unlimited by default. At least 1.
    pub fn max_concurrency(&mut self, tasks: usize) -> &mut Self {
        self.max_concurrency = tasks.max(1);
        self
    }

    /// Returns the structure of the graph. Fails like [`build`](Self::build).
    pub fn shape(&self) -> Result<GraphShape, Error> {
        let declarations: Vec<TaskDeclaration> =
            self.tasks.iter().map(|task| task.declaration.clone()).collect();
        let shape = GraphShape::new(&self.name, &declarations)?;
        for task in &self.tasks {
            check_arguments(&self.name, task)?;
        }
        Ok(shape)
    }

    /// Returns the graph as a workflow. Its output is made of the values of `output`: a task, the context, or a tuple of
    /// these.
    ///
    /// The execution fails if a task fails, unless the task [may fail](TaskBuilder::may_fail). Tasks that do not depend
    /// on the failed task run to their end first.
    ///
    /// Fails with [`Error::Invalid`] if a task's name is invalid or not unique, if a dependency does not exist, if tasks
    /// depend on each other in a cycle, if a task can never run, or if it takes a value that may be missing when it
    /// runs.
    pub fn build<A>(self, output: A) -> Result<Workflow<I, A::Values>, Error>
    where
        A: Arguments + Send + Sync + 'static,
        A::Values: Serialize + DeserializeOwned,
    {
        let shape = self.shape()?;
        let resolve = |sources: &[ArgumentSource]| {
            sources.iter().map(|source| resolve_source(&shape, source)).collect::<Result<Vec<_>, _>>()
        };
        let mut output_sources = Vec::new();
        output.collect_sources(&mut output_sources);
        for source in &output_sources {
            check_output(&self.name, source, &self.tasks)?;
        }
        let outputs = resolve(&output_sources)?;
        let declarations = self.tasks.iter().map(|task| task.declaration.clone()).collect();
        let declaration = GraphDeclaration { tasks: declarations, inputs: None }.to_json()?;
        let mut tasks: Vec<TaskCode> = Vec::with_capacity(self.tasks.len());
        for task in self.tasks {
            let arguments = resolve(&task.arguments)?;
            let changes_context = changes_context(&task.arguments);
            let DeclaredTask { body, options, callbacks, may_fail, .. } = task;
            let mut conditions = Vec::new();
            task.declaration.rule.visit_conditions(&mut |condition| {
                conditions.push(match &condition.source {
                    ValueSource::Task(task) => ArgumentSource::Task { name: task.clone(), is_optional: true },
                    ValueSource::Context(_) => ArgumentSource::Context { is_changed: false },
                });
            });
            let conditions = resolve(&conditions)?;
            tasks.push(TaskCode {
                arguments,
                conditions,
                body,
                changes_context,
                options,
                callbacks,
                may_fail,
            });
        }
        let output = move |values: &TaskArguments| {
            let values =
                output.decode(&mut ArgumentValues::new(values)).map_err(|error| error.to_failure())?;
            Payload::encode(&values).map_err(|error| error.to_failure())
        };
        let mut sources =
            tasks.iter().flat_map(|task| task.arguments.iter().chain(&task.conditions)).chain(&outputs);
        let has_context = sources.any(|source| *source == Source::Context);
        let code = Arc::new(GraphCode {
            shape,
            tasks,
            max_concurrency: self.max_concurrency,
            outputs,
            output: Box::new(output),
            merge: has_context.then_some(self.merge),
            has_context_input: self.has_context_input,
        });
        let body = move |run: Arc<Run>, input: &Payload| -> Result<BodyFuture, Failure> {
            Ok(Box::pin(run_graph(run, code.clone(), input.clone())))
        };
        let workflow = Workflow::from_body(&self.name, CodeLocation::Task, Box::new(body));
        Ok(workflow.declared(declaration))
    }
}

impl<'g> TaskBuilder<'g> {
    /// Makes the task depend on another one whose value it does not take.
    pub fn after<T>(mut self, task: &TaskRef<T>) -> Self {
        self.declaration.dependencies.push(task.name.clone());
        self
    }

    /// Sets the condition on which the task runs; [`Rule::all_success`] by default.
    pub fn when(mut self, rule: Rule) -> Self {
        self.declaration.rule = rule;
        self
    }

    /// Allows the task to fail: the graph completes although this task has failed. Tasks that depend on it run by their
    /// rules.
    pub fn may_fail(mut self) -> Self {
        self.may_fail = true;
        self
    }

    /// Calls `callback` with the value of the task, after the task has succeeded. The callback is a step of its own, and
    /// runs before the tasks that depend on this one. A failure of the callback is recorded, and changes nothing else. Of
    /// a mapped task, the callback runs for each item.
    pub fn on_success<T, F, Fut, E>(mut self, callback: F) -> Self
    where
        T: DeserializeOwned,
        F: Fn(T) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: IntoFailure,
    {
        self.callbacks.on_success = Some(Box::new(move |value: &Payload| match value.decode() {
            Ok(value) => encode_value(callback(value)),
            Err(error) => Box::pin(std::future::ready(Err(error.to_failure().permanent()))),
        }));
        self
    }

    /// Calls `callback` with the failure of the task, after its last attempt; otherwise like
    /// [`on_success`](Self::on_success). After a resume, a task that fails again calls it again.
    pub fn on_failure<F, Fut, E>(mut self, callback: F) -> Self
    where
        F: Fn(Failure) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: IntoFailure,
    {
        self.callbacks.on_failure =
            Some(Box::new(move |failure: &Failure| encode_value(callback(failure.clone()))));
        self
    }

    /// Allows up to `retries` further attempts after a failed one, with exponential backoff.
    pub fn retries(mut self, retries: u32) -> Self {
        self.options().retry.retries = retries;
        self
    }

    /// Sets the whole retry policy.
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.options().retry = policy;
        self
    }

    /// Retries only failures for which `retry_if` returns true.
    pub fn retry_if(mut self, retry_if: fn(&Failure) -> bool) -> Self {
        self.options().retry.retry_if = Some(retry_if);
        self
    }

    /// Fails an attempt that takes longer than `timeout`.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.options().timeout = Some(timeout);
        self
    }

    /// Declares the task with its arguments and its body, and returns a reference by which other tasks take its value.
    ///
    /// The task depends on the tasks among its arguments. Each attempt calls the body once.
    pub fn run<A, F, Fut, T, E>(self, arguments: A, body: F) -> TaskRef<T>
    where
        A: Arguments + Send + Sync + 'static,
        F: Fn(A::Values) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<T, E>> + Send + 'static,
        T: Serialize + DeserializeOwned + Send + 'static,
        E: IntoFailure,
    {
        let mut sources = Vec::new();
        arguments.collect_sources(&mut sources);
        let changes_context = changes_context(&sources);
        let body = move |values: &TaskArguments| -> TaskFuture {
            let mut values = ArgumentValues::new(values);
            match arguments.decode(&mut values) {
                Ok(decoded) if changes_context => encode_changes(body(decoded), values.context()),
                Ok(decoded) => encode_value(body(decoded)),
                Err(error) => Box::pin(std::future::ready(Err(error.to_failure().permanent()))),
            }
        };
        self.declare(sources, TaskBody::Once(Box::new(body)))
    }

    /// Maps the task over the items of a list that another task returns: [`MapBuilder::run`] gives the body.
    pub fn map_over<T>(self, items: &TaskRef<Vec<T>>) -> MapBuilder<'g, T> {
        MapBuilder { task: self, items: items.clone(), max_items: DEFAULT_MAX_ITEMS }
    }

    /// Declares a task that runs a workflow, or another graph, as a child of the execution, and returns a reference by
    /// which other tasks take its output. The values of `arguments` are the input of the workflow. The child has its own
    /// record and its own steps, so the retries of this task do not apply to it.
    pub fn include<A, O>(self, arguments: A, workflow: &Workflow<A::Values, O>) -> TaskRef<O>
    where
        A: Arguments + Send + Sync + 'static,
        A::Values: Serialize,
    {
        let mut sources = Vec::new();
        arguments.collect_sources(&mut sources);
        let input = move |values: &TaskArguments| {
            let values = arguments
                .decode(&mut ArgumentValues::new(values))
                .map_err(|error| error.to_failure().permanent())?;
            Payload::encode(&values).map_err(|error| error.to_failure().permanent())
        };
        let child = ChildTask { definition: workflow.definition.clone(), input: Box::new(input) };
        self.declare(sources, TaskBody::Child(child))
    }

    fn declare<T>(self, sources: Vec<ArgumentSource>, body: TaskBody) -> TaskRef<T> {
        let Self { tasks, mut declaration, options, callbacks, may_fail } = self;
        declaration.dependencies.extend(sources.iter().filter_map(|source| match source {
            ArgumentSource::Input | ArgumentSource::Context { .. } => None,
            ArgumentSource::Task { name, .. } => Some(name.clone()),
        }));
        let task = TaskRef::new(declaration.name.clone());
        tasks.push(DeclaredTask { declaration, arguments: sources, body, options, callbacks, may_fail });
        task
    }

    fn options(&mut self) -> &mut StepOptions {
        self.options.get_or_insert_default()
    }
}

impl<T> MapBuilder<'_, T> {
    /// Sets the maximum number of items that run at a time; 1,000 by default. At least 1.
    pub fn max_items(mut self, items: usize) -> Self {
        self.max_items = items.max(1);
        self
    }

    /// Declares the task with its body, which runs for each item, and returns a reference to the list of all values in
    /// the order of the items.
    ///
    /// Each item is a step of its own, with the task's retries. If an item fails, the others run to their end, and then
    /// the task fails.
    pub fn run<A, F, Fut, V, E>(self, arguments: A, body: F) -> TaskRef<Vec<V>>
    where
        T: DeserializeOwned + Clone + Send + Sync + 'static,
        A: Arguments + Send + Sync + 'static,
        F: Fn(T, A::Values) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<V, E>> + Send + 'static,
        V: Serialize + DeserializeOwned + Send + 'static,
        E: IntoFailure,
    {
        let Self { task, items, max_items } = self;
        let mut sources = Vec::new();
        items.collect_sources(&mut sources);
        arguments.collect_sources(&mut sources);
        let shared = Arc::new((arguments, body));
        let body = move |values: TaskArguments| -> Result<MapItems, Failure> {
            let list = items.decode(&mut ArgumentValues::new(&values)).map_err(|error| error.to_failure())?;
            let (len, shared) = (list.len(), shared.clone());
            let body = move |index: usize| -> TaskFuture {
                let (arguments, body) = &*shared;
                match arguments.decode(&mut ArgumentValues::new(&values).skip_first()) {
                    Ok(values) => encode_value(body(list[index].clone(), values)),
                    Err(error) => Box::pin(std::future::ready(Err(error.to_failure().permanent()))),
                }
            };
            Ok(MapItems { len, body: Box::new(body) })
        };
        task.declare(sources, TaskBody::Map(Box::new(body), max_items))
    }
}

/// Encodes the value of an attempt.
fn encode_value<Fut, T, E>(attempt: Fut) -> TaskFuture
where
    Fut: Future<Output = Result<T, E>> + Send + 'static,
    T: Serialize,
    E: IntoFailure,
{
    Box::pin(async move {
        let value = attempt.await.map_err(IntoFailure::into_failure)?;
        Payload::encode(&value).map_err(|error| error.to_failure())
    })
}

/// Encodes the value of an attempt, with the changes of its context.
fn encode_changes<Fut, T, E>(attempt: Fut, context: GraphContext) -> TaskFuture
where
    Fut: Future<Output = Result<T, E>> + Send + 'static,
    T: Serialize,
    E: IntoFailure,
{
    Box::pin(async move {
        let value = attempt.await.map_err(IntoFailure::into_failure)?;
        let encode = || context.changes(Payload::encode(&value)?).encode();
        encode().map_err(|error| error.to_failure())
    })
}

/// Whether a task with these arguments may change the context.
fn changes_context(arguments: &[ArgumentSource]) -> bool {
    arguments.iter().any(|source| matches!(source, ArgumentSource::Context { is_changed: true }))
}

fn resolve_source(shape: &GraphShape, source: &ArgumentSource) -> Result<Source, Error> {
    match source {
        ArgumentSource::Input => Ok(Source::Input),
        ArgumentSource::Context { .. } => Ok(Source::Context),
        ArgumentSource::Task { name, .. } => {
            shape.index_of(name).map(Source::Task).ok_or_else(|| Error::Invalid {
                input: "graph",
                reason: format!(
                    "{:?}: its output takes the value of {name:?}, which is no task of the graph",
                    shape.name()
                ),
            })
        }
    }
}

/// Returns an error if a task takes a value that may be missing when the task runs, or takes the context and cannot
/// change it.
fn check_arguments(graph: &str, task: &DeclaredTask) -> Result<(), Error> {
    let TaskDeclaration { name, rule, .. } = &task.declaration;
    let unchanging = match &task.body {
        TaskBody::Once(_) => None,
        TaskBody::Map(..) => Some("is mapped over items, which would change it at the same time"),
        TaskBody::Child(_) => Some("is a workflow, which cannot change it"),
    };
    if let Some(unchanging) = unchanging
        && changes_context(&task.arguments)
    {
        let reason = format!(
            "{graph:?}: task {name:?} takes the context and {unchanging}; take a view of the context, and change the \
             context in a task after it"
        );
        return Err(Error::Invalid { input: "graph", reason });
    }
    for source in &task.arguments {
        if let ArgumentSource::Task { name: argument, is_optional: false } = source
            && !rule.requires_success(argument)
        {
            let reason = format!(
                "{graph:?}: task {name:?} takes the value of {argument:?}, which may be missing by the rule {rule}; \
                 take it as optional"
            );
            return Err(Error::Invalid { input: "graph", reason });
        }
    }
    Ok(())
}

/// Returns an error if the output takes a value that may be missing when the graph completes.
fn check_output(graph: &str, source: &ArgumentSource, tasks: &[DeclaredTask]) -> Result<(), Error> {
    let ArgumentSource::Task { name, is_optional: false } = source else { return Ok(()) };
    let Some(task) = tasks.iter().find(|task| task.declaration.name == *name) else { return Ok(()) };
    if task.may_fail || !task.declaration.rule.is_default() {
        let reason = format!(
            "{graph:?}: its output takes the value of {name:?}, which may be missing because the task may fail or be \
             skipped; take it as optional"
        );
        return Err(Error::Invalid { input: "graph", reason });
    }
    Ok(())
}
