"""A program that forks while its engine is open; see test_forks.py.

Usage: `python fork_program.py SCENE URL`. The program plays a scene and prints its results as JSON.
"""

import asyncio
import json
import logging
import multiprocessing
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from stepfast import AsyncEngine, Engine, Error, step, workflow

# since 3.12 Python warns of forks in programs with threads, which these scenes need
warnings.filterwarnings("ignore", category=DeprecationWarning)
URL = sys.argv[2] if __name__ == "__main__" else ""


@step
def return_number(n: int) -> int:
    return n


@workflow
def return_numbers(n: int) -> list[int]:
    return [return_number(i) for i in range(n)]


@workflow
async def return_numbers_async(n: int) -> list[int]:
    return [await return_number_async(i) for i in range(n)]


@step
async def return_number_async(n: int) -> int:
    return n


def run_in_child(function: Callable[[], object]) -> Any:
    """Returns the result of `function` in a forked child, which then ends without cleanup."""
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
        results = json.load(output)
    assert os.waitpid(child, 0)[1] == 0
    return results


def collect_error_codes(*calls: Callable[[], object]) -> list[str]:
    """Returns the classes and codes of the errors that calls of an engine raise."""
    codes = []
    for call in calls:
        try:
            call()
        except Error as error:
            codes.append(f"{type(error).__name__} {error.code}")
        else:
            codes.append("no error")
    return codes


def uses_engine_of_parent() -> object:
    """Forks a child that uses the engine and the handle of its parent."""
    with Engine(URL) as engine:
        handle = engine.start(return_numbers.options(workflow_id="a"), 3)
        assert handle.result() == [0, 1, 2]
        results = run_in_child(
            lambda: collect_error_codes(
                lambda: engine.start(return_numbers, 3),
                lambda: engine.run(return_numbers, 3),
                lambda: engine.get("a"),
                lambda: engine.list(),
                lambda: engine.show("a"),
                lambda: engine.results([handle]),
                lambda: handle.result(),
                lambda: handle.status(),
                lambda: handle.cancel(),
                # a `with` block calls this at its end
                lambda: engine.close(),
            )
        )
        assert engine.run(return_numbers, 2) == [0, 1]
        return results


def uses_async_engine_of_parent() -> object:
    """Forks a child without an event loop that uses the async engine and the handle of its parent."""

    async def main() -> object:
        async with AsyncEngine(URL) as engine:
            handle = await engine.start(return_numbers_async.options(workflow_id="a"), 3)
            assert await handle == [0, 1, 2]

            def child() -> list[str]:
                return collect_error_codes(
                    *[
                        lambda make=make: make().send(None)
                        for make in (
                            lambda: engine.start(return_numbers_async, 3),
                            lambda: engine.run(return_numbers_async, 3),
                            lambda: engine.get("a"),
                            lambda: handle.result(),
                        )
                    ]
                )

            results = run_in_child(child)
            assert await engine.run(return_numbers_async, 2) == [0, 1]
            return results

    return asyncio.run(main())


def uses_batch_of_parent() -> object:
    """Forks a child among the inputs of a batch. The child uses the engine, a handle and results of its
    parent, and ends."""
    with Engine(URL) as engine:
        first = engine.submit_batch(return_numbers, [(1,)] * 10, batch_id="first")
        results = first.results()
        assert next(results).result() == [0]
        codes: list[str] = []

        def inputs() -> Iterator[tuple[int]]:
            for n in range(2_500):
                if n == 1_500:
                    codes.extend(run_in_child(use_in_child))
                yield (n % 2,)

        def use_in_child() -> list[str]:
            return collect_error_codes(
                lambda: engine.submit_batch(return_numbers, [(1,)]),
                lambda: engine.get_batch("first"),
                lambda: first.counts(),
                lambda: first.wait(),
                lambda: first.cancel(),
                lambda: next(first.results()),
                lambda: [*results] and None,
            )

        batch = engine.submit_batch(return_numbers, inputs(), batch_id="second")
        assert batch.wait().completed == 2_500
        assert len(list(results)) == 9
        return codes


def ends_submission_of_parent() -> object:
    """Forks a child among the inputs of a batch, which leaves the submission by an exception."""
    main = os.getpid()

    def inputs() -> Iterator[tuple[int]]:
        for n in range(2_500):
            if n == 1_500:
                child = os.fork()
                if child == 0:
                    raise KeyError("the child ends")
                assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
            yield (n % 2,)

    with Engine(URL) as engine:
        try:
            batch = engine.submit_batch(return_numbers, inputs())
        except KeyError:
            os._exit(7 if os.getpid() != main else 8)
        return batch.wait().completed


