"""`stepfast bench` on real stores: a short form of each experiment, and the bounds of its rows."""

import json
import pathlib
import subprocess
from typing import Any

import pytest

SQLITE = ["log flush", "statements", "other writers", "client"]
POSTGRES = ["log flush", "locks", "server CPU", "client", "other I/O", "other"]


def run_program(program: pathlib.Path, folder: pathlib.Path, *arguments: str) -> tuple[str, dict[str, Any]]:
    """Runs the program, and returns its output and the report that it writes as JSON."""
    file = folder / "report.json"
    command = [program, "bench", *arguments, "--json", file]
    process = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert process.returncode == 0, process.stderr
    return process.stdout, json.loads(file.read_text())


def make_store_options(url: str, folder: pathlib.Path) -> list[str]:
    """Returns the options that make an experiment create a fresh store."""
    return ["--directory", str(folder)] if url.startswith("sqlite:") else ["--store", url]


def check_bound(row: dict[str, Any], url: str, output: str) -> None:
    """Asserts that the shares of the bound of a row are complete and add up to 100 %."""
    bound = row["bound"]
    is_server = url.startswith("postgres")
    assert [share["name"] for share in bound["shares"]] == (POSTGRES if is_server else SQLITE)
    # in tenths, because percentages are no binary fractions
    assert sum(round(share["percent"] * 10) for share in bound["shares"]) == 1000, bound
    assert all(share["percent"] >= 0 for share in bound["shares"])
    assert bound["flushes_per_second"] == pytest.approx(row["flushes"] / row["seconds"])
    assert "what bounds it" in output and "log flush %" in output
    if not is_server:
        return
    assert bound["samples"] > 0 and bound["busy_sessions"] >= 0
    log = bound["log"]
    assert log["bytes"] == row["bytes_written"] > 0
    assert 0 <= log["image_bytes"] <= log["bytes"] and log["image_source"] in ("log", "at most")


def check_costs(rows: list[dict[str, Any]], url: str, output: str) -> None:
    """Asserts that rows have the processor time and the bytes on the disk of each workflow."""
    is_server = url.startswith("postgres")
    assert "user us" in output and "disk bytes each" in output and ("server us" in output) == is_server
    costs = [row["cpu_each"] for row in rows]
    assert all(min(cost.values()) >= 0 for cost in costs)
    # a short run may take less than the kernel's unit of 10 ms
    assert sum(cost["user_us"] + cost["system_us"] for cost in costs) > 0
    assert all(("server_us" in cost) == is_server for cost in costs)
    assert not is_server or sum(cost["server_us"] for cost in costs) > 0
    assert sum(row["disk_bytes_each"] for row in rows) > 0


@pytest.mark.parametrize("experiment", ["workflows", "steps"])
def test_rows_contain_shares_of_their_bound(
    experiment: str, program: pathlib.Path, url: str, tmp_path: pathlib.Path
) -> None:
    sweep = ["--iterations", "300", "--concurrency", "1,16"]
    output, report = run_program(program, tmp_path, experiment, *sweep, *make_store_options(url, tmp_path))
    assert len(report["rows"]) == 4
    for row in report["rows"]:
        assert (row["completed"], row["failed"]) == (300, 0)
        check_bound(row, url, output)
        # a flush contains at most the Writes of all callers at one time
        assert 1 <= row["bound"]["largest_flush"] <= 16 * 5
        assert row["bound"]["largest_flush"] >= row["writes_per_flush"]
    check_costs(report["rows"], url, output)


def test_bounds_of_a_sweep_name_steps_and_size(program: pathlib.Path, tmp_path: pathlib.Path) -> None:
    sweep = ["--iterations", "100", "--concurrency", "16", "--mode", "run", "--steps", "1,2", "--size"]
    place = make_store_options("sqlite:", tmp_path)
    for sizes, columns, rows in (
        ("8,64", ["steps", "size"], [["1", "8"], ["1", "64"], ["2", "8"], ["2", "64"]]),
        ("8", ["steps"], [["1"], ["2"]]),
    ):
        output, _ = run_program(program, tmp_path, "steps", *sweep, sizes, *place)
        table = output[output.index("| what bounds it") :].splitlines()
        cells = [[cell.strip() for cell in line.split("|")[3 : 3 + len(columns)]] for line in table]
        assert [cells[0], *cells[2 : 2 + len(rows)]] == [columns, *rows]


