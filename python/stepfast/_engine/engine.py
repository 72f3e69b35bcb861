"""`Engine`: runs workflows in programs without an event loop."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

from stepfast._engine.client import Client
from stepfast._engine.open_engine import OpenEngine
from stepfast._engine.scheduling.schedule import Schedule, declared_schedules
from stepfast._engine.signals import SignalQueue, queue_end_signals
from stepfast._options.queue import Queue, declared_queues, served_queues
from stepfast._runtime import process_hooks
from stepfast._runtime.waiting import wait_for_call
from stepfast._validation import bounds
from stepfast._validation.durations import Duration, to_seconds
from stepfast.errors import EngineClosed, Error


class Engine(Client):
    """An engine, which runs workflows on a store, for sync code. Any number of threads may use one engine.

    An engine is a `Client` that also runs executions of the workflows that the program had defined before. It
    runs the executions that are started on it, and all that are ready, due or left by a dead worker. An
    `Engine` runs no async workflows; see `AsyncEngine`.

    Args:
        url: The URL of the store: `sqlite://shop.db`, `postgres://…`, `memory:`.
        max_running: The maximum number of executions that run at a time in this engine. Further executions
            wait.
        suspend_after: A time span, as seconds or as a `timedelta`; 5 s by default. An execution whose
            branches all wait for longer than this is dropped from memory, and continues later from its
            record.
        value_limit: The maximum size of an input, a step's value or an output, in encoded bytes; 256 MiB by
            default.
        max_threads: The maximum number of sync workflows that run at a time, each in a thread; 64 by default.
        max_processes: The maximum number of child processes, which run the bodies of steps with
            `process=True`. By default it is the number of processors.
        app_version: The version of the program's code. Only workers of the same version run the executions
            that this engine starts, and this engine runs only executions with this version or without one.
            None by default: then every version matches, and after a deploy the new code continues executions
            that older code began.
        max_recoveries: How often an execution in quarantine is tried alone before it ends as failed; 10 by
            default. An execution is in quarantine if its worker died several times in a row, without a new
            checkpoint of the execution.
        queues: The queues that the engine declares when it opens: their limits are stored for all processes.
            None by default. See `Queue`.
        serve_queues: The queues from which this engine takes executions to run, as names or as `Queue`; all
            by default. Executions without a queue are in `default`.
        schedules: The schedules that the engine declares when it opens: they are stored, and each worker that
            has the workflow runs them. None by default. See `Schedule`.

    Raises:
        InvalidArgument: The store cannot be opened, or an argument is out of its bounds.
        QueueConflict: A queue is stored with other limits, and its `on_conflict` is `reject`.
        ScheduleConflict: A schedule is stored with other values, and its `on_conflict` is `reject`.
        StoreCorrupt: The store is damaged.
        SchemaMismatch: The store was written by a newer version of Stepfast.
        StoreUnavailable: The database is unreachable.
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
        self._open_engine = OpenEngine(
            url,
            queues=declared_queues(queues),
            max_running=max_running,
            suspend_after=to_seconds("suspend_after", suspend_after, 0),
            value_limit=value_limit,
            max_threads=max_threads,
            max_processes=max_processes,
            app_version=app_version,
            max_recoveries=max_recoveries,
            serve_queues=served_queues(serve_queues),
            schedules=declared_schedules(schedules),
        )

    def drain(self, grace: Duration = 30.0) -> None:
        """Closes the engine in good order, as before a deploy.

        The engine takes no new executions to run, and waits until its running executions have ended or the
        grace period is over. Then it requeues the other ones, which other workers continue at once, and
        closes. A start in the meantime is accepted, and its execution waits for another worker.

        Args:
            grace: The longest time to wait for running executions, as seconds or as a `timedelta`; 30 s by
                default. Code in a thread cannot be interrupted: it continues after the grace period, and its
                outcome is dropped. For an unreachable database the engine waits another 10 s.
        """
        seconds = bounds.checked_grace(grace)
        deadline = time.monotonic() + seconds
        wait_for_call(self._open_engine.native.drain(seconds, None))
        self._open_engine.end(process_hooks.CLOSE_GRACE, max(0.0, deadline - time.monotonic()))

    def work(self, grace: Duration = 30.0) -> None:
        """Works until the process receives a SIGTERM or SIGINT (Ctrl-C), then drains. A second signal
        requeues at once the executions that still run. Call this method in the main thread. Until it returns,
        these signals do not end the program by themselves.

        Args:
            grace: The longest time to wait for running executions, as seconds or as a `timedelta`; 30 s by
                default. See `drain`.

        Raises:
            InvalidArgument: This is not the main thread.
            SchemaMismatch: The engine has ended by itself, because the database has, or is about to get, the
                schema of a newer version of Stepfast.
        """
        seconds = bounds.checked_grace(grace)
        ended = self._open_engine.native.wait_until_ended(None)

        def watch(events: SignalQueue) -> None:
            try:
                wait_for_call(ended)
            except EngineClosed:
                # the program has closed the engine: `work` still waits for a signal
                pass
            except Error as error:
                events.put(error)

        def drain(events: SignalQueue) -> None:
            try:
                self.drain(seconds)
            finally:
                events.put(False)

        with queue_end_signals() as events:
            threading.Thread(target=watch, args=[events], name="stepfast-ended", daemon=True).start()
            event = events.get()
            if isinstance(event, Error):
                raise event
            draining = threading.Thread(target=drain, args=[events], name="stepfast-drain")
            draining.start()
            if events.get() is True:
                self._open_engine.end(process_hooks.CLOSE_GRACE, 0.0)
            draining.join()


__all__ = ["Engine"]
