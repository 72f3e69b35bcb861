"""Steps that run in processes, and workflows that call them. Child processes import this module; see
test_process_steps.py."""

import asyncio
import ctypes
import dataclasses
import logging
import os
import pathlib
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import stepfast
from stepfast import Current, Instance, ProcessDied, Workflow, current, gather, map, race, receive, step

P = ParamSpec("P")
R = TypeVar("R")


def workflow(function: Callable[P, R]) -> Workflow[P, R]:
    """Returns a workflow whose name no other test uses."""
    return stepfast.workflow(name=f"processes.{function.__qualname__}")(function)


def write_line(path: str, text: str = "") -> None:
    """Writes a line into a named pipe: the text, or else the process id."""
    with open(path, "w") as pipe:
        pipe.write(f"{text or os.getpid()}\n")


def wait_forever() -> None:
    while True:
        signal.pause()


def count_call(path: str) -> int:
    """Returns the number of calls with this file so far, in all processes."""
    with open(path, "a") as file:
        file.write(".")
        return file.tell()


@dataclasses.dataclass
class Order:
    id: str
    lines: list[tuple[str, int]]
    tags: set[str]


def reverse_order(order: Order, *, times: int = 1) -> Order:
    return Order(order.id[::-1], order.lines * times, order.tags | {"reversed"})


reverse_in_thread = step(name="reverse_order")(reverse_order)
reverse_in_process = step(name="reverse_order", process=True)(reverse_order)


@workflow
def reverses_in_thread(order: Order) -> Order:
    return reverse_in_thread(order, times=2)


@workflow
def reverses_in_process(order: Order) -> Order:
    reverse_in_process(order)
    return reverse_in_process(order, times=2)


@workflow
async def reverses_in_process_async(order: Order) -> Order:
    return await reverse_in_process.in_process(order, times=2)


@step(process=True)
def locate() -> tuple[Current, str, int]:
    record = logging.getLogger("bodies").makeRecord("bodies", 20, "file", 1, "text", (), None)
    return current(), f"{record.stepfast_workflow_id} {record.stepfast_step}", os.getpid()


@workflow
def locates() -> list[object]:
    return [*locate(), current()]


class Shop(Instance):
    def __init__(self, name: str, factor: int) -> None:
        super().__init__(name)
        self.factor = factor

    @step(process=True)
    def times(self, n: int) -> tuple[int, int]:
        return n * self.factor, os.getpid()

    @classmethod
    @step(process=True)
    def describe(cls, n: int) -> str:
        return f"{cls.__name__} {n}"

    @workflow
    def sells(self, n: int) -> tuple[int, int]:
        return self.times(n)

    @workflow
    async def sells_async(self, n: int) -> tuple[int, int]:
        return await self.times.in_process(n)

    @workflow
    def calls(self, n: int) -> str:
        return self.describe(n)


shop = Shop("corner", 3)


@step(process=True)
def process_id() -> int:
    return os.getpid()


@workflow
def process_ids(n: int) -> list[int]:
    return [process_id() for _ in range(n)]


@step(process=True)
def die(way: str) -> str:
    match way:
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "segfault":
            ctypes.string_at(0)
        case "_exit":
            os._exit(3)
        case "exit":
            sys.exit(4)
        case "forked":
            # a copy, which Python does not know of, keeps all descriptors open
            if ctypes.CDLL(None).fork() == 0:
                wait_forever()
            os._exit(5)
        case "cut off":
            os.closerange(3, 65_536)
            wait_forever()
    return way


@workflow
def dies(way: str) -> tuple[str, str, int | None]:
    try:
        return die(way), "", 0
    except ProcessDied as error:
        return str(error), error.code, error.exit_code


@workflow
async def dies_async(way: str) -> tuple[str, str, int | None]:
    try:
        return await die.in_process(way), "", 0
    except ProcessDied as error:
        return str(error), error.code, error.exit_code


@workflow
def lets_die(way: str) -> str:
    return die(way)


@step(process=True, retries=3, backoff=0.001)
def die_twice(path: str) -> int:
    if (attempt := count_call(path)) < 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return attempt


