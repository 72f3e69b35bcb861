"""`stepfast bench` on real stores: each experiment in a short form, and what bounds it."""

import json
import pathlib
import subprocess
from typing import Any

import pytest

SQLITE = ["log flush", "statements", "other writers", "client"]
POSTGRES = ["log flush", "locks", "server CPU", "client", "other I/O", "other"]


def measured(program: pathlib.Path, folder: pathlib.Path, *arguments: str) -> tuple[str, dict[str, Any]]:
    """What the program prints, and writes as JSON."""
    file = folder / "report.json"
    command = [program, "bench", *arguments, "--json", file]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout, json.loads(file.read_text())


def place(url: str, folder: pathlib.Path) -> list[str]:
    """Where an experiment makes a fresh store."""
    return ["--directory", str(folder)] if url.startswith("sqlite:") else ["--store", url]


def check_bound(row: dict[str, Any], url: str, printed: str) -> None:
    """Something bounds the row, and its parts are a whole."""
    bound = row["bound"]
    is_server = url.startswith("postgres")
    assert [share["name"] for share in bound["shares"]] == (POSTGRES if is_server else SQLITE)
    # in tenths, for these are no binary fractions
    assert sum(round(share["percent"] * 10) for share in bound["shares"]) == 1000, bound
    assert all(share["percent"] >= 0 for share in bound["shares"])
    assert bound["flushes_per_second"] == pytest.approx(row["flushes"] / row["seconds"])
    assert "what bounds it" in printed and "log flush %" in printed
    if not is_server:
        return
    assert bound["samples"] > 0 and bound["busy_sessions"] >= 0
    log = bound["log"]
    assert log["bytes"] == row["bytes_written"] > 0
    assert 0 <= log["image_bytes"] <= log["bytes"] and log["image_source"] in ("log", "at most")


@pytest.mark.parametrize("experiment", ["workflows", "steps"])
def test_what_bounds_workflows_is_told(
    experiment: str, program: pathlib.Path, url: str, tmp_path: pathlib.Path
) -> None:
    sweep = ["--iterations", "300", "--concurrency", "1,16"]
    printed, report = measured(program, tmp_path, experiment, *sweep, *place(url, tmp_path))
    assert len(report["rows"]) == 4
    for row in report["rows"]:
        assert (row["completed"], row["failed"]) == (300, 0)
        check_bound(row, url, printed)
        # no more than all callers' Writes at once
        assert 1 <= row["bound"]["largest_flush"] <= 16 * 5
        assert row["bound"]["largest_flush"] >= row["writes_per_flush"]


def test_writes_one_by_one_and_by_lanes(program: pathlib.Path, url: str, tmp_path: pathlib.Path) -> None:
    sweep = ["--iterations", "200", "--concurrency", "1,8", "--callers", "1,8,64"]
    printed, report = measured(program, tmp_path, "writes", *sweep, *place(url, tmp_path))
    rows = report["rows"]
    of = [(row["mode"], row["concurrency"]) for row in rows]
    assert of == [("one by one", 1), ("one by one", 8), ("lane", 1), ("lane", 8), ("lane", 64)]
    for row in rows:
        assert (row["completed"], row["failed"]) == (200, 0)
        assert 0 < row["p50_ms"] <= row["p99_ms"] <= row["max_ms"]
        check_bound(row, url, printed)
        if row["mode"] == "one by one":
            assert (row["flushes"], row["writes_per_flush"]) == (200, 1)
    # what many callers want is committed together
    assert rows[-1]["flushes"] < 200


def test_history_is_compared_with_the_empty_store(
    program: pathlib.Path, url: str, tmp_path: pathlib.Path
) -> None:
    sweep = ["--executions", "1000", "--concurrency", "16", "--iterations", "100", "--runs", "2"]
    printed, report = measured(program, tmp_path, "history", *sweep, *place(url, tmp_path))
    ways = ["start", "run", "start, ids given", "run, ids given"]
    ways += [f"{way} in order" for way in ways[2:]]
    of = [(row["mode"], row["stored"]) for row in report["rows"]]
    assert of == [(way, 0) for way in ways] + [(way, 1000) for way in ways]
    for row in report["rows"]:
        assert (row["completed"], row["failed"]) == (100, 0)
        check_bound(row, url, printed)
    assert [figure["name"] for figure in report["figures"]] == [
        f"{way}, 1000 stored: slower than an empty store beside it" for way in ways
    ]
    # fewer than the target is for
    assert not any("limit" in figure for figure in report["figures"])


def test_an_idle_engine_costs_little_and_another_process_answers(
    program: pathlib.Path, url: str, tmp_path: pathlib.Path
) -> None:
    asked = ["--seconds", "3", "--iterations", "10"]
    printed, report = measured(program, tmp_path, "idle", *asked, *place(url, tmp_path))
    assert [row["mode"] for row in report["rows"]] == ["in one process", "across processes"]
    for row in report["rows"]:
        assert (row["completed"], row["failed"]) == (10, 0)
        assert 0 < row["p50_ms"] <= row["p99_ms"] <= row["max_ms"]
    names = [figure["name"].split(" of an idle")[0] for figure in report["figures"]]
    asks = names[0] in ("statements", "transactions")
    assert asks == url.startswith("postgres")
    assert names[int(asks) :] == ["processor time", "start to result across processes, median"]
    assert "across processes" in printed


@pytest.mark.parametrize("drain", [False, True], ids=["kill", "drain"])
def test_what_a_worker_ran_goes_on_elsewhere(
    drain: bool, program: pathlib.Path, url: str, tmp_path: pathlib.Path
) -> None:
    asked = ["--kills", "2", "--executions", "4", "--workers", "2", *(["--drain"] if drain else [])]
    printed, report = measured(program, tmp_path, "takeover", *asked, *place(url, tmp_path))
    [row] = report["rows"]
    assert row["mode"] == ("drain" if drain else "kill")
    # of two workers with four executions, the busiest has two at least
    assert row["failed"] == 0 and 4 <= row["completed"] <= 8
    assert 0 < row["p50_ms"] <= row["p99_ms"] <= row["max_ms"]
    assert row["late"] <= row["completed"]
    assert "above 5 s" in printed
    [figure] = report["figures"]
    assert "limit" not in figure


def test_nothing_is_left_behind(program: pathlib.Path, url: str, tmp_path: pathlib.Path) -> None:
    command = [program, "bench", "history", "--executions", "1", "--iterations", "1", "--runs", "1"]
    process = subprocess.Popen([*command, *place(url, tmp_path)], stdout=subprocess.DEVNULL)
    assert process.wait(timeout=300) == 0
    assert list(tmp_path.iterdir()) == []
    if url.startswith("postgres"):
        # others may have theirs at the same time
        listed = subprocess.run(
            ["psql", "--no-align", "--tuples-only", url, "--command", "SELECT datname FROM pg_database"],
            capture_output=True,
            text=True,
            check=True,
        )
        names = listed.stdout.split()
        assert url.rsplit("/", 1)[1] in names
        assert not any(name.startswith(f"stepfast_bench_{process.pid}_") for name in names), names


def test_experiments_with_other_processes_refuse_memory(program: pathlib.Path) -> None:
    for experiment in ["idle", "takeover", "history"]:
        command = [program, "bench", experiment, "--store", "memory"]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert ended.returncode == 1
        assert "other processes cannot open it" in ended.stderr, ended.stderr
