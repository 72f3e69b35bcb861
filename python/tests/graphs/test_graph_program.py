"""Graphs of Python programs in `stepfast graph` and `stepfast workflow show`."""

import pathlib
import subprocess

from stepfast import Context, Engine, Graph, workflow
from stepfast.rules import value


@workflow
def shout_word(split: str) -> str:
    return split.upper()


words = Graph("program words")


@words.task
def split(source: str, separator: str = " ") -> list[str]:
    return source.split(separator)


@words.task(map_over=split)
def length(split: str) -> int:
    if split == "bad":
        raise ValueError("a bad word")
    return len(split)


shouted = words.include(shout_word, name="shouted", map_over=split)


@words.task(when=value("split") == "never")
def never(split: list[str]) -> None: ...


@words.task
def report(length: list[int], shouted: list[str]) -> str:
    return f"{' '.join(shouted)}: {sum(length)}"


def run(program: pathlib.Path, url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [program, *arguments, "--store", url]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def states(tree: str) -> dict[str, str]:
    """Returns the first word after the name of each task of a tree."""
    lines = [line.lstrip(" │├└─").split() for line in tree.splitlines() if "─ " in line]
    return {line[0]: line[1] for line in lines}


def test_graph_is_shown_and_run_by_the_program(url: str, program: pathlib.Path) -> None:
    with Engine(url) as engine:
        listed = run(program, url, "graph", "list").stdout
        assert "program words" in listed and "source, separator (optional)" in listed
        shown = run(program, url, "graph", "show", "program words").stdout
        assert shown == words.to_tree().replace("never", 'never      when value("split") == "never"', 1), (
            shown
        )
        start = ("graph", "run", "program words", "--workflow-id", "words-1")
        followed = run(program, url, *start, "--input", '{"source": "to be"}', "--follow")
        assert followed.returncode == 0, followed.stderr
        assert engine.get("words-1").result() == {"report": "TO BE: 4"}
        tree = followed.stdout.rpartition("completed\n")[2]
        expected = dict.fromkeys(["split", "length", "shouted", "report"], "succeeded") | {"never": "skipped"}
        assert states(tree) == expected, followed.stdout
        assert tree.count("2 items") == 2, tree


def test_failed_graph_is_shown_with_the_error(url: str, program: pathlib.Path) -> None:
    with Engine(url):
        run_it = (
            "graph",
            "run",
            "program words",
            "--input",
            '{"source": "a bad"}',
            "--workflow-id",
            "words-2",
        )
        followed = run(program, url, *run_it, "--follow")
        assert followed.returncode == 1
        for output in (followed.stdout, run(program, url, "workflow", "show", "words-2").stdout):
            tree = output[output.rindex("\nprogram words\n") :]
            found = states(tree)
            assert (found["length"], found["shouted"], found["report"]) == ("failed", "succeeded", "skipped")
            assert "ValueError: a bad word" in tree


def test_inputs_of_the_program_are_checked(url: str, program: pathlib.Path) -> None:
    with Engine(url):
        for given, words_of_error in [
            (
                '{"source": "a", "target": 1}',
                'has no input "target"; its inputs are source, separator (optional)',
            ),
            ("{}", 'needs its input "source"'),
            ("[1]", "must be a JSON object of its inputs by name"),
        ]:
            failed = run(program, url, "graph", "run", "program words", "--input", given)
            assert failed.returncode == 1 and words_of_error in failed.stderr, failed.stderr
        assert run(program, url, "workflow", "list", "--count").stdout == "0\n"


counted = Graph("program context")


@counted.task
def count(context: Context) -> int:
    context["seen"] = 3
    return 3


@counted.task(when=value("count") > 2)
def many(context: Context) -> None:
    context["many"] = True


@counted.task(when=value("count") > 5)
def very_many(context: Context) -> None: ...


def test_condition_on_a_task_with_a_context_is_shown(url: str, program: pathlib.Path) -> None:
    with Engine(url) as engine:
        engine.start(counted.options(workflow_id="context-1")).result()
        expected = {"count": "succeeded", "many": "succeeded", "very_many": "skipped"}
        assert states(run(program, url, "workflow", "show", "context-1").stdout) == expected
        assert states(counted.to_tree(engine.show("context-1"))) == expected
