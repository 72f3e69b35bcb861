"""`stepfast bench --sdk python`: the package's part by itself, and from the program."""

import asyncio
import gc
import json
import pathlib
import shutil
import subprocess
import sys
import time
from typing import Any

import pytest

from stepfast import AsyncEngine, Engine, _native
from stepfast.bench import memory, workflows
from stepfast.bench.tally import Tally


def asked(url: str, **others: Any) -> dict[str, Any]:
    parameters = {"mode": "run", "concurrency": 8, "is_threads": False, "steps": 0, "total": 200}
    return {"experiment": "workflows", "url": url} | parameters | others


def measured(asked: dict[str, Any], what: str) -> Any:
    """What the package says when it is asked as the program asks it."""
    said = subprocess.run(
        [sys.executable, "-m", "stepfast.bench"],
        input=f"{json.dumps(asked)}\n{{}}\n",
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert said.returncode == 0, said.stderr
    lines = [json.loads(line) for line in said.stdout.splitlines()]
    assert lines[0]["stepfast"] == _native.__version__
    assert {"ready": True} in lines
    [answer] = [line[what] for line in lines if what in line]
    return answer


def report(program: pathlib.Path, folder: pathlib.Path, *arguments: str) -> tuple[str, dict[str, Any]]:
    """What the program prints, and writes as JSON."""
    file = folder / "report.json"
    command = [program, "bench", *arguments, "--python", sys.executable, "--json", file]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout, json.loads(file.read_text())


@pytest.mark.parametrize("mode", ["start", "run"])
@pytest.mark.parametrize("is_threads", [False, True], ids=["tasks", "threads"])
@pytest.mark.parametrize("steps", [0, 2])
def test_every_workflow_completes_and_counts(mode: str, is_threads: bool, steps: int, url: str) -> None:
    row = measured(asked(url, mode=mode, is_threads=is_threads, steps=steps), "row")
    assert (row["completed"], row["failed"]) == (200, 0)
    assert 0 < row["p50_ms"] <= row["p99_ms"] <= row["max_ms"]
    assert row["per_second"] == pytest.approx(200 / row["seconds"])
    assert row["flushes"] > 0
    # a workflow without steps is one Write by `run`, and one or two by `start`
    assert 200 * (1 + steps) <= round(row["flushes"] * row["writes_per_flush"]) <= 200 * (3 + steps)


def drive(url: str, is_threads: bool) -> dict[str, Any]:
    """The row of ten workflows that are run here."""
    parameters = workflows.Parameters(url, "start", 3, is_threads, 1, 10)
    tally = Tally(10)

    async def by_tasks() -> None:
        async with AsyncEngine(url) as engine:
            await workflows.drive(engine, parameters, 3, tally)

    if is_threads:
        with Engine(url) as engine:
            workflows.drive_here(engine, parameters, 3, tally)
    else:
        asyncio.run(by_tasks())
    return tally.row(2.0)


@pytest.mark.parametrize("is_threads", [False, True], ids=["tasks", "threads"])
def test_wrong_outputs_and_errors_do_not_count(
    is_threads: bool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    workflow = workflows.counting_here if is_threads else workflows.counting
    code = workflow.function

    def check(n: int, output: int) -> int:
        if n == 4:
            raise LookupError("no four")
        return output + (n > 6)

    async def faulty(n: int, steps: int) -> int:
        return check(n, await code(n, steps))

    def faulty_here(n: int, steps: int) -> int:
        return check(n, code(n, steps))

    monkeypatch.setattr(workflow, "function", faulty_here if is_threads else faulty)
    row = drive("memory:", is_threads)
    assert (row["completed"], row["failed"], row["per_second"]) == (6, 4, 3.0)
    said = capfd.readouterr().err.splitlines()
    assert len(said) == 1, "the first failure is told, and no other"
    assert said[0].startswith("a workflow failed: "), said


def test_quantiles_are_of_what_was_measured() -> None:
    tally = Tally(0)
    assert tally.row(1.0)["p50_ms"] == 0.0
    tally.took += [n / 1000 for n in range(200, 0, -1)]
    row = tally.row(1.0)
    assert (row["p50_ms"], row["p99_ms"], row["max_ms"]) == (100.0, 198.0, 200.0)


def test_a_heartbeat_notes_how_long_it_could_not_beat() -> None:
    async def main() -> float:
        heartbeat = memory.Heartbeat()
        await heartbeat.settle()
        # keeps the loop, as the clock has it, for at least as long
        begun = time.perf_counter()
        while time.perf_counter() - begun < 0.03:
            pass
        return await heartbeat.end()

    assert asyncio.run(main()) >= 30


def test_collections_are_noted() -> None:
    with memory.Collections() as collections:
        gc.collect()
    noted = collections.longest
    assert noted > 0
    gc.collect()
    assert collections.longest == noted


@pytest.mark.parametrize("kind", ["blocked", "burst", "fed", "tuned"])
def test_memory_has_its_figures(kind: str, url: str) -> None:
    many = {"few": 10, "many": 250} if kind == "blocked" else {"many": 250}
    figures, row = measured({"experiment": "memory", "kind": kind, "url": url} | many, "measured")
    assert (row["mode"], row["completed"], row["failed"]) == (kind, 250, 0)
    if kind == "blocked":
        assert set(figures) == {"each_bytes"}
    else:
        assert figures["peak_bytes"] > 10_000_000
        assert figures["longest_gap_ms"] > 0.5
        assert figures["longest_collection_ms"] >= 0
        assert 100 <= figures["most_in_flight"] <= 250
    # `gather` has all of them in flight at once
    assert kind != "burst" or (figures["most_in_flight"] == 250 and figures["without_engine_ms"] > 0.5)


def test_what_goes_wrong_is_said(tmp_path: pathlib.Path) -> None:
    for lines, says in [
        (asked(f"sqlite:{tmp_path}/none/a.db"), "[SF-"),
        ({"experiment": "juggling"}, "there is no experiment 'juggling'"),
    ]:
        ended = subprocess.run(
            [sys.executable, "-m", "stepfast.bench"],
            input=json.dumps(lines) + "\n",
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert ended.returncode == 1
        assert says in ended.stderr and "Traceback" not in ended.stderr


def test_the_program_prints_rows_of_python(program: pathlib.Path, url: str, tmp_path: pathlib.Path) -> None:
    sweep = ["--iterations", "50", "--concurrency", "1,4", "--threads", "2", "--mode", "start"]
    printed, written = report(program, tmp_path, "steps", "--sdk", "python", "--store", url, *sweep)
    assert printed.startswith("steps on ") and ", python, durability full," in printed
    assert "| 2 threads |" in printed
    assert (written["experiment"], written["sdk"]) == ("steps", "python")
    rows = [(row["concurrency"], row.get("callers"), row["steps"], row["mode"]) for row in written["rows"]]
    assert rows == [(1, None, 3, "start"), (4, None, 3, "start"), (2, "threads", 3, "start")]
    assert all((row["completed"], row["failed"]) == (50, 0) for row in written["rows"])
    # of the server's log, if there is one; a temporary directory may be one that is never written to disk
    assert url.startswith("sqlite") or all(row["bytes_written"] > 0 for row in written["rows"])


def test_the_program_measures_queues_in_python(
    program: pathlib.Path, url: str, tmp_path: pathlib.Path
) -> None:
    sweep = ("--iterations", "300", "--concurrency", "20", "--queues", "1,3", "--limit", "50")
    printed, written = report(program, tmp_path, "queue", "--sdk", "python", "--store", url, *sweep)
    assert printed.startswith("queue on ") and ", python, durability full, " in printed
    waits = ["one at a time, to start", "one at a time, to result"]
    expected = [(mode, n) for n in (1, 3) for mode in ("enqueue", "drain", "both", *waits)]
    assert [(row["mode"], row["queues"]) for row in written["rows"]] == expected
    for row in written["rows"]:
        assert (row["completed"], row["failed"]) == (200 if row["mode"] in waits else 300, 0)
        assert row["per_second"] > 0
    refused = [program, "bench", "queue", "--sdk", "python", "--workers", "2"]
    ended = subprocess.run(refused, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 1 and "--workers is for --sdk rust" in ended.stderr


def test_the_program_judges_the_payload_experiment(
    program: pathlib.Path, url: str, tmp_path: pathlib.Path
) -> None:
    # Python without being asked to
    printed, written = report(program, tmp_path, "payload", "--store", url, "--iterations", "5")
    assert written["sdk"] == "python"
    sizes = [row["size"] for row in written["rows"] if row["mode"] == "durable" and "size" in row]
    assert sizes == [10**i for i in range(7)]
    assert all(row["min_ms"] <= row["p50_ms"] <= row["max_ms"] for row in written["rows"])
    assert {row["mode"] for row in written["rows"]} == {
        *["first call", "ordinary", "durable", "speculative", "batched"],
        *["commit", "append", "random data"],
    }
    assert sum("limit" in figure for figure in written["figures"]) == 6
    assert "one batched step" in printed and printed.count(" met ") + printed.count(" MISSED ") == 6


def test_the_program_measures_memory_in_python(program: pathlib.Path, tmp_path: pathlib.Path) -> None:
    printed, written = report(program, tmp_path, "memory", "--sdk", "python", "--iterations", "2000")
    assert [row["mode"] for row in written["rows"]] == ["blocked", "burst", "fed", "tuned"]
    assert "event loop kept, started 100 in a turn" in printed
    # fewer than the targets are for
    assert not any("limit" in figure for figure in written["figures"])


def test_the_program_says_why_python_failed(program: pathlib.Path, tmp_path: pathlib.Path) -> None:
    store = f"sqlite:{tmp_path}/none/a.db"
    command = [program, "bench", "workflows", "--sdk", "python", "--python", sys.executable, "--store", store]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1 and ended.stdout == ""
    assert "the benchmark in" in ended.stderr and "[SF-" in ended.stderr, ended.stderr


def test_the_python_beside_the_program_is_the_default(program: pathlib.Path, tmp_path: pathlib.Path) -> None:
    beside = tmp_path / "python"
    beside.write_text(f'#!/bin/sh\necho started >&2\nexec {sys.executable} "$@"\n')
    beside.chmod(0o755)
    shutil.copy(program, tmp_path / "stepfast")
    sweep = [
        "--sdk",
        "python",
        "--store",
        "memory",
        "--iterations",
        "3",
        "--concurrency",
        "1",
        "--mode",
        "run",
    ]
    command = [tmp_path / "stepfast", "bench", "workflows", *sweep]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    # what Python says to people is passed on
    assert ended.stderr == "started\n"
    assert "| run " in ended.stdout