@workflow
def tries_in_processes(path: str) -> int:
    return die_twice(path)


@step(process=True, retries=3, backoff=0.001, retry_if=lambda error: not isinstance(error, ProcessDied))
def die_without_retry(path: str) -> int:
    count_call(path)
    os._exit(1)


@workflow
def dies_without_retry(path: str) -> str:
    try:
        return str(die_without_retry(path))
    except ProcessDied:
        return "died"


@step(process=True)
def exceed_memory_limit(limit: int) -> int:
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    return len(bytearray(4 * limit))


@step(process=True)
def read_memory_limit() -> int:
    return resource.getrlimit(resource.RLIMIT_AS)[0]


@workflow
def exceeds_memory_limit(limit: int) -> list[object]:
    try:
        exceed_memory_limit(limit)
    except MemoryError as error:
        return [type(error).__name__, read_memory_limit()]
    return []


class Declined(Exception):
    def __init__(self, order: str, *, code: int) -> None:
        super().__init__(f"{order} was declined")
        self.code = code


def decline(order: str) -> str:
    try:
        raise LookupError(order)
    except LookupError as error:
        declined = Declined(order, code=7)
        declined.add_note("a note")
        raise declined from error


def decline_locally(order: str) -> str:
    class Local(Exception):
        pass

    raise Local(order)


def decline_with_surrogate(order: str) -> str:
    raise ValueError("\udcff" + order)


def return_lock(order: str) -> object:
    return {"order": [order, threading.Lock()]}


FAILING_BODIES = [decline, decline_locally, decline_with_surrogate, return_lock]
failing_in_thread = {
    function.__name__: step(retries=1, backoff=0.001)(function) for function in FAILING_BODIES
}
failing_in_process = {
    function.__name__: step(process=True, retries=1, backoff=0.001)(function) for function in FAILING_BODIES
}


@workflow
def fails_in_thread(name: str) -> object:
    return failing_in_thread[name]("order-7")


@workflow
def fails_in_process(name: str) -> object:
    return failing_in_process[name]("order-7")


@workflow
async def fails_in_process_async(name: str) -> object:
    return await failing_in_process[name].in_process("order-7")


@workflow
def passes_lock(order: str) -> object:
    reverse_in_process(Order(order, [], set()), times=threading.Lock())  # type: ignore[arg-type]