def opens_engine_of_its_own() -> object:
    """Forks a child that opens an engine of its own on the same store, while its parent works."""
    with Engine(URL) as engine:
        assert engine.run(return_numbers, 3) == [0, 1, 2]

        def child() -> object:
            with Engine(URL) as own:
                return [own.run(return_numbers.options(workflow_id=f"child-{i}"), 4) for i in range(10)]

        results = run_in_child(child)
        # the parent sees the child's executions, and its own engine still works
        assert engine.get("child-9").result() == [0, 1, 2, 3]
        assert engine.run(return_numbers, 2) == [0, 1]
        return results


def ends_normally() -> object:
    """Forks children that end like programs, with the open engine and a handle of their parent."""
    global engine
    engine = Engine(URL)
    handle = engine.start(return_numbers, 3)
    assert handle.result() == [0, 1, 2]
    codes = []
    for code in (0, 3):
        child = os.fork()
        if child == 0:
            with engine:
                sys.exit(code)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        assert engine.run(return_numbers, 2) == [0, 1]
    return codes


def is_no_stall_report(record: logging.LogRecord) -> bool:
    """Returns false for the log lines of an engine that report a stall of the database and its end."""
    # the fields of a line follow its text
    text = record.getMessage().partition(" (")[0]
    return text not in ("the database is unreachable; retrying", "the database is reachable again")


def forks_under_load() -> object:
    """Forks many children with engines of their own, while many threads of their parent work."""
    # Four processes share one SQLite file here. A stall of the disk of more than a second makes an engine log
    # that the database is unreachable, and later reachable again; neither is an error of a fork. The test
    # fails by any other line. Forked children inherit the filter.
    logging.getLogger("stepfast.engine").addFilter(is_no_stall_report)
    is_over = threading.Event()
    done: list[int] = []

    def work(n: int) -> None:
        while not is_over.is_set():
            assert engine.run(return_numbers, 5) == [0, 1, 2, 3, 4]
            done.append(n)

    def child(i: int) -> None:
        with Engine(URL) as own:
            handles = [own.start(return_numbers.options(workflow_id=f"{i}-{n}"), 5) for n in range(5)]
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


def call_return_number(n: int) -> int:
    # a plain call: no workflow runs here
    return return_number(n)


@step
def map_in_pool(n: int) -> list[int]:
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork")) as pool:
        return list(pool.map(call_return_number, range(n)))


@workflow
def calls_pool_step(n: int) -> list[int]:
    return map_in_pool(n)


def forks_in_body() -> object:
    """Runs a step whose body has a pool of processes."""
    with Engine(URL) as engine:
        return [engine.run(calls_pool_step, 4), engine.start(calls_pool_step, 4).result()]


@workflow
def calls_in_child() -> list[str]:
    """Forks a child that makes durable calls as if the workflow ran there."""
    child = run_in_child(lambda: collect_error_codes(lambda: return_number(1), lambda: return_numbers(1)))
    return [*child, str(return_number(2))]


def forks_in_workflow_code() -> object:
    with Engine(URL) as engine:
        return [engine.run(calls_in_child), engine.start(calls_in_child).result()]


@step
def fork_and_return() -> int:
    child = os.fork()
    if child:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    return os.getpid()


@workflow
def calls_forking_step() -> int:
    return fork_and_return()


def child_returns_from_body() -> object:
    """Forks in a body from which both processes return: the child gets an error, its parent the outcome."""
    main = os.getpid()
    with Engine(URL) as engine:
        try:
            assert engine.run(calls_forking_step) == main
        except Error as error:
            assert os.getpid() != main
            os._exit(7 if error.code == "SF-0034" else 8)
        return engine.count(status="completed")


def child_outlives_parent() -> object:
    """Kills the parent, while its child lives. The child must not prevent a takeover."""
    engine = Engine(URL)
    engine.start(calls_blocking_step.options(workflow_id="a"))
    assert body_has_begun.acquire(timeout=60)
    child = os.fork()
    if child == 0:
        signal.pause()
        os._exit(0)
    print(child, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
    return None


body_has_begun = threading.Semaphore(0)


@step
def block_until_kill() -> str:
    if __name__ == "__main__" and sys.argv[1] == "child_outlives_parent":
        body_has_begun.release()
        threading.Event().wait()
    return "done"


@workflow
def calls_blocking_step() -> str:
    return block_until_kill()


def takes_over_execution() -> object:
    with Engine(URL) as engine:
        return engine.get("a").result()


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]]()))
