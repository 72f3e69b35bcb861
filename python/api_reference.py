"""Prints docs/reference/python.md, from the signatures and docstrings of the package: see `make reference`.

The program ends with an error if a public name is not described.
"""

from __future__ import annotations

import dataclasses
import logging
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import griffe

PYTHON: Final = Path(__file__).parent
WIDTH: Final = 100

#: The headings, each with its guide and the names below it. Names of no group come last.
GROUPS: Final = {
    "Steps and workflows": (
        "python",
        "step workflow sleep sleep_until wait_until Duration Backoff RetryOn Step BoundStep Workflow "
        "BoundWorkflow ConfiguredWorkflow RemoteWorkflow Startable StartOptions OnDuplicate OnFull Instance",
    ),
    "Concurrency, time limits, children": (
        "python-asyncio",
        "gather map as_completed race timeout wait_for Child AsyncChild",
    ),
    "Graphs": ("graphs", "Graph Task Context"),
    "Steps in processes": ("python-processes", "ProcessStep BoundProcessStep ProcessDied"),
    "Engines": (
        "python-running",
        "Client Engine Handle AsyncClient AsyncEngine AsyncHandle Execution ExecutionOutcome Status "
        "StatusText Record Checkpoint Attempt Wait Event Filter BulkResult WorkerOverview Worker Unclaimable "
        "ReplayFilter",
    ),
    "Messages and events": ("messages", "receive send set_event get_event"),
    "Tokens and questions": ("tokens", "create_token Token AsyncToken receive_question Question ask"),
    "Streams": ("streams", "write_stream close_stream StreamValue"),
    "Queues": ("queues", "Queue QueueInfo Rate"),
    "Schedules": ("schedules", "Schedule ScheduleInfo Overlap CatchUp"),
    "Batches": (
        "batches",
        "BatchHandle AsyncBatchHandle ChildBatch AsyncChildBatch BatchCounts ItemResult BatchOptions "
        "ChildBatchOptions",
    ),
    "Outboxes": ("outbox", "Outbox AsyncOutbox DeadLetter"),
    "The current execution, and errors": (
        "python-errors",
        "current current_or_none Current Error InvalidArgument Conflict WorkflowIdConflict QueueConflict "
        "ScheduleConflict DedupConflict QueueFull ExecutionEnded TokenAnswered NotFound ScheduleNotFound "
        "WorkflowFailed WorkflowCancelled WorkflowParked ResultTimeout Unavailable StoreUnavailable "
        "EngineClosed StoreCorrupt SchemaMismatch EncodeError DecodeError RemoteError StepfastWarning",
    ),
}
#: The classes that the headings call exceptions.
ERRORS: Final = [*GROUPS["The current execution, and errors"][1].split()[3:], "ProcessDied"]
RULES: Final = "stepfast.rules"
VALUES: Final = "stepfast.values"

BEGINNING: Final = """\
<!-- Made of docstrings by `make reference`: change those. -->

# Python: every name

Import these names from `stepfast`, except those of `stepfast.rules` and `stepfast.values`. In signatures,
`P` stands for the parameters of a function, `R` and `T` for its output, and `S` for the class of a context.
[errors.md](errors.md) explains the codes of errors. `stepfast.__version__` is the version of the package.

| names | guide |
|---|---|
"""


@dataclass(frozen=True)
class Entry:
    """A public object with a heading of its own: `Engine`, or its method `Engine.start`."""

    title: str
    target: Any
    chosen_members: list[Entry] | None = None

    @property
    def overloads(self) -> list[Any]:
        """Returns the signatures of the object, without overloads for type checkers alone. If an overload
        takes any number of arguments, overloads for a fixed number are left out too."""
        overloads = (
            self.target.overloads if self.target.is_function and self.target.overloads else [self.target]
        )
        overloads = [each for each in overloads if not is_for_checkers(each)]
        if not any(is_variadic(each) for each in overloads):
            return list(overloads)
        return [each for each in overloads if is_variadic(each)]

    @property
    def parameters(self) -> list[Any]:
        """Returns the parameters to be described: those of a function, or of a class that programs call."""
        if not self.target.is_class:
            return own_parameters(self.target) if self.target.is_function else []
        return own_parameters(self.target.all_members["__init__"]) if "parameters" in self.sections else []

    @property
    def heading(self) -> str:
        """Returns the heading. Different entries have different anchors: `step` and `class Step`."""
        if not self.target.is_class or self.title.islower():
            return self.title
        return f"{'exception' if self.title in ERRORS else 'class'} {self.title}"

    @property
    def sections(self) -> dict[str, Any]:
        """Returns the sections of the docstring by kind; the kind of the prose is `text`."""
        if self.target.docstring is None:
            return {}
        return {section.kind.value: section.value for section in self.target.docstring.parse("google")}

    @property
    def attributes(self) -> dict[str, Any]:
        """Returns the public attributes of a class."""
        if not self.target.is_class:
            return {}
        return {
            name: member
            for name, member in self.target.all_members.items()
            if member.is_attribute and not name.startswith("_")
        }

    @property
    def members(self) -> list[Entry]:
        """Returns the methods with headings of their own."""
        if self.chosen_members is not None:
            return self.chosen_members
        if not self.target.is_class:
            return []
        return [
            Entry(f"{self.title}.{name}", member)
            for name, member in self.target.all_members.items()
            if member.is_function and not name.startswith("_") and not is_elsewhere(member)
        ]

    def without(self, described: set[str]) -> Entry:
        """Returns the entry without the members that earlier entries describe.

        Args:
            described: The paths of described members, to which those of this entry are added.
        """
        own = [member for member in self.members if path_of(member.target) not in described]
        described.update(path_of(member.target) for member in own)
        return dataclasses.replace(self, chosen_members=own)


