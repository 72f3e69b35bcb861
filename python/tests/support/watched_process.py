"""Processes that a test waits for: the lines that they write, and their ends."""

import os
import pathlib
import select

#: Maximum time of each wait in tests, in seconds. A process that needs longer hangs.
HANG_TIMEOUT = 120


class WatchedProcess:
    """A process that need not be a child, and whose end can be waited for."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._descriptor = os.pidfd_open(pid)

    def wait_for_end(self) -> bool:
        """Waits for the end of the process, and returns whether the process ended within `HANG_TIMEOUT`."""
        return bool(select.select([self._descriptor], [], [], HANG_TIMEOUT)[0])


class Pipe:
    """A named pipe, into which processes write lines."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = str(path)
        os.mkfifo(path)
        self._descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        self._text = ""

    def read_line(self) -> str:
        """Waits for the next line, and returns it without its end."""
        while "\n" not in self._text:
            assert select.select([self._descriptor], [], [], HANG_TIMEOUT)[0], "no line was written"
            self._text += os.read(self._descriptor, 4096).decode()
        line, _, self._text = self._text.partition("\n")
        return line

    def read_process(self) -> WatchedProcess:
        """Waits for a line with a process id, and returns that process."""
        return WatchedProcess(int(self.read_line()))


def child_pids() -> set[int]:
    """Returns the ids of the processes that this process has started and that still run."""
    found = pathlib.Path("/proc/self/task").glob("*/children")
    return {int(pid) for file in found for pid in file.read_text().split()}
