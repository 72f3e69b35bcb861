"""The messages between a benchmark and the program that has started it: one line of JSON each."""

from __future__ import annotations

import json
import sys
from typing import Any


def send(**message: Any) -> None:
    """Sends a message to the program."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def receive() -> dict[str, Any]:
    """Waits for a message of the program, and returns the message. If the program has closed the input, ends
    this process.

    The wait blocks the thread and its event loop. No measurement runs during the wait.
    """
    line = sys.stdin.readline()
    if not line:
        raise SystemExit(0)
    message: dict[str, Any] = json.loads(line)
    return message