def is_elsewhere(member: Any) -> bool:
    """Returns true if a member is described with the public class that it is inherited from."""
    return bool(member.inherited and member.final_target.parent.is_exported)


def path_of(member: Any) -> str:
    """Returns the path of a member's definition, which several classes may inherit from one private base."""
    return str(member.final_target.path if member.is_alias else member.path)


def is_for_checkers(function: Any) -> bool:
    """Returns true if an overload is for type checkers alone."""
    return function.is_function and any("Unspecified" in type_of(each) for each in function.parameters)


class Reference:
    """The page, and the descriptions that it lacks."""

    def __init__(self) -> None:
        # a relative path would be searched for in the working directory first
        package: Any = griffe.load(
            "stepfast", search_paths=[PYTHON], try_relative_path=False, allow_inspection=False
        )
        self.missing: list[str] = []
        self._lines: list[str] = []
        described: set[str] = set()
        self._groups = {
            group: [entry.without(described) for entry in entries]
            for group, entries in group_entries(package)
        }
        self._entries: dict[str, Entry] = {}
        self._anchors: dict[str, str] = {}
        for entry in [entry for entries in self._groups.values() for entry in entries]:
            self._entries |= {each.title: each for each in (entry, *entry.members)}
        anchors: dict[str, str] = {}
        for heading in ["Python: every name", *self._groups, *self._entries]:
            entry = self._entries.get(heading)
            text = heading if entry is None else entry.heading
            # in the form that GitHub gives them
            anchor = re.sub(r"[^\w -]", "", text.lower()).replace(" ", "-")
            if anchor in anchors:
                raise ValueError(f"{heading} and {anchors[anchor]} have the same anchor")
            anchors[anchor] = heading
            if entry is not None:
                self._anchors[heading] = anchor

    def text(self) -> str:
        """Returns the text of the page."""
        self._lines = [BEGINNING.rstrip("\n")]
        for group, entries in self._groups.items():
            links = ", ".join(f"[`{entry.title}`](#{self._anchors[entry.title]})" for entry in entries)
            guide, _ = GROUPS.get(group, ({VALUES: "values", RULES: "graphs"}.get(group, "python"), ""))
            self._lines.append(f"| {links} | [{group}](../guide/{guide}.md) |")
        for group, entries in self._groups.items():
            self._lines += ["", f"## {group}"]
            for entry in entries:
                self._describe(entry, "###")
                for member in entry.members:
                    self._describe(member, "####")
        return "\n".join(self._lines) + "\n"

    def _describe(self, entry: Entry, level: str) -> None:
        sections = entry.sections
        self._lines += ["", f"{level} {entry.heading}", "", "```python", *declaration(entry), "```"]
        if "text" not in sections:
            self.missing.append(f"{entry.title}: a docstring")
            return
        self._lines += ["", *self._link_names(fence_code(sections["text"]), entry)]
        docstring = self._docstring_sections(entry)
        arguments = dict(self._arguments(entry, docstring))
        if f"`{entry.title.removeprefix('Async')}`" in sections["text"] and entry.title.startswith("Async"):
            # the entry of the sync class has the rest
            own = [each.name for each in sections.get("parameters", [])]
            arguments = {name: text for name, text in arguments.items() if name in own}
        else:
            sections = docstring
        self._list("Arguments", arguments.values(), entry)
        self._list("Attributes", self._attributes(entry, docstring), entry)
        output = join_lines(" ".join(each.description for each in sections.get("returns", [])))
        if output:
            self._lines += ["", *self._link_names(f"**Returns** {output}", entry)]
        errors = [
            f"`{each.annotation}`: {join_lines(each.description)}" for each in sections.get("raises", [])
        ]
        self._list("Raises", errors, entry)

    def _docstring_sections(self, entry: Entry) -> dict[str, Any]:
        """Returns the sections of the entry's docstring. A reference, such as "See `Engine.start`.", adds the
        parameters, results and errors that only the other docstring describes."""
        sections = entry.sections
        family = entry.title.split(".")[0]
        for name in re.findall(r"See\s+`([\w.]+)`", sections.get("text", "")):
            model = self._entries.get(f"{family}.{name}") or self._entries.get(name)
            if model is None or model.title == entry.title:
                continue
            others = self._docstring_sections(model)
            described = {each.name: each for each in others.get("parameters", [])}
            described |= {each.name: each for each in sections.get("parameters", [])}
            sections = {
                **{kind: others[kind] for kind in ("returns", "raises") if kind in others},
                **sections,
            }
            sections["parameters"] = list(described.values())
        return sections

    def _arguments(self, entry: Entry, sections: dict[str, Any]) -> Iterator[tuple[str, str]]:
        """Returns the names of the arguments with their descriptions. Notes the missing descriptions."""
        described = {each.name: join_lines(each.description) for each in sections.get("parameters", [])}
        for parameter in entry.parameters:
            same_name = [
                each
                for overload in entry.overloads
                for each in (overload.parameters if overload.is_function else entry.parameters)
                if each.name == parameter.name
            ]
            types = {type_of(each) for each in same_name}
            if parameter.name not in described:
                # the parameters of a workflow's own function need no description
                if not types & {"P.args", "P.kwargs"}:
                    self.missing.append(f"{entry.title}: its argument {parameter.name}")
                continue
            if len(types) > 1 and type_of(parameter) != "Any":
                types = {type_of(parameter)}
            facts = [f"`{each}`" for each in types if not each.startswith("P.")] if len(types) == 1 else []
            # a decorator's function has a default only where it is left out
            if is_optional(parameter) and (any(map(is_optional, same_name)) or is_by_name(parameter)):
                facts.append(f"by default `{parameter.default}`")
            what = f" ({', '.join(facts)})" if facts else ""
            yield (
                parameter.name,
                f"`{star_prefix(parameter)}{parameter.name}`{what}: {described[parameter.name]}",
            )

    def _attributes(self, entry: Entry, sections: dict[str, Any]) -> Iterator[str]:
        """Returns the descriptions of a class's attributes. Notes the missing descriptions."""
        if not entry.target.is_class:
            return
        described = {each.name: join_lines(each.description) for each in sections.get("attributes", [])}
        # the arguments of a dataclass that programs create are described already
        arguments = {each.name for each in sections.get("parameters", [])}
        for name, member in entry.attributes.items():
            is_own = name in entry.target.members
            is_described = is_own and ("property" in member.labels or "dataclass" in entry.target.labels)
            if is_own and member.docstring is not None and name not in described:
                described[name] = join_lines(member.docstring.value)
            if name in described and member.annotation is not None:
                yield f"`{name}` (`{member.annotation}`): {described[name]}"
            elif name in described and is_enum(entry.target):
                yield f"`{name}`: {described[name]}"
            elif name in described or (is_described and name not in arguments):
                self.missing.append(f"{entry.title}: its attribute {name}, or the type of that")

    def _list(self, heading: str, items: Any, entry: Entry) -> None:
        items = list(items)
        if items:
            self._lines += ["", f"**{heading}**", ""]
            for item in items:
                self._lines += self._link_names(f"- {item}", entry)

    def _link_names(self, text: str, entry: Entry) -> list[str]:
        """Returns the lines of a text, with links for the names of other entries."""
        own = {parameter.name for parameter in entry.parameters} | {entry.title, *entry.attributes}
        family = entry.title.split(".")[0]

        def link(match: re.Match[str]) -> str:
            name = match[1].removeprefix("stepfast.")
            if name in own:
                return match[0]
            anchor = self._anchors.get(f"{family}.{name}") or self._anchors.get(name)
            return match[0] if anchor is None else f"[{match[0]}](#{anchor})"

        lines, is_code = [], False
        for line in text.splitlines():
            is_code ^= line.startswith("```")
            lines.append(line if is_code else re.sub(r"`([\w.]+)`", link, line))
        return lines


