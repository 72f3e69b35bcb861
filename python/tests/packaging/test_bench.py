"""`stepfast bench --sdk python`: the module of the package, alone and under the program."""

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


def make_request(url: str, **others: Any) -> dict[str, Any]:
    parameters = {"mode": "run", "concurrency": 8, "is_threads": False, "steps": 0, "total": 200}
    return {"experiment": "workflows", "url": url} | parameters | others


def run_bench(request: dict[str, Any], key: str) -> Any:
    """Returns one value that the module prints for a request of the program."""
    process = subprocess.run(
        [sys.executable, "-m", "stepfast.bench"],
        input=f"{json.dumps(request)}\n{{}}\n",
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert process.returncode == 0, process.stderr
    lines = [json.loads(line) for line in process.stdout.splitlines()]
    assert lines[0]["stepfast"] == _native.__version__
    assert {"ready": True} in lines
    [result] = [line[key] for line in lines if key in line]
    return result


def run_program(program: pathlib.Path, folder: pathlib.Path, *arguments: str) -> tuple[str, dict[str, Any]]:
    """Runs the program, and returns its output and the report that it writes as JSON."""
    file = folder / "report.json"
    command = [program, "bench", *arguments, "--python", sys.executable, "--json", file]
    process = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert process.returncode == 0, process.stderr
    return process.stdout, json.loads(file.read_text())


@pytest.mark.parametrize("shape", ["simple", "parallel", "pipeline"])
def test_bench_of_graphs_counts_every_completed_graph(shape: str, url: str) -> None:
    request = {"experiment": "graphs", "url": url, "shape": shape, "concurrency": 8, "total": 100}
    row = run_bench(request, "row")
    assert (row["completed"], row["failed"]) == (100, 0)


@pytest.mark.parametrize("mode", ["start", "run"])
@pytest.mark.parametrize("is_threads", [False, True], ids=["tasks", "threads"])
@pytest.mark.parametrize("steps", [0, 2])
def test_bench_counts_every_completed_workflow(mode: str, is_threads: bool, steps: int, url: str) -> None:
    row = run_bench(make_request(url, mode=mode, is_threads=is_threads, steps=steps), "row")
    assert (row["completed"], row["failed"]) == (200, 0)
    assert 0 < row["p50_ms"] <= row["p99_ms"] <= row["max_ms"]
    assert row["per_second"] == pytest.approx(200 / row["seconds"])
    assert row["flushes"] > 0
    # a workflow without steps is one Write by `run`, and one or two by `start`
    assert 200 * (1 + steps) <= round(row["flushes"] * row["writes_per_flush"]) <= 200 * (3 + steps)


def drive(url: str, is_threads: bool) -> dict[str, Any]:
    """Runs ten workflows in this process, and returns their row."""
    parameters = workflows.Parameters(url, "start", 3, is_threads, 1, 10)
    tally = Tally(10)

    async def run_tasks() -> None:
        async with AsyncEngine(url) as engine:
            await workflows.drive(engine, parameters, 3, tally)

    if is_threads:
        with Engine(url) as engine:
            workflows.drive_here(engine, parameters, 3, tally)
    else:
        asyncio.run(run_tasks())
    return tally.row(2.0)


@pytest.mark.parametrize("is_threads", [False, True], ids=["tasks", "threads"])
def test_bench_counts_wrong_outputs_and_errors_as_failed(
    is_threads: bool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    workflow = workflows.counting_here if is_threads else workflows.counting
    code = workflow.function

    def check(n: int, output: int) -> int:
        if n == 4:
            raise LookupError("no four")
        return output + (n > 6)

    async def fail_at_four(n: int, steps: int) -> int:
        return check(n, await code(n, steps))

    def fail_at_four_here(n: int, steps: int) -> int:
        return check(n, code(n, steps))

    monkeypatch.setattr(workflow, "function", fail_at_four_here if is_threads else fail_at_four)
    row = drive("memory:", is_threads)
    assert (row["completed"], row["failed"], row["per_second"]) == (6, 4, 3.0)
    errors = capfd.readouterr().err.splitlines()
    assert len(errors) == 1, "only the first failure is reported"
    assert errors[0].startswith("a workflow failed: "), errors


def test_row_contains_quantiles_of_measured_times() -> None:
    tally = Tally(0)
    assert tally.row(1.0)["p50_ms"] == 0.0
    tally.took += [n / 1000 for n in range(200, 0, -1)]
    row = tally.row(1.0)
    assert (row["p50_ms"], row["p99_ms"], row["max_ms"]) == (100.0, 198.0, 200.0)


def test_heartbeat_measures_longest_gap_of_loop() -> None:
    async def main() -> float:
        heartbeat = memory.Heartbeat()
        await heartbeat.settle()
        # blocks the loop for at least this time by the clock
        started_at = time.perf_counter()
        while time.perf_counter() - started_at < 0.03:
            pass
        return await heartbeat.end()

    assert asyncio.run(main()) >= 30


def test_collections_measure_longest_garbage_collection() -> None:
    with memory.Collections() as collections:
        gc.collect()
    longest = collections.longest
    assert longest > 0
    gc.collect()
    assert collections.longest == longest


@pytest.mark.parametrize("kind", ["blocked", "burst", "fed", "tuned"])
def test_memory_experiment_has_its_figures(kind: str, url: str) -> None:
    counts = {"few": 10, "many": 250} if kind == "blocked" else {"many": 250}
    figures, row = run_bench({"experiment": "memory", "kind": kind, "url": url} | counts, "measured")
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


def test_bench_reports_its_error_without_traceback(tmp_path: pathlib.Path) -> None:
    for request, message in [
        (make_request(f"sqlite:{tmp_path}/none/a.db"), "[SF-"),
        ({"experiment": "juggling"}, "there is no experiment 'juggling'"),
    ]:
        process = subprocess.run(
            [sys.executable, "-m", "stepfast.bench"],
            input=json.dumps(request) + "\n",
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert process.returncode == 1
        assert message in process.stderr and "Traceback" not in process.stderr


def test_program_prints_rows_of_python(program: pathlib.Path, url: str, tmp_path: pathlib.Path) -> None:
    sweep = ["--iterations", "50", "--concurrency", "1,4", "--threads", "2", "--mode", "start"]
    output, report = run_program(program, tmp_path, "steps", "--sdk", "python", "--store", url, *sweep)
    assert output.startswith("steps on ") and ", python, durability full," in output
    assert "| 2 threads |" in output
    assert (report["experiment"], report["sdk"]) == ("steps", "python")
    rows = [(row["concurrency"], row.get("callers"), row["steps"], row["mode"]) for row in report["rows"]]
    assert rows == [(1, None, 3, "start"), (4, None, 3, "start"), (2, "threads", 3, "start")]
    assert all((row["completed"], row["failed"]) == (50, 0) for row in report["rows"])
    # the bytes of the server's log; for SQLite they may be 0, on a file system without a disk
    assert url.startswith("sqlite") or all(row["bytes_written"] > 0 for row in report["rows"])
    costs = [row["cpu_each"] for row in report["rows"]]
    # the time of the Python process: an idle one has less than 10 us per workflow
    assert sum(cost["user_us"] + cost["system_us"] for cost in costs) > 100
    assert all(("server_us" in cost) == url.startswith("postgres") for cost in costs)


def test_disk_bytes_of_python_exclude_the_schema(program: pathlib.Path, tmp_path: pathlib.Path) -> None:
    place = ["--store", "sqlite", "--directory", str(tmp_path)]
    sweep = ["--iterations", "1", "--concurrency", "1", "--mode", "run"]
    _, report = run_program(program, tmp_path, "workflows", "--sdk", "python", *place, *sweep)
    # pages of 4 KiB: those of the schema alone are more than fifty
    assert report["rows"][0]["disk_bytes_each"] < 10 * 4096


@pytest.mark.parametrize("callers", [("--concurrency", "64"), ("--threads", "16")], ids=["tasks", "threads"])
def test_written_bytes_of_python_exclude_the_end_of_the_engine(
    callers: tuple[str, str], program: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    place = ["--store", "sqlite", "--directory", str(tmp_path)]
    sweep = ["--iterations", "400", "--mode", "run", "--steps", "1", "--size", "20000", *callers]
    _, report = run_program(program, tmp_path, "steps", "--sdk", "python", *place, *sweep)
    [row] = report["rows"]
    # the end of an engine copies the log, so all bytes would be written twice
    assert row["bytes_written"] < 1.7 * 400 * row["disk_bytes_each"]


def test_program_measures_queues_in_python(program: pathlib.Path, url: str, tmp_path: pathlib.Path) -> None:
    sweep = ("--iterations", "300", "--concurrency", "20", "--queues", "1,3", "--limit", "50")
    output, report = run_program(program, tmp_path, "queue", "--sdk", "python", "--store", url, *sweep)
    assert output.startswith("queue on ") and ", python, durability full, " in output
    waits = ["one at a time, to start", "one at a time, to result"]
    expected = [(mode, n) for n in (1, 3) for mode in ("enqueue", "drain", "both", *waits)]
    assert [(row["mode"], row["queues"]) for row in report["rows"]] == expected
    for row in report["rows"]:
        assert (row["completed"], row["failed"]) == (200 if row["mode"] in waits else 300, 0)
        assert row["per_second"] > 0
    command = [program, "bench", "queue", "--sdk", "python", "--workers", "2"]
    process = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert process.returncode == 2 and "--workers is for --sdk rust" in process.stderr


def test_program_judges_payload_experiment(program: pathlib.Path, url: str, tmp_path: pathlib.Path) -> None:
    # this experiment uses Python by default
    output, report = run_program(program, tmp_path, "payload", "--store", url, "--iterations", "5")
    assert report["sdk"] == "python"
    sizes = [row["size"] for row in report["rows"] if row["mode"] == "durable" and "size" in row]
    assert sizes == [10**i for i in range(7)]
    assert all(row["min_ms"] <= row["p50_ms"] <= row["max_ms"] for row in report["rows"])
    assert {row["mode"] for row in report["rows"]} == {
        *["first call", "ordinary", "durable", "speculative", "batched"],
        *["commit", "append", "random data"],
    }
    assert sum("limit" in figure for figure in report["figures"]) == 6
    assert "one batched step" in output and output.count(" met ") + output.count(" MISSED ") == 6


def test_program_measures_memory_in_python(program: pathlib.Path, tmp_path: pathlib.Path) -> None:
    output, report = run_program(program, tmp_path, "memory", "--sdk", "python", "--iterations", "2000")
    assert [row["mode"] for row in report["rows"]] == ["blocked", "burst", "fed", "tuned"]
    assert "event loop blocked, 100 starts per turn" in output
    # the targets are for more iterations
    assert not any("limit" in figure for figure in report["figures"])


def test_program_reports_error_of_python(program: pathlib.Path, tmp_path: pathlib.Path) -> None:
    store = f"sqlite:{tmp_path}/none/a.db"
    command = [program, "bench", "queue", "--sdk", "python", "--python", sys.executable, "--store", store]
    process = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert process.returncode == 1 and process.stdout == ""
    assert "the benchmark in" in process.stderr and "[SF-" in process.stderr, process.stderr


def test_program_uses_python_beside_it_by_default(program: pathlib.Path, tmp_path: pathlib.Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho started >&2\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
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
    process = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert process.returncode == 0, process.stderr
    # the program passes on the stderr of Python
    assert process.stderr == "started\n"
    assert "| run " in process.stdout
