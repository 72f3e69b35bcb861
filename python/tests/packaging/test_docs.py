"""The code of the documents, its output, and the links of the documents.

The Python blocks of a document make one program, in their order. A block marked `file=NAME` is saved under
that name instead, and a `console` block has to run it. The test runs the commands of a `console` block one
after the other, and compares the output of each with the lines below it. The marker `killed` means that the
last command ends by SIGKILL. The marker `fails` means that this command, or the block of Python, ends with an
error.
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
#: The documents with code to run. The code of the guide to values runs as a module, in a test of its own. The
#: code of the reference of Python consists of signatures.
DOCUMENTS_WITH_CODE = [
    name
    for name in DOCUMENTS
    if name not in ("docs/guide/values.md", "docs/reference/python.md")
    and "```python" in (ROOT / name).read_text(encoding="utf-8")
]
#: The folder of `python`, which an activated environment has in its PATH.
PYTHON_FOLDER = pathlib.Path(sys.executable).parent


def find_blocks(document: str) -> list[tuple[str, list[str], str, int]]:
    """Returns the language, the markers, the text and the number of lines before each block."""
    text = (ROOT / document).read_text(encoding="utf-8")
    return [
        (found[1], found[2].split(), found[3], text[: found.start(3)].count("\n"))
        for found in FENCE.finditer(text)
    ]


def run(command: list[str], folder: pathlib.Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": f"{PYTHON_FOLDER}:{os.environ['PATH']}"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


def check_end(process: subprocess.CompletedProcess[str], markers: list[str]) -> None:
    if "killed" in markers:
        assert process.returncode == -signal.SIGKILL, process.stderr
    elif "fails" in markers:
        assert process.returncode > 0, process.stdout
    else:
        assert process.returncode == 0, process.stderr


def parse_console(text: str) -> list[tuple[list[str], str]]:
    """Returns the commands of a console block, each with its expected output."""
    commands = re.split(r"^\$ ", text, flags=re.MULTILINE)
    assert commands[0] == "", "a console block begins with a command"
    pairs = [command.partition("\n") for command in commands[1:]]
    return [(shlex.split(command), expected_output) for command, _, expected_output in pairs]


@pytest.mark.parametrize("document", DOCUMENTS_WITH_CODE)
def test_code_of_document_runs(document: str, tmp_path: pathlib.Path) -> None:
    page_source, saved_names, run_names = "", set(), set()
    for language, markers, text, lines_before in find_blocks(document):
        if language == "python":
            unknown = [marker for marker in markers if not re.fullmatch(r"killed|fails|file=\w+\.py", marker)]
            assert not unknown, f"{document}: {unknown}"
            name = next((marker[5:] for marker in markers if marker.startswith("file=")), None)
            if name is not None:
                (tmp_path / name).write_text(text)
                saved_names.add(name)
            elif markers:
                program = tmp_path / f"block_{lines_before}.py"
                program.write_text(text)
                check_end(run([sys.executable, program.name], tmp_path), markers)
            else:
                # empty lines give tracebacks the line numbers of the document
                page_source += "\n" * (lines_before - page_source.count("\n")) + text
        elif language == "console":
            commands = parse_console(text)
            for command, expected_output in commands:
                process = run(command, tmp_path)
                check_end(process, markers if (command, expected_output) == commands[-1] else [])
                assert process.stdout == expected_output
                run_names.update(command[1:])
    assert saved_names <= run_names, "some saved files are not run by any console block"
    if page_source:
        program = tmp_path / "page.py"
        program.write_text(page_source)
        check_end(run([sys.executable, program.name], tmp_path), [])
    assert page_source or saved_names, "the document has no code to run"


def find_anchors(document: pathlib.Path) -> set[str]:
    """Returns the anchors of the headings of a document, in the form of sites that show Markdown."""
    text = re.sub(r"^```.*?^```$", "", document.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_of_document_have_targets(document: str) -> None:
    # code may have the form of links
    text = re.sub(r"`[^`\n]+`", "", (ROOT / document).read_text(encoding="utf-8"))
    for link, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)[^)]*\)", text):
        if link.startswith("http"):
            continue
        target = (ROOT / document).parent / link if link else ROOT / document
        assert target.exists(), link
        if anchor and target.suffix == ".md":
            assert anchor in find_anchors(target), f"{link}#{anchor}"


def test_guide_lists_every_exception() -> None:
    table = (ROOT / "docs/guide/python-errors.md").read_text(encoding="utf-8")
    missing = [
        name
        for name in stepfast.__all__
        if isinstance(exported := getattr(stepfast, name), type)
        and issubclass(exported, stepfast.Error)
        and exported is not stepfast.Error
        and f"\n| `{name}` |" not in table
    ]
    assert not missing


def test_readme_contains_description_of_package() -> None:
    project = (ROOT / "python/pyproject.toml").read_text(encoding="utf-8")
    description = re.search(r'^description = "(.*)"$', project, re.MULTILINE)
    assert description is not None
    assert description[1] in (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
