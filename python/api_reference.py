"""Prints docs/reference/python.md, from the signatures and docstrings of the package: see `make reference`.

It ends with an error if something public is not described.
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

#: Headings, the guides that they belong to, and what stands below them. What has no place comes last.
GROUPS: Final = {
    "Steps and workflows": (
        "python",
        "step workflow sleep sleep_until Duration RetryOn Step BoundStep Workflow BoundWorkflow "
        "ConfiguredWorkflow RemoteWorkflow Startable StartOptions OnDuplicate OnFull Instance",
    ),
    "Side by side, limits in time, children": (
        "python-asyncio",
        "gather map as_completed timeout wait_for Child AsyncChild",
    ),
    "Steps in processes": ("python-processes", "ProcessStep BoundProcessStep ProcessDied"),
    "Engines": (
        "python-running",
        "Client Engine Handle AsyncClient AsyncEngine AsyncHandle Execution Status StatusText Record "
        "Checkpoint Attempt Filter BulkResult WorkerOverview Worker Unclaimable ReplayFilter",
    ),
    "Queues": ("queues", "Queue QueueInfo Rate"),
    "Outboxes": ("outbox", "Outbox AsyncOutbox DeadLetter"),
    "The current execution, and errors": (
        "python-errors",
        "current current_or_none Current Error InvalidArgument Conflict WorkflowIdConflict QueueConflict "
        "DedupConflict QueueFull NotFound WorkflowFailed WorkflowCancelled WorkflowParked ResultTimeout "
        "Unavailable StoreUnavailable EngineClosed StoreCorrupt SchemaMismatch EncodeError DecodeError "
        "RemoteError StepfastWarning",
    ),
}
#: They are called exceptions, and not classes.
ERRORS: Final = [*GROUPS["The current execution, and errors"][1].split()[3:], "ProcessDied"]
VALUES: Final = "stepfast.values"

BEGINNING: Final = """\
<!-- Made of docstrings by `make reference`: change those. -->

# Python: every name

All names are imported by `from stepfast import …`, except those of `stepfast.values`. In signatures
`P` stands for the parameters of a function, and `R`, `T` for what it returns. What the codes of errors mean
is in [errors.md](errors.md). `stepfast.__version__` is the version of the package.

