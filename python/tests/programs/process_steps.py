"""Steps that run in processes, and workflows that call them: what test_processes.py needs in a module, as a
child process imports it."""

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
from typing import ParamSpec, TypeVar

import stepfast
from stepfast import Current, Instance, ProcessDied, Workflow, current, gather, map, step

P = ParamSpec("P")
R = TypeVar("R")


def workflow(function: Callable[P, R]) -> Workflow[P, R]:
    """A workflow with a name that no other test has."""
    return stepfast.workflow(name=f"processes.{function.__qualname__}")(function)


def tell(path: str, text: str = "") -> None:
    """Leaves a line, the process id if nothing else, with who waits for it at a named pipe."""
    with open(path, "w") as pipe:
        pipe.write(f"{text or os.getpid()}\n")


def wait_forever() -> None:
    while True:
        signal.pause()


def count(path: str) -> int:
    """How often this was called with this file, in whatever process."""
    with open(path, "a") as file:
        file.write(".")
        return file.tell()


@dataclasses.dataclass
class Order:
    id: str
    lines: list[tuple[str, int]]
    tags: set[str]


def turned(order: Order, *, times: int = 1) -> Order:
    return Order(order.id[::-1], order.lines * times, order.tags | {"turned"})


turned_here = step(name="turned")(turned)
turned_there = step(name="turned", process=True)(turned)


@workflow
def turns_here(order: Order) -> Order:
    return turned_here(order, times=2)


@workflow
def turns_there(order: Order) -> Order:
    turned_there(order)
    return turned_there(order, times=2)


@workflow
async def turns_there_async(order: Order) -> Order:
    return await turned_there.in_process(order, times=2)


@step(process=True)
def where_am_i() -> tuple[Current, str, int]:
    record = logging.getLogger("bodies").makeRecord("bodies", 20, "file", 1, "text", (), None)
    return current(), f"{record.stepfast_workflow_id} {record.stepfast_step}", os.getpid()


@workflow
def asks_where() -> list[object]:
    return [*where_am_i(), current()]


class Shop(Instance):
    def __init__(self, name: str, factor: int) -> None:
        super().__init__(name)
        self.factor = factor

    @step(process=True)
    def times(self, n: int) -> tuple[int, int]:
        return n * self.factor, os.getpid()

    @classmethod
    @step(process=True)
    def called(cls, n: int) -> str:
        return f"{cls.__name__} {n}"

    @workflow
    def sells(self, n: int) -> tuple[int, int]:
        return self.times(n)

    @workflow
    async def sells_async(self, n: int) -> tuple[int, int]:
        return await self.times.in_process(n)

    @workflow
    def calls(self, n: int) -> str:
        return self.called(n)


shop = Shop("corner", 3)


@step(process=True)
def process_id() -> int:
    return os.getpid()


@workflow
def process_ids(n: int) -> list[int]:
    return [process_id() for _ in range(n)]


@step(process=True)
def die(how: str) -> str:
    match how:
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "segfault":
            ctypes.string_at(0)
        case "_exit":
            os._exit(3)
        case "exit":
            sys.exit(4)
        case "forked":
            # a copy, made without Python's knowledge, holds all descriptors open
            if ctypes.CDLL(None).fork() == 0:
                wait_forever()
            os._exit(5)
        case "cut off":
            os.closerange(3, 65_536)
            wait_forever()
    return how


@workflow
def dies(how: str) -> tuple[str, str, int | None]:
    try:
        return die(how), "", 0
    except ProcessDied as error:
        return str(error), error.code, error.exit_code


@workflow
async def dies_async(how: str) -> tuple[str, str, int | None]:
    try:
        return await die.in_process(how), "", 0
    except ProcessDied as error:
        return str(error), error.code, error.exit_code


@workflow
def lets_die(how: str) -> str:
    return die(how)


@step(process=True, retries=3, backoff=0.001)
def third_time(path: str) -> int:
    if (attempt := count(path)) < 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return attempt


@workflow
def tries_in_processes(path: str) -> int:
    return third_time(path)


@step(process=True, retries=3, backoff=0.001, retry_if=lambda error: not isinstance(error, ProcessDied))
def picky(path: str) -> int:
    count(path)
    os._exit(1)


@workflow
def is_picky(path: str) -> str:
    try:
        return str(picky(path))
    except ProcessDied:
        return "died"


@step(process=True)
def needs_memory(limit: int) -> int:
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    return len(bytearray(4 * limit))


@step(process=True)
def memory_limit() -> int:
    return resource.getrlimit(resource.RLIMIT_AS)[0]


@workflow
def runs_out(limit: int) -> list[object]:
    try:
        needs_memory(limit)
    except MemoryError as error:
        return [type(error).__name__, memory_limit()]
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


def decline_strangely(order: str) -> str:
    raise ValueError("\udcff" + order)


def return_a_lock(order: str) -> object:
    return {"order": [order, threading.Lock()]}


FAILING = [decline, decline_locally, decline_strangely, return_a_lock]
failing_here = {function.__name__: step(retries=1, backoff=0.001)(function) for function in FAILING}
failing_there = {
    function.__name__: step(process=True, retries=1, backoff=0.001)(function) for function in FAILING
}


@workflow
def fails_here(name: str) -> object:
    return failing_here[name]("order-7")


@workflow
def fails_there(name: str) -> object:
    return failing_there[name]("order-7")


@workflow
async def fails_there_async(name: str) -> object:
    return await failing_there[name].in_process("order-7")