@step(process=True, timeout=0.2)
def spin(path: str) -> None:
    # the process that a body has started ends with the body
    write_line(path, str(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"]).pid))
    write_line(path)
    while True:
        pass


@workflow
def times_out(path: str) -> str:
    try:
        spin(path)
    except TimeoutError as error:
        return f"{error}, {process_id() != os.getpid()}"
    return "in time"


@workflow
async def times_out_async(path: str) -> str:
    try:
        await spin.in_process(path)
    except TimeoutError as error:
        return f"{error}, {await process_id.in_process() != os.getpid()}"
    return "in time"


@step(process=True)
def die_if_divisible_by_three(n: int) -> int:
    if n % 3 == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return n


@workflow
async def gathers_deaths(n: int) -> list[object]:
    ends = await asyncio.gather(
        *[die_if_divisible_by_three.in_process(i) for i in range(n)], return_exceptions=True
    )
    return [end if isinstance(end, int) else type(end).__name__ for end in ends]


def end_in_way(n: int, way: str) -> int:
    match way:
        case "raise":
            raise LookupError(n)
        case "killed" | "_exit" | "exit" | "segfault":
            die.function(way)
        case "hang":
            wait_forever()
    return n


end_in_process = step(process=True)(end_in_way)
end_within_timeout = step(process=True, name="in_time", timeout=0.05)(end_in_way)


async def describe_end(n: int, way: str) -> str:
    try:
        chosen_step = end_within_timeout if way == "hang" else end_in_process
        return f"{n} returned {await chosen_step.in_process(n, way)}"
    except LookupError as error:
        return f"{n} raised {error}"
    except TimeoutError:
        return f"{n} was late"
    except ProcessDied as error:
        return f"{n} ended by {error.exit_code}"


@workflow
async def gathers_ends(ways: list[str]) -> list[str]:
    return await asyncio.gather(*[describe_end(n, way) for n, way in enumerate(ways)])


@step(process=True)
def square_in_process(n: int) -> int:
    return n * n


@step(process=True)
def meet(own_pipe: str, other_pipe: str) -> int:
    """Returns when another process runs this body at the same time, with the two pipes exchanged."""
    if own_pipe < other_pipe:
        write_line(own_pipe)
        return int(pathlib.Path(other_pipe).read_text())
    other_pid = int(pathlib.Path(other_pipe).read_text())
    write_line(own_pipe)
    return other_pid


@workflow
async def meets(one: str, two: str) -> list[int]:
    return await asyncio.gather(meet.in_process(one, two), meet.in_process(two, one))


@workflow
def meets_in_threads(one: str, two: str) -> tuple[int, int]:
    return gather(lambda: meet(one, two), lambda: meet(two, one))


@workflow
def maps_squares(n: int) -> list[int]:
    return map(square_in_process, range(n))


@workflow
async def gathers_process_ids(n: int) -> list[int]:
    return await asyncio.gather(*[process_id.in_process() for _ in range(n)])


@step
def count_call_in_thread(path: str) -> int:
    return count_call(path)


@step(process=True)
def stay(pipe: str, marks: str) -> int:
    """Blocks in its first call, and returns in later ones."""
    if (times := count_call(marks)) == 1:
        write_line(pipe)
        wait_forever()
    return times


@workflow
def stays(pipe: str, marks: str) -> list[int]:
    return [count_call_in_thread(f"{marks}.before"), stay(pipe, marks)]


@step
async def fail_after_line(other: str) -> None:
    await asyncio.to_thread(pathlib.Path(other).read_text)
    raise LookupError


@workflow
async def abandons_body(pipe: str, marks: str, other: str) -> None:
    await asyncio.gather(stay.in_process(pipe, marks), fail_after_line(other))


@workflow
async def stays_async(pipe: str, marks: str) -> int:
    return await stay.in_process(pipe, marks)


@step
async def read_line(pipe: str) -> str:
    return await asyncio.to_thread(pathlib.Path(pipe).read_text)


@workflow
async def cancels_slower_step(pipe: str, marks: str, other: str) -> str:
    """Awaits the faster of two steps, and cancels the one in a process."""
    slow = asyncio.create_task(stay.in_process(pipe, marks))
    fast = asyncio.create_task(read_line(other))
    await asyncio.wait({slow, fast}, return_when=asyncio.FIRST_COMPLETED)
    slow.cancel()
    return fast.result()


@workflow
def races_process(pipe: str, marks: str) -> tuple[int, Any]:
    return race(lambda: stay(pipe, marks), lambda: receive("go"))


@step(process=True)
def read_pipe_in_process(pipe: str) -> str:
    return pathlib.Path(pipe).read_text()


@step
async def write_pipe_on_loop(pipe: str) -> None:
    # blocks until the body opens the pipe, which needs a loop that keeps running
    await asyncio.to_thread(write_line, pipe, "the loop runs")


@workflow
async def writes_while_body_reads(pipe: str) -> str:
    line, _ = await asyncio.gather(read_pipe_in_process.in_process(pipe), write_pipe_on_loop(pipe))
    return line


@step(process=True)
def call_steps_in_body(path: str) -> list[int]:
    return [count_call_in_thread(path), process_id(), os.getpid(), counts_call(path)]


@workflow
def counts_call(path: str) -> int:
    return count_call_in_thread(path)


@workflow
def calls_steps_in_body(path: str) -> list[int]:
    return call_steps_in_body(path)


@workflow
async def calls_process_step_on_loop() -> int:
    return process_id()


@workflow
async def calls_process_step_in_thread() -> int:
    return await process_id.in_thread()


@workflow
def calls_in_process_from_sync_code() -> object:
    return process_id.in_process()


@step(process=True)
def touch_file(path: str) -> str:
    pathlib.Path(path).touch()
    return "there"


@workflow
def touches_file(path: str) -> str:
    return touch_file(path)


@workflow
async def touches_file_async(path: str) -> str:
    return await touch_file.in_process(path)
