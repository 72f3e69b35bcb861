"""Sync workflows, on threads."""

import pathlib
import re
import sys
import threading

import pytest

from stepfast import Engine, WorkflowCancelled, sleep, step, workflow


@step
def plus_one(n: int) -> int:
    return n + 1


@workflow
def three(n: int) -> int:
    return plus_one(plus_one(plus_one(n)))


@workflow
def naps_in_thread(n: int) -> int:
    sleep(0.01)
    return plus_one(n)


@step
def no_such_thing(n: int) -> int:
    raise KeyError("nothing", n)


@workflow
def fails_in_thread(n: int) -> int:
    return no_such_thing(n)


def test_a_workflow_is_run_and_started(url: str) -> None:
    with Engine(url) as engine:
        assert engine.run(three, 1) == 4
        assert engine.start(three, 2).result() == 5
        assert engine.run(naps_in_thread, 3) == 4


def test_steps_outside_of_workflows_are_plain_calls() -> None:
    assert plus_one(1) == 2
    assert three(1) == 4


def test_errors_keep_their_class_in_threads(url: str) -> None:
    with Engine(url) as engine:
        for failed in (lambda: engine.run(fails_in_thread, 1), engine.start(fails_in_thread, 1).result):
            with pytest.raises(KeyError) as raised:
                failed()
            assert raised.value.args == ("nothing", 1)


def test_many_threads_share_an_engine(url: str) -> None:
    with Engine(url) as engine:
        outputs: list[int] = []

        def caller(n: int) -> None:
            for i in range(10):
                outputs.append(engine.run(three, 10 * n + i))

        threads = [threading.Thread(target=caller, args=(n,)) for n in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(outputs) == [n + 3 for n in range(160)]


def test_more_executions_than_threads_end(url: str) -> None:
    with Engine(url, max_threads=4) as engine:
        handles = [engine.start(naps_in_thread, n) for n in range(40)]
        assert [handle.result() for handle in handles] == [n + 1 for n in range(40)]


_released = threading.Event()


@step(timeout=0.02)
def too_slow_in_thread(n: int) -> int:
    _released.wait(60)
    return n


@workflow
def waits_in_thread(n: int) -> str:
    try:
        too_slow_in_thread(n)
    except TimeoutError as error:
        return str(error)
    return "in time"


def test_an_attempt_in_a_thread_that_takes_too_long_fails(url: str) -> None:
    _released.clear()
    with Engine(url) as engine:
        assert engine.run(waits_in_thread, 1) == "the attempt took longer than 0.02 s"
    _released.set()


def test_running_an_id_again_gives_its_output_in_threads(url: str) -> None:
    with Engine(url) as engine:
        for _ in range(3):
            assert engine.run(three.options(workflow_id="again"), 1) == 4
        assert engine.start(three.options(workflow_id="again"), 1).result() == 4


@workflow
def naps_long(n: int) -> int:
    sleep(3600)
    return n


def test_a_sync_execution_that_its_caller_runs_can_be_cancelled(url: str) -> None:
    with Engine(url) as engine:
        errors: list[BaseException] = []

        def caller() -> None:
            try:
                engine.run(naps_long.options(workflow_id="naps"), 1)
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=caller)
        thread.start()
        handle = engine.start(naps_long.options(workflow_id="naps"), 1)
        handle.cancel()
        thread.join(60)
        assert [type(error) for error in errors] == [WorkflowCancelled]


@step
def fails_strangely(n: int) -> int:
    raise ValueError("no Unicode: \udcff") from KeyError("\udcff")


@workflow
def strange(n: int) -> int:
    return fails_strangely(n)


def test_an_error_whose_text_cannot_be_recorded_is_no_other_error(url: str) -> None:
    with Engine(url) as engine, pytest.raises(ValueError) as raised:
        engine.run(strange, 1)
    assert (type(raised.value).__name__, str(raised.value)) == ("ValueError", "no Unicode: \\udcff")


_second = threading.Event()


@step
def waits_for_the_second(n: int) -> int:
    assert n == 2 or _second.wait(60)
    _second.set()
    return n


@workflow
def first_or_second(n: int) -> int:
    return waits_for_the_second(n)


def test_one_execution_does_not_wait_for_another(url: str) -> None:
    """What is started while all threads have work gets another thread, at once."""
    _second.clear()
    with Engine(url) as engine:
        first = engine.start(first_or_second, 1)
        second = engine.start(first_or_second, 2)
        assert engine.results([first, second]) == [1, 2]


WAITS_HERE = threading.Event()


@step
def waits_here() -> None:
    assert WAITS_HERE.wait(60)


@workflow
def held_here() -> int:
    waits_here()
    return 7


def switches(thread: int) -> int:
    """How often a thread of this process has gone to sleep by itself."""
    text = pathlib.Path(f"/proc/self/task/{thread}/status").read_text(encoding="utf-8")
    (found,) = re.findall(r"^voluntary_ctxt_switches:\s+(\d+)$", text, re.MULTILINE)
    return int(found)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_threads_that_wait_for_results_sleep_until_there_are_some() -> None:
    many = 64
    WAITS_HERE.clear()
    found: list[int] = []
    waiting: list[int] = []
    with Engine("memory:") as engine:
        handle = engine.start(held_here)

        def wait() -> None:
            waiting.append(threading.get_native_id())
            found.append(handle.result())

        threads = [threading.Thread(target=wait) for _ in range(many)]
        for thread in threads:
            thread.start()
        # until all are in there, and then for half a second
        for seconds in (0.25, 0.5):
            before = {each: switches(each) for each in waiting}
            with pytest.raises(TimeoutError):
                handle.result(timeout=seconds)
        assert len(before) == many
        woken = sum(switches(each) - before[each] for each in waiting)
        WAITS_HERE.set()
        for thread in threads:
            thread.join(60)
    assert found == [7] * many
    # with a look at signals twenty times a second they would have been woken 640 times
    assert woken < many
