"""Web servers for tests: real ones, in processes of their own."""

import contextlib
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

from watched_process import HANG_TIMEOUT


class WebServer:
    """A uvicorn server of an app, with one worker or several. The constructor returns when it serves."""

    def __init__(
        self, app: str, folder: pathlib.Path, workers: int, port: int, environment: dict[str, str]
    ) -> None:
        command = [sys.executable, "-m", "uvicorn", app, "--host", "127.0.0.1", "--port", str(port)]
        if workers > 1:
            command += ["--workers", str(workers)]
        self.process = subprocess.Popen(
            [*command, "--no-access-log"],
            cwd=folder,
            env={**os.environ, **environment},
            stderr=subprocess.PIPE,
            text=True,
        )
        self.log = ""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log += line
            running = re.search(r"running on (http://127\.0\.0\.1:\d+)", line)
            if running is not None:
                self.url = running[1]
            if "running on" in self.log and self.log.count("startup complete") == workers:
                return
        raise AssertionError(self.log)

    def send_signal(self, signal_number: signal.Signals) -> None:
        """Sends a signal to the server's process."""
        self.process.send_signal(signal_number)

    def wait_for_end(self) -> int:
        """Waits until the server has ended, and returns its exit code."""
        self.log += self.process.communicate(timeout=HANG_TIMEOUT)[1]
        return self.process.returncode


@contextlib.contextmanager
def web_server(
    app: str, folder: pathlib.Path, workers: int = 1, port: int = 0, **environment: str
) -> Iterator[WebServer]:
    """Starts a server, by default on any free port. The end kills it if it still runs."""
    server = WebServer(app, folder, workers, port, environment)
    with server.process:
        try:
            yield server
        finally:
            server.process.kill()


@contextlib.contextmanager
def reserved_port() -> Iterator[int]:
    """Reserves a port for servers that run one after the other. While none runs, connections are refused."""
    with socket.socket() as reservation:
        # the servers bind with the same option
        reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reservation.bind(("127.0.0.1", 0))
        yield reservation.getsockname()[1]
