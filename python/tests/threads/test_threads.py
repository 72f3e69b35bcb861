"""Sync workflows, which run in threads."""

import pathlib
import re
import sys
import threading

import pytest

from stepfast import Engine, WorkflowCancelled, sleep, step, workflow


@step
def add_one(n: int) -> int:
    return n + 1


@workflow
def add_three(n: int) -> int:
    return add_one(add_one(add_one(n)))


@workflow
def sleep_and_add_one(n: int) -> int:
    sleep(0.01)
    return add_one(n)


@step
def raise_key_error(n: int) -> int:
    raise KeyError("nothing", n)


@workflow
def fail_with_key_error(n: int) -> int:
    return raise_key_error(n)


def test_sync_workflow_is_run_and_started(url: str) -> None:
    with Engine(url) as engine:
        assert engine.run(add_three, 1) == 4
        assert engine.start(add_three, 2).result() == 5
        assert engine.run(sleep_and_add_one, 3) == 4


def test_step_outside_of_workflow_is_plain_call() -> None:
    assert add_one(1) == 2
    assert add_three(1) == 4


def test_error_keeps_its_class_in_thread(url: str) -> None:
    with Engine(url) as engine:
        for call in (lambda: engine.run(fail_with_key_error, 1), engine.start(fail_with_key_error, 1).result):
            with pytest.raises(KeyError) as raised:
                call()
            assert raised.value.args == ("nothing", 1)


def test_many_threads_share_one_engine(url: str) -> None:
    with Engine(url) as engine:
        outputs: list[int] = []

        def caller(n: int) -> None:
            for i in range(10):
                outputs.append(engine.run(add_three, 10 * n + i))

        threads = [threading.Thread(target=caller, args=(n,)) for n in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(outputs) == [n + 3 for n in range(160)]


def test_more_executions_than_threads_complete(url: str) -> None:
    with Engine(url, max_threads=4) as engine:
        handles = [engine.start(sleep_and_add_one, n) for n in range(40)]
        assert [handle.result() for handle in handles] == [n + 1 for n in range(40)]


_slow_step_released = threading.Event()


@step(timeout=0.02)
def exceed_time_limit(n: int) -> int:
    _slow_step_released.wait(60)
    return n


@workflow
def catch_attempt_timeout(n: int) -> str:
    try:
        exceed_time_limit(n)
    except TimeoutError as error:
        return str(error)
    return "in time"


def test_attempt_in_thread_fails_after_its_time_limit(url: str) -> None:
    _slow_step_released.clear()
    with Engine(url) as engine:
        assert engine.run(catch_attempt_timeout, 1) == "the attempt took longer than 0.02 s"
    _slow_step_released.set()


def test_repeated_run_of_id_returns_recorded_output(url: str) -> None:
    with Engine(url) as engine:
        for _ in range(3):
            assert engine.run(add_three.options(workflow_id="again"), 1) == 4
        assert engine.start(add_three.options(workflow_id="again"), 1).result() == 4


@workflow
def return_after_one_hour(n: int) -> int:
    sleep(3600)
    return n


def test_execution_in_thread_of_caller_is_cancelled(url: str) -> None:
    with Engine(url) as engine:
        errors: list[BaseException] = []

        def caller() -> None:
            try:
                engine.run(return_after_one_hour.options(workflow_id="sleeps"), 1)
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=caller)
        thread.start()
        handle = engine.start(return_after_one_hour.options(workflow_id="sleeps"), 1)
        handle.cancel()
        thread.join(60)
        assert [type(error) for error in errors] == [WorkflowCancelled]


@step
def raise_unrecordable_text(n: int) -> int:
    raise ValueError("no Unicode: \udcff") from KeyError("\udcff")


@workflow
def fail_with_unrecordable_text(n: int) -> int:
    return raise_unrecordable_text(n)


def test_error_with_unrecordable_text_keeps_its_class(url: str) -> None:
    with Engine(url) as engine, pytest.raises(ValueError) as raised:
        engine.run(fail_with_unrecordable_text, 1)
    assert (type(raised.value).__name__, str(raised.value)) == ("ValueError", "no Unicode: \\udcff")


_second_step_begun = threading.Event()


@step
def wait_for_second_step(n: int) -> int:
    assert n == 2 or _second_step_begun.wait(60)
    _second_step_begun.set()
    return n


@workflow
def call_first_or_second_step(n: int) -> int:
    return wait_for_second_step(n)


def test_execution_does_not_wait_for_busy_threads(url: str) -> None:
    """An execution that starts while all threads have work gets another thread at once."""
    _second_step_begun.clear()
    with Engine(url) as engine:
        first = engine.start(call_first_or_second_step, 1)
        second = engine.start(call_first_or_second_step, 2)
        assert engine.results([first, second]) == [1, 2]


STEP_RELEASED = threading.Event()


@step
def wait_for_release() -> None:
    assert STEP_RELEASED.wait(60)


@workflow
def return_after_release() -> int:
    wait_for_release()
    return 7


def count_voluntary_switches(thread: int) -> int:
    """Returns how often a thread of this process has voluntarily left the processor."""
    text = pathlib.Path(f"/proc/self/task/{thread}/status").read_text(encoding="utf-8")
    (found,) = re.findall(r"^voluntary_ctxt_switches:\s+(\d+)$", text, re.MULTILINE)
    return int(found)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_threads_sleep_while_they_wait_for_results() -> None:
    thread_count = 64
    STEP_RELEASED.clear()
    outputs: list[int] = []
    thread_ids: list[int] = []
    with Engine("memory:") as engine:
        handle = engine.start(return_after_release)

        def wait() -> None:
            thread_ids.append(threading.get_native_id())
            outputs.append(handle.result())

        threads = [threading.Thread(target=wait) for _ in range(thread_count)]
        for thread in threads:
            thread.start()
        # all threads wait after the first interval; the second interval is measured
        for seconds in (0.25, 0.5):
            before = {each: count_voluntary_switches(each) for each in thread_ids}
            with pytest.raises(TimeoutError):
                handle.result(timeout=seconds)
        assert len(before) == thread_count
        wakes = sum(count_voluntary_switches(each) - before[each] for each in thread_ids)
        STEP_RELEASED.set()
        for thread in threads:
            thread.join(60)
    assert outputs == [7] * thread_count
    # 64 threads that check for signals twenty times a second would wake 640 times in half a second
    assert wakes < thread_count
