"""Applies the mutants of list.toml to a copy of the sources, one at a time, and runs the test that must fail.

`make mutants` calls this program. An argument selects the mutants whose line of `--list` contains it; without
arguments, all mutants are tried. The copy and its build are in a folder of their own below the target folder,
so the checkout is never changed.
"""

import argparse
import contextlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from dataclasses import dataclass
from typing import Any

ROOT = pathlib.Path(__file__).parents[2]
LIST = pathlib.Path(__file__).with_name("list.toml")

#: The shortest time limit of a test, in seconds. A test that exceeds its limit has noticed the mutant.
MIN_TEST_SECONDS = 60
#: The ratio of a test's time limit to the time that the test takes without a mutant.
TIME_LIMIT_RATIO = 10
#: The time limit of a build, in seconds.
BUILD_SECONDS = 1200

#: The result of a mutant that its test has noticed.
CAUGHT = "caught"


class ListError(Exception):
    """The list and the sources, or the tests, do not fit together."""


@dataclass(frozen=True)
class Program:
    """A test program: a package, and one of its targets, such as `lib` or `test conformance`."""

    package: str
    target: str

    def arguments(self) -> list[str]:
        """Returns the arguments of cargo that select the program."""
        return ["test", "--package", self.package, *f"--{self.target}".split(), "--quiet"]

    def __str__(self) -> str:
        return f"{self.package} {self.target}"


@dataclass(frozen=True)
class Mutant:
    """A change of one file, and the test that must fail with it."""

    name: str
    file: str
    old: str
    new: str
    program: Program
    test: str
    is_quick: bool

    @staticmethod
    def from_table(table: dict[str, Any]) -> "Mutant":
        """Makes a mutant of a table of the list."""
        texts = {name: table.pop(name) for name in ("name", "file", "old", "new", "test")}
        program = Program(table.pop("package"), table.pop("target"))
        mutant = Mutant(**texts, program=program, is_quick=table.pop("is_quick", False))
        if table:
            raise ListError(f"{mutant.name}: unknown entries {', '.join(table)}")
        return mutant

    def __str__(self) -> str:
        return f"{self.name}: {self.file}, {self.program} {self.test}"

    def mutate(self, text: str) -> str:
        """Returns the text of the file with the change."""
        if (count := text.count(self.old)) != 1:
            raise ListError(f"{self.name}: the old text occurs {count} times in {self.file}")
        if self.old == self.new:
            raise ListError(f"{self.name}: the new text is the old one")
        return text.replace(self.old, self.new)


def read_list() -> list[Mutant]:
    """Reads the list, and checks that each mutant can be applied to the sources."""
    tables = tomllib.loads(LIST.read_text(encoding="utf-8"))["mutant"]
    mutants = [Mutant.from_table(table) for table in tables]
    names = [mutant.name for mutant in mutants]
    if doubles := {name for name in names if names.count(name) > 1}:
        raise ListError(f"names that occur twice: {', '.join(sorted(doubles))}")
    for mutant in mutants:
        mutant.mutate((ROOT / mutant.file).read_text(encoding="utf-8"))
    return mutants


def run_in_time(command: list[str], folder: pathlib.Path, seconds: float) -> tuple[int | None, str]:
    """Runs a command in a process group of its own, and returns its status and output.

    The status is None if the time was over: then the processes of the group are killed.
    """
    environment = {
        **os.environ,
        "CARGO_TARGET_DIR": str(folder.parent / "target"),
        # one file changes between two builds
        "CARGO_INCREMENTAL": "1",
        "CARGO_PROFILE_DEV_DEBUG": "0",
        "RUST_BACKTRACE": "0",
    }
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        kill_group(process)
        output, _ = process.communicate()
        return None, output
    except BaseException:
        kill_group(process)
        raise
    return process.returncode, output


def kill_group(process: subprocess.Popen[str]) -> None:
    """Kills a process that leads a group, and all processes of the group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


class Copy:
    """A copy of the files of the checkout, with a build of its own."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.flags = os.environ.get("CARGO_FLAGS", "").split()

    def update(self) -> None:
        """Copies the files that differ. The others keep their times, so that cargo builds them only once."""
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        )
        names = {name for name in listed.stdout.split("\0") if (ROOT / name).is_file()}
        for path in [path for path in self.folder.rglob("*") if path.is_file()]:
            if str(path.relative_to(self.folder)) not in names:
                path.unlink()
        for name in names:
            source, target = ROOT / name, self.folder / name
            if not target.exists() or source.read_bytes() != target.read_bytes():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)
                target.chmod(source.stat().st_mode)

    def build(self, program: Program) -> str | None:
        """Builds a test program. Returns the output of the compiler if that fails."""
        command = ["cargo", *program.arguments(), *self.flags, "--no-run"]
        status, output = run_in_time(command, self.folder, BUILD_SECONDS)
        return None if status == 0 else output

    def run_test(self, mutant: Mutant, seconds: float) -> tuple[int | None, str]:
        """Runs the test of a mutant. Returns the status and the output, as `run_in_time` does."""
        command = ["cargo", *mutant.program.arguments(), *self.flags, "--", "--exact", mutant.test]
        return run_in_time(command, self.folder, seconds)


