"""The documents' code runs, and prints what they say.

Blocks of Python in a document make one program, in their order. One marked `file=NAME` is saved under that
name instead, and has to be run by a `console` block: its commands are typed one after the other, and have to
print what stands below them. `killed` in the info string says that the last command ends by SIGKILL, `fails`
that it ends with an error, or that the block of Python does.
"""

import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys

import pytest
from repository import ROOT

import stepfast

#: All documents, as paths from the root.
DOCUMENTS = [
    path.relative_to(ROOT).as_posix() for path in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
]
FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
#: Those with code; that of the guide to values runs as a module, in a test of its own. That of the reference
#: of Python consists of signatures.
WITH_CODE = [
    name
    for name in DOCUMENTS
    if name not in ("docs/guide/values.md", "docs/reference/python.md")
    and "```python" in (ROOT / name).read_text(encoding="utf-8")
]
#: Where `python` is found, as in an activated environment.
PROGRAMS = pathlib.Path(sys.executable).parent


def blocks(document: str) -> list[tuple[str, list[str], str, int]]:
    """Language, markers, text and first line of every block."""
    text = (ROOT / document).read_text(encoding="utf-8")
    return [
        (found[1], found[2].split(), found[3], text[: found.start(3)].count("\n"))
        for found in FENCE.finditer(text)
    ]


def run(command: list[str], folder: pathlib.Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": f"{PROGRAMS}:{os.environ['PATH']}"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


def check_end(ended: subprocess.CompletedProcess[str], markers: list[str]) -> None:
    if "killed" in markers:
        assert ended.returncode == -signal.SIGKILL, ended.stderr
    elif "fails" in markers:
        assert ended.returncode > 0, ended.stdout
    else:
        assert ended.returncode == 0, ended.stderr


def typed(text: str) -> list[tuple[list[str], str]]:
    """The commands of a console block, and what each should print."""
    commands = re.split(r"^\$ ", text, flags=re.MULTILINE)
    assert commands[0] == "", "a console block begins with a command"
    pairs = [command.partition("\n") for command in commands[1:]]
    return [(shlex.split(command), printed) for command, _, printed in pairs]


@pytest.mark.parametrize("document", WITH_CODE)
def test_code_runs(document: str, tmp_path: pathlib.Path) -> None:
    together, saved, ran = "", set(), set()
    for language, markers, text, lines_before in blocks(document):
        if language == "python":
            unknown = [marker for marker in markers if not re.fullmatch(r"killed|fails|file=\w+\.py", marker)]
            assert not unknown, f"{document}: {unknown}"
            name = next((marker[5:] for marker in markers if marker.startswith("file=")), None)
            if name is not None:
                (tmp_path / name).write_text(text)
                saved.add(name)
            elif markers:
                program = tmp_path / f"block_{lines_before}.py"
                program.write_text(text)
                check_end(run([sys.executable, program.name], tmp_path), markers)
            else:
                # line numbers in a traceback are those of the document
                together += "\n" * (lines_before - together.count("\n")) + text
        elif language == "console":
            commands = typed(text)
            for command, printed in commands:
                ended = run(command, tmp_path)
                check_end(ended, markers if (command, printed) == commands[-1] else [])
                assert ended.stdout == printed
                ran.update(command[1:])
    assert saved <= ran, "not run by any console block"
    if together:
        program = tmp_path / "page.py"
        program.write_text(together)
        check_end(run([sys.executable, program.name], tmp_path), [])
    assert together or saved, "nothing was run"


def anchors(document: pathlib.Path) -> set[str]:
    """What links can name in a document: its headings, as sites that show Markdown write them."""
    text = re.sub(r"^```.*?^```$", "", document.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document: str) -> None:
    # code may look like links
    text = re.sub(r"`[^`\n]+`", "", (ROOT / document).read_text(encoding="utf-8"))
    for link, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)[^)]*\)", text):
        if link.startswith("http"):
            continue
        target = (ROOT / document).parent / link if link else ROOT / document
        assert target.exists(), link
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{link}#{anchor}"


def test_every_exception_is_in_the_guide() -> None:
    table = (ROOT / "docs/guide/python-errors.md").read_text(encoding="utf-8")
    missing = [
        name
        for name in stepfast.__all__
        if isinstance(known := getattr(stepfast, name), type)
        and issubclass(known, stepfast.Error)
        and known is not stepfast.Error
        and f"\n| `{name}` |" not in table
    ]
    assert not missing


def test_the_sentence_is_the_same_everywhere() -> None:
    project = (ROOT / "python/pyproject.toml").read_text(encoding="utf-8")
    description = re.search(r'^description = "(.*)"$', project, re.MULTILINE)
    assert description is not None
    assert description[1] in (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
