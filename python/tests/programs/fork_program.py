"""A program that forks while it has an engine; see test_fork_program.py.

`python fork_program.py SCENE URL` prints what it has seen, as JSON.
"""

import asyncio
import json
import multiprocessing
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from stepfast import AsyncEngine, Engine, Error, step, workflow

# Python's own advice, from 3.12 on: it is what this is about
warnings.filterwarnings("ignore", category=DeprecationWarning)
URL = sys.argv[2] if __name__ == "__main__" else ""


@step
def number(n: int) -> int:
    return n


@workflow
def numbers(n: int) -> list[int]:
    return [number(i) for i in range(n)]


@workflow
async def async_numbers(n: int) -> list[int]:
    return [await async_number(i) for i in range(n)]


@step
async def async_number(n: int) -> int:
    return n


def in_child(function: Callable[[], object]) -> Any:
    """What `function` returns in a forked child; the child ends without any cleaning up."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, json.dumps(function()).encode())
        except BaseException as raised:
            os.write(writer, json.dumps(f"{type(raised).__name__}: {raised}").encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader) as output:
        seen = json.load(output)
    assert os.waitpid(child, 0)[1] == 0
    return seen


def heard(*uses: Callable[[], object]) -> list[str]:
    """The codes of the errors that uses of an engine end with."""
    codes = []
    for use in uses:
        try:
            use()
        except Error as error:
            codes.append(f"{type(error).__name__} {error.code}")
        else:
            codes.append("no error")
    return codes


def uses() -> object:
    """A child that uses what its parent has."""
    with Engine(URL) as engine:
        handle = engine.start(numbers.options(workflow_id="a"), 3)
        assert handle.result() == [0, 1, 2]
        seen = in_child(
            lambda: heard(
                lambda: engine.start(numbers, 3),
                lambda: engine.run(numbers, 3),
                lambda: engine.get("a"),
                lambda: engine.list(),
                lambda: engine.show("a"),
                lambda: engine.results([handle]),
                lambda: handle.result(),
                lambda: handle.status(),
                lambda: handle.cancel(),
                # what a `with` block does at its end
                lambda: engine.close(),
            )
        )
        assert engine.run(numbers, 2) == [0, 1]
        return seen


def uses_async() -> object:
    """The same in a program with a loop; the child has none."""

    async def main() -> object:
        async with AsyncEngine(URL) as engine:
            handle = await engine.start(async_numbers.options(workflow_id="a"), 3)
            assert await handle == [0, 1, 2]

            def child() -> list[str]:
                return heard(
                    *[
                        lambda make=make: make().send(None)
                        for make in (
                            lambda: engine.start(async_numbers, 3),
                            lambda: engine.run(async_numbers, 3),
                            lambda: engine.get("a"),
                            lambda: handle.result(),
                        )
                    ]
                )

            seen = in_child(child)
            assert await engine.run(async_numbers, 2) == [0, 1]
            return seen

    return asyncio.run(main())


def opens_its_own() -> object:
    """A child with an engine of its own on the same store, while its parent works."""
    with Engine(URL) as engine:
        assert engine.run(numbers, 3) == [0, 1, 2]

        def child() -> object:
            with Engine(URL) as own:
                return [own.run(numbers.options(workflow_id=f"child-{i}"), 4) for i in range(10)]

        seen = in_child(child)
        # the parent sees what the child has done, and goes on
        assert engine.get("child-9").result() == [0, 1, 2, 3]
        assert engine.run(numbers, 2) == [0, 1]
        return seen


def ends_as_usual() -> object:
    """Children that end as programs do, with engines and handles of their parent's on their hands."""
    global engine
    engine = Engine(URL)
    handle = engine.start(numbers, 3)
    assert handle.result() == [0, 1, 2]
    codes = []
    for code in (0, 3):
        child = os.fork()
        if child == 0:
            with engine:
                sys.exit(code)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        assert engine.run(numbers, 2) == [0, 1]
    return codes


def under_load() -> object:
    """Children come and go, with engines of their own, while many threads of their parent's work."""
    is_over = threading.Event()
    done: list[int] = []

    def work(n: int) -> None:
        while not is_over.is_set():
            assert engine.run(numbers, 5) == [0, 1, 2, 3, 4]
            done.append(n)

    def child(i: int) -> None:
        with Engine(URL) as own:
            handles = [own.start(numbers.options(workflow_id=f"{i}-{n}"), 5) for n in range(5)]
            assert own.results(handles) == [[0, 1, 2, 3, 4]] * 5

    context = multiprocessing.get_context("fork")
    codes = []
    with Engine(URL) as engine:
        threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for i in range(0, 30, 3):
            children = [context.Process(target=child, args=(i + k,)) for k in range(3)]
            for process in children:
                process.start()
            for process in children:
                process.join()
                codes.append(process.exitcode)
        is_over.set()
        for thread in threads:
            thread.join()
        assert set(done) == set(range(8))
        counted = [engine.count(status="completed"), engine.count()]
        assert counted == [len(done) + 150] * 2, (counted, len(done))
    return codes


def _in_pool(n: int) -> int:
    # a plain call: it is no workflow that runs here
    return number(n)


@step
def in_pool(n: int) -> list[int]:
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork")) as pool:
        return list(pool.map(_in_pool, range(n)))


@workflow
def pooled(n: int) -> list[int]:
    return in_pool(n)


def in_a_body() -> object:
    """A pool of processes in a step's body."""
    with Engine(URL) as engine:
        return [engine.run(pooled, 4), engine.start(pooled, 4).result()]


@workflow
def forking() -> list[str]:
    """Code of a workflow that goes on in the child as if it were its parent's."""
    child = in_child(lambda: heard(lambda: number(1), lambda: numbers(1)))
    return [*child, str(number(2))]


def in_the_code() -> object:
    with Engine(URL) as engine:
        return [engine.run(forking), engine.start(forking).result()]


@step
def returns_twice() -> int:
    child = os.fork()
    if child:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    return os.getpid()


@workflow
def escaping() -> int:
    return returns_twice()


def a_child_escapes() -> object:
    """A child that returns from the body in which it was forked gets an error; its parent gets an outcome."""
    main = os.getpid()
    with Engine(URL) as engine:
        try:
            assert engine.run(escaping) == main
        except Error as error:
            assert os.getpid() != main
            os._exit(7 if error.code == "SF-0034" else 8)
        return engine.count(status="completed")


def outlives_its_parent() -> object:
    """The parent is killed; its child lives, and keeps nobody from taking over."""
    engine = Engine(URL)
    engine.start(blocked.options(workflow_id="a"))
    assert begun.acquire(timeout=60)
    child = os.fork()
    if child == 0:
        signal.pause()
        os._exit(0)
    print(child, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
    return None


begun = threading.Semaphore(0)


@step
def blocks() -> str:
    if __name__ == "__main__" and sys.argv[1] == "outlives_its_parent":
        begun.release()
        threading.Event().wait()
    return "done"


@workflow
def blocked() -> str:
    return blocks()


def takes_over() -> object:
    with Engine(URL) as engine:
        return engine.get("a").result()


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]]()))
