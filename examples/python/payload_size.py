"""Measures how the size of outputs and the number of steps change the duration of a workflow.

Reproduces an experiment that DBOS published for Python on a local Postgres: a workflow of seven steps that
return 1 byte to 1 MB, and a workflow whose single step makes the same seven payloads at once. Run it with a
store's URL, by default a new SQLite file: python payload_size.py [URL]
"""

import os
import pathlib
import sys
import tempfile
import time

from stepfast import Engine, Step, step, workflow

SIZES = [10**i for i in range(7)]
#: The published milliseconds of each of the seven steps.
PUBLISHED = [55.41, 21.63, 21.71, 21.81, 23.87, 35.45, 120.46]
#: The published milliseconds of all seven steps, and of the single one.
PUBLISHED_SEVEN, PUBLISHED_ONE = 300.35, 157.82


def payload(size: int) -> bytes:
    return os.urandom(size)


@step(retries=3)
def size_step(i: int) -> bytes:
    return payload(10**i)


@step(retries=3)
def batch_size_step(count: int) -> bytes:
    return b"".join(payload(10**i) for i in range(count))


@step(retries=3, speculative=True)
def speculative_size_step(i: int) -> bytes:
    return payload(10**i)


@step(retries=3, speculative=True)
def speculative_batch_size_step(count: int) -> bytes:
    return b"".join(payload(10**i) for i in range(count))


def measure(call: Step[[int], bytes], argument: int, size: int) -> float:
    begun = time.perf_counter()
    value = call(argument)
    took = time.perf_counter() - begun
    assert len(value) == size, f"{len(value)} bytes, not {size}"
    return took


@workflow
def seven_steps(is_speculative: bool) -> list[float]:
    """Returns the milliseconds of each of the seven steps."""
    call = speculative_size_step if is_speculative else size_step
    return [1000 * measure(call, i, size) for i, size in enumerate(SIZES)]


@workflow
def one_batched_step(is_speculative: bool) -> list[float]:
    """Returns the milliseconds of the single step."""
    call = speculative_batch_size_step if is_speculative else batch_size_step
    return [1000 * measure(call, len(SIZES), sum(SIZES))]


def measure_all(engine: Engine) -> list[tuple[str, list[float], float, float]]:
    """Returns a name, and the milliseconds of each step, of all seven, and of the single step."""
    rows: list[tuple[str, list[float], float, float]] = []
    for is_speculative in (False, True):
        begun = time.perf_counter()
        steps = engine.run(seven_steps, is_speculative)
        seven = 1000 * (time.perf_counter() - begun)
        begun = time.perf_counter()
        engine.run(one_batched_step, is_speculative)
        one = 1000 * (time.perf_counter() - begun)
        name = "speculative steps" if is_speculative else "ordinary steps"
        for size, took in zip(SIZES, steps, strict=True):
            print(f"{name}: {size:>9,} bytes in {took:8.3f} ms")
        print(f"{name}: seven steps {seven:.2f} ms, {seven / 7:.2f} ms each; one batched step {one:.2f} ms")
        rows.append((name, steps, seven, one))
    return rows


def print_table(rows: list[tuple[str, list[float], float, float]]) -> None:
    names = [*[f"{size:,} B" for size in SIZES], "seven steps", "one batched step"]
    columns = [[*PUBLISHED, PUBLISHED_SEVEN, PUBLISHED_ONE]]
    columns += [[*steps, seven, one] for _, steps, seven, one in rows]
    print("\nDBOS: the published figures. Ours: this machine, now.")
    print(f"{'milliseconds':>16}  {'DBOS':>10}", *[f"{name:>18}  {'faster':>8}" for name, *_ in rows])
    for name, published, *ours in zip(names, *columns, strict=True):
        cells = [f"{took:>18.3f}  {published / took:>7.0f}x" for took in ours]
        print(f"{name:>16}  {published:>10.2f}", *cells)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        url = sys.argv[1] if len(sys.argv) > 1 else f"sqlite:{pathlib.Path(folder)}/payload.db"
        with Engine(url) as engine:
            print_table(measure_all(engine))


if __name__ == "__main__":
    main()
