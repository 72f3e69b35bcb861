"""`AsyncEngine`: runs workflows in programs with an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable

from stepfast._engine.async_client import AsyncClient
from stepfast._engine.open_engine import OpenEngine
from stepfast._engine.scheduling.schedule import Schedule, declared_schedules
from stepfast._engine.signals import notify_loop_on_end_signals
from stepfast._options.queue import Queue, declared_queues, served_queues
from stepfast._runtime import process_hooks
from stepfast._runtime.event_loop.shutdown import wait_until_done
from stepfast._validation import bounds
from stepfast._validation.durations import Duration, to_seconds
from stepfast.errors import EngineClosed


class AsyncEngine(AsyncClient):
    """An `Engine` for programs with an event loop: `async with AsyncEngine(url) as engine:`. Async workflows
    run on the loop that opened the engine, sync workflows on threads. Only code on that loop may use the
    engine. See `Engine` for the arguments, and `AsyncClient.open` for the errors of opening the engine.

    Raises:
        InvalidArgument: An argument is out of its bounds.
    """

    def __init__(
        self,
        url: str,
        *,
        max_running: int = 10_000,
        suspend_after: Duration = 5.0,
        value_limit: int = 256 * 1024 * 1024,
        max_threads: int = 64,
        max_processes: int | None = None,
        app_version: str | None = None,
        max_recoveries: int = 10,
        queues: Iterable[Queue] = (),
        serve_queues: Iterable[str | Queue] | None = None,
        schedules: Iterable[Schedule] = (),
    ) -> None:
        bounds.check_engine_options(
            url, max_running, value_limit, max_threads, max_processes, app_version, max_recoveries
        )
        declared, served = declared_queues(queues), served_queues(serve_queues)
        listed = declared_schedules(schedules)
        seconds = to_seconds("suspend_after", suspend_after, 0)
        self._open_engine = None
        self._open_on = lambda loop: OpenEngine(
            url,
            loop,
            queues=declared,
            max_running=max_running,
            suspend_after=seconds,
            value_limit=value_limit,
            max_threads=max_threads,
            max_processes=max_processes,
            app_version=app_version,
            max_recoveries=max_recoveries,
            serve_queues=served,
            schedules=listed,
        )

    async def drain(self, grace: Duration = 30.0) -> None:
        """Closes the engine in good order, as before a deploy. See `Engine.drain`.

        Args:
            grace: The longest time to wait for running executions, as seconds or as a `timedelta`; 30 s by
                default. Async code that still runs then unwinds, for at most another 10 s.
        """
        seconds = bounds.checked_grace(grace)
        open_engine = self._here
        deadline = time.monotonic() + seconds
        await open_engine.native.drain(seconds, open_engine.port)
        await self._end(process_hooks.CLOSE_GRACE, max(0.0, deadline - time.monotonic()))

    async def work(self, grace: Duration = 30.0) -> None:
        """Works until the process receives a SIGTERM or SIGINT (Ctrl-C), then drains. See `Engine.work`.

        Args:
            grace: The longest time to wait for running executions, as seconds or as a `timedelta`; 30 s by
                default. See `drain`.

        Raises:
            InvalidArgument: The loop does not run in the main thread.
            SchemaMismatch: The engine has ended by itself, because the database has, or is about to get, the
                schema of a newer version of Stepfast.
        """
        seconds = bounds.checked_grace(grace)
        signals = asyncio.Semaphore(0)
        with notify_loop_on_end_signals(asyncio.get_running_loop(), signals.release):
            await self._wait_for_signal(signals)
            draining = asyncio.ensure_future(self.drain(seconds))
            second_signal = asyncio.ensure_future(signals.acquire())
            try:
                await asyncio.wait([draining, second_signal], return_when=asyncio.FIRST_COMPLETED)
                if not draining.done():
                    await self._end(process_hooks.CLOSE_GRACE, 0.0)
                await draining
            finally:
                # also if `work` is cancelled: a draining engine takes no new executions, and the program can
                # close it
                for task in (draining, second_signal):
                    task.cancel()
                await wait_until_done([draining, second_signal])

    async def _wait_for_signal(self, signals: asyncio.Semaphore) -> None:
        """Waits for the first signal that asks the program to end. Raises if the engine ends by itself."""
        open_engine = self._here
        ended = asyncio.ensure_future(open_engine.native.wait_until_ended(open_engine.port))
        first_signal = asyncio.ensure_future(signals.acquire())
        try:
            await asyncio.wait([ended, first_signal], return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                with contextlib.suppress(EngineClosed):
                    ended.result()
                # the program has closed the engine, and continues: `work` still waits for a signal
                await first_signal
        finally:
            for task in (ended, first_signal):
                task.cancel()
            await wait_until_done([ended, first_signal])


__all__ = ["AsyncEngine"]
