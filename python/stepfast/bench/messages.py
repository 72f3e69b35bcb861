"""How a benchmark speaks with the program that has started it: a line of JSON for all there is to tell."""

from __future__ import annotations

import json
import sys
from typing import Any


def say(**what: Any) -> None:
    """Tells the program."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def hear() -> dict[str, Any]:
    """Waits for what the program says, and ends this process if it says nothing more.

    It blocks, also an event loop: nothing is measured meanwhile.
    """
    line = sys.stdin.readline()
    if not line:
        raise SystemExit(0)
    heard: dict[str, Any] = json.loads(line)
    return heard