def group_entries(package: Any) -> Iterator[tuple[str, list[Entry]]]:
    """Returns the headings, each with the public entries below it."""

    def find_entries(module: Any, names: Iterable[str]) -> list[Entry]:
        return [Entry(name, package.modules_collection[module.imports[name]]) for name in names]

    public = [str(name) for name in package.exports]
    grouped_names = [name for _, names in GROUPS.values() for name in names.split()]
    for group, (_, names) in GROUPS.items():
        yield group, find_entries(package, names.split())
    others = [name for name in public if name not in grouped_names]
    if others:
        yield "More", find_entries(package, others)
    for title in (RULES, VALUES):
        module = package[title.rpartition(".")[2]]
        names_of_module = [
            str(name) for name in module.exports if str(name) not in public and str(name) != "Rule"
        ]
        yield (
            title,
            [
                Entry(
                    name,
                    module.members[name]
                    if name not in module.imports
                    else package.modules_collection[module.imports[name]],
                )
                for name in names_of_module
            ],
        )


def declaration(entry: Entry) -> Iterator[str]:
    """Returns the lines of the declaration, as in code."""
    name = entry.title.rpartition(".")[2]
    if entry.target.is_class:
        bases = ", ".join(public_bases(entry.target))
        if not name.islower():
            yield f"class {name}({bases})" if bases else f"class {name}"
        if entry.parameters:
            yield from call_text(name, entry.parameters, "")
        return
    if entry.target.is_attribute:
        yield f"{name} = {entry.target.value}"
        return
    for overload in entry.overloads:
        prefix = "async def " if "async" in overload.labels else "def "
        returns = str(overload.returns).replace("builtins.", "")
        yield from call_text(prefix + name, own_parameters(overload), f" -> {returns}")


