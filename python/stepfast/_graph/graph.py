"""`Graph`: a workflow of tasks with declared dependencies."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast, overload

from stepfast import _native
from stepfast._graph.annotations import check_annotations
from stepfast._graph.async_runner import run_in_tasks
from stepfast._graph.context_values.context_class import find_context_fields
from stepfast._graph.context_values.fields import ContextFields
from stepfast._graph.context_values.merge import CONTEXT_INPUT, ContextMerger, MergePolicy, check_policy
from stepfast._graph.execution_tree import execution_tree
from stepfast._graph.graph_run import GraphRun
from stepfast._graph.included_task import IncludedTask
from stepfast._graph.task import Task, dependencies_of, needs_loop
from stepfast._graph.thread_runner import run_in_threads
from stepfast._runtime.branch import current_branch
from stepfast._runtime.caller_warnings import caller_module
from stepfast._runtime.code_exceptions import execution_entry
from stepfast._validation import bounds
from stepfast._validation.backoff import Backoff
from stepfast._validation.durations import Duration
from stepfast._validation.retry_rule import RetryOn
from stepfast._validation.signature import signature_of
from stepfast._validation.text import short_repr
from stepfast._workflow.registry import register
from stepfast._workflow.startable import Startable
from stepfast._workflow.workflow import Workflow, parts_of_child
from stepfast.errors import InvalidArgument
from stepfast.rules import Rule, all_success

if TYPE_CHECKING:
    from stepfast._engine.records import Record

P = ParamSpec("P")
R = TypeVar("R", covariant=True)


class Graph(Workflow[..., Any]):
    """A workflow of tasks with declared dependencies. Each task is a step: its outcome is recorded once,
    under the task's name. A task runs when its dependencies have ended, and independent tasks run
    concurrently.

    A parameter of a task's function that is named after another task takes the value of that task, and
    makes it a dependency. All other parameters are inputs of the graph, which callers pass by name:
    `engine.run(etl, source="s3://…")`.

    The output of the graph is the value of its only task without dependents, or a dict of the values of all
    such tasks by name. If a task has a parameter with the annotation `Context`, the tasks share values by
    key: the input `context` has the first ones, and the output is the context at the end, a dict.

    If a task fails, the tasks that do not depend on it run to their end, and then the graph fails with the
    task's exception.

    A graph is complete when an engine opens, or when its structure is read: from then on it takes no
    further tasks. If a task is async, the graph needs an `AsyncEngine`, and its sync tasks run in threads.

    Args:
        name: The recorded name of the graph, at most 255 bytes.
        concurrency: The maximum number of tasks of one execution that run at a time; unlimited by default.
        merge: What happens if tasks that do not depend on each other write one key of the context. With
            "error", the default, the next task that reads the context fails. With "last", the value of the
            last task in topological order remains. With "concatenate", lists, tuples and texts are joined in
            this order. With "deep", dicts are merged key by key, lists are joined, and of other values the
            last one remains. Also a function of the key and the list of values, which must be deterministic.

    Raises:
        InvalidArgument: The name or the number is out of its bounds, or another workflow has the name.
    """

    def __init__(self, name: str, *, concurrency: int | None = None, merge: MergePolicy = "error") -> None:
        bounds.check_name("name", name)
        if concurrency is not None:
            bounds.check_count("concurrency", concurrency, 1)
        self.name: str = name
        self.__name__: str = name
        self.__qualname__: str = name
        self.concurrency: int | None = concurrency
        self._merge: MergePolicy = check_policy(merge)
        #: Whether a task takes the context, or a rule reads it.
        self._has_context = False
        #: The fields of the class of the context; None if no task names a class.
        self._context_fields: ContextFields | None = None
        self.durable_reads: bool = False
        self.is_async: bool = False
        self.signature: _native.Signature | None = None
        self.declaration: _native.GraphDeclaration | None = None
        self.__stepfast__ = True
        self._tasks: dict[str, Task[..., Any]] = {}
        self._shape: _native.GraphShape | None = None
        self._is_validating = False
        self.function: Callable[..., Any] = self._placeholder(caller_module())
        self.__wrapped__: Callable[..., Any] = self.function
        register(self, self.validate)

    def _placeholder(self, module: str) -> Callable[..., Any]:
        """Returns the function of a graph that is not complete. It locates the graph in messages."""

        def graph(**inputs: Any) -> Any:
            self.validate()
            return self.function(**inputs)

        graph.__module__, graph.__qualname__ = module, f"graph {self.name!r}"
        return graph

    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...

    @overload
    def task(
        self,
        /,
        *,
        name: str | None = None,
        after: Task[..., Any] | str | Iterable[Task[..., Any] | str] = (),
        when: Rule | None = None,
        may_fail: bool = False,
        map_over: Task[..., Any] | str | None = None,
        max_items: int | None = None,
        on_success: Callable[..., object] | None = None,
        on_failure: Callable[..., object] | None = None,
        retries: int = 0,
        backoff: Backoff = 1.0,
        backoff_factor: float = 2.0,
        max_backoff: Duration = 60.0,
        jitter: float = 0.5,
        timeout: Duration | None = None,
        retry_on: RetryOn | None = None,
        retry_if: Callable[[Exception], bool] | None = None,
    ) -> Callable[[Callable[P, R]], Task[P, R]]: ...

    def task(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        after: Task[..., Any] | str | Iterable[Task[..., Any] | str] = (),
        when: Rule | None = None,
        may_fail: bool = False,
        map_over: Task[..., Any] | str | None = None,
        max_items: int | None = None,
        on_success: Callable[..., object] | None = None,
        on_failure: Callable[..., object] | None = None,
        retries: int = 0,
        backoff: Backoff = 1.0,
        backoff_factor: float = 2.0,
        max_backoff: Duration = 60.0,
        jitter: float = 0.5,
        timeout: Duration | None = None,
        retry_on: RetryOn | None = None,
        retry_if: Callable[[Exception], bool] | None = None,
    ) -> Any:
        """Declares a task of the graph: `@etl.task`, or `@etl.task(retries=3)`.

        Args:
            function: The body, sync or async.
            name: The name, unique in the graph; by default the name of the function. The record identifies
                the task by it, so it must stay the same as long as executions may continue.
            after: The tasks on which this one depends without taking their values: a task, its name, or
                several of these.
            when: The condition on which the task runs, see `stepfast.rules`; by default all dependencies
                must have succeeded.
            may_fail: Whether the graph completes although this task has failed; False by default.
            map_over: A task that returns a list, or its name. The function then runs once for each item, as a
                step of its own, and its parameter of this name takes the item. The value is the list of all
                values. If an item fails, the others run to their end, and then the task fails.
            max_items: The maximum number of items that run at a time, at least 1; by default 1,000 in async
                graphs, and 16 in sync ones.
            on_success: A function that runs after the task has succeeded, before the tasks that depend on it.
                Its parameters can be "task", the name of the task, and "value". It is a step of its own; its
                errors are recorded, and change nothing else. Of a mapped task, it runs for each
                item.
            on_failure: A function that runs after the last attempt has failed, with "task" and "error";
                otherwise like `on_success`. If the task is repeated after a resume and fails again, the
                function runs again.
            retries: See `step`, as for all further options.
            backoff: See `step`.
            backoff_factor: See `step`.
            max_backoff: See `step`.
            jitter: See `step`.
            timeout: See `step`.
            retry_on: See `step`.
            retry_if: See `step`.

        Raises:
            InvalidArgument: The value is no function, another task has the name, the graph is complete, or
                an option is out of its bounds.
        """

        def declare(function: Callable[..., Any]) -> Task[..., Any]:
            bounds.check_function("task", function)
            task_name = _name_of_function(function) if name is None else name
            edges = self._edges(task_name, after, when, may_fail, map_over, max_items)
            task: Task[..., Any] = Task(
                function,
                name=task_name,
                graph=self.name,
                **edges,
                on_success=on_success,
                on_failure=on_failure,
                retries=retries,
                backoff=backoff,
                backoff_factor=backoff_factor,
                max_backoff=max_backoff,
                jitter=jitter,
                timeout=timeout,
                retry_on=retry_on,
                retry_if=retry_if,
            )
            self._add(task)
            return task

        return declare if function is None else declare(function)

    def include(
        self,
        workflow: Startable[..., R],
        *,
        name: str | None = None,
        after: Task[..., Any] | str | Iterable[Task[..., Any] | str] = (),
        when: Rule | None = None,
        may_fail: bool = False,
        map_over: Task[..., Any] | str | None = None,
        max_items: int | None = None,
        on_success: Callable[..., object] | None = None,
        on_failure: Callable[..., object] | None = None,
    ) -> Task[..., R]:
        """Declares a task that runs a workflow, or another graph, as a child of the execution. The parameters
        of the workflow take the values of tasks and the inputs of this graph, as the parameters of a task's
        function do. The child has its own steps with their own retries, and is listed like any execution.

        Args:
            workflow: The workflow or the graph, also with options: `resize.options(queue="images")`.
            name: The name of the task, unique in the graph; by default the name of the graph, or of the
                workflow's function.
            after: See `task`, as for all further options.
            when: See `task`.
            may_fail: See `task`.
            map_over: See `task`. Each item is a child.
            max_items: See `task`.
            on_success: See `task`.
            on_failure: See `task`.

        Raises:
            InvalidArgument: The value is no workflow of this program, another task has the name, the graph is
                complete, or an option is out of its bounds.
        """
        parts = parts_of_child(workflow)
        if parts is None:
            raise InvalidArgument(
                f"include of graph {self.name!r} is given {short_repr(workflow)}, and must be given a "
                "workflow or a graph of this program"
            )
        included, bound_args, start_options = parts
        if bound_args:
            raise InvalidArgument(
                f"graph {self.name!r} includes {included.name!r}, which is bound to an object: include a "
                "workflow that is a function"
            )
        task_name = name or (included.name if isinstance(included, Graph) else included.function.__name__)
        edges = self._edges(task_name, after, when, may_fail, map_over, max_items)
        task: IncludedTask[R] = IncludedTask(
            included,
            start_options,
            name=task_name,
            graph=self.name,
            **edges,
            on_success=on_success,
            on_failure=on_failure,
        )
        self._add(task)
        return task

    def _add(self, task: Task[..., Any]) -> None:
        if self._shape is not None:
            raise InvalidArgument(
                f"graph {self.name!r} takes no further task {task.name!r}, because it is in use: declare "
                "all its tasks before an engine opens"
            )
        if task.name in self._tasks:
            raise InvalidArgument(
                f"graph {self.name!r} has two tasks named {task.name!r}: give one of them another name, "
                "@graph.task(name=...)"
            )
        self._tasks[task.name] = task

    def _edges(
        self,
        task: str,
        after: Task[..., Any] | str | Iterable[Task[..., Any] | str],
        when: Rule | None,
        may_fail: bool,
        map_over: Task[..., Any] | str | None,
        max_items: int | None,
    ) -> dict[str, Any]:
        """Returns the arguments of `Task` that say when the task of this name runs, and how often."""
        place = f" of task {task!r} of graph {self.name!r}"
        bounds.check_flag(f"may_fail{place}", may_fail)
        if when is not None and not isinstance(when, Rule):  # pyright: ignore[reportUnnecessaryIsInstance] # for programs without types
            raise InvalidArgument(
                f"when{place} is {short_repr(when)}, and must be a rule, such as stepfast.rules.all_done()"
            )
        if max_items is not None:
            bounds.check_count(f"max_items{place}", max_items, 1)
            if map_over is None:
                raise InvalidArgument(f"max_items{place} is for tasks with map_over: leave it out")
        tasks_before = (after,) if isinstance(after, str | Task) or not isinstance(after, Iterable) else after  # pyright: ignore[reportUnnecessaryIsInstance] # for programs without types
        return {
            "after": tuple(self._name_of(f"after{place}", each) for each in tasks_before),
            "rule": all_success() if when is None else when,
            "may_fail": may_fail,
            "map_over": None if map_over is None else self._name_of(f"map_over{place}", map_over),
            "max_items": max_items,
        }

    def _name_of(self, what: str, task: Any) -> str:
        if isinstance(task, str):
            return task
        if not isinstance(task, Task):
            raise InvalidArgument(f"{what} has {short_repr(task)}, which is neither a task nor its name")
        given = cast("Task[..., Any]", task)
        if self._tasks.get(given.name) is not given:
            raise InvalidArgument(f"{what} has {given!r}, which is no task of this graph")
        return given.name

    def validate(self) -> None:
        """Completes the graph and checks its structure. An engine does this when it opens.

        Raises:
            InvalidArgument: A dependency or a task of a rule does not exist, tasks depend on each other in
                a cycle, a task can never run, a task needs a value that may be missing when it runs, the
                annotations of tasks cannot agree, or tasks name different classes of the context.
        """
        if self._shape is not None:
            return
        if self._is_validating:
            raise InvalidArgument(
                f"graph {self.name!r} includes itself, by its tasks or those of a graph that it includes"
            )
        self._is_validating = True
        try:
            self._complete()
        finally:
            self._is_validating = False

    def _complete(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            if isinstance(task, IncludedTask):
                if isinstance(task.workflow, Graph):
                    task.workflow.validate()
                task.complete()
        shape = _native.GraphShape(
            self.name, [(task.name, dependencies_of(task, self._tasks), task.rule) for task in tasks]
        )
        for task in tasks:
            if task.map_over is not None:
                self._check_map(task, task.map_over)
        inputs: dict[str, inspect.Parameter] = {}
        self._has_context = any(
            task.context_parameter is not None or task.rule.context_keys() for task in tasks
        )
        if self._has_context:
            inputs[CONTEXT_INPUT] = inspect.Parameter(
                CONTEXT_INPUT, inspect.Parameter.KEYWORD_ONLY, default=None
            )
        self._context_fields = find_context_fields(self.name, tasks)
        for number, task in enumerate(tasks):
            if self._context_fields is not None:
                for key in task.rule.context_keys():
                    place = f" in the rule of task {task.name!r} of graph {self.name!r}"
                    self._context_fields.check_key(key, place)
            shape.bind(number, task.settings)
            task.context_fields = self._context_fields
            for name, parameter in task.parameters.items():
                if name == CONTEXT_INPUT and self._has_context:
                    raise InvalidArgument(
                        f"the parameter {name!r} of task {task.name!r} of graph {self.name!r} needs the "
                        "annotation Context, because the graph has a context"
                    )
                if name in self._tasks:
                    self._check_value(task, name, parameter)
                else:
                    self._add_input(inputs, name, parameter)
        check_annotations(self.name, tasks)
        self.is_async = any(needs_loop(task) for task in tasks)
        run = self._async_function(shape, tasks) if self.is_async else self._sync_function(shape, tasks)
        keyword_only = [each.replace(kind=each.KEYWORD_ONLY) for each in inputs.values()]
        run.__module__, run.__qualname__ = self.function.__module__, self.function.__qualname__
        run.__signature__ = inspect.Signature(keyword_only)  # type: ignore[attr-defined] # read by inspect
        self.signature = signature_of(run)
        self.declaration = shape.declare(
            [(each.name, each.default is each.empty) for each in inputs.values()]
        )
        self.function = self.__wrapped__ = run
        self._shape = shape

    def _check_map(self, task: Task[..., Any], items: str) -> None:
        """Rejects a mapped task that cannot take the items of another task."""
        if items not in self._tasks:
            raise InvalidArgument(
                f"task {task.name!r} of graph {self.name!r} is mapped over {items!r}, which is no task of "
                "the graph: name a task that returns a list"
            )
        if task.context_parameter is not None:
            raise InvalidArgument(
                f"task {task.name!r} of graph {self.name!r} is mapped over items and takes the context, "
                "which its items would change at the same time: pass values by other parameters, and "
                "write the context in a task after it"
            )
        if items not in task.parameters:
            raise InvalidArgument(
                f"task {task.name!r} of graph {self.name!r} is mapped over {items!r}, but has no "
                "parameter of this name, which takes the item"
            )

    def _check_value(self, task: Task[..., Any], name: str, parameter: inspect.Parameter) -> None:
        """Rejects a parameter that takes the value of another task, if that value may be missing."""
        if parameter.default is parameter.empty and not task.rule.requires_success(name):
            raise InvalidArgument(
                f"task {task.name!r} of graph {self.name!r} takes the value of {name!r}, which may be "
                f"missing by the rule {task.rule}: give the parameter a default, {name}=None, or add "
                f'succeeded("{name}") to the rule by &'
            )

    def _add_input(
        self, inputs: dict[str, inspect.Parameter], name: str, parameter: inspect.Parameter
    ) -> None:
        before = inputs.setdefault(name, parameter)
        if before.default is before.empty and parameter.default is not parameter.empty:
            # one task needs the input, so the graph does
            return
        if parameter.default is parameter.empty:
            inputs[name] = parameter

    def _async_function(self, shape: _native.GraphShape, tasks: list[Task[..., Any]]) -> Callable[..., Any]:
        async def graph(**inputs: Any) -> Any:
            values = await run_in_tasks(self._run(shape, tasks, inputs))
            return self._output(values)

        return execution_entry(graph)

    def _sync_function(self, shape: _native.GraphShape, tasks: list[Task[..., Any]]) -> Callable[..., Any]:
        def graph(**inputs: Any) -> Any:
            return self._output(run_in_threads(self._run(shape, tasks, inputs)))

        return graph

    def _run(
        self, shape: _native.GraphShape, tasks: list[Task[..., Any]], inputs: dict[str, Any]
    ) -> GraphRun:
        context = self._context_merger(shape, inputs)
        return GraphRun(self.name, shape, self.concurrency, tasks, inputs, context)

    def _context_merger(self, shape: _native.GraphShape, inputs: dict[str, Any]) -> ContextMerger | None:
        """Returns the context of an execution; None if the graph has no context."""
        if not self._has_context:
            return None
        given = inputs.get(CONTEXT_INPUT)
        initial: dict[str, Any] = {} if given is None else given
        return ContextMerger(self.name, shape, list(self._tasks), self._merge, initial, self._context_fields)

    def _output(self, values: dict[str, Any]) -> Any:
        if self._has_context:
            return values
        leaves = self.leaves
        if len(leaves) == 1:
            return values.get(leaves[0])
        return {leaf: values[leaf] for leaf in leaves if leaf in values}

    def _validated_shape(self) -> _native.GraphShape:
        self.validate()
        assert self._shape is not None
        return self._shape

    @property
    def tasks(self) -> dict[str, Task[..., Any]]:
        """The tasks by name, in the order of their declaration."""
        return dict(self._tasks)

    @property
    def topological_order(self) -> list[str]:
        """The names of the tasks, each after those of its dependencies."""
        return self._validated_shape().topological_order()

    @property
    def levels(self) -> list[list[str]]:
        """The names of the tasks by level: a task of level n has a longest chain of n dependencies."""
        return self._validated_shape().levels()

    @property
    def roots(self) -> list[str]:
        """The names of the tasks without dependencies."""
        return self._validated_shape().roots()

    @property
    def leaves(self) -> list[str]:
        """The names of the tasks on which no task depends."""
        return self._validated_shape().leaves()

    @property
    def critical_path(self) -> list[str]:
        """The names of the tasks of the longest chain: each depends on the one before."""
        return self._validated_shape().critical_path()

    def dependencies(self, task: str) -> list[str]:
        """Returns the names of the tasks on which a task depends.

        Args:
            task: The name of the task.

        Raises:
            InvalidArgument: The graph has no such task.
        """
        found = self._validated_shape().dependencies(task)
        if found is None:
            raise InvalidArgument(f"graph {self.name!r} has no task {task!r}")
        return found

    def to_tree(self, record: Record | None = None) -> str:
        """Returns the graph as a tree of text: a line for each task, below the last of its dependencies.

        Args:
            record: The record of an execution, as `engine.show` returns it: then each line has the state and
                the duration of the task. A line with the critical path follows if the path takes a second or
                more. By default the lines have the names only.
        """
        shape = self._validated_shape()
        if record is None:
            return shape.to_tree()
        return execution_tree(shape, self._tasks, record, self._context_merger(shape, record.kwargs))

    def to_mermaid(self) -> str:
        """Returns the graph in the language of Mermaid, which many forges draw."""
        return self._validated_shape().to_mermaid()

    def to_dot(self) -> str:
        """Returns the graph in DOT, the language of Graphviz."""
        return self._validated_shape().to_dot()

    def to_svg(self) -> str:
        """Returns the graph as an SVG picture. Notebooks show it for a graph."""
        return self._validated_shape().to_svg()

    def _repr_svg_(self) -> str:
        return self.to_svg()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if current_branch() is None:
            # an engine checks the inputs when it starts an execution
            self.validate()
            try:
                inspect.signature(self.function).bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(
                    f"the arguments do not fit graph {self.name!r}{inspect.signature(self.function)}: {error}"
                ) from None
        return super().__call__(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<graph {self.name}>"

    def __rich_repr__(self) -> Iterator[Any]:
        yield self.name


def _name_of_function(function: Callable[..., Any]) -> str:
    """Returns the name of the function of a task."""
    name = getattr(function, "__name__", None)
    if not isinstance(name, str):
        raise InvalidArgument(
            f"{short_repr(function)} has no name: give the task a name, @graph.task(name=...)"
        )
    return name


__all__ = ["Graph"]
