"""Processes that a test waits for: what they say, and their end."""

import os
import pathlib
import select

#: Nothing takes so long, in seconds: it would hang.
HANG_TIMEOUT = 120


class Watched:
    """A process, whose end can be waited for."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._descriptor = os.pidfd_open(pid)

    def is_gone(self) -> bool:
        """Waits for its end; false if that does not come."""
        return bool(select.select([self._descriptor], [], [], HANG_TIMEOUT)[0])


class Pipe:
    """A named pipe, at which a process says what it has to say."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = str(path)
        os.mkfifo(path)
        self._descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        self._text = ""

    def line(self) -> str:
        """Waits for a line."""
        while "\n" not in self._text:
            assert select.select([self._descriptor], [], [], HANG_TIMEOUT)[0], "nothing was said"
            self._text += os.read(self._descriptor, 4096).decode()
        line, _, self._text = self._text.partition("\n")
        return line

    def process(self) -> Watched:
        """Waits for a process to say its id."""
        return Watched(int(self.line()))


def children() -> set[int]:
    """The processes that this one has started, and that have not ended."""
    found = pathlib.Path("/proc/self/task").glob("*/children")
    return {int(pid) for file in found for pid in file.read_text().split()}
