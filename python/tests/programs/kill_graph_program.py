"""A program that runs a graph and kills itself in a mapped task; see test_kills.py.

Usage: `python kill_graph_program.py URL FILE sync|async`. Each body adds its name to FILE. The first run
kills itself in the middle of the items; the second one continues the execution and prints the output.
"""

import os
import pathlib
import signal
import sys

from stepfast import AsyncEngine, Engine, Graph

URL, FILE, MODE = sys.argv[1:]
ITEMS = 200
squares = Graph("squares that are killed")


def note(name: str) -> None:
    with open(FILE, "a") as file:
        file.write(f"{name}\n")
    if name == f"item {ITEMS // 2}" and not pathlib.Path(FILE + ".killed").exists():
        pathlib.Path(FILE + ".killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)


@squares.task
def numbers() -> list[int]:
    note("numbers")
    return list(range(ITEMS))


if MODE == "sync":

    @squares.task(map_over="numbers", max_items=4)
    def square(numbers: int) -> int:
        note(f"item {numbers}")
        return numbers * numbers

else:

    @squares.task(map_over="numbers", max_items=4)
    async def square(numbers: int) -> int:
        note(f"item {numbers}")
        return numbers * numbers


@squares.task
def total(square: list[int]) -> int:
    note("total")
    return sum(square)


async def main() -> None:
    async with AsyncEngine(URL) as engine:
        handle = await engine.start(squares.options(workflow_id="squares"))
        print(await handle.result(), len((await engine.show("squares")).checkpoints))


if __name__ == "__main__":
    if MODE == "async":
        import asyncio

        asyncio.run(main())
    else:
        with Engine(URL) as engine:
            handle = engine.start(squares.options(workflow_id="squares"))
            print(handle.result(), len(engine.show("squares").checkpoints))