def is_enum(cls: Any) -> bool:
    return any(str(base).endswith("Enum") for base in cls.bases)


def public_bases(cls: Any) -> Iterator[str]:
    """Returns the bases of a class; a private base is replaced by its own bases."""
    for base in cls.bases:
        name = str(base).partition("[")[0]
        resolved = [each for each in cls.resolved_bases if each.name == name]
        if name.startswith("_") and resolved:
            yield from public_bases(resolved[0])
        elif name not in ("CoroutineFunction", "Exchanges", "Scheduling"):
            yield str(base)


def own_parameters(function: Any) -> list[Any]:
    """Returns the parameters of a function; of a method without the first one."""
    return list(function.parameters)[1 if function.parent.is_class else 0 :]


def is_variadic(function: Any) -> bool:
    return any(each.kind.value == "variadic positional" for each in function.parameters)


def call_text(name: str, parameters: list[Any], returns: str) -> Iterator[str]:
    """Returns the lines of a signature: one line if it is short."""
    parts: list[str] = []
    before = None
    for parameter in parameters:
        kind = parameter.kind.value
        if before == "positional-only" and kind != before:
            parts.append("/")
        if kind == "keyword-only" and before not in (kind, "variadic positional"):
            parts.append("*")
        default = f" = {parameter.default}" if is_optional(parameter) else ""
        parts.append(f"{star_prefix(parameter)}{parameter.name}: {type_of(parameter)}{default}")
        before = kind
    if before == "positional-only":
        parts.append("/")
    line = f"{name}({', '.join(parts)}){returns}"
    if len(line) <= WIDTH:
        yield line
    else:
        yield f"{name}("
        yield from (f"    {part}," for part in parts)
        yield f"){returns}"


def star_prefix(parameter: Any) -> str:
    """Returns the stars before a parameter's name."""
    return {"variadic positional": "*", "variadic keyword": "**"}.get(parameter.kind.value, "")


def type_of(parameter: Any) -> str:
    return str(parameter.annotation).replace("builtins.", "")


def is_optional(parameter: Any) -> bool:
    return parameter.default is not None and not parameter.kind.value.startswith("variadic")


def is_by_name(parameter: Any) -> bool:
    return bool(parameter.kind.value == "keyword-only")


def join_lines(text: str) -> str:
    """Returns a text in one line."""
    return " ".join(text.split())


def fence_code(text: str) -> str:
    """Returns a text with fences around its blocks of indented code."""
    block = re.compile(r"(?:^(?: {4}.*)?\n?)+", re.MULTILINE)

    def fence(match: re.Match[str]) -> str:
        code = match[0].strip("\n")
        if not code:
            return match[0]
        lines = [line.removeprefix("    ") for line in code.splitlines()]
        return "\n```python\n" + "\n".join(lines) + "\n```\n\n"

    return block.sub(fence, text).strip("\n")


class DocstringProblems(logging.Handler):
    """The problems that griffe finds in docstrings, such as unknown arguments."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def main() -> None:
    problems = DocstringProblems()
    logging.getLogger("griffe").addHandler(problems)
    reference = Reference()
    text = reference.text()
    messages = [*reference.missing, *problems.messages]
    if messages:
        sys.exit("not described in a docstring:\n  " + "\n  ".join(messages))
    print(text, end="")


if __name__ == "__main__":
    main()