| names | guide |
|---|---|
"""


@dataclass(frozen=True)
class Entry:
    """Something with a heading of its own: `Engine`, or its method `Engine.start`."""

    title: str
    it: Any
    chosen: list[Entry] | None = None

    @property
    def overloads(self) -> list[Any]:
        """Returns its signatures, without overloads for type checkers alone and those for a fixed number
        of arguments beside one for any number."""
        found = self.it.overloads if self.it.is_function and self.it.overloads else [self.it]
        found = [each for each in found if not is_for_checkers(each)]
        if not any(is_variadic(each) for each in found):
            return list(found)
        return [each for each in found if is_variadic(each)]

    @property
    def parameters(self) -> list[Any]:
        """Returns the parameters to be described: of a function, or of a class that is called."""
        if not self.it.is_class:
            return given(self.it) if self.it.is_function else []
        return given(self.it.all_members["__init__"]) if "parameters" in self.sections else []

    @property
    def heading(self) -> str:
        """Different ones have different anchors: `step` and `class Step`."""
        if not self.it.is_class or self.title.islower():
            return self.title
        return f"{'exception' if self.title in ERRORS else 'class'} {self.title}"

    @property
    def sections(self) -> dict[str, Any]:
        """Returns the sections of the docstring by kind; the text is one."""
        if self.it.docstring is None:
            return {}
        return {section.kind.value: section.value for section in self.it.docstring.parse("google")}

    @property
    def attributes(self) -> dict[str, Any]:
        """Returns the public members."""
        if not self.it.is_class:
            return {}
        return {
            name: member
            for name, member in self.it.all_members.items()
            if member.is_attribute and not name.startswith("_")
        }

    @property
    def members(self) -> list[Entry]:
        """Methods with headings of their own."""
        if self.chosen is not None:
            return self.chosen
        if not self.it.is_class:
            return []
        return [
            Entry(f"{self.title}.{name}", member)
            for name, member in self.it.all_members.items()
            if member.is_function and not name.startswith("_") and not is_elsewhere(member)
        ]

    def without(self, described: set[str]) -> Entry:
        """Returns the entry without the members that earlier entries describe.

        Args:
            described: The paths of described members, to which those of this entry are added.
        """
        own = [member for member in self.members if path_of(member.it) not in described]
        described.update(path_of(member.it) for member in own)
        return dataclasses.replace(self, chosen=own)


def is_elsewhere(member: Any) -> bool:
    """True if it is described with the class that it is inherited from."""
    return bool(member.inherited and member.final_target.parent.is_exported)


def path_of(member: Any) -> str:
    """Returns where a member is defined: several classes may inherit it from one private base."""
    return str(member.final_target.path if member.is_alias else member.path)


def is_for_checkers(function: Any) -> bool:
    return function.is_function and any("Unspecified" in type_of(each) for each in function.parameters)


class Reference:
    """The page, and what is missing for it."""

    def __init__(self) -> None:
        package: Any = griffe.load("stepfast", search_paths=[PYTHON], allow_inspection=False)
        self.missing: list[str] = []
        self._lines: list[str] = []
        described: set[str] = set()
        self._groups = {
            group: [entry.without(described) for entry in entries] for group, entries in grouped(package)
        }
        self._entries: dict[str, Entry] = {}
        self._anchors: dict[str, str] = {}
        for entry in [entry for entries in self._groups.values() for entry in entries]:
            self._entries |= {each.title: each for each in (entry, *entry.members)}
        anchors: dict[str, str] = {}
        for heading in ["Python: every name", *self._groups, *self._entries]:
            found = self._entries.get(heading)
            text = heading if found is None else found.heading
            # as GitHub makes them
            anchor = re.sub(r"[^\w -]", "", text.lower()).replace(" ", "-")
            if anchor in anchors:
                raise ValueError(f"{heading} and {anchors[anchor]} have the same anchor")
            anchors[anchor] = heading
            if found is not None:
                self._anchors[heading] = anchor

    def text(self) -> str:
        """All of it."""
        self._lines = [BEGINNING.rstrip("\n")]
        for group, entries in self._groups.items():
            links = ", ".join(f"[`{entry.title}`](#{self._anchors[entry.title]})" for entry in entries)
            guide, _ = GROUPS.get(group, ("values" if group == VALUES else "python", ""))
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
        self._lines += ["", f"{level} {entry.heading}", "", "```python", *declared(entry), "```"]
        if "text" not in sections:
            self.missing.append(f"{entry.title}: a docstring")
            return
        self._lines += ["", *self._linked(fenced(sections["text"]), entry)]
        said = self._said(entry)
        arguments = dict(self._arguments(entry, said))
        if f"`{entry.title.removeprefix('Async')}`" in sections["text"] and entry.title.startswith("Async"):
            # the entry of the sync class has the rest
            own = [each.name for each in sections.get("parameters", [])]
            arguments = {name: text for name, text in arguments.items() if name in own}
        else:
            sections = said
        self._list("Arguments", arguments.values(), entry)
        self._list("Attributes", self._attributes(entry, said), entry)
        returned = joined(" ".join(each.description for each in sections.get("returns", [])))
        if returned:
            self._lines += ["", *self._linked(f"**Returns** {returned}", entry)]
        raised = [f"`{each.annotation}`: {joined(each.description)}" for each in sections.get("raises", [])]
        self._list("Raises", raised, entry)

    def _said(self, entry: Entry) -> dict[str, Any]:
        """The sections of its docstring, and what that does not say but another one to which it leads:
        "See `Engine.start`."."""
        sections = entry.sections
        family = entry.title.split(".")[0]
        for name in re.findall(r"See\s+`([\w.]+)`", sections.get("text", "")):
            model = self._entries.get(f"{family}.{name}") or self._entries.get(name)
            if model is None or model.title == entry.title:
                continue
            said = self._said(model)
            described = {each.name: each for each in said.get("parameters", [])}
            described |= {each.name: each for each in sections.get("parameters", [])}
            sections = {**{kind: said[kind] for kind in ("returns", "raises") if kind in said}, **sections}
            sections["parameters"] = list(described.values())
        return sections

    def _arguments(self, entry: Entry, sections: dict[str, Any]) -> Iterator[tuple[str, str]]:
        described = {each.name: joined(each.description) for each in sections.get("parameters", [])}
        for parameter in entry.parameters:
            told = [
                each
                for overload in entry.overloads
                for each in (overload.parameters if overload.is_function else entry.parameters)
                if each.name == parameter.name
            ]
            types = {type_of(each) for each in told}
            if parameter.name not in described:
                # those of the function itself need no word
                if not types & {"P.args", "P.kwargs"}:
                    self.missing.append(f"{entry.title}: its argument {parameter.name}")
                continue
            if len(types) > 1 and type_of(parameter) != "Any":
                types = {type_of(parameter)}
            facts = [f"`{each}`" for each in types if not each.startswith("P.")] if len(types) == 1 else []
            # a decorator's function has a default only where it is left out
            if is_optional(parameter) and (any(map(is_optional, told)) or is_by_name(parameter)):
                facts.append(f"by default `{parameter.default}`")
            what = f" ({', '.join(facts)})" if facts else ""
            yield parameter.name, f"`{starred(parameter)}`{what}: {described[parameter.name]}"

    def _attributes(self, entry: Entry, sections: dict[str, Any]) -> Iterator[str]:
        if not entry.it.is_class:
            return
        described = {each.name: joined(each.description) for each in sections.get("attributes", [])}
        # of a dataclass that programs make, they are described already
        arguments = {each.name for each in sections.get("parameters", [])}
        for name, member in entry.attributes.items():
            is_own = name in entry.it.members
            is_told = is_own and ("property" in member.labels or "dataclass" in entry.it.labels)
            if is_own and member.docstring is not None and name not in described:
                described[name] = joined(member.docstring.value)
            if name in described and member.annotation is not None:
                yield f"`{name}` (`{member.annotation}`): {described[name]}"
            elif name in described and is_enum(entry.it):
                yield f"`{name}`: {described[name]}"
            elif name in described or (is_told and name not in arguments):
                self.missing.append(f"{entry.title}: its attribute {name}, or the type of that")

    def _list(self, heading: str, items: Any, entry: Entry) -> None:
        items = list(items)
        if items:
            self._lines += ["", f"**{heading}**", ""]
            for item in items:
                self._lines += self._linked(f"- {item}", entry)

    def _linked(self, text: str, entry: Entry) -> list[str]:
        """The text's lines, with links where it names what is described."""
        own = {parameter.name for parameter in entry.parameters} | {entry.title, *entry.attributes}
        family = entry.title.split(".")[0]

        def link(found: re.Match[str]) -> str:
            name = found[1].removeprefix("stepfast.")
            if name in own:
                return found[0]
            anchor = self._anchors.get(f"{family}.{name}") or self._anchors.get(name)
            return found[0] if anchor is None else f"[{found[0]}](#{anchor})"

        lines, is_code = [], False
        for line in text.splitlines():
            is_code ^= line.startswith("```")
            lines.append(line if is_code else re.sub(r"`([\w.]+)`", link, line))
        return lines