def test_writes_are_measured_one_by_one_and_by_lane(
    program: pathlib.Path, url: str, tmp_path: pathlib.Path
) -> None:
    sweep = ["--iterations", "200", "--concurrency", "1,8", "--callers", "1,8,64"]
    output, report = run_program(program, tmp_path, "writes", *sweep, *make_store_options(url, tmp_path))
    rows = report["rows"]
    settings = [(row["mode"], row["concurrency"]) for row in rows]
    assert settings == [("one by one", 1), ("one by one", 8), ("lane", 1), ("lane", 8), ("lane", 64)]
    for row in rows:
        assert (row["completed"], row["failed"]) == (200, 0)
        assert 0 < row["p50_ms"] <= row["p99_ms"] <= row["max_ms"]
        check_bound(row, url, output)
        if row["mode"] == "one by one":
            assert (row["flushes"], row["writes_per_flush"]) == (200, 1)
    # a flush commits the Writes of many callers together
    assert rows[-1]["flushes"] < 200


def test_history_is_compared_with_empty_store(
    program: pathlib.Path, url: str, tmp_path: pathlib.Path
) -> None:
    sweep = ["--executions", "1000", "--concurrency", "16", "--iterations", "100", "--runs", "2"]
    output, report = run_program(program, tmp_path, "history", *sweep, *make_store_options(url, tmp_path))
    modes = ["start", "run", "start, ids given", "run, ids given"]
    modes += [f"{mode} in order" for mode in modes[2:]]
    settings = [(row["mode"], row["stored"]) for row in report["rows"]]
    assert settings == [(mode, 0) for mode in modes] + [(mode, 1000) for mode in modes]
    for row in report["rows"]:
        assert (row["completed"], row["failed"]) == (100, 0)
        check_bound(row, url, output)
    assert [figure["name"] for figure in report["figures"]] == [
        f"{mode}, 1000 stored: slower than an empty store beside it" for mode in modes
    ]
    # the target is for more executions
    assert not any("limit" in figure for figure in report["figures"])


def test_idle_experiment_measures_engine_and_other_process(
    program: pathlib.Path, url: str, tmp_path: pathlib.Path
) -> None:
    options = ["--seconds", "3", "--iterations", "10"]
    output, report = run_program(program, tmp_path, "idle", *options, *make_store_options(url, tmp_path))
    assert [row["mode"] for row in report["rows"]] == ["in one process", "across processes"]
    for row in report["rows"]:
        assert (row["completed"], row["failed"]) == (10, 0)
        assert 0 < row["p50_ms"] <= row["p99_ms"] <= row["max_ms"]
    names = [figure["name"].split(" of an idle")[0] for figure in report["figures"]]
    counts_requests = names[0] in ("statements", "transactions")
    assert counts_requests == url.startswith("postgres")
    assert names[int(counts_requests) :] == ["processor time", "start to result across processes, median"]
    assert "across processes" in output


@pytest.mark.parametrize("drain", [False, True], ids=["kill", "drain"])
def test_takeover_experiment_measures_continued_executions(
    drain: bool, program: pathlib.Path, url: str, tmp_path: pathlib.Path
) -> None:
    options = ["--kills", "2", "--executions", "4", "--workers", "2", *(["--drain"] if drain else [])]
    output, report = run_program(program, tmp_path, "takeover", *options, *make_store_options(url, tmp_path))
    [row] = report["rows"]
    assert row["mode"] == ("drain" if drain else "kill")
    # with four executions on two workers, the busiest worker has at least two
    assert row["failed"] == 0 and 4 <= row["completed"] <= 8
    assert 0 < row["p50_ms"] <= row["p99_ms"] <= row["max_ms"]
    assert row["late"] <= row["completed"]
    assert "above 5 s" in output
    [figure] = report["figures"]
    assert "limit" not in figure


def test_bench_removes_its_stores(program: pathlib.Path, database_url: str, tmp_path: pathlib.Path) -> None:
    command = [program, "bench", "history", "--executions", "1", "--iterations", "1", "--runs", "1"]
    process = subprocess.Popen(
        [*command, *make_store_options(database_url, tmp_path)], stdout=subprocess.DEVNULL
    )
    assert process.wait(timeout=300) == 0
    assert list(tmp_path.iterdir()) == []
    if database_url.startswith("postgres"):
        # other tests may have such databases at the same time
        psql = subprocess.run(
            [
                "psql",
                "--no-align",
                "--tuples-only",
                database_url,
                "--command",
                "SELECT datname FROM pg_database",
            ],
            capture_output=True,
            text=True,
            check=True,
        )
        names = psql.stdout.split()
        assert database_url.rsplit("/", 1)[1] in names
        assert not any(name.startswith(f"stepfast_bench_{process.pid}_") for name in names), names


def test_experiment_with_other_processes_refuses_memory(program: pathlib.Path) -> None:
    for experiment in ["idle", "takeover", "history"]:
        command = [program, "bench", experiment, "--store", "memory"]
        process = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert process.returncode == 1
        assert "other processes cannot open it" in process.stderr, process.stderr