@workflow
def passes_a_lock(order: str) -> object:
    turned_there(Order(order, [], set()), times=threading.Lock())  # type: ignore[arg-type]


@step(process=True, timeout=0.2)
def hangs(path: str) -> None:
    # what a body has started ends with it
    tell(path, str(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"]).pid))
    tell(path)
    while True:
        pass


@workflow
def is_impatient(path: str) -> str:
    try:
        hangs(path)
    except TimeoutError as error:
        return f"{error}, {process_id() != os.getpid()}"
    return "in time"


@workflow
async def is_impatient_async(path: str) -> str:
    try:
        await hangs.in_process(path)
    except TimeoutError as error:
        return f"{error}, {await process_id.in_process() != os.getpid()}"
    return "in time"


@step(process=True)
def some_die(n: int) -> int:
    if n % 3 == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return n


@workflow
async def crowd(n: int) -> list[object]:
    ends = await asyncio.gather(*[some_die.in_process(i) for i in range(n)], return_exceptions=True)
    return [end if isinstance(end, int) else type(end).__name__ for end in ends]


def act(n: int, how: str) -> int:
    match how:
        case "raise":
            raise LookupError(n)
        case "killed" | "_exit" | "exit" | "segfault":
            die.function(how)
        case "hang":
            wait_forever()
    return n


acts = step(process=True)(act)
acts_in_time = step(process=True, name="in_time", timeout=0.05)(act)


async def acted(n: int, how: str) -> str:
    try:
        chosen = acts_in_time if how == "hang" else acts
        return f"{n} returned {await chosen.in_process(n, how)}"
    except LookupError as error:
        return f"{n} raised {error}"
    except TimeoutError:
        return f"{n} was late"
    except ProcessDied as error:
        return f"{n} ended by {error.exit_code}"


@workflow
async def all_act(hows: list[str]) -> list[str]:
    return await asyncio.gather(*[acted(n, how) for n, how in enumerate(hows)])


@step(process=True)
def act_in_crowd(n: int) -> int:
    return n * n


@step(process=True)
def meet(come: str, go: str) -> int:
    """Returns when another process is in it at the same time, with the pipes changed over."""
    if come < go:
        tell(come)
        return int(pathlib.Path(go).read_text())
    other = int(pathlib.Path(go).read_text())
    tell(come)
    return other


@workflow
async def meeting(one: str, two: str) -> list[int]:
    return await asyncio.gather(meet.in_process(one, two), meet.in_process(two, one))


@workflow
def meeting_of_threads(one: str, two: str) -> tuple[int, int]:
    return gather(lambda: meet(one, two), lambda: meet(two, one))


@workflow
def spread(n: int) -> list[int]:
    return map(act_in_crowd, range(n))


@workflow
async def fan_out(n: int) -> list[int]:
    return await asyncio.gather(*[process_id.in_process() for _ in range(n)])


@step
def before(path: str) -> int:
    return count(path)


@step(process=True)
def stay(pipe: str, marks: str) -> int:
    """The first time it is called it stays."""
    if (times := count(marks)) == 1:
        tell(pipe)
        wait_forever()
    return times


@workflow
def stays(pipe: str, marks: str) -> list[int]:
    return [before(f"{marks}.before"), stay(pipe, marks)]


@step
async def fail_when_told(other: str) -> None:
    await asyncio.to_thread(pathlib.Path(other).read_text)
    raise LookupError


@workflow
async def leaves_a_body_behind(pipe: str, marks: str, other: str) -> None:
    await asyncio.gather(stay.in_process(pipe, marks), fail_when_told(other))


@workflow
async def stays_async(pipe: str, marks: str) -> int:
    return await stay.in_process(pipe, marks)


@step
async def heard(pipe: str) -> str:
    return await asyncio.to_thread(pathlib.Path(pipe).read_text)


@workflow
async def first_of_processes(pipe: str, marks: str, other: str) -> str:
    """The second one wins, and the first is cancelled."""
    slow = asyncio.create_task(stay.in_process(pipe, marks))
    fast = asyncio.create_task(heard(other))
    await asyncio.wait({slow, fast}, return_when=asyncio.FIRST_COMPLETED)
    slow.cancel()
    return fast.result()


@step(process=True)
def listens(pipe: str) -> str:
    return pathlib.Path(pipe).read_text()


@step
async def says(pipe: str) -> None:
    # blocks until the body listens, which it does while the loop is here
    await asyncio.to_thread(tell, pipe, "the loop goes on")


@workflow
async def talks(pipe: str) -> str:
    heard, _ = await asyncio.gather(listens.in_process(pipe), says(pipe))
    return heard


@step(process=True)
def step_in_step(path: str) -> list[int]:
    return [before(path), process_id(), os.getpid(), child_in_step(path)]


@workflow
def child_in_step(path: str) -> int:
    return before(path)


@workflow
def steps_in_steps(path: str) -> list[int]:
    return step_in_step(path)


@workflow
async def calls_it_as_it_is() -> int:
    return process_id()


@workflow
async def calls_it_in_a_thread() -> int:
    return await process_id.in_thread()


@workflow
def calls_it_in_a_process() -> object:
    return process_id.in_process()


@step(process=True)
def leaves_a_mark(path: str) -> str:
    pathlib.Path(path).touch()
    return "there"


@workflow
def marks_late(path: str) -> str:
    return leaves_a_mark(path)


@workflow
async def marks_late_async(path: str) -> str:
    return await leaves_a_mark.in_process(path)