def grouped(package: Any) -> Iterator[tuple[str, list[Entry]]]:
    """The headings, and what is public below each."""

    def found(module: Any, names: Iterable[str]) -> list[Entry]:
        return [Entry(name, package.modules_collection[module.imports[name]]) for name in names]

    public = [str(name) for name in package.exports]
    placed = [name for _, names in GROUPS.values() for name in names.split()]
    for group, (_, names) in GROUPS.items():
        yield group, found(package, names.split())
    others = [name for name in public if name not in placed]
    if others:
        yield "More", found(package, others)
    values = package["values"]
    yield VALUES, found(values, (str(name) for name in values.exports if str(name) not in public))


def declared(entry: Entry) -> Iterator[str]:
    """The declaration, as in code."""
    name = entry.title.rpartition(".")[2]
    if entry.it.is_class:
        bases = ", ".join(public_bases(entry.it))
        if not name.islower():
            yield f"class {name}({bases})" if bases else f"class {name}"
        if entry.parameters:
            yield from called(name, entry.parameters, "")
        return
    if entry.it.is_attribute:
        yield f"{name} = {entry.it.value}"
        return
    for overload in entry.overloads:
        prefix = "async def " if "async" in overload.labels else "def "
        returns = str(overload.returns).replace("builtins.", "")
        yield from called(prefix + name, given(overload), f" -> {returns}")


