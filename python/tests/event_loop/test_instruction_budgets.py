"""Budgets in instructions of the event loop's thread for a workflow and for a step.

A change that exceeds a budget costs every user: make it cheaper, or raise the budget and give the reason.
"""

import os
import pathlib
import shutil
import subprocess
import sys

import counted_program
import pytest

#: The number of rounds of a measured process. The same process without rounds is subtracted.
ROUNDS = 5
#: Maximum number of instructions, of a test build, by mode and number of steps: about a twentieth more than
#: the count on Python 3.11. The interpreters after it need more instructions; their budgets fit 3.13.
if sys.version_info < (3, 12):
    BUDGETS = {("run", 0): 167_000, ("start", 0): 257_000, ("run", 3): 420_000}
else:
    BUDGETS = {("run", 0): 190_000, ("start", 0): 265_000, ("run", 3): 500_000}


def count_instructions(folder: pathlib.Path, mode: str, steps: int, rounds: int) -> int:
    """Returns the number of instructions of the main thread of a process that runs workflows."""
    folder.mkdir()
    callgrind = ["valgrind", "--tool=callgrind", "--separate-threads=yes"]
    program = [sys.executable, counted_program.__file__, f"sqlite:{folder}/test.db"]
    process = subprocess.run(
        [*callgrind, f"--callgrind-out-file={folder}/counts", *program, mode, str(steps), str(rounds)],
        capture_output=True,
        text=True,
        timeout=600,
        # the order of sets and dictionaries is the same in each process
        env=os.environ | {"PYTHONHASHSEED": "0"},
    )
    assert process.returncode == 0, process.stderr
    [totals] = [
        line for line in (folder / "counts-01").read_text().splitlines() if line.startswith("totals:")
    ]
    return int(totals.split()[1])


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is not installed")
def test_instructions_of_loop_are_within_budget(tmp_path: pathlib.Path) -> None:
    fixed = count_instructions(tmp_path / "fixed", "run", 0, 0)
    costs = {}
    for mode, steps in BUDGETS:
        count = count_instructions(tmp_path / f"{mode}-{steps}", mode, steps, ROUNDS)
        costs[mode, steps] = (count - fixed) / (ROUNDS * counted_program.CALLERS)
    excesses = {of: (cost, BUDGETS[of]) for of, cost in costs.items() if cost > BUDGETS[of]}
    assert not excesses, f"instructions and budgets by mode and number of steps: {excesses}"
    # a release build needs a fifth of the instructions, and would hide every excess
    assert all(cost > BUDGETS[of] / 2 for of, cost in costs.items()), f"not a test build: {costs}"
