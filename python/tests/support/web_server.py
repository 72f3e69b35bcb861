"""Web servers for tests: real ones, in processes of their own."""

import contextlib
import os
import pathlib
import re
import signal
import subprocess
import sys
from collections.abc import Iterator

#: Longest to wait for anything, in seconds.
HANG_TIMEOUT = 60


class Server:
    """A uvicorn that serves an app of a module, with so many workers."""

    def __init__(self, app: str, folder: pathlib.Path, workers: int, environment: dict[str, str]) -> None:
        command = [sys.executable, "-m", "uvicorn", app, "--host", "127.0.0.1", "--port", "0"]
        if workers > 1:
            command += ["--workers", str(workers)]
        self.process = subprocess.Popen(
            [*command, "--no-access-log"],
            cwd=folder,
            env={**os.environ, **environment},
            stderr=subprocess.PIPE,
            text=True,
        )
        self.said = ""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said += line
            running = re.search(r"running on (http://127\.0\.0\.1:\d+)", line)
            if running is not None:
                self.url = running[1]
            if "running on" in self.said and self.said.count("startup complete") == workers:
                return
        raise AssertionError(self.said)

    def tell(self, what: signal.Signals) -> None:
        """Tells it to end."""
        self.process.send_signal(what)

    def ended(self) -> int:
        """Waits for its end: its exit code."""
        self.said += self.process.communicate(timeout=HANG_TIMEOUT)[1]
        return self.process.returncode


@contextlib.contextmanager
def served(app: str, folder: pathlib.Path, workers: int = 1, **environment: str) -> Iterator[Server]:
    """A server, which is killed if it is still there at the end."""
    server = Server(app, folder, workers, environment)
    with server.process:
        try:
            yield server
        finally:
            server.process.kill()