def check_tests(copy: Copy, mutants: list[Mutant]) -> dict[str, float]:
    """Checks that the tests pass without a mutant. Returns how long each mutant's test took, in seconds."""
    took: dict[tuple[Program, str], float] = {}
    faults = []
    for program in dict.fromkeys(mutant.program for mutant in mutants):
        print(f"building {program}", flush=True)
        if output := copy.build(program):
            raise ListError(f"{program} cannot be built:\n{output}")
    for mutant in {(mutant.program, mutant.test): mutant for mutant in mutants}.values():
        began = time.monotonic()
        status, output = copy.run_test(mutant, BUILD_SECONDS)
        if status != 0 or not re.search(r"^test result: ok\. 1 passed;", output, re.MULTILINE):
            faults.append(
                f"{mutant.program} {mutant.test} is no test that passes without a mutant:\n{output}"
            )
        took[mutant.program, mutant.test] = time.monotonic() - began
    if faults:
        raise ListError("\n".join(faults))
    return {mutant.name: took[mutant.program, mutant.test] for mutant in mutants}


def try_mutant(copy: Copy, mutant: Mutant, seconds: float) -> str:
    """Applies a mutant to the copy, runs its test, and undoes the change. Returns the result."""
    path = copy.folder / mutant.file
    original = path.read_text(encoding="utf-8")
    path.write_text(mutant.mutate(original), encoding="utf-8")
    try:
        if output := copy.build(mutant.program):
            return f"cannot be built\n{output}"
        status, output = copy.run_test(mutant, seconds)
    finally:
        path.write_text(original, encoding="utf-8")
    if status == 0:
        return "survived"
    if status is None:
        return f"{CAUGHT} (no end after {seconds:.0f} s)"
    return CAUGHT


def main() -> int:
    """Tries the chosen mutants, and returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only the mutants of the list with is_quick")
    parser.add_argument("--list", action="store_true", help="print one line per mutant, and try none")
    parser.add_argument("texts", nargs="*", help="texts of which the line of a mutant has to contain one")
    arguments = parser.parse_args()
    mutants = [
        mutant
        for mutant in read_list()
        if (mutant.is_quick or not arguments.quick)
        and (not arguments.texts or any(text in str(mutant) for text in arguments.texts))
    ]
    if arguments.list:
        for mutant in mutants:
            print(mutant)
        return 0
    if not mutants:
        raise ListError("no mutant contains one of these texts")
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", "target"))
    copy = Copy(ROOT / target / "mutants" / "tree")
    copy.update()
    took = check_tests(copy, mutants)
    results: list[tuple[Mutant, str, float]] = []
    for number, mutant in enumerate(mutants, start=1):
        began = time.monotonic()
        seconds = max(MIN_TEST_SECONDS, TIME_LIMIT_RATIO * took[mutant.name])
        result = try_mutant(copy, mutant, seconds)
        results.append((mutant, result, time.monotonic() - began))
        print(f"{number} of {len(mutants)}: {mutant.name}: {result} ({results[-1][2]:.0f} s)", flush=True)
    missed = [mutant.name for mutant, result, _ in results if not result.startswith(CAUGHT)]
    width = max(len(mutant.name) for mutant in mutants)
    print()
    for mutant, result, seconds in results:
        print(f"{mutant.name:{width}}  {result.splitlines()[0]:10}  {seconds:4.0f} s  {mutant.test}")
    total = sum(seconds for _, _, seconds in results)
    print(f"\n{len(results) - len(missed)} of {len(results)} mutants were caught, in {total:.0f} s")
    if missed:
        print(f"not caught: {', '.join(missed)}")
    return 1 if missed else 0


if __name__ == "__main__":
    # the end of this program also ends what it has started
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        sys.exit(main())
    except ListError as error:
        sys.exit(f"mutants: {error}")