def is_enum(found: Any) -> bool:
    return any(str(base).endswith("Enum") for base in found.bases)


def public_bases(cls: Any) -> Iterator[str]:
    """Returns the bases of a class; a private base is replaced by its own bases."""
    for base in cls.bases:
        name = str(base).partition("[")[0]
        found = [each for each in cls.resolved_bases if each.name == name]
        if name.startswith("_") and found:
            yield from public_bases(found[0])
        elif name != "CoroutineFunction":
            yield str(base)


def given(function: Any) -> list[Any]:
    """The parameters of a function, or those after the first one of a method."""
    return list(function.parameters)[1 if function.parent.is_class else 0 :]


def is_variadic(function: Any) -> bool:
    return any(each.kind.value == "variadic positional" for each in function.parameters)


def called(name: str, parameters: list[Any], returns: str) -> Iterator[str]:
    """A signature, in one line if it is short."""
    parts: list[str] = []
    before = None
    for parameter in parameters:
        kind = parameter.kind.value
        if before == "positional-only" and kind != before:
            parts.append("/")
        if kind == "keyword-only" and before not in (kind, "variadic positional"):
            parts.append("*")
        default = f" = {parameter.default}" if is_optional(parameter) else ""
        parts.append(f"{starred(parameter)}: {type_of(parameter)}{default}")
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


def starred(parameter: Any) -> str:
    stars = {"variadic positional": "*", "variadic keyword": "**"}.get(parameter.kind.value, "")
    return f"{stars}{parameter.name}"


def type_of(parameter: Any) -> str:
    return str(parameter.annotation).replace("builtins.", "")


def is_optional(parameter: Any) -> bool:
    return parameter.default is not None and not parameter.kind.value.startswith("variadic")


def is_by_name(parameter: Any) -> bool:
    return bool(parameter.kind.value == "keyword-only")


def joined(text: str) -> str:
    return " ".join(text.split())


def fenced(text: str) -> str:
    """Blocks of indented code, as Markdown shows them best."""
    block = re.compile(r"(?:^(?: {4}.*)?\n?)+", re.MULTILINE)

    def fence(found: re.Match[str]) -> str:
        code = found[0].strip("\n")
        if not code:
            return found[0]
        lines = [line.removeprefix("    ") for line in code.splitlines()]
        return "\n```python\n" + "\n".join(lines) + "\n```\n\n"

    return block.sub(fence, text).strip("\n")


class Complaints(logging.Handler):
    """Returns the problems that griffe finds in docstrings, such as unknown arguments."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def main() -> None:
    complaints = Complaints()
    logging.getLogger("griffe").addHandler(complaints)
    reference = Reference()
    text = reference.text()
    wrong = [*reference.missing, *complaints.messages]
    if wrong:
        sys.exit("not described in its docstring:\n  " + "\n  ".join(wrong))
    print(text, end="")


if __name__ == "__main__":
    main()
